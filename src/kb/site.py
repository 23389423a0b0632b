"""`python -m kb.site` is `kb site`."""

import sys

from kb.commands.site import main as main

if __name__ == "__main__":
    sys.exit(main())
