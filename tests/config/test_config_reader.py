"""Whole files → units: sections, inheritance, documents, positions, what the text itself has wrong."""

import pytest
import yaml

from catalog_sample import read_units
from config_sample import CONFIGS, EVENTS, mended, nth_line, only_event, read, read_one, read_sample
from kb.config.files import ConfigError
from kb.core.document import Unit


def values(unit: Unit) -> dict:
    return {name: setting.value for name, setting in unit.settings.items()}


def test_sections_are_units_after_the_top():
    _, units = read_sample("sections.yaml")
    assert [(unit.section, unit.dialect) for unit in units] == [
        (None, "team"),
        ("small_t5", "team"),
        ("wide_mt5", "team"),
    ]
    assert [unit.settings["model.name"].value for unit in units] == [
        "gogamza/kobart-base-v2",
        "paust/pko-t5-small",
        "google/mt5-small",
    ]


def test_a_section_takes_from_the_top_what_it_does_not_say():
    _, (_, small, wide) = read_sample("sections.yaml")
    assert values(small)["inference.batch_size"] == 8
    assert small.settings["inference.batch_size"].inherited
    assert values(small)["training.per_device_train_batch_size"] == 20
    assert not small.settings["training.per_device_train_batch_size"].inherited
    assert values(wide)["training.per_device_train_batch_size"] == 8
    assert wide.settings["training.per_device_train_batch_size"].path == ("training", "per_device_train_batch_size")
    assert values(wide)["inference.batch_size"] == 4


def test_null_in_a_section_keeps_the_tops_value_out():
    _, (top, small, wide) = read_sample("sections.yaml")
    assert values(top)["inference.num_beams"] == values(small)["inference.num_beams"] == 4
    assert "inference.num_beams" not in wide.settings


def test_an_old_name_counts_under_the_new_one_too():
    _, (top, small, wide) = read_sample("sections.yaml")
    assert values(top)["training.evaluation_strategy"] == values(top)["training.eval_strategy"] == "epoch"
    assert values(small)["training.eval_strategy"] == "steps"  # its own, under the new name, not the top's
    assert wide.settings["training.eval_strategy"].inherited
    unit = read_one("training: {eval_strategy: steps, evaluation_strategy: epoch}\n")
    assert values(unit)["training.eval_strategy"] == "steps"


def test_a_sections_old_name_wins_over_the_tops_new_one():
    text = "training: {eval_strategy: steps, fp16: true}\none:\n  training: {evaluation_strategy: epoch}\n"
    _, one = read(text)
    assert values(one)["training.eval_strategy"] == "epoch"


def test_top_groups_that_are_no_run_of_their_own_make_no_unit():
    text = "wandb: {project: x}\ninference: {num_beams: 4}\none:\n  training: {fp16: true}\n"
    (one,) = read(text)
    assert one.section == "one"
    assert values(one)["inference.num_beams"] == 4


def test_positions_are_exact_beside_korean_and_emoji():
    text, units = read_sample("sections.yaml")
    fp16 = [unit.settings["training.fp16"].span.line for unit in units[1:]]
    assert [nth_line(text, line).strip().split()[0] for line in fp16] == ["fp16:", "fp16:"]
    for unit in units:
        for setting in unit.settings.values():
            assert text[setting.key_span.start : setting.key_span.end].strip("\"'") == setting.path[-1]
            line = nth_line(text, setting.span.line)
            written = text[setting.span.start : setting.span.end]
            assert line[setting.span.column - 1 :].startswith(written.split("\n")[0])
            assert yaml.safe_load(" " * (setting.span.column - 1) + written) is not None


def test_the_comment_on_a_settings_line_comes_along():
    _, (_, small, _) = read_sample("sections.yaml")
    assert small.settings["training.gradient_accumulation_steps"].comment == "유효 배치 48 유지"
    assert small.settings["training.fp16"].comment == "😀 절반 정밀도"
    assert small.settings["lora.r"].comment == ""
    unit = read_one('training: {fp16: true, seed: 7} # 둘 다\nqlora:\n  target_modules: ["q#v"]  # 주의\n')
    assert unit.settings["training.seed"].comment == "둘 다"
    assert unit.settings["lora.target_modules"].comment == "주의"
    assert read_one("training:\n  fp16: true\n  run_name: a#b\n").settings["training.run_name"].comment == ""


def test_lists_span_all_their_items_and_no_more():
    text, (_, small, _) = read_sample("sections.yaml")
    setting = small.settings["lora.target_modules"]
    assert setting.value == ("q", "v")
    assert text[setting.span.start : setting.span.end] == '- "q"\n      - "v"'


def test_a_section_spans_from_its_name_to_its_last_value():
    text, (_, small, wide) = read_sample("sections.yaml")
    assert text[small.span.start :].startswith("small_t5:")
    assert text[: small.span.end].endswith("project: demo")
    assert text[: wide.span.end].endswith("./logs/b")


def test_duplicates_are_told_once_in_their_section_and_the_last_counts():
    text, units = read_sample("sections.yaml")
    told = [(unit.section, event) for unit in units for event in unit.events if event.kind == "duplicate-key"]
    ((section, event),) = told
    assert section == "wide_mt5"
    assert set(event.values) == set(EVENTS["duplicate-key"]["values"])
    assert event.values["key"] == "logging_dir"
    assert (event.values["dropped"], event.values["used"]) == ("./logs/a", "./logs/b")
    assert nth_line(text, event.values["first_line"]).strip() == "logging_dir: ./logs/a"
    assert nth_line(text, event.span.line).strip() == "logging_dir: ./logs/b"
    assert event.related[0][1].line == event.values["first_line"]
    assert units[2].settings["training.logging_dir"].value == "./logs/b"


def test_mending_every_event_leaves_the_same_data():
    text, units = read_sample("sections.yaml")
    for unit in units:
        again = mended(text, unit)
        data, before = yaml.safe_load(again), yaml.safe_load(text)
        if unit.section == "wide_mt5":
            assert before["wide_mt5"]["training"].pop("learning_rate") == "5e-5"
            assert data["wide_mt5"]["training"].pop("learning_rate") == 5e-5
            assert len(again.split("\n")) == len(text.split("\n")) - 1
        assert data == before


def test_a_duplicate_outside_every_section_goes_with_the_first_unit():
    text = "wandb:\n  a: 1\n  a: 2\none:\n  training: {fp16: true}\ntwo:\n  training: {bf16: true}\n"
    first, second = read(text)
    assert [event.kind for event in first.events] == ["duplicate-key"]
    assert second.events == ()


def test_what_is_inherited_is_told_only_once():
    text = "training: {learning_rate: 5e-5}\none:\n  training: {fp16: true}\ntwo:\n  training: {bf16: true}\n"
    top, one, two = read(text)
    assert only_event(top).kind == "number-as-text"
    assert one.events == two.events == ()
    assert one.settings["training.learning_rate"].value == 5e-5


def test_a_trap_behind_an_anchor_is_told_only_once():
    text = "one:\n  training: &base {fp16: true, learning_rate: 5e-5}\ntwo:\n  training:\n    <<: *base\n    seed: 1\n"
    one, two = read(text)
    assert only_event(one).kind == "number-as-text"
    assert two.events == ()
    assert two.settings["training.learning_rate"].value == 5e-5


def test_the_experiment_format_is_the_same_dialect_without_sections():
    _, (unit,) = read_sample("experiment.yaml")
    assert (unit.dialect, unit.section, unit.events) == ("team", None, ())
    assert values(unit) == {
        "model.name": "gogamza/kobart-base-v2",
        "data.max_source_length": 768,
        "data.max_target_length": 150,
        "training.evaluation_strategy": "steps",
        "training.eval_strategy": "steps",
        "training.per_device_train_batch_size": 8,
        "training.gradient_accumulation_steps": 3,
        "training.learning_rate": 3e-5,
        "training.fp16": False,
        "training.bf16": True,
        "training.generation_max_length": 150,
        "generation.do_sample": False,
        "generation.max_length": 200,
        "generation.min_length": 30,
        "generation.num_beams": 4,
        "lora.enabled": False,
        "lora.r": 64,
        "lora.target_modules": ("q_proj", "v_proj"),
    }


def test_flat_arguments_are_read_with_their_traps():
    text, (unit,) = read_sample("arguments.yaml")
    assert unit.dialect == "hf"
    assert [event.kind for event in unit.events] == [
        "number-as-text",
        "word-as-boolean",
        "quoted-boolean",
        "quoted-number",
    ]
    found = values(unit)
    assert found["training.learning_rate"] == 1e-4
    assert found["training.eval_strategy"] == "no"
    assert found["training.fp16"] is False
    assert found["lora.r"] == 16
    assert found["training.gradient_checkpointing_kwargs.use_reentrant"] is False
    assert found["training.fsdp"] == "full_shard auto_wrap"
    assert found["lora.target_modules"] == ("q", "v")
    assert yaml.safe_load(mended(text, unit))["eval_strategy"] == "no"


def test_flat_json_is_read_by_jsons_rules_with_tabs_and_escapes():
    text, (unit,) = read_sample("arguments.json")
    assert unit.dialect == "hf"
    assert [event.kind for event in unit.events] == ["quoted-boolean", "duplicate-key"]
    found = values(unit)
    assert found["training.learning_rate"] == 5e-5
    assert found["training.warmup_steps"] == 500.0
    assert found["training.run_name"] == "🔥 실험"
    assert found["training.seed"] == 2
    span = unit.settings["training.per_device_train_batch_size"].span
    assert (span.line, span.column, text[span.start : span.end]) == (3, 33, "16")
    assert '"seed": 1' not in mended(text, unit)


def test_deepspeed_auto_is_known_to_be_unknown():
    _, (unit,) = read_sample("zero3.json")
    assert (unit.dialect, unit.events) == ("deepspeed", ())
    found = values(unit)
    assert {name: found[name] for name in found if not isinstance(found[name], dict)} == {
        "deepspeed.train_micro_batch_size_per_gpu": 4,
        "deepspeed.bf16.enabled": True,
        "deepspeed.zero_stage": 3,
        "deepspeed.offload_optimizer.device": "cpu",
        "deepspeed.overlap_comm": False,
        "deepspeed.reduce_bucket_size": 500_000_000,
    }
    assert {"deepspeed.train_batch_size", "deepspeed.gradient_accumulation_steps"} <= set(unit.left_open)


def test_a_file_of_another_kind_says_so():
    _, (unit,) = read_sample("compose.yaml")
    assert (unit.dialect, unit.settings) == (None, {})
    assert only_event(unit).kind == "unknown-dialect"


def test_an_unknown_file_names_the_keys_that_looked_familiar():
    unit = read_one("project:\n  fp16: true\n  learning_rate: 0.1\n  colour: red\n")
    assert unit.known_keys == ("project", "fp16", "learning_rate")
    assert only_event(unit).values == {"known": ("project", "fp16", "learning_rate")}


def test_several_documents_are_units_of_their_own():
    text = "training: {fp16: true}\n---\n# nothing here\n---\nmodel_name_or_path: t5-base\nfp16: true\nfp16: false\n"
    first, third = read(text)
    assert (first.section, first.dialect) == ("document 1", "team")
    assert (third.section, third.dialect) == ("document 3", "hf")
    assert first.events == ()
    assert only_event(third).kind == "duplicate-key"
    assert third.settings["training.fp16"].span.line == 7


def test_sections_in_one_of_several_documents_keep_both_names():
    text = "a:\n  training: {fp16: true}\n---\nb:\n  training: {fp16: true}\n"
    assert [unit.section for unit in read(text)] == ["document 1: a", "document 2: b"]


def test_one_document_after_a_marker_has_no_name():
    assert read_one("---\ntraining: {fp16: true}\n").section is None


def test_a_list_as_second_document_is_named_by_its_line():
    with pytest.raises(ConfigError) as caught:
        read("training: {fp16: true}\n---\n- a\n")
    assert (caught.value.key, caught.value.line) == ("config.list-at-top", 3)


def test_a_byte_order_mark_is_told_where_its_reader_stops_and_offsets_count_it():
    text = '\ufeff{"training": {"fp16": true}}\n'
    unit = read_one(text, "config.json")
    assert only_event(unit).kind == "byte-order-mark"
    assert mended(text, unit) == '{"training": {"fp16": true}}\n'
    text = "\ufefftraining:\n  fp16: true\n"
    unit = read_one(text)
    assert not unit.events  # PyYAML reads past it
    span = unit.settings["training.fp16"].span
    assert text[span.start : span.end] == "true"


@pytest.mark.parametrize("end", ["\r\n", "\r", "\n"])
def test_any_line_end_gives_exact_places(end):
    text = end.join(["training:", "  fp16: true # 하나", "  learning_rate: 5e-5", "  seed: 1", ""])
    unit = read_one(text)
    event = only_event(unit)
    assert text[event.span.start : event.span.end] == "5e-5"
    if end != "\r":  # to an editor, a lone carriage return ends no line
        assert event.span.line == 3
        assert unit.settings["training.fp16"].comment == "하나"


def test_line_ends_that_only_yaml_knows_do_not_shift_lines():
    text = "training:\n  run_name: 'a\u2028b'\n  # \x85 \u2029\n  learning_rate: 5e-5\n"
    event = only_event(read_one(text))
    assert (event.span.line, event.span.column) == (4, 18)
    assert text[event.span.start : event.span.end] == "5e-5"


def test_tabs_for_indentation_are_read_as_meant_and_told():
    text = "training:\n\tfp16: true\n\tgradient_checkpointing_kwargs:\n\t\tuse_reentrant: no # 탭\n\tseed: 1\n"
    with pytest.raises(yaml.YAMLError):
        yaml.safe_load(text)
    unit = read_one(text)
    event = only_event(unit)
    assert (event.kind, event.span.line, len(event.edits)) == ("tab-indent", 2, 4)
    setting = unit.settings["training.gradient_checkpointing_kwargs.use_reentrant"]
    assert (setting.value, setting.comment) == (False, "탭")
    assert (setting.span.line, setting.span.column) == (4, 18)
    assert text[setting.span.start : setting.span.end] == "no"
    assert yaml.safe_load(mended(text, unit)) == {
        "training": {"fp16": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}, "seed": 1}
    }


def test_tabs_whose_width_would_decide_are_refused():
    with pytest.raises(ConfigError) as caught:
        read("training:\n    kwargs:\n        fp16: true\n\tseed: 1\n")
    assert (caught.value.key, caught.value.line, caught.value.column) == ("config.tab", 4, 1)


def test_a_tab_beside_spaces_is_read_where_every_width_agrees():
    unit = read_one("training:\n  fp16: true\nqlora:\n\tr: 8\n")
    assert values(unit) == {"training.fp16": True, "lora.r": 8}


def test_yaml_on_standard_input_may_begin_with_a_brace():
    assert read_one("{training: {fp16: true}}", "-").dialect == "team"
    assert read_one('{"training": {"learning_rate": 5e-5}}', "-").events == ()
    with pytest.raises(ConfigError, match="json"):
        read('{"training": {"fp16": True}}', "-")


def test_a_block_scalar_spans_its_text():
    text = "training:\n  fp16: true\n  run_name: |\n    긴 이름\n\n\n  seed: 1\n"
    setting = read_one(text).settings["training.run_name"]
    assert setting.value == "긴 이름\n"
    assert text[setting.span.start : setting.span.end] == "|\n    긴 이름"
    assert (setting.span.line, setting.span.end_line) == (3, 4)


def test_an_anchor_and_a_tag_stand_outside_the_values_span():
    text = "training:\n  fp16: &f !!bool true # 참\n  bf16: *f\n  label_names: &l\n    - a\n"
    unit = read_one(text)
    spans = [unit.settings[f"training.{name}"].span for name in ("fp16", "bf16", "label_names")]
    assert [text[span.start : span.end] for span in spans] == ["true", "*f", "- a"]
    assert [unit.settings[f"training.{name}"].alias for name in ("fp16", "bf16", "label_names")] == [False, True, False]
    assert unit.settings["training.fp16"].comment == "참"


@pytest.mark.parametrize(
    ("text", "mend"),
    [
        ("training:\n  seed: 1  # 처음\n  fp16: true\n  seed: 2\n", "training:\n  fp16: true\n  seed: 2\n"),
        ("training: {fp16: true, seed: 1, seed: 2}\n", None),
        ("training: {fp16: true}\nwandb:\n  - seed: 1\n    seed: 2\n", None),
        ("training:\n  seed: &s 1\n  seed: 2\n  data_seed: *s\n", None),
        ("training:\n  label_names:\n    - a\n  label_names: [b]\n", None),
    ],
)
def test_only_a_line_of_its_own_is_taken_out(text, mend):
    unit = read_one(text)
    assert only_event(unit).kind == "duplicate-key"
    assert (mended(text, unit) if only_event(unit).edits else None) == mend


def test_the_same_value_written_twice_is_a_duplicate_in_json_alone():
    (unit,) = read("fp16: true\nlearning_rate: 1.0e-4\noutput_dir: o\nper_device_train_batch_size: 4\nfp16: true\n")
    assert unit.events == ()
    (unit,) = read('{"fp16": true, "output_dir": "o", "per_device_train_batch_size": 4, "fp16": true}')
    assert only_event(unit).kind == "duplicate-key"


def test_a_group_written_twice_is_a_duplicate_and_only_the_last_counts():
    unit = read_one("training:\n  fp16: true\nqlora: {r: 8}\ntraining:\n  bf16: true\n")
    event = only_event(unit)
    assert (event.kind, event.values["used"], event.values["dropped"]) == ("duplicate-key", "{…}", "{…}")
    assert values(unit) == {"lora.r": 8, "training.bf16": True}


def test_a_quoted_key_beside_a_bare_one_is_another_key():
    unit = read_one("training: {fp16: true}\nwandb: {1: a, '1': b}\n")
    assert unit.events == ()


def test_read_units_reads_one_file():
    from config_sample import DIALECTS, FACTS

    (unit,) = read_units("training: {fp16: true}\n", "a.yaml", DIALECTS, FACTS)
    assert (unit.path, unit.dialect) == ("a.yaml", "team")
    (forced,) = read_units("fp16: true\n", "a.yaml", DIALECTS, FACTS, dialect="hf")
    assert values(forced) == {"training.fp16": True}


def test_all_samples_are_read():
    for path in sorted(CONFIGS.iterdir()):
        assert read(path.read_text(encoding="utf-8"), path.name)


GROUPS = """model: {name: t5-base}
training: {per_device_train_batch_size: 1}
pairs:
  generation: {max_new_tokens: 256}
"""


def test_what_only_says_how_to_generate_is_no_run_beside_one():
    (unit,) = read(GROUPS)
    assert unit.section is None


def test_a_section_takes_the_nulls_of_the_top():
    _, section = read("model: {name: t5-base}\ntraining: {max_steps: null}\nlong:\n  training: {seed: 1}\n")
    assert "training.max_steps" in section.nulls
