from tests.equivalence.rig import *
