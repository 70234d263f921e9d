from tests.equivalence.text_forms import *
