"""Modules that models are made of, and the model that holds their parameters in the order in which they are placed."""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.engine import ops, quantized
from kb.memory.engine.options import Options
from kb.memory.engine.tape import Staging, checkpoint, checkpoint_reentrant
from kb.memory.engine.tensor import F32, I64, Shape, Tensor, mark, new, packed
from kb.memory.engine.world import Replaced, world

# transformers' Trainer.get_decay_parameter_names: what gets no weight decay, and so is a group of its own
UNDECAYED = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
# What PEFT trains whole beside the adapters of a classifier (peft/utils/other.py, peft_model.py)
KEPT_HEADS = ("classifier", "score", "qa_outputs")


class Linear:
    """A linear layer under its path in the model; ``a`` and ``b`` are LoRA's, ``state`` that of 4 or 8 bits.

    ``packs`` is False of what bitsandbytes leaves wide: output layers, T5's ``wo``, and what is no ``torch.nn.Linear``
    but a class of the model's own (``_replace_with_bnb_linear``, transformers 5.23). ``product`` is its own way to
    multiply, where it has one.
    """

    __slots__ = (
        "a",
        "b",
        "bias",
        "head",
        "magnitude",
        "merged",
        "model",
        "packs",
        "path",
        "product",
        "replaced",
        "state",
        "variant",
        "weight",
    )

    def __init__(
        self,
        model: "Model",
        path: str,
        columns: int,
        rows: int,
        *,
        bias: bool = False,
        weight: Tensor | None = None,
        packs: bool = True,
        head: bool = False,
        product: Callable[..., Tensor] | None = None,
    ) -> None:
        self.product = product
        packs = packs and not head and (product is None or model.options.earlier.packs_subclasses)
        self.model, self.path, self.packs, self.head = model, path, packs, head
        self.a: Tensor | None = None
        self.b: Tensor | None = None
        self.magnitude: Tensor | None = None  # DoRA's
        self.variant: Callable[[Linear, Tensor, Tensor], Tensor] | None = None  # its forward, as PEFT calls it
        self.state: quantized.State | Tensor | None = None
        self.replaced: Any = None
        self.merged: Callable[[Tensor], Tensor] | None = None  # of a tied layer, puts trained rows in
        self.weight = model.parameter(path + ".weight", (rows, columns)) if weight is None else weight
        self.bias = model.parameter(path + ".bias", (rows,)) if bias else None
        model.linears.append(self)

    turned = False  # whether the weight lies as (inputs, outputs)

    def sides(self) -> tuple[int, int]:
        """Outputs and inputs."""
        rows, columns = self.weight.shape
        return rows, columns

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["Linear"] = self.path
        plain = self.a is None or self.model.adapters_off
        if self.merged is not None and not self.model.adapters_off:
            return (self.product or self.model.product)(x, self.merged(self.weight))
        if self.state is not None:
            return quantized.linear(x, self) if plain else self._adapted_quantized(x)
        if self.a is None or self.b is None or plain:
            weight, bias = self.replaced if self.replaced and self.model.adapters_off else (self.weight, self.bias)
            return (self.product or self.model.product)(x, weight, bias)
        result = (self.product or self.model.product)(
            x, self.weight, self.bias
        )  # peft.tuners.lora.layer.Linear.forward
        dtype = result.dtype
        x = ops.cast(x, self.model.seen_type(self.a))
        if self.variant is not None:
            result = self.variant(self, x, result)
            return ops.cast(result, dtype)
        through, dropped = self._through, self.model.adapter_dropout
        result = ops.add(result, ops.scale(through("lora_B", through("lora_A", self.model.drop(x, dropped)))))
        return ops.cast(result, dtype)

    def _through(self, name: str, x: Tensor) -> Tensor:
        """One of LoRA's matrices, which FSDP1 wraps by itself."""
        weight: Any = self.a if name == "lora_A" else self.b
        if not self.model.wraps_adapters:
            return self.model.product(x, weight)
        return self.model.part(f"{self.path}.{name}", self.model.product, x, weight)  # type: ignore[no-any-return]

    def _adapted_quantized(self, x: Tensor) -> Tensor:
        """``peft.tuners.lora.bnb.Linear4bit.forward``: the base's result is cloned first; not so in 8 bits."""
        assert self.a is not None and self.b is not None
        result = quantized.linear(x, self)
        if not isinstance(self.state, Tensor):
            result = ops.clone(result)
        dtype = result.dtype
        convert = world.autocast is None
        if convert:
            x = ops.cast(x, self.model.seen_type(self.a))
        if self.variant is not None:
            result = self.variant(self, x, result)
            return ops.cast(result, dtype) if convert else result
        through, dropped = self._through, self.model.adapter_dropout
        output = ops.scale(through("lora_B", through("lora_A", ops.dropout(x, dropped))))
        if convert:
            output = ops.cast(output, dtype)
        return ops.add(result, output)


class LayerNorm:
    """``torch.nn.LayerNorm``; without weight and bias where ``plain``."""

    __slots__ = ("bias", "path", "weight")

    def __init__(self, model: "Model", path: str, width: int, *, bias: bool = True, plain: bool = False) -> None:
        self.path = path
        self.weight = None if plain else model.parameter(path + ".weight", (width,), decays=False)
        self.bias = model.parameter(path + ".bias", (width,)) if bias and not plain else None

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["LayerNorm"] = self.path
        return ops.layer_norm(x, self.weight, self.bias)


class RmsNorm:
    """``LlamaRMSNorm``: computed in fp32, the weight in its own type; ``decays`` where nothing in its name tells."""

    __slots__ = ("path", "weight")

    def __init__(self, model: "Model", path: str, width: int, *, decays: bool = False) -> None:
        self.path = path
        self.weight = model.parameter(path + ".weight", (width,), decays=decays)

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["RmsNorm"] = self.path
        dtype = x.dtype
        x = ops.cast(x, F32)
        variance = ops.mean(ops.power(x))
        x = ops.mul(x, ops.rsqrt(ops.plus(variance)))
        return ops.mul(self.weight, ops.cast(x, dtype))


class Model:
    """A model on the GPU: parameters placed in ``build``, then packed in 4 bits or wrapped with adapters.

    Families say in ``build`` what there is, in ``batch`` what a step's input is, and in ``forward`` what a step does.
    """

    generates = True
    encodes = False  # an encoder-decoder
    stack_paths: tuple[str, ...] = ("encoder", "decoder")  # of an encoder-decoder
    placed: tuple[int, ...] = ()  # of what a layer gets beside its input, tensors that are given by their place
    reenters = True  # whether reentrant checkpointing is followed
    inputs: int | None = None  # of a batch, how many come before what is no label; None: none do
    hears = False  # its input is sound, and has no mask
    prompt = 1  # tokens with which an encoder-decoder's answer begins
    flattens = False  # whether FSDP1 is followed: :meth:`layer_paths`
    shards = False  # whether FSDP2 is followed: :meth:`units_of_fsdp`
    gathers = True  # whether ZeRO-3 is followed
    reaches_all = True  # whether a pass reaches every parameter, so that each that trains gets a gradient
    stems = 0  # modules without parameters, around the first that has some, whose calls are not followed by themselves
    copies_last = False  # PEFT's class for the task copies what trains whole behind the adapters, not before them
    reducer: Any = None  # DDP's, where one wraps the model
    zero: Any = None  # DeepSpeed's, where it shares out what trains
    units: Any = None  # FSDP's, where it shards the model
    wraps_adapters = False  # FSDP1 wraps each of their matrices
    adapter_type: str | None = None  # as PEFT finds adapters, where FSDP1 shows it their shards
    product = staticmethod(ops.linear)  # of linear layers: DeepSpeed has one of its own
    kept_heads: tuple[str, ...] = KEPT_HEADS
    drop = staticmethod(ops.dropout)  # before LoRA's first matrix
    _trained_stems: set[str] | None = None  # names of what trains, where they were asked for
    inputs_need = False  # embeddings get gradients whether or not anything is checkpointed
    trains_rows = False  # whether rows of the words' table that train by themselves are followed
    adapted_tables: tuple[str, ...] = ()  # embeddings whose adapters are followed, by the last part of their names
    eager_only = False  # transformers has no other implementation of its attention
    scorer: "type[Model] | None" = None  # the class of one that is trained on rewards
    collated: Tensor | None = None
    adapters_off = False  # PEFT's ``disable_adapter``: the model as it was before them

    def __init__(self, architecture: Architecture, options: Options) -> None:
        self.architecture, self.options = architecture, options
        self.adapter_dropout = options.adapters.dropout if options.adapters else 0.0
        self.staging = Staging() if options.offloads else None
        self.parameters: list[tuple[str, Tensor]] = []
        self.linears: list[Linear] = []
        self.plain: set[int] = set()  # what gets no weight decay
        self.buffers: list[Any] = []
        self.wide: set[int] = set()  # embeddings, whose optimizer states 8-bit optimizers keep in 32 bits
        self.frozen: set[int] = set()
        self.adapters: list[Tensor] = []
        # embeddings by their paths, with how many linear layers are placed before them; their adapters
        self.lookups: list[tuple[str, Tensor, int]] = []
        self.table_adapters: dict[str, Any] = {}
        self.tables_before: list[Tensor] = []  # of which copies train
        self.token_rows: Any = None  # what trains of the words' table by itself
        self.stack_words: dict[str, Tensor] = {}  # of a stack: its own table, where that trains
        self.build()
        if options.quantization is not None:
            quantized.load(self)
        for path, tensor in self.parameters:
            mark(tensor, "parameters", path)

    @classmethod
    def check(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        """Refuse, by name, what the family does not follow.

        Raises:
            NotFollowedError: something of the architecture or of the run.
        """

    @classmethod
    def check_type(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        """Refuse, by name, what is not followed of the one type among the family's.

        Raises:
            NotFollowedError: something of the architecture or of the run.
        """

    @classmethod
    def is_eager(cls, architecture: Architecture) -> bool:
        """Whether transformers computes attention eagerly where nothing else is asked for."""
        return cls.eager_only

    def build(self) -> None:
        """Place parameters and buffers, in the order of ``model.to("cuda")``: children before a module's own."""
        raise NotImplementedError

    def batch(self, rows: int, source: int, target: int) -> list[Tensor]:
        """One step's input: ids, mask, labels."""
        raise NotImplementedError

    def collate(self, labels: Tensor) -> Tensor:
        """The decoder's ids, which the collator makes for a label smoother: they live until that has the loss."""
        self.collated = new(labels.shape, I64)
        return self.collated

    def forward(self, *batch: Tensor, smoothed: bool = False) -> tuple[Any, ...]:
        """Loss (None where the Trainer computes it), logits, and what else the outputs keep alive."""
        raise NotImplementedError

    def units_of_fsdp(self, *, layers: bool) -> list[Any]:
        """What is gathered together (:class:`fsdp.Group`), as modules are named; ``layers`` have units of their own."""
        raise NotImplementedError

    def parameter(self, path: str, shape: Shape, *, decays: bool = True, dtype: str | None = None) -> Tensor:
        """A parameter; of a quantized model it has no storage until it is loaded."""
        untrained = any(part in path for part in self.options.frozen)
        dtype = dtype or (untrained and self.options.frozen_dtype) or self.options.dtype
        if self.options.quantization is not None:
            tensor = Tensor(shape, dtype, packed(shape), None)
        else:
            tensor = new(shape, dtype)
        tensor.needs = self.options.adapters is None
        if untrained:
            tensor.needs = False
            self.frozen.add(id(tensor))
        self.parameters.append((path, tensor))
        if not decays or UNDECAYED.search(path.lower()) is not None:
            self.plain.add(id(tensor))
        return tensor

    def table(self, path: str, rows: int, width: int, *, frozen: bool = False) -> Tensor:
        """An embedding; a frozen one is a parameter that nothing trains."""
        tensor = self.parameter(path + ".weight", (rows, width))
        if frozen:
            tensor.needs = False
            self.frozen.add(id(tensor))
        self.wide.add(id(tensor))
        self.lookups.append((path, tensor, len(self.linears)))
        return tensor

    def buffer(self, shape: Shape, dtype: str) -> None:
        """A tensor that is no parameter; a quantized load places these last."""
        quantization = self.options.quantization
        self.buffers.append((shape, dtype) if quantization is not None else new(shape, dtype))

    @property
    def words_of(self) -> tuple[str, Tensor, int]:
        """The words' table, as it is among the lookups: the first."""
        return self.lookups[0]

    def spared(self, linear: Linear) -> bool:
        """Whether ``all-linear`` leaves a layer out: the output layer."""
        return linear.head

    def beside_table(self, path: str) -> list[Tensor]:
        """What a table's module holds beside the table, copied with it."""
        return []

    def trained(self) -> list[Tensor]:
        """As the Trainer's two groups: decayed, and not. A packed layer asks for no gradients, nor does its bias
        (``replace_with_bnb_linear`` of transformers/integrations/bitsandbytes.py)."""
        trained = self.adapters
        if self.options.adapters is None:
            packed = [each for each in self.linears if each.packs] if self.options.quantization is not None else []
            still = self.frozen | {id(tensor) for each in packed for tensor in (each.weight, each.bias)}
            trained = [tensor for _, tensor in self.parameters if id(tensor) not in still]
        return sorted(trained, key=lambda tensor: id(tensor) in self.plain)

    def names(self) -> dict[int, str]:
        """The paths of parameters and adapters, by the tensor's ``id``."""
        found = {id(tensor): path for path, tensor in self.parameters}
        found |= {id(tensor): f"{path}.embed_tokens.weight" for path, tensor in self.stack_words.items()}
        for table in self.table_adapters.values():
            found |= {id(table.a): f"{table.path}.lora_embedding_A", id(table.b): f"{table.path}.lora_embedding_B"}
        if self.token_rows is not None:
            found[id(self.token_rows.rows)] = f"{self.token_rows.path}.trainable_tokens_delta"
        for linear in self.linears:
            found[id(linear.weight)] = linear.path + ".weight"  # a head of its own, where one is trained
            for name, tensor in (
                ("bias", linear.bias),
                ("lora_A", linear.a),
                ("lora_B", linear.b),
                ("magnitude", linear.magnitude),
            ):
                if tensor is not None:
                    found[id(tensor)] = f"{linear.path}.{name}"
        return found

    def decays(self, tensor: Tensor) -> bool:
        """Whether a trained tensor is in the first of the two groups."""
        return id(tensor) not in self.plain

    def require_input_grads(self, embeds: Tensor) -> None:
        """``enable_input_require_grads``: a hook on embeddings, which matters where they do not train themselves, and
        in evaluation, where autocast keeps the copy of what needs a gradient."""
        options = self.options
        if self.inputs_need or (options.checkpointing and not options.checkpoints_trained):
            embeds.needs = True

    def run(self, *batch: Any, smoothed: bool = False) -> Any:
        """:meth:`forward`, as what wraps the model has it."""
        if self.units is None:
            return self.forward(*batch, smoothed=smoothed)
        with self.units.running(batch) as batch:
            outputs = self.forward(*batch, smoothed=smoothed)
        return self.units.given(outputs)

    def in_tuples(self) -> list[Tensor]:
        """Keys and values that :meth:`forward` gave in tuples, which are let go of here."""
        return []

    def replaced(self) -> Sequence[Replaced]:
        """What the last step keeps until the next has made it anew."""
        return ()

    def keeps_tuples(self) -> bool:
        """Whether a forward pass in training gives such tuples, and autocast's wrapper makes them fp32."""
        earlier, options = self.options.earlier, self.options
        checkpointed = options.checkpointing and world.training  # `use_cache` is turned off
        return bool(options.autocast) and earlier.tuples_returned and not checkpointed

    def seen_type(self, adapter: Tensor) -> str:
        """The type in which PEFT finds an adapter: FSDP1 shows its shard until it is gathered."""
        return adapter.dtype if self.adapter_type is None or adapter.storage.size else self.adapter_type

    def gathered(self) -> AbstractContextManager[None]:
        """Around a call: what has shared out the parameters brings those together that no layer holds."""
        return nullcontext() if self.units is None else self.units.running()

    def every_layer(self) -> list[Any]:
        """The layers, in the order in which they are placed."""
        raise NotImplementedError

    def beside_layers(self) -> list[Any]:
        """What holds modules outside of layers: of a model that sees, its tower and what lies behind it."""
        return []

    def layer_paths(self) -> list[str]:
        """The paths of layers that FSDP1 wraps."""
        return [layer.path for layer in self.every_layer()]

    def part(self, name: str, call: Callable[..., Any], *args: Any) -> Any:
        """Run a module that FSDP may have sharded, under its name."""
        return call(*args) if self.units is None else self.units.through(name, call, *args)

    def layer(self, call: Callable[..., Any], *args: Any) -> Any:
        """Run a layer, checkpointed where the setup asks for it and the model trains."""
        recording = world.recording
        if recording.knows_layers:
            with recording.inside(getattr(call, "path", "")):
                return self._sharded(call, *args)
        return self._sharded(call, *args)

    def _sharded(self, call: Callable[..., Any], *args: Any) -> Any:
        if self.units is None:
            return self._checkpointed(call, *args)
        path = getattr(call, "path", "")
        if self.options.earlier.checkpoints_units:
            unit: Any = partial(self.units.through, path, call)
            unit.path = path
            return self._checkpointed(unit, *args)
        # hooks stand around what is checkpointed (GradientCheckpointingLayer of modeling_layers.py)
        return self.units.through(path, partial(self._checkpointed, call), *args)

    def _checkpointed(self, call: Callable[..., Any], *args: Any) -> Any:
        if self.options.checkpointing and world.training:
            if self.options.checkpoints_trained:
                if not self._trains(call.path + "."):  # type: ignore[attr-defined]
                    return call(*args)
                args[
                    0
                ].needs = True  # custom_gradient_checkpointing_func, llamafactory/model/model_utils/checkpointing.py
            if self.options.reentrant:
                # the last layer's is asked for at once, and stays
                staging = None if self.staging is None or call is self.every_layer()[-1] else self.staging
                return checkpoint_reentrant(call, *args, kept=self.placed, staging=staging)
            return checkpoint(call, *args)
        return call(*args)

    def _trains(self, stem: str) -> bool:
        """Whether something under a path is trained."""
        if self._trained_stems is None:
            names = self.names()
            self._trained_stems = {names[id(tensor)] for tensor in self.trained()}
        return any(name.startswith(stem) for name in self._trained_stems)


class EncoderDecoder(Model):
    """Two stacks of one class, the second reading what the first gives."""

    encodes = True
    trains_rows = True
    adapted_tables: tuple[str, ...] = ("embed_tokens",)
    reenters = False
    stack_class: Any

    def place_stacks(self) -> None:
        """The encoder and the decoder, in this order."""
        a = self.architecture
        self.encoder: Any = self.stack_class(self, "encoder", a.encoder_layers)
        self.decoder: Any = self.stack_class(self, "decoder", a.decoder_layers)

    def beside_layers(self) -> list[Any]:
        return [self.encoder, self.decoder]

    def batch(self, rows: int, source: int, target: int) -> list[Tensor]:
        return [new((rows, source), I64), new((rows, source), I64), new((rows, target), I64)]
