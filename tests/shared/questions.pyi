from tests.equivalence.questions import *
