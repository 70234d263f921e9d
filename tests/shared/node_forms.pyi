from tests.system.node_forms import *
