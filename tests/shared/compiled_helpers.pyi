from tests.adapters.compiled_helpers import *
