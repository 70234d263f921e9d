"""Where modules lie that tests share, for a script that pytest has not told."""

import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(_ROOT / each) for each in ("", "tests/shared", "tests/system", "tests/gateway")]
