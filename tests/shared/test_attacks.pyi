from tests.system.test_attacks import *
