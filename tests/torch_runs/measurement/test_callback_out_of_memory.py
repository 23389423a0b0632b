"""Out of memory in a real run: the error that a GPU would raise, raised in a real forward pass."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from torch_later import imported_where_run
from trainer_runs import arguments, collate, gpt2_model, require_trainer, rows

if TYPE_CHECKING:
    import torch
    from transformers import Trainer

    from kb.integrations.trainer import KbCallback, LoopWatch, watch
imported = imported_where_run(globals(), require_trainer)

ERROR = (
    "CUDA out of memory. Tried to allocate 2.29 GiB. GPU 0 has a total capacity of 23.57 GiB of which 1.21 GiB is "
    "free. Including non-PyTorch memory, this process has 22.35 GiB memory in use. Of the allocated memory 21.50 GiB "
    "is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated."
)


def failing(model: Any, *, after: int = 1, over: int = 0) -> Any:
    """The model, out of memory from its forward pass number ``after`` on, in batches of more than ``over`` rows."""
    calls = []

    def fail(module: Any, given: Any, named: Any) -> None:
        calls.append(1)
        if len(calls) > after and len(named["input_ids"]) > over:
            raise torch.OutOfMemoryError(ERROR)

    model.register_forward_pre_hook(fail, with_kwargs=True)
    return model


def trainer_of(folder: Path, model: Any, callbacks: list[Any], **changes: Any) -> Trainer:
    return Trainer(
        model=model, args=arguments(folder, **changes), train_dataset=rows(), data_collator=collate, callbacks=callbacks
    )


@pytest.mark.parametrize(("lang", "title"), [("ko", "# 메모리가 모자랐습니다"), ("en", "# Memory ran out")])
def test_the_diagnosis_names_cause_remedies_sizes_and_settings(lang: str, title: str, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, failing(gpt2_model()), [KbCallback(lang=lang)])
    with pytest.raises(torch.OutOfMemoryError), watch(trainer):
        trainer.train()
    text = (tmp_path / "kb-diagnosis.md").read_text("utf-8")
    assert text.startswith(title)
    assert "1 / 4" in text
    assert "2.3 GiB" in text  # of the error's own numbers
    assert "per_device_train_batch_size: 2" in text
    assert "torch.OutOfMemoryError" in text
    assert "host" in text or "호스트" in text


def test_an_error_before_the_first_step_is_explained_too(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, failing(gpt2_model(), after=0), [])
    with pytest.raises(torch.OutOfMemoryError), watch(trainer, lang="en"):
        trainer.train()
    assert "0 / 4" in (tmp_path / "kb-diagnosis.md").read_text("utf-8")


def test_any_other_error_writes_nothing_and_passes(tmp_path: Path) -> None:
    def broken(module: Any, given: Any, named: Any) -> None:
        raise ValueError("shape mismatch")

    model = gpt2_model()
    model.register_forward_pre_hook(broken, with_kwargs=True)
    trainer = trainer_of(tmp_path, model, [KbCallback(lang="en")])
    with pytest.raises(ValueError, match="shape mismatch"), watch(trainer):
        trainer.train()
    assert not (tmp_path / "kb-diagnosis.md").exists()


def test_a_batch_that_the_trainer_lowers_is_predicted_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="kb.transformers")
    callback = KbCallback(lang="en")
    model = failing(gpt2_model(), after=0, over=2)
    changes = {"per_device_train_batch_size": 4, "auto_find_batch_size": True, "max_steps": 2}
    trainer_of(tmp_path, model, [callback], **changes).train()
    assert "(4 × 1 × 1" in caplog.text
    assert callback.watching is not None
    assert callback.watching.forecast is not None
    assert callback.watching.forecast.setup.per_device_train_batch_size == 2
    assert "(2 × 1 × 1" in caplog.text
    assert not (tmp_path / "kb-diagnosis.md").exists()


def test_a_diagnosis_that_cannot_be_written_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    callback = KbCallback(lang="en", diagnosis=str(tmp_path / "file" / "kb-diagnosis.md"))
    trainer = trainer_of(tmp_path / "out", failing(gpt2_model()), [callback])
    with pytest.raises(torch.OutOfMemoryError), watch(trainer):
        trainer.train()
    assert "cannot be written" in caplog.text


def test_a_loop_of_ones_own_is_explained(tmp_path: Path) -> None:
    model, place = gpt2_model(), tmp_path / "why.md"
    settings = {"per_device_train_batch_size": 2, "max_source_length": 12}
    with (
        pytest.raises(MemoryError),
        LoopWatch(model, settings, device=torch.device("cpu"), lang="en", diagnosis=str(place)),
    ):
        raise MemoryError
    assert "max_source_length: 12" in place.read_text("utf-8")


SCRIPT = """
import sys
from pathlib import Path
import torch, transformers
import test_callback_out_of_memory
from test_callback_out_of_memory import failing, trainer_of
test_callback_out_of_memory.torch, test_callback_out_of_memory.Trainer = torch, transformers.Trainer
from trainer_runs import gpt2_model
from kb.transformers import KbCallback
trainer_of(Path(sys.argv[1]), failing(gpt2_model()), [KbCallback()]).train()
"""


@pytest.mark.exhaustive
def test_a_script_that_the_error_ends_leaves_the_diagnosis_behind(tmp_path: Path) -> None:
    here = Path(__file__).parent
    folders = (here, here.parents[1], here.parents[2] / "src")
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "LC_ALL": "ko_KR.UTF-8"},
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert run.returncode == 1
    assert "OutOfMemoryError" in run.stderr  # Python's own traceback stays
    assert "메모리가 모자랐습니다" in run.stderr
    assert (tmp_path / "kb-diagnosis.md").read_text("utf-8").startswith("# 메모리가 모자랐습니다")
