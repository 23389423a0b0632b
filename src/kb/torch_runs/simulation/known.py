"""Numbers that are known although their tensors are fake: sizes of pictures, and what is worked out from them.

A vision tower asks the GPU how large its pictures are, and cuts its states by the answer. Tensors whose numbers are
told here keep them, and so does what operators make of them. Import only in the simulator's process.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

from kb.core.setup import Images
from kb.memory.picture_tiles import SPLITS, pieces_of
from kb.torch_runs.models import base_of

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


# Types that cut a picture into tiles whatever its size, and their towers, which see all of each.
IN_PIECES, WHOLE_TOWERS = ("idefics3", "smolvlm"), ("Idefics3VisionTransformer", "SmolVLMVisionTransformer")


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
            shape = (args[1][0].numel(), *args[0].shape[args[1][0].dim() :])
            with _disable_current_modes():
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
        """Samples with pictures as transformers' processors give them: a token of text before each, the rest behind.

        Pictures are lists of patches, in fp32, with the size of each.
        """
        config = base_of(model).config
        vision = config.vision_config
        if config.model_type == "llava":
            return self._whole(config, length, images, rows)
        if config.model_type == "paligemma":
            of_prompt = torch.zeros((rows, length), dtype=torch.long, device="cuda")
            return {**self._whole(config, length, images, rows), "token_type_ids": of_prompt}
        if config.model_type in IN_PIECES:
            return self._in_pieces(config, length, images, rows)
        if config.model_type == "llava_next":
            return self._tiled(config, length, images, rows)
        tokens = images.rows * images.columns // vision.spatial_merge_size**2
        batch = self._worded(config, length, images.number, tokens, rows)
        types = torch.zeros((rows, length), dtype=torch.long, device="cuda")
        grid = torch.zeros((rows * images.number, 3), dtype=torch.long, device="cuda")
        width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        pixels = torch.zeros((rows * images.patches, width), dtype=torch.float32, device="cuda")
        self.tell(types, [_kinds(length, images.number, tokens)] * rows)
        self.tell(grid, [[1, images.rows, images.columns]] * (rows * images.number))
        return {**batch, "mm_token_type_ids": types, "pixel_values": pixels, "image_grid_thw": grid}

    def _whole(self, config: Any, length: int, images: Images, rows: int) -> dict[str, Any]:
        """Pictures of the one size that a tower takes, and as many tokens as it has patches (``LlavaProcessor``)."""
        vision = config.vision_config
        tokens = (vision.image_size // vision.patch_size) ** 2 + (vision.model_type == "clip_vision_model")
        tokens -= getattr(config, "vision_feature_select_strategy", "full") == "default"
        sides = (vision.num_channels, vision.image_size, vision.image_size)
        batch = self._worded(config, length, images.number, tokens, rows)
        pixels = torch.zeros((rows * images.number, *sides), dtype=torch.float32, device="cuda")
        return {**batch, "pixel_values": pixels}

    def _tiled(self, config: Any, length: int, images: Images, rows: int) -> dict[str, Any]:
        """Pictures in tiles, with the size that each had; the processor's own count of tokens is asked."""
        from types import SimpleNamespace

        from transformers import LlavaNextProcessor
        from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

        vision, size = config.vision_config, (images.rows, images.columns)
        side = vision.image_size
        tiles = image_size_to_num_patches(size, config.image_grid_pinpoints, side)
        processor: Any = LlavaNextProcessor  # none of its own is needed to count
        asked = SimpleNamespace(
            image_processor=SimpleNamespace(image_grid_pinpoints=config.image_grid_pinpoints),
            patch_size=vision.patch_size,
            num_additional_image_tokens=0,
            _get_unpadded_features=partial(processor._get_unpadded_features, None),
        )
        tokens = processor._get_number_of_features(asked, *size, side, side)
        batch = self._worded(config, length, images.number, tokens, rows)
        count = rows * images.number
        pixels = torch.zeros((count, tiles, vision.num_channels, side, side), dtype=torch.float32, device="cuda")
        sizes = torch.zeros((count, 2), dtype=torch.long, device="cuda")
        self.tell(sizes, [size] * count)
        return {**batch, "pixel_values": pixels, "image_sizes": sizes}

    def _in_pieces(self, config: Any, length: int, images: Images, rows: int) -> dict[str, Any]:
        """Pictures cut as the processor would, and which pixels are none of padding; that all pictures of a sample
        are real, the model asks as a number."""
        vision = config.vision_config
        side = vision.image_size
        pieces = pieces_of(images.rows, images.columns, side, SPLITS)
        tokens = pieces * (side // vision.patch_size // config.scale_factor) ** 2
        self.usual = pieces * images.number
        batch = self._worded(config, length, images.number, tokens, rows)
        shape = (rows, self.usual, vision.num_channels, side, side)
        pixels = torch.zeros(shape, dtype=torch.float32, device="cuda")
        mask = torch.full((*shape[:2], side, side), 1, dtype=torch.long, device="cuda")
        self.forget(mask)
        return {**batch, "pixel_values": pixels, "pixel_attention_mask": mask}

    def _worded(self, config: Any, length: int, number: int, tokens: int, rows: int) -> dict[str, Any]:
        """Ids and mask of words and pictures."""
        ids = torch.zeros((rows, length), dtype=torch.long, device="cuda")
        mask = torch.full((rows, length), 1, dtype=torch.long, device="cuda")
        self.forget(mask)
        self.tell(ids, [[config.image_token_id if kind else 0 for kind in _kinds(length, number, tokens)]] * rows)
        return {"input_ids": ids, "attention_mask": mask}


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


def _kinds(length: int, number: int, tokens: int) -> list[int]:
    """1 for each token of a picture: a token of text before each picture's, the rest behind."""
    kinds = ([0] + [1] * tokens) * number
    return kinds + [0] * (length - len(kinds))


def _plain(tensor: "torch.Tensor") -> bool:
    """A tensor of the host with its own numbers."""
    return type(tensor) is torch.Tensor and tensor.device.type == "cpu"


def _all_masks(places: Any) -> bool:
    """Whether what is indexed with is one mask."""
    return len(places) == 1 and isinstance(places[0], torch.Tensor) and _mask(places[0])


def _mask(tensor: "torch.Tensor") -> bool:
    return tensor.dtype == torch.bool
