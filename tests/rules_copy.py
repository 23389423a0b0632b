"""A copy of the rules that a test may change, with what was compiled of them: only what a test changes is read anew."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def copy_of_rules(folder: Path) -> Path:
    """``rules/`` and ``i18n/`` in ``folder``; the former's path."""
    # another of pytest's workers may be writing a part there
    shutil.copytree(ROOT / "rules", folder / "rules", ignore=shutil.ignore_patterns("*.tmp"))
    shutil.copytree(ROOT / "i18n", folder / "i18n")
    return folder / "rules"
