"""The grammar of a rule's expressions, shown from the grammar's own data; every example is computed as it is shown."""

from collections.abc import Sequence
from typing import Any

from kb.core.dimensions import UNITS
from kb.core.expression import FUNCTIONS, Unknown, compile_tree, is_unknown
from kb.core.grammar import EXPONENTS, EXPRESSION_TYPES, MAX_LITERAL, MAX_NODES, SIGNS, parse
from kb.core.surface import MAX_CHARACTERS, MAX_DEPTH
from kb.core.units import BYTES_PER_UNIT
from kb.guide.library import Library
from kb.guide.markup import code, table
from kb.guide.site_words import say

# One of each sign and function of the grammar, which a test holds against it.
EXAMPLES = (
    *("2 + 3 * 4", "(10 - 4) / 4", "10 // 4", "10 % 4", "3 ** 2"),
    *("1 < 2 <= 2", "3 > 2 and 2 >= 3", "1 == 2 or 1 != 2", "not true"),
    *('"q" in ["q", "v"]', '"t5" in "mt5-base"', '"k" not in ["q", "v"]', "8 if 2 > 1 else 4"),
    *("min(3, 8)", "max(3, 8)", "abs(-2)", "ceil(2.1)", "floor(2.9)", "round(2.6)"),
    *("24 GiB - 24 GB", "48 GB > 40 GiB", "12 GiB / 2 GiB"),
)
TRUTHS = ("true", "false", "gpu.native_bf16")  # of the fact nothing is known
CLASHES = ("gpu.memory_total < 24", "gpu.memory_total < 24 gb", "model.family > 3", "training.fp61")


def evaluated(source: str) -> Any:
    """What an expression gives where no fact is known."""
    names = {"gpu.native_bf16": "bool", "true": "bool", "false": "bool"}
    known = {"true": True, "false": False}
    return compile_tree(parse(source, names))(lambda name: known.get(name, Unknown(frozenset((name,)))))


def grammar_tables(library: Library) -> str:
    """Signs and functions, sizes, types, what unknown makes of ``and`` and ``or``, refusals, limits."""

    def told(key: str) -> str:
        return say(library.language, f"grammar.{key}")

    def section(key: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
        return f"## {told(key)} {{ #{key} }}\n\n{table([told(each) for each in head], rows)}"

    types = library.catalog.fact_types()
    counts = {kind: sum(each == kind for each in types.values()) for kind in EXPRESSION_TYPES}
    junctions = [
        (code(f"{one} {word} {two}".replace(TRUTHS[2], "?")), _shown(evaluated(f"{one} {word} {two}")))
        for word in ("and", "or")
        for one in TRUTHS
        for two in TRUTHS[2:]
    ]
    limits = {
        "characters": MAX_CHARACTERS,
        "parts": MAX_NODES,
        "depth": MAX_DEPTH,
        "literal": MAX_LITERAL,
        "exponents": ", ".join(map(str, EXPONENTS)),
    }
    every = ", ".join(code(each) for each in (*SIGNS, *(f"{name}()" for name in FUNCTIONS)))
    parts = [
        f"{told('every')} {every}",
        section("signs", ("expression", "gives"), [(code(each), _shown(evaluated(each))) for each in EXAMPLES]),
        section(
            "sizes", ("unit", "bytes"), [(code(f"1 {each}"), f"{BYTES_PER_UNIT[each.upper()]:,}") for each in UNITS]
        ),
        section(
            "types",
            ("fact_type", "expression_type", "facts"),
            [(code(kind), code(seen), str(counts[kind])) for kind, seen in EXPRESSION_TYPES.items()],
        ),
        section("unknown", ("expression", "gives"), junctions),
        section("refused", ("expression", "reason"), [(code(each), code(_refusal(each, types))) for each in CLASHES]),
        section("limits", ("what", "most"), [(told(f"limit.{name}"), str(most)) for name, most in limits.items()]),
    ]
    return "\n\n".join(parts)


def _shown(value: Any) -> str:
    if is_unknown(value):
        return code("?")
    return code(str(value).lower() if isinstance(value, bool) else f"{value:,}")


def _refusal(source: str, types: Any) -> str:
    try:
        parse(source, types)
    except ValueError as error:
        return str(error).splitlines()[0]
    raise AssertionError(f"{source} is no longer refused: choose another example")
