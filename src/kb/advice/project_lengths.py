"""How long the samples of a project's data are (``[lengths]`` of ``kb.toml``), and what a run makes of that."""

from collections.abc import Mapping

from kb.advice.no_prediction import unfollowed
from kb.advice.settings_reader import SettingsReader
from kb.advice.usual import assumed_source_length
from kb.core.document import Unit
from kb.core.hardware import Machine
from kb.core.memory_report import MemoryReport, TakenByLengths
from kb.core.model import Model
from kb.core.setup import Assumption, DataLengths, TrainingSetup
from kb.memory import UnsupportedArchitectureError

# What formats call it that every batch is as long as it may be: padded to that, or filled with several samples.
FILLS = frozenset(("pad_to_max_length", "pad_to_sequence_len", "packing", "sample_packing", "neat_packing"))
LENGTHS = "data.lengths"  # among what a project says of itself
FULL = Assumption(name=LENGTHS, value="full", reason="full_length")


def with_lengths(setup: TrainingSetup, known: DataLengths | None, unit: Unit, model: Model | None) -> TrainingSetup:
    """The setup with no batch longer than the data has: shorter than its maximum, where the data is.

    Batches that are filled whatever the data (:data:`FILLS`), and pairs of answers, stay at the maximum.
    """
    other = setup.post is not None and setup.post.kind != "sft"
    filled = any(each.value is True and path.rpartition(".")[2] in FILLS for path, each in unit.keys.items())
    heard = model is not None and model.architecture.hears  # sound is of one length
    if known is None or other or filled or heard:
        return setup
    source = max(1, min(setup.max_source_length, known.input[-1]))
    target = max(1, min(setup.max_target_length, known.target[-1])) if known.target else setup.max_target_length
    said = Assumption(name=LENGTHS, value=source, reason="lengths_of_data")
    assumed = tuple(said if each == FULL else each for each in setup.assumed)
    return setup._replace(max_source_length=source, max_target_length=target, lengths=known, assumed=assumed)


def with_taken(
    report: MemoryReport | None, setup: TrainingSetup, model: Model | None, machine: Machine
) -> MemoryReport | None:
    """The report with what training will take beside what it needs, where the data's lengths are known.

    PyTorch takes no more than the GPU has: what is free goes back before a run fails.
    """
    if report is None or model is None or setup.lengths is None or not setup.do_train:
        return report
    if unfollowed(setup, model.architecture) is not None:
        return report
    try:
        found = taken_by_lengths(setup, model, machine)
    except UnsupportedArchitectureError:
        return report
    most = machine.gpu_limit_bytes
    if most is not None:
        most = max(most, found.needed)
        found = found._replace(varied=min(found.varied, most), expandable=min(found.expandable, most))
    return report._replace(lengths=found)


def taken_by_lengths(setup: TrainingSetup, model: Model, machine: Machine) -> TakenByLengths:
    """What training takes with batches padded to their longest sample.

    Raises:
        UnsupportedArchitectureError: something that the memory engine does not follow, by name.
    """
    from kb.memory.engine.report import reserved_by_lengths  # few runs ask for it

    gpu = machine.smallest_gpu
    return reserved_by_lengths(setup, model.architecture, gpu.compute_capability if gpu else None)


def lengths_of_sound(read: SettingsReader, model: Model, constants: Mapping[str, float]) -> tuple[int, int]:
    """What a model that hears encodes is of one length, whatever a config says; how long answers may be generated
    says nothing of its labels."""
    source = read.or_assume("data.max_source_length", None, *assumed_source_length(model, constants))
    usual = int(constants["assumed_target_length"])
    target = read.number("data.max_target_length")
    return int(source), int(read.or_assume("data.max_target_length", target, usual, "usual_length"))


def answer_length(read: SettingsReader, model: Model | None, target: int, generates: bool) -> int:
    """Tokens that evaluation generates at most; of Whisper, where nothing says it, as many as it has positions."""
    length = read.number("training.generation_max_length", "generation.max_length")
    if length is None and model is not None and model.architecture.hears and model.architecture.max_positions:
        most = model.architecture.max_positions  # max_length of its generation_config.json
        return (
            int(read.or_assume("training.generation_max_length", None, most, "longest_of_model")) if generates else most
        )
    return int(length or target)
