"""`python -m kb.lengths` is `kb lengths`."""

import sys

from kb.commands.lengths import main as main

if __name__ == "__main__":
    sys.exit(main())
