"""`python -m kb.monitor` is `kb monitor`."""

import sys

from kb.commands.monitor import main as main

if __name__ == "__main__":
    sys.exit(main())
