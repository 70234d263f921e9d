from tests.equivalence.bursts import *
