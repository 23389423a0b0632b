"""FSDP1 (``FullyShardedDataParallel``) around each layer and around the rest: one flat parameter for each.

Beside adapters the Trainer wraps each of their matrices too, so that what trains lies in flat parameters of its own
(``update_fsdp_plugin_peft`` of transformers/distributed/fsdp.py 5.23.0, ``fsdp_auto_wrap_policy`` of PEFT 0.21).
Sources: torch 2.13.0, torch/distributed/fsdp/_flat_param.py (``init_flat_param_attributes``, ``pre_unshard``,
``unshard``, ``_use_unsharded_views``), _runtime_utils.py (``_post_backward_hook``, ``_reduce_grad``,
``_prefetch_handle``, ``_register_post_backward_reshard_only_hook``, whose hook holds the leaves that it waits for) and
_exec_order_utils.py, with ``use_orig_params``; accelerate 1.15.0 (``prepare_model``) for types. What
NCCL takes is not in here, nor blocks that wait for another stream before they are used again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import prod
from operator import itemgetter
from typing import Any

from kb.core.setup import TrainingSetup
from kb.memory.engine.fsdp import (
    asking,
    before_backward,
    drop,
    fill,
    on_gpu,
    originals,
    packed_weights,
    taken,
    with_adapters,
)
from kb.memory.engine.modules import Model
from kb.memory.engine.options import TYPES
from kb.memory.engine.tape import Node, record
from kb.memory.engine.tensor import F32, WIDTH, Storage, Tensor, mark, new
from kb.memory.engine.world import Turn, world

PRE_GATHER, GATHER, REDUCE = 1, 2, 3  # streams that ask for blocks, beside the first


class Flat:
    """``FlatParamHandle``: parameters laid one after the other, of which each process has a part."""

    def __init__(self, group: "Flats", tensors: Sequence[Tensor], buffers: Sequence[Tensor] | None = None) -> None:
        # beside one that trains, all get gradients: they are parts of one tensor
        self.trains = any(id(tensor) in group.trained_ids for tensor in tensors)
        loaded = group.loaded_as(tensors[0])
        tensors = [group.packed.get(id(tensor), tensor) for tensor in tensors]
        self.group, self.tensors, self.root = group, tensors, buffers is not None
        size = sum(prod(tensor.shape) for tensor in tensors)
        self.part = -(-size // group.ranks)
        self.term = "adapters" if id(tensors[0]) in group.adapters else "parameters"
        before, world.recording.term = world.recording.term, self.term
        moved = [on_gpu(tensor, loaded) for tensor in sorted(tensors, key=group.depth)]
        for buffer in buffers or ():
            if not buffer.storage.size:
                fill(buffer, prod(buffer.shape))
        joined = new((self.part * group.ranks,), loaded)
        self.shard = new((self.part,), loaded)
        del moved, joined
        if group.on_host:
            self.shard.storage = None
        self.brought: Tensor | None = None  # of an offloaded shard
        self.kept: list[Tensor] = []  # what offloading copies to the host, to the end of backward
        world.recording.term = before
        if group.packs and group.output is not None:
            for tensor in tensors:
                tensor.dtype = group.output
        self.whole = Tensor((self.part * group.ranks,), tensors[0].dtype, (1,), Storage(0))
        self.whole.needs = self.trains
        for tensor in tensors:
            tensor.storage = self.whole.storage
        self.gathered = self.ran = False
        self.awaited = 0  # inputs whose gradients are still to come
        self.watched: list[Tensor] = []  # leaves among them, which a hook holds, with their gradients, to the end
        self.place: int | None = None  # in the order of forward passes' ends
        self.ahead = self.runs_next = self.runs_back = False  # gathered ahead; what it may still be gathered for
        self.pieces: list[tuple[Tensor, Tensor]] = []
        # gathered in another type than that of the shard: what trains is widened
        self.narrow = group.output is not None and (self.trains or loaded != group.output)

    def widen(self) -> None:
        """accelerate: what trains is fp32 under mixed precision; the parameters are parts of the old until gathered."""
        self.old: Tensor | None = self.shard
        if self.narrow and self.trains and self.shard.dtype != F32:
            self.shard = Tensor((self.part,), F32, (1,), None) if self.group.on_host else new((self.part,), F32)
        if not self.group.on_host:
            mark(self.shard, self.term)
        self.pieces = self._pieces()

    def _pieces(self) -> list[tuple[Tensor, Tensor]]:
        """Parameters with what of them is in this process's part (the first's)."""
        found, at = [], 0
        for tensor in self.tensors:
            own = min(prod(tensor.shape), self.part - at)
            if own > 0:
                found.append((tensor, Tensor((own,), self.shard.dtype, (1,), self.shard.storage)))
            at += prod(tensor.shape)
        return found

    def tried(self) -> None:
        """Each buffer is made once, and let go, before the first pass."""
        sizes = [(self.part, self.whole.dtype), (self.part * self.group.ranks, self.whole.dtype)]
        for size, dtype in (*sizes, (self.part * self.group.ranks, F32)) if self.narrow else sizes[1:]:
            tried = new((size,), dtype)
            del tried

    def gather(self) -> None:
        if self.gathered or self.group.whole:
            return
        sent = None
        if self.narrow or self.group.on_host:
            with asking("gathered_parameters", PRE_GATHER):
                sent = new((self.part,), self.whole.dtype)
                brought = new((self.part,), self.shard.dtype) if self.narrow and self.group.on_host else None
                del brought
        with asking("gathered_parameters", GATHER):
            fill(self.whole, self.part * self.group.ranks)
            self.brought = None if self.narrow else sent  # parameters are views of it until they are sharded again
            del sent
        self.gathered = True

    def let_go(self) -> None:
        if self.gathered:
            drop(self.whole)
            self.gathered, self.brought = False, None
        self.ahead = False

    def gather_ahead(self, *, forward: bool) -> None:
        if not self.ahead and (self.runs_next if forward else self.runs_back):
            self.gather()
            self.ahead = True
            if forward:
                self._split()

    def enter(self, *args: Any) -> None:
        """Before a module's forward. What does not train is let go once all its inputs have their gradients."""
        if self.ran and world.recomputed is not None:  # a checkpointed call that runs again, in backward
            return
        if not self.ahead:
            self.gather()
            self._split()
        self.old, self.runs_next = None, False
        self.group.prefetch_forward(self)
        if world.grad and not self.trains:
            awaited = [each for each in args if isinstance(each, Tensor) and each.needs]
            self.awaited, self.ran = len(awaited), False
            self.watched = self.watched or [each for each in awaited if each.node is None]
            before_backward(awaited, self._had_one)
        elif world.grad:
            self.ran = False

    def _split(self) -> None:
        """Parameters become parts of what was gathered (``_use_unsharded_views``)."""
        if not (world.grad and self.trains):
            return
        node = record(self._joined, (self.whole,))
        assert node is not None
        node.results = len(self.tensors)
        for at, tensor in enumerate(self.tensors):
            tensor.node, tensor.needs = (node, at), True

    def _had_one(self) -> None:
        self.awaited -= 1
        if not self.awaited:
            self.let_go()
            self.group.prefetch_backward(self, "post")

    def _joined(self, _: Node, grads: Any) -> tuple[Tensor]:
        """``SplitWithSizesBackward``: the gradients of all, one after the other."""
        with asking("gradients"):
            return (new(self.whole.shape, self.whole.dtype),)

    def leave(self, out: Any) -> None:
        if self.ran and world.recomputed is not None:
            return
        self.group.passed(self)
        self.ahead = False
        if not self.root and self.group.reshards:
            self.let_go()
        if world.grad:
            self.runs_back = True
        before_backward(out, self._before_backward)

    def _before_backward(self) -> None:
        if not self.ran:
            self.ran = True
            self.gather()
            self.runs_back = False
            self.group.prefetch_backward(self, "pre")

    def reduced(self) -> None:
        """The flat gradient is there: parameters go, and of the gradient this process's part stays, in fp32."""
        self.let_go()
        self.group.prefetch_backward(self, "post")
        if not self.group.reduces:
            return
        grad, self.whole.grad = self.whole.grad, None
        with asking("gradients", REDUCE):
            kept = new((self.part,), self.whole.dtype)
            kept = kept if kept.dtype == self.shard.dtype else new((self.part,), self.shard.dtype)
        if self.group.on_host:
            self.kept.append(kept)
        own = [piece for tensor, piece in self.pieces if id(tensor) in self.group.trained_ids]
        for piece in own if not self.group.on_host else ():
            piece.grad = Tensor(piece.shape, piece.dtype, (1,), kept.storage)
        del grad

    def finish(self) -> None:
        self.let_go()
        self.kept.clear()
        self.watched, self.place, self.runs_back = [], None, False
        for tensor in self.tensors:
            tensor.node = None


def _turns(pairs: Iterable[tuple[str, Turn]]) -> Iterator[Turn]:
    """Each of some things, which has its turn where it is asked whose that is."""
    recording = world.recording
    return map(itemgetter(1), pairs) if recording.looks_around else recording.turns(pairs)


class Flats:
    """A model whose layers, and whose rest, are flat parameters; what an optimizer finds are their parts."""

    flat = True

    def __init__(self, model: Model, setup: TrainingSetup) -> None:
        self.model, self.ranks, self.on_host = model, setup.world_size, setup.offload_param
        self.output = TYPES["bf16" if setup.bf16 else "fp16"] if setup.autocast else None
        self.loaded = TYPES[setup.weights]
        self.reduces, self.begun, self.reshards = True, False, setup.spread.fsdp_reshard
        self.whole = False  # all of it, in the shards' type
        self.ahead_back, self.ahead_forward = setup.spread.fsdp_backward_prefetch, setup.spread.fsdp_forward_prefetch
        self.entered: list[Flat] = []  # in the order of the first passes
        self.left: list[Flat] = []  # as passes ended, of one iteration
        self.counts = True  # the first iteration
        self.paths = model.names()
        self.packs = model.options.quantization is not None
        self.packed = packed_weights(model)
        self.paths |= {id(seen): self.paths[key] for key, seen in self.packed.items()} | originals(model)
        self.adapters, self.trained_type = set(map(id, model.adapters)), TYPES.get(setup.trained_type, F32)
        self.adapted = {id(each) for one in model.linears if one.a is not None for each in (one.weight, one.bias)}
        self.adapted |= {id(self.packed[key]) for key in self.adapted if key in self.packed}
        self.trained_ids = set(map(id, model.trained()))
        left = dict(model.parameters)
        self.named: dict[str, Flat] = {}
        self.every: list[Flat] = []  # the root first, the others as the model names them
        layers = model.layer_paths() if setup.spread.fsdp_wrapped or self.adapters else ()
        for path in _turns((path, path) for path in layers):
            within = self._wrap_adapters(path + ".")
            own = [left.pop(each) for each in list(left) if each.startswith(path + ".")]
            self.named[path] = Flat(self, own)
            self.every += [self.named[path], *within]
        self.every += self._wrap_adapters("")
        self.root = Flat(self, list(left.values()), model.buffers)
        self.every.insert(0, self.root)
        for flat in self._turns():
            flat.widen()
        model.wraps_adapters = bool(self.adapters)
        if self.output is not None:
            model.adapter_type = F32
        self.by_flat = {id(flat.whole): flat for flat in self.every}
        found = {id(tensor): piece for flat in self.every for tensor, piece in flat.pieces}
        self.shards = [(tensor, found[id(tensor)]) for tensor in model.trained() if id(tensor) in found]
        self.plain = {id(piece) for tensor, piece in self.shards if not model.decays(tensor)}

    def _turns(self) -> Iterator["Flat"]:
        """Each flat parameter in its turn."""
        return _turns((self.paths[id(flat.tensors[0])], flat) for flat in self.every)

    def _wrap_adapters(self, prefix: str) -> list[Flat]:
        """Adapters are units of their own, made before that of the layer around them."""
        made = []
        for tensor in with_adapters(self.model):
            path = self.paths[id(tensor)]
            if id(tensor) in self.adapters and path not in self.named and path.startswith(prefix):
                self.named[path] = Flat(self, [tensor])
                made.append(self.named[path])
        return made

    def loaded_as(self, tensor: Tensor) -> str:
        """The type of a parameter before it is sharded."""
        if self.packs:
            return tensor.dtype
        if id(tensor) not in self.adapters:
            return self.loaded
        return self.trained_type if self.output is not None else tensor.dtype

    def depth(self, tensor: Tensor) -> int:
        """How deep a parameter lies: modules are moved breadth first. PEFT's layer lies around what it adapts."""
        return self.paths[id(tensor)].count(".") + (id(tensor) in self.adapted)

    @contextmanager
    def summoned(self) -> Iterator[None]:
        """``FullyShardedDataParallel.summon_full_params``: everything whole, in the type of the shards."""
        for flat in self.every:
            flat.let_go()
        with asking("gathered_parameters", GATHER):
            held = [new((flat.part * self.ranks,), flat.shard.dtype) for flat in self.every]
        self.whole = True
        yield
        self.whole = False
        held.clear()

    @contextmanager
    def running(self, batch: Sequence[Any] = ()) -> Iterator[Sequence[Any]]:
        """The root's forward; its inputs in the type of mixed precision (``cast_root_forward_inputs``)."""
        if not self.begun:
            self.begun = True
            if self.output is not None:
                for buffer in self.model.buffers:
                    buffer.dtype = self.output
                    buffer.storage = Storage(prod(buffer.shape) * WIDTH[self.output])
            for flat in self._turns():
                flat.tried()
        world.ready = self._ready
        if self.ahead_forward:
            for flat in self.every:
                flat.runs_next, flat.ahead = True, False
        batch = taken(batch, self.output)
        self.root.enter()
        yield batch
        self.root.leave(())

    def prefetch_forward(self, flat: Flat) -> None:
        """``get_handle_to_forward_prefetch``: the order is that of the first iteration."""
        if self.counts and flat not in self.entered:
            self.entered.append(flat)
        if self.ahead_forward and flat in self.entered[:-1]:
            self.entered[self.entered.index(flat) + 1].gather_ahead(forward=True)

    def passed(self, flat: Flat) -> None:
        """``record_post_forward``."""
        if not flat.place:
            flat.place = len(self.left)
        self.left.append(flat)

    def prefetch_backward(self, flat: Flat, when: str) -> None:
        """``get_handle_to_backward_prefetch``: what ran before it in the forward pass."""
        if self.ahead_back == when and flat.place:
            self.left[flat.place - 1].gather_ahead(forward=False)

    def _ready(self, tensor: Tensor) -> None:
        flat = self.by_flat.get(id(tensor))
        if flat is not None:
            flat.reduced()

    def through(self, name: str, call: Callable[..., Any], *args: Any) -> Any:
        """Run a layer."""
        flat = self.named.get(name)
        if flat is None:
            return call(*args)
        flat.enter(*args)
        out = call(*args)
        flat.leave(out)
        return out

    def reading(self, _: Sequence[Tensor | None]) -> AbstractContextManager[None]:
        """What a loss reads outside of its module is the root's, which is whole."""
        return nullcontext()

    def made_whole(self, tensor: Tensor) -> Tensor:
        return tensor

    def given(self, outputs: Sequence[Any]) -> list[Any]:
        """The root's outputs: backward begins at them."""
        for each in outputs:
            before_backward(each, self.root._before_backward)
        return list(outputs)

    def finish(self) -> None:
        """``_post_backward_final_callback``."""
        for flat in self.every:
            flat.finish()
        self.left.clear()
        self.counts = False
        world.hooks.clear()

    # What an optimizer asks of a model.

    wide: frozenset[int] = frozenset()

    def trained(self) -> list[Tensor]:
        return [piece for _, piece in self.shards]

    def names(self) -> dict[int, str]:
        return {id(piece): self.paths[id(tensor)] for tensor, piece in self.shards}

    def decays(self, piece: Tensor) -> bool:
        return id(piece) not in self.plain
