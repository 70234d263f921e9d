from tests.system.serving import *
from tests.system.serving import ROOT as ROOT
