"""``--record``: a probe's measured rows as a file for ``rules/measurements``; nothing that was not measured."""

import os
import re
from typing import TYPE_CHECKING

from kb.commands.probe.request import ProbeRequest
from kb.core.text import UserError
from kb.torch_runs.probe.rows import architecture_of, campaign_yaml, rows_of

if TYPE_CHECKING:
    from kb.torch_runs.probe.campaign import Probed

SOURCE = "kb-probe"
_NAME = re.compile(r"([a-z0-9]+(?:-[a-z0-9.]+)*)\.yaml")
_MODEL = re.compile(r"[^a-z0-9.]+")
ABOUT = {
    "ko": "임의 가중치의 모델을 Trainer로 학습하고 평가하고 생성하며, 단계마다 torch의 할당·예약 메모리 최댓값과 "
    "NVML의 프로세스 메모리를 쟀습니다. 배치 하나가 프로세스 하나이고, 평가와 생성은 옵티마이저 상태가 남은 채로 "
    "학습 뒤에 합니다.",
    "en": "A model of random weights trained and evaluated by the Trainer, then generating; torch's peaks of allocated "
    "and reserved memory by phase, and the process's memory by NVML. One process a batch; evaluation and generation "
    "come after training, beside the optimizer's states.",
}


def check_recordable(path: str, request: ProbeRequest) -> None:
    """Before anything is run: whether there could be rows, and the file written.

    Raises:
        UserError: a scripted GPU, a CPU, a command; a file that is there, or no name of rules/measurements.
    """
    if request.backend == "fake":
        raise UserError("probe.record_not_measured")
    if request.backend == "cpu" or request.command or request.kind == "host":
        raise UserError("probe.record_needs_gpu")
    if not _NAME.fullmatch(os.path.basename(path)):
        raise UserError("probe.record_bad_name", path=path)
    if os.path.exists(path):
        raise UserError("probe.record_exists", path=path)
    if not os.access(os.path.dirname(path) or ".", os.W_OK):
        raise UserError("probe.record_unwritable", path=path, reason=os.path.dirname(path) or ".")


def record(path: str, probed: "Probed", command: str) -> None:
    """Write the rows of all trials.

    Raises:
        UserError: there is none, or the file cannot be written.
    """
    text = recorded(os.path.basename(path).removesuffix(".yaml"), probed, command)
    if text is None:
        raise UserError("probe.record_nothing", path=path)
    try:
        with open(path, "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UserError("probe.record_exists", path=path) from None
    except OSError as error:
        raise UserError("probe.record_unwritable", path=path, reason=error.strerror or str(error)) from None


def recorded(identity: str, probed: "Probed", command: str) -> str | None:
    """The file's text; None where no trial was measured on a GPU."""
    import datetime

    pairs = [pair for pair in probed.pairs if pair[0].backend == "cuda" and pair[0].config is not None]
    machine = next((dict(outcome.machine) for _, outcome in pairs if outcome.machine.get("gpu_name")), None)
    stack = next((dict(outcome.stack) for _, outcome in pairs if outcome.stack), None)
    if machine is None or stack is None:
        return None
    model = _MODEL.sub("-", os.path.basename(probed.name.rstrip("/")).casefold()).strip("-.") or "model"
    rows = [row for pair in pairs for row in rows_of(pair, model)]
    if not rows:
        return None
    gpu = machine["gpu_name"]
    return campaign_yaml(
        identity,
        rows,
        title={"ko": f"{gpu}에서 잰 {model}의 GPU 메모리", "en": f"GPU memory of {model} measured on {gpu}"},
        about=ABOUT,
        date=datetime.date.today().isoformat(),
        command=command,
        machine=machine,
        stack=stack,
        models={model: architecture_of(pairs[0][0].config or {})},
        source=SOURCE,
        writer="kb probe --record",
    )
