"""What is asked: which run, on which machine. One record for every command, the editor, the API and the playground."""

from collections.abc import Mapping

from kb.core.record import NamedTuple
from kb.core.setup import PostKind
from kb.core.typed import Any, Literal, get_args

Task = Literal["train", "evaluate", "generate"]
TASKS: tuple[Task, ...] = get_args(Task)
# usual: adapters go on weights in the half type that is computed in; stored: in the checkpoint's own; half: all weights
# in the half type, those that are trained too; trl: as usual, and 4-bit weights are left as they were loaded.
Loads = Literal["usual", "stored", "half", "trl"]
METHODS = ("full", "lora", "qlora", "dora")
PRECISIONS = ("fp32", "fp16", "bf16", "pure-fp16", "pure-bf16")
# As the command line names them → as the library does.
ATTENTIONS: Mapping[str, str] = {"eager": "eager", "sdpa": "sdpa", "flash": "flash_attention_2"}


class RunSettings(NamedTuple):
    """What is said of the run; None leaves it to the config, or to the library. Lengths in tokens."""

    model: str | None = None
    task: Task | None = None
    method: str | None = None
    precision: str | None = None
    optimizer: str | None = None  # the Trainer's name
    batch: int | None = None
    source_length: int | None = None
    target_length: int | None = None
    accumulation: int | None = None
    gradient_checkpointing: bool = False
    reentrant: bool = False
    attention: str | None = None
    lora_rank: int | None = None
    lora_targets: tuple[str, ...] | None = None
    double_quant: bool = False
    eval_batch: int | None = None
    beams: int | None = None
    generation_length: int | None = None
    zero_stage: int | None = None
    fsdp: bool = False


class NamedMachine(NamedTuple):
    """What is said of the machine, as written; None leaves it to the project's settings, then to detection."""

    gpu: str | None = None
    gpus: int | None = None
    host_memory: str | None = None
    cpus: str | None = None


class Question(NamedTuple):
    """A run and a machine. None and empty leave it to the config, the project's settings, detection or the library.

    ``config`` is a path, ``-`` for standard input; ``section`` and ``dialect`` say which part of it and how it is read.
    ``versions`` are of libraries where the run happens; ``effective_batch`` is in samples for each update.
    """

    run: RunSettings = RunSettings()
    machine: NamedMachine = NamedMachine()
    config: str | None = None
    section: str | None = None
    dialect: str | None = None
    model_config: str | None = None
    versions: Mapping[str, str] = {}
    effective_batch: int | None = None
    evaluate: bool = True  # of a recommended run: whether it evaluates beside training
    loads: Loads = "usual"  # of a recommended run: how what trains it loads weights
    trainer: PostKind | None = None  # of a recommended run: which of TRL's trainers; None is plain training

    @classmethod
    def of(cls, **values: Any) -> "Question":
        """The question that fields of it, of its run and of its machine make, each by its own name.

        Raises:
            TypeError: there is no such field.
        """
        run = {name: values.pop(name) for name in RunSettings._fields if name in values}
        machine = {name: values.pop(name) for name in NamedMachine._fields if name in values}
        return cls(RunSettings(**run), NamedMachine(**machine), **values)
