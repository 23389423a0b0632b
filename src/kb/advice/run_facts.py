"""Facts that several settings make up together: whether and how long a run trains, how lists and nulls are written."""

from collections.abc import Callable, Mapping
from typing import Any

from kb.core.document import Unit
from kb.core.expression import Unknown
from kb.core.facts import FactType
from kb.core.setup import TrainingSetup


class RunFacts:
    """``setting`` looks a setting up: the config's word, the project's, or the library's default."""

    def __init__(
        self, unit: Unit, setup: TrainingSetup, types: Mapping[str, FactType], setting: Callable[[str], Any]
    ) -> None:
        self._unit = unit
        self._setup = setup
        self._types = types
        self._setting = setting

    def providers(self) -> dict[str, Callable[[str], Any]]:
        return {
            "config.null_settings": lambda _: tuple(self._unit.nulls),
            "config.text_lists": lambda _: self._text_lists(),
            "generation.suppresses_forced_token": lambda _: self._suppresses_forced(),
            "run.trains": lambda _: self._trains(),
            "run.steps": lambda _: self._steps(),
        }

    def _text_lists(self) -> tuple[str, ...]:
        """The lists that the config gives as one text, which Python goes through letter by letter."""
        settings, types = self._unit.settings.items(), self._types
        return tuple(name for name, each in settings if types[name].type == "list" and isinstance(each.value, str))

    def _trains(self) -> bool:
        """Whether the run trains: a script told to evaluate or predict trains only where it is told that too.

        TRL's scripts train whatever they are told.
        """
        train, *others = (self._setting(f"training.do_{phase}") for phase in ("train", "eval", "predict"))
        alone = self._unit.dialect not in ("team", "trl") and train is None and True in others
        return self._setup.do_train and not alone

    def _suppresses_forced(self) -> bool:
        """Whether ``suppress_tokens`` holds a token that is forced at the start or the end."""
        suppressed = self._setting("generation.suppress_tokens")
        forced = [self._setting(f"generation.forced_{end}_token_id") for end in ("bos", "eos")]
        return isinstance(suppressed, tuple) and any(token in suppressed for token in forced if token is not None)

    def _steps(self) -> Any:
        """Optimizer updates of the training run: ``max_steps``, or what epochs and samples come to (Trainer 5.23).

        A last, smaller accumulation counts as an update; before transformers 4.52 it did not.
        """
        most, samples = self._setting("training.max_steps"), self._setting("data.train_samples")
        epochs = self._setting("training.num_train_epochs")
        if isinstance(most, int) and most > 0:
            return most
        if not isinstance(samples, int) or samples < 1:
            return Unknown(frozenset(("data.train_samples",)))
        if not isinstance(epochs, int | float) or not self._setup.batch_known:
            return None
        batches = -(-samples // (self._setup.per_device_train_batch_size * self._setup.world_size))
        updates = -(-batches // self._setup.gradient_accumulation_steps)
        return -int(-epochs * updates // 1)
