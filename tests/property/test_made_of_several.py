"""Whatever a Hydra tree or a sweep file holds: results or a fault with words, never anything else."""

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples
from kb.config.files import ConfigError
from kb.config.hydra.composing import compose
from kb.config.sweep import combinations, read_sweep
from kb.config.text.parsing import parse
from kb.session.lookups import read_below

PIECES = st.sampled_from(
    (
        *("defaults:", "  - g: a", "  - g: b", "  - /g@x: a", "  - override g: b", "  - optional g: c", "  - _self_"),
        *("  - g: ???", "  - g: null", "  - g: [a, b]", "  - g/a", "# @package _global_", "a: 1", "a: ${b}", "b: ${a}"),
        *(
            "c: {d: ${a}, e: ${.d}}",
            "f: ${c}",
            "l: [1, ${a}]",
            "h: ${l[0]}",
            "i: ${oc.env:X,1}",
            "j: '${'",
            "k: ${${a}}",
        ),
        *("<<: {z: 1}", "m: &x {n: 1}", "o: *x", "c: 5e-5", "q: [", "", "  - {a: b, c: d}"),
    )
)
FILES = st.lists(PIECES, max_size=9).map("\n".join)
SWEEPS = st.lists(
    st.sampled_from(
        (
            *("method: grid", "parameters:", "  a: {values: [1, 2]}", "  b: {min: 1, max: 5}", "  c: {value: x}"),
            *("  d: {parameters: {e: {values: [y]}}}", "  f: {distribution: log_uniform, min: -9, max: 999}", "  g: 3"),
            *("command: [--a, b, --c=1, ${args}]", "command:", "  h: {values: }", "  a.b: {value: 1}", "  a: {min: z}"),
        )
    ),
    max_size=9,
).map("\n".join)


@settings(max_examples=examples(60, 150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(FILES, FILES, FILES)
def test_any_tree_is_composed_or_refused_with_words(primary: str, first: str, second: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "g").mkdir()
        (folder / "g" / "a.yaml").write_text(first)
        (folder / "g" / "b.yaml").write_text(second)
        path = folder / "config.yaml"
        path.write_text(primary)
        try:
            composed = compose(str(path), path.read_bytes(), read_below)
        except ConfigError as fault:
            assert fault.key.startswith("config.")
            return
        if composed is not None:
            (document,) = composed.parsed.documents
            assert document is not None
            document.plain()
            for event in composed.parsed.events:
                assert 0 <= composed.virtual.number_of(event.span) < len(composed.files)


@settings(max_examples=examples(60, 150), deadline=None)
@given(SWEEPS)
def test_any_sweep_is_read_or_is_none(text: str) -> None:
    try:
        parsed = parse(text, "sweep.yaml")
    except ConfigError:
        return
    sweep = read_sweep(parsed)
    if sweep is not None:
        sizes = [max(len(parameter.choices), 1) for parameter in sweep.parameters]
        for chosen in combinations(sizes, 8):
            sweep.document(chosen).plain()
