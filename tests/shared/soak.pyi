from tests.system.soak import *
