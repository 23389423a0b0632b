"""`python -m kb.check` is `kb check`."""

import gc

if __name__ == "__main__":
    gc.disable()  # already here: nothing of what is imported is garbage, and looking takes a twentieth of a short check

from kb.commands.check import main as main

if __name__ == "__main__":
    from kb.session.cli import leave

    leave(main())
