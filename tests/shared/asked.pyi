from tests.system.triton.asked import *
