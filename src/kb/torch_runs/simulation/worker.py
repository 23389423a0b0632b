"""The subprocess of a simulation: reads a job on standard input, runs it, and writes the answer to the file it is told.

Started by :mod:`kb.torch_runs.simulation.entry` as ``python -m kb.torch_runs.simulation.worker FILE``.
"""

import json
import os
import sys
import traceback
from typing import Any

from kb.torch_runs.simulation.job import (
    CrashedError,
    MemoryLimitError,
    MissingPackageError,
    SimulationError,
    check_job,
    read_job,
)

MEMORY_VARIABLE = "KB_SIMULATION_MEMORY"
BACKSTOP_BYTES = 4 << 30  # above the watched limit: what no watch between two looks would catch


def main(path: str) -> int:
    """Write the answer, or the fault that stands in its place, to ``path``."""
    content = answer(sys.stdin.read())
    with open(f"{path}.part", "w", encoding="utf-8") as stream:
        json.dump(content, stream)
    os.replace(f"{path}.part", path)
    return 0


def answer(request: str) -> dict[str, Any]:
    """What a job (:func:`kb.torch_runs.simulation.job.job_text`) came to, or its fault, as plain data."""
    limit = _limit_memory()
    try:
        job = read_job(request)
        check_job(job)
        from kb.torch_runs.simulation.simulator import outcome_of  # a job that is refused needs no torch

        return outcome_of(job)
    except SimulationError as error:
        return _fault(error)
    except MemoryError:
        return _fault(MemoryLimitError(limit_bytes=limit))
    except ModuleNotFoundError as error:
        return _fault(MissingPackageError(package=error.name or str(error)))
    except Exception as error:
        traceback.print_exc()
        return _fault(
            CrashedError(
                reason=f"{type(error).__name__}: {str(error).strip().splitlines()[0][:400]}"
                if str(error).strip()
                else type(error).__name__
            )
        )


def _fault(error: SimulationError) -> dict[str, Any]:
    return {"fault": error.fault, "values": error.values}


def _limit_memory() -> int:
    """A hard end for sudden growth; the runner watches the exact limit from outside."""
    limit = int(os.environ.get(MEMORY_VARIABLE, "0"))
    if limit:
        try:
            import resource
        except ImportError:  # Windows
            return limit
        resource.setrlimit(resource.RLIMIT_DATA, (limit + BACKSTOP_BYTES, limit + BACKSTOP_BYTES))
    return limit


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
