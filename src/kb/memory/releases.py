"""What a run needs otherwise under earlier releases of transformers than the newest, which the engine follows.

Found in the modelling files of each minor release from 4.36 to 5.24. ``bench/releases.py`` compares the engine with the
simulation under five of them.
"""

from collections.abc import Mapping

from kb.core.setup import CacheKind, CausalLoss, EarlierRelease

Release = tuple[int, ...]

COMPARED = (4, 46)  # the first release whose own code the simulation runs; what is before was read alone

# From which release on a type has PyTorch's scaled_dot_product_attention; before, attention is computed eagerly unless
# another is named. Source: `_supports_sdpa` in models/*/modeling_*.py.
SDPA_SINCE: Mapping[str, Release] = {
    **dict.fromkeys(("mistral", "mixtral"), (4, 37)),
    **dict.fromkeys(("phi", "stablelm"), (4, 39)),
    "bert": (4, 41),
    **dict.fromkeys(("gpt2", "gpt_neox"), (4, 42)),
    **dict.fromkeys(("albert", "camembert", "roberta", "xlm-roberta"), (4, 45)),
    **dict.fromkeys(("m2m_100", "mbart", "phi3"), (4, 45)),
    **dict.fromkeys(("distilbert", "opt"), (4, 46)),
    **dict.fromkeys(("blenderbot", "marian", "pegasus", "plbart"), (4, 53)),
    "electra": (5,),
    **dict.fromkeys(("t5", "mt5", "umt5"), (5, 15)),
    "gptj": (5, 24),
}
# From which release on generation makes logits of the last token alone; before, of the whole prompt, for each beam.
# Source: `logits_to_keep` (`num_logits_to_keep` before 4.50) in models/*/modeling_*.py.
LAST_LOGITS: Mapping[str, Release] = {
    "falcon": (4, 47),
    "granite": (4, 48),
    "gpt_neox": (4, 49),
    "gpt2": (4, 53),
    **dict.fromkeys(("bloom", "codegen", "gpt_bigcode", "gpt_neo", "gptj", "opt"), (5,)),
}
LAST_LOGITS_OF_OTHERS = (4, 45)
# Since then a model returns its logits as they were made; before, it made them fp32 (`logits.float()`).
LOGITS_AS_MADE: Mapping[str, Release] = {"granite": (4, 48), "mistral": (4, 48), "starcoder2": (4, 47)}
LOGITS_AS_MADE_OF_OTHERS = (4, 46)
# Causal models that had a loss of their own, on logits in the type in which they were made, and since when they have
# ForCausalLMLoss (loss/loss_utils.py).
OWN_LOSS: Mapping[str, Release] = {
    **dict.fromkeys(("bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gptj", "opt"), (4, 48)),
    "stablelm": (4, 48),
    "gpt_neox": (4, 49),
}
LABELS_SHIFTED = (4, 49)  # since then ForCausalLMLoss shifts the labels; before, it copied the logits but for the last
# Since then the Trainer turns `use_cache` off where it trains (trainer.py); before, evaluation kept keys and values.
NOT_CACHED = (5,)
# Types whose forward pass turns it off where it is given labels (`use_cache = False`), in every release.
UNCACHED_WITH_LABELS = ("bart", "blenderbot", "marian", "mbart", "pegasus", "plbart")
# Gemma 2 caps the scores of attention, which sdpa cannot do: from the first of these releases on sdpa was used without
# the cap, and from the second on attention is eager again (models/gemma2/modeling_gemma2.py).
UNCAPPED = ((4, 48), (5, 21))
# Since then a cache begins empty and is concatenated with what it is given (cache_utils.py, DynamicLayer).
COPIED = (4, 56)
# Since then its values begin in their own type; before, in the keys', which autocast may have left in fp32.
KEPT_APART = (5, 24)
# Types that kept tuples of tensors, all made anew for beams (`_reorder_cache` of modeling_*.py), and since when
# they have cache objects. Not those of Bart, which left cross-attention's as they were.
CACHE_OBJECTS: Mapping[str, Release] = {
    "whisper": (4, 43),
    "bloom": (4, 44),
    **dict.fromkeys(("codegen", "falcon", "gpt_neo", "gpt_neox", "gptj"), (4, 45)),
    **dict.fromkeys(("longt5", "mt5", "t5", "umt5"), (4, 46)),
    "opt": (4, 49),
    **dict.fromkeys(("gpt2", "m2m_100"), (4, 52)),
    "gpt_bigcode": (4, 54),
}
# Since then outputs hold a cache object; before, tuples (`return_legacy_cache`), whose tensors accelerate makes fp32 as
# it does logits (`convert_to_fp32`, utils/operations.py).
OBJECTS_RETURNED: Mapping[str, Release] = {
    "gemma2": (),
    "gpt_neox": (4, 49),
    **dict.fromkeys(("bloom", "codegen", "falcon", "gpt_neo", "gptj", "opt", "qwen2_moe", "stablelm"), (4, 54)),
    **dict.fromkeys(("mt5", "t5", "umt5"), (4, 54)),
    **dict.fromkeys(("gpt2", "gpt_bigcode", "m2m_100"), (4, 56)),
}
OBJECTS_RETURNED_OF_OTHERS = (4, 48)
# Since then encoders have eager_attention_forward; before, scores had a name of their own (models/*/modeling_*.py).
SCORES_LET_GO = (5,)
# From the first of these releases to the second, layers returned attention's weights whether asked for or not, and the
# encoder's loop held those of the last layer through the next (BertSelfAttention.forward and its copies).
WEIGHTS_RETURNED = ((4, 54), (5,))
RETURNS_WEIGHTS = ("bert", "camembert", "electra", "roberta", "xlm-roberta")
# Until when every attention had a table of which token sees which (`register_buffer("bias", …)`).
SIGHT_TABLES: Mapping[str, Release] = {"gpt_neox": (4, 49), "gpt2": (5, 2)}
# Since then the experts of a layer are one parameter; before, each was three linear layers (modeling_mixtral.py,
# modeling_qwen2_moe.py, modeling_qwen3_moe.py).
EXPERTS_TOGETHER = (5,)
NAMED_NO_MORE = (5, 4)  # before, each step of `grouped_mm_experts_forward` had a name (integrations/moe.py of 5.3)
# Since then GPT-J has transformers' interface of attention, and one table of angles for all layers (modeling_gptj.py).
WRITES_ATTENTION: Mapping[str, Release] = {"gptj": (5, 24)}
# Since then the outputs of a model that sees hold its tower's (`image_outputs`, modeling_outputs.py).
GIVES_FEATURES = (5, 24)
# Since then `create_bidirectional_mask` is wrapped (`deprecate_kwarg`, masking_utils.py), and the wrapper holds what it
# is given; Longformer gives it a mask that nothing else holds.
HOLDS_MASKS: Mapping[str, Release] = {"longformer": (5, 24)}
SEEING = ("gemma3", "idefics3", "llava", "llava_next", "paligemma", "qwen2_5_vl", "qwen2_vl", "smolvlm")
# Since then a layer checkpoints itself (GradientCheckpointingLayer, modeling_layers.py), inside of what wraps it;
# before, the model's loop checkpointed `layer.__call__`, and so FSDP1's unit around it.
CHECKPOINTS_ITSELF: Mapping[str, Release] = dict.fromkeys(
    ("cohere", "cohere2", "deepseek_v3", "gemma", "glm", "glm4", "granite", "granitemoe", "helium", "llama", "mistral",
     "olmo", "olmo2", "phi3", "qwen2", "qwen3", "starcoder2"), (4, 52),
)  # fmt: skip
CHECKPOINTS_ITSELF_OF_OTHERS = (4, 53)
PACKS_ONLY_LINEAR = (5, 5)  # since then a subclass of torch.nn.Linear is left as it is (integrations/bitsandbytes.py)


T5_TYPES = ("t5", "mt5", "umt5")  # whose position biases are masked in each layer since they have sdpa, and once before


def has_sdpa(model_type: str, release: Release) -> bool:
    """Whether the type can use ``scaled_dot_product_attention`` under a release of transformers."""
    return release >= SDPA_SINCE.get(model_type, ())


def boundaries_of(model_type: str) -> tuple[Release, ...]:
    """The releases with which :func:`earlier_release` changes for a type."""
    own = {CACHE_OBJECTS.get(model_type, COPIED), SIGHT_TABLES.get(model_type, COPIED)}
    own |= {WRITES_ATTENTION.get(model_type, COPIED), HOLDS_MASKS.get(model_type, COPIED)}
    own.add(GIVES_FEATURES if model_type in SEEING else COPIED)
    own.add(OBJECTS_RETURNED.get(model_type, OBJECTS_RETURNED_OF_OTHERS) or COPIED)
    common = {
        *own,
        *WEIGHTS_RETURNED,
        CHECKPOINTS_ITSELF.get(model_type, CHECKPOINTS_ITSELF_OF_OTHERS),
        COMPARED,
        COPIED,
        EXPERTS_TOGETHER,
        KEPT_APART,
        NAMED_NO_MORE,
        NOT_CACHED,
        PACKS_ONLY_LINEAR,
        SCORES_LET_GO,
    }
    if model_type in T5_TYPES:
        return tuple(sorted({SDPA_SINCE[model_type], *common}))
    found = common | {
        LAST_LOGITS.get(model_type, LAST_LOGITS_OF_OTHERS),
        LOGITS_AS_MADE.get(model_type, LOGITS_AS_MADE_OF_OTHERS),
        OWN_LOSS.get(model_type, LABELS_SHIFTED),
        LABELS_SHIFTED,
    }
    return tuple(sorted(found.union(UNCAPPED if model_type == "gemma2" else ())))


def earlier_release(model_type: str, release: Release) -> EarlierRelease:
    """What a model of the type does under a release of transformers."""
    found = EarlierRelease(
        cache=_cache(model_type, release),
        tuples_returned=release < OBJECTS_RETURNED.get(model_type, OBJECTS_RETURNED_OF_OTHERS),
        scores_held=release < SCORES_LET_GO,
        weights_returned=model_type in RETURNS_WEIGHTS and WEIGHTS_RETURNED[0] <= release < WEIGHTS_RETURNED[1],
        experts_named=release < NAMED_NO_MORE,
        experts_apart=release < EXPERTS_TOGETHER,
        sight_table=release < SIGHT_TABLES.get(model_type, ()),
        gives_features=model_type in SEEING and release < GIVES_FEATURES,
        writes_attention=release < WRITES_ATTENTION.get(model_type, ()),
        packs_subclasses=release < PACKS_ONLY_LINEAR,
        masks_let_go=release < HOLDS_MASKS.get(model_type, ()),
        checkpoints_units=release < CHECKPOINTS_ITSELF.get(model_type, CHECKPOINTS_ITSELF_OF_OTHERS),
    )
    if model_type in T5_TYPES:
        earlier = not has_sdpa(model_type, release)  # and hands its own `use_cache` on to the decoder
        return found._replace(biases_masked=earlier, fills_none=earlier and release >= NOT_CACHED)
    return found._replace(
        causal_loss=_loss(model_type, release),
        caches=release < NOT_CACHED and model_type not in UNCACHED_WITH_LABELS,
        uncapped=model_type == "gemma2" and UNCAPPED[0] <= release < UNCAPPED[1],
        whole_logits=release < LAST_LOGITS.get(model_type, LAST_LOGITS_OF_OTHERS),
    )


def coarsely_compared(earlier: EarlierRelease) -> bool:
    """Whether runs under the release were compared by their peaks alone, not act by act as those of 5.23 and 5.24."""
    alike = "copied" if earlier.cache == "alike" else earlier.cache
    same = earlier._replace(cache=alike, gives_features=False, masks_let_go=False, writes_attention=False)
    return same != EarlierRelease()


def _cache(model_type: str, release: Release) -> CacheKind:
    if release < CACHE_OBJECTS.get(model_type, ()):
        return "tuples"
    if release < COPIED:
        return "given"
    return "alike" if release < KEPT_APART else "copied"


def _loss(model_type: str, release: Release) -> CausalLoss:
    if release >= LABELS_SHIFTED:
        return "labels"
    if release < OWN_LOSS.get(model_type, ()):
        return "narrow"
    return "copied" if release >= LOGITS_AS_MADE.get(model_type, LOGITS_AS_MADE_OF_OTHERS) else "wide"
