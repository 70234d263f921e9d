from tests.equivalence.wire import *
