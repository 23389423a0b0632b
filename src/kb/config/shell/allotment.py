"""What a script says of the machines that it is given: by ``#SBATCH`` lines, or the GPUs that a job asks for."""

import re

from kb.core.record import NamedTuple

_NUMBER = re.compile(r"[0-9]{1,6}\Z")
_DIRECTIVE = re.compile(r"^[ \t]*#SBATCH[ \t]+(.*)$", re.M)
_OPTION = re.compile(r"(?<!\S)(--[a-z-]+|-[nNG])[= \t]*([^\s-]\S*)?")
_GPUS_OF_A_JOB = re.compile(r"nvidia\.com/gpu[\"']?:[ \t]*[\"']?(\d{1,3})\b|(?<![\w-])--gpus[= \t]+[\"']?(\d{1,3})\b")
COUNTED = ("nodes", "tasks", "tasks_per_node", "gpus")
_SHORT = {"-n": "tasks", "-N": "nodes", "-G": "gpus"}


class Allotment(NamedTuple):
    """What a script says of the machines that it is given: by ``#SBATCH`` lines, or the GPUs that a job asks for.

    ``gpus`` are those of one machine. ``asked``: the script has such lines, so that Slurm's defaults hold of the rest.
    """

    nodes: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    gpus: int | None = None
    asked: bool = False

    @property
    def steps(self) -> int | None:
        """Tasks that ``srun`` starts where it is not told otherwise."""
        if self.tasks is not None:
            return self.tasks
        if self.tasks_per_node is not None:
            return None if self.asked and self.nodes is None else (self.nodes or 1) * self.tasks_per_node
        return self.nodes or 1 if self.asked else None

    def variables(self) -> dict[str, str]:
        """What Slurm tells the script in its environment, as far as its lines say."""
        known = {
            "SLURM_NNODES": self.nodes,
            "SLURM_JOB_NUM_NODES": self.nodes,
            "SLURM_NTASKS": self.steps,
            "SLURM_NTASKS_PER_NODE": self.tasks_per_node,
            "SLURM_GPUS_ON_NODE": self.gpus,
            "SLURM_GPUS_PER_NODE": self.gpus,
        }
        return {name: str(value) for name, value in known.items() if value is not None} if self.asked else {}


def read_allotment(text: str) -> Allotment:
    """What the lines of a script say of the machines that it is given."""
    found: dict[str, int | None] = {}
    lines = _DIRECTIVE.findall(text) if "#SBATCH" in text else []
    for line in lines:
        found |= slurm_options(line)
    if not lines:
        job = _GPUS_OF_A_JOB.search(text) if "gpu" in text else None
        return Allotment(gpus=int(job[1] or job[2])) if job else Allotment()
    if "gpus_of_job" in found and "gpus" not in found:
        whole, nodes = found["gpus_of_job"], found.get("nodes", 1)
        found["gpus"] = whole // nodes if whole and nodes else None
    return Allotment(**{name: found.get(name) for name in COUNTED}, asked=True)


def slurm_options(line: str) -> dict[str, int | None]:
    """The numbers of nodes, tasks and GPUs among options of ``sbatch`` or ``srun``; None for one that is no number."""
    found: dict[str, int | None] = {}
    for option, value in _OPTION.findall(line.partition(" #")[0]):
        name = _SHORT.get(option, option.lstrip("-").replace("-", "_").replace("ntasks", "tasks"))
        if name in ("nodes", "tasks", "tasks_per_node"):
            found[name] = int(value) if _NUMBER.match(value) else None
        elif name in ("gpus_per_node", "gpus", "gres"):
            last = value.rpartition(":")[2] if ":" in value else "1" if name == "gres" else value
            if name != "gres" or value.startswith("gpu"):
                found["gpus_of_job" if name == "gpus" else "gpus"] = int(last) if _NUMBER.match(last) else None
    return found
