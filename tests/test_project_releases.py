"""Which releases a project's files say: every kind of file, what wins, and files that are not as they should be."""

import os
from pathlib import Path
from textwrap import dedent

import pytest

from kb.config.releases.reader import ReleaseReader, Releases, find_releases

REPOSITORY = ".git"


class Tree:
    """A repository in a folder, with a config below it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / REPOSITORY).mkdir()
        self.write("configs/run.yaml", "fp16: true\n")

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), "utf-8")
        return path

    def find(self, name: str = "configs/run.yaml") -> Releases:
        return find_releases(str(self.root / name))

    def own(self, name: str, text: str, kind: str) -> Releases:
        text = dedent(text)
        return find_releases(str(self.write(name, text)), text=text, kind=kind)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    root = tmp_path / "project"
    root.mkdir()
    return Tree(root)


def said(releases: Releases, library: str = "transformers") -> tuple[str, str, str, int | None]:
    """Specifier, origin, file and line."""
    release = releases.of(library)
    assert release is not None and release.place is not None
    return release.specifier, release.origin, os.path.basename(release.place.path), release.place.line


UV_LOCK = """\
    version = 1
    requires-python = ">=3.11"

    [[package]]
    name = "tokenizers"
    version = "0.21.0"

    [[package]]
    name = "transformers"
    version = "4.56.2"
    source = { registry = "https://pypi.org/simple" }
    dependencies = [
        { name = "torch" },
    ]
"""
SOURCES = {
    "uv.lock": (UV_LOCK, "==4.56.2", 10),
    "poetry.lock": (UV_LOCK, "==4.56.2", 10),
    "pdm.lock": (UV_LOCK, "==4.56.2", 10),
    "pylock.toml": (UV_LOCK.replace("[[package]]", "[[packages]]"), "==4.56.2", 10),
    "pylock.gpu.toml": (UV_LOCK.replace("[[package]]", "[[packages]]"), "==4.56.2", 10),
    "Pipfile.lock": ('{"default": {\n  "transformers": {"version": "==4.44.2"}\n}}', "==4.44.2", 2),
    "requirements.txt": ("# tools\ntransformers[torch] >= 4.40, < 4.50  # not 5\n", ">=4.40,<4.50", 2),
    "requirements-gpu.txt": ("transformers==4.51.3 --hash=sha256:00\n", "==4.51.3", 1),
    "constraints.txt": ("transformers==4.51.3\n", "==4.51.3", 1),
    "pyproject.toml": ('[project]\nname = "x"\ndependencies = [\n  "transformers~=4.45",\n]\n', "~=4.45", 4),
    "Pipfile": ('[packages]\ntransformers = {version = ">=4.45", extras = ["torch"]}\n', ">=4.45", 2),
    "setup.cfg": ("[options]\ninstall_requires =\n    torch\n    transformers!=4.50.0\n", "!=4.50.0", 4),
    "setup.py": ('from setuptools import setup\nsetup(install_requires=["transformers>4.50"])\n', ">4.50", 2),
    "environment.yml": ("name: x\ndependencies:\n  - python=3.11\n  - transformers=4.41.2\n", "==4.41.2", 4),
    "environment-gpu.yaml": ("dependencies:\n- pip:\n  - transformers==4.41.2\n", "==4.41.2", 3),
    "Dockerfile": ("FROM python:3.11\nRUN pip install --no-cache-dir -q \\\n  transformers==4.41.2\n", "==4.41.2", 2),
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_kind_of_file_is_read(tree: Tree, name: str) -> None:
    text, specifier, line = SOURCES[name]
    tree.write(name, text)
    found = tree.find()
    assert said(found) == (specifier, "pinned" if specifier.startswith("==") else "ranged", name, line)
    assert found.problems == ()
    assert str(tree.root / name) in {path for path, _, _ in found.files}


def test_a_folder_without_any_says_nothing(tree: Tree) -> None:
    assert tree.find() == Releases({})


def test_nothing_above_the_repository_is_read(tree: Tree) -> None:
    (tree.root.parent / "requirements.txt").write_text("transformers==4.30.0\n")
    assert tree.find().of("transformers") is None


def test_a_tree_is_read_once(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.write("requirements.txt", "transformers==4.54.0\n")
    listed: list[str] = []
    listing = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(str(path)) or listing(path))
    reader = ReleaseReader()
    for number in range(50):
        found = reader.find(str(tree.root / "configs" / f"{number}.yaml"), "fp16: true", "config")
        assert said(found)[0] == "==4.54.0"
    assert len(listed) == 2
