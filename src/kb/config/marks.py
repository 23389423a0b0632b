"""What a file's first bytes show of whether it describes a run: for files that were come upon in a folder."""

import os
import re
from functools import lru_cache
from itertools import islice

from kb.config.files import CODE_SUFFIXES, TABLES, is_dockerfile, most_bytes, read_at_most

# Texts of patterns, which `re` compiles when a file of such a kind is met, and keeps.
# The calls that describe one: `layout: python` in rules/dialects. Where none is named the file is not parsed.
_MARKS = (
    rb"(?:TrainingArguments|SFTConfig|DPOConfig|GRPOConfig|RewardConfig|KTOConfig|ORPOConfig|CPOConfig|PPOConfig"
    rb"|RLOOConfig|GKDConfig|XPOConfig|NashMDConfig|BCOConfig|PRMConfig|DictDefault|LoraConfig|BitsAndBytesConfig"
    rb"|Fast\w*Model\.from_pretrained)[ \t]*\("
)
# Imports of names that a library no longer has (rules/tables/imports.yaml); a notebook's lines stand in quotes.
_IMPORT = (
    rb"(?m)^(?:[ \t]*\")?from[ \t]+"
    rb"(?:(transformers\.(?:deepspeed|modeling_attn_mask_utils))|(?:transformers|trl|peft|datasets)(?:\.\w+)*)"
    rb"[ \t]+import\b[ \t]*(\(?)"
)
_GONE = (
    rb"\b(?:AdamW|is_torch_tpu_available|load_metric|prepare_model_for_int8_training|DataCollatorForCompletionOnlyLM"
    rb"|(?:PPO|ORPO|CPO)(?:Config|Trainer)|AutoModelFor(?:Causal|Seq2Seq)LMWithValueHead)\b"
)
# Calls of trainers (rules/tables/trl-arguments.yaml), and what is given to most that some release no longer takes.
_FROM = rb"(?m)^[ \t]*(?:from|import)[ \t]+\.*(\w+(?:\.\w+)*)"  # the module that an import names
_TRAINER = rb"Trainer[ \t]*\("
_NO_LONGER_GIVEN = rb"\b(?:tokenizer|max_seq_length|dataset_text_field|beta|max_prompt_length)[ \t]*="
_MOST_OF_CALL, _MOST_CALLS = 2000, 50
_MOST_OF_LINE, _MOST_IN_BRACKETS = 1000, 4000  # bytes behind an import in which its names are looked for
# Names at the top of configs that are Python, of XTuner's: 0.x and 1.x.
_ASSIGNED = r"(?m)^(?:optim_wrapper|train_cfg)[ \t]*=[ \t]*dict\(|^\w+[ \t]*=[ \t]*\w*TrainerConfig\("
# Of vLLM and of Ray Serve; other packages have classes of those names too.
_SERVER = rb"(?<!\w)(?:LLM|AsyncEngineArgs|LLMConfig)[ \t]*\("
_OF_LOOP = (b".backward(", b".from_pretrained(", b"transformers")  # of a training loop of a program's own
_SERVED = rb"vllm|sglang|text-generation-|llama-server|llama\.cpp:"
_RUNS_COMMANDS = rb"\bsubprocess\b|\bos\.(?:system|popen|exec[a-z]+)\b|\bmodal\b|\bcontainers\.run\b"
_STARTED = rb"(?mi)^[ \t]*(?:CMD|ENTRYPOINT)[ \t]"  # of a Dockerfile
_TESTS, _TESTED = r"test_.*\.py|.*_tests?\.py|conftest\.py", rb"(?m)^[ \t]*(?:async )?def test_|@pytest\.fixture"
_OF_A_RUN = rb"(?m)^[ \t]*\[[ \t]*(?:training|train|parallelism|trainer|training_args)[ \t]*\]"
_LAUNCH = rb"(?:accelerate launch|torchrun|deepspeed|python3?)[^\n]{0,400}--\w"
# What lies beside a checkpoint, by its usual names: no config, and often too large to be read as one.
OF_CHECKPOINTS = frozenset((
    "vocab.json", "tokenizer.json", "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json",
    "trainer_state.json", "model.safetensors.index.json", "pytorch_model.bin.index.json",
))  # fmt: skip
# Every argument of a run, as ms-swift writes them beside its checkpoints: most are null, and nobody wrote any.
_RECORDS = frozenset(("args.json", "sft_args.json"))
_NULLS_OF_A_RECORD = 30


def bears_marks(raw: bytes) -> bool:
    """Whether the bytes name a call that describes a run, or import a name that a library no longer has."""
    return describes_run(raw) or (b"import" in raw and (_imports_gone(raw) or _gives_gone(raw)))


def describes_run(raw: bytes) -> bool:
    """Whether the bytes name a call that describes a run."""
    serves = b"vllm" in raw or b"ray.serve" in raw
    if re.search(_MARKS, raw) is not None or (serves and re.search(_SERVER, raw) is not None):
        return True
    return all(sign in raw for sign in _OF_LOOP)


def _imports_gone(raw: bytes) -> bool:
    """Whether the bytes import such a name: each byte is gone through a set number of times, whatever they are."""
    places: list[int] | None = None
    at = 0  # the first place of a name behind the import
    for found in re.finditer(_IMPORT, raw):
        if found[1]:
            return True
        places = [name.start() for name in re.finditer(_GONE, raw)] if places is None else places
        start, ends = found.end(), (b")",) if found[2] else (b"\n", b"(", b"#")
        while at < len(places) and places[at] < start:
            at += 1
        if at == len(places):
            return False
        near = places[at] - start <= (_MOST_IN_BRACKETS if found[2] else _MOST_OF_LINE)
        if near and all(raw.find(end, start, places[at]) < 0 for end in ends):
            return True
    return False


def _gives_gone(raw: bytes) -> bool:
    """Whether the bytes call a trainer with such an argument near; looked for once behind each of few calls."""
    if b"trl" not in raw and b"transformers" not in raw:
        return False
    calls = [found.end() for found in islice(re.finditer(_TRAINER, raw), _MOST_CALLS)]
    given = re.compile(_NO_LONGER_GIVEN)
    return any(given.search(raw, start, start + _MOST_OF_CALL) for start in calls)


def is_assigned(text: str) -> bool:
    """Whether a Python text may be a config, whose names at the top are its settings."""
    return "xtuner" in text and re.search(_ASSIGNED, text) is not None


def starts_runs(raw: bytes) -> bool:
    """Whether the bytes of a notebook hold a command line that starts a Python run with flags."""
    return re.search(_LAUNCH, raw) is not None


def starts_server(raw: bytes) -> bool:
    """Whether the bytes of a Python file name an inference server, and a call that runs commands."""
    return re.search(_SERVED, raw) is not None and re.search(_RUNS_COMMANDS, raw) is not None


def names_of_calls(raw: bytes) -> tuple[str, ...]:
    """The names of those calls, each once."""
    found = (match[0].rstrip(b" \t(").decode("ascii", "replace") for match in re.finditer(_MARKS, raw))
    return tuple(dict.fromkeys(found))


def is_worth_reading(path: str) -> bool:
    """Of Python files and notebooks those that name a call which describes a run and are no tests, of TOML those that
    have a table of one: most of a tree's do not; of Dockerfiles those that may start a server. Of JSON all but a
    tokenizer's, a checkpoint's own and the record of a run's arguments.
    """
    name = os.path.basename(path).lower()
    if name in OF_CHECKPOINTS:
        return False
    image = is_dockerfile(name)
    if not image and not name.endswith((*CODE_SUFFIXES, TABLES)) and name not in _RECORDS:
        return True
    try:
        raw = read_at_most(path, most_bytes(name) + 1)
    except OSError:
        return True  # that it cannot be read is said when it is checked
    if name in _RECORDS:
        return raw.count(b": null") < _NULLS_OF_A_RECORD
    if image:
        return re.search(_SERVED, raw) is not None and re.search(_STARTED, raw) is not None
    if name.endswith(TABLES):
        return re.search(_OF_A_RUN, raw) is not None
    if b"xtuner" in raw and is_assigned(raw.decode("utf-8", "replace")):
        return True
    if re.fullmatch(_TESTS, name) is not None and re.search(_TESTED, raw) is not None:
        return False  # what a test sets up is nobody's run
    if bears_marks(raw) or starts_server(raw):
        return True
    return starts_runs(raw) if name.endswith(".ipynb") else b"__main__" in raw and _leads_to_run(path, raw, 2)


def _leads_to_run(path: str, raw: bytes, steps: int) -> bool:
    """Whether a module that a Python file imports, beside it or in one of two folders above, sets up a run."""
    beside = os.path.dirname(os.path.abspath(path))
    above = os.path.dirname(beside)
    for found in islice(re.finditer(_FROM, raw), _MOST_CALLS):
        below = found[1].decode("ascii", "replace").split(".")
        places = (os.path.join(folder, *below) for folder in (beside, above, os.path.dirname(above)))
        files = (each for place in places for each in (f"{place}.py", os.path.join(place, "__init__.py")))
        module = next(filter(os.path.isfile, files), None)
        if module is not None and _sets_up_run(module, os.stat(module).st_mtime_ns, steps):
            return True
    return False


@lru_cache(1 << 12)
def _sets_up_run(module: str, changed: int, steps: int) -> bool:
    """Whether a module, as it is since it was changed, does, or in one step less leads to one that does."""
    text = read_at_most(module, most_bytes(module)) or b""
    return re.search(_MARKS, text) is not None or (steps > 1 and _leads_to_run(module, text, steps - 1))
