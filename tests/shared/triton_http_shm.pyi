from tests.system.clients.triton_http_shm import *
