from tests.equivalence.tfs_forms import *
