"""Fixes put into texts: only the target changes, in the style of its surroundings, or nothing does."""

from pathlib import Path

import pytest
import yaml

from config_sample import DIALECTS, FACTS, read
from kb.config.fixing.fixes import Fixer, FixResult, Request, unified_diff
from kb.config.fixing.saving import save
from kb.config.fixing.written import as_json, as_words, as_yaml
from kb.config.shell.command import CommandReader, read_shell
from kb.config.text.encoding import decode
from kb.core.document import Unit
from kb.core.finding import Edit, Fix, Span
from kb.core.text import Text

FIXER = Fixer(DIALECTS, FACTS)
COMMANDS = CommandReader(DIALECTS, FACTS)


def edits_of(changes: dict[str, object]) -> tuple[Edit, ...]:
    """``{"name": value}``; a value of None removes, one that begins with ``->`` renames."""
    edits = []
    for name, value in changes.items():
        if value is None:
            edits.append(Edit("remove", name))
        elif isinstance(value, str) and value.startswith("->"):
            edits.append(Edit("rename", name, value[2:]))
        else:
            edits.append(Edit("set", name, value))
    return tuple(edits)


def request(unit: Unit, edits: tuple[Edit, ...], at: str | None = None) -> Request:
    setting = unit.settings.get(at or edits[0].name)
    place = setting.span if setting else unit.span
    return Request(fix=Fix(safety="safe", title=Text("", ""), edits=edits), unit=unit, at=place, rule="r")


def section_of(units: list[Unit], section: str | None) -> Unit:
    return next(unit for unit in units if unit.section == section)


def change(
    text: str, changes: dict[str, object], path: str = "c.yaml", section: str | None = None, at: str | None = None
) -> FixResult:
    unit = section_of(read(text, path), section)
    return FIXER.apply(text, path, [request(unit, edits_of(changes), at)])


def changed(text: str, changes: dict[str, object], path: str = "c.yaml", **more: str | None) -> str:
    result = change(text, changes, path, **more)
    assert result.refused == ()
    return result.text


def reason(result: FixResult) -> str:
    (refused,) = result.refused
    return refused.key


def in_shell(text: str, changes: dict[str, object], at: str | None = None, number: int = 0) -> str:
    unit = read_shell(text, "run.sh", COMMANDS)[number]
    result = FIXER.apply(text, "run.sh", [request(unit, edits_of(changes), at)], shell=True)
    assert result.refused == ()
    return result.text


UNTIDY = """\
# 실험 설정 😀
general:   {model_name: google/mt5-base}

training:
    fp16:   True   # 메모리 50% 절약

    learning_rate: '5e-5'
    optim: "adamw_torch"     # 유지
    save_total_limit:
    per_device_train_batch_size : 8
qlora:
  target_modules:
    - 'q'   # 질의
    - 'wi'  # 피드포워드
"""


def test_a_value_is_replaced_in_its_place_and_all_else_stays() -> None:
    assert changed(UNTIDY, {"training.per_device_train_batch_size": 4}) == UNTIDY.replace(": 8", ": 4")
    assert changed(UNTIDY, {"training.optim": "adafactor"}) == UNTIDY.replace("adamw_torch", "adafactor")
    assert changed(UNTIDY, {"training.fp16": False}) == UNTIDY.replace("True ", "False ")
    assert changed(UNTIDY, {"training.learning_rate": 5e-5}) == UNTIDY.replace("'5e-5'", "5.0e-05")
    assert changed(UNTIDY, {"training.save_total_limit": 2}) == UNTIDY.replace("limit:", "limit: 2")


def test_a_new_setting_goes_on_a_line_below_the_findings() -> None:
    fixed = changed(UNTIDY, {"training.fp16": False, "training.bf16": True})
    assert fixed == UNTIDY.replace("True   # 메모리 50% 절약\n", "False   # 메모리 50% 절약\n    bf16: true\n")


def test_a_new_setting_goes_to_the_end_of_its_group_where_the_finding_is_elsewhere() -> None:
    fixed = changed(UNTIDY, {"training.bf16": True}, at="model.name")
    assert fixed == UNTIDY.replace(" : 8\n", " : 8\n    bf16: true\n")


def test_a_missing_group_is_made() -> None:
    assert changed(UNTIDY, {"inference.batch_size": 4}) == UNTIDY + "inference:\n  batch_size: 4\n"


def test_windows_line_ends_and_a_missing_last_one_stay() -> None:
    text = "training:\r\n  fp16: true  # 😀\r\n  do_train: true"
    assert changed(text, {"training.bf16": True}, at="training.do_train") == text + "\r\n  bf16: true"
    assert changed(text, {"training.do_train": None}) == "training:\r\n  fp16: true  # 😀"
    assert changed(text, {"training.fp16": None}) == "training:\r\n  do_train: true"


def test_flow_mappings_keep_their_form() -> None:
    text = "general: {model_name: google/mt5-base}\ntraining: {fp16: true, do_train: true}\n"
    assert changed(text, {"training.fp16": False, "training.bf16": True}) == text.replace(
        "{fp16: true,", "{fp16: false, bf16: true,"
    )
    assert changed(text, {"training.fp16": None}) == text.replace("fp16: true, ", "")
    assert changed(text, {"training.do_train": None}) == text.replace(", do_train: true", "")


def test_json_keeps_its_commas_right() -> None:
    text = '{\n  "fp16": true,\n  "per_device_train_batch_size": 8\n}\n'
    assert changed(text, {"training.bf16": True}, "c.json", at="training.fp16") == text.replace(
        "true,\n", 'true,\n  "bf16": true,\n'
    )
    assert changed(text, {"training.bf16": True}, "c.json", at="training.per_device_train_batch_size") == text.replace(
        "8\n", '8,\n  "bf16": true\n'
    )
    assert changed(text, {"training.fp16": None}, "c.json") == text.replace('  "fp16": true,\n', "")
    assert changed(text, {"training.per_device_train_batch_size": None}, "c.json") == '{\n  "fp16": true\n}\n'
    flat = '{"fp16": true, "per_device_train_batch_size": 8}'
    assert changed(flat, {"training.fp16": False, "training.bf16": True}, "c.json") == (
        '{"fp16": false, "bf16": true, "per_device_train_batch_size": 8}'
    )


def test_a_value_that_says_nothing_is_replaced() -> None:
    text = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}'
    assert changed(text, {"deepspeed.bf16.enabled": True}, "ds.json") == text.replace('"auto"', "true")
    assert changed(text, {"deepspeed.offload_param.device": "cpu"}, "ds.json") == text.replace(
        "3}", '3, "offload_param": {"device": "cpu"}}'
    )


def test_a_list_changes_by_its_items() -> None:
    fixed = changed(UNTIDY, {"lora.target_modules": ["q", "wi_0", "wi_1"]})
    assert fixed == UNTIDY.replace("- 'wi'  # 피드포워드\n", "- 'wi_0'  # 피드포워드\n    - 'wi_1'\n")
    assert changed(UNTIDY, {"lora.target_modules": ["q"]}) == UNTIDY.replace("    - 'wi'  # 피드포워드\n", "")
    flow = "training: {do_train: true}\nqlora: {target_modules: ['q', 'wi']}\n"
    assert changed(flow, {"lora.target_modules": ["q", "wi_0"]}) == flow.replace("'wi'", "'wi_0'")


def test_a_key_is_renamed_in_its_quotes() -> None:
    text = "training:\n  'evaluation_strategy': epoch  # 에폭마다\n  do_train: true\n"
    fixed = changed(text, {"training.evaluation_strategy": "->training.eval_strategy"})
    assert fixed == text.replace("evaluation_strategy", "eval_strategy")


def test_a_key_is_not_renamed_to_one_that_is_there() -> None:
    text = "training:\n  evaluation_strategy: epoch\n  eval_strategy: steps\n"
    result = change(text, {"training.evaluation_strategy": "->eval_strategy"})
    assert (result.text, reason(result)) == (text, "config.fix.name-taken")


SECTIONS = """\
training:
  fp16: true
  do_train: true
small:
  general: {model_name: google/mt5-small}
  training:
    per_device_train_batch_size: 8  # 배치
large:
  general: {model_name: google/mt5-large}
"""


def test_a_fix_of_a_section_stays_in_the_section() -> None:
    fixed = changed(SECTIONS, {"training.fp16": False}, section="small")
    assert fixed == SECTIONS.replace("# 배치\n", "# 배치\n    fp16: false\n")
    fixed = changed(SECTIONS, {"training.fp16": False}, section="large")
    assert fixed == SECTIONS + "  training:\n    fp16: false\n"


def test_an_inherited_setting_is_not_removed_for_one_section() -> None:
    result = change(SECTIONS, {"training.fp16": None}, section="small")
    assert (result.text, reason(result)) == (SECTIONS, "config.fix.inherited")


def test_a_value_shared_by_an_anchor_is_left_alone() -> None:
    text = "training: &base\n  fp16: true\n  do_train: true\nsmall:\n  training: *base\n  general: {model_name: a}\n"
    result = change(text, {"training.fp16": False}, section="small")
    assert result.text == text and result.refused


def test_the_only_entry_of_a_group_is_not_removed() -> None:
    text = "general: {model_name: a}\ntraining:\n  fp16: true\n"
    result = change(text, {"training.fp16": None})
    assert (result.text, reason(result)) == (text, "config.fix.only-entry")


def test_a_fix_is_made_as_a_whole_or_not_at_all() -> None:
    result = change(UNTIDY, {"training.fp16": False, "training.bf16": None})
    assert (result.text, reason(result)) == (UNTIDY, "config.fix.not-written")


def test_of_two_fixes_for_one_place_the_first_is_made_and_the_other_waits() -> None:
    (unit,) = read(UNTIDY)
    first = request(unit, edits_of({"training.fp16": False, "training.bf16": True}))
    again = request(unit, edits_of({"training.fp16": False}))
    other = request(unit, edits_of({"training.bf16": False}), at="training.fp16")
    beside = request(unit, edits_of({"training.tf32": True}), at="training.fp16")
    result = FIXER.apply(UNTIDY, "c.yaml", [first, again, other, beside])
    assert result.applied == (first, again, beside)
    assert [(refused.request, refused.key) for refused in result.refused] == [(other, "config.fix.overlap")]
    training = yaml.safe_load(result.text)["training"]
    assert (training["fp16"], training["bf16"], training["tf32"]) == (False, True, True)


def test_a_second_document_is_changed_in_its_own_place() -> None:
    text = "training: {fp16: true, do_train: true}\n---\ntraining: {fp16: true, do_eval: true}\n"
    unit = read(text)[1]
    result = FIXER.apply(text, "c.yaml", [request(unit, edits_of({"training.fp16": False}))])
    assert result.text == text.replace("fp16: true, do_eval", "fp16: false, do_eval")


def test_an_event_of_the_text_is_mended_and_read_again() -> None:
    text = "training:\n  learning_rate: 5e-5  # 학습률\n  fp16: true\n  fp16: false\n"
    (unit,) = read(text)
    requests = [request(unit, event.edits) for event in unit.events if event.edits]
    result = FIXER.apply(text, "c.yaml", requests)
    assert result.refused == () and len(requests) == 2
    assert result.text == "training:\n  learning_rate: 5.0e-5  # 학습률\n  fp16: false\n"


def test_a_replacement_that_reaches_further_than_it_says_is_refused() -> None:
    (unit,) = read(UNTIDY)
    at = unit.settings["training.fp16"].span
    edit = Edit("replace", "training.fp16", "true\n    do_train: [", at)
    result = FIXER.apply(UNTIDY, "c.yaml", [request(unit, (edit,))])
    assert (result.text, reason(result)) == (UNTIDY, "config.fix.broken")
    edit = Edit("replace", "training.fp16", "true\ninference:\n    fp16: false", at)
    result = FIXER.apply(UNTIDY, "c.yaml", [request(unit, (edit,))])
    assert (result.text, reason(result)) == (UNTIDY, "config.fix.side-effect")


def test_a_byte_order_mark_goes_without_a_change_of_the_text() -> None:
    decoded = decode("training: {fp16: true}\n".encode("utf-8-sig"))
    assert decoded.text is not None
    (unit,) = read(decoded.text)
    result = FIXER.apply(decoded.text, "c.yaml", [request(unit, decoded.events[0].edits)])
    assert (result.text, result.to_utf8) == (decoded.text, True)


def test_mojibake_is_mended_as_a_whole() -> None:
    sound = "training:\n  fp16: true  # 학습 정밀도\n"
    damaged = sound.encode().decode("latin-1")
    decoded = decode(damaged.encode())
    unit = Unit(path="c.yaml", section=None, dialect=None, settings={}, span=Span(1, 1, 1, 1, 0, 0))
    result = FIXER.apply(damaged, "c.yaml", [request(unit, decoded.events[0].edits)])
    assert (result.text, result.refused) == (sound, ())


SCRIPT = """\
python infer.py \\
  --batch_size 16 \\
  --num_beams=5 \\
  --fp16
"""


def test_a_flags_value_is_replaced_in_its_place() -> None:
    assert in_shell(SCRIPT, {"inference.batch_size": 8}) == SCRIPT.replace("16 ", "8 ", 1)
    assert in_shell(SCRIPT, {"inference.num_beams": 2}) == SCRIPT.replace("=5", "=2")


def test_a_new_flag_goes_on_a_line_below_the_findings() -> None:
    fixed = in_shell(SCRIPT, {"inference.max_length": 64}, at="inference.num_beams")
    assert fixed == SCRIPT.replace("=5 \\\n", "=5 \\\n  --max_new_tokens 64 \\\n")
    fixed = in_shell(SCRIPT, {"inference.max_length": 64}, at="training.fp16")
    assert fixed == SCRIPT.replace("--fp16\n", "--fp16 \\\n  --max_new_tokens 64\n")


def test_a_switch_goes_or_gives_way() -> None:
    assert in_shell(SCRIPT, {"training.fp16": False}) == SCRIPT.replace(" \\\n  --fp16", "")
    assert in_shell(SCRIPT, {"training.fp16": False, "training.bf16": True}) == SCRIPT.replace("--fp16", "--bf16")
    spelled = "python x.py --fp16 True --batch-size 4\n"
    assert in_shell(spelled, {"training.fp16": False, "training.bf16": True}) == (
        "python x.py --fp16 False --bf16 True --batch-size 4\n"
    )


def test_a_flag_is_removed_with_its_line() -> None:
    assert in_shell(SCRIPT, {"inference.batch_size": None}) == SCRIPT.replace("  --batch_size 16 \\\n", "")


def test_a_flag_is_renamed() -> None:
    text = "python t.py --evaluation_strategy epoch --do_train\n"
    fixed = in_shell(text, {"training.evaluation_strategy": "->training.eval_strategy"})
    assert fixed == text.replace("evaluation_strategy", "eval_strategy")


def test_a_shared_value_is_overridden_and_not_changed() -> None:
    text = 'ARGS="--batch_size 16"\npython a.py $ARGS --tf32\npython b.py $ARGS\n'
    fixed = in_shell(text, {"inference.batch_size": 8})
    assert fixed == text.replace("--tf32\n", "--tf32 --batch_size 8\n")


def test_a_variable_gives_way_where_it_is_used() -> None:
    text = "BATCH=16\npython a.py --batch_size $BATCH\npython b.py --batch_size $BATCH\n"
    assert in_shell(text, {"inference.batch_size": 8}, number=1) == text.replace(
        "b.py --batch_size $BATCH", "b.py --batch_size 8"
    )


OTHER_VALUES = [True, False, None, 14, -1, 5e-5, 1e16, 0.1, 3.0, ["q", "v"], ["no", "1"]]
TEXTS = ["adamw_8bit", "no", "on", "y", "1e5", "5e-5", "012", "12:30", "~", "null", "한글", "it's", "=", "<<", "0o7"]
MORE_TEXTS = ["2024-01-01", "!x", "&a", "*a", "@a", "%a", "[a", "{a", "a,b", "t5/a", "", "a b", "a: b", "# a", "- a"]


@pytest.mark.parametrize("value", [*OTHER_VALUES, *TEXTS, *MORE_TEXTS, 'say "x"', "a\nb", "? a", " a "])
def test_what_is_written_reads_back_as_the_same_value(value: object) -> None:
    for old in ("", '"x"', "'x'"):
        back = yaml.safe_load(f"k: {as_yaml(value, old)}\nl: {{m: {as_yaml(value, old)}}}\n")
        assert back == {"k": value, "l": {"m": value}}
        assert type(back["k"]) is type(value)
    assert yaml.safe_load(as_json(value) + "\n") == value or isinstance(value, float)


def test_the_shortest_form_is_written() -> None:
    assert [as_yaml(value) for value in (True, 5e-5, 1e16, "adafactor", "no")] == [
        "true",
        "5.0e-05",
        "1.0e+16",
        "adafactor",
        '"no"',
    ]
    assert [as_words(value) for value in (True, 8, "a b", "it's", ["q", "v"])] == [
        "True",
        "8",
        "'a b'",
        "'it'\\''s'",
        "q v",
    ]


def test_a_diff_shows_the_change_and_a_missing_line_end() -> None:
    assert unified_diff("c.yaml", "a: 1\nb: 2", "a: 1\nb: 3") == (
        "--- a/c.yaml\n+++ b/c.yaml\n@@ -1,2 +1,2 @@\n a: 1\n-b: 2\n\\ No newline at end of file\n"
        "+b: 3\n\\ No newline at end of file\n"
    )
    assert unified_diff("c.yaml", "a: 1\n", "a: 1\n") == ""
    assert unified_diff("/etc/c.yaml", "a: 1\n", "a: 2\n").startswith("--- a/etc/c.yaml\n+++ b/etc/c.yaml\n")


def test_saving_keeps_permissions_and_follows_a_link(tmp_path: Path) -> None:
    file, link = tmp_path / "c.yaml", tmp_path / "link.yaml"
    file.write_text("a: 1\n")
    file.chmod(0o640)
    link.symlink_to(file)
    save(str(link), "a: 2 # 값\n".encode())
    assert link.is_symlink()
    assert file.read_bytes() == "a: 2 # 값\n".encode()
    assert file.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.yaml", "link.yaml"]


def test_saving_to_a_folder_that_is_gone_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        save(str(tmp_path / "gone" / "c.yaml"), b"a: 2\n")
    assert list(tmp_path.iterdir()) == []


ALIASED = "wandb: {x: &t true, y: &m {seed: 1}}\ntraining:\n  bf16: true\n  tf32: *t\n  fp16: false\n"


def test_an_alias_is_neither_written_over_nor_its_anchor() -> None:
    unit = section_of(read(ALIASED, "c.yaml"), None)
    setting = unit.settings["training.tf32"]
    assert setting.alias and ALIASED[setting.span.start : setting.span.end] == "*t"
    fix = request(unit, edits_of({"training.tf32": False}))
    assert unit.bars(fix.fix)
    assert reason(change(ALIASED, {"training.tf32": False})) == "config.fix.alias"


def test_the_entry_of_an_alias_can_go_and_its_neighbours_can_change() -> None:
    assert changed(ALIASED, {"training.tf32": None}) == ALIASED.replace("  tf32: *t\n", "")
    assert changed(ALIASED, {"training.fp16": True}) == ALIASED.replace("fp16: false", "fp16: true")


def test_a_group_that_is_an_alias_is_not_edited_through_it() -> None:
    text = "base: &b\n  bf16: true\n  learning_rate: 1.0e-4\ntraining: *b\n"
    assert change(text, {"training.bf16": False}).text == text


def test_a_value_that_is_filled_in_elsewhere_is_not_written_over() -> None:
    text = "training:\n  bf16: true\n  per_device_train_batch_size: ${BATCH}\n"
    assert reason(change(text, {"training.per_device_train_batch_size": 8})) == "config.fix.unresolved"
    command = "python t.py --per_device_train_batch_size $1 --learning_rate 1e-4\n"
    unit = read_shell(command, "run.sh", COMMANDS)[0]
    wanted = request(unit, edits_of({"training.per_device_train_batch_size": 8}))
    assert reason(FIXER.apply(command, "run.sh", [wanted], shell=True)) == "config.fix.unresolved"


@pytest.mark.parametrize("joint", [" \\\n  ", "\\\n  ", " \\ \n  ", " \\\r\n  ", " \\\n\t"])
@pytest.mark.parametrize(
    "changes",
    [
        {"training.fp16": None},
        {"training.fp16": False},
        {"training.fp16": False, "training.bf16": True},
        {"training.bf16": None, "training.tf32": False},
    ],
)
def test_no_continued_line_is_left_empty(joint: str, changes: dict[str, object]) -> None:
    text = "python t.py" + "".join(joint + flag for flag in ("--fp16", "--learning_rate 1e-4", "--bf16", "--tf32"))
    fixed = in_shell(text + "\n", changes)
    assert fixed != text and not [line for line in fixed.splitlines() if line.strip() in ("", "\\")]


def test_a_bare_flag_takes_a_value_with_its_new_name() -> None:
    text = "python t.py --group_by_length --learning_rate 1e-4\n"
    unit = read_shell(text, "run.sh", COMMANDS)[0]
    assert unit.settings["training.group_by_length"].bare and not unit.settings["training.learning_rate"].bare
    edits = (
        Edit("set", "training.group_by_length", "group_by_length"),
        Edit("rename", "training.group_by_length", "train_sampling_strategy"),
    )
    result = FIXER.apply(text, "run.sh", [request(unit, edits)], shell=True)
    assert result.text == "python t.py --train_sampling_strategy group_by_length --learning_rate 1e-4\n"


LIGHTNING = """\
trainer:
  accelerator: gpu
  devices: 1
  precision: bf16-mixed  # of an A100
  max_epochs: 1
model: {class_path: my.Module}
"""


def test_a_value_is_written_in_the_words_of_its_key() -> None:
    assert changed(LIGHTNING, {"training.bf16": False}) == LIGHTNING.replace("bf16-mixed", '"32-true"')


def test_a_value_that_its_key_has_no_word_for_is_not_written() -> None:
    half = LIGHTNING.replace("bf16-mixed", "16-true")
    result = change(half, {"model.torch_dtype": "float32"})
    assert reason(result) == "config.fix.value"
    assert result.text == half
