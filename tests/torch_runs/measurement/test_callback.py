"""The callback in real training runs: what it says, what it logs, and that it never stops one."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from effort import few
from torch_later import imported_where_run
from trainer_runs import arguments, collate, gpt2_model, require_trainer, rows, t5_model

if TYPE_CHECKING:
    from transformers import Seq2SeqTrainer, Trainer, TrainerCallback

    from kb.integrations.trainer import KbCallback, LoopWatch, watch
imported = imported_where_run(globals(), require_trainer)

PREDICTED, MEASURED = "kb/predicted_host_gib", "kb/measured_host_gib"


def tracker_of(records: list[dict[str, Any]]) -> TrainerCallback:
    """What a tracker of the Trainer is handed goes there."""

    class Tracker(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **named: Any) -> None:
            records.append(dict(logs))

    return Tracker()


def seq2seq(folder: Path, callback: KbCallback, **changes: Any) -> Seq2SeqTrainer:
    settings = {"eval_strategy": "steps", "eval_steps": 2, "predict_with_generate": True, "generation_max_length": 8}
    return Seq2SeqTrainer(
        model=t5_model(),
        args=arguments(folder, seq2seq=True, **{**settings, **changes}),
        train_dataset=rows(target=6),
        eval_dataset=rows(6, target=7),
        data_collator=collate,
        compute_metrics=lambda predicted: {"rows": len(predicted.predictions)},
        callbacks=[callback],
    )


def decoder(folder: Path, callback: KbCallback, model: Any = None, **changes: Any) -> Trainer:
    return Trainer(
        model=model or gpt2_model(lora=True),
        args=arguments(folder, **changes),
        train_dataset=rows(),
        eval_dataset=rows(6),
        data_collator=collate,
        callbacks=[callback],
    )


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="kb.transformers")
    return caplog


def test_predicted_and_measured_of_every_evaluation_reach_the_history_and_the_trackers(tmp_path: Path) -> None:
    callback, tracked = KbCallback(lang="en"), list[dict[str, Any]]()
    trainer = seq2seq(tmp_path, callback)
    trainer.add_callback(tracker_of(tracked))
    trainer.train()
    for records in (trainer.state.log_history, tracked):
        steps = [record for record in records if PREDICTED in record]
        evaluations = [record for record in records if "kb/eval_measured_host_gib" in record]
        assert len(steps) == 1
        assert steps[0][MEASURED] > 0
        assert len(evaluations) == 2
    assert not callback.broken


def test_the_steps_own_log_is_not_lost_beside_kbs(tmp_path: Path) -> None:
    trainer = seq2seq(tmp_path, KbCallback(lang="en"))
    trainer.train()
    assert [record["step"] for record in trainer.state.log_history if "loss" in record] == [1, 2, 3, 4]


def test_a_subclasss_own_log_is_not_emptied_by_kbs_record(tmp_path: Path) -> None:
    class Gathering(Trainer):
        gathered: list[int]

        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            logs["gathered"] = float(sum(self.gathered))
            self.gathered.clear()
            super().log(logs, start_time)

        def training_step(self, *given: Any, **named: Any) -> Any:
            self.gathered.append(1)
            return super().training_step(*given, **named)

    trainer = Gathering(
        model=gpt2_model(),
        args=arguments(tmp_path),
        train_dataset=rows(),
        data_collator=collate,
        callbacks=[KbCallback()],
    )
    trainer.gathered = []
    trainer.train()
    assert [record["gathered"] for record in trainer.state.log_history if "loss" in record] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("lang", "sentence"), few([("ko", "텐서가 호스트 메모리에 놓이므로"), ("en", "there is no GPU")])
)
def test_the_run_its_findings_and_its_prediction_are_said_once(
    lang: str, sentence: str, tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    seq2seq(
        tmp_path, KbCallback(lang=lang), gradient_accumulation_steps=2, learning_rate=3e-4, fp16_full_eval=False
    ).train()
    text = said.text
    assert text.count("seq2seq-grad-accumulation-inflates-loss") == 1
    assert text.count(sentence) == 1
    assert "(2 × 2 × 1" in text
    assert "torch-dtype-renamed" not in text


def test_what_only_live_objects_know_is_known(tmp_path: Path) -> None:
    callback = KbCallback(lang="en")
    seq2seq(tmp_path, callback).train()
    assert callback.watching is not None
    forecast = callback.watching.forecast
    assert forecast is not None
    setup = forecast.setup
    assert (setup.max_source_length, setup.max_target_length, setup.eval_samples) == (12, 6, 6)
    assert setup.attn_implementation == "sdpa"
    assert setup.weights == "fp32"
    assert setup.predict_with_generate
    assert forecast.report is not None
    assert forecast.report.phase("generate") is not None
    assert forecast.facts.get("script.has_compute_metrics") is True
    assert forecast.facts.get("data.train_samples") == 16


def test_without_metrics_evaluation_is_predicted_to_keep_nothing_and_generate_nothing(tmp_path: Path) -> None:
    callback = KbCallback(lang="en")
    trainer = seq2seq(tmp_path, callback)
    trainer.compute_metrics = None
    trainer.train()
    assert callback.watching is not None
    assert callback.watching.forecast is not None
    assert callback.watching.forecast.report is not None
    assert callback.watching.forecast.report.phase("generate") is None


def test_an_adapter_is_read_from_the_model(tmp_path: Path) -> None:
    callback = KbCallback(lang="en")
    decoder(tmp_path, callback, eval_strategy="epoch", num_train_epochs=2, max_steps=-1).train()
    assert not callback.broken
    assert callback.watching is not None
    assert callback.watching.forecast is not None
    setup = callback.watching.forecast.setup
    assert (setup.method, setup.lora_r, setup.lora_target_modules) == ("lora", 4, ("c_attn",))
    assert [each.phase for each in callback.comparisons] == ["train", "evaluate", "evaluate"]


def test_the_prediction_of_an_unpredictable_adapter_is_left_out_and_the_measurement_stays(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    from peft import IA3Config, get_peft_model

    config = IA3Config(
        target_modules=["c_attn", "mlp.c_proj"], feedforward_modules=["mlp.c_proj"], task_type="CAUSAL_LM"
    )
    callback = KbCallback(lang="en")
    decoder(tmp_path, callback, get_peft_model(gpt2_model(), config)).train()
    assert "adapters of kind IA3" in said.text
    assert callback.comparisons[0].predicted_allocated is None
    assert callback.comparisons[0].measured_host


def test_frozen_parameters_are_said(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    model = gpt2_model()
    model.transformer.wte.weight.requires_grad = False
    decoder(tmp_path, KbCallback(lang="en"), model).train()
    assert f"{120 * 16} parameters are frozen" in said.text.replace(",", "")


def test_training_is_compared_at_the_shape_that_was_seen_not_at_the_longest_row(tmp_path: Path) -> None:
    callback = KbCallback(lang="en", max_source_length=60)
    decoder(tmp_path, callback, gpt2_model()).train()
    watching = callback.watching
    assert watching is not None
    assert watching.forecast is not None
    assert watching.shapes.most is not None
    assert watching.shapes.most.source <= 12
    longest = watching.forecast.report
    assert longest is not None
    train = longest.phase("train")
    assert train is not None
    assert watching.forecast.setup.max_source_length == 60
    assert (callback.comparisons[0].predicted_allocated or 0) < train.peak_allocated_bytes


def test_a_resumed_run_is_compared_after_its_own_first_step(tmp_path: Path) -> None:
    decoder(tmp_path, KbCallback(lang="en"), max_steps=2, save_strategy="steps", save_steps=2).train()
    callback = KbCallback(lang="en")
    trainer = decoder(tmp_path, callback, max_steps=4)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    logged = [record["step"] for record in trainer.state.log_history if PREDICTED in record]
    assert logged == [1, 3]  # the first from the checkpoint's own history
    assert len(callback.comparisons) == 1


def test_an_evaluation_before_the_first_step_counts_no_optimizer(tmp_path: Path) -> None:
    callback = KbCallback(lang="en")
    decoder(tmp_path, callback, gpt2_model(), eval_strategy="steps", eval_steps=4, eval_on_start=True).train()
    before, after = (each for each in callback.comparisons if each.phase == "evaluate")
    assert (before.predicted_allocated or 0) < (after.predicted_allocated or 0)


def test_settings_written_are_those_that_differ_and_carry_no_token(tmp_path: Path) -> None:
    callback = KbCallback(lang="en")
    decoder(
        tmp_path, callback, hub_token="hf_secret", learning_rate=2e-4, accelerator_config={"split_batches": False}
    ).train()
    assert callback.watching is not None
    assert callback.watching.forecast is not None
    text = callback.watching.forecast.run.text()
    assert "hf_secret" not in text
    assert "learning_rate: 0.0002" in text
    assert "weight_decay" not in text
    assert "accelerator_config" not in text


def test_a_fault_of_kbs_own_is_one_warning_and_the_run_goes_on(
    tmp_path: Path, said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kb.toml").write_text("gpu = 3\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    trainer = decoder(tmp_path / "out", KbCallback(lang="en"))
    assert trainer.train().global_step == 4
    assert [record.levelname for record in said.records] == ["WARNING"]
    assert "kb has stopped watching this run" in said.text
    assert "kb.toml" in said.text


def test_a_model_that_kb_does_not_know_is_linted_and_measured(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    import torch

    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Embedding(120, 4)

        def forward(self, input_ids: Any = None, labels: Any = None) -> Any:
            return {"loss": self.layer(input_ids).square().mean()}

    callback = KbCallback(lang="en")
    decoder(tmp_path, callback, Own()).train()
    assert not callback.broken
    assert "kb does not know how Own is built" in said.text
    assert MEASURED in next(record for record in callback.trainer.state.log_history if MEASURED in record)  # type: ignore[union-attr]


def test_the_callback_leaves_no_hook_behind(tmp_path: Path) -> None:
    import sys

    before = sys.excepthook
    model = gpt2_model()
    decoder(tmp_path, KbCallback(lang="en"), model).train()
    assert not model._forward_pre_hooks
    assert sys.excepthook is before


def test_watch_adds_the_callback_for_its_block_only(tmp_path: Path) -> None:
    trainer = Trainer(model=gpt2_model(), args=arguments(tmp_path), train_dataset=rows(), data_collator=collate)
    with watch(trainer, lang="en") as callback:
        trainer.train()
    assert callback.comparisons
    assert callback not in trainer.callback_handler.callbacks


def test_state_with_kbs_records_is_saved_and_read_again(tmp_path: Path) -> None:
    decoder(tmp_path, KbCallback(lang="en"), save_strategy="steps", save_steps=2, max_steps=2).train()
    state = json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text("utf-8"))
    assert any(PREDICTED in record for record in state["log_history"])


def test_a_loop_with_accelerate_logs_to_its_trackers(tmp_path: Path) -> None:
    import torch
    from accelerate import Accelerator
    from accelerate.tracking import GeneralTracker

    class Kept(GeneralTracker):
        name, requires_logging_directory = "kept", False

        def __init__(self) -> None:
            super().__init__()
            self.records: list[dict[str, float]] = []

        @property
        def tracker(self) -> Any:
            return self

        def store_init_configuration(self, values: Any) -> None: ...

        def log(self, values: dict[str, float], step: int | None = None, **named: Any) -> None:
            self.records.append(values)

    kept, model = Kept(), gpt2_model()
    accelerator = Accelerator(cpu=True, log_with=kept)
    accelerator.init_trackers("test")
    settings = {"per_device_train_batch_size": 2, "max_source_length": 12, "optim": "sgd"}
    loader = torch.utils.data.DataLoader(rows(8), batch_size=2, collate_fn=collate)
    with LoopWatch(model, settings, device=accelerator.device, log=accelerator.log, lang="en") as seen:
        wrapped, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters()), loader)
        for batch in loader:
            accelerator.backward(wrapped(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
            seen.after_step()
        seen.before_evaluation()
        with torch.no_grad():
            wrapped(**batch)
        seen.after_evaluation()
    step, evaluation = kept.records
    assert step[PREDICTED] > 0
    assert evaluation["kb/eval_measured_host_gib"] >= step[MEASURED]
