"""`python -m kb.estimate` is `kb estimate`."""

import sys

from kb.commands.estimate import main as main

if __name__ == "__main__":
    sys.exit(main())
