"""Facts about an adapter's settings against the model that it goes on."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from kb.advice.module_names import MODULE_NAMES
from kb.core.document import Unit
from kb.core.expression import Unknown, is_unknown
from kb.core.model import Model
from kb.core.setup import TrainingSetup
from kb.memory import match_targets

_WITH_OTHER_HEADS = ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS", "FEATURE_EXTRACTION")
MOST_PATTERNS = 100  # keys of rank_pattern that repeat something; one for each layer needs no repetition
_REPEATS = re.compile(r"[*+?{]")


class AdapterFacts:
    """The providers of the ``lora.`` facts that no config says itself."""

    def __init__(self, unit: Unit, setup: TrainingSetup, model: Model | None) -> None:
        self._unit, self._setup, self._model = unit, setup, model

    def providers(self) -> Mapping[str, Callable[[str], Any]]:
        return {
            "lora.unmatched_modules_to_save": lambda _: self._unmatched_to_save(),
            "lora.unmatched_patterns": lambda _: self._unmatched_patterns(),
            "lora.targets_text": lambda _: self._targets_text(),
            "lora.target_names": lambda _: self._target_names(),
        }

    def _written(self, name: str) -> Any:
        setting = self._unit.settings.get(name)
        return None if setting is None else setting.value

    def _unmatched_to_save(self) -> Any:
        """The names that end no module's name, as PEFT compares them (0.21.2, ``_set_trainable``)."""
        named = self._written("lora.modules_to_save")
        if named is None:
            return ()
        if not isinstance(named, tuple) or not all(isinstance(name, str) for name in named):
            return Unknown(frozenset(("lora.modules_to_save",)), "no list of names")
        if self._model is None:
            return Unknown(frozenset(("model.name",)), "model not known")
        known = MODULE_NAMES.get(self._model.architecture.model_type)
        if known is None or str(self._written("lora.task_type")).upper() in _WITH_OTHER_HEADS:
            return None
        return tuple(name for name in named if not any(each.endswith(name.rpartition(".")[2]) for each in known))

    def _unmatched_patterns(self) -> Any:
        """The keys of rank_pattern and alpha_pattern that no targeted module's name ends with (PEFT 0.21.2)."""
        patterns = [self._written(name) for name in ("lora.rank_pattern", "lora.alpha_pattern")]
        keys = [str(key) for pattern in patterns if isinstance(pattern, Mapping) for key in pattern]
        if not keys:
            return next((pattern for pattern in patterns if is_unknown(pattern)), ())
        if self._model is None:
            return Unknown(frozenset(("model.name",)), "model not known")
        try:
            matched, _ = match_targets(self._model.architecture, self._setup.lora_target_modules)
            paths = [path for module in matched for path in module.paths()]
            return _unmatched(keys, paths)
        except ValueError as error:
            return Unknown(frozenset(("lora.target_modules",)), str(error))

    def _targets_text(self) -> Any:
        """The targets as given where that is one text; empty where they are a list."""
        targets = self._written("lora.target_modules")
        return "" if isinstance(targets, tuple) else targets

    def _target_names(self) -> Any:
        """The names in targets given as one text that is no regular expression."""
        text = self._targets_text()
        if not isinstance(text, str) or text == "all-linear" or not re.fullmatch(r"[\w\s,]*", text):
            return text if text is None or is_unknown(text) else ()
        return tuple(text.replace(",", " ").split())


def _unmatched(keys: list[str], paths: list[str]) -> tuple[str, ...]:
    r"""The keys that no path ends with, as ``re.match(rf"(.*\.)?({key})$", path)`` has it.

    Raises:
        PatternError: a key is no regular expression, or one whose outcome is not known.
    """
    from kb.core.patterns import MOST_STEPS, Pattern, PatternError  # few configs have such keys

    repeating = [key for key in keys if _REPEATS.search(key)]
    if len(repeating) > MOST_PATTERNS:
        raise PatternError("too many patterns")
    missing = []
    for key in keys:
        whole = rf"(.*\.)?({key})$"
        try:
            # without repetitions there is one way to match: Python's own matcher is the faster
            match = (
                Pattern(whole, MOST_STEPS // len(repeating)).fullmatch if key in repeating else re.compile(whole).match
            )
        except re.error as error:
            raise PatternError(str(error)) from None
        if not any(map(match, paths)):
            missing.append(key)
    return tuple(missing)
