from tests.system.nvrtc import *
