"""The way in: a setup, a ``config.json`` and a GPU go in, a report comes out; torch stays in its subprocess."""

from collections.abc import Mapping
from typing import Any

from kb.core.hardware import Gpu
from kb.core.setup import Assumption, TrainingSetup
from kb.memory.host import Loads, host_ledger
from kb.torch_runs.adapters import is_quantized
from kb.torch_runs.simulation.job import Job, check_job, job_text
from kb.torch_runs.simulation.result import Simulated, report_of, target_of, timeline_from, tops_from
from kb.torch_runs.simulation.runner import Limits, ask, worker_command

UNNAMED_CAPABILITY = (8, 0)  # no GPU is named: an Ampere card's kernels are taken


def simulate(
    setup: TrainingSetup,
    config: Mapping[str, Any],
    *,
    constants: Mapping[str, float],
    gpu: Gpu | None = None,
    gpu_memory_bytes: int | None = None,
    compute_capability: tuple[int, int] | None = None,
    host_limit_bytes: int | None = None,
    checkpoint_bytes: int | None = None,
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
        checkpoint_bytes: the model's files; by default its parameters as loaded.
        sampling, static_cache: how ``generate`` is called.
        code_folder: where the model's own code lies, which is run only if this is given.
        snapshot_path: where to write PyTorch's memory snapshot.

    Raises:
        SimulationError: there is no answer; level 0 may still have one.
    """
    capability = compute_capability or (gpu.compute_capability if gpu else UNNAMED_CAPABILITY)
    target = target_of(constants, gpu, gpu_memory_bytes, capability)
    limit = target.memory_bytes - target.context.low if target.memory_bytes is not None else None
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
    host = host_ledger(setup, _loads(content, checkpoint_bytes), constants=constants, limit_bytes=host_limit_bytes)
    assumed = setup.assumed + _assumptions(setup, content["kept_head"], given=bool(compute_capability or gpu))
    return Simulated(
        report=report_of(content, target, host, assumed, constants, quantized=is_quantized(setup)),
        timeline=timeline_from(content["timeline"]),
        tops=tops_from(content["phases"]),
        software=content["software"],
        seconds=seconds,
        subprocess_peak_bytes=peak,
    )


def _loads(content: Mapping[str, Any], checkpoint_bytes: int | None) -> Loads:
    """What passes through host memory; the model's files are its parameters as loaded, where nothing says more."""
    parameters = content["phases"]["load"]["terms"].get("parameters", 0)
    return Loads(
        checkpoint=checkpoint_bytes if checkpoint_bytes is not None else parameters,
        saved=content["saved_bytes"],
        offloaded=0,
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
