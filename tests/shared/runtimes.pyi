from tests.backends.runtimes import *
