from tests.system.page_world import *
