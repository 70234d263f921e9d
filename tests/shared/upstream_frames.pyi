from tests.backends.upstream_frames import *
