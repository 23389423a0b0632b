"""What a config asks for, in the field's own names; read from a file by ``config/``, or from flags."""

from kb.core.record import NamedTuple
from kb.core.typed import Literal

Method = Literal["full", "lora", "qlora"]
# How a causal model comes from its logits to the loss: ``labels`` are shifted; logits in fp32 are ``copied`` without
# the last position; ``narrow`` ones are; ``wide``: the model makes them fp32 first, and returns them so.
CausalLoss = Literal["labels", "copied", "narrow", "wide"]
# What a cache of keys and values is: ``copied`` from its first token on; ``given``: it keeps what it is first given;
# ``tuples``: so too, and beams put new tensors in the place of all of them at once.
CacheKind = Literal["copied", "alike", "given", "tuples"]
Attention = Literal["eager", "sdpa", "flash"]
WeightType = Literal["fp32", "fp16", "bf16"]
TORCHAO = {"adamw_torch_8bit": 1, "adamw_torch_4bit": 2}  # its optimizers: values in a byte


class Assumption(NamedTuple):
    """A value that the config did not give: the fact, the value taken, and whose default it is."""

    name: str
    value: object
    reason: str  # a key of i18n under `assumption.`


ACCUMULATED = "accumulates"  # the reason of steps that only the program works out

KeepsOutputs = Literal["no", "step", "loop"]  # of a forward pass: to its step's end, or through the next one
# Where 4-bit weights wait for FSDP: whole on each GPU, which packs them (transformers from 5), or on the host, where
# each is brought as soon as it is packed (before 5, and programs of one's own such as fsdp_qlora); ``warmed``: so too,
# after a block of a byte for each parameter was taken and given back (4.51 to 4.57).
PackedOn = Literal["gpu", "host", "warmed"]
QuantStorage = Literal["uint8", "fp16", "bf16", "fp32"]


class Spread(NamedTuple):
    """How a run is spread over GPUs, beyond its processes and its ZeRO stage. Buckets and distances in elements, as
    DeepSpeed has them; None is the library's default."""

    nodes: int = 1
    tensor_parallel: int = 1
    deepspeed: bool = False  # DeepSpeed runs it, whatever the stage
    reduce_bucket: int | None = None
    prefetch_bucket: int | None = None
    max_live_parameters: int | None = None
    max_reuse_distance: int | None = None
    overlap_comm: bool | None = None
    contiguous_gradients: bool = True
    optimizer_offload_ratio: float = 1.0
    optimizer_on_disk: bool = False  # offloaded to NVMe: the host keeps buffers only
    params_on_disk: bool = False
    fsdp_version: int = 2
    fsdp_reshard: bool = True  # parameters are sharded again after the forward pass
    fsdp_wrapped: bool = True  # each layer is a unit of its own
    fsdp_backward_prefetch: Literal["no", "pre", "post"] = "no"  # FSDP1 gathers the unit before, ahead of its turn
    fsdp_forward_prefetch: bool = False
    wide_shards: bool = False  # FSDP keeps fp32 shards of what it computes in half
    packed_on: PackedOn = "gpu"
    gradient_as_bucket_view: bool = False
    find_unused: bool | None = None  # DDP looks for parameters that a pass did not use; None: the Trainer's default


PostKind = Literal["sft", "dpo", "kto", "orpo", "cpo", "reward", "grpo", "rloo", "embedding"]
PAIRED = ("dpo", "orpo", "cpo", "reward")  # a chosen and a rejected answer: two rows for each sample
Head = Literal["fused", "rows", "copied", "wide"]


class Liger(NamedTuple):
    """How the installed releases of TRL and liger-kernel compute a loss with Liger. It runs outside of autocast."""

    tiles: bool = True  # GRPO: a tile of tokens × words at a time (liger-kernel from 0.8); else a row's whole logits
    frozen_gradient: bool = False  # the output layer's gradient is made where it does not train either (before 0.8.4)
    states_kept: bool = False  # every layer's output is kept until the loss is there (DPO of TRL before 0.29)
    autocast: bool = False  # TRL casts the adapters of 4-bit weights to bf16, and sets autocast for it (before 0.29)


NEWEST_LIGER = (0, 8, 5)  # of liger-kernel, as far as was read


class LigerKernels(NamedTuple):
    """What the Trainer does with liger-kernel in plain training (``use_liger_kernel``)."""

    release: tuple[int, ...] = NEWEST_LIGER
    layers: bool = True  # norms, rotary embedding and feed-forward are Liger's too, not the loss alone
    skips: bool = True  # no logits in evaluation either, where the loss alone is asked for (``skip_logits``)


class Colocated(NamedTuple):
    """vLLM in the training process. It takes a share of the whole GPU, weights and KV cache in one."""

    share: float
    sleeps: bool = False  # it gives its memory back while the model trains
    ranks: int = 1  # GPUs that its copy of the weights is split over
    length: int | None = None  # the longest request in tokens; None: the model's own positions
    requests: int = 1  # at once
    packed: bool = False  # its copy is packed by bitsandbytes in 4 bits, as the policy is


class PostTraining(NamedTuple):
    """What a run of TRL or its like does beyond plain training. Lengths in tokens.

    ``head`` is how logits become the answers' log-probabilities: ``fused`` in tiles, without whole logits (TRL from
    1.15); ``rows`` of whole logits, row by row; ``copied`` of a contiguous copy of them; ``wide`` of logits that are
    all made fp32 first, by one log_softmax (LLaMA-Factory).
    """

    kind: PostKind
    head: Head = "fused"
    reference: Literal["none", "model", "adapter_off"] = "none"
    completion: int = 0  # of a length, the answer's tokens, where the run generates it
    scored: int = 0  # of a length, the tokens that the loss reads, where the project says so; 0: all of them
    generated_rows: int = 0  # answers that the model itself generates at once; 0: something else does, or nobody
    colocated: Colocated | None = None  # vLLM generates, in the same process
    liger: Liger | None = None  # the policy's loss is Liger's; ``head`` is then that of the passes beside it
    columns: int = 2  # of embedding training, the texts of a sample: an anchor, its answer, negatives
    cached: int = 0  # GradCache: so many samples are embedded at once; 0: all of them
    pooling: Literal["mean", "cls"] = "mean"
    normalizes: bool = False  # embeddings are brought to one length before the loss does so again


# Of a data set's samples, the share that is no longer than each of the lengths by which it is described.
LENGTH_SHARES = {
    "shortest": 0.0, "p10": 0.1, "p25": 0.25, "median": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99,
    "longest": 1.0,
}  # fmt: skip


class DataLengths(NamedTuple):
    """How long the samples of a project's data are, in tokens, at each of :data:`LENGTH_SHARES`; ``target`` is that of
    an encoder-decoder model, empty where nobody said."""

    input: tuple[int, ...]
    target: tuple[int, ...] = ()


class Images(NamedTuple):
    """The pictures of one sample: how many, and each one's patches, as rows and columns of the vision tower's grid;
    where a model cuts pictures into tiles (LLaVA-NeXT), their height and width in pixels."""

    number: int
    rows: int
    columns: int

    @property
    def patches(self) -> int:
        """Of all of the sample's pictures."""
        return self.number * self.rows * self.columns


# What trains beside frozen weights: as PEFT makes it (adapters fp32, modules to save as loaded), or all of one type.
TrainedType = Literal["peft", "fp32", "bf16"]


class EarlierRelease(NamedTuple):
    """What a model does otherwise under the release at hand than under the newest (``kb.memory.releases``)."""

    causal_loss: CausalLoss = "labels"
    caches: bool = False  # evaluation keeps each layer's keys and values, too (`use_cache`)
    fills_none: bool = False  # T5's decoder keeps none where nothing is generated
    uncapped: bool = False  # attention whose scores are capped is computed by sdpa all the same, which caps none
    whole_logits: bool = False  # generation makes logits of all of the prompt, not of its last token
    biases_masked: bool = False  # T5 adds the mask to its position biases, once for all layers
    cache: CacheKind = "copied"
    tuples_returned: bool = False  # a forward pass gives keys and values in tuples, which are made fp32 after autocast
    scores_held: bool = False  # eager attention of encoders holds its scores beside what softmax makes of them
    weights_returned: bool = False  # encoders' layers return what softmax made, which lives through the next layer
    sight_table: bool = False  # every attention has a table of which token sees which
    experts_apart: bool = False  # a mixture's experts are linear layers, which tokens pass one expert after another
    experts_named: bool = False  # each step of a mixture's experts has a name, and lives to the end of the layer
    gives_features: bool = False  # a model that sees gives back what took words' places, not all of its tower's outputs
    writes_attention: bool = False  # the type writes its attention out, where it has transformers' interface since
    packs_subclasses: bool = False  # bitsandbytes packs linear layers of a model's own class as well
    masks_let_go: bool = False  # what a mask is made from goes as soon as it was read
    checkpoints_units: bool = False  # a checkpoint lies around FSDP1's unit of a layer; since then, inside of it


class TrainingSetup(NamedTuple):
    """One run's settings. Lengths in tokens, batches in samples, per device.

    ``fp16`` and ``bf16`` are the Trainer's autocast; ``weights`` is the type the weights are loaded in.
    """

    model_name: str | None = None
    method: Method = "full"
    do_train: bool = True
    do_eval: bool = False
    do_predict: bool = False  # inference with its own batch (`inference_batch_size`)

    fp16: bool = False
    bf16: bool = False
    weights: WeightType = "fp32"
    attn_implementation: Attention = "sdpa"
    earlier: EarlierRelease = EarlierRelease()
    padded: bool = True

    per_device_train_batch_size: int = 8
    per_device_eval_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    max_source_length: int = 512
    max_target_length: int = 128
    lengths: DataLengths | None = None  # None: every sample is at the maximum
    optim: str = "adamw_torch_fused"
    keeps_outputs: KeepsOutputs = "no"
    outputs_widened: bool = True  # what autocast made is made fp32 (accelerate); a loop of one's own may leave it
    gradients_kept: bool = False  # those of a step live through the next one's forward pass
    gradient_checkpointing: bool = False
    use_reentrant: bool = False
    offloads_checkpoints: bool = False  # what goes into a checkpointed layer waits on the host for its backward pass
    label_smoothing_factor: float = 0.0
    fused_loss: bool = False  # Liger and its like: the loss is computed in pieces, without whole logits
    fused_evaluation: bool = False  # so too in evaluation (Cut Cross-Entropy; Liger makes logits there)
    liger_kernels: LigerKernels | None = None  # whose fused loss it is; None: a kernel that nobody names
    unsloth: bool = False  # Unsloth loads the model
    unsloth_layers: bool = False  # and puts layers of its own in it, as FastLanguageModel does

    predict_with_generate: bool = False
    prediction_loss_only: bool = False
    eval_accumulation_steps: int | None = None
    eval_samples: int | None = None
    generation_max_length: int = 20
    generation_num_beams: int = 1
    inference_batch_size: int | None = None
    inference_num_beams: int = 1
    inference_max_length: int = 20

    lora_r: int = 8
    lora_target_modules: tuple[str, ...] | None = None  # None: PEFT's default for the architecture
    modules_to_save: tuple[str, ...] = ()
    trained_tokens: int = 0  # rows of the words' table that PEFT trains by themselves (`trainable_token_indices`)
    lora_dropout: float = 0.0
    use_dora: bool = False
    load_in_4bit: bool = False
    load_in_8bit: bool = False
    bnb_4bit_use_double_quant: bool = False
    bnb_4bit_quant_storage: QuantStorage = "uint8"  # the type that FSDP sees packed weights in
    prepare_for_kbit: bool = True  # peft's fp32 upcast of what is not 4-bit
    half_tables: bool = False  # after that, embeddings and output layer back in bf16 (TRL before 0.26)
    trained_type: TrainedType = "peft"
    images: Images | None = None  # of each sample, where the model sees; None: nobody says
    frozen: tuple[str, ...] = ()  # parts of modules' names: what there is is not trained, nor gets adapters
    checkpoints_trained: bool = False  # layers without anything that trains are neither checkpointed nor run backward
    frozen_weights: WeightType | None = None  # of those, where only what is trained is in ``weights``

    dataloader_num_workers: int = 0
    dataloader_pin_memory: bool = True
    dataloader_prefetch_factor: int = 2
    dataloader_persistent_workers: bool = False

    world_size: int = 1
    zero_stage: int = 0
    offload_optimizer: bool = False
    offload_param: bool = False
    fsdp: bool = False
    spread: Spread = Spread()
    post: PostTraining | None = None  # None: plain training
    uncompared: tuple[str, ...] = ()  # what the memory engine follows too, though no real code was compared there

    assumed: tuple[Assumption, ...] = ()
    unmodelled: tuple[str, ...] = ()  # what changes memory and has no model, by name; then unresolved too
    unresolved: tuple[str, ...] = ()  # settings that matter and whose value is unknown: nothing can be predicted

    @property
    def training_alone(self) -> "TrainingSetup":
        """The run without evaluation and inference: its training is the same, since they come after it."""
        return self._replace(do_train=True, do_eval=False, do_predict=False)

    @property
    def data_parallel_size(self) -> int:
        """Processes that see different samples; those of one tensor-parallel group see the same."""
        return max(self.world_size // max(self.spread.tensor_parallel, 1), 1)

    @property
    def effective_batch_size(self) -> int:
        """Samples for one optimizer step: per device × accumulation × data-parallel size."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps * self.data_parallel_size

    @property
    def holds_more(self) -> bool:
        """Whether a loop of the program's own holds what a Trainer lets go of, or leaves outputs in autocast's type."""
        return self.keeps_outputs != "no" or self.gradients_kept or not self.outputs_widened

    @property
    def batch_known(self) -> bool:
        """Whether the run trains, and with an effective batch size that nothing leaves open."""
        factors = (
            "training.per_device_train_batch_size",
            "training.gradient_accumulation_steps",
            "launch.num_processes",
        )
        taken = any(each.reason == ACCUMULATED for each in self.assumed)
        # of a run without a memory model, what is assumed is the Trainer's, not its own
        open_too = {each.name for each in self.assumed} if self.unmodelled else frozenset[str]()
        if "script.trainer" in self.unresolved:  # PPOConfig was no TrainingArguments before TRL 0.12
            open_too = {each.name for each in self.assumed} & {factors[0]}
        return self.do_train and not taken and not any(name in self.unresolved or name in open_too for name in factors)

    @property
    def method_known(self) -> bool:
        """Whether it is known what is trained: of an adapter that no format has, ``method`` says nothing, nor of packed
        weights without one, which are not trained; of one over weights whose width nobody knows it may say LoRA of
        QLoRA."""
        if self.method == "full" and self.packs:
            return False
        widths = ("quantization.load_in_4bit", "quantization.load_in_8bit") if self.method == "lora" else ()
        return not any(name in self.unresolved for name in ("lora.enabled", *widths))

    @property
    def packs(self) -> bool:
        """Whether bitsandbytes packs the weights, in 4 or in 8 bits."""
        return self.load_in_4bit or self.load_in_8bit or self.method == "qlora"

    @property
    def autocast(self) -> bool:
        return self.fp16 or self.bf16
