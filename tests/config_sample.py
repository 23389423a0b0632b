"""The shipped dialects and vocabulary, read plainly, and what config tests ask for again and again."""

from pathlib import Path

from kb.config.reader import ConfigReader
from kb.core.catalog import Dialect
from kb.core.document import Event, Unit
from kb.core.facts import FactType
from kb.core.text import Text
from yaml_file import read_yaml

ROOT = Path(__file__).parent.parent
CONFIGS = Path(__file__).parent / "data" / "configs"
DIALECT_FILES = sorted((ROOT / "rules" / "dialects").glob("*.yaml"))


def dialect_of(data: dict) -> Dialect:
    return Dialect(
        id=data["id"],
        reader=data.get("reader", "library"),
        layout=data["layout"],
        recognise=data["recognise"],
        sections=data.get("sections", {}),
        names=lambda: data,
        own=lambda: data,
        priority=data.get("priority", 0),
        wrapped=data.get("wrapped", {}),
    )


def load(path: Path) -> dict:
    return read_yaml(path)


VOCABULARY = load(ROOT / "rules" / "vocabulary.yaml")


def facts() -> dict[str, FactType]:
    rows = VOCABULARY["facts"]
    return {
        name: FactType(
            name=name,
            type=row["type"],
            setting=row.get("setting", False),
            renamed=row.get("renamed"),
            meaning=Text(row["ko"], row["en"]),
        )
        for name, row in rows.items()
    }


FACTS = facts()
EVENTS = VOCABULARY["events"]
DIALECTS = {dialect.id: dialect for dialect in (dialect_of(load(path)) for path in DIALECT_FILES)}
READER = ConfigReader(DIALECTS, FACTS)


def read(text: str, path: str = "config.yaml", dialect: str | None = None) -> list[Unit]:
    return READER.read(text, path, dialect=dialect)


def read_one(text: str, path: str = "config.yaml", dialect: str | None = None) -> Unit:
    (unit,) = read(text, path, dialect)
    return unit


def read_sample(name: str) -> tuple[str, list[Unit]]:
    text = (CONFIGS / name).read_text(encoding="utf-8")
    return text, read(text, name)


def only_event(unit: Unit) -> Event:
    (event,) = unit.events
    return event


def mended(text: str, unit: Unit) -> str:
    """``text`` with every edit of every event of the unit put in."""
    edits = [edit for event in unit.events for edit in event.edits]
    for edit in sorted(edits, key=lambda edit: -edit.span.start):
        text = text[: edit.span.start] + edit.value + text[edit.span.end :]
    return text


def nth_line(text: str, line: int) -> str:
    return text.split("\n")[line - 1]
