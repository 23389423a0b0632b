"""Numbers that are known although their tensors are fake: sizes of pictures, and what is worked out from them.

A vision tower asks the GPU how large its pictures are, and cuts its states by the answer. Tensors whose numbers are
told here keep them, and so does what operators make of them. Import only in the simulator's process.
"""

from typing import TYPE_CHECKING, Any

from kb.core.setup import Images
from kb.torch_runs.models import base_of
from kb.torch_runs.pictures import IN_PIECES, Entry, entries

if TYPE_CHECKING:
    import torch
else:
    from kb.torch_runs.simulation.torch_modules import torch

from torch.utils import _pytree as trees
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

MOST = 1 << 22  # elements of a tensor that is followed
aten = torch.ops.aten
# What makes a tensor of nothing but numbers, and results whose shape only the numbers tell.
MADE = (aten.arange.default, aten.arange.start, aten.arange.start_step, aten.full.default, aten.zeros.default)
SHAPED = (
    aten.unique_consecutive.default,
    aten.repeat_interleave.Tensor,
    aten.index.Tensor,
    aten.nonzero.default,
)
# Layers that are told which tokens attend to all, and all to them.
GLOBAL_LAYERS = ("LongformerLayer", "LEDEncoderLayer")
WHOLE_TOWERS = ("Idefics3VisionTransformer", "SmolVLMVisionTransformer")  # of types that cut pictures: they see all
MASKS = {"attention_mask", "pixel_attention_mask"}


class Known:
    """The numbers behind fake tensors of whole numbers, by tensor."""

    def __init__(self) -> None:
        self.usual: int | None = None  # a number that nobody knows
        self._numbers: Any = WeakTensorKeyDictionary()

    def tell(self, tensor: "torch.Tensor", numbers: Any) -> None:
        """The numbers of a fake tensor."""
        with _disable_current_modes():
            self._numbers[tensor] = torch.as_tensor(numbers, dtype=tensor.dtype).reshape(tensor.shape)

    def forget(self, tensor: "torch.Tensor") -> None:
        """Nobody knows them: of a mask, whether something is padded is the setup's to say."""
        self._numbers.pop(tensor, None)

    def number(self, tensor: "torch.Tensor") -> Any:
        """The one number of a tensor; None where it is not known."""
        found = self._numbers.get(tensor)
        with _disable_current_modes():
            if found is None and tensor.dtype == torch.long:
                return self.usual
            return None if found is None else found.item()

    def result(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What ``func`` gives for the numbers behind its arguments, where all of those are known; else None.

        A mask that nobody knows picks every element, as everywhere in a simulation.
        """
        if func is aten.index.Tensor and self._unknown(args[0]) and _all_masks(args[1]):
            told, rest = self._numbers.get(args[1][0]), args[0].shape[args[1][0].dim() :]
            with _disable_current_modes():
                shape = (args[1][0].numel() if told is None else int(told.sum()), *rest)
                return torch.ones((), dtype=args[0].dtype).expand(shape)
        leaves = trees.tree_leaves((args, kwargs))
        tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
        picked = func is aten.index.Tensor
        if not tensors and (func not in MADE or any(isinstance(each, float) for each in leaves)):
            return None
        if not all(each in self._numbers or _plain(each) or (picked and _mask(each)) for each in tensors):
            if func._schema.is_mutable and isinstance(args[0], torch.Tensor):
                self._numbers.pop(args[0], None)
            return None
        with _disable_current_modes():
            given, named = trees.tree_map(self._behind, (args, kwargs))
            if "device" in named:
                named = {**named, "device": torch.device("cpu")}
            return func(*given, **named)

    def _unknown(self, tensor: "torch.Tensor") -> bool:
        return tensor not in self._numbers and not _plain(tensor)

    def _behind(self, each: Any) -> Any:
        if not isinstance(each, torch.Tensor):
            return each
        found = self._numbers.get(each)
        if found is None:
            found = each if _plain(each) else torch.ones(each.shape, dtype=torch.bool)
        return found

    def keep(self, out: Any, numbers: Any) -> None:
        """Remember the numbers of what an operator gave."""
        for fake, real in zip(trees.tree_leaves(out), trees.tree_leaves(numbers), strict=True):
            if isinstance(fake, torch.Tensor) and real.numel() <= MOST and not real.is_floating_point():
                self._numbers[fake] = real

    def pictured(self, model: Any, length: int, images: Images, rows: int) -> dict[str, Any]:
        """Samples with pictures on the fake GPU; what a mask hides, the setup says."""
        config = base_of(model).config
        batch = {name: self._fake(entry) for name, entry in entries(config, length, images, rows).items()}
        for name in MASKS & batch.keys():
            self.forget(batch[name])
        if config.model_type in IN_PIECES:  # the model asks how many pictures of a sample are real: all
            self.usual = batch["pixel_values"].shape[1]
        return batch

    def _fake(self, entry: Entry) -> Any:
        if entry.pixels:
            return torch.zeros(entry.shape, dtype=torch.float32, device="cuda")
        if isinstance(entry.numbers, int):
            return torch.full(entry.shape, entry.numbers, dtype=torch.long, device="cuda")
        told = torch.zeros(entry.shape, dtype=torch.long, device="cuda")
        self.tell(told, entry.numbers)
        return told


def tell_global_tokens(model: Any, tracer: Any) -> None:
    """Which tokens attend to all is asked of the GPU, by Longformer and LED: the first of each row where a sequence is
    classified, and otherwise none, as no batch of a simulation says more."""
    layers = [module for module in model.modules() if type(module).__name__ in GLOBAL_LAYERS]
    first = type(base_of(model)).__name__ == "LongformerForSequenceClassification"
    if layers and first:
        tracer.known, tracer.shaped = Known(), SHAPED

    def told(layer: Any, args: Any, named: dict[str, Any]) -> Any:
        if first:
            rows, length = named["is_index_global_attn"].shape
            tracer.known.tell(named["is_index_global_attn"], [[1, *(0,) * (length - 1)]] * rows)
        return args, named | {"is_global_attn": first}

    for layer in layers:
        layer.register_forward_pre_hook(told, with_kwargs=True)


def tell_whole_tiles(model: Any, tracer: Any) -> None:
    """Whether a tile is padded is asked of the GPU: none is, where pictures are cut into whole tiles."""
    before: list[bool] = []

    def enter(*_: Any) -> None:
        before.append(tracer.padded)
        tracer.padded = False

    def leave(*_: Any) -> None:
        tracer.padded = before.pop()

    for module in model.modules():
        if type(module).__name__ in WHOLE_TOWERS:
            module.register_forward_pre_hook(enter)
            module.register_forward_hook(leave, always_call=True)


def route_evenly(model: Any, tracer: Any) -> None:
    """How many tokens an expert gets is asked of the GPU where experts are modules (transformers before 5)."""
    from torch.nn import ModuleList

    mixtures = [module for module in model.modules() if isinstance(getattr(module, "experts", None), ModuleList)]
    if mixtures:
        tracer.known, tracer.shaped = Known(), SHAPED

    def enter(*_: Any) -> None:
        tracer.routes = True

    def leave(*_: Any) -> None:
        tracer.routes = False

    for module in mixtures:
        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave, always_call=True)


def tell_even_spread(tracer: Any, hot: "torch.Tensor") -> None:
    """Every expert gets as many pairs of a token and an expert as any other."""
    with _disable_current_modes():
        pairs, experts = hot.numel() // hot.shape[-1], hot.shape[-1]
        numbers = torch.eye(experts, dtype=hot.dtype)[torch.arange(pairs) % experts]
    tracer.known.tell(hot, numbers)


def _plain(tensor: "torch.Tensor") -> bool:
    """A tensor of the host with its own numbers."""
    return type(tensor) is torch.Tensor and tensor.device.type == "cpu"


def _all_masks(places: Any) -> bool:
    """Whether what is indexed with is one mask."""
    return len(places) == 1 and isinstance(places[0], torch.Tensor) and _mask(places[0])


def _mask(tensor: "torch.Tensor") -> bool:
    return tensor.dtype == torch.bool
