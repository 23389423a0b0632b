"""`python -m kb.check` is `kb check`."""

import sys

from kb.commands.check import main as main

if __name__ == "__main__":
    sys.exit(main())
