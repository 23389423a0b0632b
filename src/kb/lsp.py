"""`python -m kb.lsp` is `kb lsp`."""

import sys

from kb.commands.lsp import main as main

if __name__ == "__main__":
    sys.exit(main())
