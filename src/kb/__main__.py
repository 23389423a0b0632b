"""``kb NAME …`` is ``python -m kb.NAME …``."""

import gc
import sys

from kb import __version__
from kb.commands import COMMANDS, command


def main() -> int:
    """Hand the arguments to the named command."""
    try:
        return _main(sys.argv[1:])
    except KeyboardInterrupt:  # while the command is still being imported
        return 130


def _main(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name == "check":
        gc.disable()  # as `kb.check` does
    # in a function, so that Ctrl-C meanwhile is heard
    from kb.session.cli import UNUSABLE, language_of, leave, load_words_or_none, no_such_command, said

    if name in COMMANDS:
        code: int = command(name).main(arguments[1:])
        if name == "check":
            leave(code)
        return code
    import os

    words = load_words_or_none(language_of(arguments, os.environ))
    if name in ("--version", "-V"):
        from kb.knowledge import load_catalog, locations  # for this option alone

        print(f"kb {__version__} (rules {load_catalog().version} from {locations.current().rules})")
        return 0
    text = "\n".join(
        [said(words, "cli.commands"), *(f"  kb {each:10} {said(words, f'cli.about.{each}')}" for each in COMMANDS)]
    )
    if name in ("-h", "--help"):
        print(text)
        return 0
    print(f"kb: {no_such_command(words, name, list(COMMANDS))}\n{text}", file=sys.stderr)
    return UNUSABLE


if __name__ == "__main__":
    sys.exit(main())
