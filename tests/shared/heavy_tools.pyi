from tests.system.heavy_tools import *
