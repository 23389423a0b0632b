"""Which releases a project's files say: every kind of file, what wins, and files that are not as they should be."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

import kb
from effort import examples, few
from kb.commands.doctor import main as doctor
from kb.config.releases.reader import ReleaseReader, Releases
from kb.config.releases.requirement import conda_requirement, poetry_requirement, read_requirement
from kb.core.release import admits, agree
from kb.knowledge import load_words
from kb.machine.software import environment_of
from kb.session.around import ProjectReleases
from kb.session.lookups import Seen, still

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
        return ReleaseReader().find(str(self.root / name))

    def own(self, name: str, text: str, kind: str) -> Releases:
        text = dedent(text)
        return ReleaseReader().find(str(self.write(name, text)), text, kind)


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


# --- which word counts


def test_the_nearer_file_wins_and_the_other_is_named(tree: Tree) -> None:
    tree.write("requirements.txt", "transformers==4.54.0\n")
    tree.write("configs/requirements.txt", "transformers==4.30.2\npeft\n")
    release = tree.find().of("transformers")
    assert release is not None and release.exact == (4, 30, 2)
    ((place, specifier),) = release.others
    assert place.text() == f"{tree.root}/requirements.txt:1" and specifier == "==4.54.0"


def test_a_name_without_a_release_leaves_it_to_a_file_farther_away(tree: Tree) -> None:
    tree.write("configs/requirements.txt", "transformers\ntorch\n")
    tree.write("requirements.txt", "transformers==4.54.0\n")
    found = tree.find()
    assert said(found)[:2] == ("==4.54.0", "pinned")
    assert said(found, "torch") == ("", "assumed", "requirements.txt", 2)


def test_a_lock_comes_before_the_range_that_it_resolves(tree: Tree) -> None:
    tree.write("pyproject.toml", '[project]\nname = "x"\ndependencies = ["transformers>=4.50"]\n')
    tree.write("uv.lock", UV_LOCK)
    found = tree.find().of("transformers")
    assert found is not None and found.exact == (4, 56, 2) and found.others == ()


def test_the_lock_of_a_workspace_resolves_its_members_ranges(tree: Tree) -> None:
    tree.write("configs/pyproject.toml", '[project]\nname = "x"\ndependencies = ["transformers>=4.50"]\n')
    tree.write("uv.lock", UV_LOCK)
    assert said(tree.find())[:3] == ("==4.56.2", "pinned", "uv.lock")
    tree.write("configs/pyproject.toml", '[project]\nname = "x"\ndependencies = ["transformers>=4.57"]\n')
    found = tree.find().of("transformers")
    assert found is not None and found.specifier == ">=4.57" and found.others[0][1] == "==4.56.2"


def test_constraints_narrow_what_is_required(tree: Tree) -> None:
    tree.write("requirements.txt", "-c limits.txt\ntransformers>=4.40\ntorch>=2.1\n")
    tree.write("limits.txt", "transformers==4.44.0\ntorch<2.4\n")
    found = tree.find()
    assert said(found)[:3] == ("==4.44.0", "pinned", "limits.txt")
    assert said(found, "torch")[:3] == (">=2.1,<2.4", "ranged", "requirements.txt")


@pytest.mark.parametrize("name", ["requirements.lock.txt", "requirements-lock.txt", "requirements.lock"])
def test_what_was_installed_for_the_requirements_pins_them(tree: Tree, name: str) -> None:
    tree.write("requirements.txt", "transformers>=4.51\n")
    tree.write(name, "torch==2.8.0+cu128\ntransformers==5.7.0\n")
    assert said(tree.find())[:3] == ("==5.7.0", "pinned", name)
    tree.write("requirements-eval.lock.txt", "transformers==4.44.0\n")  # of another environment
    assert said(tree.find())[:3] == ("==5.7.0", "pinned", name)


def test_requirements_bring_in_others(tree: Tree) -> None:
    tree.write("requirements.txt", "-r train/base.txt\n--requirement=eval.txt\npeft>=0.10\n")
    tree.write("train/base.txt", "-r ../torch.txt\ntransformers==4.44.0\n")
    tree.write("torch.txt", "torch==2.4.0+cu121\n")
    tree.write("eval.txt", "peft==0.14.0\n")
    found = tree.find()
    assert said(found)[:3] == ("==4.44.0", "pinned", "base.txt")
    assert said(found, "torch")[:3] == ("==2.4.0+cu121", "pinned", "torch.txt")
    assert said(found, "peft")[:3] == ("==0.14.0", "pinned", "eval.txt")
    assert found.problems == ()


def test_extras_count_less_than_what_is_always_installed(tree: Tree) -> None:
    tree.write(
        "pyproject.toml",
        """\
        [project]
        name = "x"
        dependencies = ["transformers>=4.50"]
        [project.optional-dependencies]
        old = ["transformers==4.40.0", "torch==2.2.0"]
        new = ["torch==2.6.0"]
        [dependency-groups]
        dev = ["peft==0.14.0"]
        """,
    )
    found = tree.find()
    transformers = found.of("transformers")
    assert transformers is not None and transformers.specifier == ">=4.50"
    assert [specifier for _, specifier in transformers.others] == ["==4.40.0"]
    torch = found.of("torch")
    assert torch is not None and torch.origin == "ranged" and torch.exact is None
    assert torch.allows((2, 2, 0)) and torch.allows((2, 6)) and not torch.allows((2, 4))
    assert said(found, "peft")[:2] == ("==0.14.0", "ranged")
    assert found.problems == ()


def test_requirements_for_development_count_less(tree: Tree) -> None:
    tree.write("requirements.txt", "transformers>=4.50\n")
    tree.write("requirements-dev.txt", "transformers==4.40.0\npeft==0.14.0\n")
    tree.write("requirements/gpu.txt", "torch==2.6.0\n")
    found = tree.find()
    assert said(found)[:2] == (">=4.50", "ranged")
    assert said(found, "peft")[:2] == ("==0.14.0", "ranged")
    assert said(found, "torch")[:3] == ("==2.6.0", "ranged", "gpu.txt")


def test_several_versions_in_a_lock_are_alternatives(tree: Tree) -> None:
    lock = UV_LOCK + '\n[[package]]\nname = "torch"\nversion = "2.6.0"\n\n[[package]]\nname = "torch"\n'
    tree.write("uv.lock", lock + 'version = "2.6.0+cu124"\n\n[[package]]\nname = "peft"\nversion = "0.1.0"\n')
    assert said(tree.find(), "torch")[:2] == ("==2.6.0", "pinned")
    tree.write("uv.lock", lock + 'version = "2.5.1+cu124"\n')
    found = tree.find()
    assert said(found, "torch")[:2] == ("==2.6.0 || ==2.5.1+cu124", "ranged") and found.problems == ()


def test_a_pin_in_some_images_or_workflows_is_not_certain(tree: Tree) -> None:
    tree.write(
        ".github/workflows/test.yml", "jobs:\n  test:\n    steps:\n      - run: pip install transformers==4.44.0\n"
    )
    tree.write("Dockerfile.cpu", "FROM python:3.11\nRUN python3 -m pip install torch==2.4.0 && echo done\n")
    found = tree.find()
    assert said(found) == ("==4.44.0", "ranged", "test.yml", 4)
    assert said(found, "torch") == ("==2.4.0", "ranged", "Dockerfile.cpu", 2)


def test_a_dockerfile_says_by_its_image_too(tree: Tree) -> None:
    steps = "RUN pip install \\\n  # needed\n  'peft>=0.10' \\\n  trl==$VERSION 'transformers[torch]'==4.44.0\n"
    tree.write("Dockerfile", f"FROM pytorch/pytorch:2.4.0-cuda12.1-cudnn9-devel AS base\n{steps}")
    found = tree.find()
    assert said(found, "torch") == ("==2.4.0", "pinned", "Dockerfile", 1)
    assert said(found, "peft")[:2] == (">=0.10", "ranged")
    assert said(found, "trl")[:2] == ("", "assumed")
    assert said(found) == ("==4.44.0", "pinned", "Dockerfile", 2)


def test_the_repository_of_a_library_is_that_release(tree: Tree) -> None:
    tree.write("pyproject.toml", '[project]\nname = "trl"\nversion = "0.24.0.dev0"\ndependencies = ["transformers"]\n')
    assert said(tree.find(), "trl") == ("==0.24.0.dev0", "pinned", "pyproject.toml", 3)


SETUP = """\
    import re
    from setuptools import setup
    _deps = ["accelerate>=1.9.0", "torch>=2.6.0", "transformers>=4.53.3", "trl==0.19.1", "pytest"]
    deps = {b: a for a, b in (re.findall(r"^(([^!=<>~ ]+)(?:[!=<>~ ].*)?$)", x)[0] for x in _deps)}
    def deps_list(*names):
        return [deps[name] for name in names]
    extras = {"torch": deps_list("torch"), "old": ["transformers==4.40.0"]}
    install_requires = [deps["accelerate"], deps["transformers"], deps["trl"]]
    setup(name="x", install_requires=install_requires, extras_require=extras, keywords=["torch", "peft"])
"""


def test_a_setup_py_with_a_table_of_requirements(tree: Tree) -> None:
    tree.write("setup.py", SETUP)
    found = tree.find()
    assert said(found) == (">=4.53.3", "ranged", "setup.py", 3)
    assert said(found, "trl")[:2] == ("==0.19.1", "pinned")
    assert said(found, "torch")[:2] == (">=2.6.0", "ranged")
    assert found.of("peft") is None


def test_a_setup_py_that_reads_a_file(tree: Tree) -> None:
    tree.write("setup.py", "from setuptools import setup\nsetup(install_requires=lines('needs/all.txt'))\n")
    tree.write("needs/all.txt", "transformers==4.44.0\n")
    assert said(tree.find()) == ("==4.44.0", "pinned", "all.txt", 1)


def test_poetry_and_its_signs(tree: Tree) -> None:
    tree.write(
        "pyproject.toml",
        """\
        [tool.poetry.dependencies]
        python = "^3.10"
        transformers = "^4.40"
        torch = [{version = "2.4.0", platform = "linux"}, {version = "2.2.2", platform = "darwin"}]
        peft = {git = "https://github.com/huggingface/peft", tag = "v0.14.0"}
        trl = {git = "https://github.com/huggingface/trl", branch = "main"}
        accelerate = {version = "~0.30", optional = true}
        [tool.poetry.group.dev.dependencies]
        datasets = "*"
        """,
    )
    found = tree.find()
    assert said(found) == (">=4.40,<5", "ranged", "pyproject.toml", 3)
    assert said(found, "torch")[:2] == ("==2.4.0 || ==2.2.2", "ranged")
    assert said(found, "peft")[:2] == ("==0.14.0", "pinned")
    assert said(found, "trl")[:2] == ("", "assumed")
    assert said(found, "accelerate")[:2] == (">=0.30,<0.31", "ranged")
    assert said(found, "datasets")[:2] == ("", "assumed")
    assert found.problems == ()


def test_a_source_of_uv_takes_the_place_of_a_release(tree: Tree) -> None:
    tree.write(
        "pyproject.toml",
        """\
        [project]
        name = "x"
        dependencies = ["transformers>=4.50", "trl==0.20.0"]
        [tool.uv.sources]
        transformers = {git = "https://github.com/huggingface/transformers", rev = "2ab75add"}
        trl = {index = "internal"}
        """,
    )
    found = tree.find()
    assert said(found)[:2] == ("", "assumed")
    assert said(found, "trl")[:2] == ("==0.20.0", "pinned")


# --- the file itself


BLOCK = """\
    # /// script
    # requires-python = ">=3.10"
    # dependencies = [
    #     "transformers==4.56.2",
    #     "torch",
    # ]
    # ///
    import torch
"""


def test_a_scripts_own_block_comes_first(tree: Tree) -> None:
    tree.write("requirements.txt", "transformers==4.40.0\n")
    found = tree.own("train.py", BLOCK, "python")
    release = found.of("transformers")
    assert said(found) == ("==4.56.2", "pinned", "train.py", 4)
    assert release is not None and [specifier for _, specifier in release.others] == ["==4.40.0"]


def test_calls_that_start_pip_count_and_sentences_about_it_do_not(tree: Tree) -> None:
    text = """\
        import os, subprocess, sys
        subprocess.check_call([sys.executable, "-m", "pip", "install", "-q", "transformers==4.44.0"])
        os.system("pip install 'peft>=0.10' && echo done")
        PACKAGES, MORE = ["trl==0.29.1"], ["deepspeed==0.15.0"]
        NEEDED = ["accelerate==1.12.0", "datasets"]
        subprocess.run([sys.executable, "-m", "pip", "install", *NEEDED], check=True)
        raise ImportError("please pip install torch==2.4.0")
        # pip install trl==0.9
    """
    found = tree.own("train.py", text, "python")
    assert said(found) == ("==4.44.0", "pinned", "train.py", 2)
    assert said(found, "peft") == (">=0.10", "ranged", "train.py", 3)
    assert said(found, "accelerate") == ("==1.12.0", "pinned", "train.py", 6)
    assert found.of("torch") is None and found.of("trl") is None and found.of("deepspeed") is None


def notebook(*cells: str) -> str:
    made = [{"cell_type": "code", "source": dedent(cell).splitlines(keepends=True), "outputs": []} for cell in cells]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": made}, indent=1)


def test_the_cells_of_a_notebook_count_in_their_order(tree: Tree) -> None:
    text = notebook(
        """\
        %%capture
        import os
        if "COLAB_" not in "".join(os.environ):
            !pip install unsloth  # anywhere else
        else:
            !pip install --no-deps {xformers} trl "datasets==4.3.0" \\
                peft
        !pip install transformers==4.56.2
        # !pip install transformers==4.30
        %pip install -qU accelerate
        """,
        "!uv pip install --system -qqq --no-deps 'trl==0.22.2'\n",
        "%%bash\nif true; then pip install bitsandbytes==0.45.0; fi\n",
        'print("run !pip install torch==2.0 first")\n',
    )
    found = tree.own("run.ipynb", text, "notebook")
    line = next(at for at, row in enumerate(text.splitlines(), 1) if "transformers==4.56.2" in row)
    assert said(found) == ("==4.56.2", "pinned", "run.ipynb", line)
    assert said(found, "trl")[:2] == ("==0.22.2", "pinned")
    assert said(found, "datasets")[:2] == ("==4.3.0", "pinned")
    assert said(found, "bitsandbytes")[:2] == ("==0.45.0", "pinned")
    assert said(found, "accelerate")[:2] == ("", "assumed")
    assert found.of("torch") is None


def test_the_newest_of_a_branch_leaves_nothing_of_a_pin_farther_away(tree: Tree) -> None:
    tree.write("requirements.txt", "transformers==4.40.0\npeft==0.10.0\n")
    source = "git+https://github.com/huggingface"
    text = f"pip install -U peft {source}/transformers.git@main {source}/trl@v0.9.6 {source}/accelerate.git\n"
    found = tree.own("run.sh", text, "shell")
    for library in ("transformers", "peft", "accelerate"):
        assert said(found, library)[:2] == ("", "assumed")
    assert said(found, "trl")[:2] == ("==0.9.6", "pinned")


def test_a_script_that_installs_a_list_beside_it(tree: Tree) -> None:
    tree.write("needs.txt", "transformers==4.44.0\n")
    found = tree.own("run.sh", "set -e\npip install -r needs.txt -r /app/other.txt\ntorchrun train.py\n", "shell")
    assert said(found) == ("==4.44.0", "pinned", "needs.txt", 1)
    assert str(tree.root / "needs.txt") in {path for path, _, _ in found.files}


def test_a_program_installs_what_its_image_in_a_cloud_is_given(tree: Tree) -> None:
    tree.write("needs.txt", "transformers==4.44.0\n")
    image = 'image = (\n    modal.Image.debian_slim()\n    .uv_pip_install("vllm==0.19.0", NAME)\n'
    image += '    .pip_install(["trl==0.9.6"])\n    .pip_install_from_requirements("needs.txt")\n)\n'
    found = tree.own("app.py", f"import modal\n{image}", "python")
    releases = [said(found, each)[0] for each in ("vllm", "trl", "transformers")]
    assert releases == ["==0.19.0", "==0.9.6", "==4.44.0"]


def test_a_script_installs_what_its_shell_runs(tree: Tree) -> None:
    shown = "echo 'For the old trainer:\n  pip install peft==0.2.0\nand run again'\n"
    for before in ("docker run --rm img", "ssh host", "kubectl exec pod --", "echo"):  # no environment of this run
        shown += f"{before} bash -c 'pip install datasets==1.0.0'\n"
    image = "cat > Dockerfile <<END\nRUN pip install torch==1.0.0\nEND\n"
    own = (
        "V=4.40.0\npip install transformers==$V trl==$1 \"accelerate==${A:-0.30}\"\nbash -c 'pip install vllm==0.6.0'\n"
    )
    found = tree.own("run.sh", shown + image + own, "shell")
    assert said(found) == ("==4.40.0", "pinned", "run.sh", 12)
    assert said(found, "vllm")[:2] == ("==0.6.0", "pinned")
    assert [said(found, each)[0] for each in ("trl", "accelerate")] == ["", ""]
    assert found.known.keys().isdisjoint(("peft", "torch", "datasets"))


def test_a_sign_that_the_shell_takes_for_itself_names_no_release(tree: Tree) -> None:
    found = tree.own("run.sh", "pip install transformers>=4.40 'torch>=2.1'\nconda install -y pytorch=2.1\n", "shell")
    assert said(found)[:2] == ("", "assumed")  # it writes to a file named "=4.40"
    assert said(found, "torch")[0] in (">=2.1,==2.1.*", "==2.1.*")


# --- lines


@pytest.mark.parametrize(
    ("line", "specifier"),
    [
        ("transformers", ""),
        ("Transformers[torch,sentencepiece]==4.54.0 # exact", "==4.54.0"),
        ("transformers (>=4.40,<5)", ">=4.40,<5"),
        ("transformers >= 4.40 , != 4.50.0 ; python_version >= '3.9'", ">=4.40,!=4.50.0"),
        ("transformers==4.5.*", "==4.5.*"),
        ("transformers===4.5.1", "==4.5.1"),
        ("transformers~=4.45.1", "~=4.45.1"),
        ("transformers==5.0.0rc1", "==5.0.0rc1"),
        ("transformers @ https://example.org/transformers-4.44.0-py3-none-any.whl", "==4.44.0"),
        ("https://example.org/whl/transformers-4.44.0.tar.gz", "==4.44.0"),
        ("git+https://github.com/huggingface/transformers.git@v4.49.0", "==4.49.0"),
        ("git+https://github.com/huggingface/transformers@v4.49.0-Gemma-3", ""),
        ("git+ssh://git@github.com/acme/fork.git@2ab75ad#egg=transformers", ""),
    ],
)
def test_a_requirement_line(line: str, specifier: str) -> None:
    requirement = read_requirement(line)
    assert requirement is not None and (requirement.library, requirement.specifier) == ("transformers", specifier)
    assert not requirement.fault


@pytest.mark.parametrize(
    "line", ["", "# transformers==4", "numpy==1.26", "transformers-stream-generator", "-e .", "./x"]
)
def test_other_lines_are_passed_over(line: str) -> None:
    assert read_requirement(line) is None


@pytest.mark.parametrize(
    ("text", "specifier"),
    [
        ("pytorch=2.1.0=py3.10_cuda12.1_cudnn8.9.2_0", "==2.1.0"),
        ("pytorch::pytorch=2.1", "==2.1.*"),
        ("pytorch 2.1.*", "==2.1.*"),
        ("conda-forge::pytorch>=2.1,<2.4", ">=2.1,<2.4"),
        ("pytorch[version='>=2.1']", ">=2.1"),
        ("pytorch==2.1.2", "==2.1.2"),
        ("pytorch", ""),
    ],
)
def test_a_line_of_conda(text: str, specifier: str) -> None:
    requirement = conda_requirement(text)
    assert requirement is not None and (requirement.library, requirement.specifier) == ("torch", specifier)


@pytest.mark.parametrize(
    ("text", "specifier"),
    [
        ("^1.2.3", ">=1.2.3,<2"),
        ("^0.2.3", ">=0.2.3,<0.3"),
        ("^0.0.3", ">=0.0.3,<0.0.4"),
        ("~1.2.3", ">=1.2.3,<1.3"),
        ("~1", ">=1,<2"),
        ("~=1.2", "~=1.2"),
        ("4.40.0", "==4.40.0"),
        ("4.*", "==4.*"),
        (">=4 <5", ">=4,<5"),
        ("^4.40 || ^5.0", ">=4.40,<5 || >=5.0,<6"),
        ("*", ""),
    ],
)
def test_the_signs_of_poetry(text: str, specifier: str) -> None:
    requirement = poetry_requirement("transformers", text)
    assert (requirement.specifier, requirement.fault) == (specifier, "")


NUMBERS = st.lists(st.integers(0, 99), min_size=2, max_size=4).map(lambda parts: ".".join(map(str, parts)))
CLAUSE = st.tuples(st.sampled_from(["==", ">=", "<=", "<", ">", "!=", "~="]), NUMBERS)
WILD = st.tuples(st.sampled_from(["==", "!="]), NUMBERS.map("{}.*".format))
CLAUSES = st.lists(CLAUSE | WILD, min_size=1, max_size=3)
BLANK = st.sampled_from(["", " ", "  ", "\t"])


@given(CLAUSES, BLANK, BLANK, st.sampled_from(["", " # why", "; python_version > '3.8'", " --hash=sha256:ab"]), NUMBERS)
def test_a_line_allows_what_packaging_says_it_allows(
    clauses: list[tuple[str, str]], before: str, between: str, after: str, version: str
) -> None:
    written = f"{between},{between}".join(f"{operator}{between}{number}" for operator, number in clauses)
    requirement = read_requirement(f"{before}torch{before}{written}{after}")
    assert requirement is not None and not requirement.fault
    expected = SpecifierSet(written.replace("\t", " ")).contains(version, prereleases=True)
    assert admits(requirement.specifier, version) == expected


@settings(max_examples=examples(15, 40))
@given(st.text(max_size=80))
def test_no_line_breaks_the_reader(text: str) -> None:
    for line in (text, f"torch{text}", f"torch=={text}", f"torch @ {text}", f"git+https://x/torch@{text}"):
        for read in (read_requirement, conda_requirement, lambda each: poetry_requirement("torch", each)):
            requirement = read(line)
            if requirement is not None and requirement.specifier:
                assert admits(requirement.specifier, "2.4.0") in (True, False)


@given(CLAUSES, CLAUSES, NUMBERS)
def test_two_ranges_that_share_a_release_agree(
    one: list[tuple[str, str]], other: list[tuple[str, str]], version: str
) -> None:
    left, right = (",".join(operator + number for operator, number in clauses) for clauses in (one, other))
    if admits(left, version) and admits(right, version):
        assert agree(left, right) and agree(right, left)


# --- files that are not as they should be


def problems(found: Releases) -> list[tuple[str, str, int | None]]:
    return [(each.key, os.path.basename(each.place.path), each.place.line) for each in found.problems]


def test_two_pins_in_one_file_that_contradict_are_said_and_neither_is_taken(tree: Tree) -> None:
    tree.write("requirements.txt", "transformers==4.40.0\ntorch>=2.1\ntransformers==4.54.0\ntorch<2.4\n")
    found = tree.find()
    release = found.of("transformers")
    assert release is not None and release.exact is None and release.origin == "ranged"
    assert release.allows((4, 40)) and release.allows((4, 54)) and not release.allows((4, 50))
    assert problems(found) == [("contradiction", "requirements.txt", 3)]
    assert said(found, "torch")[:2] == (">=2.1,<2.4", "ranged")


def test_pins_for_different_pythons_are_no_contradiction(tree: Tree) -> None:
    tree.write(
        "requirements.txt",
        """\
        torch==2.2.0; python_version < "3.9"
        torch==2.6.0; python_version >= "3.9"
        transformers==4.40.0; sys_platform == "darwin"
        transformers==4.54.0; sys_platform != "darwin"
        """,
    )
    found = tree.find()
    assert said(found, "torch")[:2] == ("==2.2.0 || ==2.6.0", "ranged")
    assert said(found)[:2] == ("==4.54.0", "pinned")
    assert found.problems == ()


def test_a_version_that_is_no_version(tree: Tree) -> None:
    tree.write("requirements.txt", "transformers==latest\ntorch>=two\npeft==99999999999999.1\naccelerate=1.0\n")
    found = tree.find()
    assert problems(found) == [("no_version", "requirements.txt", line) for line in (1, 2, 3, 4)]
    assert said(found)[:2] == ("", "assumed")
    tree.write("requirements.txt", "transformers==４.40\ntorch===２.6\npeft==0.１４\n")  # digits of another script
    assert problems(tree.find()) == [("no_version", "requirements.txt", line) for line in (1, 2, 3)]


def test_requirements_that_bring_in_themselves(tree: Tree) -> None:
    tree.write("requirements.txt", "-r requirements.txt\n-r other.txt\ntransformers==4.54.0\n")
    tree.write("other.txt", "-r requirements.txt\n-r missing.txt\n")
    found = tree.find()
    assert said(found)[0] == "==4.54.0"
    assert problems(found) == [
        ("cycle", "requirements.txt", 1),
        ("cycle", "other.txt", 1),
        ("missing", "other.txt", 2),
    ]


def test_nothing_outside_the_project_is_brought_in(tree: Tree) -> None:
    (tree.root.parent / "secret.txt").write_text("transformers==4.30.0\n")
    (tree.root / "link.txt").symlink_to(tree.root.parent / "secret.txt")
    tree.write("requirements.txt", "-r ../secret.txt\n-r link.txt\n-r /etc/hostname\n-r https://example.org/r.txt\n")
    found = tree.find()
    assert found.of("transformers") is None
    assert problems(found) == [("outside", "requirements.txt", line) for line in (1, 2, 3)]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the platform has no pipes in the file system")
def test_a_pipe_and_a_device_are_not_opened(tree: Tree) -> None:
    os.mkfifo(tree.root / "requirements.txt")
    (tree.root / "uv.lock").symlink_to("/dev/zero")
    found = tree.find()
    assert sorted(problems(found)) == [("not_a_file", "requirements.txt", None), ("not_a_file", "uv.lock", None)]


def test_a_lock_of_fifty_megabytes_is_not_read(tree: Tree) -> None:
    with (tree.root / "uv.lock").open("wb") as stream:
        stream.truncate(50_000_000)
    tree.write("pyproject.toml", '[project]\ndependencies = ["transformers==4.54.0"]\n')
    found = tree.find()
    assert problems(found) == [("too_large", "uv.lock", None)]
    assert said(found)[:3] == ("==4.54.0", "pinned", "pyproject.toml")


@pytest.mark.parametrize(
    ("name", "text", "key"),
    [
        ("pyproject.toml", '[project\nname = "x"\n', "not_toml"),
        ("pyproject.toml", "a = " + "[" * 5000, "not_toml"),
        ("pyproject.toml", "a." * 50_000 + "a = 1", "not_toml"),
        ("Pipfile", "[packages]\ntransformers\n", "not_toml"),
        ("Pipfile.lock", '{"default": {', "not_json"),
        ("Pipfile.lock", "[" * 100_000, "not_json"),
        ("setup.py", "setup(install_requires=[\n", "not_python"),
        ("uv.lock", "no lock at all", "no_lock"),
    ],
)
def test_a_file_that_does_not_parse_is_said_once(tree: Tree, name: str, text: str, key: str) -> None:
    tree.write(name, text)
    tree.write("environment.yml", "dependencies:\n  - transformers=4.41.2\n")
    found = tree.find()
    assert [each.key for each in found.problems] == [key]
    assert said(found)[0] == "==4.41.2"


def test_other_encodings(tree: Tree) -> None:
    (tree.root / "requirements.txt").write_bytes("transformers==4.54.0\r\n".encode("utf-16"))  # as PowerShell writes
    assert said(tree.find())[0] == "==4.54.0"
    (tree.root / "requirements.txt").write_bytes(b"# \xb8\xf0\xb5\xa8\ntransformers==4.54.0\n")
    found = tree.find()
    assert said(found)[0] == "==4.54.0" and problems(found) == [("not_utf8", "requirements.txt", 1)]


def test_a_huge_line_is_passed_over(tree: Tree) -> None:
    tree.write("requirements.txt", "torch==" + "1" * 500_000 + "\ntransformers==4.54.0\n" + "-r a" * 100_000 + "\n")
    assert said(tree.find())[0] == "==4.54.0"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.txt", "".join(f"torch>={n}.0,<{n + 1}\n" for n in range(30_000))),
        ("requirements.txt", "".join(f"torch==two{n}\n" for n in range(30_000))),
        ("requirements.txt", "\n".join("-r more.txt" for _ in range(50_000))),
        ("uv.lock", "".join(f'[[package]]\nname = "torch"\nversion = "{n}.0"\n' for n in range(60_000))),
        ("Dockerfile", "RUN pip install 'torch' \\\n" * 40_000),
        ("setup.py", "install_requires = " + "+".join(['"torch"'] * 20_000)),
    ],
    ids=["ranges", "no versions", "the same file", "packages", "one step", "one sum"],
)
def test_files_that_are_made_to_keep_a_reader_busy(tree: Tree, name: str, text: str) -> None:
    tree.write("more.txt", "peft\n")
    tree.write(name, text)
    found = tree.find()
    assert len(found.problems) <= 20
    for release in found.known.values():
        assert release.specifier.count("||") < 12


def test_a_loop_of_links_above_the_file(tree: Tree) -> None:
    (tree.root / "configs" / "loop").symlink_to("..")
    (tree.root / "requirements-self.txt").symlink_to("requirements-self.txt")
    tree.write("constraints.txt", "transformers==4.54.0\n")
    found = tree.find("configs/" + "loop/configs/" * 12 + "run.yaml")
    assert said(found)[0] == "==4.54.0"
    assert [each.key for each in found.problems] == ["unreadable"]


def test_without_a_repository_only_what_the_user_named_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "project" / "configs" / "run.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("fp16: true\n")
    (tmp_path / "requirements.txt").write_text("torch==2.4.0\n")
    (tmp_path / "project" / "requirements.txt").write_text("transformers==4.54.0\n")
    assert ReleaseReader().find(str(config)) == Releases({})
    named = ReleaseReader(str(tmp_path / "project")).find(str(config))
    monkeypatch.chdir(tmp_path / "project")
    for found in (named, ReleaseReader().find("configs/run.yaml"), ReleaseReader().find("configs")):
        assert said(found)[0] == "==4.54.0" and found.of("torch") is None


PIECES = [
    *(
        "torch==2.4",
        "transformers>=4",
        "-r",
        "[[package]]",
        "name='torch'",
        'version="1"',
        "[project]",
        "dependencies=[",
    ),
    *(
        "]",
        "{",
        "}",
        ":",
        "pip install",
        "RUN",
        "\\",
        "#",
        '"',
        "'",
        "\x00",
        "setup(",
        "install_requires=",
        "=",
        ",",
        ";",
    ),
    *("||", "&&", "$X", "git+https://", "@", "dependencies:", "- pip:"),
]


@settings(max_examples=examples(20, 60), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.sampled_from([*SOURCES, ".github/workflows/a.yml"]),
    st.lists(
        st.one_of(
            st.sampled_from(PIECES),
            st.text(max_size=6),
        ),
        max_size=30,
    ),
    st.sampled_from([" ", "\n", "\n  ", ""]),
)
def test_no_text_breaks_a_reader(tree: Tree, name: str, words: list[str], gap: str) -> None:
    path = tree.write(name, "")
    path.write_bytes(gap.join(words).encode("utf-8", "surrogatepass"))
    try:
        found = tree.find()
        for library in found.known:
            assert found.known[library].allows((2, 4)) in (True, False)
    finally:
        path.unlink()


# --- what counts beside the files


def test_what_is_installed_counts_only_in_the_projects_own_environment(tmp_path: Path) -> None:
    inside, tool = tmp_path / "project" / ".venv", tmp_path / "tools" / "kb"
    for folder in (inside, tool):
        folder.mkdir(parents=True)
    top = str(tmp_path / "project")
    assert environment_of(top, {}, str(inside)) == str(inside)
    assert environment_of(top, {}, str(tool)) is None
    assert environment_of(top, {"VIRTUAL_ENV": str(tmp_path / "other")}, str(tool)) is None
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        assert environment_of(top, {name: str(tool)}, str(tool)) == str(tool)


def in_environment(folder: str | None, named: Mapping[str, str] = {}, *, here: bool = False) -> ProjectReleases:
    versions = {"transformers": "5.2.0", "torch": "2.6.0+cu124", "liger_kernel": "0.6.0"}
    given = {library: (version, "--option") for library, version in named.items()}
    return ProjectReleases(given, root=None, here=here, installed=lambda: versions, environment=lambda top: folder)


def test_the_environment_says_what_no_file_does(tree: Tree) -> None:
    tree.write("requirements.txt", "transformers==4.54.0\ntorch\n")
    config = str(tree.root / "configs/run.yaml")
    found = in_environment("/env").of(config)
    assert said(found)[:2] == ("==4.54.0", "pinned")
    release = found.of("transformers")
    assert release is not None and [(place.path, text) for place, text in release.others] == [("/env", "==5.2.0")]
    assert said(found, "torch") == ("==2.6.0+cu124", "detected", "env", None)
    assert said(found, "liger-kernel")[:2] == ("==0.6.0", "detected")
    elsewhere = in_environment(None).of(config)
    assert said(elsewhere, "torch")[:2] == ("", "assumed") and elsewhere.of("liger-kernel") is None


def test_a_run_in_this_very_process_uses_what_is_installed(tree: Tree) -> None:
    tree.write("requirements.txt", "transformers==4.54.0\n")
    release = in_environment(None, here=True).of(str(tree.root / "configs/run.yaml")).of("transformers")
    assert release is not None and (release.exact, release.origin) == ((5, 2, 0), "detected")


def test_what_is_named_wins_and_tells_the_file_that_says_otherwise(tree: Tree) -> None:
    tree.write("requirements.txt", "transformers==4.54.0\n")
    found = in_environment(None, {"transformers": "5.0.0", "peft": "1.0"}).of(str(tree.root / "configs/run.yaml"))
    release = found.of("transformers")
    assert release is not None and release.exact == (5, 0, 0)
    assert [specifier for _, specifier in release.others] == ["==4.54.0"]
    assert found.known["peft"].origin == "given"


def test_a_stored_result_holds_only_while_the_files_say_the_same(tree: Tree) -> None:
    tree.write("requirements.txt", "transformers==4.54.0\n-r more.txt\n")
    tree.write("more.txt", "torch==2.4.0\n")
    script = str(tree.write("run.sh", "pip install -r needs.txt\n"))
    needs = tree.write("needs.txt", "peft==0.14.0\n")
    seen = Seen()
    releases = ProjectReleases({}, root=None, seen=seen)
    releases.hold(script, "pip install -r needs.txt\n", "shell")
    releases.of(script)
    rows = seen.take()
    assert {str(tree.root / name) for name in ("requirements.txt", "more.txt", "needs.txt")} == set(seen.files())

    def holds() -> bool:
        return still(rows, ProjectReleases({}, root=None).lookups)

    assert holds()
    os.utime(tree.root / "requirements.txt")  # touched, and the same
    assert holds()
    for change in (tree.root / "requirements.txt", tree.root / "more.txt", needs, tree.root / "constraints.txt"):
        before = change.read_text() if change.exists() else None
        change.write_text("torch==2.5.0\n")
        assert not holds(), change
        change.unlink() if before is None else change.write_text(before)
        assert holds()


def test_a_session_reads_again_when_it_is_told_to(tree: Tree) -> None:
    path = tree.write("requirements.txt", "transformers==4.54.0\n")
    releases = in_environment(None)
    config = str(tree.root / "configs/run.yaml")
    assert said(releases.of(config))[0] == "==4.54.0"
    path.write_text("transformers==5.0.0\n")
    assert said(releases.of(config))[0] == "==4.54.0"
    releases.forget()
    assert said(releases.of(config))[0] == "==5.0.0"


def kb_check(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    place = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(Path(kb.__file__).parent.parent)}
    command = [sys.executable, "-m", "kb.check", "--lang", "en", "--gpu", "none", *arguments]
    return subprocess.run(command, cwd=folder, env=place, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("count", few([1, 40]), ids=["one file", "a tree"])
def test_a_changed_requirement_changes_the_report_and_bad_files_are_said_once(tree: Tree, count: int) -> None:
    config = "from transformers import TrainingArguments\nTrainingArguments('o', evaluation_strategy='steps')\n"
    for number in range(count):
        tree.write(f"configs/run-{number}.py", config)
    with (tree.root / "uv.lock").open("wb") as stream:
        stream.truncate(50_000_000)
    names = [f"configs/run-{number}.py" for number in range(count)]
    errors = []
    for release in ("4.40.0", "4.54.0", "4.40.0"):  # the old name is an error from 4.46 on
        tree.write("requirements.txt", f"transformers=={release}\npeft==none\n")
        run = kb_check(tree.root, *names, "--format", "json")
        report = json.loads(run.stdout)
        assert len(report["files"]) == count
        errors.append({f["rule"] for unit in report["files"] for f in unit["findings"] if f["severity"] == "error"})
        assert run.stderr.splitlines() == [
            "kb: requirements.txt:2: none is not a version, so this line says nothing of peft's release.",
            "kb: uv.lock: 50,000,000 bytes, over the limit of 16,777,216 bytes; it is not read.",
        ]
    assert errors[0] == errors[2] == set() and errors[1]


def test_a_pin_of_an_extra_makes_no_error(tree: Tree) -> None:
    tree.write(
        "configs/run.py",
        "from transformers import TrainingArguments\nTrainingArguments('o', evaluation_strategy='steps')\n",
    )
    severities = {}
    for name, text in {"requirements.txt": "transformers==4.54.0\n", "setup.cfg": EXTRA_OF_54}.items():
        path = tree.write(name, text)
        report = json.loads(kb_check(tree.root, "configs/run.py", "--format", "json").stdout)
        path.unlink()
        (severities[name],) = (
            (each["severity"], each["certainty"])
            for unit in report["files"]
            for each in unit["findings"]
            if "evaluation_strategy" in each["message"] and each["severity"] != "info"
        )
    assert severities == {"requirements.txt": ("error", "certain"), "setup.cfg": ("warning", "likely")}


EXTRA_OF_54 = "[options.extras_require]\ntrain =\n    transformers==4.54.0\n"


# --- kb doctor PATH


def test_doctor_shows_what_was_found_and_where(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.write("requirements.txt", "transformers==4.54.0\npeft==newest\ntorch>=2.1,<2.5\n")
    tree.write("Dockerfile", "FROM pytorch/pytorch:2.6.0-cuda12.4\nRUN pip install trl==0.19.0\n")
    tree.write("kb.toml", '[versions]\naccelerate = "1.2.0"\n')
    config = str(tree.root / "configs/run.yaml")
    assert doctor([config, "--lang", "en"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [" ".join(line.split()) for line in lines[: lines.index("kb")]]
    assert f"from the files up to {tree.root}" in rows
    assert "transformers 4.54.0 requirements.txt:1 one release" in rows
    assert "torch >=2.1,<2.5 requirements.txt:3 any release in this range" in rows
    assert "Dockerfile:1 says 2.6.0" in rows
    assert "trl 0.19.0 Dockerfile:2 one release" in rows
    assert "accelerate 1.2.0 kb.toml given in the project's settings" in rows
    assert "peft any release requirements.txt:2 named, without a release" in rows
    assert "deepspeed unknown: no file says it" in rows
    assert "requirements.txt:2: newest is not a version" in " ".join(rows)
    assert doctor([config, "--lang", "ko"]) == 0
    korean = capsys.readouterr().out
    assert "이름만 있고 버전은 없음" in korean and "releases." not in korean


def test_doctor_says_it_as_json_too(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.write("requirements.txt", "transformers==4.54.0\n-r requirements.txt\n")
    tree.write("setup.py", "from setuptools import setup\nsetup(install_requires=['transformers>=5'])\n")
    assert doctor([str(tree.root), "--format", "json"]) == 0
    versions = json.loads(capsys.readouterr().out)["versions"]
    schema = json.loads((Path(__file__).parents[2] / "rules/schema/output/doctor.json").read_text("utf-8"))
    jsonschema.validate(versions, schema["properties"]["versions"])
    rows = {row["name"]: row["release"] for row in versions["libraries"]}
    assert rows["transformers"]["exact"] == "4.54.0" and rows["torch"] is None
    assert rows["transformers"]["others"] == [{"path": f"{tree.root}/setup.py", "line": 2, "specifier": ">=5"}]
    assert [row["key"] for row in versions["problems"]] == ["cycle"]


def test_every_problem_has_its_sentence_in_both_languages() -> None:
    source = Path(__file__).parents[2] / "src/kb/config/releases"
    text = "".join(path.read_text("utf-8") for path in source.glob("*.py"))
    keys = set(re.findall(r'report\(\s*"(\w+)"|Problem\("(\w+)"', text))
    for language in ("ko", "en"):
        messages = load_words(language)
        assert keys and all(f"releases.problem.{one or other}" in messages for one, other in keys)


def test_doctor_of_what_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(["no-such-folder", "--lang", "en"]) == 2
    assert "no-such-folder does not exist" in capsys.readouterr().err


def test_what_a_file_installs_without_a_release_may_be_newer_than_what_is_pinned_around_it(tree: Tree) -> None:
    tree.write("requirements.txt", "transformers==4.46.3\n")
    installed = tree.own("run.sh", "pip install transformers trl\npython train.py\n", "shell")
    assert installed.known["transformers"].specifier == ">=4.46.3"
    assert (
        tree.own("run.sh", "pip install datasets\npython train.py\n", "shell").known["transformers"].origin == "pinned"
    )


def test_two_environments_of_one_folder_that_differ_are_alternatives(tree: Tree) -> None:
    tree.write("requirements.txt", "transformers==4.40.2\npeft==0.10.0\n")
    tree.write("environment.yaml", "dependencies:\n  - transformers=4.44.1\n  - peft=0.10.0\n")
    found = tree.find("run.yaml").known
    assert found["transformers"].origin == "ranged"
    assert admits(found["transformers"].specifier, "4.40.2") and admits(found["transformers"].specifier, "4.44.1")
    assert found["peft"].origin == "pinned"


def test_a_dockerfile_of_a_server_says_its_own_release(tree: Tree) -> None:
    tree.write("Dockerfile", "FROM python:3.12\nRUN pip install vllm==0.6.0\n")
    own = tree.own("Dockerfile.new", "FROM python:3.12\nRUN pip install vllm==0.11.0\nCMD vllm serve m\n", "image")
    assert own.known["vllm"].specifier == "==0.11.0"
