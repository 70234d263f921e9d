from tests.system.browser import *
