"""`python -m kb.history` is `kb history`."""

import sys

from kb.commands.history import main as main

if __name__ == "__main__":
    sys.exit(main())
