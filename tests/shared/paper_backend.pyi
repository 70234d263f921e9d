from tests.backends.paper_backend import *
