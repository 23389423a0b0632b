"""``kb-diagnosis.md``: what ran out, what kb predicted and measured until then, what to change, the settings."""

import os
import traceback
from typing import Any

from kb.advice.diagnosis import Diagnosis, diagnose, nothing_known
from kb.integrations.trainer import lines
from kb.integrations.trainer.forecast import Knowledge
from kb.integrations.trainer.watching import Watching, logger
from kb.knowledge import load_guide
from kb.machine.software import installed_versions
from kb.report.diagnosis_report import diagnosis_text
from kb.report.terminal import Style
from kb.report.words import Words

_LIBRARIES = ("torch", "transformers", "accelerate", "peft", "bitsandbytes", "datasets")
_MEMORY = ("gpu", "host", "shm")


def explains(error: BaseException) -> bool:
    """Whether memory, of whatever kind, ran out."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, Exception) and any(cause.resource in _MEMORY for cause in _diagnosed(error, None).causes)


def _diagnosed(error: BaseException, watching: Watching | None) -> Diagnosis:
    text = "".join(traceback.format_exception(error)).splitlines()
    lookup = watching.forecast.facts.get if watching and watching.forecast else nothing_known
    return diagnose(enumerate(text, 1), load_guide().get("remedies", {}), lookup)


def write_diagnosis(
    path: str, error: BaseException, watching: Watching | None, state: Any, language: str | None
) -> str | None:
    """Write the file; its path, None where the folder takes none, which is said.

    Args:
        error: what ended the run.
        watching: what is known of the run; None where it never began.
        state: the TrainerState.
    """
    knowledge = watching.knowledge if watching else Knowledge(language)
    text = diagnosis_markdown(error, watching, state, knowledge.words)
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as fault:
        logger().warning(knowledge.words("callback.not_written", path=path, reason=fault.strerror or str(fault)))
        return None
    logger().warning(knowledge.words("callback.written", path=path))
    return path


def diagnosis_markdown(error: BaseException, watching: Watching | None, state: Any, words: Words) -> str:
    """The whole file."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    steps = f"{state.global_step} / {state.max_steps}" if state is not None else "?"
    parts = [f"# {words('callback.diagnosis.title')}", words("callback.diagnosis.where", step=steps)]
    forecast = watching.forecast if watching else None
    unit = forecast.result.unit if forecast else None
    found = _diagnosed(error, watching)
    parts += [
        f"## {words('callback.diagnosis.cause')}",
        _fenced(diagnosis_text(found, "traceback", words, Style(width=100), unit)),
    ]
    if forecast is not None and watching is not None:
        said = [*lines.prediction(forecast, words, watching.meter.kind)]
        for each in watching.comparisons:
            said += lines.comparison(each, None, words)
        parts += [
            f"## {words('callback.diagnosis.memory')}",
            "\n".join(f"- {text.removeprefix('kb: ')}" for _, text in said),
        ]
        wrong = [
            text for finding in forecast.result.counted() for text in lines.finding_lines(finding, forecast, words)
        ]
        if wrong:
            parts += [f"## {words('callback.diagnosis.findings')}", _fenced("\n".join(wrong))]
        parts += [f"## {words('callback.diagnosis.settings')}", _fenced(forecast.run.text(), "yaml")]
    stack = ", ".join(f"{name} {version}" for name, version in _versions().items())
    parts += [
        f"## {words('callback.diagnosis.error')}",
        _fenced(trace),
        f"{words('callback.diagnosis.versions')} {stack}",
    ]
    return "\n\n".join(parts) + "\n"


def _fenced(text: str, kind: str = "text") -> str:
    mark = "````" if "```" in text else "```"
    return f"{mark}{kind}\n{text.rstrip()}\n{mark}"


def _versions() -> dict[str, str]:
    found = installed_versions()
    return {name: found[name] for name in _LIBRARIES if name in found}
