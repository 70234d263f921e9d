from tests.system.triton_suite_models import *
