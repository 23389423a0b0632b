"""What decoder-only types of transformers do differently: one row each, from their modelling files.

The dimensions, biases and rates are the architecture's; here is what a ``config.json`` does not say.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.memory.engine.families import decoder_experts as experts
from kb.memory.engine.families import decoder_inputs as inputs
from kb.memory.engine.families import decoder_parts as parts
from kb.memory.engine.families import decoder_wirings as wirings
from kb.memory.engine.families import decoder_written as written
from kb.memory.engine.families import delta
from kb.memory.engine.families.attention import rotary, rotary_tables
from kb.memory.engine.families.decoder_parts import GemmaNorm, as_it_is
from kb.memory.engine.families.recurrent import ShortConv
from kb.memory.engine.faults import NotFollowedError, refuse
from kb.memory.engine.modules import LayerNorm, Linear, RmsNorm


def no_table(a: Architecture) -> Any:
    """Most attentions have no buffer."""
    return None


REMOTE = ("exaone",)  # types whose code lies beside the weights, and was not run here


class Traits(NamedTuple):
    """Names are those of the modelling file; functions are of ``decoder_parts`` and the modules beside it.

    ``order`` is that in which a block's parts are registered; ``norms`` the names of its first and second norm.
    """

    stem: str = "model"
    embed: str = "embed_tokens"
    positions: str = ""
    position_offset: int = 0
    embed_norm: str = ""
    layers: str = "layers"
    final: str = "norm"
    head: str = "lm_head"
    rotary_first: bool = False  # the rotary embedding is registered before the final norm
    order: tuple[str, ...] = ("attention", "mlp", "norm1", "norm2")
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    attention: str = "self_attn"
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    output: str = "o_proj"
    qk_norms: tuple[str, ...] = ()
    mlp_path: str = "mlp"
    norm: Callable[..., Any] = RmsNorm
    head_norm: Callable[..., Any] | None = None  # of queries and keys, where it is another
    project: Callable[..., Any] = parts.project
    turn: Callable[..., Any] = rotary
    tables: Callable[..., Any] = rotary_tables
    mlp: Callable[..., Any] = parts.GatedMlp
    wiring: Callable[..., Any] = wirings.sequential
    scaled_logits: bool = False
    kinds: str = inputs.ONE  # masks that it makes
    inputs: Callable[..., Any] = inputs.turned
    written: Callable[..., Any] | None = None  # attention as the type writes it out, of ``decoder_written``
    special_tokens: int = 2  # that generate makes tensors of, as published configs name them: most have no padding
    numbers: bool = True  # generate hands the positions on
    eager_only: bool = False  # transformers has no other implementation of its attention
    table: Callable[..., Any] = no_table  # a buffer of every attention: its shape and type
    angles: Callable[..., Any] = no_table  # the same of the model, in the place of what rotary positions keep
    linear: Callable[..., Any] = Linear  # of the blocks' linear layers
    placed: str = "qkvo"  # the order in which attention's layers are registered; q is the only one of a fused product
    mask_by_place: bool = False  # blocks get it without its name: a checkpoint keeps it as it does their input
    tables_by_kind: bool = False  # layers that slide turn by angles of their own
    wide_shares: bool = True  # eager attention asks for softmax in fp32
    caps: bool = False  # eager attention reads the config's cap of scores
    scaled_words: bool = False  # the embedding scales what it looks up
    scaled_embeds: bool = False  # the model does
    scores_apart: bool = False  # its class for classification, or for rewards, is its own, or there is none
    final_first: bool = False  # the final norm is registered before the layers
    dense_mlp: Callable[..., Any] = parts.GatedMlp  # of a mixture's layers without experts
    scales: Callable[..., Any] | None = None  # what turned queries are multiplied by, of their places
    norms_turned: bool = False  # queries and keys are turned before their norms
    repeats_kv: bool = False  # keys and values are repeated for kernels of GPUs before Ampere, which know no groups
    dropped_output: bool = False  # dropout behind attention's output layer, inside of it
    mixer: Callable[..., Any] | None = None  # what layers without attention have in its place
    mixer_path: str = ""


LLAMA = Traits()
MINISTRAL3 = Traits(
    special_tokens=3, inputs=inputs.turned_with_places, turn=parts.rotary_of_tables, scales=parts.scale_of_places,
)  # fmt: skip
GEMMA_NORMS = 2  # of a layer; Gemma 2 has four
GEMMA = Traits(special_tokens=3, norm=GemmaNorm, scaled_words=True)
GEMMA2 = GEMMA._replace(
    kinds=inputs.BOTH, wiring=wirings.sandwiched, eager_only=True, caps=True,
    order=("attention", "mlp", "norm1", "norm3", "norm2", "norm4"),
    norms=(
        "input_layernorm", "pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm",
    ),
)  # fmt: skip
GEMMA3 = GEMMA2._replace(
    eager_only=False, caps=False, tables_by_kind=True, inputs=inputs.turned_by_kind, qk_norms=("q_norm", "k_norm"),
    project=parts.project_behind,
)  # fmt: skip
GEMMA4 = Traits(special_tokens=3, kinds=inputs.BOTH, scaled_words=True)
GRANITE = Traits(scaled_embeds=True, scaled_logits=True, scores_apart=True, wiring=wirings.scaled)
OLMO2 = Traits(
    norms=("post_attention_layernorm", "post_feedforward_layernorm"), norm=parts.WideNorm,
    qk_norms=("q_norm", "k_norm"), project=parts.project_normed_whole, turn=parts.rotary_cast,
    tables=parts.tables_wide, wiring=wirings.normed_behind,
)  # fmt: skip
QWEN3_5 = Traits(
    special_tokens=3, norm=GemmaNorm, qk_norms=("q_norm", "k_norm"), mixer=delta.GatedDelta, mixer_path="linear_attn",
    written=delta.gated, inputs=delta.turned_beside_delta, scores_apart=True,
)  # fmt: skip
COHERE = Traits(
    special_tokens=3, norm=parts.CohereNorm, turn=parts.rotary_interleaved, tables=parts.tables_interleaved,
    wiring=wirings.parallel, order=("attention", "mlp", "norm1"), scaled_logits=True,
)  # fmt: skip
TYPES = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": Traits(kinds=inputs.NAMED),
    "qwen3": Traits(qk_norms=("q_norm", "k_norm"), project=parts.project_normed, kinds=inputs.NAMED),
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "phi3": Traits(
        special_tokens=3, qkv=("qkv_proj",), placed="oq", project=parts.project_cut,
        turn=parts.rotary_part_behind, mlp=parts.FusedGatedMlp, wiring=wirings.dropped,
    ),
    "ministral3": MINISTRAL3,
    "ernie4_5": Traits(special_tokens=3, turn=parts.rotary_pairs_wide, tables=parts.tables_wide),
    "hunyuan_v1_dense": Traits(special_tokens=3, qk_norms=("query_layernorm", "key_layernorm"), norms_turned=True),
    "smollm3": Traits(special_tokens=3, kinds=inputs.NAMED),
    "granite": GRANITE,
    "granitemoehybrid": GRANITE._replace(
        order=("norm1", "norm2", "mlp", "attention"), mlp_path="shared_mlp", mlp=parts.GraniteMlp,
        inputs=inputs.beside_recurrent,
    ),
    "lfm2": Traits(
        special_tokens=3, final="embedding_norm", rotary_first=True, output="out_proj",
        norms=("operator_norm", "ffn_norm"), qk_norms=("q_layernorm", "k_layernorm"), project=parts.project_normed,
        mlp_path="feed_forward", mlp=parts.Lfm2Mlp, wiring=wirings.lfm2, mixer=ShortConv, mixer_path="conv",
        scores_apart=True, inputs=inputs.turned_beside_mixing,
    ),
    "qwen3_5_text": QWEN3_5,
    "qwen3_5": QWEN3_5._replace(stem="model.language_model"),
    "hyperclovax": Traits(
        scaled_embeds=True, scaled_logits=True, scores_apart=True, wiring=wirings.scaled,
        order=("attention", "mlp", "norm1", "norm2", "norm3", "norm4"),
        norms=("input_layernorm", "post_attention_layernorm", "post_norm1", "post_norm2"),
        norm=partial(RmsNorm, decays=True),  # by their names the last two do
    ),
    "exaone": Traits(
        stem="transformer", embed="wte", layers="h", final="ln_f", order=("norm1", "attention", "norm2", "mlp"),
        norms=("ln_1", "ln_2"), attention="attn.attention", output="out_proj", mlp=parts.ExaoneMlp,
    ),
    "exaone4": Traits(
        kinds=inputs.NAMED, norms=("post_attention_layernorm", "post_feedforward_layernorm"),
        qk_norms=("q_norm", "k_norm"), project=parts.project_behind, wiring=wirings.normed_behind,
    ),
    "olmo2": OLMO2,
    "olmo3": OLMO2._replace(kinds=inputs.BOTH, tables_by_kind=True, inputs=inputs.turned_by_kind),
    "mixtral": Traits(mlp=experts.mixtral),
    "qwen2_moe": Traits(kinds=inputs.BOTH, mlp=experts.Mixture),
    "qwen3_moe": Traits(
        qk_norms=("q_norm", "k_norm"), project=parts.project_normed, mlp=experts.qwen3_moe,
    ),
    "gpt2": Traits(
        stem="transformer", embed="wte", positions="wpe", layers="h", final="ln_f",
        order=("norm1", "attention", "norm2", "mlp"), norms=("ln_1", "ln_2"), attention="attn", qkv=("c_attn",),
        output="c_proj", norm=LayerNorm, linear=parts.Conv1D, inputs=inputs.summed, wide_shares=False,
        project=parts.project_split, turn=as_it_is, mlp=parts.named_mlp("c_fc", "c_proj", dropped=True),
        wiring=wirings.gpt2, dropped_output=True, mask_by_place=True,
        scores_apart=True,
    ),
    "opt": Traits(
        special_tokens=3, stem="model.decoder", positions="embed_positions", position_offset=2,
        final="final_layer_norm", final_first=True, order=("attention", "norm1", "mlp", "norm2"), placed="kvqo",
        output="out_proj", norms=("self_attn_layer_norm", "final_layer_norm"), norm=LayerNorm,
        inputs=inputs.counted, turn=as_it_is, scores_apart=True, project=parts.project_scaled, mlp_path="",
        mlp=parts.named_mlp("fc1", "fc2"), wiring=wirings.opt,
    ),
    "qwen2_vl": Traits(stem="model.language_model", project=parts.project_together),
    "qwen2_5_vl": Traits(stem="model.language_model", project=parts.project_together),
    "qwen3_vl": Traits(
        stem="model.language_model", qk_norms=("q_norm", "k_norm"), project=parts.project_normed,
    ),
    **dict.fromkeys(("llava", "llava_next", "mistral3"), Traits(stem="model.language_model")),
    **dict.fromkeys(("idefics3", "smolvlm"), Traits(stem="model.text_model")),
    "paligemma": GEMMA._replace(stem="model.language_model"),
    "gemma3": GEMMA3._replace(stem="model.language_model"),
    "gemma4_text": GEMMA4,
    **dict.fromkeys(("gemma4", "gemma4_unified"), GEMMA4._replace(stem="model.language_model")),
    "gpt_oss": Traits(special_tokens=3, eager_only=True, kinds=inputs.BOTH),
    "gpt_neox": Traits(
        stem="gpt_neox", embed="embed_in", final="final_layer_norm", order=("norm1", "norm2", "attention", "mlp"),
        attention="attention", qkv=("query_key_value",), output="dense", norm=LayerNorm,
        project=parts.project_fused, turn=parts.rotary_part,
        mlp=parts.named_mlp("dense_h_to_4h", "dense_4h_to_h"), wiring=wirings.neox,
    ),
    "stablelm": Traits(
        norm=LayerNorm, project=parts.project_together, turn=parts.rotary_part_here, wiring=wirings.stablelm,
    ),
    "starcoder2": Traits(
        norm=LayerNorm, mlp=parts.named_mlp("c_fc", "c_proj", dropped=True), dropped_output=True,
    ),
    "cohere": COHERE,
    "cohere2": COHERE._replace(kinds=inputs.BOTH),
    "glm": Traits(turn=parts.rotary_pairs_part, mlp=parts.FusedGatedMlp),
    "glm4": Traits(
        turn=parts.rotary_pairs_part, mlp=parts.FusedGatedMlp, wiring=wirings.sandwiched,
        order=("attention", "mlp", "norm1", "norm2", "norm3", "norm4"),
        norms=("input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"),
    ),
    "gptj": Traits(
        stem="transformer", embed="wte", layers="h", final="ln_f", order=("norm1", "attention", "mlp"),
        norms=("ln_1",), attention="attn", output="out_proj", norm=LayerNorm, inputs=inputs.looked_up,
        written=written.gptj, angles=written.table_of_angles,
        mlp=parts.named_mlp("fc_in", "fc_out", dropped=True), wiring=wirings.gptj,
    ),
    "gpt_neo": Traits(
        stem="transformer", embed="wte", positions="wpe", layers="h", final="ln_f",
        order=("norm1", "attention", "norm2", "mlp"), norms=("ln_1", "ln_2"), attention="attn.attention",
        output="out_proj", norm=LayerNorm, inputs=inputs.placed, written=written.gpt_neo, eager_only=True,
        table=written.table_of_sight, mlp=parts.named_mlp("c_fc", "c_proj", dropped=True), wiring=wirings.gpt_neo,
    ),
    "bloom": Traits(
        special_tokens=3,
        stem="transformer", embed="word_embeddings", embed_norm="word_embeddings_layernorm", layers="h", final="ln_f",
        order=("norm1", "attention", "norm2", "mlp"), attention="self_attention", qkv=("query_key_value",),
        output="dense", norm=LayerNorm, inputs=inputs.sloped, written=written.bloom, eager_only=True,
        numbers=False, mlp=parts.BloomMlp, wiring=wirings.bloom,
    ),
    "falcon": Traits(
        stem="transformer", embed="word_embeddings", layers="h", final="ln_f", attention="self_attention",
        qkv=("query_key_value",), output="dense", norm=LayerNorm, inputs=inputs.falcon, written=written.falcon,
        linear=parts.by_hand, mlp=parts.named_mlp("dense_h_to_4h", "dense_4h_to_h"), wiring=wirings.falcon,
    ),
    "phi": Traits(
        final="final_layernorm", rotary_first=True, order=("attention", "mlp", "norm1"), output="dense",
        norm=LayerNorm, turn=parts.rotary_part_here, mlp=parts.named_mlp("fc1", "fc2"), wiring=wirings.phi,
    ),
}  # fmt: skip


# What a row was while the type wrote its attention out.
BEFORE = {
    "gptj": TYPES["gptj"]._replace(
        inputs=inputs.numbered, written=written.gptj_before, eager_only=True, table=written.table_of_angles,
        angles=no_table, wiring=wirings.gptj_before,
    ),
}  # fmt: skip


def traits_of(model_type: str, a: Architecture | None = None, *, writes: bool = False) -> Traits:
    """The row of a type; Falcon's norms are named by what they come before, where each has its own; PaliGemma's
    words may be Gemma 2's, Mistral 3's Ministral 3's. ``writes``: of a release in which it writes its attention out.

    Raises:
        NotFollowedError: the type has none.
    """
    if model_type not in TYPES:
        raise NotFollowedError(model_type)
    traits = BEFORE[model_type] if writes else TYPES[model_type]
    if a is not None and model_type == "falcon" and a.grouped_qkv and a.norms > 1:
        return traits._replace(norms=("ln_attn", "ln_mlp"))
    if a is not None and model_type == "paligemma" and a.norms > GEMMA_NORMS:
        return GEMMA2._replace(stem=traits.stem)
    if a is not None and model_type == "mistral3" and a.scales_queries:
        return MINISTRAL3._replace(stem=traits.stem)
    return traits


def check_run(a: Architecture, setup: TrainingSetup) -> None:
    """Refuse, by name, what is not followed of a type whose attention is its own, or of a mixture of experts.

    Raises:
        NotFollowedError: the type has no row, or the run does with it what is not followed.
    """
    traits, flash = traits_of(a.model_type), setup.attn_implementation == "flash"
    if a.model_type in REMOTE:
        refuse(a.model_type, setup)
    written, mixture = traits.written is not None, a.model_type in experts.TYPES
    together = mixture and not setup.earlier.experts_apart
    wraps = setup.method != "full" and experts.wrapped(setup.lora_target_modules)
    rewards = setup.post is not None and setup.post.kind == "reward"
    refused = {
        "flash_attention_2": flash and written,
        "ZeRO-3": setup.zero_stage == 3 and bool((mixture and not together) or a.mixes),
        "reward": rewards and (written or traits.scores_apart),
        "LoRA on experts": together and wraps,
        # PEFT refuses the name, which is also that of what holds the convolution
        "LoRA on conv": bool(a.mixes) and setup.method != "full" and "conv" in (setup.lora_target_modules or ()),
        "output_router_logits": a.router_loss,
        "FSDP": setup.fsdp and a.delta is not None,
        "use_liger_kernel": setup.liger_kernels is not None and a.delta is not None,
        f"experts of {a.expert_ff}": together and bool(a.expert_ff % experts.STEP or a.d_model % experts.STEP),
    }
    for name, refuses in refused.items():
        if refuses:
            refuse(f"{name} of {a.model_type}", setup)
