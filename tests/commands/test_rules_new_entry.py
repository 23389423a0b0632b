"""`kb rules new-model`, `new-gpu` and `new-dialect`: an entry from what is known; bad input is said."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from command_runs import ENVIRON, run_kb
from effort import few
from kb.commands.rules.new_dialect import arguments_in
from native.probe import compiled
from rules_copy import few_rules

kb = partial(run_kb, module="kb.rules")
CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "max_position_embeddings": 4096,
    "num_attention_heads": 32, "num_hidden_layers": 22, "vocab_size": 32000, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return few_rules(tmp_path)


def changed(folder: Path) -> list[str]:
    """The files of the checkout that differ in the copy."""
    own = Path(__file__).parents[2] / "rules"
    names = [path.relative_to(folder) for path in folder.rglob("*.yaml") if (own / path.relative_to(folder)).exists()]
    assert len(names) > 50
    return [str(name) for name in names if (own / name).read_bytes() != (folder / name).read_bytes()]


def test_a_models_entry_is_valid_as_it_is_written(folder: Path) -> None:
    run = kb("new-model", folder.parent / "config.json", "--name", "acme/small-1b", "--rules", folder, "--lang", "en")
    assert run.returncode == 0, run.stderr
    text = (folder / "models" / "small-1b.yaml").read_text("utf-8")
    assert "num_key_value_heads: 32" in text and "tie_word_embeddings: false" in text  # what the config leaves out
    assert "value: bf16" in text and "status: computed" in text
    assert kb("validate", "--rules", folder).returncode == 0
    assert not changed(folder), "two entries that are added side by side change no file in common"
    again = kb("new-model", folder.parent / "config.json", "--name", "acme/small-1b", "--rules", folder, "--lang", "en")
    assert again.returncode == 2 and "known already" in again.stderr


def test_an_entry_for_the_team_alone_is_laid_over(folder: Path, tmp_path: Path) -> None:
    team = tmp_path / "team"
    run = kb("new-model", tmp_path / "config.json", "--name", "acme/small-1b", "--into", team)
    assert run.returncode == 0, run.stderr
    run = kb("new-gpu", "--name", "ACME Card", "--memory", "20480MiB", "--compute-capability", "8.9", "--into", team)
    assert run.returncode == 0, run.stderr
    assert "status: claimed" in (team / "hardware" / "acme-card.yaml").read_text("utf-8")
    run = kb("validate", team, "--lang", "en")
    assert run.returncode == 0 and "2 entries" in run.stdout, run.stderr


@pytest.mark.parametrize(
    ("arguments", "english", "korean"),
    few([
        (("new-model", "acme/nowhere"), "kb rules new-model config.json --name acme/nowhere", "허브에 묻지 않습니다"),
        (("new-model", "none.json"), "cannot be read", "읽을 수 없습니다"),
        (("new-gpu", "--name", "A"), "give --name, --memory and --compute-capability", "함께 주십시오"),
        (
            ("new-gpu", "--name", "A 9", "--memory", "8GiB", "--compute-capability", "8", "--measured"),
            "such as 8.9", "8.9처럼",
        ),
        (("new-gpu", "--name", "A 9", "--memory", "8", "--compute-capability", "8.0", "--measured"), "--memory", "8GB"),
        (("new-gpu", "--name", "A 9", "--memory", "8GiB", "--compute-capability", "8.0"), "--measured", "--measured"),
        (
            ("new-gpu", "--name", "NVIDIA L4", "--memory", "24GiB", "--compute-capability", "8.9", "--measured"),
            "known already: l4", "이미 있습니다: l4",
        ),
    ], 3),
)  # fmt: skip
def test_bad_input_is_said_and_nothing_is_written(
    folder: Path, arguments: tuple[str, ...], english: str, korean: str
) -> None:
    before = sorted(path.name for path in folder.rglob("*.yaml"))
    for language, words in (("en", english), ("ko", korean)):
        run = kb(*arguments, "--rules", folder, "--lang", language)
        assert run.returncode == 2
        assert words in run.stderr, run.stderr
    assert sorted(path.name for path in folder.rglob("*.yaml")) == before


def test_this_machines_gpu_is_read_from_its_driver(folder: Path, tmp_path: Path) -> None:
    library = compiled(tmp_path).parent
    environ = {**ENVIRON, "LD_LIBRARY_PATH": str(library), "NVML_DRIVER": "550.54.14"}
    environ |= {"NVML_GPUS": "name=NVIDIA Engineering Sample,total=16376,major=8,minor=9,uuid=GPU-g"}
    del environ["CUDA_VISIBLE_DEVICES"]
    command = [sys.executable, "-m", "kb.rules", "new-gpu", "--rules", os.fspath(folder)]
    run = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    text = (folder / "hardware" / "engineering-sample.yaml").read_text("utf-8")
    assert "value: 16376, unit: MiB, status: measured" in text and "'8.9'" in text and "tdp" not in text
    assert "driver 550.54.14" in " ".join(text.split()) and not changed(folder)
    assert kb("validate", "--rules", folder).returncode == 0


ARGUMENTS = """\
from dataclasses import dataclass

@dataclass
class Arguments:
    base_checkpoint: str
    learning_rate: float = 1e-4
    lora_rank: int = 8
    zeta_schedule: str = "none"
"""


def test_a_format_is_drafted_from_a_programs_own_arguments(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(ARGUMENTS + "    gone_since: int = 0\n")
    (tmp_path / "new.py").write_text(ARGUMENTS + "parser.add_argument('--eta-floor', type=float)\n")
    paths = (f"1.0={tmp_path}/old.py", f"v1.2={tmp_path}/new.py")
    run = kb("new-dialect", "acme-tune", *paths, "--rules", folder, "--lang", "en")
    assert run.returncode == 0, run.stderr
    text = (folder / "dialects" / "acme-tune.yaml").read_text("utf-8")
    assert "learning_rate: training.learning_rate" in text and "lora_rank: lora.r" in text
    assert '"..1.0":' in text and "gone_since" in text and '"1.2..":' in text and "eta_floor" in text
    assert kb("validate", "--rules", folder).returncode == 0
    config = tmp_path / "run.yaml"
    config.write_text("base_checkpoint: a/b\nlearning_rate: 0.1\nzeta_schedule: cosine\n")
    run = run_kb("check", config, "--rules", folder, "--lang", "en", module="kb")
    assert "acme-tune" in run.stdout, run.stdout


JOB = """\
@dataclass
class Loader:
    workers: int = 0

@dataclass
class Training(Base):
    steps: int = 1
    loader: Loader = field(default_factory=Loader)
    shards: list[Loader] = field(default_factory=list)
    _own: int = 0

class Job(BaseModel):
    training: "Training"
    seed: int = 0
"""


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ({"a.py": JOB}, ["training.steps", "training.loader.workers", "training.shards", "seed"]),
        ({"a.py": "def setup(train: Job | None = None, lr: float = 1.0, *, _: int = 0): ...\n"}, ["train", "lr", "_"]),
        ({"a.py": "model = dict(type=A, r=8, inner=dict(x=1))\nlr = 1\n"}, ["model.r", "model.inner.x", "lr"]),
        ({"a.yaml": "a: {b: 1}\n", "b.yml": "c: 2\n"}, ["a.b", "c"]),
        ({"a.py": "parser.add_argument('--x-y', '-x')\n", "b.yaml": "c: 2\n"}, ["x_y"]),
    ],
)
def test_arguments_are_read_from_the_code(tmp_path: Path, files: dict[str, str], names: list[str]) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert list(arguments_in(str(tmp_path))) == names


def test_what_a_format_cannot_be_drafted_from_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text("def (\n")
    (tmp_path / "args.py").write_text(ARGUMENTS)
    team = tmp_path / "team"
    for paths, said in (
        (["empty.py"], "no argument was found"),
        (["broken.py"], "cannot be read"),
        (["nowhere"], "no Python or YAML file"),
        (["1.0=args.py", "args.py"], "or of none"),
    ):
        named = [path.replace("=", f"={tmp_path}/") if "=" in path else str(tmp_path / path) for path in paths]
        run = kb("new-dialect", "acme", *named, "--into", team, "--lang", "en")
        assert run.returncode == 2 and said in run.stderr, run.stderr
    run = kb("new-dialect", "axolotl", tmp_path / "args.py", "--into", team, "--lang", "en")
    assert run.returncode == 2 and "known already" in run.stderr
