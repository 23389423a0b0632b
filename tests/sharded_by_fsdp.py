"""Level 1 with torch's own FSDP around the model, on torch's fake process group; accelerate's code prepares FSDP2.

A GPU that is not there has no streams: a stand-in counts them, and the allocator's model learns which one asks. Until
FSDP moves a parameter to the GPU it lies on the host: nothing of it is booked before. Storages that FSDP empties and
fills again are told of by hand, as no operator does it.
"""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

from engine_diff import Act, acts_of

from kb.core.setup import TrainingSetup
from kb.memory.engine.quantized import natural
from kb.torch_runs import models
from kb.torch_runs.models import quantization_config
from kb.torch_runs.simulation import loading, simulator, training
from kb.torch_runs.simulation.job import Job
from kb.torch_runs.simulation.timeline import peaks_of

# isort: split
import torch  # after the simulation, which prepares it
import torch.distributed as dist
from accelerate.utils import FullyShardedDataParallelPlugin, fsdp_utils
from accelerate.utils.dataclasses import get_module_class_from_name
from bitsandbytes.nn import Linear4bit
from bitsandbytes.nn import modules as bnb_modules
from peft.utils.other import fsdp_auto_wrap_policy
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullyShardedDataParallel,
    MixedPrecision,
    _flat_param,
    _init_utils,
)
from torch.distributed.fsdp._common_utils import _FSDPDeviceHandle
from torch.distributed.fsdp._fully_shard import (
    _fsdp_collectives,
    _fsdp_init,
    _fsdp_param,
    _fsdp_param_group,
    _fsdp_state,
)
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.modeling_layers import GradientCheckpointingLayer

ASK_FOR_STREAMS = (device_mesh, _fsdp_collectives, _fsdp_init, _fsdp_param_group, _fsdp_state)

PREFETCH = {"no": None, "pre": BackwardPrefetch.BACKWARD_PRE, "post": BackwardPrefetch.BACKWARD_POST}

OF_PACKED = (
    "quant_state",
    "bnb_quantized",
    "compress_statistics",
    "quant_type",
    "blocksize",
    "quant_storage",
    "module",
)


class Stream:
    """One that is always up to date."""

    def __init__(self, number: int = 0) -> None:
        self.number = number

    def wait_stream(self, _: Any) -> None:
        """There is nothing to wait for."""

    def wait_event(self, _: Any) -> None:
        """There is nothing to wait for."""

    def record_event(self) -> Any:
        return None

    def synchronize(self) -> None:
        """There is nothing to wait for."""


class Streams:
    """``torch.cuda`` as far as FSDP2 asks it."""

    def __init__(self) -> None:
        self.allocator: Any = None
        self.now = Stream()
        self.made = 0
        self.answers: dict[str, Any] = {
            "Stream": self.another,
            "Event": lambda: SimpleNamespace(record=lambda: None, synchronize=lambda: None),
            "current_stream": lambda *_: self.now,
            "is_current_stream_capturing": lambda: False,
            "current_device": lambda: 0,
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "device_count": lambda: 8,
            "set_device": lambda _: None,
        }

    def __getattr__(self, name: str) -> Any:
        return self.answers[name]

    def another(self, **_: Any) -> Stream:
        self.made += 1
        return Stream(self.made)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.now = self.now, stream
        self.allocator.switch(stream.number)
        try:
            yield
        finally:
            self.now = before
            self.allocator.switch(before.number)


def simulated_in_fsdp(
    config: Mapping[str, Any], setup: TrainingSetup, capability: tuple[int, int], patch: Any
) -> tuple[list[Act], dict[str, tuple[int, int]]]:
    """What level 1's allocator was asked on the first GPU, and the peaks of its phases. ``patch`` is monkeypatch."""
    streams = Streams()
    for module in ASK_FOR_STREAMS:
        patch.setattr(module, "_get_device_handle", lambda *_: streams)
    patch.setattr(_FSDPDeviceHandle, "from_device", lambda *_: streams)
    patch.setattr(torch.Tensor, "pin_memory", lambda tensor, *_: tensor)
    patch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    patch.setattr(torch.Tensor, "data_ptr", lambda tensor: tensor.untyped_storage()._cdata)  # all are 0 of fake ones
    patch.setattr(FakeTensor, "data", property(torch.Tensor.data.__get__, _move_with_data), raising=False)
    patch.setattr(simulator, "save", lambda *_: 0)  # it waits for the GPU
    patch.setattr(bnb_modules, "fix_4bit_weight_quant_state_from_module", _find_state)
    real_session, real_train, one_pass = simulator.open_session, training.train, training._pass

    @contextmanager
    def session(**given: Any) -> Iterator[Any]:
        with real_session(**given) as tracer:
            streams.allocator = tracer.allocator
            _watch(tracer, patch)
            yield tracer

    def train(model: Any, asked: TrainingSetup, tracer: Any) -> Any:
        passes = iter(range(1, 1000))

        def synchronized(*args: Any) -> None:
            last = next(passes) % asked.gradient_accumulation_steps == 0
            if isinstance(model, FullyShardedDataParallel):
                with nullcontext() if last else model.no_sync():
                    one_pass(*args)
                return
            model.set_requires_gradient_sync(last)
            one_pass(*args)

        patch.setattr(training, "_pass", synchronized)
        return real_train(model, asked, tracer)

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=setup.world_size)
    mesh = device_mesh.init_device_mesh("cuda", (setup.world_size,), mesh_dim_names=("shard",))
    patch.setattr(simulator, "open_session", session)
    patch.setattr(simulator, "build_model", lambda config, setup, tracer, **_: _built(config, setup, tracer, mesh))
    # FSDP2 has no autocast, FSDP1 has it inside
    patch.setattr(simulator, "as_accelerate", lambda model, _, **__: model)
    patch.setattr(simulator, "train", train)
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


def _watch(tracer: Any, patch: Any) -> None:
    """Book of a sharded tensor what this process has of it, and follow storages through their changes of size."""
    book = tracer.book

    def moved(parameters: Any, buffers: Any, *_: Any) -> None:
        gc.collect()  # a fake parameter is in a circle of references; a real one goes at once
        tracer._op = "to"
        for tensor in (*parameters, *buffers):
            tracer.book(tensor)

    patch.setattr(tracer, "book", lambda tensor: book(getattr(tensor, "_local_tensor", tensor)))
    patch.setattr(_fsdp_init, "_move_states_to_device", moved)
    patch.setattr(_init_utils, "_move_module_to_device", lambda module, *_: moved(*_breadth_first(module)))
    patch.setattr(_flat_param, "_free_storage", partial(_resize, tracer, full=False))
    patch.setattr(_flat_param, "_alloc_storage", lambda tensor, _: _resize(tracer, tensor, full=True))
    for module in (_fsdp_param, _fsdp_param_group):
        patch.setattr(module, "alloc_storage", partial(_resize, tracer, full=True))
    patch.setattr(_fsdp_param, "free_storage", partial(_resize, tracer, full=False))


def _breadth_first(module: Any) -> tuple[list[Any], list[Any]]:
    """Parameters and buffers of a module without those of units within, as ``_move_module_to_device`` collects."""
    queue, parameters, buffers = [module], [], []
    while queue:
        one = queue.pop(0)
        parameters += one.parameters(recurse=False)
        buffers += one.buffers(recurse=False)
        queue += [child for child in one.children() if not isinstance(child, FullyShardedDataParallel)]
    return parameters, buffers


def _resize(tracer: Any, tensor: Any, *, full: bool) -> None:
    storage = tensor.untyped_storage()
    storage.resize_(tensor.numel() * tensor.itemsize if full else 0)
    if full:
        tracer._op = "alloc_storage"
        tracer.book(tensor)
    else:
        tracer._died(storage._cdata)


def _built(config: Mapping[str, Any], setup: TrainingSetup, tracer: Any, mesh: Any) -> Any:
    """The model on the host, in fp32 where it trains under mixed precision, and then sharded."""
    if setup.packs:
        model = _packed(config, setup, tracer)
        tracer.name_modules(model)
        return (_sharded if setup.spread.fsdp_version > 1 else _flat)(model, setup, mesh)
    with tracer.unbooked():
        model: Any = loading.meta_model(config, setup)
        loading.move(model, tracer)
        model.config.use_cache = False
        if setup.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": setup.use_reentrant})
        if setup.method != "full":
            model = loading._with_adapters(model, setup, tracer)
        if setup.checkpoints_trained:
            models.checkpoint_trained(model)
        for module in model.modules():
            for name, tensor in list(module._parameters.items()):
                wide = tensor is None or tensor.dtype == torch.float32
                if setup.spread.fsdp_version > 1 and setup.autocast and not wide and tensor.requires_grad:
                    module._parameters[name] = torch.nn.Parameter(torch.empty_like(tensor, dtype=torch.float32))
    tracer.name_modules(model)
    return (_sharded if setup.spread.fsdp_version > 1 else _flat)(model, setup, mesh)


def _move_with_data(tensor: Any, data: Any) -> None:
    """``tensor.data = data`` of another device: a fake tensor would stay on its own."""
    torch.Tensor.data.__set__(tensor, data)  # type: ignore[attr-defined]
    tensor.fake_device = data.fake_device


def _find_state(layer: Any) -> None:
    """What FSDP gathered has no scales; bitsandbytes makes it one of its own, which a fake tensor cannot be made."""
    layer.weight.quant_state = layer.quant_state


def _packed(config: Mapping[str, Any], setup: TrainingSetup, tracer: Any) -> Any:
    """A model of 4 bits: on the GPU, or on the host beside its scales, which then are all that is booked."""
    if setup.spread.packed_on == "gpu":
        return loading.build_model(config, setup, tracer)
    model: Any = loading.meta_model(config, setup)
    asked = quantization_config(model, setup, models.load_dtype(setup))
    loading._replace_linears(model, asked)
    for name in sorted(dict(model.named_parameters()), key=natural):
        path, _, last = name.rpartition(".")
        layer, shape = model.get_submodule(path), model.get_parameter(name).shape
        if not isinstance(layer, Linear4bit) or last != "weight":
            with tracer.unbooked():
                value = torch.empty(shape, dtype=asked.bnb_4bit_compute_dtype, device="cuda")
                layer._parameters[last] = torch.nn.Parameter(value)
            continue
        wide = torch.empty(shape, dtype=asked.bnb_4bit_compute_dtype, device="cuda")
        loading._quantize(layer, wide, asked.bnb_4bit_use_double_quant, tracer)
        del wide
        packed = layer.weight
        with tracer.unbooked():
            away = torch.empty_like(packed.data)
            host = torch.nn.Parameter(away, requires_grad=False)
        vars(host).update({name: getattr(packed, name) for name in OF_PACKED})
        host.__class__ = packed.__class__
        layer._parameters["weight"] = host
        del packed
    with tracer.unbooked():
        for module in model.modules():
            loading._place_buffers(module, tracer)
        model.tie_weights()
        model.is_quantized = model.is_loaded_in_4bit = True
        model.is_loaded_in_8bit = False
        model.config.use_cache = False
        if setup.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": setup.use_reentrant})
        return loading._with_adapters(model, setup, tracer)


def _sharded(model: Any, setup: TrainingSetup, mesh: Any) -> Any:
    mixed = "bf16" if setup.bf16 else "fp16" if setup.fp16 else "no"
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=setup.spread.fsdp_reshard,
        cpu_offload=setup.offload_param,
        auto_wrap_policy="transformer_based_wrap" if setup.spread.fsdp_wrapped else "no_wrap",
        cpu_ram_efficient_loading=False,
    )
    if mixed != "no":
        plugin.set_mixed_precision(mixed)
    accelerator: Any = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin),
        mixed_precision=mixed,
        is_main_process=False,
        torch_device_mesh={("shard",): mesh},
        parallelism_config=SimpleNamespace(fsdp_dim_names=("shard",)),
    )
    held = dict(model.named_parameters()) if setup.packs and setup.spread.packed_on == "gpu" else {}
    model.state_dict = held.copy  # of what lies on the host it would hold the same storages as are used here
    sharded = fsdp_utils.fsdp2_prepare_model(accelerator, model)
    del model.state_dict
    held.clear()
    gc.collect()
    return sharded


def _flat(model: Any, setup: TrainingSetup, _: Any) -> Any:
    """FSDP1 as the Trainer asks for it: original parameters, everything in the type of products."""
    mixed = torch.bfloat16 if setup.bf16 else None
    if mixed is not None:
        training.as_accelerate(model, "bfloat16")
    kinds = {get_module_class_from_name(model, name) for name in model._no_split_modules}
    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls=kinds)
    if setup.method != "full":  # the Trainer's update_fsdp_plugin_peft
        policy = fsdp_auto_wrap_policy(model)
    sharded = FullyShardedDataParallel(
        model,
        auto_wrap_policy=policy if setup.spread.fsdp_wrapped or setup.method != "full" else None,
        mixed_precision=mixed and MixedPrecision(param_dtype=mixed, reduce_dtype=mixed, buffer_dtype=mixed),
        cpu_offload=CPUOffload(offload_params=setup.offload_param),
        use_orig_params=True,
        device_id=torch.device("cuda", 0),
        limit_all_gathers=True,
        forward_prefetch=setup.spread.fsdp_forward_prefetch,
        backward_prefetch=PREFETCH[setup.spread.fsdp_backward_prefetch],
    )
    for module in FullyShardedDataParallel.fsdp_modules(sharded) if mixed else ():  # as accelerate widens what trains
        flat = module._flat_param
        if flat.dtype != torch.float32 and flat.requires_grad:
            flat.data = flat.data.to(torch.float32)
            module._handle._orig_param_dtype = torch.float32
    if setup.earlier.checkpoints_units:
        _checkpoint_units(sharded)
    return sharded


def _checkpoint_units(model: Any) -> None:
    """As transformers before GradientCheckpointingLayer: ``self._gradient_checkpointing_func(layer.__call__, …)``."""
    for unit in FullyShardedDataParallel.fsdp_modules(model):
        layer: Any = unit._fsdp_wrapped_module
        if getattr(layer, "gradient_checkpointing", False) and isinstance(layer, GradientCheckpointingLayer):
            layer.gradient_checkpointing = False
            unit.forward = partial(_checkpointed, layer._gradient_checkpointing_func, unit.forward)


def _checkpointed(checkpoint: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
    return checkpoint(partial(forward, **kwargs), *args)
