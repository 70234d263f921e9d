from tests.system.watching import *
