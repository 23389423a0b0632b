"""From paths to files: what is named is read or told, what is come upon in folders is chosen."""

import os
import sys

import pytest

from kb.config.discovery import Discovery, discover
from kb.config.files import MAX_BYTES


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(files: dict[str, str]) -> None:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    return make


def paths(found: Discovery) -> list[str]:
    return [file.path.replace(os.sep, "/") for file in found.files]


def faults(found: Discovery) -> list[tuple[str, str]]:
    return [(path, error.key) for path, error in found.faults]


def test_a_folder_gives_its_configs_in_order_of_name(tree):
    tree({"c/b.yaml": "", "c/a.yml": "", "c/sub/z.json": "", "c/run.sh": "", "c/notes.md": "", "c/A.YAML": ""})
    found = discover(["c"])
    assert paths(found) == ["c/A.YAML", "c/a.yml", "c/b.yaml", "c/run.sh", "c/sub/z.json"]
    assert not any(file.named for file in found.files)
    assert found.faults == ()


def test_job_scripts_and_scripts_of_other_shells_count(tree):
    read = ["c/a.sbatch", "c/b.slurm", "c/c.zsh", "c/d.bash", "c/f.slrm", "c/g.job", "c/h.pbs", "c/i.lsf"]
    tree(dict.fromkeys([*read, "c/e.ps1"], ""))
    assert paths(discover(["c"])) == read


def test_what_lies_beside_a_checkpoint_is_no_config(tree):
    """A tokenizer's vocabulary is often too large to be read, which a folder that holds one is not to blame for."""
    names = ["vocab.json", "tokenizer.json", "tokenizer_config.json", "trainer_state.json", "train.json"]
    tree({f"c/{name}": "{}" for name in names})
    assert paths(discover(["c"])) == ["c/train.json"]
    assert paths(discover(["c/vocab.json"])) == ["c/vocab.json"]


def test_the_record_of_every_argument_of_a_run_is_no_config_unless_it_is_named(tree):
    record = '{"model": "a/b", ' + ", ".join(f'"key_{number}": null' for number in range(40)) + "}"
    tree({"out/v0/args.json": record, "args.json": '{"model": "a/b", "lora_rank": null}', "other.json": record})
    assert paths(discover(["."])) == ["./args.json", "./other.json"]
    assert paths(discover(["out/v0/args.json"])) == ["out/v0/args.json"]


def test_hidden_and_foreign_folders_are_passed_over(tree):
    names = [".git/a.yaml", ".venv/a.yaml", "node_modules/a.json", "venv/a.yaml", "__pycache__/a.json", ".hidden.yaml"]
    tree(dict.fromkeys([*names, "kept/a.yaml"], ""))
    assert paths(discover(["."])) == ["./kept/a.yaml"]


def test_a_named_file_is_taken_whatever_it_is_called(tree):
    tree({"notes.md": "", ".hidden.yaml": "", "node_modules/a.yaml": ""})
    found = discover(["notes.md", ".hidden.yaml", "node_modules/a.yaml", "-"])
    assert paths(found) == ["notes.md", ".hidden.yaml", "node_modules/a.yaml", "-"]
    assert all(file.named for file in found.files)


def test_each_file_comes_once_and_naming_it_counts(tree):
    tree({"c/a.yaml": "", "c/b.yaml": ""})
    found = discover(["c", "c/b.yaml", "./c/a.yaml", "c"])
    assert [(file.path.replace(os.sep, "/"), file.named) for file in found.files] == [
        ("c/a.yaml", True),
        ("c/b.yaml", True),
    ]


def test_what_cannot_be_read_is_told_and_the_rest_goes_on(tree):
    tree({"a.yaml": "", "empty/readme.md": ""})
    found = discover(["missing.yaml", "a.yaml", "empty", "*.toml", "a\0b"])
    assert paths(found) == ["a.yaml"]
    assert faults(found) == [
        ("missing.yaml", "config.missing"),
        ("empty", "config.no-configs"),
        ("*.toml", "config.glob"),
        ("a\0b", "config.unreadable"),
    ]


def test_globs_are_followed_where_the_shell_did_not(tree):
    tree({"c/a.yaml": "", "c/d/e/b.yaml": "", "c/d/c.json": ""})
    assert paths(discover(["c/**/*.yaml"])) == ["c/a.yaml", "c/d/e/b.yaml"]
    assert paths(discover(["c/?.yaml"])) == ["c/a.yaml"]
    assert discover(["c/?.yaml"]).files[0].named


def test_a_file_with_a_star_in_its_name_is_that_file(tree):
    tree({"a[1].yaml": "", "a1.yaml": ""})
    assert paths(discover(["a[1].yaml"])) == ["a[1].yaml"]


def test_a_file_too_large_is_told_where_named_and_found_in_a_folder_to_be_told_there(tree, tmp_path):
    tree({"c/a.yaml": ""})
    (tmp_path / "c" / "big.yaml").write_bytes(b"a" * (MAX_BYTES + 1))
    assert paths(discover(["c"])) == ["c/a.yaml", "c/big.yaml"]
    found = discover(["c/big.yaml"])
    assert faults(found) == [("c/big.yaml", "config.too-large")]
    assert found.faults[0][1].values == {"size": MAX_BYTES + 1, "limit": MAX_BYTES}


def test_links_to_files_count_and_links_to_folders_do_not(tree, tmp_path):
    tree({"c/a.yaml": "", "real/b.yaml": ""})
    os.symlink(tmp_path / "real", tmp_path / "c" / "folder")
    os.symlink(tmp_path / "c", tmp_path / "c" / "loop")
    os.symlink(tmp_path / "real" / "b.yaml", tmp_path / "c" / "b.yaml")
    os.symlink(tmp_path / "nowhere.yaml", tmp_path / "c" / "dead.yaml")
    os.symlink("self.yaml", tmp_path / "c" / "self.yaml")
    assert paths(discover(["c"])) == ["c/a.yaml", "c/b.yaml"]
    assert paths(discover(["c/folder"])) == ["c/folder/b.yaml"]
    assert faults(discover(["c/self.yaml"])) == [("c/self.yaml", "config.unreadable")]
    assert faults(discover(["c/dead.yaml"])) == [("c/dead.yaml", "config.missing")]


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        ("*.yaml", ["b.json", "sub/d.json"]),
        ("*.yaml\n!keep.yaml", ["b.json", "keep.yaml", "sub/d.json", "sub/keep.yaml"]),
        ("/a.yaml", ["b.json", "keep.yaml", "sub/a.yaml", "sub/d.json", "sub/keep.yaml"]),
        ("sub/", ["a.yaml", "b.json", "keep.yaml"]),
        ("sub/\n!sub/keep.yaml", ["a.yaml", "b.json", "keep.yaml"]),
        ("sub/*\n!sub/keep.yaml", ["a.yaml", "b.json", "keep.yaml", "sub/keep.yaml"]),
        ("**/d.json", ["a.yaml", "b.json", "keep.yaml", "sub/a.yaml", "sub/keep.yaml"]),
        ("# a.yaml\n\n\\#x", ["a.yaml", "b.json", "keep.yaml", "sub/a.yaml", "sub/d.json", "sub/keep.yaml"]),
        ("[ab].*", ["keep.yaml", "sub/d.json", "sub/keep.yaml"]),
    ],
)
def test_what_git_ignores_is_passed_over(tree, patterns, left):
    names = ["a.yaml", "b.json", "keep.yaml", "sub/a.yaml", "sub/d.json", "sub/keep.yaml"]
    tree({f"c/{name}": "" for name in names} | {"c/.gitignore": patterns})
    assert [path.removeprefix("c/") for path in paths(discover(["c"]))] == left


def test_a_deeper_ignore_file_overrules_one_above(tree):
    tree(
        {
            "c/.gitignore": "*.yaml",
            "c/sub/.gitignore": "!a.yaml",
            "c/sub/a.yaml": "",
            "c/sub/b.yaml": "",
            "c/x.json": "",
        }
    )
    assert paths(discover(["c"])) == ["c/x.json", "c/sub/a.yaml"]


def test_ignore_files_above_count_up_to_the_repositorys_top(tree):
    files = dict.fromkeys(["repo/c/a.yaml", "repo/c/out/b.yaml"], "")
    tree(files | {"repo/.git/HEAD": "", "repo/.gitignore": "out/\n", ".gitignore": "*.yaml"})
    assert paths(discover(["repo/c"])) == ["repo/c/a.yaml"]


def test_an_ignored_folder_that_is_named_is_wanted(tree):
    tree({"repo/.git/HEAD": "", "repo/.gitignore": "out/\n*.json\n", "repo/out/b.yaml": "", "repo/out/sub/c.json": ""})
    assert paths(discover(["repo/out"])) == ["repo/out/b.yaml", "repo/out/sub/c.json"]
    assert paths(discover(["repo/out/sub"])) == ["repo/out/sub/c.json"]


def test_git_itself_agrees_on_what_is_ignored(tree, tmp_path):
    import shutil
    import subprocess

    if shutil.which("git") is None:
        if os.environ.get("CI"):
            pytest.fail("git is missing")
        pytest.skip("git is missing")
    patterns = "*.json\n!keep.json\n/top.yaml\nbuild/\n**/logs/*.yaml\na/**/z.yaml\n!a/b/z.yaml\nfoo*\n!foobar.yaml\n"
    names = [
        "top.yaml", "sub/top.yaml", "x.json", "keep.json", "sub/keep.json", "build/a.yaml", "sub/build/a.yaml",
        "logs/a.yaml", "sub/logs/a.yaml", "sub/logs/deep/a.yaml", "a/z.yaml", "a/b/z.yaml", "a/b/c/z.yaml",
        "foo.yaml", "foobar.yaml", "foodir/a.yaml", "한글/설정.yaml",
    ]  # fmt: skip
    tree(dict.fromkeys(names, "") | {".gitignore": patterns, "sub/.gitignore": "!top.yaml\nkeep.json\n"})
    git = ["git", "-c", "core.quotePath=false"]
    subprocess.run([*git, "init", "-q", "."], check=True, cwd=tmp_path)
    told = subprocess.run(
        [*git, "ls-files", "--others", "--exclude-standard"], check=True, cwd=tmp_path, capture_output=True, text=True
    )
    kept = {line for line in told.stdout.splitlines() if line.endswith((".yaml", ".json"))}
    assert {path.removeprefix("./") for path in paths(discover(["."]))} == kept


def test_what_git_keeps_is_read_though_a_pattern_matches_it(tree, tmp_path):
    import shutil
    import subprocess

    if shutil.which("git") is None:
        if os.environ.get("CI"):
            pytest.fail("git is missing")
        pytest.skip("git is missing")
    names = [f"runs/{'x' * length}.yaml" for length in range(1, 12)] + ["runs/학습.yaml", "runs/left.yaml"]
    tree(dict.fromkeys(names, "") | {".gitignore": "runs/*.yaml\n"})
    subprocess.run(["git", "init", "-q", "."], check=True, cwd=tmp_path)
    subprocess.run(["git", "add", "-f", *names[:-1]], check=True, cwd=tmp_path)
    assert {path.removeprefix("./") for path in paths(discover(["."]))} == set(names[:-1])
    (tmp_path / ".git" / "index").write_bytes(b"DIRC\0\0\0\2\0\0\0\11short")  # a half-written one: patterns alone count
    assert not paths(discover(["."]))


def test_pathspec_is_not_imported_for_named_files(tree):
    import subprocess

    tree({"a.yaml": ""})
    code = (
        "import sys; from kb.config.discovery import discover; discover(['a.yaml']);"
        "print([m for m in ('pathspec', 'glob', 'pathlib', 'difflib') if m in sys.modules])"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert told.stdout.strip() == "[]"
