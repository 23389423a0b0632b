"""How many processes a command starts, and on how many machines: from its launcher, its wrapper and its script."""

import math
import re
from collections.abc import Container, Mapping, Sequence
from itertools import takewhile

from kb.config.shell.arguments import GPUS_OF_TASK, Argument
from kb.config.shell.flags import Flag, last_flags
from kb.config.shell.serving import VLLM_VARIABLES
from kb.core.record import NamedTuple

_NUMBER = re.compile(r"[0-9]{1,6}\Z")
CHOSEN = "CUDA_VISIBLE_DEVICES"
_GPU = re.compile(r"[0-9]{1,3}\Z|(?:GPU|MIG)-")  # how CUDA_VISIBLE_DEVICES names one
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
    def gpus_at_most(self) -> int | None:
        """GPUs that a job's script has, where it has one machine."""
        one = self.nodes == 1 or (self.nodes is None and self.tasks in (None, 1))
        return self.gpus if self.asked and one else None

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
    lines = _DIRECTIVE.findall(text) if "#SBATCH" in text else []
    if any(line.startswith(("hetjob", "packjob")) for line in lines):  # lines of several jobs
        return Allotment(asked=True)
    if not lines:
        job = _GPUS_OF_A_JOB.search(text) if "gpu" in text else None
        return Allotment(gpus=int(job[1] or job[2])) if job else Allotment()
    return _allotted(lines)


def allotment_of_wrap(command: str) -> Allotment:
    """What ``sbatch … --wrap=…`` asks for, before the command that it wraps."""
    return _allotted([command.partition("sbatch")[2].partition("--wrap")[0]])


def _allotted(lines: list[str]) -> Allotment:
    found: dict[str, int | None] = {}
    for line in lines:
        found |= slurm_options(line)
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
            if name != "gres" or (value.startswith("gpu") and "," not in value):
                found["gpus_of_job" if name == "gpus" else "gpus"] = int(last) if _NUMBER.match(last) else None
    return found


# What accelerate reads of its environment where nothing else says it: DeepSpeed's and FSDP's switch, and with it what
# they take (accelerate 1.15, utils/dataclasses.py; the Trainer makes its DeepSpeedPlugin by the switch, too).
OF_FSDP = ("version", "auto_wrap_policy", "sharding_strategy", "reshard_after_forward", "offload_params")
IN_ENVIRONMENT = {
    "ACCELERATE_USE_DEEPSPEED": {
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": "deepspeed.zero_stage",
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "deepspeed.offload_optimizer.device",
        "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "deepspeed.offload_param.device",
        "ACCELERATE_DEEPSPEED_CONFIG_FILE": "deepspeed.config_file",
    },
    "ACCELERATE_USE_FSDP": {f"FSDP_{name.upper()}": f"accelerate.fsdp_{name}" for name in OF_FSDP},
}
ASKED = (  # what a command's environment may say
    CHOSEN, GPUS_OF_TASK, "NPROC_PER_NODE", "NNODES", "FORCE_TORCHRUN", *VLLM_VARIABLES,
    *IN_ENVIRONMENT, *(name for row in IN_ENVIRONMENT.values() for name in row),
)  # fmt: skip
EACH_GPU = ("gpu", "auto")  # of torchrun: one process for each GPU
# Flags of programs of one's own that say on how many GPUs they run.
_OWN_COUNTS = frozenset(("gpus", "num_gpus", "n_gpus", "n_gpu", "ngpus", "num_gpu", "devices", "world_size")) | {
    "num_nodes",
    "nnodes",
}


class Processes(NamedTuple):
    """``number`` is None where nobody says how many, or one starts for each GPU of one machine (``every``). ``flag`` is
    where it is said.
    """

    number: int | None
    machines: int | None = 1
    flag: Flag | None = None
    every: bool = False


def gpus_named(text: str | None) -> int | None:
    """GPUs of ``CUDA_VISIBLE_DEVICES``, where it is set to a list of some: a negative number ends it."""
    named = (text or "").split(",")
    words = takewhile(lambda word: not word.startswith("-"), filter(None, map(str.strip, named)))
    counted = [bool(_GPU.match(word)) for word in words]
    return len(counted) if counted and all(counted) else None


class Surroundings(NamedTuple):
    """What stands around a command. ``variables`` are those of its environment that the script sets, None unknown;
    ``fixed`` those of them that no one else can set otherwise: not ``${NAME:-default}``; ``elsewhere`` the word that
    activates an environment of Python other than the project's own.
    """

    allotment: Allotment = Allotment()
    variables: Mapping[str, str | None] = {}
    fixed: Container[str] = ()
    elsewhere: "Argument | None" = None

    @property
    def visible_gpus(self) -> int | None:
        return gpus_named(self.variables.get(CHOSEN))

    @property
    def fixed_gpus(self) -> int | None:
        """The same, where nothing but the script says it."""
        return self.visible_gpus if CHOSEN in self.fixed else None

    @property
    def hides_gpus(self) -> bool:
        """Whether the script leaves the command no GPU: ``CUDA_VISIBLE_DEVICES=``, or a negative number first."""
        value = self.variables.get(CHOSEN)
        return CHOSEN in self.fixed and value is not None and value.strip()[:1] in ("", "-")

    @property
    def gpus_at_most(self) -> int | None:
        """The fewest that the script or its job says, where its ranks lie on one machine."""
        of_task = self.number(GPUS_OF_TASK) if GPUS_OF_TASK in self.fixed else None
        said = (self.fixed_gpus, of_task, self.allotment.gpus_at_most)
        return min((each for each in said if each is not None), default=None)

    @property
    def gpus(self) -> int | None:
        """GPUs of one machine that the command sees."""
        return self.visible_gpus or self.allotment.gpus

    def number(self, name: str) -> int | None:
        value = self.variables.get(name)
        return int(value) if value is not None and _NUMBER.match(value) else None


NOTHING_AROUND = Surroundings()


def processes_of(
    launcher: str,
    own: Sequence[Flag],
    *,
    wrapper: Sequence[Argument] = (),
    script: Sequence[Flag] = (),
    around: Surroundings = NOTHING_AROUND,
) -> Processes | None:
    """The processes of a run; None where nothing says anything of them.

    Args:
        launcher: ``python``, ``torchrun``, ``accelerate`` or ``deepspeed``.
        own: the launcher's flags.
        wrapper: the words in front of it: ``srun -n 8``.
        script: the flags of the script.
    """
    last = last_flags(own)
    if launcher == "torchrun":
        return _torchrun(last, around)
    if launcher == "accelerate":
        return _accelerate(last, around)
    if launcher == "deepspeed":
        return _deepspeed(last, around)
    return _python(wrapper, last_flags(script), around)


def _on(machines: int | None, each: int | None, flag: Flag | None, *, every: bool) -> Processes:
    """So many on each of so many machines."""
    count = each * machines if each and machines else None
    return Processes(count, machines, flag, every and count is None and machines == 1)


def _torchrun(last: Mapping[str, Flag], around: Surroundings) -> Processes:
    """One process on each machine where it is not told how many."""
    flag, machines = last.get("nproc_per_node"), _machines(last.get("nnodes"))
    word = flag.values[0].text if flag is not None and flag.values else None
    each = 1 if flag is None else around.gpus if word in EACH_GPU else _number(flag)
    return _on(machines, each, flag, every=word in EACH_GPU)


def _accelerate(last: Mapping[str, Flag], around: Surroundings) -> Processes | None:
    """``--num_processes`` counts those of all machines; else its config file says, or there is one for each GPU."""
    flag, machines = last.get("num_processes"), _machines(last.get("num_machines"))
    if flag is not None:
        return Processes(_number(flag), machines, flag)
    if "cpu" in last:
        return Processes(1, machines, last["cpu"])
    if "config_file" in last:
        return None
    chosen = last.get("gpu_ids")
    ids = chosen.values[0].text if chosen is not None and chosen.values else None
    each = len(ids.split(",")) if ids and ids != "all" else around.gpus
    return _on(machines, each, None, every=True)


def _deepspeed(last: Mapping[str, Flag], around: Surroundings) -> Processes:
    """All GPUs of the machine, or of those in the host file, where it is not told which."""
    flag, machines = last.get("num_gpus"), _machines(last.get("num_nodes"))
    if "include" in last:
        return _included(last["include"])
    if "hostfile" in last or "exclude" in last:
        return Processes(None, None, last.get("hostfile"))
    each = around.gpus if flag is None else _number(flag)
    return _on(machines, each, flag, every=flag is None)


def _included(flag: Flag) -> Processes:
    """``localhost:0,1@worker-2:0``; a host without a list stands for all of its GPUs."""
    text = flag.values[0].text if flag.values else None
    hosts = text.split("@") if text else []
    slots = [host.partition(":")[2] for host in hosts]
    if not slots or not all(slots):
        return Processes(None, len(hosts) or None, flag)
    return Processes(sum(len(each.split(",")) for each in slots), len(hosts), flag)


def _python(wrapper: Sequence[Argument], script: Mapping[str, Flag], around: Surroundings) -> Processes | None:
    """One process, or as many as ``srun`` or ``mpirun`` starts; a program may start more by itself."""
    words = [each.text for each in wrapper]
    names = [(word or "").rpartition("/")[2] for word in words]
    if "srun" in names:
        return _srun(slurm_options(" ".join(word or "?" for word in words)), around.allotment)
    if "mpirun" in names or "mpiexec" in names:
        at = next((index for index, word in enumerate(words) if word in ("-n", "-np", "--np")), None)
        value = words[at + 1] if at is not None and at + 1 < len(words) else None
        return Processes(int(value) if value and _NUMBER.match(value) else None, None)
    own = next((script[name] for name in script if name in _OWN_COUNTS), None)
    if own is not None:
        return Processes(1, 1, own) if _number(own) == 1 else Processes(None, None, own)
    return Processes(None if (around.gpus or 1) > 1 else 1)


def _srun(told: Mapping[str, int | None], allotment: Allotment) -> Processes:
    """The tasks of a step: its own options, else those of the script's lines."""
    nodes = told.get("nodes", allotment.nodes)
    if None in told.values():
        return Processes(None, nodes)
    if "tasks" in told:
        return Processes(told["tasks"], nodes)
    if "tasks_per_node" in told or "nodes" in told:
        each = told.get("tasks_per_node", allotment.tasks_per_node) or 1
        return Processes(each * nodes if nodes else each if allotment.asked else None, nodes)
    return Processes(allotment.steps, nodes)


def tool_processes(
    name: str, flags: Sequence[Flag], around: Surroundings, how: str | tuple[str, ...] = "gpus"
) -> Processes | None:
    """The processes of a program with a config file: what its flags or its environment say; None where they do not.

    Args:
        how: ``environment`` starts one process where no variable says more, and spreads a model over the GPUs that it
            sees; ``settings`` leaves it to its settings; of several names, machines first, it is the product (old
            releases write a name of a group with _ in place of the dot).
    """
    last = last_flags(flags)
    if isinstance(how, tuple):
        return _product([last.get(each) or last.get(each.replace(".", "_")) for each in how])
    if how == "settings":
        return None
    flag = last.get("num_processes") or last.get("nproc_per_node")
    if name.startswith("tune"):
        return _torchrun(last, around) if "nproc_per_node" in last or "nnodes" in last else None
    if flag is not None:
        return Processes(_number(flag), 1, flag)
    if "NPROC_PER_NODE" in around.variables or "NNODES" in around.variables:  # LLaMA-Factory's own
        each = around.number("NPROC_PER_NODE") or around.visible_gpus
        machines = around.number("NNODES") if "NNODES" in around.variables else 1
        if how == "environment" and each and (around.visible_gpus or 0) >= 2 * each:
            return Processes(None)  # each process spreads its model over several GPUs
        return _on(machines, each, None, every=False)
    if how == "environment":
        return None if around.gpus is None else Processes(1 if around.gpus == 1 else None)
    if around.visible_gpus is not None or CHOSEN in around.variables:
        return Processes(around.visible_gpus)
    forced = around.variables.get("FORCE_TORCHRUN", "0") not in ("0", "false", "")
    return Processes(around.allotment.gpus) if forced or around.allotment.gpus else None


def one_device(words: Sequence[Argument]) -> Processes | None:
    """One process where a recipe's name says so: torchtune's ``lora_finetune_single_device``; None of others."""
    recipe = next((word for word in words if (word.text or "").endswith("_single_device")), None)
    return None if recipe is None else Processes(1, 1, Flag("recipe", recipe, (recipe,), dashes=""))


def _product(flags: Sequence[Flag | None]) -> Processes | None:
    """So many machines, with so many processes on each: where both are said."""
    said = [flag for flag in flags if flag is not None]
    if len(said) < len(flags):
        return None
    numbers = [_number(flag) for flag in said]
    known = [number for number in numbers if number is not None]
    return Processes(math.prod(known) if len(known) == len(said) else None, numbers[0], said[-1])


def _machines(flag: Flag | None) -> int | None:
    return 1 if flag is None else _number(flag)


def _number(flag: Flag | None) -> int | None:
    value = flag.values[0].text if flag is not None and flag.values else None
    return int(value) or None if value is not None and _NUMBER.match(value) else None
