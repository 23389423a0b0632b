"""Level 1 with torch's own FSDP around the model, prepared by accelerate's own code, on torch's fake process group.

A GPU that is not there has no streams: a stand-in counts them, so that blocks of each come from pools of their own.
"""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

from engine_diff import Act, acts_of

from kb.core.setup import TrainingSetup
from kb.torch_runs.simulation import loading, simulator, training
from kb.torch_runs.simulation.job import Job
from kb.torch_runs.simulation.timeline import peaks_of

# isort: split
import torch  # after the simulation, which prepares it
import torch.distributed as dist
from accelerate.utils import FullyShardedDataParallelPlugin, fsdp_utils
from torch.distributed import device_mesh
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_init, _fsdp_param, _fsdp_param_group, _fsdp_state, _fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore


class Stream:
    """One that is always up to date."""

    def __init__(self, number: int = 0) -> None:
        self.number = number

    def wait_stream(self, _: Any) -> None:
        pass

    def wait_event(self, _: Any) -> None:
        pass

    def record_event(self) -> Any:
        return None


class Streams:
    """``torch.cuda`` as far as FSDP2 asks for streams; the allocator learns which one is current."""

    def __init__(self) -> None:
        self.allocator: Any = None
        self.now = Stream()
        self.made = 0

    def Stream(self, **_: Any) -> Any:
        self.made += 1
        return Stream(self.made)

    def Event(self) -> Any:
        return SimpleNamespace(record=_nothing, synchronize=_nothing)

    def current_stream(self) -> Any:
        return self.now

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.now = self.now, stream
        self.allocator.switch(stream.number)
        try:
            yield
        finally:
            self.now = before
            self.allocator.switch(before.number)

    def __getattr__(self, name: str) -> Any:
        return {"current_device": lambda: 0, "is_available": lambda: True, "device_count": lambda: 8,
                "set_device": _nothing, "is_initialized": lambda: True}[name]


def _moved(tracer: Any, parameters: Any, buffers: Any, device: Any) -> None:
    """``_move_states_to_device``: what was on the host takes its block."""
    gc.collect()  # a fake parameter holds itself
    tracer._op = "to"
    for tensor in (*parameters, *buffers):
        tracer.book(tensor)


def _resized(tracer: Any, tensor: Any, *, full: bool) -> None:
    """``alloc_storage`` and ``free_storage``, of which no operator tells."""
    storage = tensor.untyped_storage()
    storage.resize_(tensor.numel() * tensor.itemsize if full else 0)
    if full:
        tracer._op = "alloc_storage"
        tracer.book(tensor)
    else:
        tracer._died(storage._cdata)


def _nothing(*_: Any, **__: Any) -> None:
    return None


def simulated_in_fsdp(
    config: Mapping[str, Any], setup: TrainingSetup, capability: tuple[int, int], patch: Any
) -> tuple[list[Act], dict[str, tuple[int, int]]]:
    streams = Streams()
    for module in (device_mesh, _fsdp_collectives, _fsdp_init, _fsdp_param, _fsdp_param_group, _fsdp_state, _fully_shard):
        if hasattr(module, "_get_device_handle"):
            patch.setattr(module, "_get_device_handle", lambda *_: streams)
    patch.setattr(torch.Tensor, "pin_memory", lambda tensor, *_: tensor)
    real_session = simulator.open_session

    @contextmanager
    def session(**given: Any) -> Iterator[Any]:
        with real_session(**given) as tracer:
            streams.allocator = tracer.allocator
            book = tracer.book
            patch.setattr(tracer, "book", lambda tensor: book(getattr(tensor, "_local_tensor", tensor)))
            patch.setattr(_fsdp_init, "_move_states_to_device", partial(_moved, tracer))
            patch.setattr(_fsdp_param, "alloc_storage", lambda tensor: _resized(tracer, tensor, full=True))
            patch.setattr(_fsdp_param_group, "alloc_storage", lambda tensor: _resized(tracer, tensor, full=True))
            patch.setattr(_fsdp_param, "free_storage", lambda tensor: _resized(tracer, tensor, full=False))
            yield tracer

    patch.setattr(simulator, "open_session", session)
    patch.setattr(simulator, "build_model", lambda config, setup, tracer, **_: _sharded(config, setup, tracer, mesh))
    patch.setattr(simulator, "as_accelerate", lambda model, _: model)
    real, one_pass = training.train, training._pass

    def train(model: Any, asked: TrainingSetup, tracer: Any) -> Any:
        passes = iter(range(1, 1000))

        def synchronized(*args: Any) -> None:
            model.set_requires_gradient_sync(next(passes) % asked.gradient_accumulation_steps == 0)
            one_pass(*args)

        patch.setattr(training, "_pass", synchronized)
        return real(model, asked, tracer)

    patch.setattr(simulator, "train", train)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=setup.world_size)
    mesh = device_mesh.init_device_mesh("cuda", (setup.world_size,), mesh_dim_names=("shard",))
    try:
        acts: list[Act] = []
        peaks: dict[str, tuple[int, int]] = {}
        for run in simulator.runs_of(Job(setup, config, capability)):
            acts += acts_of(run.events)
            found = peaks_of(run.events)
            peaks |= {name: (one.allocated_bytes, one.reserved_bytes) for name, one in found.items() if name != "save"}
        return acts, peaks
    finally:
        dist.destroy_process_group()


def _sharded(config: Any, setup: Any, tracer: Any, mesh: Any) -> Any:
    return _prepared(_on_host(config, setup, tracer), setup, mesh, tracer)


def _on_host(config: Any, setup: Any, tracer: Any) -> Any:
    """The model as it lies in host memory: of its tensors nothing is booked before they are moved."""
    with tracer.unbooked():
        model: Any = loading.meta_model(config, setup)
        loading.move(model, tracer)
        model.config.use_cache = False
        if setup.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": setup.use_reentrant})
        if setup.method != "full":
            model = loading._with_adapters(model, setup, tracer)
        for module in model.modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is not None and parameter.requires_grad and setup.autocast and parameter.dtype != torch.float32:
                    module._parameters[name] = torch.nn.Parameter(torch.empty_like(parameter, dtype=torch.float32))
    tracer.name_modules(model)
    return model


def _prepared(model: Any, setup: TrainingSetup, mesh: Any, tracer: Any) -> Any:
    mixed = "bf16" if setup.bf16 else "fp16" if setup.fp16 else "no"
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, reshard_after_forward=setup.spread.fsdp_reshard, cpu_offload=setup.offload_param,
        auto_wrap_policy="transformer_based_wrap" if setup.spread.fsdp_wrapped else "no_wrap",
        cpu_ram_efficient_loading=False,
    )
    if mixed != "no":
        plugin.set_mixed_precision(mixed)
    accelerator: Any = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin), mixed_precision=mixed, is_main_process=False,
        torch_device_mesh={("shard",): mesh}, parallelism_config=SimpleNamespace(fsdp_dim_names=("shard",)),
    )
    model.state_dict = dict  # it would hold what is let go once it is sharded
    sharded = fsdp_utils.fsdp2_prepare_model(accelerator, model)
    del model.state_dict
    gc.collect()
    return sharded
