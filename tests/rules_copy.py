"""A copy of the rules that a test may change, with what was compiled of them: only what a test changes is read anew."""

import shutil
from collections.abc import Collection
from pathlib import Path

from kb.knowledge.readings import FILE

ROOT = Path(__file__).resolve().parent.parent
# What rules that are few hold of each folder; of the others everything. They are right, and compiled in a quarter of
# the time that all rules take.
FEW = {
    "checks": ("t5-fp16-overflow", "zero-epochs"), "models": ("mt5-base", "t5-base"),
    "hardware": ("rtx-3090", "t4", "l4"), "tables": (), "remedies": (), "measurements": (),
}  # fmt: skip


def copy_of_rules(folder: Path) -> Path:
    """``rules/`` and ``i18n/`` in ``folder``; the former's path."""
    # another of pytest's workers may be writing a part there
    shutil.copytree(ROOT / "rules", folder / "rules", ignore=shutil.ignore_patterns("*.tmp"))
    shutil.copytree(ROOT / "i18n", folder / "i18n")
    return folder / "rules"


def few_rules(folder: Path, source: Path = ROOT, **more: Collection[str]) -> Path:
    """As :func:`copy_of_rules`, for tests that ask nothing of most rules; nothing is compiled of these yet.

    Args:
        source: where ``rules/`` and ``i18n/`` lie.
        more: what a folder holds beside those (``models={"kobart"}``).
    """
    kept = {name: {*few, *more.get(name, ())} for name, few in FEW.items()}

    def left_out(place: str, names: list[str]) -> set[str]:
        where = Path(place).relative_to(source / "rules").parts
        if where == (".bundle",):
            return {name for name in names if name != FILE}
        if not where or where[0] not in kept:
            return {name for name in names if name.endswith(".tmp")}
        return {name for name in names if name.endswith(".yaml") and name.removesuffix(".yaml") not in kept[where[0]]}

    shutil.copytree(source / "rules", folder / "rules", ignore=left_out, copy_function=shutil.copyfile)
    shutil.copytree(source / "i18n", folder / "i18n")
    return folder / "rules"
