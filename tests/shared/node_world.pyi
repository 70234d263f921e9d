from tests.system.node_world import *
