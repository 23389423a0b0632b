"""What PEFT puts beside a model that it freezes: LoRA's matrices, DoRA's vectors, rows of a table, copies that train.

LoRA on embeddings is ``Embedding`` of peft/tuners/lora/layer.py (0.21): each has a matrix of (rank, rows of the table)
and one of (width, rank). Tokens are looked up in the first, turned, and multiplied by the second. DoRA is LoRA whose
matrices keep their columns' lengths (peft/tuners/lora/dora.py, variants.py). Rows of the words' table that train by
themselves (``trainable_token_indices``) are ``TrainableTokensLayer`` of peft/tuners/trainable_tokens/layer.py: each
forward pass makes a copy of the whole table with the rows put in, for the words and again for an output layer that is
tied to them.
"""

from collections.abc import Callable
from math import prod
from typing import Any

from kb.memory.engine import ops, quantized
from kb.memory.engine.modules import Linear
from kb.memory.engine.ops.gathers import put_rows
from kb.memory.engine.tape import Gradients, Node, record, saved
from kb.memory.engine.tensor import F32, I64, WIDTH, Storage, Tensor, bare, like, mark, new
from kb.memory.engine.world import world


class TokenRows:
    """The rows that train, and beside them what they were; both in fp32, as PEFT casts adapters."""

    __slots__ = ("originals", "path", "paths", "rows", "table")

    def __init__(self, path: str, table: Tensor, number: int) -> None:
        self.path, self.table, self.paths = path, table, {path}
        index = new((number,), I64)
        picked = new((number, table.shape[1]), table.dtype)
        del index
        self.rows = new(picked.shape, table.dtype)
        self.originals = new(picked.shape, table.dtype)

    def widen(self) -> None:
        """``cast_adapter_dtype``, one after the other."""
        self.rows = ops.cast(self.rows, F32)
        self.originals = ops.cast(self.originals, F32)

    def merged(self, table: Tensor) -> Tensor:
        """``get_merged_weights``: a table, or an output layer's weight, as it is with the rows."""
        index = new((self.rows.shape[0],), I64)
        return put_rows(table, index, ops.cast(self.rows, table.dtype))

    def words(self, ids: Tensor, scale: Callable[[], Tensor] | None) -> Tensor:
        """The words' embeddings, scaled where the table's own module does that."""
        whole = self.merged(self.table)
        result = ops.embedding(ids, whole)
        return result if scale is None else ops.mul(result, ops.cast(scale(), result.dtype))


def add_token_rows(model: Any, number: int) -> TokenRows:
    """Put rows beside the words' table, and before what PEFT takes for tied to it: an encoder-decoder's output layer
    also where it has a weight of its own."""
    path, table, _ = model.words_of
    found = TokenRows(path, table, number)
    found.paths |= {other for other, each, _ in model.lookups if each is table}
    for linear in model.linears:
        if linear.weight is table or (model.encodes and linear.head):
            linear.merged = found.merged
    return found


class TableAdapter:
    """Both matrices of an embedding, in the table's type."""

    __slots__ = ("a", "b", "magnitude", "path")

    def __init__(self, model: Any, path: str, table: Tensor) -> None:
        (rows, width), rank = table.shape, model.options.adapters.rank
        self.path, self.magnitude = path, None
        self.a: Tensor = new((rank, rows), table.dtype)
        self.b: Tensor = new((width, rank), table.dtype)


def looked_up(model: Any, path: str, ids: Tensor, table: Tensor, *, hooked: bool = False) -> Tensor:
    """Rows of a table with what its adapter adds; ``hooked`` are the words, whose module checkpointing puts its hook
    on."""

    def base(ids: Tensor) -> Tensor:
        found = ops.embedding(ids, table)
        if hooked:
            model.require_input_grads(found)
        return found

    return adapted(model, path, ids, base)


def adapted(model: Any, path: str, ids: Tensor, base: Callable[[Tensor], Tensor], *, scale: Any = None) -> Tensor:
    """What ``base`` gives of ``ids``, with what its adapter adds; ``scale`` makes the number that a module scales its
    words by (``_get_embed_scale``)."""
    rows = model.token_rows
    if rows is not None and path in rows.paths and not model.adapters_off:
        return rows.words(ids, scale)  # type: ignore[no-any-return]
    result: Tensor = model.part(path, base, ids)
    found = model.table_adapters.get(path)
    if found is None or model.adapters_off:
        return result
    dtype = result.dtype
    number = None if scale is None else scale()
    first = ops.transpose(found.a, 0, 1)
    turned = ops.transpose(found.b, 0, 1)  # its gradient is a view, to which another lookup's is not added in place
    after = ops.embedding(ids, first)
    output = ops.scale(ops.linear_by_hand(after, ops.transpose(turned, 0, 1)))
    if number is not None:
        output = ops.mul(output, ops.cast(number, output.dtype))
    result = ops.add(result, output)
    return ops.cast(result, dtype)


def adapt(model: Any) -> None:
    """LoRA's matrices, in the weights' type first and then, as ``autocast_adapter_dtype`` has it, in fp32.

    Beside weights of integers they are fp32 from the start (``_move_adapter_to_device_of_base_layer``); in 4 bits
    PEFT asks for the layer's compute type.
    """
    adapters = model.options.adapters
    assert adapters is not None
    wrapped = _wrapped(model, adapters.wraps)
    copies = [] if model.copies_last else _copied_heads(model, adapters.whole)
    if adapters.tokens:
        model.token_rows = add_token_rows(model, adapters.tokens)
        model.token_rows.widen()
        model.adapters.append(model.token_rows.rows)
    held: Any = None  # the loop's name for a layer's old parameter, which a table's casts do not take
    for linear in world.recording.turns((each.path, each) for each in wrapped):
        for side in ("a", "b", "magnitude"):
            old = getattr(linear, side)
            if old is None:
                continue
            if not isinstance(linear, TableAdapter):
                held = old
            setattr(linear, side, ops.cast(old, F32))
            old = None
            model.adapters.append(getattr(linear, side))
    del held
    model.adapters += _copied_heads(model, adapters.whole) if model.copies_last else copies
    places = _places(model)
    model.adapters.sort(key=lambda tensor: places[id(tensor)])  # as their modules lie
    for tensor in model.adapters:
        tensor.needs = True
    quantization = model.options.quantization
    if quantization is not None and quantization.prepare and quantization.half_tables:
        quantized.narrow_tables(model)
    if adapters.dtype is not None:
        _cast_trained(model, adapters.dtype)
    names = model.names()
    for tensor in model.adapters:
        mark(tensor, "adapters", names[id(tensor)])


def _wrapped(model: Any, wraps: Callable[[str], bool]) -> list[Linear | TableAdapter]:
    """Linear layers and embeddings with an adapter, in the order of the modules, and their matrices placed."""
    listed = not wraps("x" * 99)  # a list or a pattern, which may name the output layer too, and embeddings
    order: list[tuple[float, Any]] = [
        (at, linear)
        for at, linear in enumerate(model.linears)
        if wraps("" if model.spared(linear) and not listed else linear.path)
    ]
    order += [
        (before - 0.5, (path, table))
        for path, table, before in model.lookups
        if listed and wraps(path) and path.rpartition(".")[2] in model.adapted_tables
    ]
    found: list[Linear | TableAdapter] = []
    ordered = [each for _, each in sorted(order, key=lambda pair: pair[0])]
    named = [(each.path if isinstance(each, Linear) else each[0], each) for each in ordered]
    for each in world.recording.turns(named):
        if isinstance(each, Linear):
            _wrap(model, each)
            found.append(each)
        else:
            model.table_adapters[each[0]] = TableAdapter(model, *each)
            found.append(model.table_adapters[each[0]])
    return found


def _places(model: Any) -> dict[int, float]:
    """Where what trains beside a frozen model lies: so many linear layers are placed before it."""
    found: dict[int, float] = {}
    for path, table, before in model.lookups:
        stack, adapter = path.rpartition(".")[0], model.table_adapters.get(path)
        own = [model.stack_words.get(stack, table), *((adapter.a, adapter.b) if adapter else ())]
        found |= {id(tensor): before - 0.5 for tensor in own}
    if model.token_rows is not None:
        found[id(model.token_rows.rows)] = model.words_of[2] - 0.5
    found |= {id(tensor): -0.5 for tensor in model.stack_words.values() if id(tensor) not in found}
    for at, linear in enumerate(model.linears):
        for tensor in (linear.weight, linear.bias, linear.a, linear.b, linear.magnitude):
            if tensor is not None:
                found.setdefault(id(tensor), at)
    return found


def _wrap(model: Any, linear: Linear) -> None:
    """LoRA's matrices of a linear layer, and DoRA's vector."""
    adapters = model.options.adapters
    assert adapters is not None
    rows, columns = linear.sides()
    dtype = linear.weight.dtype if linear.state is None else model.options.dtype
    if isinstance(linear.state, Tensor):
        dtype = F32
    linear.a, linear.b = new((adapters.rank, columns), dtype), new((rows, adapters.rank), dtype)
    if adapters.dora:
        linear.magnitude, linear.variant = magnitude_of(linear), dora_forward


def _cast_trained(model: Any, dtype: str) -> None:
    """``param.data = param.data.to(dtype)``, one after the other, as trainers do after PEFT."""
    names = model.names()
    for tensor in world.recording.turns((names[id(tensor)], tensor) for tensor in model.adapters):
        if tensor.dtype != dtype:
            tensor.dtype, tensor.storage = dtype, Storage(prod(tensor.shape) * WIDTH[dtype])


def _copied_heads(model: Any, whole: Callable[[str], bool]) -> list[Tensor]:
    """``ModulesToSaveWrapper``: a copy is trained. Of a table the copy takes the name, as its users know it."""
    made: list[Tensor] = []
    for path, table, _ in model.lookups:
        if not whole(path):
            continue
        stack, _, name = path.rpartition(".")
        if model.encodes and name == "embed_tokens" and stack in model.stack_paths:  # tied to the words' until then
            model.stack_words[stack] = like(table)
            model.wide.add(id(model.stack_words[stack]))
            made.append(model.stack_words[stack])
            continue
        model.tables_before.append(like(table))
        mark(model.tables_before[-1], "parameters", path + ".weight")
        made.append(table)
        model.buffers += model.beside_table(path)
        for linear in model.linears:
            if linear.weight is table:  # it is tied to the table as it was, which nothing trains
                linear.weight = model.tables_before[-1]
    for linear in model.linears:
        if whole(linear.path) or (not model.generates and linear.path.split(".")[0].endswith(model.kept_heads)):
            copies = like(linear.weight), None if linear.bias is None else like(linear.bias)
            linear.replaced, (linear.weight, linear.bias) = (linear.weight, linear.bias), copies
            made += [copy for copy in copies if copy is not None]
            model.plain.add(id(copies[1]))
    return made


# --- DoRA -------------------------------------------------------------------------------------------------------------


def magnitude_of(linear: Linear) -> Tensor:
    """``DoraLinearLayer.update_layer``: the lengths of the weight with its adapters, as a parameter."""
    copy = None if linear.state is None else Storage(linear.weight.storage.size)  # of the layer, lest FSDP fail
    weight = _wide(linear)
    product = new(linear.sides(), weight.dtype)
    world.multiplied()
    found = _norm(upright(linear, weight), product)
    del copy
    return found


def _wide(linear: Linear) -> Tensor:
    """``dequantize_module_weight``: packed weights are made whole for each call (peft/utils/integrations.py)."""
    return linear.weight if linear.state is None else quantized.unpacked(linear)


def upright(linear: Linear, weight: Tensor) -> Tensor:
    """``transpose`` (peft/utils/other.py) where the layer's weight is turned: of the weight itself a parameter of its
    own, which wants a gradient."""
    if not linear.turned:
        return weight
    rows, columns = linear.sides()
    seen = Tensor((rows, columns), weight.dtype, (1, rows), weight.storage)
    seen.needs = weight is linear.weight
    return seen


def dora_forward(linear: Linear, x: Tensor, result: Tensor) -> Tensor:
    """``DoraLinearVariant.forward``: beside a dropout the base layer is asked again, for what the dropout left."""
    base: Tensor | None = result
    dropped = linear.model.adapter_dropout
    if dropped and world.training:
        x = ops.dropout(x, dropped)
        base = None
    return ops.add(result, _layer(linear, x, base))


def _layer(linear: Linear, x: Tensor, base: Tensor | None) -> Tensor:
    """``DoraLinearLayer.forward``: the product of both matrices, made whole for its lengths alone."""
    a, b, magnitude = linear.a, linear.b, linear.magnitude
    assert a is not None
    assert b is not None
    assert magnitude is not None
    whole = _whole(a, b)
    whole = ops.cast(whole, x.dtype)
    weight = ops.cast(_wide(linear), x.dtype)
    norm = _norm(upright(linear, weight), bare(whole))
    scaled = ops.view(_divide(magnitude, norm), (1, magnitude.shape[0]))
    adapted = ops.linear(ops.linear(x, a), b)
    if base is None:
        base = ops.linear(x, upright(linear, weight))
    elif linear.bias is not None:
        base = ops.sub(base, linear.bias)
    first = ops.mul(ops.plus(scaled), base)
    out = ops.add(first, ops.scale(ops.mul(scaled, adapted)))
    del first, whole, weight, norm
    return out


def _whole(a: Tensor, b: Tensor) -> Tensor:
    """``get_lora_weight``: both layers' answer to an identity.

    Nothing runs back through it. A checkpoint keeps nothing of what is gone by the end of the call: not in the first
    forward, and in the second only as long as the call lasts (``weak_holders`` of torch/utils/checkpoint.py).
    """
    identity = new((a.shape[1], a.shape[1]), a.dtype)
    frame, again, world.recomputed = world.frame, world.recomputed, None
    count = frame.count if frame is not None else 0
    whole = ops.transpose(ops.linear(ops.linear(identity, a), b), 0, 1)
    world.recomputed = again
    if frame is not None:
        frame.count = count
    return whole


def _norm(weight: Tensor, whole: Tensor) -> Tensor:
    """``get_weight_norm``: a length for each row of the sum."""
    weight = ops.add(weight, ops.scale(whole))
    return ops.cast(new((weight.shape[0],), weight.dtype), weight.dtype)


def _divide(tensor: Tensor, by: Tensor) -> Tensor:
    return like(tensor, None, record(_divide_back, (tensor,), (by,)))


def _divide_back(node: Node, grad: Tensor) -> Gradients:
    kept = saved(node)
    out = like(grad)
    del kept
    return (out,)
