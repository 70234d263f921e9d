from tests.adapters.dtype_cases import *
