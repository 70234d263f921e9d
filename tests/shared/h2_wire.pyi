from tests.gateway.h2_wire import *
from tests.gateway.h2_wire import CONTINUATION as CONTINUATION
from tests.gateway.h2_wire import FIRST_FRAME as FIRST_FRAME
from tests.gateway.h2_wire import MOST as MOST
from tests.gateway.h2_wire import head_of as head_of
