from tests.system.cuda_stand_in import *
