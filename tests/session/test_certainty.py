"""How certain a finding is: origins of facts, ranges of releases, assumptions that would turn it."""

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog_sample import load_catalog, shallow_catalog
from effort import EXHAUSTIVE
from kb.advice.question import Question
from kb.config.files import ConfigError
from kb.core.catalog import Catalog
from kb.core.expression import compile_tree, deciding_facts, is_unknown
from kb.core.finding import Finding
from kb.core.memory_report import OVER
from kb.core.release import ProjectRelease, exact_release, just_below
from kb.core.units import GIB
from kb.session.around import Checking
from kb.session.file import FileChecker
from kb.session.prepare import file_checker
from kb.session.project import Project
from warm_runs import run_text

CATALOG = shallow_catalog()
OLD_NAME = (
    "from transformers import TrainingArguments\nTrainingArguments('o', evaluation_strategy='steps', eval_steps=9)\n"
)
RULE = "evaluation-strategy-removed"


def checker(folder: Path, catalog: Catalog = CATALOG, **wanted: object) -> FileChecker:
    """Of models of two layers, but where it takes a whole one to fill the GPU."""
    checking = {name: wanted.pop(name) for name in Checking._fields if name in wanted}
    question = Question.of(**{"gpu": "none", **wanted})
    return file_checker(catalog, Project(), question, Checking(root=str(folder), **checking))  # type: ignore[arg-type]


def found(folder: Path, text: str, rule: str, catalog: Catalog = CATALOG, **wanted: object) -> Finding | None:
    path = folder / ("train.py" if text.startswith("from ") else "train.yaml")
    path.write_text(text, "utf-8")
    wanted.setdefault("select", [rule])
    results = checker(folder, catalog, **wanted).check(text.encode(), str(path)).results
    return next((finding for result in results for finding in result.findings if finding.rule == rule), None)


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return run_text("kb.check", *arguments, cwd=folder)


def pin(folder: Path, text: str) -> None:
    (folder / "requirements.txt").write_text(text + "\n", "utf-8")


def test_a_pinned_release_is_certain(tmp_path: Path) -> None:
    pin(tmp_path, "transformers==5.2.0")
    finding = found(tmp_path, OLD_NAME, RULE)
    assert finding is not None and (finding.severity, finding.certainty) == ("error", "certain")
    release = next(each for each in finding.because if each.name == "versions.transformers")
    assert release.origin == "pinned" and release.place.endswith("requirements.txt:1")
    assert finding.ready("safe") is not None


def test_an_older_pin_says_nothing(tmp_path: Path) -> None:
    pin(tmp_path, "transformers==4.40.2")
    assert found(tmp_path, OLD_NAME, RULE) is None


def test_a_range_that_agrees_is_certain(tmp_path: Path) -> None:
    pin(tmp_path, "transformers>=5,<6")
    finding = found(tmp_path, OLD_NAME, RULE)
    assert finding is not None and (finding.severity, finding.certainty, finding.on_releases) == (
        "error",
        "certain",
        (),
    )


def test_a_range_that_disagrees_warns_with_its_condition(tmp_path: Path) -> None:
    pin(tmp_path, "transformers>=4.40,<5.3")
    finding = found(tmp_path, OLD_NAME, RULE)
    assert finding is not None and (finding.severity, finding.certainty) == ("warning", "likely")
    (on,) = finding.on_releases
    assert (on.library, on.since, on.before) == ("transformers", (4, 51), None)
    assert finding.ready("safe") is None and finding.ready("unsafe") is not None


def test_an_unknown_release_is_one_note_for_all_names(tmp_path: Path) -> None:
    text = OLD_NAME.replace("eval_steps=9", "eval_steps=9, overwrite_output_dir=True, warmup_ratio=0.1")
    results = checker(tmp_path).check(text.encode(), str(tmp_path / "train.py")).results
    findings = [finding for result in results for finding in result.findings]
    assert not [finding for finding in findings if finding.rule.endswith("-removed")]
    (note,) = [finding for finding in findings if finding.rule == "depends-on-release"]
    assert note.severity == "info"
    assert all(name in note.facts["names"] for name in ("evaluation_strategy", "overwrite_output_dir", "warmup_ratio"))
    assert "transformers >= 4.51" in note.facts["names"]


def test_what_is_installed_beside_kb_is_not_the_projects(tmp_path: Path) -> None:
    """The environment of these tests has a transformers in which the name is gone."""
    assert found(tmp_path, OLD_NAME, RULE) is None


LONG = """\
general: {model_name: google/mt5-base}
training: {per_device_train_batch_size: 64, bf16: true}
"""


def test_an_assumed_length_makes_a_prediction_conditional(tmp_path: Path) -> None:
    finding = found(tmp_path, LONG, "training-peak-exceeds-gpu", gpu="rtx-3090")
    assert finding is not None and (finding.severity, finding.certainty) == ("warning", "assumed")
    assert "data.max_source_length" in [each.name for each in finding.if_so]
    written = LONG + "tokenizer: {encoder_max_len: 1024, decoder_max_len: 128}\n"
    finding = found(tmp_path, written, "training-peak-exceeds-gpu", gpu="rtx-3090")
    assert finding is not None and (finding.severity, finding.certainty) == ("error", "certain")


def test_what_holds_whatever_is_assumed_is_certain(tmp_path: Path) -> None:
    """A model whose weights alone are over the GPU needs no length to be known."""
    text = "model_name_or_path: meta-llama/Llama-3.1-70B\nper_device_train_batch_size: 8\nlearning_rate: 1.0e-5\n"
    finding = found(tmp_path, text, "training-peak-exceeds-gpu", gpu="rtx-3090", gpus=1)
    assert finding is not None and (finding.severity, finding.certainty, finding.if_so) == ("error", "certain", ())


def test_strict_and_assume_nothing(tmp_path: Path) -> None:
    strict = found(tmp_path, LONG, "training-peak-exceeds-gpu", gpu="rtx-3090", strict=True)
    assert strict is not None and (strict.severity, strict.certainty) == ("error", "assumed")
    assert found(tmp_path, LONG, "training-peak-exceeds-gpu", gpu="rtx-3090", assume_nothing=True) is None


def test_reports_say_the_condition_and_how_to_settle_it(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(LONG, "utf-8")
    said = run(tmp_path, "train.yaml", "--gpu", "rtx-3090", "--lang", "en").stdout
    assert "If inputs reach 1024 tokens: Training is predicted" in said.replace("\n  ", " ")
    assert "to settle it:" in said and "--notes shows" in said
    report = json.loads(run(tmp_path, "train.yaml", "--gpu", "rtx-3090", "--format", "json").stdout)
    (finding,) = [one for one in report["files"][0]["findings"] if one["rule"] == "training-peak-exceeds-gpu"]
    assert finding["certainty"] == "assumed" and finding["assumes"][0]["name"] == "data.max_source_length"
    assert all(one["severity"] != "info" for one in report["files"][0]["findings"])
    assert report["files"][0]["hidden_notes"] == report["summary"]["info"] > 0
    noted = json.loads(run(tmp_path, "train.yaml", "--gpu", "rtx-3090", "--format", "json", "--notes").stdout)
    assert sum(one["severity"] == "info" for one in noted["files"][0]["findings"]) == report["summary"]["info"]


def test_a_file_with_one_finding_is_told_in_twenty_lines(tmp_path: Path) -> None:
    text = (
        "model_name_or_path: google-t5/t5-base\nper_device_train_batch_size: 8\nbf16: true\nlearning_rate: 1e-4\n"
        "max_source_length: 512\nmax_target_length: 64\n"
    )
    (tmp_path / "train.yaml").write_text(text, "utf-8")
    said = run(tmp_path, "train.yaml", "--gpu", "rtx-3090", "--lang", "en").stdout
    assert "1 error" in said and len(said.splitlines()) <= 20, said


EXAMPLES = [
    (rule.id, number, example["config"])
    for rule in load_catalog(whole=True).rules.values()
    for number, example in enumerate(rule.examples)
    if not example.get("base64") and example.get("dialect") not in ("command", "shell")
]
OVER_RULES = {f"{phase}-peak-exceeds-gpu" for phase in ("training", "evaluation", "generation", "inference")}


def test_the_panel_and_the_findings_agree_on_every_example(tmp_path: Path) -> None:
    """Out of memory in the panel is out of memory in the findings, and the other way round; as severe as it is sure.

    Of models of two layers, on a GPU that holds about half of them, and with the rules alone that say so.
    """
    shallow, gpu = shallow_catalog(), "rtx-3060-12gb"
    gpus = {**shallow.gpus, gpu: shallow.gpus[gpu]._replace(memory_total=8 * GIB)}
    checking = Checking(root=str(tmp_path), select=sorted(OVER_RULES))
    question = Question.of(gpu=gpu, host_memory="32GB", cpus="8")
    one = file_checker(shallow._replace(gpus=gpus), Project(), question, checking)
    judged: Counter[str] = Counter()
    for rule, number, text in EXAMPLES if EXHAUSTIVE else EXAMPLES[::14]:
        name = "x.json" if text.lstrip().startswith("{") else "x.yaml"
        try:
            results = one.check(text.encode(), str(tmp_path / name)).results
        except ConfigError:
            continue
        for result in results:
            if result.prediction is None:
                continue
            over = {finding.severity for finding in result.findings if finding.rule in OVER_RULES}
            status = result.prediction.verdict.status
            judged[status] += 1
            assert (status in OVER) is bool(over), (rule, number, status, over)
            likely = bool(result.if_so) or status == "likely_oom"
            assert not over or over & {"warning" if likely else "error", "error"}, (rule, number, over)
    assert judged.total() > (150 if EXHAUSTIVE else 9)
    assert judged["likely_oom"] or not EXHAUSTIVE  # few are: a fourteenth of the examples may hold none
    assert min(judged["oom"], judged["fits"]) > (50 if EXHAUSTIVE else 2)  # each new example moves the sample


TREES = st.recursive(
    st.sampled_from([["fact", "a"], ["fact", "b"], ["fact", "c"], ["lit", True], ["lit", False]]),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), inner, inner).map(list),
        st.tuples(st.just("not"), inner).map(list),
        st.tuples(st.just("if"), inner, inner, inner).map(list),
    ),
    max_leaves=12,
)


@given(
    TREES,
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_the_deciding_facts_decide(tree: list, values: tuple, others: tuple) -> None:
    """Whatever the other facts are, the value stays."""
    facts = dict(zip("abc", values, strict=True))
    value, names = deciding_facts(tree, facts.__getitem__, lambda name: "abc".index(name) % 3)
    assert value is compile_tree(tree)(facts.__getitem__) and not is_unknown(value)
    changed = {name: facts[name] if name in names else other for name, other in zip("abc", others, strict=True)}
    assert compile_tree(tree)(changed.__getitem__) is value


def test_of_two_facts_that_would_each_decide_the_surer_counts() -> None:
    facts = {"sure": False, "assumed": False}
    tree = ["and", ["fact", "assumed"], ["fact", "sure"]]
    doubts = {"sure": 0, "assumed": 2}
    assert deciding_facts(tree, facts.__getitem__, doubts.__getitem__) == (False, frozenset({"sure"}))


@pytest.mark.parametrize("version", [(5,), (4, 51), (4, 51, 2), (1,)])
def test_just_below_is_below(version: tuple[int, ...]) -> None:
    below = just_below(version)
    assert below < version and not exact_release("torch", ".".join(map(str, version)), "given").allows(below)
    assert ProjectRelease("torch", f"<{'.'.join(map(str, version))}", None, "ranged").allows(below)


@pytest.mark.exhaustive
def test_what_is_only_likely_warns_and_says_so(tmp_path: Path) -> None:
    """The low end fits and the prediction does not: no error, and no sentence that even the low end is over."""
    text = (
        "general: {model_name: google-t5/t5-base}\n"
        "tokenizer: {encoder_max_len: 768, decoder_max_len: 150, pad_to_max_length: true}\n"
        "training: {per_device_train_batch_size: %d, learning_rate: 0.0001, do_eval: false, optim: adamw_torch}\n"
    )
    expected = {"likely_oom": ("warning", "likely"), "oom": ("error", "certain")}
    seen = {}
    for batch in (16, 17, 18, 24):  # near the border another assumption would make it only likely
        finding = found(tmp_path, text % batch, "training-peak-exceeds-gpu", load_catalog(), gpu="rtx-3090")
        if finding is not None:
            seen[finding.facts["memory.train.status"]] = batch
            assert (finding.severity, finding.certainty) == expected[finding.facts["memory.train.status"]], batch
    assert seen.keys() == expected.keys()
    (tmp_path / "train.yaml").write_text(text % seen["likely_oom"], "utf-8")
    for language, begins in (("en", "Likely: Training is predicted"), ("ko", "가능성 높음: 학습에")):
        said = run(tmp_path, "train.yaml", "--gpu", "rtx-3090", "--lang", language)
        assert begins in said.stdout.replace("\n  ", " "), said.stdout


def test_a_setting_is_safely_removed_only_where_the_program_hands_names_on(tmp_path: Path) -> None:
    rule = "max-steps-overrides-epochs"
    text = "model_name_or_path: google-t5/t5-base\nnum_train_epochs: 2\nmax_steps: 1200\nlearning_rate: 1e-4\n"
    alone = found(tmp_path, text, rule)
    assert alone is not None and alone.ready("safe") is None and alone.ready("unsafe") is not None
    (tmp_path / "train.py").write_text(
        "from transformers import HfArgumentParser, TrainingArguments\n"
        "parser = HfArgumentParser(TrainingArguments)\n(args,) = parser.parse_yaml_file('train.yaml')\n",
        "utf-8",
    )
    handed = found(tmp_path, text, rule)
    assert handed is not None and handed.ready("safe") is not None


def test_what_a_combination_comes_to_is_the_librarys_alone(tmp_path: Path) -> None:
    """A program that calls torch.compile by itself does what its own switch says."""
    text = (
        "model_name_or_path: google-t5/t5-base\ntraining:\n  learning_rate: 0.0001\n"
        "  torch_compile: false\n  torch_compile_mode: default\n"
    )
    (tmp_path / "train.py").write_text(
        "import torch, yaml\nfrom transformers import Trainer\n"
        "config = yaml.safe_load(open('train.yaml'))['training']\n"
        "if config['torch_compile']:\n    model = torch.compile(model, mode=config['torch_compile_mode'])\n",
        "utf-8",
    )
    assert found(tmp_path, text, "not-as-written") is None
    (tmp_path / "train.py").write_text(
        "import yaml\nfrom transformers import TrainingArguments\n"
        "config = yaml.safe_load(open('train.yaml'))['training']\nargs = TrainingArguments(**config)\n",
        "utf-8",
    )
    assert found(tmp_path, text, "not-as-written") is not None


MAXIMUM = (
    "general: {model_name: google-t5/t5-base}\ntokenizer: {encoder_max_len: 768, decoder_max_len: 150%s}\n"
    "training: {per_device_train_batch_size: %d, learning_rate: 0.0001, do_eval: false, optim: adamw_torch}\n"
)


@pytest.mark.parametrize("filled", ["", ", pad_to_max_length: true"])
def test_a_maximum_that_is_written_is_certain(tmp_path: Path, filled: str) -> None:
    """A bound that the config itself sets is no guess of kb's: what it allows has to fit."""
    finding = found(tmp_path, MAXIMUM % (filled, 24), "training-peak-exceeds-gpu", load_catalog(), gpu="rtx-3090")
    assert finding is not None and finding.facts["memory.train.status"] == "oom"
    assert (finding.severity, finding.certainty, finding.if_so) == ("error", "certain", ())


def test_an_old_end_of_a_range_is_a_note(tmp_path: Path) -> None:
    """An open range is filled with the newest release, and one that has the name hardly ever with an older one."""
    text = OLD_NAME.replace("evaluation_strategy", "eval_strategy")
    pin(tmp_path, "transformers>=4.30")
    finding = found(tmp_path, text, "eval-strategy-not-yet")
    assert finding is not None and (finding.severity, finding.certainty) == ("info", "likely")
    pin(tmp_path, "transformers==4.36.2")
    finding = found(tmp_path, text, "eval-strategy-not-yet")
    assert finding is not None and (finding.severity, finding.certainty) == ("error", "certain")


def test_an_old_end_of_one_range_of_two_is_a_note(tmp_path: Path) -> None:
    """A new transformers beside an old accelerate is no more installed by open ranges than an old one of either."""
    text = OLD_NAME.replace("evaluation_strategy='steps', eval_steps=9", "data_seed=7")
    pin(tmp_path, "transformers>=4.36\naccelerate>=0.25")
    finding = found(tmp_path, text, "refused-at-start")
    assert finding is not None and (finding.severity, finding.certainty) == ("info", "likely")
    pin(tmp_path, "transformers>=4.46,<5\naccelerate>=0.34,<1.1")
    finding = found(tmp_path, text, "refused-at-start")
    assert finding is not None and finding.severity == "error"


PARSES = (
    "from transformers import HfArgumentParser, Seq2SeqTrainer, Seq2SeqTrainingArguments\n"
    "args, = HfArgumentParser((Seq2SeqTrainingArguments,)).parse_args_into_dataclasses()\n"
    "trainer = Seq2SeqTrainer(args=args)\n"
    "if args.do_train:\n    trainer.train()\n"
    "if args.do_predict:\n    trainer.predict(rows)\n"
)
PREDICTS = "python run_sum.py --model_name_or_path t5-small --output_dir out --do_predict --optim adafactor{}\n"


@pytest.mark.parametrize(("more", "fires"), [("", False), (" --do_train", True)])
def test_a_run_that_only_predicts_is_not_told_how_to_train(tmp_path: Path, more: str, fires: bool) -> None:
    (tmp_path / "run_sum.py").write_text(PARSES, "utf-8")
    (tmp_path / "test.sh").write_text(PREDICTS.format(more), "utf-8")
    results = checker(tmp_path).check((tmp_path / "test.sh").read_bytes(), str(tmp_path / "test.sh")).results
    rules = {finding.rule for result in results for finding in result.findings}
    assert ("adafactor-with-default-learning-rate" in rules) is fires


TOKENIZES = (
    "from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments\n"
    "tok = AutoTokenizer.from_pretrained('facebook/opt-1.3b')\n"
    "model = AutoModelForCausalLM.from_pretrained('facebook/opt-1.3b')\n"
    "rows = [tok(text, truncation=True, padding={}, max_length=1024) for text in texts]\n"
    "Trainer(model=model, args=TrainingArguments('out', per_device_train_batch_size=8)).train()\n"
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TOKENIZES.format("'max_length'"), "full_length"),
        (TOKENIZES.format("True"), "longest_row"),
        (TOKENIZES.format("'longest'"), "longest_row"),
        ("python run_clm.py --model_name_or_path gpt2 --do_train --output_dir out --block_size 256\n", "full_length"),
        ("python run_summarization.py --do_train --output_dir out --max_source_length 256\n", "longest_row"),
        (
            "python run_summarization.py --do_train --output_dir o --max_source_length 256 --pad_to_max_length True\n",
            "full_length",
        ),
    ],
)
def test_where_batches_are_filled_the_maximum_is_reached(tmp_path: Path, text: str, reason: str) -> None:
    name = "train.sh" if text.startswith("python") else "train.py"
    (result,) = checker(tmp_path).check(text.encode(), str(tmp_path / name)).results
    assert result.setup is not None
    assert reason in [each.reason for each in result.setup.assumed if each.name == "data.lengths"]


FAR = (
    "from trl import SFTConfig, SFTTrainer\n"
    "args = SFTConfig('out', per_device_train_batch_size=1, gradient_checkpointing=True, bf16=True, "
    "max_length=16384{})\n"
    "SFTTrainer('Qwen/Qwen2.5-0.5B', args=args).train()\n"
)


@pytest.mark.parametrize(
    ("more", "certainty"),
    [
        ("", "assumed"),
        (", packing=True", "certain"),
        (", packing=True, dataset_kwargs={'skip_prepare_dataset': True}", "assumed"),  # what is ready TRL packs not
    ],
)
def test_a_maximum_of_many_tokens_is_reached_for_sure_only_where_batches_are_filled(
    tmp_path: Path, more: str, certainty: str
) -> None:
    pin(tmp_path, "trl==0.20.0\ntransformers==4.57.6")
    finding = found(tmp_path, FAR.format(more), "training-peak-exceeds-gpu", gpu="rtx-3090", gpus=1)
    assert finding is not None
    assert finding.certainty == certainty
    assert ("data.lengths" in [each.name for each in finding.if_so]) is (certainty == "assumed")


PREFERENCES = (
    "model_name_or_path: meta-llama/Llama-3.1-8B\nlearning_rate: 1.0e-6\nbeta: 0.1\nbf16: true\noutput_dir: out\n"
    "f_divergence_type: reverse_kl\nmax_length: 1024\nper_device_train_batch_size: 8\ngradient_checkpointing: true\n"
)


@pytest.mark.exhaustive
def test_how_long_prompts_are_decides_nothing_where_a_run_is_too_large_anyway(tmp_path: Path) -> None:
    pin(tmp_path, "trl==1.16.0\ntransformers==5.23.0")
    (tmp_path / "run.sh").write_text("trl dpo --config train.yaml\n", "utf-8")
    finding = found(tmp_path, PREFERENCES, "training-peak-exceeds-gpu", load_catalog(), gpu="rtx-3090")
    assert finding is not None
    assert (finding.severity, finding.certainty) == ("error", "certain")


def test_what_rests_on_a_variables_default_is_likely_and_says_which(tmp_path: Path) -> None:
    def told(command: str, rule: str) -> tuple[str, str]:
        (tmp_path / "run.sh").write_text(f"python train.py --model_name_or_path {command}\n", "utf-8")
        ready = checker(tmp_path, load_catalog(), gpu="rtx-3090")
        results = ready.check((tmp_path / "run.sh").read_bytes(), str(tmp_path / "run.sh"))
        (finding,) = [each for result in results.results for each in result.findings if each.rule == rule]
        return finding.certainty, ", ".join(
            str(each.value) for each in finding.if_so if each.name == "run.own_defaults"
        )

    size, rate = "--per_device_train_batch_size", "--learning_rate"
    assert told(f"gpt2 {rate} 0 {size} ${{SIZE:-4}}", "learning-rate-zero") == ("certain", "")
    assert told(f"gpt2 {rate} ${{RATE:-0}} {size} 4", "learning-rate-zero") == ("likely", "learning_rate")
    large = "meta-llama/Llama-3.1-8B --bf16 --do_train --output_dir ${OUT:-out}"
    assert told(f"{large} {size} 8", "training-peak-exceeds-gpu")[1] == ""
    assert told(f"{large} {size} ${{SIZE:-8}}", "training-peak-exceeds-gpu")[1] == "per_device_train_batch_size"
    evaluated = f"{large} {size} 8 --per_device_eval_batch_size ${{ROWS:-2}}"
    assert told(evaluated, "training-peak-exceeds-gpu")[1] == ""
    assert told(f"{evaluated} --do_eval", "training-peak-exceeds-gpu")[1] == ""
    assert told(f"{evaluated} --do_eval ${{EVAL:-True}} {size} ${{SIZE:-8}}", "training-peak-exceeds-gpu")[1] == (
        "per_device_train_batch_size"
    )
    assert told(f"{evaluated} --do_eval", "evaluation-peak-exceeds-gpu")[1] == "per_device_eval_batch_size"


FUSED = (
    "model_name_or_path: Qwen/Qwen2.5-1.5B-Instruct\ntorch_dtype: bfloat16\nuse_peft: true\nlora_r: 16\nbf16: true\n"
    "lora_target_modules: all-linear\nuse_liger_kernel: {fused}\nmax_length: 4096\nper_device_train_batch_size: 4\n"
    "lora_modules_to_save: [lm_head]\npacking: true\ngradient_checkpointing: true\nfsdp: full_shard auto_wrap\n"
    "output_dir: out\n"
)


@pytest.mark.parametrize(("fused", "certainty"), [("true", "assumed"), ("false", "certain")])
def test_what_the_engine_puts_for_a_loss_that_it_does_not_follow_is_said_of_the_finding(
    tmp_path: Path, fused: str, certainty: str
) -> None:
    """Beside adapters an output layer that trains is, under FSDP, counted with whole logits in a fused loss: that
    memory runs out rests on it."""
    pin(tmp_path, "trl==0.24.0\ntransformers==4.57.1\npeft==0.17.0")
    rule = "training-peak-exceeds-gpu"
    finding = found(tmp_path, FUSED.format(fused=fused), rule, gpu="rtx-4090", gpus=2)
    assert finding is not None and finding.certainty == certainty
    assert ("training.fused_loss" in {each.name for each in finding.if_so}) == (fused == "true")
