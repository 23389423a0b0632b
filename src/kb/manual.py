"""`python -m kb.manual` is `kb manual`."""

import sys

from kb.commands.manual import main as main

if __name__ == "__main__":
    sys.exit(main())
