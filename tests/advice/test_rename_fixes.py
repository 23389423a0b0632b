"""Fixes that take a key away are safe only where the library reads the config, not where a team's own script does."""

import pytest

from catalog_sample import shallow_catalog
from kb.advice.check import Checker, Disk
from kb.config.reader import ConfigReader
from kb.core.catalog import Computed, Rule
from kb.core.expression import fact_names
from kb.core.finding import Finding
from kb.core.program import Program
from kb.machine.detect import detect

CATALOG = shallow_catalog()
READER = ConfigReader(CATALOG.dialects, CATALOG.facts)
CHECKER = Checker(
    CATALOG,
    detect(CATALOG.gpus, gpu="rtx-3090", host_memory="60GB", cpus="8"),
    versions={"transformers": (5, 23)}.get,
    disk=Disk(programs=lambda unit: (Program("train.py", "HfArgumentParser((TrainingArguments,))"),)),
)


def finding(text: str, rule: str) -> Finding:
    found = CHECKER.check(READER.read(text, "config.yaml")[0]).findings
    return next(finding for finding in found if finding.rule == rule)


@pytest.mark.parametrize(
    ("setting", "rule"),
    [("evaluation_strategy: steps", "evaluation-strategy-removed"), ("logging_dir: runs", "logging-dir-removed")],
)
def test_a_key_is_renamed_or_removed_safely_only_outside_the_team_format(setting: str, rule: str) -> None:
    flat = finding(f"model_name_or_path: t5-base\nper_device_train_batch_size: 8\n{setting}\n", rule)
    team = finding(f"general: {{model_name: t5-base}}\ntraining:\n  {setting}\n", rule)
    assert [fix.safety for fix in flat.fixes] == ["safe"]
    assert [fix.safety for fix in team.fixes] == ["unsafe"]
    assert "스크립트" in team.fixes[0].title.ko and "script" in team.fixes[0].title.en


def _facts_of(rule: Rule) -> frozenset[str]:
    """Every fact a rule reads: to test its condition, to word its message, to compute its fixes."""
    trees = [rule.when, *(fix.when for fix in rule.fixes)]
    trees += [value.tree for fix in rule.fixes for value in fix.set.values() if isinstance(value, Computed)]
    names = frozenset[str]().union(*(fact_names(tree) for tree in trees if tree is not None))
    return names | (rule.message.placeholders() if rule.on is None else frozenset())


def test_no_safe_fix_takes_a_key_away_without_asking_who_reads_the_config() -> None:
    for rule in CATALOG.rules.values():
        if any(fix.safety == "safe" and (fix.rename or fix.remove) for fix in rule.fixes):
            assert "config.dialect" in _facts_of(rule), rule.id


def test_the_suggested_lora_targets_are_names_of_the_model() -> None:
    text = "general: {{model_name: {}}}\nqlora: {{use_qlora: true, lora_rank: 8, target_modules: [q, wi, wi_1, up]}}\n"
    for model, targets in (("google/mt5-base", ("q", "wi_0", "wi_1")), ("google-t5/t5-base", ("q", "wi"))):
        unit = READER.read(text.format(model), "config.yaml")[0]
        assert CHECKER.facts(unit).get("lora.suggested_target_modules") == targets


def test_ten_evaluation_steps_take_more_than_one_unless_text_is_generated() -> None:
    text = "general: {{model_name: google/mt5-base}}\ntraining: {{eval_strategy: epoch, predict_with_generate: {}}}\n"
    for generates in (False, True):
        facts = CHECKER.facts(READER.read(text.format(str(generates).lower()), "config.yaml")[0])
        grown = facts.get("memory.evaluate.ten_steps") - facts.get("memory.evaluate.peak")
        assert grown == 0 if generates else grown > 2**30


@pytest.mark.long
def test_a_raised_accumulation_is_said_to_raise_the_loss_of_an_encoder_decoder() -> None:
    text = (
        "general: {{model_name: google/mt5-base}}\n"
        "training:\n  per_device_train_batch_size: 12\n  label_smoothing_factor: {}\n"
        "  gradient_accumulation_steps: {}  # effective batch 48\n"
    )
    for smoothing, steps, warned in ((0.0, 2, True), (0.1, 2, False), (0.0, 8, False)):
        found = finding(text.format(smoothing, steps), "effective-batch-not-as-said")
        assert len(found.fixes) == 1
        assert ("accepts_loss_kwargs" in found.fixes[0].title.en) is warned
