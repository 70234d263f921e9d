from tests.system.forks import *
