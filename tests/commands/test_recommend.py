"""`kb recommend`: the config to start from, the notes' rows beside it, and what is said where there is none."""

import json
from functools import partial
from pathlib import Path

import pytest

from catalog_sample import CATALOG, load_guide, machine, shallow, shallow_catalog
from command_runs import run_kb
from effort import EXHAUSTIVE, few
from kb.advice.batches import Ceiling, Split, splits_of
from kb.advice.check import Checker
from kb.advice.fit.attempts import OFFERED_ONLY
from kb.advice.fit.estimator import Estimator, on_gpu
from kb.advice.fit.recommend_answer import Answer, answer
from kb.advice.question import Question
from kb.config.reader import ConfigReader
from kb.core.catalog import Catalog
from kb.core.text import UserError
from kb.core.units import GIB
from kb.knowledge import load_words
from kb.report.recommend.formats import scalar
from kb.report.recommend.text import config_yaml
from kb.report.words import Words
from output_schemas import answers_to

GUIDE = load_guide()
WORDS = Words("en", load_words("en"), CATALOG.facts)
SHALLOW = shallow_catalog()
READER = ConfigReader(CATALOG.dialects, CATALOG.facts)


kb = partial(run_kb, module="kb.recommend")


def kb_json(*arguments: object) -> dict:
    return json.loads(kb(*arguments, "--format", "json").stdout)


def recommend(model: str, gpu: str, task: str = "train", *, world: int = 1, folds: int = 1, processes: int = 1,
              given: dict | None = None, catalog: Catalog = SHALLOW, **asked: object) -> Answer:  # fmt: skip
    """The answer for a model of two layers; of its own depth (``CATALOG``) where it is what fits that is looked at."""
    estimator = Estimator(catalog.models[model], machine(gpu), catalog.constants)
    return answer(
        task,
        Question.of(**asked),
        estimator,
        catalog,
        GUIDE,
        world=world,
        folds=folds,
        processes=processes,
        given=given,
    )


# --- effective batches --------------------------------------------------------------------------------------------


def test_a_batch_that_divides_the_effective_batch_holds_it() -> None:
    assert splits_of(24, Ceiling(8, 8)).exact[0] == Split(8, 3)


def test_where_twelve_fit_forty_is_held_by_ten_or_eight() -> None:
    splits = splits_of(40, Ceiling(12, 12))
    assert [(split.batch, split.accumulation) for split in splits.exact[:2]] == [(10, 4), (8, 5)]


def test_a_prime_effective_batch_names_the_nearest_two_with_fewer_steps() -> None:
    splits = splits_of(37, Ceiling(12, 12))
    assert splits.exact == (Split(1, 37),)
    assert (splits.below, splits.above) == (Split(9, 4), Split(10, 4))


def test_an_effective_batch_that_no_accumulation_reaches_has_the_nearest_two() -> None:
    splits = splits_of(10, Ceiling(30, 30), world=4)
    assert splits.exact == ()
    assert (splits.below.effective, splits.above.effective) == (8, 12)


def test_without_room_for_held_gradients_only_a_single_step_counts() -> None:
    assert splits_of(2, Ceiling(2, 0)).exact == (Split(2, 1),)
    with pytest.raises(ValueError, match="effective 4"):
        splits_of(4, Ceiling(2, 0))


# --- training -----------------------------------------------------------------------------------------------------


def test_the_notes_row_stands_beside_the_recommendation() -> None:
    run = kb("--model", "eenzeenee", "--gpu", "v100-16gb", "--lang", "en")
    assert run.returncode == 0, run.stderr
    assert "per_device_train_batch_size" in run.stdout
    assert "gradient_accumulation_steps" in run.stdout
    row = next(line for line in run.stdout.splitlines() if line.startswith("  [1]"))
    assert row.split()[1:6] == ["4", "4", "2", "8", "8"]


def test_without_an_effective_batch_the_notes_one_is_held() -> None:
    found = recommend("eenzeenee", "v100-16gb")
    assert found.training.effective_source == "notes"
    assert found.setup.effective_batch_size == 8


def test_without_notes_the_librarys_default_is_held() -> None:
    found = recommend("distilgpt2", "l40s", world=2)
    assert found.training.effective_source == "library"
    assert found.setup.effective_batch_size == 16


@pytest.mark.exhaustive
def test_the_notes_contradict_one_another_on_the_rtx_4090() -> None:
    found = recommend("mt5-xlsum", "rtx-4090", effective_batch=24, catalog=CATALOG)
    assert [row.train_batch for row in found.notes.own] == [1]
    assert {row.train_batch for row in found.notes.conflicts} >= {12, 16, 24}
    assert {row.source for row in found.notes.conflicts} == {"guide-memory"}
    assert found.setup.effective_batch_size == 24
    assert found.training.report.verdict.status == "fits"


@pytest.mark.exhaustive
def test_the_conflict_is_said_with_which_to_use() -> None:
    text = kb("--model", "mt5-xlsum", "--gpu", "rtx-4090", "--lang", "en").stdout
    assert "contradict" in text
    assert "Use neither" in text
    assert "mt5-xl-in-24gb" in text


@pytest.mark.exhaustive
def test_eenzeenee_on_the_rtx_4090_shows_both_notes() -> None:
    found = recommend("eenzeenee", "rtx-4090")
    assert [row.train_batch for row in found.notes.own] == [2]
    assert 24 in {row.train_batch for row in found.notes.conflicts}


@pytest.mark.parametrize("model", few(["t5-base", "eenzeenee", "mt5-xlsum", "flan-t5-large"]))
@pytest.mark.parametrize("gpu", few(["v100-16gb", "t4"]))
def test_t5_is_never_recommended_in_fp16(model: str, gpu: str) -> None:
    setup = recommend(model, gpu).setup
    assert not setup.fp16
    assert not setup.bf16


@pytest.mark.exhaustive
def test_bart_before_ampere_gets_fp16_and_ampere_gets_bf16() -> None:
    assert recommend("kobart", "t4").setup.fp16
    assert recommend("kobart", "rtx-3090").setup.bf16
    if EXHAUSTIVE:
        assert recommend("mt5-xlsum", "rtx-3090").setup.bf16


def with_memory(gib: int) -> Answer:
    """The answer for eight layers of a model on a GPU of which nothing but its memory is another."""
    gpu = on_gpu(CATALOG.gpus["rtx-3090"]._replace(memory_total=gib * GIB))
    model = shallow(CATALOG.models["mistral-7b"], 8)
    return answer("train", Question.of(), Estimator(model, gpu, CATALOG.constants), CATALOG, GUIDE)


@pytest.mark.exhaustive
def test_gradient_checkpointing_only_where_training_does_not_fit_without() -> None:
    assert not with_memory(48).setup.gradient_checkpointing
    found = with_memory(32)
    assert found.setup.gradient_checkpointing
    assert not found.training.attempts[0].fits(8, 1)


@pytest.mark.exhaustive
def test_methods_escalate_until_one_fits() -> None:
    names = [with_memory(gib).training.chosen.name for gib in (48, 32, 16, 5)]
    assert names == ["full", "full_checkpointing_8bit", "lora_checkpointing", "qlora_checkpointing"]


def test_nothing_fits_and_what_would_is_said() -> None:
    run = kb("--model", "qwen2.5-32b", "--gpu", "rtx-3060-ti", "--lang", "en")
    assert run.returncode == 1
    for way in ("checkpointing", "LoRA", "QLoRA", "8-bit", "offload", "the last way fits"):
        assert way in run.stdout


@pytest.mark.exhaustive
def test_where_nothing_fits_the_gpus_on_which_it_would_are_named() -> None:
    training = recommend("mt5-xl", "rtx-3060-ti", catalog=CATALOG).training
    assert CATALOG.gpus["rtx-3060-ti"].memory_total < training.larger_gpu_last_way.memory_total
    assert training.larger_gpu_last_way.memory_total < training.larger_gpu.memory_total


def test_a_named_method_is_kept_even_where_full_training_fits() -> None:
    found = recommend("t5-base", "a100-80gb", method="qlora")
    assert found.setup.method == "qlora"
    assert found.setup.load_in_4bit


@pytest.mark.exhaustive
def test_workers_stay_within_cores_and_container_memory() -> None:
    assert recommend("t5-small", "rtx-3090").setup.dataloader_num_workers <= 48 // 3
    estimator = Estimator(SHALLOW.models["t5-small"], machine("rtx-3090", cpus=12), CATALOG.constants)
    few = answer("train", Question.of(), estimator, CATALOG, GUIDE)
    assert (few.setup.dataloader_num_workers, few.training.workers_reason) == (4, "cores")


@pytest.mark.exhaustive
def test_unknown_cores_and_memory_leave_the_workers_open() -> None:
    run = kb("--model", "kobart", "--gpu", "t4", "--lang", "en")
    config = run.stdout.split("\n\n")[1]
    assert "  dataloader_num_workers:" not in config
    assert "# dataloader_num_workers" in config


def test_the_allocator_setting_has_the_name_that_every_torch_reads() -> None:
    assert kb_json("--model", "eenzeenee", "--gpu", "v100-16gb")["environment"] == {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"
    }


PASTED_GPUS = ("rtx-2080-ti", "v100-16gb", "rtx-3080-10gb", "rtx-4090", "a100-40gb")
PASTED_MODELS = ("eenzeenee", "mt5-xlsum", "kobart", "t5-large", "t5-3b")
PASTED_WAYS = (("train", "auto"), ("train", "qlora"), ("inference", "auto"))


# Every model on every GPU, and each of these in every way: one of the three ways of each pair; of the pairs one of each
# model and of each GPU, with --exhaustive all.
@pytest.mark.parametrize(
    ("model", "gpu", "task", "method"),
    [
        pytest.param(
            model,
            gpu,
            *PASTED_WAYS[(i + j) % len(PASTED_WAYS)],
            marks=[pytest.mark.exhaustive] if (j + i) % len(PASTED_GPUS) else [],
        )
        for i, gpu in enumerate(PASTED_GPUS)
        for j, model in enumerate(PASTED_MODELS)
    ],
)
def test_the_pasted_config_passes_the_linter_on_the_same_gpu(model: str, gpu: str, task: str, method: str) -> None:
    found = recommend(model, gpu, task, method=method)
    text = config_yaml(found, WORDS)
    if text is None:
        assert found.setup is None
        return
    (unit,) = READER.read(text, "config.yaml")
    result = Checker(SHALLOW, machine(gpu)).check(unit)
    assert [finding.rule for finding in result.findings if finding.severity == "error"] == []
    assert result.prediction.verdict.status == "fits"
    if task == "train":
        assert result.setup.effective_batch_size == found.setup.effective_batch_size
        assert result.setup.method == found.setup.method


def test_the_printed_config_passes_kb_check(tmp_path: Path) -> None:
    run = kb("--model", "kobart", "--gpu", "t4", "--effective-batch", "24", "--host-memory", "60GB",
             "--cpus", "48", "--lang", "ko")  # fmt: skip
    path = tmp_path / "start.yaml"
    path.write_text(run.stdout.split("\n\n")[1] + "\n", "utf-8")
    checked = kb(path, "--gpu", "t4", "--host-memory", "60GB", "--cpus", "48", module="kb.check")
    assert checked.returncode == 0, checked.stdout


def test_a_local_models_name_survives_yaml() -> None:
    assert scalar("models/run: 3 #2") == '"models/run: 3 #2"'
    assert scalar("1e3") == '"1e3"'
    assert scalar("csebuetnlp/mT5_multilingual_XLSum") == "csebuetnlp/mT5_multilingual_XLSum"


# --- inference ----------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_five_folds_together_meet_the_notes_figures() -> None:
    """The note saw 8, 14 and 22 GB at 8, 16 and 32, and ran out at 64."""
    asked = {"source_length": 512, "beams": 5, "generation_length": 120}
    found = recommend("kobart", "rtx-4090", "inference", folds=5, catalog=CATALOG, **asked)
    statuses = {row.values["inference.batch_size"]: row.status for row in found.notes.own}
    assert statuses[8] == statuses[16] == "fits"
    assert statuses[64] == "oom"
    assert 16 <= found.inference.largest < 64
    assert found.inference.in_turn > 64


def test_the_path_through_the_decision_tree_is_printed() -> None:
    run = kb("--model", "kobart", "--gpu", "rtx-4090", "--task", "inference", "--gen-length", "120", "--beams", "5",
             "--set", "solar_api=no", "--set", "concurrent=false", "--lang", "en")  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "Is a rate-limited API (Solar) used? → no" in run.stdout
    assert "Batch 16 (long output)" in run.stdout


def test_an_unanswered_question_names_what_it_needs() -> None:
    found = kb_json("--model", "kobart", "--gpu", "rtx-4090", "--task", "inference")
    assert found["decision"]["leaf"] is None
    assert found["decision"]["needs"] == ["concurrent"]
    assert found["decision"]["fallback"]["value"] == 16


def test_an_api_on_a_small_gpu_does_not_get_the_large_gpus_batch() -> None:
    given = {"solar_api": True, "concurrent": False}
    leaf = recommend("kobart", "rtx-3060-12gb", "inference", given=given, generation_length=120).walk.leaf
    assert leaf.use < 16


def test_processes_that_share_the_gpu_fit_together() -> None:
    asked = {"source_length": 512, "beams": 5, "generation_length": 120}
    alone = recommend("kobart", "rtx-4090", "inference", folds=5, **asked)
    two = recommend("kobart", "rtx-4090", "inference", folds=5, processes=2, **asked)
    assert 0 < two.inference.largest < alone.inference.largest
    assert 2 * two.inference.generate.high_bytes <= two.estimator.usable_bytes


def test_other_processes_hold_the_batch_to_the_trees() -> None:
    given = {"concurrent": True}
    found = recommend("kobart", "rtx-4090", "inference", given=given, generation_length=120)
    assert found.setup.inference_batch_size == found.walk.leaf.use == 8
    assert found.inference.largest > 8


# --- json, languages ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("--model", "eenzeenee", "--gpu", "v100-16gb"),
        ("--model", "qwen2.5-32b", "--gpu", "rtx-3060-ti"),  # nothing fits: as in the test that says what would
        pytest.param(("--model", "mt5-xlsum", "--gpu", "rtx-4090"), marks=pytest.mark.exhaustive),
        pytest.param(
            ("--model", "kobart", "--gpu", "t4", "--gpus", "4", "--effective-batch", "10"), marks=pytest.mark.exhaustive
        ),
        ("--model", "kobart", "--gpu", "rtx-4090", "--task", "inference", "--folds", "5", "--set", "solar_api=true"),
        ("--model", "t5-3b", "--gpu", "t4", "--task", "inference"),
    ],
)
def test_json_keeps_its_schema(arguments: tuple[str, ...]) -> None:
    answers_to("recommend", kb_json(*arguments))


def test_both_languages_have_the_same_config() -> None:
    configs = []
    for language in ("ko", "en"):
        text = kb("--model", "kobart", "--gpu", "t4", "--lang", language).stdout.split("\n\n")[1]
        configs.append([line.partition("#")[0] for line in text.splitlines()])
    assert configs[0] == configs[1]


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "mt5-xlsun", "--gpu", "t4"), "mt5-xlsum"),
        (("--model", "qqqqqqqqqq", "--gpu", "t4"), "--model-config"),
        (("--gpu", "t4"), "--model"),
        (("--model", "kobart", "--gpu", "none"), "--gpu"),
        (("--model", "kobart", "--gpu", "rtx4909"), "rtx-4090"),
        (("--model", "kobart", "--gpu", "t4", "--effective-batch", "0"), "--effective-batch 0"),
        (("--model", "kobart", "--gpu", "t4", "--gpus", "4", "--effective-batch", "2"), "4 GPUs"),
        (("--model", "kobart", "--gpu", "t4", "--seq-in", "5000"), "1026"),
        (("--model", "kobart", "--gpu", "t4", "--task", "inference", "--set", "solar=1"), "solar_api"),
        (("--model", "kobart", "--gpu", "t4", "--task", "inference", "--set", "solar_api=perhaps"), "bool"),
    ],
)
def test_bad_input_is_said_with_exit_code_2(arguments: tuple[str, ...], said: str) -> None:
    run = kb(*arguments, "--lang", "en")
    assert run.returncode == 2
    assert run.stdout == ""
    assert said in run.stderr


def test_an_effective_batch_met_only_nearly_is_said_and_exits_with_1() -> None:
    run = kb("--model", "distilgpt2", "--gpu", "t4", "--gpus", "4", "--effective-batch", "10", "--lang", "en")
    assert run.returncode == 1
    assert "no accumulation gives 10 on 4 GPUs" in run.stdout
    assert "= 8 " in run.stdout
    assert "= 12 " in run.stdout


def test_fewer_samples_than_gpus_raise_a_user_error() -> None:
    with pytest.raises(UserError, match="effective_below_gpus"):
        recommend("kobart", "t4", world=8, effective_batch=4)


def test_a_way_that_is_only_offered_is_never_chosen() -> None:
    models = ("t5-base", "llama-3-8b", "bart-large", "klue-roberta-base", "gpt2", "qwen2.5-32b", "gemma-2-9b")
    for model in models if EXHAUSTIVE else models[:2]:
        chosen = recommend(model, "t4").training.chosen
        assert chosen is None or chosen.name not in OFFERED_ONLY


@pytest.mark.exhaustive
def test_of_several_gpus_it_says_that_it_writes_no_sharding() -> None:
    ways = ["--model", "llama-3.2-1b", "--gpu", "rtx-3060-12gb", "--method", "full", "--lang", "en"]
    several = " ".join(run_kb(*ways, "--gpus", 4, module="kb.recommend").stdout.split())
    assert "each of the 4 GPUs holds the whole model" in several
    assert "kb plan CONFIG --gpus 4" in several
    assert "kb plan CONFIG" not in run_kb(*ways, module="kb.recommend").stdout
