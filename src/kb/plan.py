"""`python -m kb.plan` is `kb plan`."""

import sys

from kb.commands.plan import main as main

if __name__ == "__main__":
    sys.exit(main())
