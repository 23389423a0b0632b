"""Loads the setup's model onto the fake GPU, allocation by allocation in the order in which a real load does it.

The order decides which holes remain between the weights, and so how much the allocator reserves later.
Import only in the simulator's process.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kb.core.setup import TrainingSetup
from kb.memory.engine.quantized import natural
from kb.torch_runs import models
from kb.torch_runs.models import add_adapters, cast_as_trainers_do, prepare_quantized, quantization_config, stays_wide
from kb.torch_runs.releases import no_init_weights, not_quantized, release
from kb.torch_runs.simulation.job import BadModelError, NoAdaptersError, RemoteCodeError
from kb.torch_runs.simulation.kernels import packed_class
from kb.torch_runs.simulation.session import gpu_seen

if TYPE_CHECKING:
    import torch

    from kb.torch_runs.simulation.tracer import Tracer
else:
    from kb.torch_runs.simulation.torch_modules import torch

NF4_BLOCK = 64
REASON_CHARACTERS = 300


def build_model(
    config: Mapping[str, Any],
    setup: TrainingSetup,
    tracer: "Tracer",
    *,
    code_folder: str | None = None,
    load_ahead: int = 0,
) -> "torch.nn.Module":
    """The setup's model for ``config`` (a ``config.json``), ready to train and all of it booked with ``tracer``.

    Raises:
        BadModelError: no model can be built from the config.
        NoAdaptersError: PEFT puts no adapter on it.
        RemoteCodeError: it is code of its own; ``code_folder`` allows that code to run.
        OutOfMemory: the load runs out.
    """
    model: Any = meta_model(config, setup, code_folder)
    if setup.packs:
        load_quantized(model, tracer, quantization_config(model, setup, models.load_dtype(setup)), load_ahead)
    else:
        move(model, tracer)
    if release() >= (5, 0):
        model.config.use_cache = False  # as the Trainer does since then
    if setup.packs and setup.method != "full" and setup.prepare_for_kbit:
        with gpu_seen():
            prepare_quantized(model, setup)
        for parameter in model.parameters():
            tracer.mark(parameter, "weights")
    if setup.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": setup.use_reentrant})
    if setup.method != "full":
        model = _with_adapters(model, setup, tracer)
    if setup.gradient_checkpointing and setup.checkpoints_trained:
        models.checkpoint_trained(model)
    tracer.name_modules(model)
    return model  # type: ignore[no-any-return]


def meta_model(config: Mapping[str, Any], setup: TrainingSetup, code_folder: str | None = None) -> "torch.nn.Module":
    """The model on the meta device: shapes, no weights, no memory.

    Raises:
        RemoteCodeError: the config names code of its own and no ``code_folder``.
        BadModelError: transformers does not know the type, or builds no model from the fields.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    try:
        with _disable_current_modes(), torch.device("meta"), no_init_weights():
            model: torch.nn.Module = models.build(config, setup, code_folder=code_folder)
    except models.OwnCodeError as error:
        raise RemoteCodeError(model_type=error.model_type) from error
    except models.NoModelError as error:
        raise BadModelError(reason=str(error)[:REASON_CHARACTERS]) from error
    return model


def _with_adapters(model: Any, setup: TrainingSetup, tracer: "Tracer") -> "torch.nn.Module":
    try:
        adapted: torch.nn.Module = add_adapters(model, setup)
    except (ValueError, RuntimeError) as error:  # RuntimeError: a quantized module in modules_to_save
        raise NoAdaptersError(reason=str(error)[:REASON_CHARACTERS].rstrip(".")) from error
    _one_storage(adapted, tracer)
    cast_as_trainers_do(adapted, setup)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name or parameter.requires_grad:
            tracer.mark(parameter, "adapters")
    return adapted


def _one_storage(model: "torch.nn.Module", tracer: "Tracer") -> None:
    """Give every parameter the storage that its views have.

    ``copy.deepcopy`` of a fake tensor, with which PEFT copies a module to save, makes one whose storage is not that of
    its data, so that its first view would count as a block of its own.
    """
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            with tracer.unbooked():
                data = parameter.data
            outer = parameter.untyped_storage()._cdata
            if outer != data.untyped_storage()._cdata:
                tracer.pass_on(outer, data)
                with tracer.unbooked():
                    setattr(module, name, torch.nn.Parameter(data, parameter.requires_grad))


def move(model: "torch.nn.Module", tracer: "Tracer") -> None:
    """As ``model.to("cuda")`` of a model that was loaded on the host: children first, parameters before buffers."""
    wide = stays_wide(model)
    made: dict[int, torch.nn.Parameter] = {}
    placed: set[int] = set()

    def place(module: torch.nn.Module, path: str) -> None:
        if id(module) in placed:  # one table in several places, as T5 has it before transformers 5
            return
        placed.add(id(module))
        for name, child in module.named_children():
            place(child, f"{path}{name}.")
        for name, parameter in list(module._parameters.items()):
            if parameter is None:
                continue
            if id(parameter) not in made:
                dtype = torch.float32 if wide(f"{path}{name}") else parameter.dtype
                tensor = torch.empty(parameter.shape, dtype=dtype, device="cuda")
                tracer.mark(tensor, "weights")
                made[id(parameter)] = _parameter(tensor, parameter)
            module._parameters[name] = made[id(parameter)]
        _place_buffers(module, tracer)

    originals = list(model.parameters())  # kept alive: an id must not be used twice
    place(model, "")
    del originals


def load_quantized(model: "torch.nn.Module", tracer: "Tracer", config: Any, ahead: int = 0) -> None:
    """As ``from_pretrained`` with a bitsandbytes ``config``: each weight to the GPU in 16 bits, quantized, let go.

    The library's own layers and quantization run. ``ahead`` is by how many weights the reading threads lead: it is a
    matter of timing in a real load, and changes the holes.
    Source: ``_load_pretrained_model``, ``core_model_loading.py``, ``integrations/bitsandbytes.py`` of transformers 5.
    """
    from bitsandbytes.nn import Linear4bit, Linear8bitLt

    eight_bit, compute_dtype = config.load_in_8bit, config.bnb_4bit_compute_dtype
    head_is_own = _head_is_own(model)
    _replace_linears(model, config)
    names = sorted(dict(model.named_parameters()), key=natural)
    layers = {name: model.get_submodule(name.rpartition(".")[0]) for name in names}
    quantizes = {name for name, layer in layers.items() if isinstance(layer, Linear4bit | Linear8bitLt)}
    packed = {name for name in quantizes if name.endswith(".weight")}
    wide = stays_wide(model)
    shapes = {name: model.get_parameter(name).shape for name in names}
    _warm_up(tracer, shapes, packed, compute_dtype, eight_bit)
    made: dict[str, torch.Tensor] = {}
    for at, name in enumerate(names):
        for reading in names[at : at + ahead + 1]:
            if reading not in made:
                dtype = torch.float32 if wide(reading) else compute_dtype
                made[reading] = torch.empty(shapes[reading], dtype=dtype, device="cuda")
        weight = made[name]
        made[name] = made[name].new_empty(0)
        if name in packed:
            _quantize(layers[name], weight, config.bnb_4bit_use_double_quant, tracer)
        else:
            tracer.mark(weight, "weights")
            layers[name]._parameters[name.rpartition(".")[2]] = _parameter(weight, model.get_parameter(name))
        del weight
    for module in model.modules():
        _place_buffers(module, tracer)
    _tie(model, head_is_own)
    loaded: Any = model
    loaded.is_quantized = True
    loaded.is_loaded_in_8bit, loaded.is_loaded_in_4bit = eight_bit, not eight_bit


def _head_is_own(model: Any) -> bool:
    head = model.get_output_embeddings()
    return head is not None and head.weight is not model.get_input_embeddings().weight


def _tie(model: Any, head_is_own: bool) -> None:
    """What was tied is tied again; a head of its own, which the config may not tell of, stays so."""
    own = model.get_output_embeddings().weight if head_is_own else None
    model.tie_weights()
    if own is not None:
        model.get_output_embeddings().weight = own


def _parameter(tensor: "torch.Tensor", like: "torch.nn.Parameter") -> "torch.nn.Parameter":
    return torch.nn.Parameter(tensor, requires_grad=like.requires_grad and tensor.is_floating_point())


def _place_buffers(module: "torch.nn.Module", tracer: "Tracer") -> None:
    for name, buffer in list(module._buffers.items()):
        if buffer is not None:
            tensor = module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device="cuda")
            tracer.mark(tensor, "weights")


def _replace_linears(model: Any, config: Any) -> None:
    from torch.utils._python_dispatch import _disable_current_modes
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear

    with _disable_current_modes():  # type: ignore[no-untyped-call]
        skipped = not_quantized(model, config.llm_int8_skip_modules)
        replace_with_bnb_linear(model, modules_to_not_convert=skipped, quantization_config=config)


def _warm_up(tracer: "Tracer", shapes: dict[str, Any], packed: set[str], dtype: "torch.dtype", eight_bit: bool) -> None:
    """``caching_allocator_warmup``: one block of the loaded size, freed at once, so that the rest is cut from it."""
    width = 1.0 if eight_bit else 0.5
    size = sum(int(shape.numel() * (width if name in packed else dtype.itemsize)) for name, shape in shapes.items())
    tracer.release(tracer.hold(size, "caching_allocator_warmup", "weights"))


def _quantize(layer: Any, weight: "torch.Tensor", double_quant: bool, tracer: "Tracer") -> None:
    import bitsandbytes

    if isinstance(layer, bitsandbytes.nn.Linear8bitLt):
        again = torch.empty_like(weight, dtype=torch.float16)  # it goes to the host and comes back (Bnb8bitQuantize)
        stored, scales, _ = bitsandbytes.functional.int8_vectorwise_quant(again)
        del again
        parameter: Any = torch.nn.Parameter(stored, requires_grad=False)
        parameter.CB, parameter.SCB, parameter.has_fp16_weights = stored, scales, False
        layer._parameters["weight"] = parameter
        tracer.mark(stored, "weights")
        tracer.mark(scales, "quantization")
        return
    with _known_code():
        stored, state = bitsandbytes.functional.quantize_4bit(
            weight,
            blocksize=NF4_BLOCK,
            compress_statistics=double_quant,
            quant_type="nf4",
            quant_storage=layer.quant_storage,
        )
    parameter = torch.nn.Parameter(stored, requires_grad=False)
    parameter.quant_state, parameter.bnb_quantized = state, True
    parameter.compress_statistics, parameter.quant_type, parameter.blocksize = double_quant, "nf4", NF4_BLOCK
    parameter.quant_storage, parameter.module = layer.quant_storage, layer
    parameter.__class__ = packed_class(parameter.__class__)
    layer._parameters["weight"] = parameter
    layer.quant_state = state
    layer.compute_type_is_set = True  # the layer would look at its input's values
    tracer.mark(stored, "weights")
    for tensor in _tensors(state):
        tracer.mark(tensor, "quantization")


def _tensors(state: Any) -> Iterator["torch.Tensor"]:
    for name in ("absmax", "code", "offset"):
        tensor = getattr(state, name, None)
        if isinstance(tensor, torch.Tensor):
            yield tensor
    if getattr(state, "state2", None) is not None:
        yield from _tensors(state.state2)


@contextmanager
def _known_code() -> Iterator[None]:
    """bitsandbytes computes its table of 8-bit values once, on the host: with real numbers, not fake ones."""
    from bitsandbytes import functional
    from torch.utils._python_dispatch import _disable_current_modes

    if "dynamic" not in functional.name2qmap:
        with _disable_current_modes():  # type: ignore[no-untyped-call]
            functional.name2qmap["dynamic"] = functional.create_dynamic_map().to("cpu")
    yield
