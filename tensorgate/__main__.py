"""`python -m tensorgate` is `tensorgate`."""

import sys

from tensorgate.gateway.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
