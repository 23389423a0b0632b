"""The Trainer's evaluation and transformers' own ``generate``, unmodified, on fake tensors.

The loop's own variables are part of the peak: the last step's predictions are alive beside the joined ones until the
next step has made its own (transformers 5.24: ``Trainer.evaluation_loop``, ``prediction_step``).

Where ``generate`` asks a tensor for its value it would wait for the GPU; there is no value here, so the question is
answered from the place that asks: decoding goes on until the wanted number of tokens, and masks hold padding or do not.
A long answer need not be decoded token by token. Between the second token and the last ones only the cache grows, so
there the cache's own ``update`` (and, with beams, ``reorder_cache``) runs alone: the allocator sees the same growth.
Import only in the simulator's process.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kb.core.record import NamedTuple
from kb.torch_runs.models import base_of
from kb.torch_runs.releases import cached_layers, is_fixed, scores_on_host, uncompiled
from kb.torch_runs.simulation.torch_modules import torch

DECODED_FIRST, DECODED_LAST = 2, 2  # tokens that the whole model decodes; between them only the cache grows
PROMPT = 4  # tokens with which Whisper's answer begins
SUPPRESSED = range(4, 90)  # as many as openai/whisper-small's config.json lists; their numbers change no byte
CACHE_NAMES = ("cache", "past_key_values")  # since transformers 5.24, and before
FEWEST_SKIPPED = 20  # below that, decoding them all is quick enough


class Decoding(NamedTuple):
    """How tokens are to be generated. ``skip``: grow only the cache in the middle of a long answer."""

    new_tokens: int
    beams: int = 1
    sampling: bool = False
    static_cache: bool = False
    skip: bool = True


class Progress:
    """Tokens decoded so far, and what the host's questions are answered with."""

    def __init__(self, decoding: Decoding, padded: bool, frames: int = 0) -> None:
        self.decoding = decoding
        self.padded = padded
        self.tokens = 0
        self.frames = frames
        self.prompt = PROMPT if frames else 0
        self.asked = 0

    @property
    def finished(self) -> bool:
        return self.tokens >= self.decoding.new_tokens

    def answer(self, tensor: Any) -> bool | int | float:
        """The value of a one-element tensor, by who asks for it."""
        yes_or_no = str(tensor.dtype) == "torch.bool"
        frame = sys._getframe(1)
        while frame is not None:
            place, name = frame.f_code.co_filename, frame.f_code.co_name
            if place.endswith("generation_whisper.py"):
                return self._of_sound(name, yes_or_no=yes_or_no)
            if place.endswith("beam_search.py"):  # before 4.50 beams are counted on the host
                found = frame.f_locals.get("best", ())  # all of one length, for which `finalize` asks
                return False if yes_or_no else max(map(len, found), default=0)
            if "masking_utils" in place:
                return not self.padded  # "is everything visible?"
            if place.endswith("logits_process.py") and name == "__init__":
                return False  # "is a token's number below zero?"
            if "generation" in place and place.endswith("utils.py"):
                if name == "_beam_search" and scores_on_host():
                    return self.finished if yes_or_no else 0
                if name == "_beam_search":
                    return not self.finished if yes_or_no else self.prompt + self.decoding.new_tokens
                if name in ("__call__", "_sample", "_has_unfinished_sequences"):
                    return self.finished
                if name == "generate":
                    return not self.padded  # "is the mask all ones?"
            frame = frame.f_back  # type: ignore[assignment]
        return False if yes_or_no else 0

    def _of_sound(self, name: str, *, yes_or_no: bool) -> bool | int:
        """Whisper's own loop: one segment, which is all of the features, and every answer as long as the others."""
        if name == "generate":
            return not self.finished  # "is there more to hear?"
        if name == "_get_input_segment":  # from where, to where: asked in turn
            self.asked += 1
            return 0 if self.asked % 2 else self.frames
        return False if yes_or_no else 0


def generate(model: Any, inputs: dict[str, Any], decoding: Decoding, tracer: Any) -> Any:
    """Generate as the Trainer's evaluation does, under the tracer's current phase; the fake tokens.

    Args:
        model: a model of :mod:`kb.torch_runs.simulation.loading`, or what PEFT made of it.
        inputs: fake tensors by their names; ``labels`` are left out.
    """
    frames = 0
    if "input_features" in inputs:
        frames = inputs["input_features"].shape[-1]
        decoding = _name_speech(model, decoding)
    progress = Progress(decoding, tracer.padded, frames)
    settings: dict[str, Any] = {"cache_implementation": "static"} if decoding.static_cache else {}
    given = {name: value for name, value in inputs.items() if name != "labels"}
    with torch.no_grad(), _answering(tracer, progress.answer), _watching(model, progress, tracer):
        return model.generate(
            **given,
            max_new_tokens=decoding.new_tokens,
            num_beams=decoding.beams,
            do_sample=decoding.sampling,
            use_cache=True,
            **uncompiled(),
            **settings,
        )


def _name_speech(model: Any, decoding: Decoding) -> Decoding:
    """What a checkpoint's generation_config.json names and a fine-tuning program sets: language and task.

    The answer begins with four tokens (start, language, task, no timestamps); with them it has at most as many as
    the decoder has positions (``_set_max_new_tokens_and_length``, generation_whisper.py).
    """
    inner = base_of(model)
    last = inner.config.vocab_size - 1
    known = {"is_multilingual": True, "lang_to_id": {"<|en|>": last}, "task_to_id": {"transcribe": last - 1},
             "no_timestamps_token_id": last - 2, "language": "en", "task": "transcribe", "forced_decoder_ids": None,
             "suppress_tokens": list(SUPPRESSED), "begin_suppress_tokens": [2, 3],
             "decoder_start_token_id": inner.config.decoder_start_token_id, "max_length": None}  # fmt: skip
    for name, value in known.items():
        setattr(inner.generation_config, name, value)
    return decoding._replace(new_tokens=min(decoding.new_tokens, inner.config.max_target_positions - PROMPT))


@contextmanager
def _answering(tracer: Any, answer: Callable[[Any], bool | int | float]) -> Iterator[None]:
    before = tracer.answer
    tracer.answer = answer
    try:
        yield
    finally:
        tracer.answer = before


@contextmanager
def _watching(model: Any, progress: Progress, tracer: Any) -> Iterator[None]:
    """Count the tokens, tell the tracer which tensors are the cache, and skip the middle.

    The two methods are replaced on this one object: ``generate`` calls them once for every token.
    """
    import functools

    inner = base_of(model)
    prepare, update = inner.prepare_inputs_for_generation, inner._update_model_kwargs_for_generation
    encoded = inner.config.is_encoder_decoder

    @functools.wraps(prepare)
    def prepare_and_mark(*args: Any, **kwargs: Any) -> Any:
        _mark_kept(tracer, kwargs)  # reordering has made the cache anew
        return prepare(*args, **kwargs)

    @functools.wraps(update)
    def update_and_count(outputs: Any, kwargs: Any, *args: Any, **options: Any) -> Any:
        kwargs = update(outputs, kwargs, *args, **options)
        progress.tokens += 1
        _mark_kept(tracer, kwargs)
        left = progress.decoding.new_tokens - progress.tokens - DECODED_LAST
        grows = not isinstance(cache_in(kwargs), tuple)
        if grows and progress.decoding.skip and progress.tokens == DECODED_FIRST and left >= FEWEST_SKIPPED:
            _skip(kwargs, left, progress.decoding, encoded)
            progress.tokens += left
            _mark_kept(tracer, kwargs)
        return kwargs

    inner.prepare_inputs_for_generation, inner._update_model_kwargs_for_generation = prepare_and_mark, update_and_count
    try:
        yield
    finally:
        del inner.prepare_inputs_for_generation, inner._update_model_kwargs_for_generation


def cache_in(named: Mapping[str, Any]) -> Any:
    """The cache among what ``generate`` hands on, or what a model gave back; None: there is none."""
    return next((named[name] for name in CACHE_NAMES if name in named), None)


def _mark_kept(tracer: Any, kwargs: dict[str, Any]) -> None:
    mark_cache(tracer, cache_in(kwargs))
    encoded = kwargs.get("encoder_outputs")
    if encoded is not None and hasattr(encoded, "last_hidden_state"):
        tracer.mark(encoded.last_hidden_state, "encoder_output")


def _skip(kwargs: dict[str, Any], tokens: int, decoding: Decoding, encoded: bool) -> None:
    """As if ``tokens`` more had been decoded: the cache, the mask and the positions that long."""
    grow_cache(cache_in(kwargs), tokens, reorder=decoding.beams > 1)
    names = ("decoder_attention_mask", "decoder_position_ids") if encoded else ("attention_mask", "position_ids")
    for name in names:
        given = kwargs.get(name)
        if given is not None:
            kwargs[name] = torch.cat([given, given.new_ones((*given.shape[:-1], tokens))], dim=-1)


def mark_cache(tracer: Any, cache: Any) -> None:
    """Tell the tracer what the cache holds: the roles are the ledger's terms."""
    if isinstance(cache, tuple):  # before 4.54: by layer the keys and values of itself, then of what is encoded
        for layer in cache:
            for number, tensor in enumerate(layer):
                tracer.mark(tensor, "kv_cache_cross" if number > 1 else "kv_cache_self")
        return
    for role, part in _parts(cache):
        for _, keys, values in cached_layers(part):
            tracer.mark(keys, role)
            tracer.mark(values, role)


def grow_cache(cache: Any, tokens: int, *, reorder: bool) -> None:
    """Let the self-attention cache take ``tokens`` more, one at a time, by its own methods.

    Layers of a fixed size do not grow. With ``reorder``, each token is preceded by beam search's reordering, which
    copies the cross-attention's keys and values as well.
    """
    if cache is None or is_fixed(cache):
        return
    own = dict(_parts(cache))["kv_cache_self"]
    numbers = [number for number, _, _ in cached_layers(own)]
    if not numbers:
        return
    rows = _rows_of(own)
    for _ in range(tokens):
        if reorder:
            cache.reorder_cache(rows)
        for number in numbers:
            own.update(*_last(own, number), number)


def _rows_of(cache: Any) -> Any:
    """For each sample and beam the row that it goes on with."""
    _, keys, _ = cached_layers(cache)[0]
    return torch.zeros(keys.shape[0], dtype=torch.long, device=keys.device)


def _last(cache: Any, number: int) -> tuple[Any, Any]:
    """The keys and values of one token of a layer, as if they were new."""
    keys, values = next(held for at, *held in cached_layers(cache) if at == number)
    return keys[..., -1:, :].clone(), values[..., -1:, :].clone()


def _parts(cache: Any) -> list[tuple[str, Any]]:
    if cache is None:
        return []
    if hasattr(cache, "self_attention_cache"):
        return [("kv_cache_self", cache.self_attention_cache), ("kv_cache_cross", cache.cross_attention_cache)]
    return [("kv_cache_self", cache)]


MOST_JOINS = 1000
SPANS = ("start_positions", "end_positions")  # labels of question answering
STEPS_TRACED = 6  # beyond these, predictions of the steps between are joined without their forward passes


class Evaluation(NamedTuple):
    """How evaluation goes. ``steps`` batches, moved to the host every ``accumulation`` of them where that is set.

    ``keeps``: the predictions are kept; without, only the loss (``prediction_loss_only``, or generated tokens).
    """

    steps: int
    accumulation: int | None = None
    keeps: bool = True


def evaluate(
    model: Any,
    batch: Callable[[], dict[str, Any]],
    evaluation: Evaluation,
    tracer: Any,
    before_forward: Callable[[dict[str, Any]], None] | None = None,
    *,
    compute_loss: Callable[[Any, dict[str, Any]], tuple[Any, Any]],
) -> int:
    """Run the steps, under the tracer's current phase; bytes of predictions that one step keeps.

    Args:
        batch: makes one step's inputs, with labels.
        before_forward: what comes before a step's forward pass: generation, with ``predict_with_generate``.
        compute_loss: gives the loss and the model's outputs.
    """
    from transformers.trainer_pt_utils import EvalLoopContainer

    kept = 0
    predictions, targets, losses = (EvalLoopContainer(True, padding_index=-100) for _ in range(3))
    for step in _steps(evaluation):
        if step < 0:
            _join(predictions, targets, -step)
            continue
        inputs = batch()
        if before_forward is not None:
            before_forward(inputs)
        loss, logits, labels = _prediction_step(model, inputs, evaluation.keeps, tracer, compute_loss)
        losses.add(loss.repeat(len(next(iter(inputs.values())))))
        if logits is not None:
            kept = sum(tensor.untyped_storage().nbytes() for tensor in _leaves(logits))
            predictions.add(logits)
            _mark_predictions(tracer, predictions.tensors)
        targets.add(labels)
        if evaluation.accumulation and (step + 1) % evaluation.accumulation == 0:
            predictions.tensors = targets.tensors = losses.tensors = None
            del loss, logits, labels, inputs
            tracer.allocator.empty_cache()
    return kept


def _steps(evaluation: Evaluation) -> list[int]:
    """The numbers of the steps to run; a negative one stands for as many steps whose predictions are only joined."""
    together = min(evaluation.accumulation or evaluation.steps, evaluation.steps)
    if together <= STEPS_TRACED:
        return list(range(min(evaluation.steps, 2 * together if evaluation.accumulation else together)))
    first, last = STEPS_TRACED - 2, 2
    return [*range(first), -(together - first - last), *range(together - last, together)]


def _prediction_step(
    model: Any,
    inputs: dict[str, Any],
    keeps: bool,
    tracer: Any,
    compute_loss: Callable[[Any, dict[str, Any]], tuple[Any, Any]],
) -> tuple[Any, Any, Any]:
    """One step's loss, predictions and labels, as ``Trainer.prediction_step`` returns them."""
    from transformers.trainer_pt_utils import nested_detach

    ignored = [*getattr(model.config, "keys_to_ignore_at_inference", CACHE_NAMES), "loss"]
    with torch.no_grad():
        loss, outputs = compute_loss(model, inputs)
        mark_cache(tracer, cache_in(outputs))
        loss = loss.detach().mean()
        kept = tuple(value for name, value in outputs.items() if name not in ignored) if keeps else ()
    logits = nested_detach(kept)
    labels = tuple(inputs[name] for name in (*SPANS, "labels") if name in inputs)
    found = nested_detach(labels[0] if len(labels) == 1 else labels)
    return loss, (logits[0] if len(logits) == 1 else logits) if keeps else None, found


def _join(predictions: Any, targets: Any, steps: int) -> None:
    """As if ``steps`` more had been joined, each as large as those that were; very many are joined a few at a time."""
    from torch.utils._pytree import tree_map

    together = -(-steps // MOST_JOINS)
    for container in (predictions, targets):
        joined = container.tensors
        if joined is None:
            continue

        def some(tensor: Any) -> Any:
            return tensor.new_empty((tensor.shape[0] // (STEPS_TRACED - 2) * together, *tensor.shape[1:]))

        more = tree_map(some, joined)
        del joined
        for _ in range(steps // together):
            container.add(more)


def _leaves(tensors: Any) -> list[Any]:
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(tensors) if leaf is not None]  # a tower's states that nobody asked for


def _mark_predictions(tracer: Any, tensors: Any) -> None:
    for tensor in _leaves(tensors):
        tracer.mark(tensor, "gathered")
