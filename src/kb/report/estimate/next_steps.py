"""What to do after an estimate: sentences with the command to run."""

from kb.advice.estimate import Estimated
from kb.core.memory_report import OVER
from kb.report.words import Words


def next_steps(one: Estimated, words: Words) -> list[str]:
    """The next step or two, the most useful first."""
    report = one.report
    assert report is not None  # a run without one has been refused
    steps: list[str] = []
    gpu = one.fit.gpu
    if gpu is None:
        steps.append(words("estimate.name_a_gpu"))
    elif report.verdict.status in (*OVER, "tight"):
        key = "oom" if report.verdict.status in OVER else "tight"
        steps.append(words(f"estimate.next_{key}", command=_remedy(one)))
    elif one.model is not None and (one.setup.do_train or one.setup.do_predict):
        steps.append(words("estimate.next_fits", command=_recommend(one)))
    if report.host.status in (*OVER, "tight"):
        steps.append(words("estimate.next_host"))
    if report.level == "closed" and not _was_tried(one):
        steps.append(words("estimate.next_simulate"))
    return steps


def _was_tried(one: Estimated) -> bool:
    return any(key == "estimate.level_0_instead" for key, _ in one.notes)


def _remedy(one: Estimated) -> str:
    """``kb plan`` for a file, ``kb recommend`` for flags."""
    if one.unit.path and one.unit.path != "-":
        section = f" --section {one.unit.section}" if one.unit.section else ""
        return f"kb plan {one.unit.path}{section}{_on_gpu(one)}"
    return _recommend(one)


def _recommend(one: Estimated) -> str:
    model = one.model
    named = f"--model {model.id}" if model is not None and one.files is None else "--model-config FILE"
    task = "" if one.setup.do_train else " --task inference"
    return f"kb recommend {named}{_on_gpu(one)}{task}"


def _on_gpu(one: Estimated) -> str:
    gpu = one.fit.gpu
    return f" --gpu {gpu.gpu.id}" if gpu is not None and gpu.gpu is not None else ""
