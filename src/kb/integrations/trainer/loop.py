"""The same for a training loop of one's own, with Accelerate or without."""

import contextlib
import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from kb.core.text import UserError
from kb.integrations.trainer.diagnosis import explains, write_diagnosis
from kb.integrations.trainer.forecast import Knowledge
from kb.integrations.trainer.live import LiveRun, adapter_settings, held_bytes, model_of, model_settings
from kb.integrations.trainer.meter import Comparison, meter_for
from kb.integrations.trainer.watching import Watching, logger, reason_of
from kb.session.cli import worded


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
            language = self.watching.knowledge.language if self.watching else (self._lang or "en")
            if self.watching is not None:
                self.watching.shapes.detach()
            self.watching = None
            reason = reason_of(fault, language)
            logger().warning(worded(UserError("callback.broken", reason=reason), language))
