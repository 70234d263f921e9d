from tests.system.triton_suites import *
