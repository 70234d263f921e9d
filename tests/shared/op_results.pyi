from tests.backends.op_results import *
