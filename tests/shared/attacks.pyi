from tests.system.attacks import *
from tests.system.attacks import ROOT as ROOT
