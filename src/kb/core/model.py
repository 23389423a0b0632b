"""A model's architecture, as its ``config.json`` gives it, and its entry in ``rules/models``."""

from kb.core.record import NamedTuple
from kb.core.setup import WeightType
from kb.core.typed import Literal

Family = Literal["t5", "bart", "decoder", "encoder"]
# Types whose layers Unsloth runs by code of its own that is followed: Gemma 2, Granite, Cohere, mixtures have others.
OF_UNSLOTH = ("llama", "mistral", "qwen2", "qwen3", "gemma")
DYNAMIC_4BIT = "-unsloth-bnb-4bit"  # ends the names of checkpoints that Unsloth stores in 4 bits but for some layers
Norm = Literal["layer", "rms", "rms_offset"]  # rms_offset: Gemma's, in fp32 and scaled by one plus its weight
QkNorm = Literal["none", "head", "whole"]  # over each head's dimensions, or over all of them
# span: question answering; embedding: none, the states themselves are read
Head = Literal["causal", "masked", "sequence", "token", "span", "embedding"]


class Vision(NamedTuple):
    """A tower of layers that sees pictures as patches, and what makes a decoder's tokens of them: a merger of
    neighbours (Qwen2-VL), or a projector of each (LLaVA), from which on the fields are those of LLaVA."""

    depth: int
    width: int
    ff: int
    heads: int
    channels: int
    patch: int  # pixels, of each side
    frames: int  # that a patch holds: a picture is put there twice
    merge: int  # patches of each side that become a token
    activation: str
    window: int = 0  # pixels, of each side, that a windowed layer sees; 0: all layers see all
    full_layers: tuple[int, ...] = ()  # that see all, where others are windowed
    image: int = 0  # pixels, of each side, that the tower takes; 0: of any
    states: tuple[int, ...] = ()  # what is projected: so many layers' states, 0 before the first
    classed: bool = False  # a state of the class stands before those of the patches (CLIP; SigLIP has none)
    drops_first: bool = False  # the first state is left out
    projector_activation: str = ""
    projector_bias: bool = True
    tilings: tuple[tuple[int, int], ...] = ()  # LLaVA-NeXT: heights and widths that a picture is cut into tiles of
    splits: int = 0  # Idefics3: tiles of a picture's longer side, whatever size it has
    places: int = 0  # learned, of which those of a picture are interpolated (Qwen3-VL); 0: none
    centres: bool = False  # what it gives is moved and scaled by two vectors (Gemma 4)
    clamps: bool = False  # its linear layers clamp what comes in and what goes out (Gemma 4)
    blocks: bool = False  # masks are made with the blocks of pictures where there is none, too (Gemma 4 without towers)

    @property
    def side(self) -> int:
        """Pixels of each side of a token."""
        return self.patch * self.merge


class Hearing(NamedTuple):
    """A tower of layers that hears (Gemma 4)."""

    depth: int
    width: int
    heads: int
    kernel: int  # of the convolution in each layer
    channels: tuple[int, ...]  # of the two convolutions before the layers
    out: int
    clamps: bool  # its linear layers clamp what comes in and what goes out


class Delta(NamedTuple):
    """Heads of layers that mix by the gated delta rule (Qwen3.5)."""

    key_heads: int
    value_heads: int
    key_width: int
    value_width: int
    least: bool = False  # as little is kept as any kernel can, in the place of torch's own code


class Architecture(NamedTuple):
    """Dimensions, in the names that papers give them.

    ``family`` says how it is built: T5, mT5 and UMT5 are all ``t5``; ``decoder`` and ``encoder`` are models of one
    stack, whose other stack has no layers. ``model_type`` is transformers' own name. From ``kv_heads`` on, the fields
    are those of models of one stack.
    """

    family: Family
    model_type: str
    d_model: int  # D
    d_ff: int  # F
    num_heads: int  # H
    d_kv: int  # d_kv; the inner size is H·d_kv
    encoder_layers: int
    decoder_layers: int
    vocab_size: int  # V
    gated: bool = False  # feed-forward of two input projections (wi_0, wi_1)
    tied: bool = True  # output layer shares the input embedding
    max_positions: int | None = None  # learned positions; None where they are relative
    relative_buckets: int = 0
    biases: bool = False  # linear layers have bias vectors (BART: yes, T5: no)
    attention_dropout: bool = False  # BART: dropout on the attention probabilities (T5's is always there)
    activation_dropout: bool = False  # BART: dropout between the feed-forward's layers
    kv_heads: int | None = None  # heads of keys and values; None: as many as num_heads
    activation: str = ""  # transformers' name: silu, gelu, gelu_new, gelu_pytorch_tanh, relu, …
    norm: Norm = "layer"
    norms: int = 2  # of the residual stream, in a layer; four: one before and one after each sublayer
    norms_sums: bool = False  # OPT-350m: norms come behind the sums, and there is none at the end
    norm_after: bool = False  # the only norm of a sublayer comes after it (EXAONE 4)
    hidden_dropout: bool = False  # after each sublayer
    embedding_dropout: bool = False
    embedding_size: int | None = None  # E, where tokens are embedded narrower (or wider) than D
    qkv_bias: bool = False
    output_bias: bool = False  # of attention's output projection
    mlp_bias: bool = False
    head_bias: bool = False
    qk_norm: QkNorm = "none"
    rotary: float = 0.0  # share of each head's dimensions that is turned; 0: no rotary positions
    alibi: bool = False  # no positions: scores fall with a token's distance, by a slope for each head
    parallel: bool = False  # attention and feed-forward read one input and are added together
    fused_qkv: bool = False  # one linear layer for q, k and v
    grouped_qkv: bool = False  # whose rows are those of groups: their queries, the key and the value that they share
    fused_gates: bool = False  # one linear layer for gate and up
    window: int | None = None  # tokens that a sliding layer sees
    windowed_layers: int = 0  # how many layers slide
    slides: tuple[bool, ...] = ()  # which layers do, where not all are alike
    turns: tuple[bool, ...] = ()  # which layers turn queries and keys by their positions, where not all do
    delta: Delta | None = None  # of layers without attention
    mixes: tuple[bool, ...] = ()  # which layers have no attention: a convolution (LFM2) mixes their tokens
    reuses: tuple[bool, ...] = ()  # which layers take the keys and values of an earlier one of their kind (Gemma 4)
    wide_d_kv: int = 0  # d_kv of layers that see everything, where it is another than that of those that slide
    wide_kv_heads: int = 0  # kv_heads of the same layers, likewise
    keys_are_values: bool = False  # in the same layers (Gemma 4)
    wide_reusing: bool = False  # feed-forwards of layers that reuse keys and values are twice as wide
    layer_inputs: int = 0  # width of what each layer gets of a token by a table of its own (Gemma 4)
    layer_vocab: int = 0  # rows of that table
    scales_queries: bool = False  # attention multiplies queries by a number of their places (Ministral 3 in Mistral 3)
    score_cap: bool = False  # attention scores pass through a tanh (Gemma 2)
    logit_cap: bool = False  # so do the logits
    experts: int = 0  # mixture of experts: how many
    experts_per_token: int = 0
    expert_ff: int = 0  # feed-forward size of one expert
    shared_ff: int = 0  # feed-forward size of the expert that every token passes
    dense_layers: int = 0  # layers without experts, of a mixture
    dense: tuple[bool, ...] = ()  # which those are, where there are any
    shares_normed: bool = False  # what a token's experts weigh is made to sum to one
    router_loss: bool = False  # of a mixture: a loss of its router's is added
    type_vocab_size: int = 0  # kinds of segments that encoders embed
    pooler: bool = False
    head: Head = "causal"
    labels: int = 2  # classes of a classification head
    head_dropout: bool = False  # in a classification head
    averages: bool = False  # which reads the average of all tokens, not the first (ModernBERT)
    shared_layers: bool = False  # all layers share one layer's weights (ALBERT)
    global_block: int = 0  # LongT5: tokens that a global one stands for; 0: tokens see their neighbours alone
    windows: tuple[int, ...] = ()  # Longformer and LED: tokens that each layer's attention sees around one
    block: int = 0  # BigBird: tokens of a block; 0: every token sees all
    random_blocks: int = 0  # BigBird: blocks drawn at random that each one sees
    keeps_inputs: bool = False  # XLNet: evaluation keeps every layer's input
    target_positions: int = 0  # LED: learned positions of its decoder; ``max_positions`` are its encoder's
    relative: str = ""  # DeBERTa: the relative attentions, as pos_att_type names them, joined by "|"
    share_att_key: bool = False  # DeBERTa: position keys come from the content's projections
    conv: int = 0  # kernel size: of the convolution beside the first layer (DeBERTa v2), of layers that mix (LFM2)
    conv_activation: str = ""  # the activation behind it
    log_buckets: bool = False  # DeBERTa: far distances are put in buckets that grow
    numbered: int = 0  # DeBERTa: positions that it numbers, whether or not it embeds them
    relative_norm: bool = False  # DeBERTa: a layer norm over the position embeddings
    mel_bins: int = 0  # Whisper: rows of its log-mel features
    audio_positions: int = 0  # Whisper: positions of its encoder, which its convolutions make of twice as many frames
    vision: Vision | None = None  # what it sees with
    hearing: Hearing | None = None  # what it hears with, beside that
    engine: bool = False  # its modules and parameters are read off the memory engine's model

    @property
    def caching(self) -> tuple[int, int]:
        """How many layers of the decoder keep keys and values of every token, and how many those of a window."""
        reused = [slides for slides, reuses in zip(self.slides, self.reuses, strict=False) if reuses]
        sliding = self.windowed_layers - sum(reused)
        return self.decoder_layers - self.windowed_layers - sum(self.mixes) - (len(reused) - sum(reused)), sliding

    @property
    def hears(self) -> bool:
        """Whether the input is sound, of one length whatever a run says (Whisper)."""
        return bool(self.audio_positions)

    @property
    def uncut(self) -> bool:
        """Whether inputs are not made shorter to save memory: sound is of one length, images stay whole."""
        return self.hears or self.vision is not None


class ModelIdentity(NamedTuple):
    """What a ``config.json`` says of a model, whether or not kb knows its architecture."""

    model_type: str  # transformers' own name
    is_encoder_decoder: bool | None = None  # None: the file does not say it
    vocabulary_size: int | None = None


class Model(NamedTuple):
    """One row of ``rules/models``."""

    id: str
    name: str  # hub name
    architecture: Architecture
    parameters: int
    aliases: tuple[str, ...] = ()
    max_length: int | None = None  # tokens: what the card or the tokenizer names, where known
    weights_dtype: WeightType | None = None  # what its checkpoint stores, where known
    other_weights: tuple[tuple[str, WeightType], ...] = ()  # aliases whose checkpoints store another type
    packed: str | None = (
        None  # how its checkpoint packs weights of that type, where not as bitsandbytes does: mxfp4, awq
    )
    guessed_from: str = ""  # the name that only seems to speak of this model

    @property
    def identity(self) -> ModelIdentity:
        """Its type, kind and vocabulary, as the architecture has them."""
        found = self.architecture
        return ModelIdentity(found.model_type, found.family in ("t5", "bart"), found.vocab_size)
