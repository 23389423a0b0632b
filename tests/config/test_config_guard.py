"""Texts made to exhaust a parser end early, with a clear error at its place."""

import pytest
import yaml

from config_sample import read
from kb.config.files import MAX_BYTES, ConfigError
from kb.config.text.guard import MAX_ALIASES, MAX_DEPTH, MAX_EVENTS

LAUGHS = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)
MERGES = "a0: &a0 {k: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [{','.join([f'*a{i - 1}'] * 10)}]}}\n" for i in range(1, 9))
DOUBLING = f"a0: &a0 {{{','.join(f'k{i}: {i}' for i in range(100))}}}\n" + "".join(
    f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 11)
)
MANY_ROWS = "".join(f"k{i}: {{a: 1, b: [1,2,3]}}\n" for i in range(37_000))

REJECTED = {
    "billion laughs": (LAUGHS, "config.too-many-aliases", (4, 10)),
    "merge bomb": (MERGES, "config.too-many-aliases", (4, 15)),
    "merges doubling under the alias limit": (DOUBLING, "config.too-large-expanded", (8, 9)),
    "100,000 open brackets": ("[" * 100_000, "config.too-deep", (1, MAX_DEPTH + 1)),
    "100,000 open braces": ("{" * 100_000, "config.too-deep", (1, MAX_DEPTH + 1)),
    "50,000 brackets, closed": ("[" * 50_000 + "]" * 50_000, "config.too-deep", (1, MAX_DEPTH + 1)),
    "deep blocks": ("\n".join(" " * i + "a:" for i in range(1200)), "config.too-deep", (MAX_DEPTH + 1, MAX_DEPTH + 1)),
    "deep blocks, 4 MB": ("\n".join(" " * i + "a:" for i in range(3000)), "config.too-large", (None, None)),
    "dashes": ("- " * 100_000, "config.too-deep", (1, 2 * MAX_DEPTH + 1)),
    "a list in itself": ("&a [*a]", "config.cycle", (1, 5)),
    "a mapping in itself": ("a: &a {b: *a}", "config.cycle", (1, 11)),
    "an alias of nothing": ("a: *x\n", "config.unknown-alias", (1, 4)),
    "10 MB": (MANY_ROWS * 10, "config.too-large", (None, None)),
    "1 MB of rows": (MANY_ROWS[:1_000_000], "config.too-many-values", None),
    "100,000 items": ("[" + "1," * 100_000 + "]", "config.too-many-values", None),
    "200,000 documents": ("---\n" * 200_000, "config.too-many-values", None),
    "half a million colons": ("a" + ":" * 500_000, "config.colon", (1, 500_001)),
    "escapes": ('"' + "\\x41" * 200_000 + '"', "config.scalar-at-top", (1, 1)),
    "a call": ("x: !!python/object/apply:os.system [id]", "config.tag", (1, 4)),
    "a name": ("x: !!python/name:os.system", "config.tag", (1, 4)),
    "an own tag": ("x: 1\ny: !include other.yaml", "config.tag", (2, 4)),
    "a template": ("training:\n  path: {{ folder }}/data\n", "config.template", (2, 10)),
    "a list as key": ("? [a, b]\n: 1\n", "config.complex-key", (1, 3)),
    "a merge of a number": ("a: 1\n<<: 5\n", "config.merge", (2, 1)),
    "a NUL": ("a: \x00\n", "config.control-character", (1, 4)),
    "half a surrogate pair": ("a: 1\nbc: \ud800\n", "config.control-character", (2, 5)),
    "a million tabs": ("\t" * 1_000_000, "config.tab", (1, 1)),
    "half a million comments": ("#\n" * 500_000, "config.only-comments", (None, None)),
}
DEEP_JSON = {
    "deep objects": ('{"a":' * 100_000, "config.too-deep", (1, 5 * MAX_DEPTH + 1)),
    "100,000 numbers": ('{"a": [' + "1," * 100_000 + "1]}", "config.too-many-values", None),
    "backslashes": ('{"a": "' + "\\" * 500_000, "config.json-string", (1, 7)),
    "an endless text": ('{"a": "' + "x" * 900_000, "config.json-string", (1, 7)),
    "an endless number": ('{"a": ' + "1" * 900_000 + "x", "config.json-value", (1, 7)),
}


@pytest.mark.parametrize("name", REJECTED)
def test_hostile_yaml_is_refused_with_its_place(name):
    text, key, place = REJECTED[name]
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert caught.value.key == key
    if place is not None:
        assert (caught.value.line, caught.value.column) == place


SLOW_IN_PYTHON = {"1 MB of rows", "100,000 items", "200,000 documents", "a million tabs", "half a million comments"}


@pytest.mark.parametrize("name", sorted(set(REJECTED) - SLOW_IN_PYTHON))
def test_hostile_yaml_is_refused_without_libyaml_too(name, monkeypatch):
    monkeypatch.setattr("kb.config.text.parsing.LOADER", yaml.SafeLoader)
    text, key, _ = REJECTED[name]
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert caught.value.key == key


@pytest.mark.parametrize("name", DEEP_JSON)
def test_hostile_json_is_refused_with_its_place(name):
    text, key, place = DEEP_JSON[name]
    with pytest.raises(ConfigError) as caught:
        read(text, "config.json")
    assert caught.value.key == key
    if place is not None:
        assert (caught.value.line, caught.value.column) == place


@pytest.mark.parametrize(
    "text",
    [
        "training: {fp16: true, seed: " + "9" * 5000 + "}",
        "training: {fp16: true, max_steps: 1" + ":59" * 20_000 + "}",
        "training: {fp16: true, learning_rate: 1e" + "9" * 5000 + "}",
    ],
)
def test_a_number_of_thousands_of_digits_is_no_number(text):
    (unit,) = read(text)
    assert [event.kind for event in unit.events] == ["wrong-type"]
    assert len(unit.events[0].values["raw"]) <= 60


@pytest.mark.long
def test_large_but_harmless_texts_are_read():
    assert read("? " + "a" * 900_000 + "\n: 1")[0].dialect is None
    assert read("".join(f"k{i}: &a{i} 1\n" for i in range(9000)))[0].dialect is None
    text = "training:\n  fp16: true\n  optim: " + "b " * 400_000
    assert len(read(text)[0].settings["training.optim"].value) == 799_999


@pytest.mark.long
def test_misspelt_keys_by_the_thousand_do_not_stop_the_reader():
    rows = "".join(f"  per_device_train_batchsiz{chr(97 + i % 26)}{i}: 1\n" for i in range(6000))
    (unit,) = read("training:\n  fp16: true\n" + rows)
    assert unit.settings["training.fp16"].value is True


def test_limits_are_told_as_numbers():
    for text, key, limit in [
        ("[" * 100, "config.too-deep", MAX_DEPTH),
        ("x" * (MAX_BYTES + 1), "config.too-large", MAX_BYTES),
        ("[" + "1," * MAX_EVENTS + "]", "config.too-many-values", MAX_EVENTS),
        ("a: &a 1\nb: [" + "*a," * (MAX_ALIASES + 1) + "]", "config.too-many-aliases", MAX_ALIASES),
    ]:
        with pytest.raises(ConfigError) as caught:
            read(text)
        assert (caught.value.key, caught.value.values["limit"]) == (key, limit)


def test_size_counts_bytes_and_not_characters():
    with pytest.raises(ConfigError, match="too-large"):
        read("a: " + "가" * (MAX_BYTES // 3))
    assert read("a: " + "가" * (MAX_BYTES // 4))


def test_aliases_in_moderation_are_followed():
    (unit,) = read("base: &base {fp16: true}\ntraining:\n  <<: *base\n  seed: 1\n")
    assert unit.settings["training.fp16"].value is True
    assert unit.settings["training.fp16"].span.line == 1
