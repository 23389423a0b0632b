"""What the command line asks of a probe, checked where that needs nothing but the arguments."""

from typing import Any, NamedTuple

from kb.advice.flags import Flags, optimizer_named
from kb.core.text import UserError
from kb.core.units import read_size

LARGEST_NUMBER = 1_000_000
NUMBERS = ("batch", "seq_in", "seq_out", "accumulation", "lora_rank", "eval_batch", "beams", "gen_length",
           "steps", "most", "effective_batch")  # fmt: skip
OF_CLUSTER = ("gpus", "models", "batches")
OF_COMMAND = ("batch_flag", "steps_flag", "workers_flag")
PHASES = ("train", "evaluate", "generate")


class Asked(NamedTuple):
    """One call of ``kb.probe``. None leaves it to the config, the machine or the procedure. Sizes in bytes."""

    kind: str
    flags: Flags = Flags()
    backend: str | None = None
    config: str | None = None
    section: str | None = None
    dialect: str | None = None
    model_config: str | None = None
    command: tuple[str, ...] = ()
    batch_flag: str | None = None
    steps_flag: str | None = None
    workers_flag: str | None = None
    phases: tuple[str, ...] | None = None
    steps: int | None = None
    most: int | None = None
    effective_batch: int | None = None
    workers: tuple[int, ...] | None = None
    gpu: str | None = None
    device: str | None = None
    force: bool = False
    seconds: float = 600
    host_bytes: int | None = None
    fake_limit: int | None = None
    fake_script: str | None = None
    rules: str | None = None


def asked_of(options: Any, command_words: tuple[str, ...]) -> Asked:
    """What parsed arguments ask.

    Raises:
        UserError: arguments that cannot be meant, or not together.
    """
    check_numbers({f"--{name.replace('_', '-')}": getattr(options, name) for name in NUMBERS})
    if not 0 < options.time_limit <= LARGEST_NUMBER:
        raise UserError(
            "probe.bad_seconds", option="--time-limit", value=f"{options.time_limit:g}", most=LARGEST_NUMBER
        )
    named = options.model or options.model_config or options.config or options.models
    for name in OF_CLUSTER:
        if getattr(options, name) is not None and options.ray is None:
            raise UserError("probe.only_with_ray", option=f"--{name}")
    if command_words and named:
        raise UserError("probe.command_or_model")
    if not command_words and not named and options.kind != "host":
        raise UserError("probe.nothing_named")
    for name in OF_COMMAND:
        if getattr(options, name) is not None and not command_words:
            raise UserError("probe.only_with_command", option=f"--{name.replace('_', '-')}")
    return Asked(
        kind=options.kind,
        flags=_flags(options),
        command=command_words,
        phases=read_phases(options.phases),
        workers=read_counts(options.workers),
        seconds=options.time_limit,
        host_bytes=_size("--memory-limit", options.memory_limit),
        fake_limit=_size("--fake-limit", options.fake_limit),
        **{name: getattr(options, name) for name in ("backend", "config", "section", "dialect", "model_config",
           "batch_flag", "steps_flag", "workers_flag", "steps", "most", "effective_batch", "gpu", "device", "force",
           "fake_script", "rules")},
    )  # fmt: skip


def _size(option: str, text: str | None) -> int | None:
    return None if text is None else read_size(option, text)


def _flags(options: Any) -> Flags:
    targets = tuple(name.strip() for name in (options.lora_targets or "").split(",") if name.strip())
    return Flags(
        model=options.model,
        method=options.method,
        precision=options.precision,
        optimizer=optimizer_named(options.optimizer),
        batch=options.batch,
        source_length=options.seq_in,
        target_length=options.seq_out,
        accumulation=options.accumulation,
        gradient_checkpointing=options.gradient_checkpointing,
        reentrant=options.reentrant,
        attention=options.attention,
        lora_rank=options.lora_rank,
        lora_targets=targets or None,
        double_quant=options.double_quant,
        eval_batch=options.eval_batch,
        beams=options.beams,
        generation_length=options.gen_length,
    )


def read_phases(text: str | None) -> tuple[str, ...] | None:
    """``train,generate`` as phases in the order in which they run.

    Raises:
        UserError: there is no such phase.
    """
    if text is None:
        return None
    named = [name.strip() for name in text.split(",") if name.strip()]
    wrong = next((name for name in named if name not in PHASES), None)
    if wrong is not None or not named:
        raise UserError("probe.bad_phases", value=(wrong or text)[:100], known=", ".join(PHASES))
    return tuple(phase for phase in PHASES if phase in named)


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


def check_numbers(values: dict[str, Any]) -> None:
    """Raises: UserError: an option's number is under 1 or absurdly large."""
    for option, value in values.items():
        if value is not None and not 1 <= value <= LARGEST_NUMBER:
            raise UserError("recommend.bad_number", option=option, value=f"{value:g}", most=LARGEST_NUMBER)
