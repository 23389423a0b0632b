"""``config.json`` of LLaVA, LLaVA-NeXT, PaliGemma, Gemma 3, Idefics3, SmolVLM, Qwen2-VL and Qwen3-VL: a language
model's fields, a vision tower's, and what lies between them.

Sources: configuration_llava.py, configuration_llava_next.py, configuration_paligemma.py, configuration_gemma3.py,
configuration_idefics3.py, configuration_clip.py, configuration_siglip.py, configuration_qwen3_vl.py, and the
configurations of the language models (transformers 5.23). Published files name of a language model only what is not
its type's default.
"""

from collections.abc import Mapping
from math import isqrt
from typing import Any

from kb.core.model import Architecture, Hearing, Vision
from kb.memory.architecture.decoder import architecture as decoder_architecture
from kb.memory.architecture.decoder_types import decoder_of, kv_heads_of
from kb.memory.architecture.decoder_types import gemma4 as gemma4_text
from kb.memory.architecture.decoder_types import qwen3_5 as qwen3_5_text
from kb.memory.config_fields import (
    UnsupportedArchitectureError,
    flag,
    number,
    rate,
    refuse,
    unpredicted,
    word,
)
from kb.memory.picture_tiles import SPLITS

# What the configurations of language models leave out.
_LLAMA = {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
          "num_attention_heads": 32}  # fmt: skip
WORDS: Mapping[str, Mapping[str, Any]] = {
    "llama": _LLAMA,
    "mistral": {**_LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {**_LLAMA, "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32,
              "use_sliding_window": False},
}  # fmt: skip
# What a tower's configuration leaves out.
_BASE = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
         "num_channels": 3, "image_size": 224}  # fmt: skip
CLIP = "clip_vision_model"
TOWERS: Mapping[str, Mapping[str, Any]] = {
    CLIP: {**_BASE, "patch_size": 32, "hidden_act": "quick_gelu"},
    "siglip_vision_model": {**_BASE, "patch_size": 16, "hidden_act": "gelu_pytorch_tanh", "vision_use_head": True},
}
TILINGS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))  # of LlavaNextConfig


def llava(config: Mapping[str, Any]) -> Architecture:
    """LLaVA's dimensions: the language model's, with what it sees with.

    Raises:
        UnsupportedArchitectureError: another language model or tower than is followed, or a field that is wrong.
    """
    given = _part(config, "text_config")
    kind = word(given, "model_type", default="llama")
    if kind not in WORDS:
        raise unpredicted(f"text_config of {kind[:40]}")
    words = {**WORDS[kind], **given}
    if words.get("num_key_value_heads") is None:
        words.pop("num_key_value_heads", None)
    found = decoder_architecture({**words, "model_type": kind})
    if found.window is not None:
        raise unpredicted("sliding_window of text_config")
    tied = flag(config, "tie_word_embeddings", False) or (found.tied and config["model_type"] == "llava")
    return found._replace(model_type=str(config["model_type"]), tied=tied, vision=_seen(config), engine=True)


GEMMAS: Mapping[str, Mapping[str, Any]] = {
    "gemma": {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256},
    "gemma2": {"num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
}  # fmt: skip


def paligemma(config: Mapping[str, Any]) -> Architecture:
    """PaliGemma's dimensions: Gemma's or Gemma 2's, with what it sees with.

    Raises:
        UnsupportedArchitectureError: another language model or tower than is followed, or a field that is wrong.
    """
    given = _part(config, "text_config")
    kind = word(given, "model_type", default="gemma")
    if kind not in GEMMAS:
        raise unpredicted(f"text_config of {kind[:40]}")
    found = decoder_architecture({**GEMMAS[kind], **given, "model_type": kind})
    _within_words(config, "image_token_index", 256000, found)
    width = number(config, "projection_dim", default=2048)
    if width != found.d_model:
        raise UnsupportedArchitectureError(f"config.json: projection_dim {width} of words of {found.d_model}")
    return found._replace(model_type="paligemma", vision=_whole_states(config), engine=True)


GEMMA3 = {"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
          "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}  # fmt: skip


def gemma3(config: Mapping[str, Any]) -> Architecture:
    """Gemma 3's dimensions where it sees: those of its words, with a tower whose patches are averaged to tokens.

    Raises:
        UnsupportedArchitectureError: another tower than is followed, or a field that is wrong.
    """
    given = _part(config, "text_config")
    refuse(given, "use_bidirectional_attention")
    found = decoder_architecture({**GEMMA3, **given, "model_type": "gemma3_text"})
    _within_words(config, "image_token_index", 262144, found)
    seen = _whole_states(config)
    side, tokens = seen.image // seen.patch, number(config, "mm_tokens_per_image", default=256)
    if side**2 % tokens or isqrt(tokens) ** 2 != tokens or side % isqrt(tokens):
        raise UnsupportedArchitectureError(f"config.json: mm_tokens_per_image {tokens} of {side} × {side} patches")
    tied = flag(config, "tie_word_embeddings", True)
    seen = seen._replace(merge=side // isqrt(tokens))
    return found._replace(model_type="gemma3", tied=tied, vision=seen, engine=True)


def gemma4(config: Mapping[str, Any]) -> Architecture:
    """Gemma 4's dimensions, with its two towers."""
    found = gemma4_text({**_part(config, "text_config"), "model_type": "gemma4"})
    seen, heard = config.get("vision_config"), config.get("audio_config")
    vision = hearing = None
    if isinstance(seen, Mapping):
        width, heads = number(seen, "hidden_size", default=768), number(seen, "num_attention_heads", default=12)
        if width % heads or number(seen, "head_dim", default=64) != width // heads:
            raise unpredicted("head_dim of the vision_config")
        if number(seen, "num_key_value_heads", default=12) != heads:
            raise unpredicted("num_key_value_heads of the vision_config")
        vision = Vision(
            depth=number(seen, "num_hidden_layers", default=16),
            width=width,
            ff=number(seen, "intermediate_size", default=3072),
            heads=heads,
            channels=3,
            patch=number(seen, "patch_size", default=16),
            frames=1,
            merge=number(seen, "pooling_kernel_size", default=3),
            activation=word(seen, "hidden_activation", default="gelu_pytorch_tanh"),
            places=number(seen, "position_embedding_size", default=10240),
            centres=flag(seen, "standardize", False),
            clamps=flag(seen, "use_clipped_linears", False),
        )
    if isinstance(heard, Mapping):
        channels = heard.get("subsampling_conv_channels") or (128, 32)
        if not isinstance(channels, list | tuple) or len(channels) != 2:
            raise unpredicted("subsampling_conv_channels")
        first, second = (number({"subsampling_conv_channels": each}, "subsampling_conv_channels") for each in channels)
        hearing = Hearing(
            depth=number(heard, "num_hidden_layers", default=12),
            width=number(heard, "hidden_size", default=1024),
            heads=number(heard, "num_attention_heads", default=8),
            kernel=number(heard, "conv_kernel_size", default=5),
            channels=(first, second),
            out=number(heard, "output_proj_dims", default=1536),
            clamps=flag(heard, "use_clipped_linears", True),
        )
    tied = flag(config, "tie_word_embeddings", True)
    return found._replace(tied=tied, vision=vision, hearing=hearing)


PIXTRAL = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
           "num_channels": 3, "patch_size": 16, "hidden_act": "gelu"}  # fmt: skip
MINISTRAL3 = {"vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34,
              "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}  # fmt: skip


def mistral3(config: Mapping[str, Any]) -> Architecture:
    """Mistral Small 3.1's dimensions, and Ministral 3's: the language model's, with a tower of Pixtral's."""
    given, seen = _part(config, "text_config"), {**PIXTRAL, **_part(config, "vision_config")}
    kind = word(given, "model_type", default="mistral")
    if kind not in ("mistral", "ministral3"):
        raise unpredicted(f"text_config of {kind[:40]}")
    found = decoder_architecture({**(MINISTRAL3 if kind == "ministral3" else WORDS[kind]), **given, "model_type": kind})
    depth, width = number(seen, "num_hidden_layers"), number(seen, "hidden_size")
    vision = Vision(
        depth=depth,
        width=width,
        ff=number(seen, "intermediate_size"),
        heads=number(seen, "num_attention_heads"),
        channels=number(seen, "num_channels"),
        patch=number(seen, "patch_size"),
        frames=1,
        merge=number(config, "spatial_merge_size", default=2),
        activation=word(seen, "hidden_act", default=""),
        states=_states({"vision_feature_layer": -1, **config}, depth),
        projector_bias=flag(config, "multimodal_projector_bias", False),
    )
    return found._replace(
        model_type="mistral3",
        tied=flag(config, "tie_word_embeddings", True),
        scales_queries=kind == "ministral3",
        vision=vision,
        engine=True,
    )


def gemma4_unified(config: Mapping[str, Any]) -> Architecture:
    """Gemma 4 12B's: what it sees and hears is projected without a tower."""
    given, seen, heard = (_part(config, f"{name}_config") for name in ("text", "vision", "audio"))
    kind, cells = "gemma4_unified", number(seen, "pooling_kernel_size", default=3)
    width = number(seen, "mm_embed_dim", default=3840)
    if number(seen, "output_proj_dims", default=3840) != width:
        raise unpredicted("output_proj_dims of the vision_config")
    found = gemma4_text({"sliding_window": 1024, **given, "hidden_size_per_layer_input": 0, "model_type": kind})
    vision = Vision(
        depth=0,
        width=width,
        ff=0,
        heads=1,
        channels=3,
        patch=number(seen, "patch_size", default=16) * cells,
        frames=1,
        merge=1,
        activation="",
        places=number(seen, "mm_posemb_size", default=1120),
        blocks=given.get("use_bidirectional_attention", "vision") == "vision",
    )
    sound = number(heard, "output_proj_dims", default=640)
    hearing = Hearing(depth=0, width=sound, heads=1, kernel=0, channels=(), out=sound, clamps=False)
    return found._replace(tied=flag(config, "tie_word_embeddings", True), vision=vision, hearing=hearing)


def _within_words(config: Mapping[str, Any], name: str, default: int, words: Architecture) -> None:
    """Refuse a picture's token that is none of the words: its ids are copied first."""
    if number(config, name, default=default) >= words.vocab_size:
        raise unpredicted(f"{name} beyond vocab_size")


def _whole_states(config: Mapping[str, Any]) -> Vision:
    """A tower of SigLIP's of which the last states are read, all of them."""
    seen = _seen({**config, "vision_feature_select_strategy": "full", "vision_feature_layer": -1})
    if seen.classed:
        raise unpredicted("vision_config of a CLIP model")
    return seen._replace(states=())


IDEFICS = {"hidden_size": 1152, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 16,
           "num_channels": 3, "image_size": 224, "patch_size": 32, "hidden_act": "gelu_pytorch_tanh",
           "vision_use_head": False}  # fmt: skip


def idefics3(config: Mapping[str, Any]) -> Architecture:
    """Idefics3's dimensions, and SmolVLM's: Llama's, with what it sees with.

    Raises:
        UnsupportedArchitectureError: another language model than is followed, or a field that is wrong.
    """
    given = _part(config, "text_config")
    kind = word(given, "model_type", default="llama")
    if kind != "llama":
        raise unpredicted(f"text_config of {kind[:40]}")
    found = decoder_architecture({**_LLAMA, **given, "model_type": kind})
    tower = {**IDEFICS, **_part(config, "vision_config"), "model_type": "siglip_vision_model"}
    seen = _seen({"model_type": "llava", "vision_config": tower, "vision_feature_select_strategy": "full"})
    merge = number(config, "scale_factor", default=2)
    if seen.image % seen.patch or (seen.image // seen.patch) % merge:
        raise UnsupportedArchitectureError(
            f"config.json: scale_factor {merge} of patches of {seen.patch} of {seen.image} pixels"
        )
    return found._replace(
        model_type=str(config["model_type"]),
        tied=flag(config, "tie_word_embeddings", False),
        vision=seen._replace(states=(), merge=merge, splits=SPLITS),
        engine=True,
    )


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """One of the two configs inside; LLaVA's own code, whose files are of the same type, has neither."""
    found = config.get(name)
    if not isinstance(found, Mapping):
        raise UnsupportedArchitectureError(f"config.json: no {name}")
    return found


def _seen(config: Mapping[str, Any]) -> Vision:
    """The tower's fields, and the projector's."""
    given = _part(config, "vision_config")
    kind = word(given, "model_type", default=CLIP)
    if kind not in TOWERS:
        raise unpredicted(f"vision_config of {kind[:40]}")
    if rate(given, "attention_dropout") > 0:
        raise unpredicted("attention_dropout of vision_config")
    seen = {**TOWERS[kind], **given}
    if seen.get("vision_use_head"):
        raise unpredicted("vision_use_head of vision_config")
    depth, width, heads = (number(seen, name) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    image, patch = number(seen, "image_size"), number(seen, "patch_size")
    if width % heads or image < patch:
        raise UnsupportedArchitectureError(
            f"config.json: {heads} heads of {width}, patches of {patch} of {image} pixels"
        )
    tilings = _tilings(config, image) if config["model_type"] == "llava_next" else ()
    strategy = word(config, "vision_feature_select_strategy", default="default")
    classed, drops = kind == CLIP, strategy == "default"
    if strategy not in ("default", "full") or (tilings and classed != drops):  # states are a patch's each, in a tile
        raise UnsupportedArchitectureError(f"config.json: vision_feature_select_strategy {strategy[:40]}")
    return Vision(
        depth=depth,
        width=width,
        ff=number(seen, "intermediate_size"),
        heads=heads,
        channels=number(seen, "num_channels"),
        patch=patch,
        frames=1,
        merge=1,
        activation=word(seen, "hidden_act", default=""),
        image=image,
        states=_states(config, depth),
        classed=classed,
        drops_first=drops,
        projector_activation=word(config, "projector_hidden_act", default="gelu"),
        projector_bias=flag(config, "multimodal_projector_bias", True),
        tilings=tilings,
    )


def _tilings(config: Mapping[str, Any], image: int) -> tuple[tuple[int, int], ...]:
    """``image_grid_pinpoints``: heights and widths, of whole tiles."""
    named = config.get("image_grid_pinpoints")
    found = TILINGS if named is None else named
    if not isinstance(found, list | tuple) or not found:
        raise UnsupportedArchitectureError("config.json: image_grid_pinpoints: a list of heights and widths")
    sizes = []
    for each in found:
        if not isinstance(each, list | tuple) or len(each) != 2:
            raise UnsupportedArchitectureError("config.json: image_grid_pinpoints: a list of heights and widths")
        height, width = (number({"image_grid_pinpoints": side}, "image_grid_pinpoints") for side in each)
        if height % image or width % image or height * width == image**2:
            raise UnsupportedArchitectureError(
                f"config.json: image_grid_pinpoints {height} × {width} of tiles of {image} pixels"
            )
        sizes.append((height, width))
    return tuple(sizes)


def _states(config: Mapping[str, Any], depth: int) -> tuple[int, ...]:
    """``vision_feature_layer``: one number or several, from the last on where they are below zero."""
    named = config.get("vision_feature_layer", -2)
    numbers = named if isinstance(named, list | tuple) else [named]
    for each in numbers:
        if isinstance(each, bool) or not isinstance(each, int) or not -depth - 1 <= each <= depth:
            raise UnsupportedArchitectureError(f"config.json: vision_feature_layer {str(named)[:40]} of {depth} layers")
    return tuple(each % (depth + 1) for each in numbers)


def qwen_vl(config: Mapping[str, Any]) -> Architecture:
    """Qwen2-VL and Qwen2.5-VL. Configs on the hub have the language model's fields at the top, newer ones apart."""
    inner, seen = config.get("text_config"), config.get("vision_config")
    text: Mapping[str, Any] = inner if isinstance(inner, Mapping) else config
    if not isinstance(seen, Mapping):
        raise UnsupportedArchitectureError("config.json: no vision_config")
    refuse(text, "use_sliding_window")
    tied = flag(config, "tie_word_embeddings", False) or flag(text, "tie_word_embeddings", False)
    return decoder_of(
        {**text, "model_type": config["model_type"]},
        kv_heads=kv_heads_of(text, 8),
        tied=tied,
        gated=True,
        activation=word(text, "hidden_act", default="silu"),
        norm="rms",
        qkv_bias=True,
        rotary=1.0,
        attention_dropout=rate(text, "attention_dropout") > 0,
        vision=_tower(str(config["model_type"]), seen),
    )


QWEN3 = {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
         "num_attention_heads": 32, "head_dim": 128}  # fmt: skip


def qwen3_vl(config: Mapping[str, Any]) -> Architecture:
    """Qwen3-VL: Qwen3's dimensions, and a tower with learned places of which some layers' states are read too.

    Raises:
        UnsupportedArchitectureError: a field that is wrong, or that is not followed.
    """
    text, seen = {**QWEN3, **_part(config, "text_config")}, _part(config, "vision_config")
    tied = flag(config, "tie_word_embeddings", False) or flag(text, "tie_word_embeddings", False)
    biased = flag(text, "attention_bias", False)
    return decoder_of(
        {**text, "model_type": "qwen3_vl"},
        kv_heads=kv_heads_of(text, 32),
        tied=tied,
        gated=True,
        activation=word(text, "hidden_act", default="silu"),
        norm="rms",
        qk_norm="head",
        qkv_bias=biased,
        output_bias=biased,
        rotary=1.0,
        attention_dropout=rate(text, "attention_dropout") > 0,
        vision=_qwen3_tower(seen),
    )


def qwen3_5(config: Mapping[str, Any]) -> Architecture:
    """Qwen3.5's dimensions: the language model's, and Qwen3-VL's tower without its earlier states."""
    text = _part(config, "text_config")
    tied = flag(config, "tie_word_embeddings", False)
    tower = _qwen3_tower({**_part(config, "vision_config"), "deepstack_visual_indexes": []})
    return qwen3_5_text({**text, "model_type": "qwen3_5"})._replace(tied=tied, vision=tower)


def _qwen3_tower(seen: Mapping[str, Any]) -> Vision:
    """With the defaults of ``Qwen3VLVisionConfig``."""
    depth = number(seen, "depth", default=27)
    deep = seen.get("deepstack_visual_indexes", (8, 16, 24))
    if not isinstance(deep, list | tuple) or not all(type(each) is int for each in deep):
        raise UnsupportedArchitectureError("config.json: deepstack_visual_indexes: a list of layers' numbers")
    if any(not 0 <= each < depth for each in deep) or len({*deep}) < len(deep):
        raise UnsupportedArchitectureError(f"config.json: deepstack_visual_indexes {[*deep]} of {depth} layers")
    return Vision(
        width=number(seen, "hidden_size", default=1152),
        ff=number(seen, "intermediate_size", default=4304),
        activation=word(seen, "hidden_act", default="gelu_pytorch_tanh"),
        states=tuple(each + 1 for each in deep),
        places=number(seen, "num_position_embeddings", default=2304),
        **_sizes(seen, depth, patch=16),
    )


def _sizes(seen: Mapping[str, Any], depth: int, *, patch: int) -> dict[str, Any]:
    """What every tower of Qwen's has under the same names."""
    return {
        "depth": depth,
        "heads": number(seen, "num_heads", default=16),
        "channels": number(seen, "in_channels", "in_chans", default=3),
        "patch": number(seen, "patch_size", default=patch),
        "frames": number(seen, "temporal_patch_size", default=2),
        "merge": number(seen, "spatial_merge_size", default=2),
    }


def _tower(model_type: str, seen: Mapping[str, Any]) -> Vision:
    """A vision tower's fields, with the defaults of ``Qwen2VLVisionConfig`` and ``Qwen2_5_VLVisionConfig``."""
    sizes = _sizes(seen, number(seen, "depth", default=32), patch=14)
    if model_type == "qwen2_vl":
        width = number(seen, "embed_dim", default=1280)
        wider = number(seen, "mlp_ratio", default=4)
        acts = word(seen, "hidden_act", default="quick_gelu")
        return Vision(width=width, ff=width * wider, activation=acts, **sizes)
    full = seen.get("fullatt_block_indexes", (7, 15, 23, 31))
    if not isinstance(full, list | tuple) or not all(isinstance(each, int) for each in full):
        raise UnsupportedArchitectureError("config.json: fullatt_block_indexes: a list of layers' numbers")
    return Vision(
        width=number(seen, "hidden_size", default=3584),
        ff=number(seen, "intermediate_size", default=3420),
        activation=word(seen, "hidden_act", default="silu"),
        window=number(seen, "window_size", default=112),
        full_layers=tuple(full),
        **sizes,
    )
