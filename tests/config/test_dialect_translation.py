"""What a dialect makes of written values: skipped, translated, split, added up, borrowed, filled in."""

from pathlib import Path

import pytest

from catalog_sample import load_catalog, read_units
from command_runs import run_kb
from config_sample import FACTS, dialect_of
from kb.config.reader import ConfigReader
from kb.core.document import Unit
from kb.core.expression import is_unknown

DIALECT = {
    "id": "demo",
    "layout": "grouped",
    "recognise": {"least": 1, "marks": {"demo": 1}},
    "keys": {
        "adapter": {"to": "lora.enabled", "values": {"lora": True, "full": False}, "unknown": "others"},
        "all": {"to": "lora.target_modules", "values": {"true": "all-linear"}, "skip": "others"},
        "targets": {"to": "lora.target_modules", "values": {"all": "all-linear"}, "split": ","},
        "bits": [
            {"to": "quantization.load_in_4bit", "values": {"4": True}, "skip": "others"},
            {"to": "quantization.load_in_8bit", "values": {"8": True}, "skip": "others"},
        ],
        "share": [
            {"to": "training.eval_strategy", "values": {"0": "no"}, "skip": "others"},
            {"to": "training.eval_strategy", "values": {"*": "epoch"}, "last": True},
        ],
        "evals": {"to": "training.eval_strategy", "values": {"*": "steps"}},
        "batch": "training.per_device_train_batch_size",
        "eval_batch": "training.per_device_eval_batch_size",
        "attn": {"to": "lora.modules_to_save", "items": {"out": "o_proj"}, "adds": True},
        "mlp": {"to": "lora.modules_to_save", "values": {"true": ["up_proj"]}, "skip": "others", "adds": True},
        "out": "training.output_dir",
    },
    "fallbacks": {"training.per_device_eval_batch_size": "training.per_device_train_batch_size"},
    "known": {"..": ["colour", "shape"], "..1.4": ["taste"], "2.0..": ["smell"]},
    "closed": ["*"],
    "interpolates": True,
    "ignore": ["demo", "group.*"],
}
READER = ConfigReader({"demo": dialect_of(DIALECT)}, FACTS)


def read(text: str) -> Unit:
    (unit,) = READER.read("demo: 1\n" + text, "c.yaml")
    return unit


def value(text: str, name: str) -> object:
    setting = read(text).settings.get(name)
    return None if setting is None else setting.value


@pytest.mark.parametrize(("written", "meant"), [("lora", True), ("full", False)])
def test_a_listed_value_is_translated(written: str, meant: bool):
    assert value(f"adapter: {written}\n", "lora.enabled") is meant


def test_a_method_that_kb_does_not_know_leaves_the_setting_unknown():
    assert is_unknown(value("adapter: oft\n", "lora.enabled"))


def test_a_value_that_says_nothing_leaves_the_word_to_the_next_key():
    assert value("all: false\ntargets: q_proj\n", "lora.target_modules") == ("q_proj",)
    assert value("all: True\ntargets: q_proj\n", "lora.target_modules") == "all-linear"


def test_a_text_is_split_into_a_list():
    assert value("targets: q_proj, v_proj\n", "lora.target_modules") == ("q_proj", "v_proj")
    assert value("targets: all\n", "lora.target_modules") == "all-linear"


def test_one_key_may_mean_a_different_setting_for_each_value():
    assert read("bits: 4\n").settings.keys() == {"quantization.load_in_4bit"}
    assert read("bits: 8\n").settings.keys() == {"quantization.load_in_8bit"}


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("share: 0\nevals: 2\n", "no"),
        ("share: 0.1\nevals: 2\n", "steps"),
        ("share: 0.1\n", "epoch"),
        ("evals:\n", None),
    ],
)
def test_a_key_may_come_first_for_one_value_and_last_for_the_others(text: str, strategy: str | None):
    assert value(text, "training.eval_strategy") == strategy


def test_a_setting_falls_back_on_another_and_no_fix_writes_over_that():
    setting = read("batch: 4\n").settings["training.per_device_eval_batch_size"]
    assert (setting.value, setting.alias) == (4, True)
    assert value("batch: 4\neval_batch: 2\n", "training.per_device_eval_batch_size") == 2


def test_no_fix_writes_over_a_translated_value():
    assert read("bits: 4\n").settings["quantization.load_in_4bit"].alias
    assert not read("batch: 4\n").settings["training.per_device_train_batch_size"].alias


def test_several_keys_add_up_to_one_list():
    assert value("attn: [q_proj, out]\nmlp: true\n", "lora.modules_to_save") == ("q_proj", "o_proj", "up_proj")
    assert value("attn: [q_proj]\nmlp: false\n", "lora.modules_to_save") == ("q_proj",)


def test_a_reference_within_the_document_is_filled_in():
    for text in ("${group.size}", "${group.sizes[1]}", "${group.${which}}", "${group.same}"):
        document = f"out: /tmp/x\nbatch: {text}\nwhich: size\ngroup: {{size: 3, sizes: [1, 3], same: '${{.size}}'}}\n"
        assert value(document, "training.per_device_train_batch_size") == 3, text


CHAIN = "batch: ${group.n0}\ngroup:\n" + "".join(f"  n{at}: ${{.n{at + 1}}}\n" for at in range(500)) + "  n500: 3\n"


@pytest.mark.parametrize("text", ["batch: ${nowhere}\n", "batch: ${batch}\n", "batch: ${oc.env:BATCH,3}\n", CHAIN])
def test_a_reference_that_leads_nowhere_is_named_and_not_guessed(text: str):
    unit = read(text)
    assert is_unknown(unit.settings["training.per_device_train_batch_size"].value)
    assert [event.kind for event in unit.events] == ["unresolved-value"]


def test_what_is_put_together_is_named_as_it_is_written():
    (event,) = read("batch: ${group.size}4\ngroup: {size: 6}\n").events
    assert (event.kind, event.values["raw"]) == ("unresolved-value", "${group.size}4")


def test_a_name_that_the_format_does_not_have_is_told():
    (event,) = read("colour: red\nwavelength: 700\n").events
    assert (event.kind, event.values) == ("unknown-argument", {"key": "wavelength", "format": "demo"})


def test_a_slip_in_an_argument_that_means_no_setting_is_mended_too():
    (event,) = read("coluor: red\n").events
    assert (event.kind, event.values["meant"]) == ("unknown-key", "colour")


def test_names_in_other_groups_are_not_judged():
    assert read("group: {whatever: 1}\n").events == ()


def test_two_formats_with_like_marks_are_both_named():
    other = dialect_of({**DIALECT, "id": "other"})
    reader = ConfigReader({"demo": dialect_of(DIALECT), "other": other}, FACTS)
    (unit,) = reader.read("demo: 1\nbatch: 2\n", "c.yaml")
    (event,) = unit.events
    assert (event.kind, event.values) == ("ambiguous-dialect", {"taken": unit.dialect, "others": "other"})
    (unit,) = reader.read("demo: 1\nbatch: 2\n", "c.yaml", dialect="other")
    assert (unit.dialect, unit.events) == ("other", ())


def test_an_argument_that_newer_releases_lack_is_told_with_the_last_that_has_it():
    (event,) = read("taste: sweet\nsmell: none\n").events
    assert (event.kind, event.values) == ("dated-argument", {"key": "taste", "format": "demo", "last": "1.4"})


@pytest.mark.parametrize(
    ("plugins", "told"),
    [
        ("", True),
        ("plugins:\n", True),
        ("plugins: [library.liger.Plugin]\n", True),
        ("plugins: [library.liger.Plugin, library.Plugin]\n", True),
        ("plugins: [library.liger.Plugin, mine.Plugin]\n", False),
        ("plugins: [library.of_a_fork.Plugin]\n", False),
        ("plugins: mine.Plugin\n", False),
    ],
)
def test_a_plugin_of_ones_own_has_arguments_of_its_own(plugins: str, told: bool):
    row = {**DIALECT, "ignore": ["demo", "plugins"], "extended": {"plugins": ["library.liger.*", "library.Plugin"]}}
    reader = ConfigReader({"demo": dialect_of(row)}, FACTS)
    (unit,) = reader.read(f"demo: 1\nmy_own: 1\n{plugins}", "c.yaml")
    assert ("unknown-argument" in {event.kind for event in unit.events}) is told


@pytest.mark.parametrize("name", ["wavelength", "taste"])
def test_a_name_without_a_value_is_passed_over(name: str):
    assert read(f"{name}:\n").events == ()


@pytest.mark.parametrize(
    ("config", "training", "evaluation"),
    [
        ("plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]", True, True),
        ("plugins: [axolotl.integrations.liger.LigerPlugin, a.CutCrossEntropyPlugin]", True, True),
        ("plugins: [a.CutCrossEntropyPlugin]\ncut_cross_entropy: false", False, False),
        ("plugins: [a.LigerPlugin]\ncut_cross_entropy: true", None, None),
        ("liger_fused_linear_cross_entropy: true", None, None),
        ("chunked_cross_entropy: false", None, None),
        ("plugins: [axolotl.integrations.liger.LigerPlugin]\nliger_fused_linear_cross_entropy: true", True, None),
        ("plugins: [axolotl.integrations.liger.LigerPlugin]", None, None),
        ("plugins:", None, None),
    ],
)
def test_a_plugin_among_others_says_how_the_loss_is_computed(
    config: str, training: bool | None, evaluation: bool | None
) -> None:
    text = f"base_model: a/b\nadapter: qlora\nsequence_len: 512\nmicro_batch_size: 1\ndatasets: []\n{config}\n"
    catalog = load_catalog()
    (unit,) = read_units(text, "axolotl.yaml", catalog.dialects, catalog.facts)
    found = [unit.settings.get(name) for name in ("model.fused_loss", "model.fused_evaluation")]
    assert [each and each.value for each in found] == [training, evaluation]


def test_a_fix_of_a_setting_that_the_format_takes_from_another_adds_its_own_key(tmp_path: Path) -> None:
    """Axolotl evaluates in batches of ``micro_batch_size`` where nothing else is said: a smaller evaluation batch is no
    smaller training batch, which would be another run."""
    path = tmp_path / "axolotl.yml"
    path.write_text(
        "base_model: Qwen/Qwen2-1.5B-Instruct\nadapter: qlora\nload_in_4bit: true\nlora_r: 32\nsequence_len: 4096\n"
        "micro_batch_size: 8\ngradient_accumulation_steps: 4\nval_set_size: 0.05\nbf16: true\nnum_epochs: 1\n"
        "gradient_checkpointing: true\nlora_target_linear: true\ndatasets: [{path: a/b, type: alpaca}]\n",
        "utf-8",
    )
    run_kb(path, "--gpu", "rtx-4090", "--fix", "--no-cache", module="kb.check")
    said = path.read_text("utf-8")
    assert "micro_batch_size: 8\neval_batch_size: 3\n" in said
