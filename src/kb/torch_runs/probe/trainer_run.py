"""A model with random weights, and its training, evaluation and generation by the Trainer, measured by phase.

Import only in a trial's process: torch stays in memory once imported.
"""

import functools
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback

from kb.core.setup import TrainingSetup
from kb.torch_runs import models
from kb.torch_runs.models import add_adapters, cast_as_trainers_do, prepare_quantized, quantization_config
from kb.torch_runs.pictures import OF_PICTURES, entries
from kb.torch_runs.probe.meter import Meter

EVALUATION_STEPS = 3
PARTS = ("forward", "backward", "step")
WRAPPED = "_original_forward"  # accelerate's mark on a model whose forward pass it has wrapped
FIRST_ID = 3  # below it are special tokens


def build_model(config: Mapping[str, Any], setup: TrainingSetup, device: str) -> Any:
    """The setup's model on ``device``, quantized and with adapters where it says so.

    Raises:
        NoModelError: transformers builds no model from the config.
        ValueError: the adapters' targets fit no module.
    """
    if setup.packs:
        model = _quantized(config, setup, device)
    else:
        with torch.device(device):
            model = models.build(config, setup, token_ids=True)
        wide = models.stays_wide(model)
        for name, parameter in model.named_parameters():
            if wide(name):  # as from_pretrained leaves it
                parameter.data = parameter.data.float()
    model = model if setup.method == "full" else cast_as_trainers_do(add_adapters(model, setup), setup)
    if device.startswith("cuda"):  # what drawing random weights needed is not of the run
        torch.cuda.empty_cache()
    return model


def _quantized(config: Mapping[str, Any], setup: TrainingSetup, device: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:  # quantization happens where weights are read
        model = _drawn(config, setup, device)
        dtype = models.load_dtype(setup)
        asked, kind = quantization_config(model, setup, dtype), type(model)
        model.save_pretrained(folder, max_shard_size="2GB")  # each passes through host memory whole
        del model
        torch.cuda.empty_cache()
        model = kind.from_pretrained(
            folder, quantization_config=asked, device_map={"": device}, dtype=dtype,
            attn_implementation=models.ATTENTION[setup.attn_implementation],
        )  # fmt: skip
    prepares = setup.method != "full" and setup.prepare_for_kbit
    return prepare_quantized(model, setup) if prepares else model


def _drawn(config: Mapping[str, Any], setup: TrainingSetup, device: str) -> Any:
    """The model before it is quantized: on the GPU where there is room, as a CPU takes minutes to draw billions of
    random numbers."""
    try:
        with torch.device(device):
            return models.build(config, setup, token_ids=True)
    except torch.OutOfMemoryError:
        pass
    with torch.device("cpu"):
        return models.build(config, setup, token_ids=True)


def samples(model: Any, setup: TrainingSetup, number: int) -> list[dict[str, Any]]:
    """Samples as long as the setup lets them be: no batch is smaller than another.

    Where batches are padded, the first sample's last token is padding: a mask of ones alone would make transformers
    leave the mask out.
    """
    torch.manual_seed(0)
    size, labels = model.config.get_text_config().vocab_size, models.labels_of(model, setup)

    def ids(length: int) -> Any:
        return torch.randint(min(FIRST_ID, size - 1), size, (length,))

    rows = []
    for at in range(number):
        source = ids(setup.max_source_length)
        if model.config.is_encoder_decoder and not labels.tokens:
            source[-1] = model.config.eos_token_id  # whose state BART's and T5's classifiers read
        row = {"input_ids": source, "attention_mask": torch.ones_like(source)}
        if models.hears(model):
            row = {"input_features": _features(model)}
        elif setup.images is not None and setup.images.number:
            row = _pictured(model, setup)
            source = row["input_ids"]
        for name in labels.names:
            if not labels.tokens:
                row[name] = torch.zeros(labels.shape, dtype=torch.long)
            else:
                row[name] = ids(*labels.shape) if model.config.is_encoder_decoder else source.clone()
        if setup.label_smoothing_factor and model.config.is_encoder_decoder and labels.tokens:
            row["decoder_input_ids"] = row["labels"].clone()  # the collator makes them: the Trainer takes labels away
        if setup.padded and at == 0 and "attention_mask" in row:
            row["attention_mask"][-1] = 0
        rows.append(row)
    return rows


def _pictured(model: Any, setup: TrainingSetup) -> dict[str, Any]:
    """A sample with pictures: of words and ids one row, of pictures all that the sample has."""
    assert setup.images is not None
    row = {}
    for name, entry in entries(models.base_of(model).config, setup.max_source_length, setup.images, 1).items():
        # SmolVLM takes a picture of zeros for padding
        numbers = torch.tensor(1.0) if entry.pixels else torch.tensor(entry.numbers)
        tensor = numbers.expand(entry.shape).clone()
        row[name] = tensor if name in OF_PICTURES else tensor[0]
    return row


def collated(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A batch as the Trainer's own collator makes it, pictures of all samples behind one another."""
    return {name: (torch.cat if name in OF_PICTURES else torch.stack)([row[name] for row in rows]) for name in rows[0]}


def _features(model: Any) -> Any:
    """Log-mel features of one sample as the feature extractor gives them, padded to what the encoder takes."""
    kind = next(model.parameters()).dtype
    return torch.zeros((model.config.num_mel_bins, 2 * model.config.max_source_positions), dtype=kind)


class Clock:
    """Seconds of the last optimizer step that was measured."""

    def __init__(self) -> None:
        self.began = self.seconds = 0.0


def trainer_of(
    model: Any,
    setup: TrainingSetup,
    meter: Meter,
    folder: str,
    *,
    steps: int,
    clock: Clock,
    lengths: Sequence[int] = (),
) -> Any:
    """A Trainer of ``steps`` optimizer steps; the second half of them is measured, when states and caches are there.

    ``lengths`` are the padded lengths of its batches in tokens, targets in their share, and take the place of
    ``steps``: then all is measured.
    """
    warm = 0 if lengths else steps // 2

    class Measured(Seq2SeqTrainer):
        accumulated = 0

        def compute_loss(self, model: Any, *given: Any, **named: Any) -> Any:
            measures = model.training and self.state.global_step >= warm
            if measures:
                meter.start()
                if self.accumulated % self.args.gradient_accumulation_steps == 0:
                    clock.began = time.perf_counter()
            loss = super().compute_loss(model, *given, **named)
            if measures:
                meter.end("forward")
                meter.start()
            return loss

        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(data["train_dataset"])  # samples of one batch stay together

        def training_step(self, *given: Any, **named: Any) -> Any:
            loss = super().training_step(*given, **named)
            self.accumulated += 1
            if self.state.global_step >= warm:
                meter.end("backward")
            return loss

    data = _data(model, setup, steps, lengths)
    return Measured(
        model=model,
        args=_arguments(setup, folder, len(lengths) // setup.gradient_accumulation_steps or steps, cuda=meter.cuda),
        **data,
        data_collator=collated,
        callbacks=[_callback(setup, meter, clock, warm)],
        compute_metrics=None if _keeps_loss_alone(setup) else _no_metrics,
    )


def _callback(setup: TrainingSetup, meter: Meter, clock: Clock, warm: int) -> TrainerCallback:
    """What ends the optimizer's part of a step that is not before ``warm``; and checkpointing as the run's trainer has
    it, once the Trainer has set its own."""

    class Phases(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if setup.gradient_checkpointing and setup.checkpoints_trained:
                models.checkpoint_trained(given["model"])

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            meter.start()

        def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step >= warm:
                meter.end("step")
                clock.seconds = time.perf_counter() - clock.began

    return Phases()


def _data(model: Any, setup: TrainingSetup, steps: int, lengths: Sequence[int]) -> dict[str, Any]:
    """What is trained and evaluated on: one batch again and again, or batches of these lengths."""
    batch, passes = setup.per_device_train_batch_size, setup.gradient_accumulation_steps
    rows = [each for length in lengths for each in samples(model, models.as_long(setup, length), batch)]
    training = _Repeated(rows, 1) if lengths else _Repeated(samples(model, setup, batch), steps * passes)
    evaluated = samples(model, setup, setup.per_device_eval_batch_size)
    evaluations = setup.eval_samples or EVALUATION_STEPS * len(evaluated)
    kept = torch.utils.data.Subset(_Repeated(evaluated, evaluations), range(evaluations))
    return {"train_dataset": training, "eval_dataset": kept}


def _keeps_loss_alone(setup: TrainingSetup) -> bool:
    """Whether evaluation keeps no logits."""
    return setup.predict_with_generate or setup.prediction_loss_only


def _no_metrics(_: Any) -> dict[str, float]:
    """Without a function of metrics the Trainer keeps no logits, whatever its arguments say."""
    return {}


class _Repeated(torch.utils.data.Dataset[Any]):
    """One batch's samples again and again: every batch takes the same, and few samples take little host memory."""

    def __init__(self, rows: list[Any], times: int) -> None:
        self.rows, self.times = rows, times

    def __len__(self) -> int:
        return len(self.rows) * self.times

    def __getitem__(self, number: int) -> Any:
        return self.rows[number % len(self.rows)]


def _arguments(setup: TrainingSetup, folder: str, steps: int, *, cuda: bool) -> Seq2SeqTrainingArguments:
    workers: dict[str, Any] = {}
    if setup.dataloader_num_workers:
        workers = {
            "dataloader_num_workers": setup.dataloader_num_workers,
            "dataloader_prefetch_factor": setup.dataloader_prefetch_factor,
            "dataloader_persistent_workers": setup.dataloader_persistent_workers,
        }
    return Seq2SeqTrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=setup.per_device_train_batch_size,
        per_device_eval_batch_size=setup.per_device_eval_batch_size,
        gradient_accumulation_steps=setup.gradient_accumulation_steps,
        max_steps=steps,
        fp16=setup.fp16 and cuda,  # a CPU's autocast is bf16
        bf16=setup.bf16 or (setup.fp16 and not cuda),
        gradient_checkpointing=setup.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": setup.use_reentrant},
        optim=setup.optim,
        label_smoothing_factor=setup.label_smoothing_factor,
        prediction_loss_only=_keeps_loss_alone(setup),
        eval_accumulation_steps=setup.eval_accumulation_steps,
        dataloader_pin_memory=setup.dataloader_pin_memory and cuda,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=not cuda,
        **workers,
    )


def train(trainer: Any, meter: Meter) -> None:
    """The steps; ``train`` is the highest of their parts."""
    meter.start()
    trainer.train()
    meter.whole("train", PARTS)


def evaluate(trainer: Any, meter: Meter) -> None:
    """The Trainer's evaluation of a few batches: the forward passes, and what it keeps of them."""
    meter.start()
    trainer.evaluate()
    meter.end("evaluate")


def generate(trainer: Any, model: Any, setup: TrainingSetup, meter: Meter) -> None:
    """To the full length; in evaluation as Seq2SeqTrainer does, whose accelerate has wrapped each forward pass in
    autocast, else as a program of its own, without."""
    device = next(model.parameters()).device
    inference = setup.do_predict and not (setup.do_eval and setup.predict_with_generate)
    batch = setup.inference_batch_size if inference else None
    beams = setup.inference_num_beams if inference else setup.generation_num_beams
    length = setup.inference_max_length if inference else setup.generation_max_length
    rows = samples(model, setup, batch or setup.per_device_eval_batch_size)
    answers = {*models.labels_of(model, setup).names, "decoder_input_ids"}
    inputs = {name: each.to(device) for name, each in collated(rows).items() if name not in answers}
    if setup.padded and "attention_mask" in inputs and not model.config.is_encoder_decoder:
        inputs["attention_mask"] = inputs["attention_mask"].flip(1)  # a decoder is padded on the left
    if not inference and setup.autocast and not hasattr(model, WRAPPED):
        model = trainer.accelerator.prepare_model(model, evaluation_mode=True)
    model.eval()
    if not models.hears(model):  # no answer ends early; `min_new_tokens` would copy the last logits for itself
        models.base_of(model).generation_config.eos_token_id = None
    meter.start()
    model.generate(**inputs, num_beams=beams, max_new_tokens=length, do_sample=False, use_cache=True,
                   **({"min_new_tokens": length} if models.hears(model) else {}))  # fmt: skip
    meter.end("generate")


def phase_runs(trainer: Any, model: Any, setup: TrainingSetup, meter: Meter) -> dict[str, Callable[[], None]]:
    """What to call for each phase."""
    return {
        "train": functools.partial(train, trainer, meter),
        "evaluate": functools.partial(evaluate, trainer, meter),
        "generate": functools.partial(generate, trainer, model, setup, meter),
    }
