"""One run from its start to its end, whatever drives it: forecast, comparisons, diagnosis. Nothing here trains.

What is said on the way are log levels and lines in the user's language; ``kb-diagnosis.md`` says what ran out, what kb
predicted and measured until then, what to change, and the settings.
"""

import logging
import os
import sys
import traceback
from typing import Any

from kb.advice.diagnosis import Diagnosis, diagnose, nothing_known
from kb.core.finding import Finding
from kb.core.memory_report import OVER, WORKING, MemoryReport, Phase
from kb.core.result import UnitResult
from kb.core.units import GIB, MIB
from kb.integrations.trainer.forecast import Forecast, Knowledge
from kb.integrations.trainer.live import LiveRun, Seen, Shapes
from kb.integrations.trainer.meter import EVALUATION, Comparison, Meter, Reading, compare, host_bytes
from kb.knowledge import load_guide
from kb.machine.software import installed_versions
from kb.report.check.changes import SourceLines, describe_fix
from kb.report.diagnosis_report import diagnosis_text
from kb.report.terminal import Style
from kb.report.values import gpu_name
from kb.report.words import Words

Lines = list[tuple[int, str]]
LEVELS = {"error": logging.WARNING, "warning": logging.WARNING, "info": logging.INFO}
_STYLE = Style(width=100)
GREW = 1.02  # a later peak that is worth another line
_LIBRARIES = ("torch", "transformers", "accelerate", "peft", "bitsandbytes", "datasets")
_MEMORY = ("gpu", "host", "shm")


def logger() -> logging.Logger:
    """``kb.transformers``, heard on standard error where the program has set up no logging of its own."""
    found = logging.getLogger("kb.transformers")
    if not found.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        found.addHandler(handler)
        found.propagate = False
    if found.level == logging.NOTSET:
        found.setLevel(logging.INFO)
    return found


class Watching:
    """What happens to one run.

    Args:
        knowledge: rules and language.
        meter: measures on the run's device.
        aloud: whether this process speaks: of several, the main one does.
    """

    def __init__(self, knowledge: Knowledge, meter: Meter, device: Any, *, aloud: bool = True) -> None:
        self.knowledge = knowledge
        self.meter = meter
        self.device = device
        self.aloud = aloud
        self.shapes = Shapes()
        self.forecast: Forecast | None = None
        self.comparisons: list[Comparison] = []
        self._said: set[tuple[Any, ...]] = set()
        self._stepped = False
        self._train_peak = Reading()
        self._host_before = 0

    @property
    def result(self) -> UnitResult | None:
        return self.forecast.result if self.forecast else None

    def start(self, run: LiveRun) -> Forecast:
        """Lint and predict; say each once, and again only where the run has changed (a batch that was lowered)."""
        reading = self.meter.read()
        self.forecast = Forecast(run, self.knowledge, device=self.device, ours=reading.reserved or 0)
        text = run.text()
        if (text,) not in self._said:
            self._said.add((text,))
            self._say(lines_of_findings(self.forecast, self.knowledge.words))
            self._say(lines_of_prediction(self.forecast, self.knowledge.words, self.meter.kind))
        self._stepped, self._train_peak, self._host_before = False, Reading(), host_bytes()
        self.shapes.forget()
        self.meter.reset()
        return self.forecast

    def stepped(self) -> Comparison | None:
        """After an optimizer step; a comparison after the first."""
        if self._stepped or self.forecast is None:
            return None
        self._stepped = True
        self._train_peak = _higher(self._train_peak, self.meter.read())
        return self._compared("train", self._train_peak)

    def before_evaluation(self) -> None:
        """Keep training's peak, and let evaluation's count from here."""
        self._train_peak = _higher(self._train_peak, self.meter.read())
        self.meter.reset()

    def evaluated(self) -> Comparison | None:
        """After an evaluation, or a prediction."""
        if self.forecast is None:
            return None
        found = self._compared("evaluate", self.meter.read())
        self.meter.reset()
        return found

    def end(self) -> Comparison | None:
        """At the end of training: training's peak over all steps, where it grew after the first."""
        if self.forecast is None or not self._stepped:
            return None
        first = next((each for each in self.comparisons if each.phase == "train"), None)
        self._train_peak = _higher(self._train_peak, self.meter.read())
        self.meter.reset()
        found = self._of("train", self._train_peak)
        grew = (found.pair[1] or 0) > GREW * ((first.pair[1] if first else 0) or 0)
        return self._tell(found) if grew else None

    def _compared(self, phase: str, reading: Reading) -> Comparison:
        return self._tell(self._of(phase, reading))

    def _of(self, phase: str, reading: Reading) -> Comparison:
        forecast = self.forecast
        assert forecast is not None
        counted = ["train"] if phase == "train" else list(EVALUATION)
        if phase != "train" and not self.meter.resets and self._stepped:
            counted.append("train")
        return compare(
            phase,
            self.meter.kind,
            self._report(phase),
            reading,
            counted=counted,
            host_before=self._host_before,
            parameters_bytes=forecast.run.parameters_bytes,
        )

    def _report(self, phase: str) -> MemoryReport | None:
        """Training at the lengths that were seen: like with like. Before the first step no optimizer states exist."""
        forecast, seen = self.forecast, self.shapes.most
        assert forecast is not None
        if phase == "train" and seen is not None:
            return forecast.at(seen)
        return forecast.report if self._stepped or phase == "train" else forecast.before_training

    def _tell(self, comparison: Comparison) -> Comparison:
        self.comparisons.append(comparison)
        seen = self.shapes.most
        if seen is not None and self.forecast is not None and not self.forecast.reads_target:
            seen = seen._replace(target=None)
        self._say(lines_of_comparison(comparison, seen, self.knowledge.words))
        return comparison

    def _say(self, found: list[tuple[int, str]]) -> None:
        if self.aloud:
            for level, text in found:
                logger().log(level, text)


def _higher(one: Reading, other: Reading) -> Reading:
    peaks = ([size for size in pair if size is not None] for pair in zip(one, other, strict=True))
    return Reading(*(max(sizes, default=None) for sizes in peaks))


def lines_of_findings(forecast: Forecast, words: Words) -> Lines:
    """What the run is, and what is wrong with its arguments."""
    setup, found = forecast.setup, forecast.result.counted()
    factors = [setup.per_device_train_batch_size, setup.gradient_accumulation_steps, setup.world_size]
    about = words(
        "callback.run",
        model=setup.model_name,
        method=words.named("method", setup.method),
        effective=setup.effective_batch_size,
        product=" × ".join(str(factor) for factor in factors),
    )
    lines: Lines = [(logging.INFO, f"kb: {about}")]
    lines.append(
        (logging.INFO, f"kb: {words.count('callback.findings', len(found)) if found else words('callback.clean')}")
    )
    for finding in found:
        lines += [(LEVELS[finding.severity], text) for text in lines_of_finding(finding, forecast, words)]
    return lines


def lines_of_finding(finding: Finding, forecast: Forecast, words: Words) -> list[str]:
    """Severity, rule and message; then what to change."""
    severity = words.named("severity", finding.severity)
    lines = [f"  {severity} {finding.rule}: {words.message(finding)}"]
    sources = SourceLines({forecast.result.unit.path: forecast.run.text()})
    for fix in finding.fixes:
        if not fix.certain:
            continue
        changes = describe_fix(fix, forecast.result.unit, words, _STYLE, sources).replace("\u00a0", " ")
        label = words("report.fix", safety=words.named("safety", fix.safety))
        lines.append(f"    {label} {words.fix_title(fix, finding)}" + (f" ({changes})" if changes else ""))
    return lines


def lines_of_prediction(forecast: Forecast, words: Words, kind: str) -> Lines:
    """Each phase's peak, the GPU and the verdict; or why nothing is predicted."""
    report = forecast.report
    if report is None:
        return [(logging.INFO, f"kb: {_why_none(forecast, words)}")]
    lines = [(logging.INFO, f"kb: {_phase(phase, words)}") for phase in report.phases if phase.name in WORKING]
    setup = forecast.setup
    key = "callback.lengths" if forecast.reads_target else "callback.length"
    lengths = words(key, source=setup.max_source_length, target=setup.max_target_length)
    lines.append((logging.INFO, f"kb: {lengths}"))
    if forecast.run.frozen:
        lines.append((logging.INFO, f"kb: {words('callback.frozen', parameters=forecast.run.frozen)}"))
    limit = forecast.limit_bytes
    if kind == "cuda" and limit is not None:
        gpu = min(forecast.machine.gpus, key=lambda each: each.memory_total)
        status = report.verdict.status
        text = words(
            "callback.verdict",
            gpu=gpu_name(gpu),
            free=size(limit),
            verdict=words.named("verdict", status),
        )
        lines.append((logging.WARNING if status in ("tight", *OVER) else logging.INFO, f"kb: {text}"))
    elif kind != "cuda":
        lines.append((logging.INFO, f"kb: {words('callback.on_host' if kind == 'host' else 'callback.unmeasured')}"))
    return lines


def _phase(phase: Phase, words: Words) -> str:
    return words(
        "callback.predicted",
        phase=words.named("phase", phase.name),
        allocated=size(phase.peak_allocated_bytes),
        reserved=size(phase.peak_reserved_bytes),
        used=size(phase.process_used_bytes),
    )


def _why_none(forecast: Forecast, words: Words) -> str:
    if forecast.run.unknown_adapter is not None:
        return words("callback.unknown_adapter", name=forecast.run.unknown_adapter)
    if forecast.setup.unresolved:
        return words("note.unresolved_values", settings=", ".join(forecast.setup.unresolved))
    return words("callback.unknown_model", model=forecast.setup.model_name)


def lines_of_comparison(found: Comparison, seen: Seen | None, words: Words) -> Lines:
    """Predicted beside measured, in one line."""
    phase = words.named("phase", found.phase)
    predicted, measured = found.pair
    if measured is None:
        return []
    unit = "host" if found.kind == "host" else "allocated"
    about = words(f"callback.compared.{unit}", phase=phase, measured=size(measured))
    if predicted is None:
        return [(logging.INFO, f"kb: {about}")]
    text = words(f"callback.both.{unit}", phase=phase, predicted=size(predicted), measured=size(measured))
    parts = [text]
    if found.error is not None:
        parts = [f"{text} ({found.error:+.1%})"]
    if found.predicted_reserved is not None and found.measured_reserved is not None:
        reserved = size(found.predicted_reserved), size(found.measured_reserved)
        parts.append(words("callback.reserved", predicted=reserved[0], measured=reserved[1]))
    if found.phase == "train" and seen is not None:
        shape = {"batch": seen.batch, "source": seen.source, "target": seen.target}
        parts.append(words("callback.seen_pair" if seen.target else "callback.seen", **shape))
    return [(logging.INFO, "kb: " + "; ".join(parts))]


def size(count: int) -> str:
    """``1.24 GiB``; below a tenth of a GiB in MiB: two decimals, since the point is how little they differ."""
    return f"{count / GIB:,.2f} GiB" if count >= GIB / 10 else f"{count / MIB:,.1f} MiB"


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
        watching: what is known of the run; None where it never began.
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
        _fenced(diagnosis_text(found, "traceback", words, _STYLE, unit)),
    ]
    if forecast is not None and watching is not None:
        said = [*lines_of_prediction(forecast, words, watching.meter.kind)]
        for each in watching.comparisons:
            said += lines_of_comparison(each, None, words)
        parts += [
            f"## {words('callback.diagnosis.memory')}",
            "\n".join(f"- {text.removeprefix('kb: ')}" for _, text in said),
        ]
        wrong = [text for finding in forecast.result.counted() for text in lines_of_finding(finding, forecast, words)]
        if wrong:
            parts += [f"## {words('callback.diagnosis.findings')}", _fenced("\n".join(wrong))]
        parts += [f"## {words('callback.diagnosis.settings')}", _fenced(forecast.run.text(), "yaml")]
    installed = installed_versions()
    stack = ", ".join(f"{name} {installed[name]}" for name in _LIBRARIES if name in installed)
    parts += [
        f"## {words('callback.diagnosis.error')}",
        _fenced(trace),
        f"{words('callback.diagnosis.versions')} {stack}",
    ]
    return "\n\n".join(parts) + "\n"


def _fenced(text: str, kind: str = "text") -> str:
    mark = "````" if "```" in text else "```"
    return f"{mark}{kind}\n{text.rstrip()}\n{mark}"
