"""Every fact of the vocabulary, for one unit on one machine: settings, model, machine, prediction, what would fit."""

from collections.abc import Callable, Mapping

from kb.advice.facts.grounds import Grounds
from kb.advice.facts.memory_facts import PredictedFacts, memory_fact
from kb.advice.facts.run_facts import (
    AdapterFacts,
    DistributedFacts,
    RunFacts,
    eval_generations,
    hidden_behind,
    is_calls,
    says_torch_dtype,
    stage_in_name,
    unknown_training_keys,
)
from kb.advice.run.no_prediction import Note, keeps_to_cpu
from kb.advice.run.row_lengths import longest_input
from kb.advice.run.run_kind import checkpoint_dtype
from kb.core.document import KIND_OPEN, Unit, said_effective_batch
from kb.core.expression import Unknown, is_unknown
from kb.core.facts import Facts, FactType, coerce, default_of
from kb.core.hardware import DetectedGpu, Machine
from kb.core.lint import Release
from kb.core.model import Model, ModelIdentity
from kb.core.record import NamedTuple
from kb.core.release import Source, exact_release
from kb.core.setup import Assumption, TrainingSetup
from kb.core.typed import Any
from kb.memory.process import usable_on

SAID_OF_RUNS = ("run.adapter", "run.quantized", "run.own_loop", "run.gradients_kept", "run.graphs_summed")
SERVERS = ("vllm", "sglang", "tgi", "llama-server")  # dialects of what starts an inference server
RENTED = "serving.rents_gpu"  # the GPU that a program rents is not the one that the user names
OF_SETTINGS = (
    "training.", "data.", "tokenizer.", "generation.", "inference.", "lora.", "quantization.", "deepspeed.", "launch.",
    "script.", "checkpoint.", "accelerate.", "imports.", "trl.", "serving.",
)  # fmt: skip
# What is known of any model whose config.json can be read: a fact, and the field of its identity.
OF_IDENTITY = {
    "model.model_type": "model_type",
    "model.family": "model_type",
    "model.is_encoder_decoder": "is_encoder_decoder",
    "model.encoder_decoder": "is_encoder_decoder",
    "model.vocabulary_size": "vocabulary_size",
    "model.vocab_size": "vocabulary_size",
}


def release_of_server(unit: Unit, said: Release) -> Release:
    """The releases where a server runs: in a container its own is that of the image, which may name none."""
    image = unit.settings.get("serving.image_release")
    if image is None:
        return said
    own = None
    if isinstance(image.value, str):
        place = Source(unit.path, image.span.line) if image.span else None
        own = exact_release(unit.dialect or "", image.value, "pinned", place)
    return lambda library: own if library == unit.dialect else said(library)


class Known(NamedTuple):
    """What holds for all units of a dialect. ``given`` is what the project says of itself (``kb.toml``): a config's own
    setting wins over it, a library's default does not, and of what no config can say it is the only word.
    ``installed`` is None where nobody knows. ``engines`` are the rows of inference servers; ``packed`` finds the model
    that its own owner packs under a name, that model's name, and how."""

    constants: Mapping[str, float]
    types: Mapping[str, FactType]
    given: Mapping[str, Any]
    installed: Callable[[str], bool | None]
    engines: Callable[[], Mapping[str, Any]]
    packed: Callable[[str], tuple[Model | None, str, str | None]]


_TAKEN = ("unit", "model", "identity", "predicted", "known", "release", "said", "note")  # by UnitFacts


class UnitFacts:
    """The providers behind a unit's :class:`Facts`; each is a method, called when a rule first asks."""

    def __init__(
        self,
        *,
        unit: Unit,
        model: Model | None,
        identity: ModelIdentity | None = None,
        predicted: PredictedFacts,
        known: Known,
        release: Release,
        said: Release | None = None,
        note: Note | None = None,
    ) -> None:
        self.unit = unit
        self.setup: TrainingSetup = predicted.setup
        self.machine: Machine = predicted.machine
        self.model = model
        self.identity = identity
        self.predicted = predicted
        self.known = known
        self.types = known.types
        self.given = known.given
        self.release = release
        self.said = said or release  # before names narrow it
        self._others: dict[TrainingSetup, UnitFacts] = {}
        self._facts: Facts | None = None
        self.note = note

    @property
    def assumed(self) -> tuple[Assumption, ...]:
        """What the prediction took for granted, the setup's own assumptions included."""
        return self.predicted.report.assumed if self.predicted.report else self.setup.assumed

    def versions(self, library: str, *bounds: tuple[int, ...]) -> tuple[int, ...] | None:
        """A library's release; of a range, one that stands for it where it does not reach over one of the bounds."""
        return known.within(*bounds) if (known := self.release(library)) else None

    def supposing(self, setup: TrainingSetup) -> "UnitFacts":
        """The same unit, to ask what would turn were its setup another; made once for each."""
        if setup not in self._others:
            self._others[setup] = self._with(predicted=self.predicted.supposing(setup))
        return self._others[setup]

    def as_said(self) -> "UnitFacts":
        """The same unit with the releases that the project says, whatever its names tell."""
        return self._with(release=self.said)

    def _with(self, **changes: Any) -> "UnitFacts":
        return UnitFacts(**{name: getattr(self, name) for name in _TAKEN} | changes)

    def facts(self, type_names: Mapping[str, str]) -> Facts:
        """The facts by name, each computed once."""
        if self._facts is None:
            self._facts = self._made(type_names)
        return self._facts

    def _made(self, type_names: Mapping[str, str]) -> Facts:
        given: dict[str, Callable[[str], Any]] = {
            name: self.given.get for name in self.given if name in self.types and not self.types[name].setting
        }
        if "model.encoder_decoder" in given:  # two names of one fact
            given["model.is_encoder_decoder"] = lambda _: self.given["model.encoder_decoder"]
        unit = self.unit
        self._distributed = DistributedFacts(unit, self._typed, self.model, self.versions)
        return Facts(
            type_names,
            {
                **dict.fromkeys(OF_SETTINGS, self._setting),
                "written.": self._written,
                "model.": self._model,
                "model.checkpoint_dtype": lambda _: checkpoint_dtype(self.model),
                "config.dialect": lambda _: self.unit.dialect,
                "config.is_calls": lambda _: is_calls(unit),
                "config.says_torch_dtype": lambda _: says_torch_dtype(unit),
                "method": lambda _: self._method(),
                **dict.fromkeys(SAID_OF_RUNS, self._setting),
                "run.on_cpu": lambda _: keeps_to_cpu(unit),
                "run.not_modelled": lambda _: ", ".join(self.setup.unmodelled) or None,
                "batch.effective": lambda _: self.setup.effective_batch_size if self.setup.batch_known else None,
                "batch.said": lambda _: said_effective_batch(self.unit),
                "gpu.": self._gpu,
                "host.": self._host,
                "memory.": self._memory,
                "memory.evaluate.ten_steps": lambda _: self.predicted.ten_steps(),
                "fit.": self.predicted.fit,
                "saving.embedding_in_8bit": lambda _: self._embedding_in_8bit(),
                "saving.": self.predicted.saving,
                "versions.": lambda name: self.versions(name.partition(".")[2]),
                "installed.": lambda name: self.known.installed(name.partition(".")[2]),
                "training.unknown_keys": lambda _: unknown_training_keys(unit, "training"),
                "training.unknown_accelerator_keys": lambda _: unknown_training_keys(
                    unit, "training.accelerator_config"
                ),
                "trl.eval_generations": lambda _: eval_generations(self._typed),
                "launch.launcher": lambda _: unit.launcher,
                **self._serving(),
                **self._distributed.providers(),
                **RunFacts(unit, self.setup, self.types, self._setting).providers(),
                **AdapterFacts(unit, self.setup, self.model, self.versions).providers(),
                **given,
            },
            Grounds(
                unit=unit,
                setup=self.setup,
                model=self.model,
                machine=self.machine,
                types=self.types,
                release=self.release,
                given=self.given,
                counted=self.machine.counted_gpus is not None,
                taken=lambda: self.assumed,
            ).of,
        )

    def _serving(self) -> dict[str, Callable[[str], Any]]:
        """The computed facts of a server, or of the one inside a training process; of any other unit none is known."""
        starts, post = self.unit.dialect in SERVERS, self.setup.post
        if not starts and (post is None or post.colocated is None):
            return {}
        from kb.advice.facts.serving_facts import server_facts  # few files start a server

        return server_facts(
            self.unit,
            self._setting,
            None if starts else self.setup,
            self.model,
            self.machine.smallest_gpu,
            free=self.machine.gpu_source != "named",
            release_of=self.versions,
            engines=self.known.engines,
            packed=self.known.packed,
            constants=self.known.constants,
        )

    def _setting(self, name: str) -> Any:
        setting = self.unit.settings.get(name)
        if setting is not None and setting.value is not None:
            value = setting.value
            if isinstance(value, bool) and self.types[name].type == "text":  # `fsdp: false`: there is none
                return "true" if value else ""
            return value
        if name == "lora.enabled" and name in self.setup.unresolved:
            return Unknown(frozenset(("run.adapter",)), KIND_OPEN)
        if name in self.unit.left_open:  # of a DeepSpeed file alone it is not known what fills it in
            return None if self.unit.dialect == "deepspeed" else self._distributed.auto(name)
        hidden = hidden_behind(self.unit, name)
        if hidden is not None:
            stage = stage_in_name(self.unit) if name == "deepspeed.zero_stage" else None
            return Unknown(frozenset((hidden,)), "the file that it names was not read") if stage is None else stage
        return self.given[name] if name in self.given else default_of(self.types[name], self.versions)

    def _typed(self, name: str) -> Any:
        """A setting as its own type; what is of another type is unknown."""
        value = self._setting(name)
        return value if value is None or is_unknown(value) else coerce(value, self.types[name].type, name)

    def _written(self, name: str) -> Any:
        name = name.partition(".")[2]
        hidden = None if name in self.unit.settings else hidden_behind(self.unit, name)
        if hidden is not None:
            return Unknown(frozenset((hidden,)), "the file that it names was not read")
        return name in self.unit.settings

    def _model(self, name: str) -> Any:
        if name in self.unit.settings or self.types[name].setting:
            return self._setting(name)
        identity = self.identity
        if identity is not None and self.types[name].model_types:
            return identity.model_type in self.types[name].model_types
        if identity is not None and name in OF_IDENTITY:
            return getattr(identity, OF_IDENTITY[name])
        if self.model is None:
            return Unknown(frozenset(("model.name",)), "model not known") if self.setup.model_name is None else None
        architecture = self.model.architecture
        values: dict[str, Any] = {
            "model.id": self.model.id,
            "model.parameters": self.model.parameters,
            "model.max_positions": longest_input(self.model),
            "model.gated": architecture.gated,
            "model.uneven_heads": architecture.d_model % architecture.num_heads != 0,
        }
        return values[name]

    def _method(self) -> Any:
        unknown = "lora.enabled" in self.setup.unresolved  # an adapter that is no LoRA, perhaps
        return Unknown(frozenset(("lora.enabled",))) if unknown else self.setup.method

    def _embedding_in_8bit(self) -> int | None:
        """Bytes between two states of four bytes and two of one, for each parameter of the token embedding; None where
        GPUs share the states, or may."""
        setup, shape = self.setup, None if self.model is None else self.model.architecture
        shared = setup.zero_stage or setup.fsdp or "launch.num_processes" in setup.unresolved
        return None if shape is None or shared else 2 * 3 * shape.vocab_size * shape.d_model

    def _gpu(self, name: str) -> Any:
        gpu = self.machine.smallest_gpu
        if gpu is None:
            return None
        shares = self.known.constants
        values: dict[str, Callable[[DetectedGpu], Any]] = {
            "gpu.id": lambda gpu: gpu.gpu and gpu.gpu.id,
            "gpu.name": lambda gpu: gpu.name,
            "gpu.count": lambda _: len(self.machine.gpus),
            "gpu.memory_total": lambda gpu: gpu.memory_total,
            "gpu.memory_limit": lambda _: self.machine.gpu_limit_bytes,
            "gpu.memory_usable": lambda _: usable_on(self.machine, self.known.constants),
            "gpu.memory_safe_to_generate": lambda gpu: round(gpu.memory_total * shares["generation_safe_share"]),
            "gpu.memory_danger_to_generate": lambda gpu: round(gpu.memory_total * shares["generation_danger_share"]),
            "gpu.memory_free": lambda gpu: gpu.memory_free,
            "gpu.compute_capability": lambda gpu: gpu.compute_capability,
            "gpu.native_bf16": lambda gpu: gpu.native_bf16,
            "gpu.supports_tf32": lambda gpu: gpu.native_bf16,  # both came with Ampere, 8.0
            "gpu.other_processes": lambda gpu: None if self.machine.gpu_source == "named" else len(gpu.processes),
        }
        return values[name](gpu)

    def _host(self, name: str) -> Any:
        values = {
            "host.memory_limit": self.machine.host_memory_bytes,
            "host.cpus": self.machine.cpus,
            "host.shm": self.machine.shm_bytes,
        }
        return values[name]

    def _memory(self, name: str) -> Any:
        if name in ("memory.status", "memory.train.status") and self.predicted.surely_over:
            return "oom"
        report = self.predicted.report_on(name.split(".")[1])
        if name == "memory.surely_fits":
            return report is not None and report.verdict.status == "fits"
        if report is None:
            needs = frozenset(self.setup.unresolved) if self.model else frozenset(("model.name",))
            return Unknown(needs, "no prediction without a known model and usable settings")
        return memory_fact(report, name)
