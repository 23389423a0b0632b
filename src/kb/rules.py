"""`python -m kb.rules` is `kb rules`."""

import sys

from kb.commands.rules import main as main

if __name__ == "__main__":
    sys.exit(main())
