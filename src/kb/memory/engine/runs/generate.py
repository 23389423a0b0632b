"""``generate`` (transformers/generation/utils.py): greedy, and by beams; the Trainer's and on its own.

Between the second token and the last ones only the cache grows, so there nothing else is followed.
"""

from typing import Any

from kb.core.record import NamedTuple
from kb.memory.engine import ops
from kb.memory.engine.autocast import autocast
from kb.memory.engine.families.attention import PairedCache
from kb.memory.engine.modules import Model
from kb.memory.engine.runs.beams import Answer, Continuation, search, suppressed
from kb.memory.engine.runs.decoding import all_longer, numbered, or_padding, still_unfinished, stop_check
from kb.memory.engine.tensor import BOOL, F32, I64, Tensor, mark, new
from kb.memory.engine.world import world

MOST_TOKENS = 1 << 14  # of one answer: each grows the cache of every layer
SUPPRESSED, SUPPRESSED_AT_FIRST = 86, 2  # as many as openai/whisper-small's config.json lists
FIRST, LAST, FEWEST = 2, 2, 20  # tokens that are decoded before and after the middle, and the shortest middle


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


def middle(decoded: int, tokens: int) -> int:
    """How many tokens only grow the cache, after ``decoded`` of them."""
    left = tokens - decoded - LAST
    return left if decoded == FIRST and left >= FEWEST else 0


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
        search(model, rows, decoding, Continuation(model, prompt, model_call, decoding.wrapped), ids, middle)
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
        search(model, rows, decoding, Answer(model, mask, encoded, model_call, decoding.wrapped), start, middle)
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
