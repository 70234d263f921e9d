from tests.equivalence.worlds import *
