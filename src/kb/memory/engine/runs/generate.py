"""``generate`` (transformers/generation/utils.py): greedy, and by beams; the Trainer's and on its own."""

from collections.abc import Callable
from typing import Any

from kb.core.record import NamedTuple
from kb.memory.engine import ops
from kb.memory.engine.autocast import autocast
from kb.memory.engine.families.attention import PairedCache
from kb.memory.engine.modules import Model
from kb.memory.engine.runs.decoding import (
    all_longer,
    between,
    middle,
    numbered,
    or_padding,
    still_unfinished,
    stop_check,
)
from kb.memory.engine.tensor import BOOL, F32, I32, I64, Tensor, mark, new
from kb.memory.engine.world import world

Call = Callable[..., Any]

MOST_TOKENS = 1 << 14  # of one answer: each grows the cache of every layer
SUPPRESSED, SUPPRESSED_AT_FIRST = 86, 2  # as many as openai/whisper-small's config.json lists


class Decoding(NamedTuple):
    """How tokens are made. ``wrapped``: accelerate's autocast is around the model's forward."""

    tokens: int
    beams: int
    wrapped: str | None
    sampled: bool = False


def generate(model: Any, decoding: Decoding, batch: list[Any]) -> None:
    """One call of ``generate`` in the phase ``generate``."""
    recording = world.recording
    recording.begin("generate")
    recording.moment, recording.term = "decoding", "temporaries"
    world.grad = world.training = False
    if model.encodes:
        _encoder_decoder(model, batch, decoding)
    else:
        prompted(model, batch, decoding)


def model_call(model: Any, call: Any, kind: str | None, encoded: Any = None) -> tuple[Tensor, Any]:
    """``self(**model_inputs)``, wrapped by accelerate where the run trains in mixed precision.

    With adapters it is PEFT's model that is wrapped; ``generate`` calls the one inside, which computes as it is. The
    encoder's states are outputs of each step too, and made fp32 where they are not (``convert_to_fp32``): the second
    of what is returned.
    """
    with autocast(kind), model.gathered():
        logits: Tensor = call()
    mark(logits, "logits")
    if encoded is None and getattr(model, "beside", None) is not None:
        encoded, model.beside = model.beside, None  # of what is seen, which the outputs hold
    if not kind:
        return logits, encoded
    logits = ops.cast(logits, F32)
    if isinstance(encoded, tuple):
        return logits, tuple(ops.cast(each, F32) for each in encoded)
    return logits, None if encoded is None else ops.cast(encoded, F32)


def prompted(model: Any, batch: list[Any], decoding: Decoding) -> None:
    """``generate`` of a decoder up to its loop."""
    ids, mask = batch[0], batch[1]
    rows, length = ids.shape
    ends = [new((), I64) for _ in range(model.special_tokens)]
    asked(())  # is padding an end?
    asked(())
    if rows > 1:
        asked((rows,))  # does any prompt end in padding?
    position: Any = None
    kinds = model.kinds_of(batch)
    if model.numbers:
        position = model.numbered(numbered(rows, length), ids, mask, kinds)
    asked((rows, length))
    if not model.options.padded:
        mask = None  # a mask of ones alone is dropped
    seen = model.look(*batch[model.inputs :]) if model.inputs and len(batch) > model.inputs else None
    if decoding.beams > 1:
        if seen is not None:
            seen = None
            seen = model.look_with_beams(ids, decoding.beams)
        ids, mask, kinds, position = _for_beams(ids, mask, kinds, position, decoding.beams)
    asked((rows, length))  # is a token's number below zero?
    prompt = ids, mask, position, kinds
    del mask, position, kinds
    if decoding.beams > 1:
        search(model, rows, decoding, Continuation(model, prompt, model_call, decoding.wrapped), ids, between)
    else:
        greedy(model, prompt, decoding)
    del ends, seen


def _for_beams(ids: Tensor, mask: Any, kinds: Any, position: Any, beams: int) -> tuple[Tensor, Any, Any, Any]:
    """``_expand_inputs_for_generation``: a copy of each prompt for each beam; the old ones live until all are there."""
    rows, length = ids.shape
    shape = (rows * beams, length)
    ids, mask, kinds = new(shape, I64), mask and new(shape, I64), kinds and new(shape, I64)
    return ids, mask, kinds, position and new((*position.shape[:-2], *shape), I64)


def greedy(model: Any, prompt: tuple[Any, ...], decoding: Decoding) -> None:
    """``_sample`` of a decoder: prefill, then a token at a time.

    Args:
        prompt: ids, mask, positions and, of a model that sees, what kinds of tokens there are.
    """
    ids, mask, position, kinds = prompt  # the caller's arguments keep them
    rows, length = ids.shape
    unfinished, cache = new((rows,), I64), model.cache()
    logits: Any
    chosen: Any
    held: Any
    inputs: Any
    place: Any
    told: Any
    logits = chosen = held = shares = None
    step = 0
    while step < decoding.tokens:
        inputs = new((rows, length), I64) if step == 0 else new((rows, 1), I64)
        place = position if step == 0 or position is None else new((*position.shape[:-1], 1), I64)
        told = kinds if step == 0 or kinds is None else new((rows, 1), I64)
        place = model.counted(place)
        held = inputs, mask, place, told
        out, beside = model_call(model, lambda held=held: model.answered(*held, cache), decoding.wrapped)
        inputs = place = told = None
        if step == 0:
            held = None
            model.decodes = True  # beam search does without
        step += 1
        grown = middle(step, decoding.tokens)
        if grown:
            cache.grow(grown)
            step += grown
        position, mask, kinds = all_longer(model, (position, mask, kinds), rows, length + step)
        logits = new((rows, out.shape[-1]), F32)
        mark(logits, "logits")
        if decoding.sampled:
            shares = new(logits.shape, F32)  # softmax
            _draw(shares)
        chosen = new((rows,), I64)
        chosen = or_padding(rows)
        ids = new((rows, length + step), I64)
        unfinished = still_unfinished(rows)
        stop_check()
        del out, beside
    model.decodes = False
    del unfinished, logits, chosen, held, shares, prompt


def _draw(shares: Tensor) -> None:
    """``multinomial`` of one token: as many random numbers, divided in place (Distributions.cpp)."""
    noise = new(shares.shape, F32)
    del noise


def _encoder_decoder(model: Any, batch: list[Any], decoding: Decoding) -> None:
    ids, mask = batch[:2]
    rows, beams, prompt = ids.shape[0], decoding.beams, model.prompt
    lists: Any = None
    if model.hears:
        ids, *lists = _segment(ids, prompt)
    special = [new((), I64) for _ in range(model.special_tokens)]
    asked(())  # is padding an end?
    asked(())
    with model.gathered():
        encoded = model.encoder(ids, mask)
    mark(encoded, "encoder_output")
    world.recording.term = "temporaries"
    ones = new((rows, 1), I64)
    start = new((rows, prompt), I64)
    ones = start
    if beams > 1:
        start = new((rows * beams, prompt), I64)  # repeat_interleave
        mask = mask and new((rows * beams, mask.shape[1]), I64)
        encoded = new((rows * beams, *encoded.shape[1:]), encoded.dtype)
        mark(encoded, "encoder_output")
    del ones
    if mask is not None:
        asked((rows, mask.shape[1]))
    if beams > 1:
        search(model, rows, decoding, Answer(model, mask, encoded, model_call, decoding.wrapped), start, between)
    else:
        _greedy_answer(model, rows, decoding, mask, encoded)
    del special, lists


def _segment(features: Tensor, prompt: int) -> list[Tensor]:
    """What Whisper's own ``generate`` holds around transformers': the features, cut into segments and joined, and
    lists of tokens: how an answer begins, and what is never said (generation_whisper.py)."""
    lists = [new((size,), I64) for size in (prompt, SUPPRESSED, SUPPRESSED_AT_FIRST)]
    segment = new(features.shape, features.dtype)
    mark(segment, "inputs")
    return [segment, new((features.shape[0], prompt), I64), *lists]


def _greedy_answer(model: Any, rows: int, decoding: Decoding, mask: Tensor, encoded: Tensor) -> None:
    """``_sample`` of an encoder-decoder: a token of the answer at a time."""
    cache = PairedCache(model.options.earlier.cache)
    forced = new((), I64) if model.forces_end else None
    unfinished = new((rows,), I64)
    out: Any = None
    logits = scores = made = chosen = ids = answer = None
    step = 0
    while step < decoding.tokens:
        ids = new((rows, 1 if step else model.prompt), I64)
        out = model_call(model, lambda ids=ids: model.step(ids, mask, encoded, cache), decoding.wrapped, encoded)
        world.recording.term = "temporaries"
        first = not step
        if first:
            ids = None
        step += 1
        grown = middle(step, decoding.tokens)
        if grown:
            cache.own.grow(grown)
            step += grown
        logits = new((rows, out[0].shape[-1]), F32)
        mark(logits, "logits")
        made = suppressed(logits, first=first) if model.hears else logits
        if model.forces_end and step == decoding.tokens:  # ForcedEOSTokenLogitsProcessor: full_like
            made = new((rows, out[0].shape[-1]), F32)
        scores, made = made, None  # those of the step before lived until now
        chosen = new((rows,), I64)
        answer = new((rows, model.prompt + step), I64)
        unfinished = new((rows,), I64)
        out = None
    del forced, unfinished, logits, scores, chosen, ids, answer


def asked(shape: tuple[int, ...]) -> None:
    """A question that the host asks: ``any`` of a comparison."""
    compared = new(shape, BOOL)
    found = new((), BOOL)
    del compared, found


def decoding_of(model: Model, tokens: int, beams: int, *, trained: bool) -> Decoding:
    """How a run generates; alone, nothing wraps the model's forward."""
    options, most = model.options, model.architecture.max_positions
    if model.hears and most is not None:  # _set_max_new_tokens_and_length, generation_whisper.py
        tokens = min(tokens, most - model.prompt)
    return Decoding(tokens, beams, options.autocast if trained and options.adapters is None else None)


# --- beams: ``_beam_search`` of the same file, with an encoder or without ---------------------------------------------


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
