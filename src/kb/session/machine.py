"""The machine that a run is to happen on: as the command line or the project names it, or as it is found."""

from kb.advice.question import NamedMachine
from kb.core.catalog import Catalog
from kb.core.hardware import Machine
from kb.core.text import UserError
from kb.machine.detect import detect
from kb.session.project import Project


def named_machine(catalog: Catalog, project: Project, named: NamedMachine) -> Machine:
    """The machine that is named, on the command line or in the project's settings, or that is found.

    Raises:
        UserError: a name or a value that cannot be used.
    """
    gpu = named.gpu or project.gpu
    gpu_count = named.gpus if named.gpus is not None else project.gpus
    # who names a GPU plans for another machine than this one: of that machine nothing else is known
    unsaid = "none" if gpu not in (None, "auto", "none") else "auto"
    memory, cpus = named.host_memory or project.host_memory, named.cpus or project.cpus
    try:
        machine = detect(catalog.gpus, gpu=gpu, gpu_count=gpu_count, host_memory=memory or unsaid, cpus=cpus or unsaid)
    except UserError as error:
        about = next((name for keys, name in _FAULTS if error.key.startswith(keys)), None)
        if about is None or getattr(named, about) is not None:
            raise
        if "name" in error.values and about == "host_memory":
            error.values["name"] = about  # as the file calls it
        raise project.answers_for(error) from None
    if not machine.gpus and unsaid == "auto":
        machine = _elsewhere(machine, memory, cpus)
    return machine


# Which argument a fault of the machine's arguments is about.
_FAULTS = (
    (("machine.unknown_gpu",), "gpu"),
    (("machine.bad_gpu_count",), "gpus"),
    (("size.",), "host_memory"),
    (("machine.bad_cpus",), "cpus"),
)


def _elsewhere(machine: Machine, host_memory: str | None, cpus: str | None) -> Machine:
    """A machine without a GPU is not where the run is to happen: what of it nobody named says nothing of the run."""
    if host_memory is None:
        machine = machine._replace(
            host_memory_bytes=None, host_memory_used_bytes=None, host_memory_source="unknown", shm_bytes=None
        )
    return machine if cpus is not None else machine._replace(cpus=None, cpu_source="unknown")
