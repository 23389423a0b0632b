"""Facts about an adapter's settings against the model that it goes on."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from kb.advice.module_names import MODULE_NAMES
from kb.core.document import Unit
from kb.core.expression import Unknown, is_unknown
from kb.core.model import Model
from kb.core.setup import TrainingSetup
from kb.memory import UnknownTargetsError, match_targets

_WITH_OTHER_HEADS = ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS", "FEATURE_EXTRACTION")
MAX_PATTERN = 200  # a key of rank_pattern is a regular expression; longer ones, and repeated repeats, are not run


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
            return tuple(key for key in keys if not _ends_one(key, paths))
        except (UnknownTargetsError, re.error) as error:
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


def _ends_one(key: str, paths: list[str]) -> bool:
    if len(key) > MAX_PATTERN or re.search(r"[+*}]\)?[+*{]", key):
        raise re.error("pattern too long, or it repeats a repetition")
    compiled = re.compile(rf"(.*\.)?({key})$")
    return any(compiled.match(path) for path in paths)
