"""`python -m kb.doctor` is `kb doctor`."""

import sys

from kb.commands.doctor import main as main

if __name__ == "__main__":
    sys.exit(main())
