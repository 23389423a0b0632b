"""Rules whose data is a table: every row's examples, what is said of it, and that only rows a config names count."""

from pathlib import Path
from typing import Any

import pytest

from effort import few
from kb.advice.check import Checker
from kb.advice.findings.tables import Tables
from kb.config.reader import ConfigReader
from kb.core.hardware import Machine
from kb.core.release import parse_version
from kb.core.result import UnitResult
from kb.knowledge import KnowledgeError, load_catalog, load_table_examples
from kb.session.rule_examples import ExampleRunner
from rules_copy import few_rules
from yaml_file import read_yaml

pytestmark = pytest.mark.long

RULES = Path(__file__).parents[2] / "rules"
CATALOG = load_catalog(whole=True)
EXAMPLES = load_table_examples()


@pytest.fixture(scope="module")
def runner() -> ExampleRunner:
    return ExampleRunner(CATALOG)


@pytest.mark.parametrize("table", few(sorted({row["of"].partition("/")[0] for row in EXAMPLES}), 4))
def test_every_example_of_a_row_does_as_it_says(table: str, runner: ExampleRunner) -> None:
    """As `kb rules test` runs them, no rule beside those that word the row; CI asks it about every table."""
    faults = {
        f"{row['of']}, {row['example']['expect']}": fault
        for row in EXAMPLES
        if row["of"].startswith(f"{table}/")
        if (fault := runner.run_any(row["rules"], row["example"], row["of"])) is not None
    }
    assert faults == {}


def test_every_row_has_an_example_that_fires() -> None:
    shown = {row["of"] for row in EXAMPLES if row["example"]["expect"] == "fires"}
    for path in (RULES / "tables").glob("*.yaml"):
        table = read_yaml(path)
        groups = [row["id"] for row in table.get("rows", ())]
        groups += [*table.get("values", {}), *table.get("pairs", {})]
        assert {f"{table['id']}/{name}" for name in groups} <= shown


def check(text: str, *, versions: dict[str, str] | None = None, dialect: str | None = None) -> UnitResult:
    known = {name: parse_version(version) for name, version in (versions or {}).items()}
    machine = Machine()
    checker = Checker(CATALOG, machine, versions=known.get)
    (unit,) = ConfigReader(CATALOG.dialects, CATALOG.facts).read(text, "config.yaml", dialect=dialect)
    return checker.check(unit)


DATA = "datasets: [{path: tatsu-lab/alpaca, type: alpaca}]\n"  # without any, Axolotl stops too
AXOLOTL = (
    "base_model: mistralai/Mistral-7B-v0.1\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\nsequence_len: 2048\n"
)


def test_a_finding_has_the_name_of_the_rule_that_words_it_and_the_libraries_own_words() -> None:
    (found,) = [
        finding
        for finding in check(AXOLOTL + "adapter: qlora\nload_in_4bit: true\nload_in_8bit: true\n" + DATA).findings
        if finding.rule == "refused-at-start"
    ]
    assert found.facts["said"] == "Can't load qlora in 8bit"
    assert found.facts["settings"] == "adapter: qlora, load_in_8bit: true"
    assert found.severity == "error" and found.certainty == "certain"


def test_an_unknown_release_makes_nothing_loud() -> None:
    """A value that some releases have is a note where nothing says the release."""
    text = AXOLOTL + "optimizer: stable_adamw\n"
    quiet, loud = check(text), check(text, versions={"transformers": "4.50.3"})
    assert "value-not-in-release" in quiet.by_release
    assert all(finding.severity == "info" for finding in quiet.findings if "release" in finding.rule)
    assert [finding.severity for finding in loud.findings if finding.rule == "value-not-in-release"] == ["error"]


def test_a_value_of_a_release_that_nobody_looked_at_is_left_alone() -> None:
    text = AXOLOTL + "optimizer: an_optimizer_of_tomorrow\n"
    assert "value-not-known" in {finding.rule for finding in check(text).findings}
    assert "value-not-known" not in {
        finding.rule for finding in check(text, versions={"transformers": "9.1.0"}).findings
    }


def test_a_table_is_read_only_where_a_config_names_a_setting_of_it() -> None:
    read: list[str] = []

    def table(name: str) -> Any:
        read.append(name)
        return CATALOG.table(name)

    catalog = CATALOG._replace(table=table)
    tables = Tables(catalog, CATALOG.rules)
    machine = Machine()
    checker = Checker(CATALOG, machine)
    for text, expected in (("training: {do_train: true}\n", []), ("training: {optim: adamw_torch}\n", ["team"])):
        (unit,) = ConfigReader(CATALOG.dialects, CATALOG.facts).read(text, "config.yaml", dialect="team")
        read.clear()
        tables.lint(unit, checker.facts(unit), lambda library: None)
        assert read == expected


@pytest.mark.parametrize(
    ("old", "new", "said"),
    few(
        [
            ("rule: refused-at-start\nkeys", "rule: refused-at-strat\nkeys", "did you mean 'refused-at-start'"),
            ("formats: [axolotl]", "formats: [axolotls]", "did you mean 'axolotl'"),
            (
                'key.adapter == "qlora" and key.load_in_8bit',
                'key.adaptor == "qlora" and key.load_in_8bit',
                "unknown fact",
            ),
            ("fix: {set: {key.load_in_8bit: false}}", "fix: {set: {key.load_in_9bit: false}}", "did you mean"),
            ("  - id: qlora-needs-4bit", "  - id: qlora-with-8bit", "is also above"),
        ],
        2,
    ),
)
def test_a_fault_in_a_table_is_said_with_its_place(tmp_path: Path, old: str, new: str, said: str) -> None:
    folder = few_rules(tmp_path, tables={"axolotl"}, checks={"refused-at-start"})
    path = folder / "tables" / "axolotl.yaml"
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")
    with pytest.raises(KnowledgeError) as caught:
        load_catalog(str(folder))
    assert any(said in str(problem) for problem in caught.value.problems)
