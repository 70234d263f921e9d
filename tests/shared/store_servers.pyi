from tests.system.store_servers import *
