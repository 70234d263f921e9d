from tests.equivalence.paths import *
