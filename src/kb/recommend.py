"""`python -m kb.recommend` is `kb recommend`."""

import sys

from kb.commands.recommend import main as main

if __name__ == "__main__":
    sys.exit(main())
