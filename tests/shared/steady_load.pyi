from tests.system.steady_load import *
