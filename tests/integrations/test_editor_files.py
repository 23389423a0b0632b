"""What editors are given beside the server: JSON Schemas of the config formats, and the VS Code extension."""

import inspect
import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from catalog_sample import load_catalog
from effort import EXHAUSTIVE
from kb.commands.rules import main as rules
from kb.commands.rules.config_schemas import config_schemas
from kb.integrations.editor import session
from kb.knowledge import load_words
from kb.report.words import Words
from kb.session.project import NAMEABLE
from packages import ROOT, call, missing

EXTENSION = ROOT / "editors" / "vscode"


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    catalog = load_catalog(whole=True)
    words = {language: Words(language, load_words(language), catalog.facts) for language in ("ko", "en")}
    return dict(config_schemas(catalog, words))


def test_every_format_of_files_has_a_valid_schema(schemas: dict[str, Any]) -> None:
    dialects = load_catalog().dialects
    assert set(schemas) == {
        name for name, each in dialects.items() if each.layout not in ("command", "python") and each.keys
    }
    for schema in list(schemas.values())[:: None if EXHAUSTIVE else 4]:
        jsonschema.Draft202012Validator.check_schema(schema)


def test_a_key_is_explained_in_both_languages_with_its_rules(schemas: dict[str, Any]) -> None:
    said = schemas["hf"]["properties"]["fp16"]
    assert "fp16 autocast (default: false)" in said["description"] and "자동 혼합 정밀도" in said["description"]
    assert said["markdownDescription"].count("`t5-fp16-overflow`") == 2, "once in each language"
    assert "micro_batch_size" in schemas["axolotl"]["properties"]
    assert "stage" in schemas["deepspeed"]["properties"]["zero_optimization"]["properties"]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_the_examples_pass_the_schema_of_their_format(schemas: dict[str, Any], path: Path) -> None:
    from kb.config.reader import ConfigReader

    catalog = load_catalog()
    text = path.read_text("utf-8")
    (unit, *_) = ConfigReader(catalog.dialects, catalog.facts).read(text, str(path))
    if unit.dialect in schemas:
        jsonschema.validate(yaml.safe_load(text), schemas[unit.dialect])


def test_a_value_of_the_wrong_kind_is_refused(schemas: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError, match="per_device_train_batch_size"):
        jsonschema.validate({"per_device_train_batch_size": [8]}, schemas["hf"])


def test_the_command_writes_them_and_says_where_it_cannot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rules(["schemas", "--out", str(tmp_path / "made"), "--lang", "ko"]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert all(path.parent == tmp_path / "made" for path in written) and len(written) > 5
    said = json.loads((tmp_path / "made" / "hf.json").read_text("utf-8"))["properties"]["fp16"]
    assert "default:" not in said["description"]
    (tmp_path / "file").write_text("")
    assert rules(["schemas", "--out", str(tmp_path / "file")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_the_extension_is_whole_and_asks_for_settings_that_the_server_reads() -> None:
    if not shutil.which("node"):
        missing("node is not installed")
    call(["node", "--check", EXTENSION / "extension.js"], EXTENSION)
    package = json.loads((EXTENSION / "package.json").read_text("utf-8"))
    lock = json.loads((EXTENSION / "package-lock.json").read_text("utf-8"))
    bundle = package["scripts"]["bundle"].split()  # one file, whose only import is the editor's own
    assert "--bundle" in bundle and "--external:vscode" in bundle and package["scripts"]["vscode:prepublish"]
    assert f"--outfile={package['main'].removeprefix('./')}" in bundle and (EXTENSION / bundle[1]).is_file()
    left_out = (EXTENSION / ".vscodeignore").read_text("utf-8").split()
    assert {"node_modules/**", bundle[1]} <= set(left_out) and "--no-dependencies" in package["scripts"]["package"]
    for kind in ("dependencies", "devDependencies"):
        assert lock["packages"][""][kind] == package[kind]
        assert all(version[0].isdigit() for version in package[kind].values()), "pinned"
    script = (EXTENSION / bundle[1]).read_text("utf-8")
    settings = {name.removeprefix("kb.") for name in package["contributes"]["configuration"]["properties"]} - {
        "command"
    }
    assert all(f'"{name}"' in script for name in settings)
    read = inspect.getsource(session)
    assert all(f'"{name}"' in read or name in NAMEABLE for name in settings)
