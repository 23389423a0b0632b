"""One trial of bench/gpu, in a process of its own: prints a line of JSON with what it measured.

    python trial.py '{"model": "t5-base", "task": "train", …}' cuda

The model is built from its configuration with random weights and run by the Trainer, as a user runs it. Memory by phase
is torch's peak since the phase began; the process's is what NVML reports for it.
"""

import json
import os
import sys
import tempfile
import time
from typing import Any

from gpu_trials import LORA_TARGETS, MODELS, TINY, Trial

STEPS = 4  # the first two make optimizer states and warm up the allocator; the rest are measured
EVALUATION_STEPS = 3
LORA_RANK = 16
Sizes = dict[str, int]


class Meter:
    """Peaks by phase. On a CPU there is nothing to read and every size is 0: such rows are not recorded."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"
        self.phases: dict[str, Sizes] = {}
        self.began = self.seconds = 0.0

    def start(self) -> None:
        if self.cuda:
            import torch

            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()

    def end(self, phase: str) -> None:
        """The phase's peaks, or the highest of those it had before."""
        found = {"allocated_bytes": 0}
        if self.cuda:
            import torch

            torch.cuda.synchronize()
            found = {
                "allocated_bytes": torch.cuda.max_memory_allocated(),
                "reserved_bytes": torch.cuda.max_memory_reserved(),
                "process_bytes": process_bytes(),
            }
        kept = self.phases.setdefault(phase, found)
        self.phases[phase] = {name: max(size, kept.get(name, 0)) for name, size in found.items()}

    def whole(self, phase: str, parts: tuple[str, ...]) -> None:
        """A phase that others make up: the highest of theirs."""
        names = self.phases[parts[0]]
        self.phases[phase] = {name: max(self.phases[part][name] for part in parts) for name in names}


def process_bytes() -> int:
    """What NVML says this process holds; where it hides processes (containers), what is in use on the whole GPU."""
    import pynvml
    import torch

    pynvml.nvmlInit()
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
        if process.pid == os.getpid() and process.usedGpuMemory:
            return int(process.usedGpuMemory)
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def build(trial: Trial, device: str) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    fields = dict((MODELS | TINY)[trial.model])
    tokens = {"pad_token_id": 0, "eos_token_id": 1}
    if fields["model_type"] in ("t5", "mt5"):  # the class has no default for it
        tokens["decoder_start_token_id"] = 0
    config = AutoConfig.for_model(fields.pop("model_type"), **fields, **tokens)
    factory = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    if trial.method != "qlora":
        model = factory.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
        return adapted(model, trial) if trial.method == "lora" else model
    from peft import prepare_model_for_kbit_training
    from transformers import BitsAndBytesConfig

    half = torch.float16 if trial.precision == "fp16" else torch.bfloat16
    quantized = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=half,
                                   bnb_4bit_use_double_quant=True)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:  # quantization happens where weights are read
        factory.from_config(config, dtype=torch.float32).to(half).save_pretrained(folder)
        model = factory.from_pretrained(folder, quantization_config=quantized, device_map={"": device},
                                        attn_implementation="sdpa", dtype=half)  # fmt: skip
    model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=trial.gradient_checkpointing)
    return adapted(model, trial)


def adapted(model: Any, trial: Trial) -> Any:
    from peft import LoraConfig, get_peft_model

    targets = LORA_TARGETS[model.config.model_type]
    return get_peft_model(model, LoraConfig(r=LORA_RANK, lora_dropout=0.1, target_modules=targets))


def samples(trial: Trial, config: Any, number: int) -> list[dict[str, Any]]:
    """Full-length samples: nothing is padded, and no batch is smaller than another."""
    import torch

    torch.manual_seed(0)

    def ids(length: int) -> Any:
        return torch.randint(3, config.vocab_size, (length,))

    rows = []
    for _ in range(number):
        source = ids(trial.source_length)
        labels = ids(trial.target_length) if config.is_encoder_decoder else source.clone()
        rows.append({"input_ids": source, "attention_mask": torch.ones_like(source), "labels": labels})
    return rows


def trainer_of(trial: Trial, model: Any, meter: Meter, folder: str) -> Any:
    from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback

    class Phases(TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            meter.start()

        def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step >= STEPS // 2:
                meter.end("step")
                meter.seconds = time.perf_counter() - meter.began

    class Measured(Seq2SeqTrainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, *given: Any, **named: Any) -> Any:
            measures = model.training and self.state.global_step >= STEPS // 2
            if measures:
                meter.start()
                meter.began = time.perf_counter()
            loss = super().compute_loss(model, *given, **named)
            if measures:
                meter.end("forward")
                meter.start()
            return loss

        def training_step(self, *given: Any, **named: Any) -> Any:
            loss = super().training_step(*given, **named)
            if self.state.global_step >= STEPS // 2:
                meter.end("backward")
            return loss

    arguments = Seq2SeqTrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=trial.batch,
        per_device_eval_batch_size=trial.batch,
        max_steps=STEPS,
        fp16=trial.precision == "fp16" and meter.cuda,
        bf16=trial.precision == "bf16",
        gradient_checkpointing=trial.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        optim="adamw_torch_fused",
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=not meter.cuda,
    )
    rows = samples(trial, model.config, trial.batch * STEPS)
    evaluation = rows[: trial.batch * min(EVALUATION_STEPS, STEPS)]
    return Measured(model=model, args=arguments, train_dataset=rows, eval_dataset=evaluation, callbacks=[Phases()])


def run(trial: Trial, device: str) -> dict[str, Any]:
    import torch

    meter = Meter(device)
    model = build(trial, device).to(device)
    meter.start()
    meter.end("load")
    result: dict[str, Any] = {"trainable": sum(each.numel() for each in model.parameters() if each.requires_grad)}
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(trial, model, meter, folder)
        if trial.task == "train":
            trainer.train()
            meter.whole("train", ("forward", "backward", "step"))
            result["step_seconds"] = round(meter.seconds, 4)
        elif trial.task == "evaluate":
            meter.start()
            trainer.evaluate()
            meter.end("evaluate")
        else:
            generate(trial, model, meter, torch)
    return {**result, "phases": meter.phases}


def generate(trial: Trial, model: Any, meter: Meter, torch: Any) -> None:
    """As Seq2SeqTrainer generates: under autocast, to the full length."""
    device = next(model.parameters()).device
    rows = samples(trial, model.config, trial.batch)
    inputs = {name: torch.stack([row[name] for row in rows]).to(device) for name in ("input_ids", "attention_mask")}
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(trial.precision)
    half = torch.bfloat16 if half is not None and not meter.cuda else half  # a CPU's autocast
    meter.start()
    with torch.inference_mode(), torch.autocast(device.type, dtype=half, enabled=half is not None):
        model.generate(**inputs, num_beams=trial.beams, max_new_tokens=trial.target_length,
                       min_new_tokens=trial.target_length, do_sample=False)  # fmt: skip
    meter.end("generate")


def main() -> int:
    trial, device = Trial(**json.loads(sys.argv[1])), sys.argv[2]
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    try:
        result = run(trial, device)
    except torch.OutOfMemoryError:
        result = {"outcome": "oom"}
    print("result:", json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
