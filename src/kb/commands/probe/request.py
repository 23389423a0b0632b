"""What the command line asks of a probe, checked where that needs nothing but the arguments."""

from typing import Any

from kb.advice.question import Question, RunSettings
from kb.advice.run.question_settings import optimizer_named
from kb.commands.options import LARGEST_NUMBER, check_numbers, flag_of, question_of, size_of
from kb.core.memory_report import WORKING
from kb.core.record import NamedTuple
from kb.core.text import UserError
from kb.knowledge.locations import Rules

OF_CLUSTER = ("cluster_gpus", "models", "batches")
OF_COMMAND = ("batch_flag", "steps_flag", "workers_flag")


class ProbeRequest(NamedTuple):
    """One call of ``kb.probe``. None leaves it to the config, the machine or the procedure. Sizes in bytes."""

    kind: str
    question: Question = Question()
    backend: str | None = None
    command: tuple[str, ...] = ()
    batch_flag: str | None = None
    steps_flag: str | None = None
    workers_flag: str | None = None
    phases: tuple[str, ...] | None = None
    steps: int | None = None
    most: int | None = None
    workers: tuple[int, ...] | None = None
    device: str | None = None
    force: bool = False
    seconds: float = 600
    host_bytes: int | None = None
    fake_limit: int | None = None
    fake_script: str | None = None
    rules: Rules = None

    @property
    def run(self) -> RunSettings:
        return self.question.run


def request_of(options: Any, command_words: tuple[str, ...]) -> ProbeRequest:
    """What parsed arguments ask.

    Raises:
        UserError: arguments that cannot be meant, or not together.
    """
    question = question_of(options, optimizer_named)
    check_numbers({"--steps": options.steps, "--most": options.most})
    if not 0 < options.time_limit <= LARGEST_NUMBER:
        raise UserError(
            "probe.bad_seconds", option="--time-limit", value=f"{options.time_limit:g}", most=LARGEST_NUMBER
        )
    named = options.model or options.model_config or options.config or options.models
    for name in OF_CLUSTER:
        if getattr(options, name) is not None and options.ray is None:
            raise UserError("probe.only_with_ray", option=f"--{name.removeprefix('cluster_')}")
    if command_words and named:
        raise UserError("probe.command_or_model")
    if not command_words and not named and options.kind != "host":
        raise UserError("probe.nothing_named")
    for name in OF_COMMAND:
        if getattr(options, name) is not None and not command_words:
            raise UserError("probe.only_with_command", option=flag_of(name))
    return ProbeRequest(
        kind=options.kind,
        question=question,
        command=command_words,
        phases=read_phases(options.phases),
        workers=read_counts(options.workers),
        seconds=options.time_limit,
        host_bytes=size_of(options, "memory_limit"),
        fake_limit=size_of(options, "fake_limit"),
        **{name: getattr(options, name) for name in ("backend", "batch_flag", "steps_flag", "workers_flag",
           "steps", "most", "device", "force", "fake_script", "rules")},
    )  # fmt: skip


def read_phases(text: str | None) -> tuple[str, ...] | None:
    """``train,generate`` as phases in the order in which they run.

    Raises:
        UserError: there is no such phase.
    """
    if text is None:
        return None
    named = [name.strip() for name in text.split(",") if name.strip()]
    wrong = next((name for name in named if name not in WORKING), None)
    if wrong is not None or not named:
        raise UserError("probe.bad_phases", value=(wrong or text)[:100], known=", ".join(WORKING))
    return tuple(phase for phase in WORKING if phase in named)


def read_counts(text: str | None) -> tuple[int, ...] | None:
    """``0,1,2,4`` as worker counts.

    Raises:
        UserError: something else than whole numbers from 0.
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) <= 1024 for part in parts):
        raise UserError("probe.bad_workers", value=text[:100])
    return tuple(dict.fromkeys(map(int, parts)))
