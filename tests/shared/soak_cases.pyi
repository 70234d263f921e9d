from tests.system.soak_cases import *
