"""How each fact of a unit is known, and which assumption of a prediction would turn a finding. Pure."""

from collections.abc import Callable, Iterable, Mapping

from kb.core.document import Unit
from kb.core.facts import CERTAINTIES, NOT_SAID, Certainty, FactType, Ground, MovedDefault, Origin, certainty_of
from kb.core.finding import Because, Severity
from kb.core.hardware import Machine
from kb.core.lint import OF_RELEASE, Release
from kb.core.model import Model
from kb.core.release import just_below
from kb.core.setup import Assumption, TrainingSetup
from kb.core.typed import Any

PREDICTED = ("memory.", "fit.", "saving.", "throughput.", "colocated.")
"""Facts that a prediction gives: what it assumed, they assume."""
OF_SERVER_INSIDE = ("colocated.",)
"""Of these, facts of a server in the training process: they rest on how it is started, not on how the run trains."""
STARTS_INSIDE = ("trl.release", "trl.vllm_mode", "trl.vllm_gpu_memory_utilization")
OF_SHAPES = ("saving.embedding_in_8bit",)  # of the model alone, whatever a prediction assumes
OF_PROCESSES = ("batch.effective", "run.steps", "deepspeed.disagreements")
"""Facts that the number of processes goes into."""
CHANGES_NO_RESULT = ("fit.workers_advised",)  # a wrong guess makes a run slower, never another one: its fix stays safe
PROCESSES = "launch.num_processes"
OUT_OF_MEMORY = "oom"  # a verdict that even the low end of the prediction gives
MOST_NAMED = 3  # settings in one condition
FAR = 16_000  # tokens: a maximum as high as this is often no more than a bound


# What is assumed and does no harm: the longest row counts wherever a length is known, and a library's default holds.
HARMLESS = frozenset((
    "data.lengths",
    "training.per_device_train_batch_size",
    "training.per_device_eval_batch_size",
    "evaluation.samples",
    "parallel.world_size",
    "parallel.weights",
    "lora.target_modules",  # those that match no module: PEFT skips them
    "lora.use_dora",
    "lora.load_in_8bit",
    "training.attn_implementation",
    "training.ddp_find_unused_parameters",  # the Trainer decides it alike in every release
    "gpu.compute_capability",  # of a GPU that nobody named: no finding compares with it
))  # fmt: skip


# Reasons of what kb puts in the place of what it does not follow: the range is wider for it, and nothing else is open.
STANDING_IN = frozenset((
    "adapters_by_rank", "bucket_of_gradients", "checkpoints_away", "checkpoints_on_gpu", "delta_kernels",
    "dynamic_4bit", "experts_rounded", "experts_together", "fp16_as_bf16", "fsdp2_as_fsdp1", "fused_as_liger",
    "liger_layers", "liger_source",
    "no_checkpointing_of_the_type", "no_default_targets", "no_flash_of_the_type", "no_liger_of_the_type",
    "no_shards_of_one", "nvme_as_host", "only_zero3", "packed_as_computed", "packed_whole", "reentrant_as_not",
    "router_loss_left_out", "tensors_split", "uncompared", "unsloth_layers", "unsloth_source",
))  # fmt: skip
# Reasons of what no config says and yet follows from a release, a checkpoint or a model that is known, or from what
# PEFT's documentation asks of each script that trains a quantized model.
SETTLED = STANDING_IN | frozenset(
    (
        "script_prepares",
        "fsdp_one_unit",
        "checkpoint_own_type",
        "transformers_4_default",
        "transformers_4_quantized",
        "trainer_default",
        "unmatched_targets",
        "release_by_names",
        "attention_of_release",
    )
)


# What a variable of a command says and takes no memory.
_WITHOUT_MEMORY = frozenset(f"training.{name}" for name in (
    "output_dir", "logging_dir", "run_name", "report_to", "learning_rate", "lr_scheduler_type", "warmup_ratio",
    "warmup_steps", "weight_decay", "max_grad_norm", "num_train_epochs", "max_steps", "seed", "data_seed",
    "logging_steps", "save_steps", "save_strategy", "save_total_limit", "eval_steps", "resume_from_checkpoint",
))  # fmt: skip


# What no prediction of training reads: how large an evaluation is, and whether there is one.
_SIZES_OF_EVALUATION = frozenset((
    "training.per_device_eval_batch_size", "training.per_gpu_eval_batch_size", "training.eval_accumulation_steps",
    "training.generation_num_beams", "training.prediction_loss_only", "data.eval_samples",
))  # fmt: skip
_ASKS_FOR_EVALUATION = frozenset((
    "training.do_eval", "training.do_predict", "training.eval_strategy", "training.evaluation_strategy",
    "training.eval_on_start", "training.eval_delay", "inference.batch_size", "inference.num_beams",
))  # fmt: skip
OWN_DEFAULTS, OF_TRAINING = "run.own_defaults", "memory.train."


def defaults_of_memory(unit: Unit, *, evaluates: bool) -> tuple[Assumption, ...]:
    """As :func:`own_defaults`, of all that a prediction may rest on."""
    return _defaults_but(unit, frozenset() if evaluates else _SIZES_OF_EVALUATION)


def _defaults_but(unit: Unit, without: frozenset[str]) -> tuple[Assumption, ...]:
    names = unit.settings.keys() - without
    return own_defaults(unit, names if unit.script is None else names - _WITHOUT_MEMORY)


def _of_training(unit: Unit, assumed: tuple[Assumption, ...]) -> tuple[Assumption, ...]:
    """The assumptions with those of a program's own defaults that training rests on."""
    if not any(each.name == OWN_DEFAULTS for each in assumed):
        return assumed
    rest = (each for each in assumed if each.name != OWN_DEFAULTS)
    return (*rest, *_defaults_but(unit, _SIZES_OF_EVALUATION | _ASKS_FOR_EVALUATION))


def own_defaults(unit: Unit, names: Iterable[str]) -> tuple[Assumption, ...]:
    """That a program runs with its own defaults, or a command with those of its variables, where one of these settings
    is such a default."""
    asked = frozenset(names)
    # all are gone through, and none is looked up: what is looked up keeps the configs of a grid apart
    named = asked - {"script.trainer"}  # which a script's name says is an assumption of its own
    found = [each for name, each in unit.settings.items() if each.by_default and name in named]
    # what a call says by being there (an adapter, a trainer) has its number or its class in place of a name
    keys = sorted({key for each in found if each.path and (key := str(each.path[-1]).lstrip("-"))[:1].islower()})
    more = "" if len(keys) <= MOST_NAMED else " …"
    of_program = unit.script is None or all(each.joined for each in found)
    reason = "program_default" if of_program else "variable_default"
    return (Assumption(OWN_DEFAULTS, ", ".join(keys[:MOST_NAMED]) + more, reason),) if keys else ()


def matter(assumed: tuple[Assumption, ...]) -> tuple[Assumption, ...]:
    """The assumptions that a prediction could be wrong by."""
    return tuple(
        each for each in assumed if _is_far(each) or (each.name not in HARMLESS and each.reason not in SETTLED)
    )


def _is_far(each: Assumption) -> bool:
    """Whether a maximum is written that the data may well not reach, and nothing fills batches up to it."""
    return each.reason == "longest_row" and isinstance(each.value, int) and each.value >= FAR


class Grounds:
    """The origin of every fact of one unit.

    Args:
        release: what is known of a library's release.
        given: facts that the project says of itself.
        counted: whether the user said how many GPUs there are.
        taken: what the prediction took for granted, beside what the setup says: asked for where one is made anyway.
    """

    def __init__(
        self,
        *,
        unit: Unit,
        setup: TrainingSetup,
        model: Model | None,
        machine: Machine,
        types: Mapping[str, FactType],
        release: Release,
        given: Mapping[str, Any],
        counted: bool,
        taken: Callable[[], tuple[Assumption, ...]],
    ) -> None:
        self._unit, self._model, self._machine = unit, model, machine
        self._types, self._release, self._given, self._counted, self._taken = types, release, given, counted, taken
        self._assumed = {each.name for each in setup.assumed if each.reason not in SETTLED}

    def of(self, name: str) -> Ground:
        """How the fact ``name`` is known."""
        setting = self._unit.settings.get(name)
        if setting is not None and setting.value is not None:
            place = f"{setting.span.line}:{setting.span.column}"
            return Ground("joined", setting.joined) if setting.joined else Ground("written", place)
        if name in self._given:
            return Ground("given", "kb.toml")
        if name.startswith(OF_RELEASE):
            return self._of_release(name.removeprefix(OF_RELEASE))
        if name.startswith(PREDICTED) and name not in (*OF_SHAPES, *CHANGES_NO_RESULT):
            return Ground("assumed" if matter(self._taken()) else "library")
        if name in OF_PROCESSES or name == "gpu.count":
            return self._of_processes(name)
        if name.startswith(("gpu.", "host.")):
            return self._of_machine(name)
        return self._of_the_rest(name)

    def _of_the_rest(self, name: str) -> Ground:
        guessed = self._model is not None and bool(self._model.guessed_from)
        if name.startswith("model.") and guessed and name != "model.name":
            return Ground("assumed")
        if name in self._assumed:
            return Ground("assumed")
        fact = self._types.get(name)
        if fact is not None and fact.moved and name not in self._unit.settings:
            return Ground(self._of_default(fact.moved))
        return NOT_SAID

    def _of_default(self, moved: tuple[MovedDefault, ...]) -> Origin:
        """A default that moved is as certain as the releases of the libraries that it moved in."""
        origins: list[Origin] = []
        for library, below, _ in moved:
            release = self._release(library)
            if release is None or not release.specifier:
                origins.append("assumed")
            elif release.exact is None:
                sides = {kind >= below for kind in (below, just_below(below), *release.edges()) if release.allows(kind)}
                origins.append("library" if len(sides) == 1 else "ranged")
        return max(origins, key=lambda origin: CERTAINTIES.index(certainty_of(origin)), default="library")

    def _of_release(self, library: str) -> Ground:
        release = self._release(library)
        if release is None:
            return Ground("assumed")
        return Ground(release.origin, release.place.text() if release.place else "")

    def _of_processes(self, name: str) -> Ground:
        if PROCESSES in self._assumed:
            return Ground("assumed")
        if PROCESSES in self._unit.settings:
            return Ground("written")
        if name == "gpu.count" and self._machine.gpu_source == "named" and not self._counted:
            return Ground("assumed")
        return Ground("given" if self._counted else "library")

    def _of_machine(self, name: str) -> Ground:
        sources = {"gpu": self._machine.gpu_source, "host": self._machine.host_memory_source}
        source = self._machine.cpu_source if name == "host.cpus" else sources[name.partition(".")[0]]
        option = {"gpu": "--gpu", "host": "--cpus" if name == "host.cpus" else "--host-memory"}[name.partition(".")[0]]
        return Ground("given", option) if source == "named" else Ground("detected")


def as_severe(severity: Severity, certainty: Certainty, because: tuple[Because, ...]) -> Severity:
    """The severity that a finding of this certainty may have: a likely one warns at most; of an assumed one only what
    a prediction says warns, the rest is a note.
    """
    if certainty == "certain" or severity == "info":
        return severity
    predicted = any(each.name.startswith(PREDICTED) or each.name in OF_PROCESSES for each in because)
    return "warning" if certainty == "likely" or predicted else "info"


OF_HOST = ("memory.host.", "fit.workers")  # predicted facts in which the data loader has a part


def concerning(names: tuple[str, ...], assumed: tuple[Assumption, ...], unit: Unit) -> tuple[Assumption, ...]:
    """The assumptions that predicted facts of these names can rest on."""
    inside = all(name.startswith(OF_SERVER_INSIDE) for name in names)
    if inside:
        return tuple(each for each in assumed if each.name in STARTS_INSIDE)
    if any(name.startswith(OF_HOST) for name in names):
        return assumed
    of_gpu = tuple(each for each in assumed if each.reason != "host_alone")
    return _of_training(unit, of_gpu) if all(name.startswith(OF_TRAINING) for name in names) else of_gpu
