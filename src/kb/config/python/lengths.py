"""Lengths that a program says elsewhere than in a call that is known: by a constant, or by several calls alike."""

import ast
from collections.abc import Iterable, Mapping

from kb.config.python.names import Names, Where
from kb.config.python.syntax import Module
from kb.config.python.values import Values
from kb.core.document import Setting
from kb.core.expression import is_unknown

SOURCE, TARGET = "data.max_source_length", "data.max_target_length"
# Names that programs give the length of a row, folded; texts are cut to one of the last two where they are grouped.
OF_ROWS = ("max_input_length", "max_source_length", "max_seq_length", "max_seq_len", "max_input_len", "max_source_len")
OF_ANSWERS = ("max_target_length", "max_target_len", "max_label_length")
OF_GROUPS, GROUPING = ("block_size", "chunk_size"), "group_texts"
MOST = 1_000_000  # tokens; what is longer is a size of something else


def lengths_by_constants(module: Module, names: Names, values: Values) -> dict[str, Setting]:
    """The lengths that plain constants at the top of a module give, each where it is assigned and used once."""
    found: dict[str, Setting] = {}
    grouped = GROUPING in names.uses
    for setting, known in ((SOURCE, (*OF_ROWS, *(OF_GROUPS if grouped else ()))), (TARGET, OF_ANSWERS)):
        named = [name for name in names.at_top() if name.casefold() in known and name in names.uses]
        read = [(name, binding) for name in named if (binding := names.only(name)) is not None]
        given = [(name, value, length) for name, (value, at) in read if (length := _length(values, value, at))]
        if len({length for _, _, length in given}) == 1:
            name, value, length = given[0]
            start, end = module.extent(value)
            span = module.source.between(module.place(start), module.place(end))
            found[setting] = Setting(length, span, span, (name,), alias=True)
    return found


def _length(values: Values, value: ast.expr, at: Where) -> int | None:
    length = values.scalar_of(value, at)
    whole = isinstance(length, int) and not isinstance(length, bool)
    return length if whole and 1 < length <= MOST else None


def alike(parts: Iterable[Mapping[str, Setting]]) -> dict[str, Setting]:
    """The settings that several calls give, of which any may be the one that counts, and all give alike."""
    each = list(parts)
    first = each[0] if each else {}
    return {
        name: setting
        for name, setting in first.items()
        if not is_unknown(setting.value)
        and all(name in other and other[name].value == setting.value for other in each)
        and not any(is_unknown(other[name].value) for other in each)
    }
