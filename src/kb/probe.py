"""`python -m kb.probe` is `kb probe`."""

import sys

from kb.commands.probe import main as main

if __name__ == "__main__":
    sys.exit(main())
