from tests.backends.fake_cuda import *
