"""A project's settings are taken exactly where their schema holds, and what does not hold is always named."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from kb.core.text import UserError
from kb.session.project import find_project

SCHEMA = json.loads((Path(__file__).parents[2] / "rules/schema/project.json").read_text("utf-8"))
HOLDS = Draft202012Validator(SCHEMA).is_valid
SCALARS = st.sampled_from(["ko", "error", "auto", "5.0", "latest", 2, 2.0, 0, 1.5, True])
LISTS = st.lists(SCALARS, max_size=2)
TABLES = st.dictionaries(st.sampled_from(["transformers", "torch", "x"]), SCALARS | LISTS, max_size=2)
SETTINGS = st.dictionaries(
    st.sampled_from([*SCHEMA["properties"], "gpuu", "zzz"]), SCALARS | LISTS | TABLES, min_size=1, max_size=3
)


def toml(settings: dict) -> str:
    plain = {name: value for name, value in settings.items() if not isinstance(value, dict)}
    lines = [f"{name} = {json.dumps(value)}" for name, value in plain.items()]
    for name, table in settings.items():
        if isinstance(table, dict):
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


@pytest.mark.long
@given(SETTINGS)
def test_settings_are_taken_where_the_schema_holds(tmp_path_factory: pytest.TempPathFactory, settings: dict) -> None:
    folder = tmp_path_factory.mktemp("project")
    (folder / "kb.toml").write_text(toml(settings), "utf-8")
    if HOLDS(settings):
        project = find_project(str(folder))
        assert project.path == str(folder / "kb.toml") and not isinstance(project.gpus, float)
    else:
        with pytest.raises(UserError) as raised:
            find_project(str(folder))
        assert raised.value.key.startswith("project.")
        assert raised.value.values["path"] == str(folder / "kb.toml")
