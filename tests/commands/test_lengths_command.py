"""`kb lengths`: samples of a data set in tokens, from files as people have them, by real runs of the command."""

import csv
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import warm_runs
from kb.advice.data_lengths import spread_of
from output_schemas import answers_to

ROOT = Path(__file__).parents[2]
ENVIRON = {**warm_runs.ENVIRON, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])}
WITHOUT = (
    "import sys, runpy; sys.modules[{0!r}] = None; sys.argv[0] = 'kb';"
    "runpy.run_module('kb.lengths', run_name='__main__')"
)

ROWS = [{"text": "word " * count} for count in range(1, 101)]


def lengths(folder: Path, *arguments: object, code: int = 0, without: str = "") -> tuple[str, str]:
    if without:
        command = [sys.executable, "-c", WITHOUT.format(without), *map(str, arguments)]
        run = subprocess.run(command, capture_output=True, text=True, env=ENVIRON, cwd=folder, timeout=120, check=False)
    else:
        run = warm_runs.run_text("kb.lengths", *arguments, cwd=folder)
    assert "Traceback" not in run.stderr
    assert run.returncode == code, run.stderr
    return " ".join(run.stdout.split()), " ".join(run.stderr.split())


def measured(folder: Path, *arguments: object) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(lengths(folder, *arguments, "--format", "json")[0])
    answers_to("lengths", data)
    return data


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines.encode()))
    elif path.suffix in (".csv", ".tsv"):
        with path.open("w", encoding="utf-8-sig", newline="") as stream:
            table = csv.DictWriter(stream, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            table.writeheader()
            table.writerows(rows)
    else:
        path.write_text(json.dumps(rows, indent=1) if path.suffix == ".json" else lines, "utf-8")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.jsonl.gz"])
def test_every_kind_of_text_gives_the_same_lengths(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, ROWS)
    data = measured(tmp_path, name, "--tokens-per-word", 1)
    (part,) = data["parts"]
    assert (data["rows"], data["rows_read"], part["columns"]) == (100, 100, ["text"])
    assert (part["mean"], part["median"], part["p90"], part["p95"], part["p99"], part["longest"]) == (
        50.5, 50, 90, 95, 99, 100,
    )  # fmt: skip
    assert part["cuts"][0] == {"max_length": 64, "samples_cut": 0.36, "tokens_cut": round(sum(range(37)) / 5050, 6)}
    assert part["advised"] == {"max_length": 128, "samples_cut": 0, "tokens_cut": 0}


def test_parquet_and_a_saved_data_set_are_read_where_pyarrow_is(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"input_ids": [list(range(count)) for count in range(1, 101)]})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=30)
    for split in ("train", "test"):
        (tmp_path / "saved" / split).mkdir(parents=True)
        with pyarrow.ipc.new_stream(str(tmp_path / "saved" / split / "data-00000-of-00001.arrow"), table.schema) as out:
            out.write_table(table, max_chunksize=30)
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
        (tmp_path / "saved" / split / "state.json").write_text(json.dumps(state), "utf-8")
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}', "utf-8")
    for name in ("a.parquet", "saved", "saved/test"):
        data = measured(tmp_path, name)
        assert (data["counted"]["by"], data["rows"]) == ("tokens", 100)
        assert (data["parts"][0]["median"], data["parts"][0]["longest"]) == (50, 100)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 is how they begin")
    assert "bad.parquet cannot be read" in lengths(tmp_path, "bad.parquet", code=2)[1]


@pytest.mark.parametrize(("language", "sentence"), [("en", "needs the Python package"), ("ko", "설치가 필요합니다")])
def test_a_missing_library_is_said_with_what_to_install(tmp_path: Path, language: str, sentence: str) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    (tmp_path / "tokenizer.json").write_text("{}", "utf-8")
    write(tmp_path / "a.jsonl", ROWS)
    said = lengths(tmp_path, "a.parquet", "--lang", language, code=2, without="pyarrow")[1]
    assert sentence in said and "pip install pyarrow" in said
    said = lengths(tmp_path, "a.jsonl", "--tokenizer", ".", "--lang", language, code=2, without="tokenizers")[1]
    assert sentence in said and "pip install tokenizers" in said


def test_a_tokenizer_counts_whole_texts_with_its_special_tokens(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"word": 0, "<s>": 1, "?": 2}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made.enable_truncation(16)
    made.enable_padding(length=16)
    made.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path / "a.jsonl", ROWS)
    data = measured(tmp_path, "a.jsonl", "--tokenizer", tmp_path)
    assert (data["counted"]["by"], data["counted"]["assumed"]) == ("tokenizer", False)
    assert (data["parts"][0]["median"], data["parts"][0]["longest"]) == (51, 101)
    (tmp_path / "tokenizer.json").write_text("{}", "utf-8")
    assert "tokenizer.json cannot be read" in lengths(tmp_path, "a.jsonl", "--tokenizer", ".", code=2)[1]
    (tmp_path / "empty").mkdir()
    assert "save_pretrained" in lengths(tmp_path, "a.jsonl", "--tokenizer", "empty", code=2)[1]


CHAT = [{"role": "user", "content": "one two"}, {"role": "assistant", "content": [{"type": "text", "text": "three"}]}]


@pytest.mark.parametrize(
    ("row", "inputs", "targets", "tokens"),
    [
        ({"id": 7, "messages": CHAT}, ["messages"], [], 3),
        ({"conversations": [{"from": "human", "value": "one two"}]}, ["conversations"], [], 2),
        ({"prompt": "one", "completion": "two three"}, ["prompt", "completion"], [], 3),
        ({"instruction": "one", "input": None, "output": "two"}, ["instruction", "input", "output"], [], 2),
        ({"document": "one two three", "summary": "one"}, ["document"], ["summary"], 3),
        ({"text": "not this", "input_ids": [5, 6, 7, 8]}, ["input_ids"], [], 4),
    ],
)
def test_columns_are_guessed_by_their_usual_names(
    tmp_path: Path, row: dict[str, Any], inputs: list[str], targets: list[str], tokens: int
) -> None:
    write(tmp_path / "a.jsonl", [row])
    data = measured(tmp_path, "a.jsonl", "--tokens-per-word", 1)
    assert data["columns_guessed"]
    assert [part["columns"] for part in data["parts"]] == [inputs, targets][: len(data["parts"])]
    assert len(data["parts"]) == (2 if targets else 1)
    assert data["parts"][0]["longest"] == tokens


def test_named_columns_count_together_and_a_target_apart(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", [{"q": "one two", "hint": "three", "a": "four"}])
    named = ("--column", "q", "--column", "hint", "--target", "a", "--tokens-per-word", 1)
    assert [part["longest"] for part in measured(tmp_path, "a.csv", *named)["parts"]] == [3, 1]
    assert "--column" in lengths(tmp_path, "a.csv", "--target", "a", code=2)[1]


def test_the_factor_is_said_to_be_assumed_and_of_english(tmp_path: Path) -> None:
    write(tmp_path / "en.jsonl", ROWS)
    write(tmp_path / "ko.jsonl", [{"text": "오늘은 날씨가 좋습니다"}] * 3)
    said = lengths(tmp_path, "en.jsonl", "--lang", "en")[0]
    assert "words × 1.33" in said and "assumed" in said and "not Latin" not in said
    assert "not Latin" in lengths(tmp_path, "ko.jsonl", "--lang", "en")[0]
    assert "로마자가 아니고" in lengths(tmp_path, "ko.jsonl", "--lang", "ko")[0]
    own = lengths(tmp_path, "ko.jsonl", "--lang", "ko", "--tokens-per-word", 2)[0]
    assert "어림값" not in own and "로마자" not in own


@pytest.mark.parametrize(("language", "words"), [("en", ("median", "is padding")), ("ko", ("중앙값", "패딩의 몫"))])
def test_what_is_cut_and_padded_is_said_in_both_languages(
    tmp_path: Path, language: str, words: tuple[str, str]
) -> None:
    write(tmp_path / "a.jsonl", ROWS)
    said = lengths(tmp_path, "a.jsonl", "--lang", language, "--tokens-per-word", 1)[0]
    assert all(word in said for word in words)
    assert "36.0%" in said and "train_sampling_strategy: group_by_length" in said and "[lengths]" in said
    write(tmp_path / "same.jsonl", ROWS[-1:] * 20)
    said = lengths(tmp_path, "same.jsonl", "--lang", language)[0]
    assert "0.0%" in said and "group_by_length: true" not in said


def test_padding_is_that_of_batches_drawn_from_the_lengths() -> None:
    assert spread_of([10, 10, 10], 8).padding == 0
    assert spread_of([1, 3], 2).padding == pytest.approx(1 - 2 / 2.5)  # (1,1), (1,3), (3,1), (3,3): longest 2.5
    assert spread_of([1, 3], 1).padding == pytest.approx(0)


def test_a_large_file_is_sampled_evenly_in_bounded_memory(tmp_path: Path) -> None:
    text = "word " * 400
    for name, rows in (("small", 100), ("large", 20_000)):
        with (tmp_path / f"{name}.json").open("w", encoding="utf-8") as stream:
            stream.write("[" + ",".join(json.dumps({"text": f"{number} {text}"}) for number in range(rows)) + "]")
    script = "import resource, sys; from kb.lengths import main; main(sys.argv[1:])"
    script += "; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    taken = {}
    for name in ("small", "large"):
        command = [sys.executable, "-c", script, f"{name}.json", "--sample-rows", "1000", "--lang", "en"]
        run = subprocess.run(
            command, capture_output=True, text=True, env=ENVIRON, cwd=tmp_path, timeout=120, check=True
        )
        taken[name] = int(run.stderr)
    assert "20,000 samples, 625 of them read, evenly spaced" in " ".join(run.stdout.split())
    assert taken["large"] - taken["small"] < 20 * 1024, "KiB more for 40 MB of data"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.jsonl", "", ("has no rows", "행이 없습니다")),
        ("none.json", "[]", ("has no rows", "행이 없습니다")),
        ("none.csv", "text\n", ("has no rows", "행이 없습니다")),
        ("empty.jsonl", '{"text": ""}\n', ("nothing is written in text", "text 열이 비어")),
        ("line.jsonl", '{"text": "a"}\n{"text": \n', ("line.jsonl:2: this row", "line.jsonl:2: 이 행")),
        ("item.json", '[{"text": "a"},\n {"text" "b"}]', ("item.json:2: this row", "item.json:2: 이 행")),
        ("short.json", '[{"text": "a"},\n', ("short.json:2: this row", "short.json:2: 이 행")),
        ("few.csv", "text,label\na,1\nb\n", ("few.csv:3: 1 values", "few.csv:3: 값이 1개")),
        ("list.jsonl", "[1]\n[2]\n", ("list.jsonl:1: a row is an object", "list.jsonl:1: 행은")),
        ("odd.jsonl", '{"x": "a"}\n', ("--column", "--column")),
        (
            "later.jsonl",
            '{"text": "a"}\n{"txt": "b"}\n',
            ("later.jsonl:2: this row has none", "later.jsonl:2: 이 행에는"),
        ),
        ("number.jsonl", '{"text": 5}\n', ("number.jsonl:1: the column text", "number.jsonl:1: text 열")),
        ("a.bin", "\x00\x01", ("no JSON lines", "JSON Lines도")),
    ],
)
def test_what_cannot_be_used_is_said_with_its_place(
    tmp_path: Path, name: str, content: str, said: tuple[str, str]
) -> None:
    (tmp_path / name).write_text(content, "utf-8")
    assert said[0] in lengths(tmp_path, name, "--lang", "en", code=2)[1]
    assert said[1] in lengths(tmp_path, name, "--lang", "ko", code=2)[1]


def test_a_column_folder_or_file_that_is_not_there(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", ROWS)
    assert "did you mean text?" in lengths(tmp_path, "a.jsonl", "--column", "txet", "--lang", "en", code=2)[1]
    assert "text 열을 뜻했습니까" in lengths(tmp_path, "a.jsonl", "--column", "txet", "--lang", "ko", code=2)[1]
    assert "It holds: a.jsonl" in lengths(tmp_path, ".", "--lang", "en", code=2)[1]
    assert "안에 있는 것: a.jsonl" in lengths(tmp_path, ".", "--lang", "ko", code=2)[1]
    assert "cannot be read" in lengths(tmp_path, "b.jsonl", "--lang", "en", code=2)[1]
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n' * 999)[:-20])
    assert "cannot be read" in lengths(tmp_path, "cut.jsonl.gz", "--lang", "en", code=2)[1]
