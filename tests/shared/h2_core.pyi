from tests.gateway.h2_core import *
