"""Images of a run: how large they are, from where kb knows it, and what is said where nobody says."""

import json
from pathlib import Path
from typing import Any

import pytest

from catalog_sample import load_catalog
from command_runs import run_kb
from effort import few
from kb.advice.question import Question
from kb.advice.run.row_lengths import MERGING, largest_grid, most_tiled
from kb.core.model import Architecture
from kb.core.setup import Images, TrainingSetup
from kb.memory import UnsupportedArchitectureError, architecture_from_config, parameter_count
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.predict import check_followed, model_of, record_runs
from kb.memory.engine.world import world
from kb.memory.picture_tiles import best_resolution, tiles_of
from kb.report.words import Words
from kb.session.cli import load_words_or_none
from kb.session.prepare import file_checker
from kb.session.project import Project
from kb.torch_runs.simulation.job import Job, job_text, read_job

CATALOG = load_catalog()
FACTORY = """model_name_or_path: Qwen/Qwen2.5-VL-7B-Instruct
stage: sft
do_train: true
finetuning_type: lora
lora_target: all
dataset: mllm_demo
template: qwen2_vl
cutoff_len: 2048
per_device_train_batch_size: 1
bf16: true
output_dir: out
"""
PLAIN = "model_name_or_path: Qwen/Qwen2-VL-2B-Instruct\nper_device_train_batch_size: 1\nbf16: true\noutput_dir: out\n"
# llava-hf/llava-1.5-7b-hf as transformers 4.41 printed it in a public log, which also counts its parameters.
LLAVA: dict[str, Any] = {
    "model_type": "llava", "projector_hidden_act": "gelu", "tie_word_embeddings": False, "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
    "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "vocab_size": 32064},
    "vision_config": {"model_type": "clip_vision_model", "hidden_size": 1024, "image_size": 336, "patch_size": 14,
                      "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24},
}  # fmt: skip
TILED = {**LLAVA, "model_type": "llava_next"}
PIXELS, COUNT = "data.image_max_pixels", "data.images_per_sample"


def checked(text: str, facts: dict[str, Any]) -> Any:
    wanted = Question.of(gpu="rtx-4090", gpus=1, host_memory="60GB", cpus="8")
    return file_checker(CATALOG, Project(facts=facts), wanted).check(text.encode(), "train.yaml").results[0]


@pytest.mark.parametrize(
    ("text", "facts", "reason"),
    [
        (FACTORY, {}, "largest_image_by_default"),  # 768 × 768 pixels
        (FACTORY + "image_max_pixels: 262144\n", {}, "largest_image"),
        (PLAIN, {PIXELS: 262144}, "largest_image"),
    ],
)
def test_how_large_images_are_is_assumed_aloud(text: str, facts: dict[str, Any], reason: str) -> None:
    result = checked(text, facts)
    assert result.prediction is not None
    said = {each.name: each.reason for each in result.prediction.assumed if each.name in (PIXELS, COUNT)}
    assert said == {PIXELS: reason, COUNT: "one_image"}


def test_rows_of_a_column_of_text_have_no_picture() -> None:
    text = PLAIN + "dataset_text_field: text\nmax_length: 1024\nlearning_rate: 1.0e-5\n"
    run = checked(text, {})
    assumed = [each for each in run.prediction.assumed if each.name in (PIXELS, COUNT)]
    assert [each.reason for each in assumed] == ["rows_of_text"]
    said = Words("en", load_words_or_none("en"), CATALOG.facts).if_so(assumed)
    assert "no sample has an image" in said  # it had said that each has one
    assert checked(text + "dataset_kwargs: {skip_prepare_dataset: true}\n", {}).prediction is None
    assert checked(text.replace("field: text", "field: messages"), {}).prediction is None  # turns may hold pictures


def test_axolotl_reads_no_picture_without_a_processor() -> None:
    text = "base_model: google/gemma-3-4b-it\nmicro_batch_size: 1\nsequence_len: 512\nbf16: true\n"
    text += "datasets: [{path: d.jsonl, type: chat_template}]\nattn_implementation: sdpa\n"
    for more, count in (("", 0), ("processor_type:\n", 0), ("processor_type: AutoProcessor\n", 1)):
        assert checked(text + more, {}).setup.images.number == count


@pytest.mark.parametrize(
    ("lang", "one", "pixels"),
    few([("en", "one image", "images have up to 589,824 pixels"),
         ("ko", "표본 하나에 이미지 한 장", "이미지 한 장이 최대 589,824픽셀")]),
)  # fmt: skip
def test_what_is_assumed_of_images_is_said_in_words(tmp_path: Path, lang: str, one: str, pixels: str) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(FACTORY.replace("lora\n", "full\n"), "utf-8")
    for command in ("check", "estimate"):
        said = " ".join(run_kb(path, "--gpu", "rtx-3090", "--lang", lang, module=f"kb.{command}").stdout.split())
        assert one in said and "images_per_sample is" not in said and "images_per_sample=" not in said
        assert command == "estimate" or pixels in said


@pytest.mark.parametrize(
    ("text", "facts", "note"),
    [
        (PLAIN, {}, "pictures_not_said"),
        (PLAIN, {COUNT: 0}, None),  # text alone
        (PLAIN, {PIXELS: 262144, COUNT: 40}, "engine_not_followed"),  # more tokens than a sample has
        (FACTORY.replace("mllm_demo", "mllm_video_demo"), {}, "not_modelled"),
        (FACTORY + "flash_attn: fa2\n", {}, None),
        (FACTORY.replace("sft", "dpo"), {}, "engine_not_followed"),
    ],
)
def test_what_is_not_followed_is_said_by_name(text: str, facts: dict[str, Any], note: str | None) -> None:
    result = checked(text, facts)
    assert (result.prediction is None) == (note is not None)
    assert result.note == note


def test_an_image_is_as_many_whole_tokens_as_its_pixels_allow() -> None:
    vision = CATALOG.models["qwen2.5-vl-7b"].architecture.vision
    assert vision is not None
    assert largest_grid(768 * 768, vision) == (50, 60)  # 25 × 30 tokens of 28 × 28 pixels: 750 of 752
    assert largest_grid(28 * 28, vision) == (2, 2)


@pytest.mark.parametrize(
    "model",
    [
        "qwen2-vl-2b",
        "qwen2-vl-7b",
        "qwen2.5-vl-3b",
        "qwen2.5-vl-7b",
        "llava-1.5-7b",
        "llava-v1.6-mistral-7b",
    ],
)
def test_parameters_are_those_of_the_built_model(model: str) -> None:
    assert parameter_count(CATALOG.models[model].architecture) == CATALOG.models[model].parameters


def test_a_whole_checkpoint_peaks_where_the_real_code_did() -> None:
    """Recorded by the simulation of transformers 5.23: LoRA of Qwen2.5-VL 3B, one image of 30 × 44 patches."""
    setup = TrainingSetup(images=Images(1, 30, 44), max_source_length=1024, per_device_train_batch_size=1, bf16=True,
                          weights="bf16", method="lora", lora_r=8, lora_target_modules=("q_proj", "v_proj"),
                          gradient_checkpointing=True)  # fmt: skip
    (run,) = record_runs(setup, CATALOG.models["qwen2.5-vl-3b"].architecture, (8, 6))
    assert run.phases["train"][:2] == (9_860_287_488, 10_370_416_640)


def test_a_frozen_tower_of_qwen_3_trains_nothing() -> None:
    """LLaMA-Factory freezes its places and the mergers of earlier states with the tower; the last is the projector."""
    frozen = tuple(part for name, parts in MERGING.items() if name != "model.freeze_language_model" for part in parts)
    world.begin((8, 6))
    setup = TrainingSetup(images=Images(0, 0, 0), frozen=frozen)
    model = model_of(setup, CATALOG.models["qwen3-vl-2b"].architecture)
    names = model.names()
    assert not any("visual" in names[id(each)] for each in model.trained())


def test_a_simulation_gets_the_images_of_its_job() -> None:
    job = Job(TrainingSetup(images=Images(2, 10, 14), frozen=("visual",)), {"model_type": "qwen2_vl"}, (8, 6))
    assert read_job(job_text(job)).setup == job.setup


def in_folder(folder: Path, config: dict[str, Any], text: str = FACTORY) -> str:
    """A training config whose model is that of a folder."""
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return text.replace("Qwen/Qwen2.5-VL-7B-Instruct", str(folder)).replace("qwen2_vl", "llava")


def seen_by(setup: TrainingSetup, architecture: Architecture) -> Any:
    return record_runs(setup, architecture, (8, 0))[0].phases["train"]


def test_a_tower_of_one_size_needs_nobody_to_say_how_large_images_are(tmp_path: Path) -> None:
    result = checked(in_folder(tmp_path, LLAVA), {})
    assert result.prediction is not None
    assert {each.name for each in result.prediction.assumed} & {PIXELS, COUNT} == {COUNT}


def test_a_checkpoint_of_the_catalogue_is_as_its_config_says() -> None:
    assert CATALOG.models["llava-1.5-7b"].architecture == architecture_from_config(LLAVA)
    vision = CATALOG.models["llava-v1.6-mistral-7b"].architecture.vision
    tiled = architecture_from_config(TILED).vision
    assert vision is not None
    assert vision == tiled


def test_parameters_of_llava_are_those_that_a_public_log_counts() -> None:
    """7,067,621,376 of LLaMA-Factory's log are with 4,194,304 of adapters."""
    assert parameter_count(architecture_from_config(LLAVA)) == 7_067_621_376 - 4_194_304


def test_336_pixels_are_576_tokens() -> None:
    architecture = architecture_from_config(LLAVA)
    setup = TrainingSetup(images=Images(1, 24, 24), max_source_length=577, method="lora", lora_r=8,
                          lora_target_modules=("q_proj", "v_proj"))  # fmt: skip
    with pytest.raises(NotFollowedError, match="576 image tokens in 577"):
        check_followed(architecture, setup)
    check_followed(architecture, setup._replace(max_source_length=578))


@pytest.mark.parametrize(
    ("size", "tiles", "tokens"),
    [
        ((672, 672), (2, 2, 48, 48), 576 + 48 * 49),  # 2,928, as the processor of transformers counts
        ((336, 1000), (1, 3, 24, 72), 576 + 24 * 73),
        ((480, 640), (2, 2, 36, 48), 576 + 36 * 49),
        ((300, 200), (1, 2, 24, 16), 576 + 24 * 17),  # of tilings that keep all of it, the smallest and first
    ],
)
def test_tiles_come_from_a_pictures_size(size: tuple[int, int], tiles: tuple[int, ...], tokens: int) -> None:
    vision = architecture_from_config(TILED).vision
    assert vision is not None
    found = tiles_of(*size, vision)
    assert (found.high, found.wide, found.rows, found.columns) == tiles
    assert found.tokens == tokens
    assert best_resolution(*size, vision.tilings) == (336 * found.high, 336 * found.wide)


def test_the_picture_with_most_tokens_is_a_square_of_tiles() -> None:
    vision = architecture_from_config(TILED).vision
    assert vision is not None
    assert tiles_of(*most_tiled(768 * 768, vision), vision).tokens == 576 + 48 * 49


@pytest.mark.parametrize(
    ("text", "facts", "note"),
    [
        (FACTORY + "cutoff_len: 4096\n", {}, None),  # 768 × 768 pixels by default
        (FACTORY, {}, "engine_not_followed"),  # 2,928 tokens in 2,048
        (PLAIN.replace("Qwen/Qwen2-VL-2B-Instruct", "Qwen/Qwen2.5-VL-7B-Instruct"), {}, "pictures_not_said"),
    ],
)
def test_tiles_need_somebody_to_say_how_large_images_are(
    tmp_path: Path, text: str, facts: dict[str, Any], note: str | None
) -> None:
    assert checked(in_folder(tmp_path, TILED, text), facts).note == note


@pytest.mark.parametrize(
    "changed",
    [
        {"text_config": None},
        {"text_config": {"model_type": "gemma"}},
        {"text_config": {"model_type": "mistral"}},  # whose attention slides unless it is said not to
        {"vision_config": {"model_type": "pixtral"}},
        {"vision_config": {"model_type": "siglip_vision_model"}},  # with a head that pools
        {"model_type": "llava_next", "vision_config": {"model_type": "siglip_vision_model", "vision_use_head": False}},
        {"vision_config": {"model_type": "clip_vision_model", "num_attention_heads": 7}},
        {"vision_config": {"model_type": "clip_vision_model", "attention_dropout": 0.1}},
        {"vision_feature_layer": -26},
        {"vision_feature_layer": "last"},
        {"vision_feature_select_strategy": "most"},
        {"model_type": "llava_next", "vision_feature_select_strategy": "full"},
        {"model_type": "llava_next", "image_grid_pinpoints": [[336, 336]]},
        {"model_type": "llava_next", "image_grid_pinpoints": [[300, 600]]},
        {"model_type": "llava_next", "image_grid_pinpoints": [672]},
        {"model_type": "llava_next", "image_grid_pinpoints": "(1x1),...,(6x6)"},
    ],
)
def test_other_parts_are_refused_by_name(changed: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedArchitectureError):
        architecture_from_config({**LLAVA, **changed})


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"images": None}, "images of unknown size"),
        ({"fsdp": True, "world_size": 2}, "FSDP of llava_next"),
        ({"images": Images(1, 3, 900)}, "images of 3 × 900 pixels"),
    ],
)
def test_runs_that_are_not_followed_are_refused_by_name(given: dict[str, Any], what: str) -> None:
    setup = TrainingSetup(images=Images(1, 300, 300), max_source_length=4096)._replace(**given)
    with pytest.raises(NotFollowedError, match=what):
        check_followed(architecture_from_config(TILED), setup)


def test_a_whole_layer_that_nothing_reads_is_what_ddp_refuses() -> None:
    """What LLaVA projects are the states before the tower's last layer, which trains without a gradient."""
    small = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = {**LLAVA, "text_config": {**small, "vocab_size": 500},
              "vision_config": {**small, "image_size": 28, "patch_size": 14}}  # fmt: skip
    architecture = architecture_from_config(config)
    setup = TrainingSetup(images=Images(1, 2, 2), max_source_length=32, world_size=2, gradient_checkpointing=True)
    with pytest.raises(NotFollowedError, match="ddp_find_unused_parameters"):
        seen_by(setup, architecture)
    frozen = seen_by(setup._replace(frozen=("vision_tower",)), architecture)
    assert frozen.allocated < seen_by(setup._replace(gradient_checkpointing=False), architecture).allocated


def test_a_run_in_which_nothing_trains_is_refused_by_name() -> None:
    architecture = CATALOG.models["qwen2-vl-2b"].architecture
    setup = TrainingSetup(images=Images(0, 0, 0), frozen=("language_model", "lm_head", "visual"), max_source_length=32)
    assert architecture.vision is not None
    shallow = architecture._replace(decoder_layers=1, vision=architecture.vision._replace(depth=1))
    with pytest.raises(NotFollowedError, match="nothing to train"):
        seen_by(setup, shallow)
