"""Which option of a trade-off (rules/tradeoffs) covers a value of its setting, and what no option covers."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Covering(NamedTuple):
    """The option that covers a value, or None; then ``below`` and ``above`` are its neighbours, where there are any."""

    option: Mapping[str, Any] | None
    below: Mapping[str, Any] | None = None
    above: Mapping[str, Any] | None = None


def covering(tradeoff: Mapping[str, Any], value: float) -> Covering:
    """The option whose range, ends included, holds ``value``. Nothing is interpolated: a gap is reported as one.

    Args:
        tradeoff: an entry of ``load_guide()["tradeoffs"]`` whose options have ranges.
        value: of the trade-off's setting.

    Raises:
        ValueError: the trade-off has no ranges: its options are profiles or techniques.
    """
    options = sorted((option for option in tradeoff["options"] if "low" in option), key=lambda option: option["low"])
    if not options:
        raise ValueError(f"{tradeoff['id']} compares no values of a setting")
    for option in options:
        if option["low"] <= value <= option.get("high", float("inf")):
            return Covering(option)
    below = [option for option in options if option["low"] < value]
    above = [option for option in options if option["low"] > value]
    return Covering(None, below[-1] if below else None, above[0] if above else None)
