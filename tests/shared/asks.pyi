from tests.equivalence.asks import *
