"""`python -m kb.completion` is `kb completion`."""

import sys

from kb.commands.completion import main as main

if __name__ == "__main__":
    sys.exit(main())
