from tests.system.clients.triton_grpc_stream import *
