from tests.system.relays import *
