"""`python -m kb.runtime` is `kb runtime`."""

import sys

from kb.commands.runtime import main as main

if __name__ == "__main__":
    sys.exit(main())
