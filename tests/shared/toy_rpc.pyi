from tests.gateway.toy_rpc import *
