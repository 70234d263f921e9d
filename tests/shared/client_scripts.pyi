from tests.system.client_scripts import *
