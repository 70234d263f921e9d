from tests.system.triton.repository import *
