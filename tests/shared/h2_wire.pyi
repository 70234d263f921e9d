from tests.gateway.h2_wire import *
from tests.gateway.h2_wire import CONTINUATION as CONTINUATION
from tests.gateway.h2_wire import MAX_INT31 as MAX_INT31
from tests.gateway.h2_wire import MIN_FRAME_BYTES as MIN_FRAME_BYTES
from tests.gateway.h2_wire import head_of as head_of
