"""The way in: a setup, a ``config.json`` and a GPU go in, a report comes out. The run is made in a process of its own,
within a time and a memory limit, and the ways in which it can end are told apart.

A process of its own because torch stays in memory once imported, the shim for a CPU build must be loaded before it, and
a library that crashes or swells must not take the caller with it.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from kb.core.hardware import Gpu
from kb.core.memory_report import PHASES, HostLedger, MemoryReport, Phase, PhaseName, Term, Verdict
from kb.core.record import NamedTuple
from kb.core.release import parse_version
from kb.core.setup import Assumption, TrainingSetup
from kb.core.units import GIB
from kb.memory.host import Loads, host_ledger
from kb.memory.process import Context, context_of, judged
from kb.memory.timeline import Point, Span, Timeline, TopTensor
from kb.torch_runs.simulation.job import (
    BY_NAME,
    CrashedError,
    Job,
    KilledError,
    MemoryLimitError,
    MissingPackageError,
    OldReleaseError,
    TimedOutError,
    check_job,
    job_text,
)

if TYPE_CHECKING:
    import subprocess

UNNAMED_CAPABILITY = (8, 0)  # no GPU is named: an Ampere card's kernels are taken


class Limits(NamedTuple):
    """What a simulation may take: wall-clock seconds, and bytes of host memory (resident)."""

    seconds: float = 600
    memory_bytes: int = 4 * GIB


class Simulated(NamedTuple):
    """A simulation's whole answer. ``subprocess_peak_bytes`` is the host memory that simulating took.

    ``tops`` are the largest kinds of tensor alive at each phase's peak. The timeline is that of training and its
    evaluation, or of inference where there is only that.
    """

    report: MemoryReport
    timeline: Timeline
    tops: Mapping[str, tuple[TopTensor, ...]]
    software: Mapping[str, str]
    seconds: float
    subprocess_peak_bytes: int | None


def report_of(
    content: Mapping[str, Any],
    context: Context,
    memory_bytes: int | None,
    host: HostLedger,
    assumed: tuple[Assumption, ...],
    constants: Mapping[str, float],
    *,
    quantized: bool,
) -> MemoryReport:
    """Phases in their order, with the verdict.

    A run that reserved more than the card has was traced again inside of it: ``ran_out`` says that it failed there.
    """
    found = content["phases"]
    band = constants["band_simulated"]
    upper = constants["band_simulated_quantized"] if quantized else band
    phases = tuple(_phase(name, found[name], context, band, upper) for name in PHASES if name in found)
    phases, verdict = judged(phases, memory_bytes, constants)
    if content["ran_out"]:
        verdict = Verdict("oom", verdict.phase, verdict.term)
    return MemoryReport("simulated", assumed, phases, host, verdict)


def _phase(name: PhaseName, found: Mapping[str, Any], context: Context, band: float, upper: float) -> Phase:
    """Low is what the tensors need, as the allocator gives cached blocks back before it fails; high what it holds.

    ``band`` is the error of allocated memory, ``upper`` by how much reserved memory may be too low.
    """
    return Phase(
        name=name,
        terms=tuple(Term(term, size) for term, size in found["terms"].items()),
        peak_allocated_bytes=found["allocated_bytes"],
        peak_reserved_bytes=found["reserved_bytes"],
        process_used_bytes=found["reserved_bytes"] + context.expected,
        low_bytes=round(found["allocated_bytes"] * (1 - band)) + context.low,
        high_bytes=round(found["reserved_bytes"] * (1 + upper)) + context.high,
        moment=found["moment"],
    )


def timeline_from(data: Any) -> Timeline:
    """The timeline as JSON gives it back."""
    points, spans, events = data
    made = (Point(event, allocated, reserved, tuple(roles)) for event, allocated, reserved, roles in points)
    return Timeline(tuple(made), tuple(Span(*span) for span in spans), events)


def tops_from(phases: Mapping[str, Any]) -> dict[str, tuple[TopTensor, ...]]:
    """The top tensors as JSON gives them back."""
    return {name: tuple(TopTensor(*top) for top in phase["tops"]) for name, phase in phases.items()}


def simulate(
    setup: TrainingSetup,
    config: Mapping[str, Any],
    *,
    constants: Mapping[str, float],
    gpu: Gpu | None = None,
    gpu_memory_bytes: int | None = None,
    compute_capability: tuple[int, int] | None = None,
    host_limit_bytes: int | None = None,
    expandable_segments: bool = False,
    sampling: bool = False,
    static_cache: bool = False,
    limits: Limits | None = None,
    code_folder: str | None = None,
    snapshot_path: str | None = None,
) -> Simulated:
    """GPU memory by phase from the real model's code on a fake GPU (04-memory, level 1).

    Args:
        config: the model's ``config.json``.
        constants: the figures of ``rules/constants.yaml`` by name, sizes in bytes.
        gpu: the catalogued GPU; ``gpu_memory_bytes`` and ``compute_capability``, as found, win over it.
        host_limit_bytes: the container's limit, or the host's memory.
        sampling, static_cache: how ``generate`` is called.
        code_folder: where the model's own code lies, which is run only if this is given.
        snapshot_path: where to write PyTorch's memory snapshot.

    Raises:
        SimulationError: there is no answer; the memory engine may still have one.
    """
    capability = compute_capability or (gpu.compute_capability if gpu else UNNAMED_CAPABILITY)
    context = context_of(constants, capability, gpu)
    memory = gpu_memory_bytes if gpu_memory_bytes is not None else (gpu.memory_total if gpu else None)
    limit = memory - context.low if memory is not None else None
    job = Job(
        setup,
        config,
        capability,
        allocator_limit_bytes=limit,
        expandable_segments=expandable_segments,
        sampling=sampling,
        static_cache=static_cache,
        code_folder=code_folder,
        snapshot_path=snapshot_path,
    )
    check_job(job)
    content, seconds, peak = ask(worker_command(), job_text(job), limits or Limits())
    host = host_ledger(setup, _loads(content), constants=constants, limit_bytes=host_limit_bytes)
    assumed = setup.assumed + _assumptions(setup, content["kept_head"], given=bool(compute_capability or gpu))
    return Simulated(
        report=report_of(content, context, memory, host, assumed, constants, quantized=setup.packs),
        timeline=timeline_from(content["timeline"]),
        tops=tops_from(content["phases"]),
        software=content["software"],
        seconds=seconds,
        subprocess_peak_bytes=peak,
    )


def _loads(content: Mapping[str, Any]) -> Loads:
    """What passes through host memory; the model's files are taken for its parameters as loaded."""
    return Loads(
        checkpoint=content["phases"]["load"]["terms"].get("parameters", 0),
        saved=content["saved_bytes"],
        offloaded=0,
        inputs=0,
        gathered=content["gathered_bytes"],
    )


def _assumptions(setup: TrainingSetup, kept_head: str | None, *, given: bool) -> tuple[Assumption, ...]:
    """What the simulation takes for granted; each reason is a key of i18n under ``assumption.``."""
    found = []
    if not given:
        capability = ".".join(map(str, UNNAMED_CAPABILITY))
        found.append(Assumption("gpu.compute_capability", capability, "kernels_of_ampere"))
    if kept_head:
        found.append(Assumption("quantization.llm_int8_skip_modules", kept_head, "head_kept_wide"))
    if setup.do_eval and not (setup.predict_with_generate or setup.prediction_loss_only or setup.eval_samples):
        found.append(Assumption("evaluation.samples", setup.eval_accumulation_steps or 1, "one_evaluation_step"))
    if setup.world_size > 1 or setup.fsdp or setup.zero_stage:
        found.append(Assumption("parallel.world_size", 1, "simulated_one_gpu"))
    return tuple(found)


POLL_SECONDS = 0.05
REASON_CHARACTERS = 400
PACKAGES = ("torch", "transformers")
FIRST_TRANSFORMERS = (4, 46)  # bench/releases.py runs with it
# Nothing is fetched while a simulation runs: it needs no weights, and an answer must not depend on the network.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
# Nor is anything compiled: without this, importing bitsandbytes (which PEFT does) loads torch's compilers for seconds.
EAGER = {"TORCHDYNAMO_DISABLE": "1"}
HASH_SEED = "0"  # PEFT keeps its targets in sets: the same question must have the same answer


class Answer(NamedTuple):
    """What the subprocess wrote, and what it took. ``peak_bytes`` is the most resident memory that was seen."""

    content: dict[str, Any]
    seconds: float
    peak_bytes: int


def worker_command() -> list[str]:
    """The simulator's own process.

    Raises:
        MissingPackageError: a library that it runs is not installed.
        OldReleaseError: it is, in a release that is too old.
    """
    import importlib.util
    from importlib import metadata

    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise MissingPackageError(package=package)
    found = metadata.version("transformers")
    if parse_version(found) < FIRST_TRANSFORMERS:
        raise OldReleaseError(package="transformers", found=found, first=".".join(map(str, FIRST_TRANSFORMERS)))
    return [sys.executable, "-m", "kb.torch_runs.simulation.worker"]


def ask(command: Sequence[str], request: str, limits: Limits) -> Answer:
    """Start ``command`` with a file's path as its last argument, hand it ``request``, and read what it puts there.

    Raises:
        SimulationError: the one that the process reported, or the way it ended: TimedOutError, MemoryLimitError,
            KilledError, CrashedError.
    """
    import subprocess

    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kb-simulation-") as folder:
        path = os.path.join(folder, "answer.json")
        with open(os.path.join(folder, "errors.txt"), "w+b") as errors:
            process = subprocess.Popen(
                [*command, path],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=_environment(limits),
                start_new_session=True,
            )
            try:
                _hand_over(process, request)
                peak = _watch(process, limits, start)
            finally:
                _end(process)
            content = _content(path)
            if content is None:
                raise _ending(process.returncode, errors)
    if "fault" in content:
        raise BY_NAME.get(content["fault"], CrashedError)(**content["values"])
    return Answer(content, time.monotonic() - start, peak)


def _environment(limits: Limits) -> dict[str, str]:
    """The caller's, with this very package first on the path."""
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    return {
        **os.environ,
        **OFFLINE,
        **EAGER,
        "PYTHONPATH": path,
        "PYTHONHASHSEED": HASH_SEED,
        "KB_SIMULATION_MEMORY": str(limits.memory_bytes),
    }


def _hand_over(process: "subprocess.Popen[bytes]", request: str) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(request.encode())
        process.stdin.close()
    except BrokenPipeError:  # it ended before it read: its exit tells why
        pass


def _watch(process: "subprocess.Popen[bytes]", limits: Limits, start: float) -> int:
    """The most resident bytes seen until the process ended by itself.

    Raises:
        TimedOutError, MemoryLimitError: a limit was passed; the caller ends the process.
    """
    import subprocess

    import psutil

    peak = 0
    while True:
        with contextlib.suppress(psutil.Error):  # gone between two looks: `wait` will say so
            peak = max(peak, psutil.Process(process.pid).memory_info().rss)
        if peak > limits.memory_bytes:
            raise MemoryLimitError(limit_bytes=limits.memory_bytes)
        if time.monotonic() - start > limits.seconds:
            raise TimedOutError(seconds=limits.seconds)
        try:
            process.wait(POLL_SECONDS)
            return peak
        except subprocess.TimeoutExpired:
            continue


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the process and whatever it started, where it still runs."""
    import signal

    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (AttributeError, ProcessLookupError, PermissionError):  # no process groups here, or already gone
            process.kill()
        process.wait()


def _content(path: str) -> dict[str, Any] | None:
    """The answer; None where the process ended before it had written one."""
    try:
        with open(path, encoding="utf-8") as stream:
            content: dict[str, Any] = json.load(stream)
    except (OSError, ValueError):
        return None
    return content


def _ending(code: int, errors: IO[bytes]) -> KilledError | CrashedError:
    """Why there is no answer: a signal, or an exit with a last line on standard error."""
    import signal

    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = str(-code)
        return KilledError(signal=name)
    errors.seek(0)
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    return CrashedError(reason=lines[-1][:REASON_CHARACTERS] if lines else f"exit {code}")
