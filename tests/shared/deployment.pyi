from tests.system.deployment import *
