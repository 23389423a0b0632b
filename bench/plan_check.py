"""``kb plan`` held to its word: what it says is written into the config as it stands, and the config is checked again.

    PYTHONPATH=src python bench/plan_check.py [CONFIGS] [SEED]

Draws models, GPUs, formats, methods and batches that ask for more than there is, plans each, puts the plan's keys into
the file and checks that. Prints how many fit then, how many the plan itself says are not reached, and each that does
not do what was said; exits with 1 if any.
"""

import random
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from kb.advice.fit.estimator import Estimator
from kb.advice.fit.plan import steps_from
from kb.advice.fit.plan_unit import PlannedUnit, plan_unit
from kb.advice.question import Question
from kb.config.dialect.spelling import Speller
from kb.core.catalog import Catalog
from kb.core.memory_report import MemoryReport
from kb.core.result import UnitResult
from kb.knowledge import load_catalog, load_guide
from kb.session.file import FileChecker
from kb.session.fixing import Pasting, pasted
from kb.session.prepare import file_checker
from kb.session.project import Project
from kb.session.run import Input, run

CATALOG = load_catalog()
STEPS = steps_from(load_guide(), CATALOG.facts)
FORMATS = ("hf", "trl", "axolotl", "llamafactory", "team")
DECODERS = ("llama-3.2-1b", "llama-3.2-3b", "qwen2.5-0.5b", "qwen2.5-7b", "gemma-2-2b", "mistral-7b", "gpt2-large")
SEQ2SEQ = ("t5-base", "t5-large", "mt5-base", "mt5-xlsum", "bart-large", "kobart")
GPUS = ("t4", "rtx-3060-12gb", "rtx-3080-10gb", "rtx-3090", "v100-16gb", "l4", "a100-40gb")


class Tried(NamedTuple):
    """A plan and what came of it: ``after`` is the checked file with the plan's keys in it."""

    format: str
    text: str
    planned: PlannedUnit
    pasted: str
    after: UnitResult

    @property
    def kept(self) -> bool:
        """Whether the file does what the plan said: it fits where that was promised, with the memory that was told."""
        report = self.after.prediction
        promised = self.planned.estimator.predict(self.planned.plan.setup)
        fits = report is not None and report.verdict.status == "fits"
        reached = self.planned.plan.reached
        return report is not None and fits >= reached and _peak(report) == _peak(promised) and not self.new_errors

    @property
    def new_errors(self) -> set[str]:
        """Rules that call an error in the new file what they did not in the old one."""
        before, after = (
            {each.rule for each in result.findings if each.severity == "error"}
            for result in (self.planned.result, self.after)
        )
        return after - before


def _peak(report: MemoryReport) -> int:
    return max((phase.process_used_bytes for phase in report.phases), default=0)


def config(form: str, draw: random.Random, catalog: Catalog = CATALOG) -> dict[str, Any]:
    """A run that is likely to be too large for a GPU."""
    model = catalog.models[draw.choice(DECODERS if form in ("trl", "axolotl", "llamafactory") else DECODERS + SEQ2SEQ)]
    batch, length = draw.choice((8, 16, 32, 64)), draw.choice((512, 1024, 2048))
    length = min(length, model.architecture.max_positions or length)
    adapter = draw.choice((False, False, True))
    name, steps = model.name, draw.choice((1, 2, 4))
    if form == "team":
        rows: dict[str, Any] = {
            "general": {"model_name": name},
            "tokenizer": {"encoder_max_len": length, "decoder_max_len": 128},
            "training": {"per_device_train_batch_size": batch, "per_device_eval_batch_size": 2 * batch,
                         "gradient_accumulation_steps": steps, "do_train": True, "eval_strategy": "epoch",
                         "dataloader_num_workers": 2},
        }  # fmt: skip
        return {**rows, "qlora": {"use_lora": True, "lora_rank": 16}} if adapter else rows
    if form == "axolotl":
        rows = {"base_model": name, "sequence_len": length, "micro_batch_size": batch, "bf16": False, "fp16": False,
                "gradient_accumulation_steps": steps, "optimizer": "adamw_torch_fused", "val_set_size": 0,
                "datasets": [{"path": "own.jsonl"}], "output_dir": "out", "gradient_checkpointing": False}  # fmt: skip
        return {**rows, "adapter": "lora", "lora_r": 16, "lora_target_linear": True} if adapter else rows
    rows = {"model_name_or_path": name, "per_device_train_batch_size": batch, "gradient_accumulation_steps": steps,
            "output_dir": "out", "do_train": True, "optim": "adamw_torch"}  # fmt: skip
    if form == "llamafactory":
        kind = "lora" if adapter else "full"
        return {**rows, "stage": "sft", "finetuning_type": kind, "cutoff_len": length, "dataset": "own",
                "disable_gradient_checkpointing": True}  # fmt: skip
    if form == "trl":
        rows = {**rows, "max_length": length, "dataset_name": "own", "gradient_checkpointing": False, "bf16": False}
        return {**rows, "use_peft": True, "lora_r": 16} if adapter else rows
    key = "max_source_length" if model.architecture.family in ("t5", "bart") else "block_size"
    return {**rows, key: length, **({"use_peft": True, "lora_r": 16} if adapter else {})}


def checked(text: str, checker: FileChecker) -> UnitResult:
    (file,) = run([Input("run.yaml", raw=text.encode())], checker).files
    (result,) = file.results
    return result


def tried(seed: int, catalog: Catalog = CATALOG) -> Iterator[Tried]:
    """Plans without end, of configs that do not fit as they are."""
    draw = random.Random(seed)
    while True:
        form = draw.choice(FORMATS)
        question = Question.of(gpu=draw.choice(GPUS), gpus=draw.choice((1, 1, 1, 4)), host_memory="200GB", cpus="32",
                               versions={"transformers": "5.23.0"})  # fmt: skip
        checker = file_checker(catalog, Project(), question)
        data = config(form, draw, catalog)
        text = yaml.safe_dump(data, sort_keys=False)
        before = checked(text, checker)
        if before.model is None or before.prediction is None or before.prediction.verdict.status == "fits":
            continue
        estimator = Estimator(before.model, checker.machine, catalog.constants)
        speller = Speller(catalog.dialects[before.unit.dialect or ""], catalog.facts)
        pasting = Pasting(checker, "run.yaml", text, None)
        planned = plan_unit(before, estimator, catalog.gpus, STEPS, speller, pasting)
        changed = pasted(text, planned.written)
        assert changed is not None  # it is YAML
        yield Tried(form, text, planned, changed, checked(changed, checker))


def main() -> int:
    wanted, seed = int(sys.argv[1]) if len(sys.argv) > 1 else 100, int(sys.argv[2]) if len(sys.argv) > 2 else 1
    found = [each for _, each in zip(range(wanted), tried(seed), strict=False)]
    broken = [each for each in found if not each.kept]
    not_reached = sum(not each.planned.plan.gpu.reached for each in found)
    reach = len(found) - not_reached
    print(f"{len(found)} plans: {reach} reach, {not_reached} say that they do not, {len(broken)} broken")
    for each in broken:
        steps = [step.name for step in (*each.planned.plan.gpu.steps, *each.planned.plan.host.steps)]
        status = each.after.prediction and each.after.prediction.verdict.status
        print(f"--- {each.format}: {steps} → {status} {each.new_errors}\n{each.text}+++\n{each.pasted}")
        promised = each.planned.plan.setup
        for name, told in zip(promised._fields, promised, strict=True):
            got = getattr(each.after.setup, name)
            if told != got:
                print(f"    {name}: {told} told, {got} read")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
