from tests.system.peer_servers import *
