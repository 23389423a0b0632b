"""The two ways to have a run watched: a TrainerCallback, and a watch around a loop of one's own, with Accelerate or
without. Nothing that goes wrong in here may stop a training run: one warning, then silence.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from transformers import Trainer, TrainerCallback

from kb.core.text import UserError
from kb.integrations.trainer.forecast import Knowledge
from kb.integrations.trainer.live import (
    Lengths,
    LiveRun,
    adapter_settings,
    held_bytes,
    length_of,
    longest_rows,
    model_of,
    model_settings,
    read_run,
)
from kb.integrations.trainer.meter import Comparison, meter_for
from kb.integrations.trainer.watching import Watching, explains, logger, write_diagnosis
from kb.session.cli import worded


def harmless(method: Callable[..., None]) -> Callable[..., None]:
    """The event without its faults: the first is said, and from then on the callback does nothing."""

    @functools.wraps(method)
    def event(self: "KbCallback", *given: Any, **named: Any) -> None:
        if self.broken:
            return
        try:
            method(self, *given, **named)
        except Exception as fault:
            self.give_up(fault)

    return event


class KbCallback(TrainerCallback):
    """Lints the run at its start, predicts its memory, compares with what is measured, explains an out-of-memory error.

    ``Trainer(…, callbacks=[KbCallback()])``. Predicted and measured sizes go to the Trainer's log, and so to
    ``state.log_history`` and to every tracker, as ``kb/predicted_allocated_gib``, ``kb/measured_allocated_gib``, ….

    Args:
        lang: ``ko`` or ``en``; None is the project's (``kb.toml``), else the locale's.
        max_source_length: tokens of the longest input; None looks at the dataset.
        max_target_length: tokens of the longest target; None likewise.
        diagnosis: where the diagnosis of an out-of-memory error goes; None is ``kb-diagnosis.md`` in ``output_dir``.
    """

    def __init__(
        self,
        *,
        lang: str | None = None,
        max_source_length: int | None = None,
        max_target_length: int | None = None,
        diagnosis: str | None = None,
    ) -> None:
        self.trainer: Trainer | None = None
        self.watching: Watching | None = None
        self.broken = False
        self._lang = lang
        self._lengths = Lengths(max_source_length, max_target_length)
        self._diagnosis = diagnosis
        self._args: Any = None
        self._state: Any = None
        self._hook: Any = None
        self._explained: BaseException | None = None

    @property
    def comparisons(self) -> list[Comparison]:
        """Every comparison so far, in order."""
        return self.watching.comparisons if self.watching else []

    @harmless
    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **named: Any) -> None:
        self._args, self._state = args, state
        self.trainer = self.trainer or trainer_above()
        if self.watching is None:
            meter = meter_for(args.device, resets=args.skip_memory_metrics)
            self.watching = Watching(Knowledge(self._lang), meter, args.device, aloud=state.is_world_process_zero)
        self._explain_what_nothing_catches()
        lengths, known = self._data(named.get("train_dataloader"), named.get("processing_class"))
        batch = self._lowered_batch(args, state)
        optimizer = named.get("optimizer")
        catalog = self.watching.knowledge.catalog
        run = read_run(args, model, catalog, batch=batch, lengths=lengths, known=known, optimizer=optimizer)
        if not args.torch_compile:  # a hook would be compiled in, and taking it out compile anew
            self.watching.shapes.attach(model)
        self.watching.start(run)

    @harmless
    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if self.watching is None:
            return
        self._log(self.watching.stepped(), control)
        if control.should_evaluate:
            self.watching.before_evaluation()

    @harmless
    def on_epoch_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if self.watching is not None and control.should_evaluate:
            self.watching.before_evaluation()

    @harmless
    def on_evaluate(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if self.watching is not None:
            self._log(self.watching.evaluated(), control)

    @harmless
    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **named: Any) -> None:
        if self.watching is not None:
            self._log(self.watching.evaluated(), control)

    @harmless
    def on_train_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if self.watching is not None:
            self._log(self.watching.end(), control)
            self.watching.shapes.detach()
        if sys.excepthook is self._hook:
            sys.excepthook = self._before_hook

    def explain(self, error: BaseException) -> str | None:
        """Write the diagnosis of an out-of-memory error; its path, None for any other error. Raises nothing."""
        if self.broken or self._explained is error:
            return None
        try:
            if not explains(error):
                return None
            self._explained = error
            if self.watching is not None:
                self.watching.shapes.detach()
            language = self.watching.knowledge.language if self.watching else self._lang
            path = write_diagnosis(self._place(), error, self.watching, self._state, language)
        except Exception as fault:
            self.give_up(fault)
            return None
        return path

    def give_up(self, fault: Exception) -> None:
        """Say what went wrong in kb, once, and stay out of the way from here on."""
        self.broken = True
        with contextlib.suppress(Exception):
            _say_broken(fault, self.watching, self._lang)

    def _log(self, comparison: Comparison | None, control: Any) -> None:
        """Through ``Trainer.log``, which reaches every tracker; in the history alone where no Trainer is to be had.

        The base class's: a subclass's may empty what it has gathered for the step's own log (TRL's do). It takes
        ``should_log`` back, which that log still needs.
        """
        if comparison is None or not self._state.is_world_process_zero or not comparison.record():
            return
        if self.trainer is None:
            self._state.log_history.append({**comparison.record(), "step": self._state.global_step})
            return
        wanted = control.should_log
        Trainer.log(self.trainer, comparison.record())
        control.should_log = wanted

    def _data(self, loader: Any, processor: Any) -> tuple[Lengths, dict[str, Any]]:
        """Lengths of the rows, and what only the script's own objects say."""
        trainer = self.trainer
        dataset = trainer.train_dataset if trainer is not None else getattr(loader, "dataset", None)
        collator = trainer.data_collator if trainer is not None else getattr(loader, "collate_fn", None)
        found = longest_rows(dataset, collator)
        known: dict[str, Any] = {"data.train_samples": found.rows, "tokenizer.length": length_of(processor)}
        if trainer is not None:
            evaluated = trainer.eval_dataset
            several = list(evaluated.values()) if isinstance(evaluated, dict) else [evaluated]
            rows = [longest_rows(each, collator) for each in several if each is not None]
            known["data.eval_samples"] = max((each.rows for each in rows if each.rows), default=None)
            known["script.has_compute_metrics"] = trainer.compute_metrics is not None
            known["script.preprocesses_logits"] = trainer.preprocess_logits_for_metrics is not None
        source, target = self._lengths.source or found.source, self._lengths.target or found.target
        return Lengths(source, target, found.rows), {name: value for name, value in known.items() if value is not None}

    def _lowered_batch(self, args: Any, state: Any) -> int | None:
        """Samples per device where ``auto_find_batch_size`` took fewer than the arguments say."""
        lowered = state.train_batch_size
        if not args.auto_find_batch_size or not lowered:
            return None
        return max(int(lowered) // max(args.n_gpu, 1), 1)

    def _place(self) -> str:
        if self._diagnosis is not None:
            return self._diagnosis
        rank = getattr(self._args, "process_index", 0)
        name = f"kb-diagnosis-rank{rank}.md" if rank else "kb-diagnosis.md"
        return os.path.join(getattr(self._args, "output_dir", None) or os.getcwd(), name)

    def _explain_what_nothing_catches(self) -> None:
        """No event tells a callback of an exception; one that ends the program passes through ``sys.excepthook``."""
        if sys.excepthook is self._hook and self._hook is not None:
            return
        before = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            self.explain(error)
            before(kind, error, trace)

        self._before_hook, self._hook, sys.excepthook = before, hook, hook


@contextlib.contextmanager
def watch(trainer: Trainer, **options: Any) -> Iterator[KbCallback]:
    """``with watch(trainer): trainer.train()``: the callback, and the diagnosis of an out-of-memory error, whoever
    catches it.

    The Trainer's own :class:`KbCallback` is taken where it has one; ``options`` are those of a new one.
    """
    own = [each for each in trainer.callback_handler.callbacks if isinstance(each, KbCallback)]
    callback = own[0] if own else KbCallback(**options)
    callback.trainer, callback._args, callback._state = trainer, trainer.args, trainer.state
    if not own:
        trainer.add_callback(callback)
    try:
        yield callback
    except BaseException as error:
        callback.explain(error)
        raise
    finally:
        if callback.watching is not None:
            callback.watching.shapes.detach()
        if not own:
            trainer.remove_callback(callback)


def trainer_above() -> Trainer | None:
    """The Trainer whose event this is: a callback is handed all but it, and only its ``log`` reaches every tracker."""
    frame = sys._getframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Trainer):
            return caller
        frame = frame.f_back  # type: ignore[assignment]
    return None


class LoopWatch:
    """Watches a loop that is not the Trainer's. Nothing that goes wrong in it reaches the loop.

    ::

        settings = {"per_device_train_batch_size": 8, "max_source_length": 512, "max_target_length": 64}
        with LoopWatch(model, settings, device=accelerator.device, log=accelerator.log,
                       aloud=accelerator.is_main_process) as watch:
            for batch in loader:
                ...
                optimizer.step()
                watch.after_step()

    Args:
        model: before ``accelerator.prepare`` wraps it.
        settings: what the loop does, in the names of TrainingArguments and of the example scripts.
        device: where it does it.
        log: takes a record of sizes in GiB, by name; Accelerate's ``accelerator.log`` hands it to its trackers.
        aloud: whether this process speaks.
        processes: how many train together.
        lang: ``ko`` or ``en``; None is the project's, else the locale's.
        diagnosis: where the diagnosis of an out-of-memory error goes.
    """

    def __init__(
        self,
        model: Any,
        settings: Mapping[str, Any],
        *,
        device: Any,
        log: Callable[[dict[str, float]], Any] | None = None,
        aloud: bool = True,
        processes: int = 1,
        lang: str | None = None,
        diagnosis: str = "kb-diagnosis.md",
    ) -> None:
        self.watching: Watching | None = None
        self._model, self._settings, self._device = model, dict(settings), device
        self._log, self._aloud, self._processes = log, aloud, processes
        self._lang, self._diagnosis = lang, diagnosis

    def __enter__(self) -> "LoopWatch":
        with self._harmless():
            self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._harmless():
            if error is None:
                self._record(self.watching.end() if self.watching else None)
            elif explains(error):
                language = self.watching.knowledge.language if self.watching else self._lang
                write_diagnosis(os.path.abspath(self._diagnosis), error, self.watching, None, language)
        if self.watching is not None:
            self.watching.shapes.detach()

    def after_step(self) -> None:
        """After an optimizer step."""
        with self._harmless():
            self._record(self.watching.stepped() if self.watching else None)

    def before_evaluation(self) -> None:
        """Where training pauses: evaluation's peak counts from here."""
        with self._harmless():
            if self.watching is not None:
                self.watching.before_evaluation()

    def after_evaluation(self) -> None:
        """Where evaluation has ended."""
        with self._harmless():
            self._record(self.watching.evaluated() if self.watching else None)

    def _begin(self) -> None:
        knowledge = Knowledge(self._lang)
        watching = Watching(knowledge, meter_for(self._device), self._device, aloud=self._aloud)
        adapter, unknown = adapter_settings(self._model)
        run = LiveRun(
            settings={**model_settings(self._model), **adapter, "do_train": True, **self._settings},
            known={},
            model=model_of(self._model, knowledge.catalog),
            parameters_bytes=held_bytes(self._model),
            world_size=self._processes,
            unknown_adapter=unknown,
        )
        watching.shapes.attach(self._model)
        watching.start(run)
        self.watching = watching

    def _record(self, comparison: Comparison | None) -> None:
        if comparison is not None and self._log is not None and self._aloud:
            self._log(comparison.record())

    @contextlib.contextmanager
    def _harmless(self) -> Any:
        try:
            yield
        except Exception as fault:
            watching, self.watching = self.watching, None
            _say_broken(fault, watching, self._lang)


def _say_broken(fault: Exception, watching: Watching | None, lang: str | None) -> None:
    """Say what went wrong in kb, and look on no longer."""
    if watching is not None:
        watching.shapes.detach()
    language = watching.knowledge.language if watching else (lang or "en")
    logger().warning(worded(UserError("callback.broken", reason=_reason(fault, language)), language))


def _reason(fault: Exception, language: str) -> str:
    """A fault of kb's own in one line."""
    if isinstance(fault, UserError):
        return worded(fault, language)
    return f"{type(fault).__name__}: {(str(fault).splitlines() or [''])[0]}"[:300]
