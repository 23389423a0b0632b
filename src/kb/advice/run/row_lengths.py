"""How long rows are: of a project's data (``[lengths]`` of ``kb.toml``), with what pictures they have and what a run
makes of that; else as usual for a model."""

from collections.abc import Iterator, Mapping

from kb import memory
from kb.advice.run.no_prediction import unfollowed
from kb.advice.run.settings_reader import SettingsReader
from kb.core.document import Unit
from kb.core.hardware import Machine
from kb.core.memory_report import MemoryReport, TakenByLengths
from kb.core.model import Architecture, Model, Vision
from kb.core.setup import Assumption, DataLengths, Images, TrainingSetup, WeightType
from kb.core.typed import Literal
from kb.memory import UnsupportedArchitectureError

PADDING_POSITIONS = {"roberta": 2, "xlm-roberta": 2, "camembert": 2, "longformer": 2}

LengthReason = Literal["longest_of_model", "longest_of_tokenizer", "usual_length", "script_default", "fixed_by_model"]
# Lengths that the example scripts of transformers have by default where their models allow more (4.57 to 5.23).
OF_SCRIPTS = {"run_glue": 128, "run_xnli": 128, "run_qa": 384, "run_qa_beam_search": 384}
# What formats call it that every batch is as long as it may be: padded to that, or filled with several samples.
FILLS = frozenset(("pad_to_max_length", "pad_to_sequence_len", "packing", "sample_packing", "neat_packing"))
BLOCKS = "block_size"  # transformers' scripts call a length so that texts joined together are cut to
# TRL packs as it prepares the data (SFTTrainer, 0.9.6 to 1.16): what is told to be ready stays as it is. Data that has
# been tokenized alone is packed since 0.15.
SKIPPED = "dataset_kwargs.skip_prepare_dataset"
PADDED = "data.padded_to_maximum"
MOST_EVALUATED = "max_eval_samples"  # what transformers' scripts cut their evaluation set to
LENGTHS = "data.lengths"  # among what a project says of itself
FULL = Assumption(name=LENGTHS, value="full", reason="full_length")
LONGEST_ROW = "longest_row"  # the reason, where a maximum is written and batches are padded to their longest row


COUNT, PIXELS, VIDEOS = "data.images_per_sample", "data.image_max_pixels", "data.has_videos"
OF_TURNS = ("messages", "conversations", "conversation", "chat")  # columns whose turns may hold pictures
WIDEST = 1.5  # of a picture's sides, the longer over the shorter
OF_ITS_OWN = "llamafactory"  # the format whose trainer checkpoints only what it trains
NO_PICTURES = Images(0, 0, 0)
# The parts of what sees, by transformers' names: of Qwen2-VL and its kin, with those of Qwen3-VL, and of LLaVA and its.
_WORDS = {"model.freeze_language_model": ("language_model", "lm_head")}
MERGING = {
    "model.freeze_vision_tower": (
        "visual.patch_embed", "visual.blocks", "visual.pos_embed", "visual.deepstack_merger_list",
    ),
    "model.freeze_projector": ("visual.merger",),
    **_WORDS,
}  # fmt: skip
PROJECTING = {
    "model.freeze_vision_tower": ("vision_tower",), "model.freeze_projector": ("multi_modal_projector",), **_WORDS,
}  # fmt: skip
SHAPES = 64  # of pictures, between the widest that count


def assumed_source_length(
    model: Model | None, constants: Mapping[str, float], tokenizer: int | None = None, script: str | None = None
) -> tuple[int, LengthReason]:
    """Input tokens, and why so many: what the tokenizer or the script cuts to, else a model's longest input.

    Args:
        tokenizer: the ``model_max_length`` that the run gives its tokenizer.
        script: the file name of the program.

    Of decoder-only models no more than the usual length: their positions reach far beyond what a run is packed to
    (131,072 tokens of Llama 3.1, where TRL cuts to 1,024).
    """
    if model is not None and model.architecture.hears:
        return model.architecture.audio_positions, "fixed_by_model"
    usual = int(constants["assumed_source_length"])
    if tokenizer is not None:
        return tokenizer, "longest_of_tokenizer"
    default = OF_SCRIPTS.get((script or "").removesuffix(".py").removesuffix("_no_trainer"))
    if default is not None:
        return default, "script_default"
    longest = (model and (model.max_length or longest_input(model))) or None
    if model is None or longest is None or (model.architecture.family == "decoder" and longest > usual):
        return usual, "usual_length"
    return longest, "longest_of_model"


def longest_input(model: Model) -> int | None:
    """Tokens for which learned positions exist; None where positions are computed, or no run says the length.

    RoBERTa and its kin keep the first two of their positions for padding: 514 are for 512 tokens.
    """
    if model.architecture.hears:
        return None
    positions, kept = model.architecture.max_positions, PADDING_POSITIONS.get(model.architecture.model_type, 0)
    return positions - kept if positions is not None and positions > kept else positions


def reads_target(architecture: Architecture | None) -> bool:
    """Whether targets are a row of tokens of their own: models of one stack have input and target in one row."""
    return architecture is None or architecture.family in ("t5", "bart")


def with_lengths(
    setup: TrainingSetup, read: SettingsReader, known: DataLengths | None, unit: Unit, model: Model | None
) -> TrainingSetup:
    """The setup with no batch longer than the data has: shorter than its maximum, where the data is; and with none that
    evaluates more samples than there are.

    Batches that are filled whatever the data (:data:`FILLS`), and pairs of answers, stay at the maximum.
    """
    setup = _as_many_as_there_are(setup, unit)
    other = setup.post is not None and setup.post.kind != "sft"
    filled = read.value(PADDED) is True or _fills(unit)
    heard = model is not None and model.architecture.hears  # sound is of one length
    if known is None and not (filled or heard):
        return _bounded(setup)
    if known is None or other or filled or heard:
        return setup
    source = max(1, min(setup.max_source_length, known.input[-1]))
    target = max(1, min(setup.max_target_length, known.target[-1])) if known.target else setup.max_target_length
    said = Assumption(name=LENGTHS, value=source, reason="lengths_of_data")
    assumed = tuple(said if each == FULL else each for each in setup.assumed)
    return setup._replace(max_source_length=source, max_target_length=target, lengths=known, assumed=assumed)


def _as_many_as_there_are(setup: TrainingSetup, unit: Unit) -> TrainingSetup:
    """The setup with an evaluation batch no larger than what is evaluated, on one GPU: on several accelerate fills each
    process's batch with samples from the beginning (``BatchSamplerShard``, even_batches, accelerate/data_loader.py).
    """
    said = unit.keys.get(MOST_EVALUATED)
    told = (str(each) for each in (setup.eval_samples, said and said.value))  # a flag's value is text
    known = [int(each) for each in told if each.isdecimal() and int(each) > 0]
    if not known or setup.world_size > 1:
        return setup
    return setup._replace(per_device_eval_batch_size=min(setup.per_device_eval_batch_size, *known))


def _fills(unit: Unit) -> bool:
    skipped = unit.keys.get(SKIPPED)
    filling = FILLS if skipped is None or str(skipped.value).lower() != "true" else FILLS - {"packing"}
    ends = ((path.rpartition(".")[2], each.value) for path, each in unit.keys.items())
    return any(end == BLOCKS or (end in filling and str(value).lower() == "true") for end, value in ends)


def _bounded(setup: TrainingSetup) -> TrainingSetup:
    """The setup with its longest row as an assumption of its own, where the config writes only the maximum of it."""
    if any(each.name == "data.max_source_length" for each in setup.assumed):
        return setup
    reached = Assumption(name=LENGTHS, value=setup.max_source_length, reason=LONGEST_ROW)
    return setup._replace(assumed=tuple(reached if each == FULL else each for each in setup.assumed))


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
    gpu = machine.smallest_gpu
    return memory.reserved_by_lengths(setup, model.architecture, gpu.compute_capability if gpu else None)


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


def with_pictures(setup: TrainingSetup, read: SettingsReader, unit: Unit, model: Model | None) -> TrainingSetup:
    """The setup of a model that sees, with its pictures and frozen parts; of others as it is.

    LLaMA-Factory widens only what it trains: what it freezes stays in the type that is computed in
    (``cast_trainable_params_to_fp32``, src/llamafactory/model/adapter.py).
    """
    if model is None or model.architecture.vision is None:
        return setup
    seen = model.architecture.vision
    named = PROJECTING if seen.image else MERGING
    frozen = tuple(part for name, parts in named.items() if read.or_default(name) for part in parts)
    narrow: WeightType | None = "bf16" if setup.bf16 else "fp16" if setup.fp16 else None
    widened = setup.method == "full" and setup.weights == "fp32" and bool(frozen)
    if read.value(VIDEOS):
        read.beyond.append("video")
    return setup._replace(
        images=_images(read, seen, unit),
        frozen=frozen,
        frozen_weights=narrow if widened else None,
        checkpoints_trained=unit.dialect == OF_ITS_OWN,
    )


def _images(read: SettingsReader, vision: Vision, unit: Unit) -> Images | None:
    """Each sample's pictures, all as large as the run lets them be; None where nobody says how large that is.

    A tower that takes one size gets that, whatever size the pictures have (LLaVA).
    """
    count = read.number(COUNT, least=0)
    made_by_trl = SKIPPED not in unit.keys and "trl.own_collator" not in unit.settings  # others never read the column
    of_text = made_by_trl and read.value("trl.dataset_text_field") not in (None, *OF_TURNS)
    if count is None and COUNT not in read.unresolved and of_text:
        count = int(read.or_assume(COUNT, None, 0, "rows_of_text"))
    processor = unit.keys.get("processor_type")
    if count is None and unit.dialect == "axolotl" and (processor is None or not processor.value):
        count = 0  # it reads none then (core/builders/causal.py, 0.10 to 0.18)
    if count == 0:
        return NO_PICTURES
    if vision.image and not vision.tilings:
        side = vision.image * vision.splits or vision.image // vision.patch  # of what is cut, a square has most tiles
        return Images(int(read.or_assume(COUNT, count, 1, "one_image")), side, side)
    pixels, default = read.number(PIXELS), read.default(PIXELS)
    if pixels is None and default is None:
        read.unresolved[PIXELS] = None
    if count is None and COUNT not in read.unresolved:
        count = int(read.or_assume(COUNT, None, 1, "one_image"))
    if count is None or PIXELS in read.unresolved:
        return None
    most = int(default if pixels is None else pixels)
    reason = "largest_image_by_default" if pixels is None else "largest_image"
    read.assumed.append(Assumption(name=PIXELS, value=most, reason=reason))
    rows, columns = most_tiled(most, vision) if vision.tilings else largest_grid(most, vision)
    return Images(count, rows, columns)


def most_tiled(pixels: int, vision: Vision) -> tuple[int, int]:
    """Height and width of the picture of so many pixels of which most tokens are made, by its tiles; shapes up to 3:2
    count."""
    shapes = []
    for number in range(-SHAPES, SHAPES + 1):
        ratio = WIDEST ** (number / SHAPES)
        height = max(int((pixels / ratio) ** 0.5), 1)
        shapes.append((height, max(int(height * ratio), 1)))
    return max(shapes, key=lambda shape: memory.tiles_of(shape[0], shape[1], vision).tokens)


def largest_grid(pixels: int, vision: Vision) -> tuple[int, int]:
    """Rows and columns of patches of the picture with the most tokens among those of so many pixels at most.

    Processors resize to whole tokens and keep the shape (``smart_resize``, transformers'
    image_processing_qwen2_vl.py); shapes up to 3:2 count.
    """
    most = max(pixels // vision.side**2, 1)
    shorter, longer = max(_shapes(most), key=lambda sides: (sides[0] * sides[1], sides[0]))
    return shorter * vision.merge, longer * vision.merge


def _shapes(tokens: int) -> Iterator[tuple[int, int]]:
    side = 1
    while side * side <= tokens:
        yield side, max(side, min(tokens // side, int(side * WIDEST)))
        side += 1
