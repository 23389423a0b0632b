"""The scripts behind bench/results/accuracy: rows, scores, published measurements; the grid against rough answers."""

import json
import pickle
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

from catalog_sample import load_catalog, load_guide
from effort import EXHAUSTIVE
from kb.guide.accuracy import measured_runs
from kb.memory import architecture_from_config, predict

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import accuracy_lengths  # noqa: E402
import accuracy_simulated  # noqa: E402
import training_peaks  # noqa: E402
from accuracy import KB, _predicted  # noqa: E402
from accuracy_rows import TRACED_ON, TRACES, Left, Row, is_known, measured, stored_traces  # noqa: E402
from accuracy_scores import Score, as_table, lines_of  # noqa: E402
from grid import MODELS, setups_of  # noqa: E402
from rivals import ask  # noqa: E402
from truth_lengths import lengths_of  # noqa: E402
from truth_rows import truth_rows  # noqa: E402

pytestmark = pytest.mark.long

CATALOG = load_catalog()
GRID = sorted(TRACES.glob("grid_*.json"))
PUBLISHED = {
    "id": "camp-1", "model": "gpt2-large", "mode": "train", "precision": "fp16 (pure)", "optimizer": "none",
    "method": "full", "grad_ckpt": False, "batch": 4, "seq_in": 512, "seq_out": None, "gpu": "A100-SXM4-40GB",
    "measured_peak_mib": 11889.0, "bound": None, "what_was_measured": "torch.cuda.max_memory_allocated",
    "attn": "eager",
}  # fmt: skip


def published(folder: Path, **changes: object) -> Row | Left:
    (folder / "rows.jsonl").write_text(json.dumps({**PUBLISHED, **changes}) + "\n", "utf-8")
    (row,) = truth_rows(folder, CATALOG)
    return row


def test_errors_keep_the_sign_of_the_worst_and_have_no_sign_in_the_mean() -> None:
    assert Score.of([0.02, -0.06]) == Score(2, 0.04, -0.06)


def test_scores_are_by_group_quantity_and_predictor() -> None:
    rows = [row for row in stored_traces() if row.campaign == "generation"][:3]
    told = {row.id: {"low": {"allocated": row.truth["allocated"] // 2}} for row in rows}
    lines = {line.quantity: line for line in lines_of(rows, told, lambda row: row.campaign)}
    assert lines["allocated"].scores["low"].worst == pytest.approx(-0.5, abs=1e-6)
    assert lines["reserved"].scores == {}
    assert "50 / -50 %" in as_table([lines["allocated"]], ("low",), "campaign")


def test_every_stored_trace_and_every_gpu_campaign_is_read() -> None:
    traces = stored_traces()
    assert {row.campaign for row in traces} >= {"training", "generation", "evaluation"}
    assert all(row.truth["allocated"] for row in traces)
    rows = list(measured(CATALOG))
    assert len({row.id for row in rows}) == len(rows) > 50
    assert {row.gpu.id for row in rows if row.gpu} >= {"t4"}
    assert {row.setup.method for row in rows} >= {"lora", "qlora"}


def test_a_published_row_becomes_the_run_that_it_describes(tmp_path: Path) -> None:
    row = published(tmp_path)
    assert isinstance(row, Row)
    assert (row.phase, row.gpu and row.gpu.id) == ("train", "a100-40gb")
    assert row.truth == {"allocated": 11889 * 2**20}
    setup = row.setup
    assert (setup.weights, setup.fp16, setup.optim, setup.attn_implementation) == ("fp16", False, "none", "eager")
    assert (setup.per_device_train_batch_size, setup.max_source_length) == (4, 512)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mode": "context"}, "mode"),
        ({"model": "somebody/unheard-of"}, "dimensions"),
        ({"seq_in": "short prompt"}, "length"),
        ({"method": "adalora"}, "adalora"),
        ({"what_was_measured": "RAM after load"}, "measures"),
        ({"measured_peak_mib": None}, "figure"),
    ],
)
def test_a_published_row_of_which_nothing_can_be_made_is_left_out_with_its_reason(
    changes: dict[str, object], reason: str, tmp_path: Path
) -> None:
    row = published(tmp_path, **changes)
    assert isinstance(row, Left)
    assert reason in row.reason


NOTED = "tokens 3234±2548, min 91, max 19548"
OF_MS_SWIFT = {
    "source": "modelscope/ms-swift page", "model": "qwen-tiny", "seq_in": 1024, "method": "qlora", "precision": "nf4",
    "what_was_measured": "GPU memory (GiB): max_memory_reserved, excl. context", "notes": NOTED, "attn": "flash",
    "arch": {"model_type": "qwen2", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
             "num_attention_heads": 4, "vocab_size": 32000}, "gpu": "A100-80GB", "optimizer": "AdamW",
}  # fmt: skip


def test_samples_longer_than_the_maximum_are_left_out_of_what_notes_say_of_lengths() -> None:
    whole, short = lengths_of(NOTED, 20_000), lengths_of(NOTED, 1024)
    assert whole is not None and short is not None
    assert (whole.input[0], whole.input[-1]) == (91, 19548)
    assert (short.input[0], short.input[-1]) == (91, 1024)
    median, least, longest = whole.input[3], short.input[3], short.input[-1]
    assert 2000 < median < 3234 and least < longest * 0.9  # few are at the maximum, as they would be if they were cut
    assert lengths_of("LoRA r16", 1024) is None


def test_a_row_on_varied_lengths_has_them_and_what_its_program_sets(tmp_path: Path) -> None:
    row = published(tmp_path, **OF_MS_SWIFT)
    assert isinstance(row, Row)
    assert row.setup.lengths == lengths_of(NOTED, 1024) and list(row.truth) == ["reserved"]
    assert (row.setup.weights, row.setup.bf16, row.setup.prepare_for_kbit) == ("fp16", True, False)
    other = published(tmp_path, **{**OF_MS_SWIFT, "source": "somebody"})
    assert isinstance(other, Row)
    assert (other.setup.lora_target_modules, other.setup.trained_type) == (None, "peft")


def test_what_is_reserved_of_varied_lengths_is_no_more_than_the_gpu_has(tmp_path: Path) -> None:
    row = published(tmp_path, **OF_MS_SWIFT)
    assert isinstance(row, Row)
    plain = accuracy_lengths.answers([row])[row.id]
    varied, longest = (plain[name]["reserved"] for name in (accuracy_lengths.VARIED, accuracy_lengths.LONGEST))
    assert varied > longest
    small = accuracy_lengths.answers([replace(row, memory_bytes=longest + 1)])[row.id]
    assert small[accuracy_lengths.VARIED]["reserved"] == longest + 1


@pytest.mark.exhaustive
def test_every_published_row_on_varied_lengths_is_scored_and_most_lie_near() -> None:
    """Of every fourth without ``--exhaustive``, which also holds them against what the bench has stored."""
    rows = list(accuracy_lengths.published_rows(CATALOG))
    data, section = accuracy_lengths.compared(rows if EXHAUSTIVE else rows[::4])
    assert data["rows"] == data["inside"] + len(data["far"]) >= (30 if EXHAUSTIVE else 8)
    assert data["inside"] / data["rows"] >= 0.9 > data["inside_longest"] / data["rows"]
    if not EXHAUSTIVE:
        return
    stored = json.loads((ROOT / "bench" / "results" / "accuracy.json").read_text("utf-8"))["published"]
    assert stored == json.loads(json.dumps(data)), "make bench-accuracy ARGS=--published"
    assert section.strip() in (ROOT / "bench" / "results" / "accuracy.md").read_text("utf-8")


def test_peaks_that_other_projects_publish_lie_in_the_range() -> None:
    """DistilBERT's without ``--exhaustive``. Of 23, FSDP of six long rows of LoRA alone took more."""
    lines = training_peaks.PEAKS.read_text("utf-8").splitlines()
    found = list(training_peaks.compared(CATALOG, lines if EXHAUSTIVE else lines[-5:]))
    assert [each for each in found if not each.inside and each.row["run"]["batch"] != 6] == []
    assert not EXHAUSTIVE or sum(abs(each.off) < 0.1 for each in found) >= 20


def test_a_run_that_ran_out_is_kept_with_the_cards_memory(tmp_path: Path) -> None:
    row = published(tmp_path, measured_peak_mib=None, bound=">gpu")
    assert isinstance(row, Row)
    assert (row.ran_out, row.memory_bytes) == (True, CATALOG.gpus["a100-40gb"].memory_total)
    laptop = published(tmp_path, measured_peak_mib=None, bound="OOM", gpu="RTX3080Ti-16GB (laptop)")
    assert isinstance(laptop, Row)
    assert (laptop.gpu, laptop.memory_bytes) == (None, 16 * 2**30)


def test_the_notes_formula_answers_for_full_training_alone() -> None:
    rows = [row for row in stored_traces() if row.campaign in ("training", "generation")]
    formula = load_guide()["formulas"]["guide-gpu-memory"]
    answers = ask(rows, formula, None).answers
    told = {row.id for row in rows if "the notes' formula" in answers[row.id]}
    assert told == {row.id for row in rows if row.phase == "train" and row.setup.method == "full"}


def test_the_rows_of_a_model_are_always_the_same_and_cover_methods_and_precisions() -> None:
    config = {"model_type": "t5", "d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 2,
              "vocab_size": 1000}  # fmt: skip
    rows = list(setups_of("t5-small", "t5", 28, config))
    assert rows == list(setups_of("t5-small", "t5", 28, config)) != list(setups_of("other", "t5", 28, config))
    assert len({json.dumps(row, sort_keys=True) for row in rows}) == 28
    assert {row.get("method", "full") for row in rows} == {"full", "lora", "qlora"}
    assert len(MODELS) == 4


def drawn(rows: Iterable[Row], one_of: int) -> Iterator[Row]:
    """One of so many rows of each campaign, method and phase, the first of each; with --exhaustive all."""
    met: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        kind = row.campaign, row.setup.method, row.phase
        if EXHAUSTIVE or met[kind] % one_of == 0:
            yield row
        met[kind] += 1


WORST = {"train": 0.05, "evaluate": 0.05, "generate": 0.04}


@pytest.mark.exhaustive
def test_rough_answers_stay_near_the_grid_for_every_family_and_method() -> None:
    """Phase by phase, within the bands that reports state."""
    errors: dict[tuple[str, str], list[float]] = {}
    for row in drawn(stored_traces(), 3):
        if row.campaign.startswith("grid_") and row.phase in WORST:
            assert is_known(row.config), row.model
            error = rough_bytes(row) / row.truth["allocated"] - 1
            errors.setdefault((row.phase, f"{row.campaign} {row.setup.method}"), []).append(error)
    assert {group for phase, group in errors if phase == "train"} >= {
        f"grid_{family} {method}" for family in ("t5", "bart", "decoder") for method in ("full", "lora", "qlora")
    }
    for (phase, group), found in errors.items():
        worst = max(found, key=abs)
        assert abs(worst) <= min(WORST[phase], CATALOG.constants[f"band_{phase}"]), f"{group} {phase}: {worst:+.2%}"
        assert mean(map(abs, found)) <= 0.02, f"{group} {phase}"


@pytest.mark.exhaustive
def test_no_trace_is_said_to_fit_where_its_tensors_would_not() -> None:
    """On a card with a byte less than the trace allocated, which nothing could have run on."""
    for row in drawn(stored_traces(), 12):
        if row.phase == "train":
            report = predict(
                row.setup,
                architecture_from_config(row.config),
                constants=CATALOG.constants,
                compute_capability=TRACED_ON,
                gpu_memory_bytes=row.truth["allocated"] - 1,
            )
            assert report.verdict.status in ("oom", "likely_oom", "tight"), row.id


def test_at_least_400_traces_are_stored() -> None:
    assert len(stored_traces()) >= 400


def rough_bytes(row: Row) -> int:
    architecture = architecture_from_config(row.config)
    report = predict(row.setup, architecture, constants=CATALOG.constants, compute_capability=TRACED_ON, rough=True)
    phase = report.phase(row.phase)
    assert phase is not None
    return phase.peak_allocated_bytes


@pytest.mark.exhaustive
def test_the_page_and_the_bench_say_the_same_of_a_measured_run() -> None:
    campaign = load_guide()["measurements"]["fitcheck-t4-ladder"]
    shown = list(measured_runs(campaign, CATALOG))
    rows = [row for row in measured(CATALOG) if row.id.startswith("fitcheck-t4-ladder-") and row.phase == "train"]
    assert len(shown) == len(rows) > 3 and {row.setup.keeps_outputs for row in rows} == {"step"}
    found, _ = _predicted(rows, CATALOG, [])
    for run, row in zip(shown, rows, strict=True):
        told = found[row.id][KB]
        assert (run.predicted_allocated_bytes, run.predicted_process_bytes) == (told["allocated"], told["process"])


class Sent:
    """A pool of processes that runs nothing, and gets what a process would get: by pickle."""

    def __init__(self, *_: object, **__: object) -> None:
        self.sent: list[object] = []

    def __enter__(self) -> "Sent":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def submit(self, *task: object) -> "Sent":
        self.sent.append(pickle.loads(pickle.dumps(task)))
        return self

    def result(self) -> dict[str, dict[str, int]]:
        return {"train": {"allocated": len(self.sent)}}


@pytest.mark.exhaustive
def test_a_run_of_level_1_can_be_sent_to_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy_simulated, "ProcessPoolExecutor", Sent)
    rows = [row for row in measured(CATALOG) if row.phase == "train"][:2]
    answers = accuracy_simulated.level_1(rows, CATALOG.constants, tmp_path / "known.json")
    assert answers == {row.id: {"allocated": number} for number, row in enumerate(rows, 1)}


def test_what_was_measured_of_lora_is_reserved_to_a_hundredth() -> None:
    """The step of the script that measured is followed, with the outputs that it keeps to its end."""
    rows = [row for row in measured(CATALOG) if row.campaign.endswith(" lora") and "reserved" in row.truth]
    assert len(rows) > 20
    rows = rows if EXHAUSTIVE else rows[::5]
    found, _ = _predicted(rows, CATALOG, [])
    for row in rows:
        assert found[row.id][KB]["reserved"] == pytest.approx(row.truth["reserved"], rel=0.01), row.id
