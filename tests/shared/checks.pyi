from tests.system.clients.checks import *
