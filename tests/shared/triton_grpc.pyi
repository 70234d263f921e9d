from tests.system.clients.triton_grpc import *
