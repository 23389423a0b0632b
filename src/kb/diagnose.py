"""`python -m kb.diagnose` is `kb diagnose`."""

import sys

from kb.commands.diagnose import main as main

if __name__ == "__main__":
    sys.exit(main())
