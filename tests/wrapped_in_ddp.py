"""Level 1 with torch's own DistributedDataParallel around the model, on the process group that torch tests itself with.

Three things read numbers, which fake tensors have not: the check that all processes have the same shapes is left out;
gradients are reduced by a hook that leaves them; where no unused parameters are looked for, buckets are made again by a
new reducer, of the order in which gradients came. Where they are looked for, the reducer is one that does not.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from engine_diff import Act, acts_of

from kb.core.setup import TrainingSetup
from kb.memory.engine.ddp import BUCKET_BYTES, FIRST_BUCKET_BYTES, finds_unused
from kb.torch_runs.simulation import simulator, training
from kb.torch_runs.simulation.job import Job
from kb.torch_runs.simulation.timeline import peaks_of

# isort: split
import torch.distributed as dist  # after the simulation, which prepares it
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel, distributed
from torch.testing._internal.distributed.fake_pg import FakeStore


def simulated_in_ddp(
    config: Mapping[str, Any], setup: TrainingSetup, capability: tuple[int, int], patch: Any
) -> tuple[list[Act], dict[str, tuple[int, int]]]:
    """What level 1's allocator was asked on one of two GPUs, and the peaks of its phases. ``patch`` is monkeypatch."""
    real, one_pass, kept = training.train, training._pass, []

    def train(model: Any, asked: TrainingSetup, tracer: Any) -> Any:
        tracer.phase = "train:wrap"
        wrapped = _wrapped(model, asked)
        kept.append(wrapped)  # the Trainer holds it too
        passes = iter(range(1, 1000))

        def synchronized(*args: Any) -> None:
            wrapped.require_backward_grad_sync = next(passes) % asked.gradient_accumulation_steps == 0
            one_pass(*args)

        patch.setattr(training, "_pass", synchronized)
        return real(wrapped, asked, tracer)

    patch.setattr(simulator, "train", train)
    patch.setattr(distributed, "_verify_param_shape_across_processes", lambda *_, **__: None)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        acts: list[Act] = []
        peaks: dict[str, tuple[int, int]] = {}
        for run in simulator.runs_of(Job(setup, config, capability)):
            acts += acts_of(run.events)
            found = peaks_of(run.events)
            peaks |= {name: (one.allocated_bytes, one.reserved_bytes) for name, one in found.items() if name != "save"}
            kept.clear()
        return acts, peaks
    finally:
        dist.destroy_process_group()


def _wrapped(model: Any, setup: TrainingSetup) -> Any:
    looks = finds_unused(setup)
    caps = {"bucket_cap_mb_list": [1, 25]} if looks else {}
    view = setup.spread.gradient_as_bucket_view
    wrapped: Any = DistributedDataParallel(model, device_ids=[0], output_device=0, gradient_as_bucket_view=view, **caps)
    wrapped.find_unused_parameters = looks
    silent = SimpleNamespace(set_runtime_stats_and_log=lambda: None, _set_comm_hook_name=lambda _: None)
    wrapped.logger, wrapped.config = silent, model.config
    wrapped.get_base_model = getattr(model, "get_base_model", lambda: model)
    wrapped.register_comm_hook(None, _as_it_is)
    wrapped.reducer = _Reducer(wrapped, rebuilds=not looks)
    return wrapped


def _as_it_is(_: object, bucket: dist.GradBucket) -> Future[Tensor]:
    done: Future[Tensor] = Future()
    done.set_result(bucket.buffer())
    return done


class _Reducer:
    """torch's, which makes its buckets again of what it saw itself."""

    def __init__(self, wrapped: Any, *, rebuilds: bool) -> None:
        self.wrapped, self.inner, self.rebuilds = wrapped, wrapped.reducer, rebuilds
        self.order: list[Any] = []
        for parameter in wrapped.module.parameters():
            if rebuilds and parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._came)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _came(self, parameter: Any) -> None:
        if self.wrapped.require_backward_grad_sync and self.rebuilds:
            self.order.append(parameter)

    def _rebuild_buckets(self) -> bool:
        if not self.order:
            return False
        order, self.order, self.rebuilds, self.inner = self.order, [], False, None
        dense, limits = [False] * len(order), [FIRST_BUCKET_BYTES, BUCKET_BYTES]
        places = list(range(len(order)))
        found: Any = dist._compute_bucket_assignment_by_size(order, limits, dense, places)  # type: ignore[attr-defined]
        group, view = self.wrapped.process_group, self.wrapped.gradient_as_bucket_view
        self.inner = dist.Reducer(  # type: ignore[attr-defined]
            order, *found, group, dense, BUCKET_BYTES, False, view, {}, FIRST_BUCKET_BYTES, False, False, [], False
        )
        dist._register_comm_hook(self.inner, None, _as_it_is)  # type: ignore[attr-defined]
        return True
