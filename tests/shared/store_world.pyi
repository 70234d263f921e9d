from tests.gateway.store_world import *
