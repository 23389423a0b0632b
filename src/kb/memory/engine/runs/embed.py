"""Embedding training as sentence-transformers has it: every column of a sample embedded by one encoder, with the other
answers of the batch as its negatives; with GradCache a few samples at a time, first without a graph and then with.

It reads as sentence_transformer/losses/multiple_negatives_ranking.py and cached_multiple_negatives_ranking.py,
base/losses/merged_forward.py and gradcache.py, sentence_transformer/modules/pooling.py and util/similarity.py of
sentence-transformers 6.2.0. Every column is as long as the setup says.
"""

from collections.abc import Sequence
from typing import Any

from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.autocast import autocast
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.ops import pooling
from kb.memory.engine.runs.prefer import no_gradients
from kb.memory.engine.tape import Node, backward, part, record, run_back
from kb.memory.engine.tensor import F32, I64, Tensor, mark, new
from kb.memory.engine.world import world

# Encoders whose bare model is followed; ModernBERT's and DeBERTa's heads are placed otherwise.
BARE = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "albert", "mpnet", "longformer")

MOST_PARTS = 256  # of a batch with GradCache: each is followed twice, and takes some hundredths of a second


def check_embedding(architecture: Architecture, setup: TrainingSetup) -> None:
    """Refuse, by name, what is not followed of embedding training.

    Raises:
        NotFollowedError: a model, or something of the run.
    """
    post = setup.post
    assert post is not None
    parts = post.columns * -(-setup.per_device_train_batch_size // post.cached) if post.cached else 0
    refused = {
        f"embedding in {parts} parts": parts > MOST_PARTS,
        f"embedding of {architecture.model_type}": architecture.model_type not in BARE,
        "embedding of several GPUs": setup.world_size > 1,
        "embedding with gradient_checkpointing": setup.gradient_checkpointing,
        "embedding of one column": post.columns < 2,
        "embedding of images": setup.images is not None,
    }
    for name, refuses in refused.items():
        if refuses:
            raise NotFollowedError(name)


class Embedding:
    """The loss of one batch, called with a sample's tokens; ``model`` is an encoder without a head.

    Raises:
        NotFollowedError: a model or a run that is not followed.
    """

    def __init__(self, model: Any, setup: TrainingSetup) -> None:
        assert setup.post is not None
        self.model, self.setup, self.post = model, setup, setup.post

    def __call__(self, source: int) -> tuple[Any, ...]:
        recording, rows = world.recording, self.setup.per_device_train_batch_size
        recording.moment, recording.term = "forward", "inputs"
        batch = [tuple(new((rows, source), I64) for _ in range(2)) for _ in range(self.post.columns)]
        for column in batch:
            for tensor in column:
                mark(tensor, "inputs")
        if self.post.cached:
            return self._cached(batch), batch
        return self._ranked(batch), batch

    def _ranked(self, batch: Sequence[tuple[Tensor, ...]]) -> Tensor:
        """``embed_columns``: anchors by themselves, candidates together; what a column's features hold lives on."""
        queries, *held = self._embedded(batch[0])
        if len(batch) == 2:
            found, *more = self._embedded(batch[1])
            docs, held = [found], held + more
        else:
            merged = tuple(
                new((sum(each[at].shape[0] for each in batch[1:]), batch[0][at].shape[1]), I64) for at in range(2)
            )
            found = self._embedded(merged)[0]
            rows = batch[0][0].shape[0]
            found = ops.view(found, (len(batch) - 1, rows, found.shape[-1]))
            docs = ops.unbind(found, 0)
            del merged, found
        world.recording.moment, world.recording.term = "loss", "loss"
        loss = _ranking_loss(queries, docs)
        del held
        return loss

    def _embedded(self, column: tuple[Tensor, ...]) -> tuple[Any, ...]:
        """One column's embeddings, and what its features hold beside them: the states of all tokens."""
        model, kind = self.model, self.model.options.autocast
        ids, mask = column
        world.recording.moment = "forward"
        with autocast(kind):
            tokens, unread = model.base(ids, mask)
            del unread
            world.recording.term = "activations_head"
            embedded = (
                pooling.first_token(tokens, mask) if self.post.pooling == "cls" else pooling.averaged(tokens, mask)
            )
            if self.post.normalizes:
                embedded = pooling.normalized(embedded)
        found = embedded
        if kind:  # convert_to_fp32, of every tensor in the features
            wide = ops.cast(tokens, F32)
            found = ops.cast(embedded, F32)
            del wide
        return found, tokens, embedded

    def _cached(self, batch: Sequence[tuple[Tensor, ...]]) -> Tensor:
        """``forward_cached``: embeddings first, the loss of all of them with its gradients, and a hook for the rest."""
        size, rows = self.post.cached, batch[0][0].shape[0]
        ranges = [min(size, rows - begin) for begin in range(0, rows, size)]
        leaves: list[list[Tensor]] = []
        for column in batch:
            leaves.append([])
            for count in ranges:
                with no_gradients():
                    found = self._part(column, count)
                leaf = Tensor(found.shape, found.dtype, found.strides, found.storage)
                leaf.needs = True
                leaves[-1].append(leaf)
                del found, leaf
        world.recording.moment, world.recording.term = "loss", "loss"
        loss = _chunked_loss(leaves, ranges)
        cache = [[leaf.grad for leaf in column] for column in leaves]
        root = Tensor((), loss.dtype, (), loss.storage)
        root.needs = True
        node = record(self._replayed, (root,), (), (batch, ranges, cache))
        return Tensor(loss.shape, loss.dtype, loss.strides, loss.storage, node)

    def _part(self, column: tuple[Tensor, ...], count: int) -> Any:
        """``embed_minibatch``: so many of a column's rows; first it is asked up to where all of them are padding."""
        active = new((count, column[0].shape[1]), "bool")
        columns = new((column[0].shape[1],), "bool")
        asked = new((), "bool")
        del asked
        places = new((column[0].shape[1], 1), I64)
        last = new((), I64)
        del active, columns, places, last
        part = tuple(Tensor((count, tensor.shape[1]), I64, tensor.strides, tensor.storage) for tensor in column)
        found = self._embedded(part)[0]
        del part
        return found

    def _replayed(self, node: Node, grad: Tensor) -> tuple[Tensor]:
        """``_backward_hook``: each part once more, now with a graph, and the cached gradients sent back through it; a
        part's embeddings have a name until the next part's are there."""
        found = surrogate = None
        batch, ranges, cache = node.extra
        recording = world.recording
        for column, grads in zip(batch, cache, strict=True):
            for at, count in enumerate(ranges):
                before = recording.moment, recording.term
                world.grad = True
                found = self._part(column, count)
                product = pooling.dot(ops.cast(found, F32), ops.cast(grads[at], F32))
                surrogate = ops.scale(product)
                del product
                recording.moment, recording.term = before
                world.grad = False
                part(surrogate.node, run_back(surrogate.node, new((), surrogate.dtype)))
        del found, surrogate
        return (grad,)


def _ranking_loss(queries: Tensor, docs: Sequence[Tensor]) -> Tensor:
    """``compute_loss_from_embeddings``: from queries to documents alone, one softmax."""
    docs_all = ops.cat(docs, 0)
    local, rows = new((queries.shape[0],), I64), new((queries.shape[0],), I64)
    local_queries = pooling.rows_of(queries, local)
    local_docs = pooling.rows_of(docs[0], local)
    loss = _of_chunk(local_queries, docs_all, rows, local)
    del local_docs
    return loss


def _of_chunk(queries: Tensor, docs_all: Tensor, rows: Tensor, local: Tensor) -> Tensor:
    scores = pooling.cos_sim(queries, docs_all)
    scores = ops.scale(scores)
    positive = pooling.diagonal(scores, rows, local)
    joined = ops.cat([scores], 1)
    log_z = pooling.logsumexp(joined)
    return ops.neg(pooling.averaged_all(ops.sub(positive, log_z)))


def _chunked_loss(leaves: Sequence[Sequence[Tensor]], ranges: Sequence[int]) -> Tensor:
    """``calculate_loss`` with its backward pass, chunk by chunk."""
    queries = ops.cat(leaves[0], 0)
    docs = [ops.cat(column, 0) for column in leaves[1:]]
    docs_all = ops.cat(docs, 0)
    local = new((queries.shape[0],), I64)
    losses: list[Tensor] = []
    for count in ranges:
        part = Tensor((count,), I64, local.strides, local.storage)
        rows = new((count,), I64)
        local_queries = pooling.rows_of(queries, part)
        local_docs = pooling.rows_of(docs[0], part)
        scores = None  # of the last chunk
        scores = pooling.cos_sim(local_queries, docs_all)
        scores = ops.scale(scores)
        positive = pooling.diagonal(scores, rows, part)
        joined = ops.cat([scores], 1)
        log_z = pooling.logsumexp(joined)
        each = ops.neg(ops.sub(positive, log_z))
        loss = ops.scale(ops.scale(pooling.averaged_all(each)))
        backward(loss, again=True)
        losses.append(Tensor((), loss.dtype, (), loss.storage))
    del local_docs
    total = new((), losses[0].dtype)
    for _ in losses[1:]:
        total = new((), losses[0].dtype)
    return total
