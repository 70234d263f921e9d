from tests.system.clients.triton_http import *
