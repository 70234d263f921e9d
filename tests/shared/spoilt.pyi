from tests.equivalence.spoilt import *
