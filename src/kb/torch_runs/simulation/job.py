"""What a simulation is asked: everything its subprocess needs, as JSON, checked before anything is started; and
why one gave no answer: each fault is worded in i18n, and leaves kb's own prediction to answer instead.
"""

import json
from collections.abc import Mapping
from typing import Any

from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.core.setup_json import setup_from
from kb.core.text import UserError

COUNTED = (
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "max_source_length",
    "max_target_length",
    "generation_max_length",
    "generation_num_beams",
    "inference_num_beams",
    "inference_max_length",
    "lora_r",
)
LARGEST_COUNT = 1 << 24  # tokens, samples or beams: no run has more, and their products stay below 2**63
MOST_TOKENS = 1 << 34  # in one batch: beyond any GPU, and int64 still holds its logits in bytes
MOST_LAYERS = 4096  # each is built and traced


class Job(NamedTuple):
    """One question to the simulator.

    ``config`` is the model's ``config.json``. ``allocator_limit_bytes`` is where the GPU's memory ends for PyTorch's
    allocator, which gives cached blocks back before it fails; None is no end. ``code_folder`` holds the model's own
    code, which runs only where it is named.
    """

    setup: TrainingSetup
    config: Mapping[str, Any]
    compute_capability: tuple[int, int]
    allocator_limit_bytes: int | None = None
    expandable_segments: bool = False
    sampling: bool = False  # tokens are drawn, not taken greedily or by beams alone
    static_cache: bool = False
    code_folder: str | None = None
    snapshot_path: str | None = None


def check_job(job: Job) -> None:
    """Refuse what no run can have, before torch is asked to build it.

    Raises:
        BadJobError: a batch, length or count below 1 or absurdly large.
        BadModelError: config.json asks for more layers than can be traced.
    """
    for name in COUNTED:
        _counted(name, getattr(job.setup, name))
    if job.setup.inference_batch_size is not None:
        _counted("inference_batch_size", job.setup.inference_batch_size)
    setup = job.setup
    length = max(setup.max_source_length, setup.max_target_length, setup.generation_max_length)
    batch = max(setup.per_device_train_batch_size, setup.per_device_eval_batch_size * setup.generation_num_beams)
    if batch * length > MOST_TOKENS:
        raise BadJobError(name="batch × length", value=f"{batch} × {length}")
    for name, value in job.config.items():
        if name.endswith(("layers", "n_layer")) and isinstance(value, int) and value > MOST_LAYERS:
            raise BadModelError(reason=f"config.json: {name} {value} > {MOST_LAYERS}")


def _counted(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_COUNT:
        raise BadJobError(name=name, value=value)


def job_text(job: Job) -> str:
    """The job as JSON. What the setup only reports (its assumptions) stays behind."""
    setup = {
        name: value
        for name, value in job.setup._asdict().items()
        if name not in ("assumed", "unmodelled", "unresolved")
    }
    return json.dumps({**job._asdict(), "setup": setup})


def read_job(text: str) -> Job:
    """The job that :func:`job_text` wrote."""
    data = json.loads(text)
    return Job(**{**data, "setup": setup_from(data["setup"]), "compute_capability": tuple(data["compute_capability"])})


class SimulationError(UserError):
    """The base of them all. ``fault`` is the sentence's key without its prefix, and the name that crosses processes."""

    fault = "crashed"

    def __init__(self, **values: object) -> None:
        super().__init__(f"simulation.{self.fault}", **values)


class MissingPackageError(SimulationError):
    """A library that the simulation runs is not installed: ``package``."""

    fault = "missing_package"


class OldReleaseError(SimulationError):
    """A library is older than the simulation can run: ``package``, ``found``, ``first``."""

    fault = "old_release"


class NoCompilerError(SimulationError):
    """A CPU build of torch needs a small shim compiled, and it could not be: ``reason``."""

    fault = "no_compiler"


class TimedOutError(SimulationError):
    """The time limit passed: ``seconds``."""

    fault = "timed_out"


class MemoryLimitError(SimulationError):
    """The subprocess took more host memory than it may: ``limit_bytes``."""

    fault = "memory_limit"


class KilledError(SimulationError):
    """Somebody else ended the subprocess: ``signal``."""

    fault = "killed"


class CrashedError(SimulationError):
    """An error of the libraries, or of ours: ``reason``."""

    fault = "crashed"


class BadModelError(SimulationError):
    """transformers builds no model from the config.json: ``reason``."""

    fault = "bad_model"


class NoAdaptersError(SimulationError):
    """PEFT puts no adapter on the model: ``reason``."""

    fault = "no_adapters"


class RemoteCodeError(SimulationError):
    """The model is code of its own, which nobody allowed to run: ``model_type``."""

    fault = "remote_code"


class BeyondPositionsError(SimulationError):
    """More tokens than the model has learned positions for: ``length``, ``positions``."""

    fault = "beyond_positions"


class BadJobError(SimulationError):
    """A setting that no run can have: ``name``, ``value``."""

    fault = "bad_job"


BY_NAME = {kind.fault: kind for kind in SimulationError.__subclasses__()}
