"""Why a simulation gave no answer; each is worded in i18n, and leaves kb's own prediction to answer instead."""

from kb.core.text import UserError


class SimulationError(UserError):
    """The base of them all. ``fault`` is the sentence's key without its prefix, and the name that crosses processes."""

    fault = "crashed"

    def __init__(self, **values: object) -> None:
        super().__init__(f"simulation.{self.fault}", **values)


class MissingPackageError(SimulationError):
    """A library that the simulation runs is not installed: ``package``."""

    fault = "missing_package"


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


class RemoteCodeError(SimulationError):
    """The model is code of its own, which nobody allowed to run: ``model_type``."""

    fault = "remote_code"


class BeyondPositionsError(SimulationError):
    """More tokens than the model has learned positions for: ``length``, ``positions``."""

    fault = "beyond_positions"


class BadJobError(SimulationError):
    """A setting that no run can have: ``name``, ``value``."""

    fault = "bad_job"


BY_NAME: dict[str, type[SimulationError]] = {
    kind.fault: kind
    for kind in (
        MissingPackageError,
        NoCompilerError,
        TimedOutError,
        MemoryLimitError,
        KilledError,
        CrashedError,
        BadModelError,
        RemoteCodeError,
        BeyondPositionsError,
        BadJobError,
    )
}
