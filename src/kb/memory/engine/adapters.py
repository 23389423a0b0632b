"""What PEFT puts beside a model that it freezes: LoRA's matrices, DoRA's vectors, rows of a table, copies that train.

LoRA on embeddings is ``Embedding`` of peft/tuners/lora/layer.py (0.21): each has a matrix of (rank, rows of the table)
and one of (width, rank). Tokens are looked up in the first, turned, and multiplied by the second.
"""

from collections.abc import Callable
from math import prod
from typing import Any

from kb.memory.engine import ops, quantized
from kb.memory.engine.modules import Linear
from kb.memory.engine.tensor import F32, WIDTH, Storage, Tensor, like, mark, new
from kb.memory.engine.world import world


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
        from kb.memory.engine.token_rows import add_token_rows  # few runs train any

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
        from kb.memory.engine.dora import magnitude_of

        linear.magnitude = magnitude_of(linear)


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
