from tests.equivalence.truth import *
