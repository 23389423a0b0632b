"""Beam search as ``_beam_search`` reads (transformers/generation/utils.py), with an encoder or without."""

from collections.abc import Callable
from typing import Any

from kb.memory.engine.families.attention import PairedCache
from kb.memory.engine.runs.decoding import all_longer
from kb.memory.engine.tensor import BOOL, F32, I32, I64, Tensor, mark, new
from kb.memory.engine.world import world

Call = Callable[..., Any]


class Answer:
    """The steps of an encoder-decoder, whose answer begins with a few tokens and sees what the encoder made."""

    def __init__(self, model: Any, mask: Any, encoded: Tensor, call: Call, wrapped: str | None) -> None:
        self.model, self.call, self.wrapped = model, call, wrapped
        self.mask, self.encoded, self.cache = mask, encoded, PairedCache(model.options.earlier.cache)
        self.prompt = model.prompt
        self.ids: Any = None

    def forward(self, rows: int) -> Any:
        """One call of the model for ``rows`` beams; what went in lives until the next call has its own."""
        first = self.ids is None
        self.ids = ids = new((rows, self.prompt if first else 1), I64)  # prepare_inputs_for_generation
        outputs = self.call(
            self.model, lambda: self.model.step(ids, self.mask, self.encoded, self.cache), self.wrapped, self.encoded
        )
        if first:  # of _prefill
            self.ids = ()
        return outputs

    def decoded(self, rows: int, tokens: int) -> None:
        """After ``tokens`` of the answer (``_update_model_kwargs_for_generation``)."""


class Continuation:
    """The steps of a decoder alone, which reads the prompt once for each beam; its mask and positions grow."""

    def __init__(self, model: Any, prompt: tuple[Any, ...], call: Call, wrapped: str | None) -> None:
        self.model, self.call, self.wrapped = model, call, wrapped
        ids, self.mask, self.position, self.kinds = prompt
        self.given = prompt  # the caller's arguments keep it
        self.cache = model.cache()
        self.prompt = ids.shape[1]
        self.held: Any = None

    def forward(self, rows: int) -> Any:
        """As of :class:`Answer`."""
        first = self.held is None
        inputs = new((rows, self.prompt if first else 1), I64)
        place = self.position if first or self.position is None else new((*self.position.shape[:-1], 1), I64)
        told = self.kinds if first or self.kinds is None else new((rows, 1), I64)
        place = self.model.counted(place)
        self.held = held = inputs, self.mask, place, told
        del inputs, place, told
        outputs = self.call(self.model, lambda: self.model.answered(*held, self.cache), self.wrapped)
        if first:  # of _prefill
            self.held = ()
        return outputs

    def decoded(self, rows: int, tokens: int) -> None:
        """As of :class:`Answer`."""
        given = self.position, self.mask, self.kinds
        self.position, self.mask, self.kinds = all_longer(self.model, given, rows, self.prompt + tokens)


def search(model: Any, rows: int, decoding: Any, steps: Any, start: Tensor, middle: Callable[[int, int], int]) -> None:
    """The loop over tokens; old scores live until the next step has made its own.

    Args:
        steps: an :class:`Answer` or a :class:`Continuation`.
        start: the prompt of each beam.
    """
    beams, tokens = decoding.beams, decoding.tokens
    keep, length, vocabulary, cache = 2 * beams, tokens + steps.prompt, model.architecture.vocab_size, steps.cache
    forced = None
    if model.forces_end:
        forced = new((), I64)
        compared, found = new((), BOOL), new((), BOOL)
        del compared, found
    top_mask = new((keep,), BOOL)
    running = new((rows, beams, length), I64)
    sequences = new((rows, beams, length), I64)
    running_scores, scores = new((rows, beams), F32), new((rows, beams), F32)
    finished, unsatisfied = new((rows, beams), BOOL), new((rows, 1), BOOL)
    hits = new((rows, beams), BOOL)
    running_indices = new((rows, beams, tokens), I32)
    indices = new((rows, beams, tokens), I32)
    logits = log_probs = kept = kept_scores = kept_indices = None
    decoded = 0
    while decoded < tokens:
        flat = running if decoded else start  # a view: the running sequences live on
        first = not decoded
        outputs: Any = steps.forward(rows * beams)
        world.recording.term = "temporaries"
        decoded += 1
        grown = middle(decoded, tokens)
        if grown:
            cache.grow(grown, reorders=True)
            decoded += grown
        steps.decoded(rows * beams, decoded)
        logits = _scores((rows * beams, vocabulary))
        log_probs = _scores((rows * beams, vocabulary))
        if model.hears:
            log_probs = suppressed(log_probs, first=first)
        if model.forces_end and decoded == tokens:  # ForcedEOSTokenLogitsProcessor: full_like
            log_probs = _scores((rows * beams, vocabulary))
        outputs = None
        log_probs = _scores((rows, beams, vocabulary))
        kept_scores, kept, kept_indices = _top_continuations(rows, keep, length, tokens)
        hits = _stopping(rows * keep)
        running, running_scores, running_indices = _running_beams(rows, beams, keep, length, tokens)
        sequences, scores, indices, finished = _finished_beams(rows, beams, keep, length, tokens)
        beam_idx = running_indices  # a view of them, too
        cache.reorder()
        unsatisfied = _early_stop(rows)
        _unfinished()
    del forced, top_mask, sequences, running_scores, scores, finished, unsatisfied, hits, indices
    del logits, log_probs, kept, kept_scores, kept_indices, flat, outputs, beam_idx


def suppressed(scores: Tensor, *, first: bool) -> Tensor:
    """Whisper's scores without what it never says, and at first without what no answer begins with
    (``SuppressTokensAtBeginLogitsProcessor``, ``SuppressTokensLogitsProcessor``, generation/logits_process.py)."""
    for applies in (first, True):
        numbers, listed = new(scores.shape[-1:], I64), new(scores.shape[-1:], BOOL)
        if applies:
            low = new((), F32)
            scores = _scores(scores.shape)
            del low
        del numbers, listed
    return scores


def _scores(shape: tuple[int, ...]) -> Tensor:
    made = new(shape, F32)
    mark(made, "logits")
    return made


def _gathered(shape: tuple[int, ...], dtype: str) -> Tensor:
    """``take_along_dim``: indices of the whole result are made, and let go (ATen TensorAdvancedIndexing.cpp)."""
    remainder = new(shape, I64)
    out = new(shape, dtype)
    del remainder
    return out


def _top_continuations(rows: int, keep: int, length: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    values, at = new((rows, keep), F32), new((rows, keep), I64)
    beams = new((rows, keep), I64)
    kept_indices = _gathered((rows, keep, tokens), I32)
    kept = _gathered((rows, keep, length), I64)
    ids = new((rows, keep), I64)
    row = new((rows,), I64)
    offset = new((rows, 1), I64)
    del row
    modified = new((rows, keep), I64)
    del at, beams, ids, offset, modified
    return values, kept, kept_indices


def _stopping(rows: int) -> Tensor:
    done = new((rows,), BOOL)
    longest = new((rows,), BOOL)
    either = new((rows,), BOOL)
    del longest, done
    ended = new((rows, 1), BOOL)
    found = new((rows,), BOOL)
    del ended
    out = new((rows,), BOOL)
    del either, found
    return out


def _running_beams(rows: int, beams: int, keep: int, length: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    numbers = new((rows, keep), F32)
    low = new((rows, keep), F32)
    del numbers
    scores = new((rows, keep), F32)
    del low
    values, at = new((rows, beams), F32), new((rows, beams), I64)
    del values
    out = (
        _gathered((rows, beams, length), I64),
        _gathered((rows, beams), F32),
        _gathered((rows, beams, tokens), I32),
    )
    del scores, at
    return out


def _penalty(shape: tuple[int, ...], *dtypes: str) -> None:
    """What is added in place, each from the last."""
    tensor = None
    for dtype in dtypes:
        tensor = new(shape, dtype)
    del tensor


def _finished_beams(rows: int, beams: int, keep: int, length: int, tokens: int) -> tuple[Tensor, ...]:
    just = new((rows, keep), BOOL)
    scores = new((rows, keep), F32)
    every = new((rows, 1), BOOL)
    full = new((rows, 1), BOOL)
    del every
    _penalty((rows, 1), F32, F32)
    _penalty((rows, 1), BOOL, F32, F32)
    _penalty((rows, keep), BOOL, F32)
    kinds: tuple[tuple[tuple[int, ...], str], ...] = (((length,), I64), ((), F32), ((tokens,), I32), ((), BOOL))
    merged = [new((rows, beams + keep, *more), dtype) for more, dtype in kinds]
    values, at = new((rows, beams), F32), new((rows, beams), I64)
    del values
    out = tuple(_gathered((rows, beams, *more), dtype) for more, dtype in kinds)
    del scores, just, full, merged, at
    return out


def _early_stop(rows: int) -> Tensor:
    best = new((rows, 1), F32)
    least, at = new((rows, 1), F32), new((rows, 1), I64)
    del at
    low = new((), F32)
    worst = new((rows, 1), F32)
    del low, least
    greater = new((rows, 1), BOOL)
    found = new((rows, 1), BOOL)
    del greater
    out = new((rows, 1), BOOL)
    del best, worst, found
    return out


def _unfinished() -> None:
    possible, every = new((), BOOL), new((), BOOL)
    both = new((), BOOL)
    del every
    opened = new((), BOOL)
    del both
    hit = new((), BOOL)
    valid = new((), BOOL)
    del hit
    first = new((), BOOL)
    second = new((), BOOL)
    del possible, opened, valid, first, second
