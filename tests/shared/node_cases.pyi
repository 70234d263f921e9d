from tests.system.node_cases import *
