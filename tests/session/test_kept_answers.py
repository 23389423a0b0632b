"""A check of one file that was made before is told again, and never where anything that it rests on has changed."""

import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kb.commands.check import main
from kb.knowledge.locations import cache_folder
from kb.session import cache
from kb.session.cache import ANSWERS, Answer, KeptAnswer
from kb.session.lookups import Row, Seen, still
from kb.session.output import FORMATS

BOX = ("--gpu", "rtx-3090", "--host-memory", "60GB", "--cpus", "16", "--lang", "en")
CONFIG = "model_name_or_path: google/mt5-small\nper_device_train_batch_size: 2\nfp16: true\n"


class Told:
    """What a check says, and whether it was an answer that had been kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.path = "run.yaml"
        self.kept: list[Answer | None] = []
        get = KeptAnswer.get

        def remembered(place: KeptAnswer) -> Answer | None:
            self.kept.append(get(place))
            return self.kept[-1]

        monkeypatch.setattr(KeptAnswer, "get", remembered)

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self.kept.clear()
        code = main([self.path, *BOX, *arguments])
        return code, *self._capsys.readouterr()

    def again(self, *arguments: str) -> bool:
        """Whether a kept answer is told; whatever is told is what a check without a cache says."""
        right = self(*arguments, "--no-cache")
        assert self(*arguments) == right
        return self.kept not in ([], [None])


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Told:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    project = tmp_path / "project"
    project.mkdir()
    (project / "run.yaml").write_text(CONFIG)
    (project / "kb.toml").write_text("")
    monkeypatch.chdir(project)
    return Told(monkeypatch, capsys)


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_check_is_told_again_to_the_letter(told: Told, form: str) -> None:
    assert not told.again("--format", form)
    assert told.again("--format", form)


def _write(name: str, text: str) -> Callable[[], None]:
    def write() -> None:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)

    return write


TRAINS = "import yaml\nfrom transformers import TrainingArguments\n"
CHANGES = {
    "the file": _write("run.yaml", CONFIG.replace("fp16", "bf16")),
    "the settings": _write("kb.toml", 'ignore = ["t5-fp16-overflow"]\n'),
    "a file that it names": _write("ds.json", '{"zero_optimization": {"stage": 3}}'),
    "a program beside it": _write("train.py", f"{TRAINS}TrainingArguments(**yaml.safe_load(open('run.yaml')))\n"),
    "the releases of the project": _write("requirements.txt", "transformers==4.30.0\n"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_beside_it_is_seen(told: Told, change: str) -> None:
    if change == "a file that it names":
        Path("run.yaml").write_text(f"{CONFIG}deepspeed: ds.json\n")
    assert not told.again()
    assert told.again()
    CHANGES[change]()
    assert not told.again()
    assert told.again()


PROGRAM = """\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
args = TrainingArguments("out", per_device_train_batch_size=4, bf16=True)
Trainer(model=model, args=args).train()
"""


def test_a_script_that_is_no_text_hides_no_other(told: Told) -> None:
    """Two processes start the program: said with the file there, and when it is gone."""
    told.path = "train.py"
    Path("train.py").write_text(PROGRAM)
    launch = b"accelerate launch --num_processes 2 train.py\n"
    Path("go.sh").write_bytes("# 학습\n".encode("cp949") + launch)
    Path("job.job").write_bytes(b"\x7fELF\x00\x01\xff\xfe\x80 abc")
    for _ in range(2):
        assert "8 = 4 × 1 × 2" in told()[1]
    Path("job.job").unlink()
    told.again()
    assert "8 = 4 × 1 × 2" in told()[1]


def test_a_look_up_that_fails_is_looked_up_again() -> None:
    seen, files = Seen(), dict[str, str]()

    def look(_: str, name: str) -> str:
        if name not in files:
            raise ValueError(name)
        return files[name]

    with pytest.raises(ValueError, match="b"):
        seen.text("named", look)("a", "b")
    rows = seen.take()
    assert still(rows, {"named": look})
    files["b"] = "text"
    assert not still(rows, {"named": look})


def test_a_text_that_installs_libraries_is_read_each_time(told: Told) -> None:
    """What the list says that it installs from, which may not be there yet, is not looked at again."""
    Path("run.yaml").write_text(f"{CONFIG}# pip install -r deps.txt\n")
    assert not told.again() and not told.again()
    assert told.kept == []


def test_a_file_that_is_saved_while_it_is_checked_is_not_taken_for_what_it_was(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = KeptAnswer.put

    def saved_meanwhile(place: KeptAnswer, answer: Answer, seen: Sequence[Row]) -> None:
        Path("run.yaml").write_text(f"{CONFIG}bf16: true\n")
        put(place, answer, seen)

    with monkeypatch.context() as patch:
        patch.setattr(KeptAnswer, "put", saved_meanwhile)
        told()
    Path("run.yaml").write_text(CONFIG)
    assert not told.again()


def test_of_a_model_that_a_file_describes_the_file_counts_for_one_config_and_for_two(told: Told) -> None:
    Path("more.yaml").write_text(CONFIG)
    config = {"model_type": "t5", "d_model": 512, "d_kv": 64, "d_ff": 1024, "num_heads": 6, "vocab_size": 32128}
    for layers in (4, 24):
        Path("m.json").write_text(json.dumps({**config, "num_layers": layers}))
        for paths in ((), ("more.yaml",)):
            assert not told.again(*paths, "--model-config", "m.json")


def test_other_options_are_another_check(told: Told) -> None:
    for options in (("--notes",), ("--gpus", "2"), ("--fail-on", "never"), ("--ignore", "text"), ("--lang", "ko")):
        assert not told.again(*options)
        assert told.again(*options)


def test_an_exit_code_is_kept_with_its_answer(told: Told) -> None:
    code, *_ = told()
    assert code == 1 and told()[0] == 1
    assert told("--fail-on", "never")[0] == 0 and told("--fail-on", "never")[0] == 0


def test_what_is_said_on_standard_error_is_said_each_time(told: Told) -> None:
    Path("requirements.txt").write_text("transformers==\n-r missing.txt\n")
    first, second = told(), told()
    assert first == second and "missing.txt" in first[2]


@pytest.mark.parametrize("text", ["a: [1,\n", ""], ids=["broken", "empty"])
def test_a_file_that_cannot_be_read_is_said_each_time(told: Told, text: str) -> None:
    Path("run.yaml").write_text(text)
    first, second = told(), told()
    assert first == second and first[0] == 2 and "run.yaml" in first[2]


def test_what_does_more_than_tell_is_done_each_time(told: Told) -> None:
    told()
    assert told("--diff")[1] and told.kept == []
    told("--write-baseline", "known.json")
    assert Path("known.json").exists() and told.kept == []


def test_standard_input_is_read(
    told: Told, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in (CONFIG, CONFIG.replace("2", "4096")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        main(["-", *BOX])
        assert ("4096" in capsys.readouterr().out) == ("4096" in text)
    assert told.kept == []


def test_a_damaged_answer_changes_nothing(told: Told) -> None:
    right = told()
    (file,) = (path for path in (Path(cache_folder()) / ANSWERS).rglob("*") if path.is_file())
    whole = file.read_bytes()

    def another_shape() -> None:
        cache.ResultCache(cache_folder(), ANSWERS).put([(bytes.fromhex(file.name), ["text alone"])])

    for damage in (lambda: file.write_text("no value, " * 1000), lambda: file.write_bytes(whole[:-9]), another_shape):
        file.write_bytes(whole)
        damage()
        assert told() == right and told() == right


def test_of_an_installed_package_the_list_of_its_files_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, rules = tmp_path / "kb", tmp_path / "rules"
    for folder in (package, rules):
        folder.mkdir()
        (folder / "a.yaml").write_text("a: 1\n")
    record = tmp_path / "RECORD"
    record.write_text("kb/a.yaml,sha256=one,5\n")
    monkeypatch.setattr(cache, "_PACKAGE", str(package))
    monkeypatch.setattr(cache, "_RECORD", str(record))
    folders = [str(package), str(rules)]
    first = cache.context_of({}, folders)
    (package / "b.yaml").write_text("")
    assert cache.context_of({}, folders) == first  # an installed package's files do not change by themselves
    record.write_text("kb/a.yaml,sha256=two,5\n")
    assert cache.context_of({}, folders) != first
    record.write_text("kb/a.yaml,sha256=one,5\n")
    (rules / "b.yaml").write_text("")
    assert cache.context_of({}, folders) != first
