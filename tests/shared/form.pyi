from tests.equivalence.form import *
