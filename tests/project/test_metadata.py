"""What a package says of where it is published: all of it from one variable, and nothing where that is empty."""

import os
import re
import subprocess
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import yaml
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

from kb import __version__
from kb.knowledge import locations
from packages import ROOT

PROJECT = "https://github.com/Acme-Lab/gpu-memory-kb"
PAGES = "https://acme-lab.github.io/gpu-memory-kb/"
spec = spec_from_file_location("kb_hatch_build", ROOT / "hatch_build.py")
assert spec is not None and spec.loader is not None
hatch_build = module_from_spec(spec)
spec.loader.exec_module(hatch_build)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package's metadata for what the variable holds."""

    def read(project: str) -> Any:
        monkeypatch.setenv("KB_PROJECT_URL", project)
        monkeypatch.delenv("KB_SITE_URL", raising=False)
        return ProjectMetadata(str(ROOT), PluginManager()).core

    return read


def links(readme: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", readme)


def test_a_package_whose_place_is_known_names_it(said: Any) -> None:
    made = said(PROJECT + "/")
    assert made.urls == {
        "Repository": PROJECT,
        "Issues": f"{PROJECT}/issues",
        "Changelog": f"{PROJECT}/blob/v{__version__}/CHANGELOG.md",
        "Documentation": PAGES,
    }
    for link in links(made.readme):
        assert link.startswith(("https://", "#")), link
        if link.startswith(PROJECT):
            kind, _, path = link.removeprefix(f"{PROJECT}/").partition(f"/v{__version__}/")
            assert (ROOT / path).is_dir() == (kind == "tree") and (ROOT / path).exists(), link


def test_no_address_is_made_up(said: Any) -> None:
    made = said("")
    assert made.urls == {}
    assert made.readme == (ROOT / "README.md").read_text("utf-8")
    assert hatch_build.site_file(os.devnull) == {}, "nothing is written"


def test_what_is_no_address_ends_the_build(said: Any) -> None:
    with pytest.raises(SystemExit, match="KB_PROJECT_URL"):
        said("git@github.com:acme/kb").urls  # noqa: B018


@pytest.mark.parametrize("name", ["gpu-memory-kb", "acme-lab.github.io"])
def test_findings_lead_to_where_the_workflow_publishes_the_site(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = yaml.safe_load((ROOT / ".github/workflows/site.yml").read_text("utf-8"))["jobs"]["build"]["steps"]
    (step,) = (step for step in steps if "KB_SITE_URL" in step.get("run", ""))
    written = tmp_path / "environment"
    env = {**os.environ, "OWNER": "Acme-Lab", "NAME": name, "TAG": "", "GITHUB_ENV": str(written)}
    subprocess.run(["bash", "-e", "-c", step["run"]], env=env, check=True, timeout=60)
    published = dict(line.split("=", 1) for line in written.read_text("utf-8").splitlines())["KB_SITE_URL"]
    monkeypatch.delenv("KB_SITE_URL", raising=False)
    monkeypatch.setenv("KB_PROJECT_URL", f"https://github.com/Acme-Lab/{name}")
    ((path, place),) = hatch_build.site_file(str(tmp_path)).items()
    assert Path(path).read_text("utf-8") == published
    folder = tmp_path / Path(place).parent
    folder.mkdir(parents=True)
    Path(path).rename(tmp_path / place)
    monkeypatch.setattr(locations, "_PACKAGED", str(folder))  # as in a package that was built so
    assert locations.site_address() == published
    monkeypatch.setenv("KB_SITE_URL", "https://kb.example")
    assert locations.site_address() == "https://kb.example/", "a company's own site comes first"
    monkeypatch.setenv("KB_SITE_URL", "kb.example")
    assert locations.site_address() == "", "no address"


def test_a_release_is_built_with_its_place() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text("utf-8"))
    assert workflow["env"]["KB_PROJECT_URL"] == "${{ github.server_url }}/${{ github.repository }}"
