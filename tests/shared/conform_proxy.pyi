from tests.system.conform_proxy import *
