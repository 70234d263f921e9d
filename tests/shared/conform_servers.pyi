from tests.system.conform_servers import *
