from tests.equivalence.grps_forms import *
