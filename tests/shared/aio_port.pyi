from tests.gateway.aio_port import *
