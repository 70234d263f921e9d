from tests.equivalence.v2_forms import *
