"""Training loops of a program's own: what is read of them, and what is left alone."""

from pathlib import Path

import pytest

from catalog_sample import load_catalog
from kb.config.python.held import NoSources
from kb.config.python.places import Imported
from kb.config.python.reader import PythonReader
from kb.core.document import Unit
from kb.core.expression import is_unknown
from warm_runs import run_text

READER = PythonReader(load_catalog().dialects, load_catalog().facts)
BATCH, STEPS = "training.per_device_train_batch_size", "training.gradient_accumulation_steps"

HEAD = """
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("openai-community/gpt2")
model.to("cuda")
loader = DataLoader(rows, batch_size=8, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
max_length = 256
"""
PASS = """
for epoch in range(3):
    for batch in loader:
        outputs = model(**batch)
        loss = outputs.loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def read(text: str) -> list[Unit]:
    return READER.read(text, "train.py")


def said(text: str) -> dict[str, object]:
    """What the one run of a program says; None of what cannot be told."""
    (unit,) = read(text)
    assert unit.dialect == "loop"
    hidden = dict.fromkeys(unit.hidden)
    return hidden | {name: None if is_unknown(each.value) else each.value for name, each in unit.settings.items()}


def test_a_loop_says_its_model_batch_length_and_optimizer() -> None:
    found = said(HEAD + PASS)
    assert found["model.name"] == "openai-community/gpt2"
    assert (found[BATCH], found["data.max_source_length"], found["training.optim"]) == (8, 256, "adamw_torch")
    assert (found["run.keeps_outputs"], found["run.outputs_widened"]) == ("loop", False)
    assert found["training.learning_rate"] == 5e-5
    assert "run.gradients_kept" not in found and STEPS not in found


@pytest.mark.parametrize(
    ("old", "new", "name", "value"),
    [
        ("outputs = model(**batch)\n        loss = outputs.loss", "loss = model(**batch)[0]",
         "run.keeps_outputs", "no"),
        ("outputs = model(**batch)\n        loss = outputs.loss", "loss, logits = model(**batch)[:2]",
         "run.keeps_outputs", "loop"),
        ("loss = outputs.loss", "loss = outputs.loss / 4", BATCH, 8),
        ("        optimizer.step()", "        if (step + 1) % 4 == 0:\n            optimizer.step()", STEPS, 4),
        ("        optimizer.step()", "        if step % every == 0:\n            optimizer.step()", STEPS, None),
        ("        optimizer.step()", "        if ready(step):\n            optimizer.step()", STEPS, None),
        ("loss.backward()\n        optimizer.step()\n        optimizer.zero_grad()",
         "optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()", "run.gradients_kept", "late"),
        ("\n        optimizer.zero_grad()", "", "run.gradients_kept", "never"),
        ("zero_grad()", "zero_grad(set_to_none=False)", "run.gradients_kept", "kept"),
        ("in loader:", "in tqdm(enumerate(loader)):", BATCH, 8),
        ("in loader:", "in itertools.islice(loader, 100):", BATCH, 8),
        ("for batch in loader:", "for at in range(0, len(rows), 16):\n        batch = collate(rows[at : at + 16])",
         BATCH, 16),
        ("for batch in loader:", "for at in range(0, ids.size(1), 512):\n        batch = ids[:, at : at + 512]",
         BATCH, None),
        ("for batch in loader:", "for batch in batches(rows):", BATCH, None),
        ("        outputs = model(**batch)", "        with torch.autocast('cuda', dtype=torch.bfloat16):\n            "
         "outputs = model(**batch)", "training.bf16", True),
        ("        outputs = model(**batch)", "        with torch.cuda.amp.autocast():\n            "
         "outputs = model(**batch)", "training.fp16", True),
        ("        outputs = model(**batch)", "        with torch.cuda.amp.autocast(enabled=False):\n            "
         "outputs = model(**batch)", "training.fp16", False),
        ("        outputs = model(**batch)", "        with torch.autocast('cuda', enabled=args.amp):\n            "
         "outputs = model(**batch)", "training.fp16", None),
        ("        outputs = model(**batch)", "        with context:\n            outputs = model(**batch)",
         "training.bf16", None),
    ],
)  # fmt: skip
def test_of_the_pass_is_read_what_changes_memory(old: str, new: str, name: str, value: object) -> None:
    assert PASS.count(old) == 1
    found = said(HEAD + PASS.replace(old, new))
    assert name in found
    assert found[name] == value


@pytest.mark.parametrize(
    ("made", "optim"),
    [
        ("from transformers import AdamW\noptimizer = AdamW(model.parameters())", "adamw_hf"),
        ("from torch.optim import Adam\noptimizer = Adam(model.parameters())", "adamw_torch"),
        ("import bitsandbytes as bnb\noptimizer = bnb.optim.AdamW8bit(model.parameters())", "adamw_bnb_8bit"),
        ("optimizer = torch.optim.AdamW(model.parameters(), fused=True)", "adamw_torch_fused"),
        ("optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)", "SGD with momentum"),
        ("optimizer = torch.optim.AdamW(model.lm_head.parameters())", None),
        ("optimizer = make(model)", None),
        ("optimizer = torch.optim.AdamW([{'params': model.lm_head.parameters()}])", None),
        ("some = [p for n, p in model.named_parameters() if 'head' in n]\noptimizer = torch.optim.AdamW(some)", None),
        (
            "some = [p for p in model.parameters() if p.requires_grad]\noptimizer = torch.optim.AdamW(some)",
            "adamw_torch",
        ),
    ],
)
def test_an_optimizer_goes_by_the_trainers_name_or_by_its_own(made: str, optim: str | None) -> None:
    head = HEAD.replace("optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)", made)
    assert said(head + PASS)["training.optim"] == optim


def test_accelerate_says_precision_and_accumulation() -> None:
    text = HEAD + (
        "from accelerate import Accelerator\n"
        "accelerator = Accelerator(mixed_precision='bf16', gradient_accumulation_steps=4)\n"
        "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n"
    ) + PASS.replace("loss.backward()", "accelerator.backward(loss)")  # fmt: skip
    found = said(text)
    assert (found["training.bf16"], found["training.fp16"], found[STEPS], found[BATCH]) == (True, False, 1, 8)
    counted = text.replace("        outputs", "        with accelerator.accumulate(model): pass\n        outputs")
    step = "        optimizer.step()"
    asked = f"        if i % accelerator.gradient_accumulation_steps == 0:\n    {step}"
    assert said(text.replace(step, asked))[STEPS] == 4
    assert said(counted)[STEPS] == 4  # told alone, Accelerate divides the loss and updates in each pass
    assert "run.outputs_widened" not in found  # as under the Trainer
    plain = said(text.replace("accelerator.backward(loss)", "loss.backward()"))
    assert plain["training.bf16"] is True  # a model that it prepares runs under its autocast all the same
    by_launcher = said(text.replace("mixed_precision='bf16', ", ""))
    assert (by_launcher["training.bf16"], by_launcher["training.fp16"]) == (None, None)
    apart = said(
        text.replace(
            "model, optimizer, loader = accelerator.prepare(model, ", "optimizer, loader = accelerator.prepare("
        )
    )
    assert (apart["training.bf16"], apart["run.outputs_widened"]) == (False, False)  # its model is not wrapped


def test_functions_methods_and_casts_are_followed() -> None:
    functions = """
def load(name):
    model = AutoModelForCausalLM.from_pretrained(name)
    tokenizer = AutoTokenizer.from_pretrained(name)
    return model, tokenizer

def train_epoch(net, data, opt):
    for batch in data:
        loss = net(**batch).loss
        loss.backward()
        opt.step()
        opt.zero_grad()

model, tokenizer = load("openai-community/gpt2")
model = model.to(torch.bfloat16).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(3):
    train_epoch(model, DataLoader(rows, batch_size=4), optimizer)
"""
    found = said(HEAD.split("model =")[0] + "MAX_LEN = 64\n" + functions)
    assert (found["model.torch_dtype"], found["training.optim"], found[BATCH]) == ("bfloat16", "adamw_torch", 4)
    methods = """
class Fit:
    def __init__(self, rows):
        self.model = AutoModelForCausalLM.from_pretrained("openai-community/gpt2")
        if many:
            self.model = torch.nn.DataParallel(self.model)
        self.loader = DataLoader(rows, batch_size=2)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self, batch):
        outputs = self.model(**batch)
        outputs.loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def fit(self):
        for batch in self.loader:
            self.step(batch)
"""
    found = said(HEAD.split("model =")[0] + "MAX_LEN = 64\n" + methods)
    assert (found[BATCH], found["run.keeps_outputs"]) == (2, "step")
    copies = methods.replace(
        "        outputs = self", "        self.model = torch.nn.DataParallel(self.model)\n        outputs = self"
    )
    assert said(HEAD.split("model =")[0] + "MAX_LEN = 64\n" + copies)["run.not_modelled"] == "DataParallel"


@pytest.mark.parametrize(
    "text",
    [
        HEAD + PASS.replace("model(**batch)", "Net(model)(**batch)"),
        HEAD.replace("AutoModelForCausalLM.from_pretrained", "Net") + PASS,
        HEAD + PASS.replace("outputs.loss", "criterion(outputs.logits, batch['labels'])"),  # of a whole vocabulary
        HEAD + PASS.replace("outputs.loss", "outputs.loss + penalty(model)"),
        HEAD + PASS.replace("model(**batch)", "model(batch['input_ids'])"),  # no labels: it gives no loss
        HEAD + "loss = model(**rows).loss\nloss.backward()\n",  # no loop
    ],
)
def test_any_other_loss_is_left_alone(text: str) -> None:
    assert all(unit.dialect != "loop" for unit in read(text))


def test_a_classifiers_own_loss_takes_as_little_as_the_models() -> None:
    head = HEAD.replace("AutoModelForCausalLM.from_pretrained", "AutoModelForSequenceClassification.from_pretrained")
    assert said(head + PASS.replace("outputs.loss", "criterion(outputs.logits, batch['labels'])"))[BATCH] == 8


@pytest.mark.parametrize(
    "change", ["apply_lora(model)", "for p in model.transformer.parameters():\n    p.requires_grad = False"]
)
def test_what_trains_is_open_where_code_changes_it(change: str) -> None:
    assert said(HEAD + change + PASS)["lora.enabled"] is None


@pytest.mark.parametrize(
    ("lines", "length"),
    [
        ("data = Rows(path, max_len=64)", 64),
        ("data = ChatDataset(path, max_len=64)", 64),
        ("class Rows:\n    def __init__(self, path, max_len=128):\n        self.max_len = max_len", 128),
        ("class Rows:\n    def __init__(self, path, max_len=128):\n        self.max_len = max_len\nRows('a', 64)", 64),
        (
            "class Rows:\n    def __init__(self, path, max_len=128):\n        self.max_len = max_len\nclass Pairs:\n"
            "    def __init__(self, path, max_len):\n        self.max_len = max_len\nPairs('a', args.max_len)",
            None,
        ),
        ("parser.add_argument('--max_seq_length', type=int, default=96)", 96),
        ("options = {'max_length': 48}", 48),
        ("data = Rows(path, max_len=64)\nother = Rows(path, max_len=96)", None),
        ("text = model.generate(ids, max_length=50)", None),
        ("ids = tokenizer(rows, max_length=config.limit, truncation=True)", None),
    ],
)
def test_its_length_is_what_numbers_under_such_names_agree_on(lines: str, length: int | None) -> None:
    assert said(HEAD.replace("max_length = 256", lines) + PASS)["data.max_source_length"] == length


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("return {'input_ids': torch.cat([one['input_ids'], other['input_ids']])}", "collate"),
        ("return torch.cat([torch.stack(rows), other], dim=0)", "collate"),
        ("return torch.cat([one, other], dim=1)", None),
        ("return tokenizer([row['a'] for row in rows] + [row['b'] for row in rows])", "collate"),
        ("return [tokenizer([row['a'] for row in each] + [row['b'] for row in each]) for each in rows]", None),
        ("return torch.stack([torch.cat([row, pad]) for row in rows])", None),
        ("for row in rows:\n        row = torch.cat([row, end])", None),
        ("return torch.cat([one, one.new_full((8,), 0)])", None),
    ],
)
def test_a_collator_that_joins_two_batches_gives_more_rows_than_one(line: str, name: str | None) -> None:
    assert said(f"{HEAD}def collate(rows):\n    {line}\n{PASS}").get("run.not_modelled") == name


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ("for batch in test:\n    outputs = model(**batch)\n    total += outputs.loss\n", "total"),
        ("for batch in test:\n    loss = model(**batch).loss\n    losses.append(loss)\n", "losses"),
        ("def test():\n    for batch in held:\n        kept.append(model(**batch).logits)\ntest()\n", "kept"),
        ("for p in model.parameters():\n    p.requires_grad = False\nfor batch in test:\n"
         "    total += model(**batch).loss\n", None),
        ("for batch in test:\n    outputs = model(**batch)\n    total += outputs.loss.item()\n", None),
        ("for batch in test:\n    outputs = model(**batch)\n    total += outputs.loss.detach()\n", None),
        ("with torch.no_grad():\n    for batch in test:\n        total += model(**batch).loss\n", None),
        ("for batch in test:\n    with torch.inference_mode():\n        loss = model(**batch).loss\n"
         "    total += loss\n", None),
        ("@torch.no_grad()\ndef test():\n    for batch in held:\n        total += model(**batch).loss\n"
         "test()\n", None),
        ("def evaluate():\n    for batch in test:\n        total += model(**batch).loss\n"
         "with torch.no_grad():\n    evaluate()\n", None),
        ("for batch in test:\n    total += other(**batch).loss\n", None),
        ("for parts in test:\n    for part in parts:\n        total += model(**part).loss\n"
         "    total.backward()\n", None),
        ("for part in test:\n    total += model(**part).loss\ntotal.backward()\n", None),
        ("for batch in test:\n    total += model(**batch).loss\n    total = total.detach()\n", None),
        ("for batch in test:\n    kept = []\n    kept.append(model(**batch).logits)\n", None),
    ],
)  # fmt: skip
def test_evaluation_that_gathers_graphs_is_told(lines: str, name: str | None) -> None:
    assert said(HEAD + PASS + lines).get("run.graphs_summed") == name


def test_a_trainers_program_is_none(tmp_path: Path) -> None:
    own = "class Own(Trainer):\n    def training_step(self, model, inputs):\n        loss = model(**inputs).loss\n"
    text = HEAD + "from transformers import Trainer, TrainingArguments\n" + own + "        loss.backward()\n"
    text += "Own(model, TrainingArguments(per_device_train_batch_size=4)).train()\n"
    assert [unit.dialect for unit in read(text)] == ["hf"]


def test_its_report_names_the_batch_where_it_stands_and_no_argument_of_the_trainer(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(HEAD.replace("batch_size=8", "batch_size=512") + PASS)
    ended = run_text("kb.check", path.name, "--gpu", "rtx-3090", "--lang", "en", "--notes", cwd=tmp_path)
    assert ended.returncode == 0  # its length is inferred
    assert "train.py:8:38: warning training-peak-exceeds-gpu" in ended.stdout
    assert "TrainingArguments" not in ended.stdout
    text = path.read_text()
    run_text("kb.check", path.name, "--gpu", "rtx-3090", "--unsafe-fixes", cwd=tmp_path)  # adds nothing to backward()
    changed = [line for line in path.read_text().splitlines() if line not in text.splitlines()]
    assert changed in ([], ["loader = DataLoader(rows, batch_size=32, shuffle=True)"])


def test_a_command_is_read_by_its_program_though_kb_knows_none_of_its_flags(tmp_path: Path) -> None:
    flag = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--rows', type=int, default=8)\n"
    program = flag + "args = parser.parse_args()\n" + HEAD.replace("batch_size=8", "batch_size=args.rows") + PASS
    (tmp_path / "train.py").write_text(program)
    (tmp_path / "count.py").write_text("print(1)\n")
    script = tmp_path / "run.sh"
    script.write_text("python train.py --rows 4\n")
    ended = run_text("kb.check", script.name, "--gpu", "rtx-3090", "--lang", "en", cwd=tmp_path)
    assert "as train.py reads it" in ended.stdout and "effective batch 4 = 4 × 1" in ended.stdout
    for command, way in (("train.py", ": kb check train.py"), ("count.py", "was found."), ("gone.py", "was found.")):
        script.write_text(f"python {command}\n")
        ended = run_text("kb.check", script.name, "--gpu", "rtx-3090", "--lang", "en", cwd=tmp_path)
        assert ended.returncode == 2 and ended.stderr.strip().endswith(way)


def test_a_command_hands_a_loop_its_flags_and_its_precision(tmp_path: Path) -> None:
    program = """
import argparse
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

parser = argparse.ArgumentParser()
parser.add_argument("--model_name_or_path", default=None)
parser.add_argument("--per_device_train_batch_size", type=int, default=8)
parser.add_argument("--block_size", type=int, default=128)
args = parser.parse_args()
accelerator = Accelerator()
model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path)
loader = DataLoader(rows, batch_size=args.per_device_train_batch_size)
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    loss = model(**batch).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
"""
    (tmp_path / "clm.py").write_text(program)
    script = tmp_path / "run.sh"
    (tmp_path / "own.py").write_text(program.replace("per_device_train_batch_size", "batch_size"))
    script.write_text("python own.py --model_name_or_path openai-community/gpt2 --batch_size 4\n")
    ended = run_text("kb.check", script, "--gpu", "rtx-3090", "--lang", "en")
    assert "effective batch 4 = 4 × 1" in ended.stdout
    assert "inference" not in ended.stdout  # --batch_size is the training's, as the program has it
    flags = "clm.py --model_name_or_path openai-community/gpt2 --per_device_train_batch_size 4 --block_size 512\n"
    script.write_text(f"accelerate launch --num_processes 1 --mixed_precision bf16 {flags}")
    ended = run_text("kb.check", script, "--gpu", "rtx-3090", "--lang", "en")
    assert "effective batch 4 = 4 × 1" in ended.stdout and "No prediction" not in ended.stdout
    script.write_text(f"accelerate launch --num_processes 1 {flags}")
    assert "fp16, bf16 cannot be told" in " ".join(
        run_text("kb.check", script, "--lang", "en", "--gpu", "rtx-3090").stdout.split()
    )
    script.write_text(f"python {flags}")
    assert "No prediction" not in run_text("kb.check", script, "--gpu", "rtx-3090", "--lang", "en").stdout


UNDER = "if ready(step):\n    "  # a condition that only a run can tell


@pytest.mark.parametrize(
    ("lines", "name", "value"),
    [
        (UNDER + "model = model.half()\n", "model.torch_dtype", None),
        (UNDER + "model.half()\n", "model.torch_dtype", None),
        ("mixed = 'bf16'\nif mixed is None:\n    model = model.float()\n", "model.torch_dtype", "unsaid"),
        ("wide = torch.bfloat16\nmodel.to(wide)\n", "model.torch_dtype", "bfloat16"),
        ("model.to(args.dtype)\n", "model.torch_dtype", None),
        ("model.to(dtype=getattr(torch, args.kind))\n", "model.torch_dtype", None),
        ("for p in model.parameters():\n    p.data = p.data.half()\n", "model.torch_dtype", None),
        ("from parts import set_trainable\nset_trainable(model, 'last')\n", "lora.enabled", None),
        ("from parts import print_trainable\nprint_trainable(model)\n", "lora.enabled", "unsaid"),
        ("torch.set_default_dtype(torch.bfloat16)\n", "model.torch_dtype", None),
        ("model.double()\n", "run.not_modelled", "float64"),
        (UNDER + "model = torch.compile(model)\n", "training.torch_compile", None),
        (UNDER + "loader = DataLoader(rows, batch_size=64)\n", BATCH, None),
        (UNDER + "loader = DataLoader(rows, batch_size=8, sampler=parts)\n", BATCH, 8),
        ("small = False\nif small:\n    loader = DataLoader(rows, batch_size=64)\n", BATCH, 8),
        ("loader = DataLoader(rows, batch_size=None)\n", BATCH, None),
        ("options = {'batch_size': 4, 'shuffle': True}\nloader = DataLoader(rows, **options)\n", BATCH, 4),
        ("loader = DataLoader(rows, **cfg.options)\n", BATCH, None),
        (UNDER + "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n", "training.optim", None),
        ("eight_bit = True\nif eight_bit:\n    import bitsandbytes as bnb\n"
         "    optimizer = bnb.optim.AdamW8bit(model.parameters())\nelse:\n"
         "    optimizer = torch.optim.AdamW(model.parameters())\n", "training.optim", "adamw_bnb_8bit"),
        ("model.compile()\n", "training.torch_compile", True),
        ("best = copy.deepcopy(model)\n", "run.not_modelled", "deepcopy(…)"),
        ("best = copy.deepcopy(model.state_dict())\n", "run.not_modelled", "deepcopy(…)"),
        ("average = ModelEMA(model, decay=0.99)\n", "run.not_modelled", "ModelEMA(…)"),
        ("model.lm_head = torch.nn.Linear(768, 10)\n", "run.not_modelled", "model.lm_head"),
        ("model.config.use_cache = False\nmodel.use_cache = False\n", "run.not_modelled", "unsaid"),
    ],
)  # fmt: skip
def test_what_a_condition_leaves_open_is_not_said(lines: str, name: str, value: object) -> None:
    assert said(HEAD + lines + PASS).get(name, "unsaid") == value


def test_what_a_model_becomes_behind_its_training_is_not_its_type_in_it() -> None:
    assert "model.torch_dtype" not in said(HEAD + PASS + "model.half()\n")
    body = "def train(net):\n" + "".join(
        f"    {line}\n" for line in PASS.replace("model(", "net(").strip().splitlines()
    )
    assert "model.torch_dtype" not in said(HEAD + body + "train(model)\nmodel.half()\n")
    assert said(HEAD + body + "model.half()\ntrain(model)\n")["model.torch_dtype"] == "float16"
    assert "model.torch_dtype" not in said(HEAD + PASS + "def infer():\n    model.half()\n")


@pytest.mark.parametrize(
    "models",
    [
        UNDER + 'model = AutoModelForCausalLM.from_pretrained("openai-community/gpt2-xl")\n',
        'try:\n    model = AutoModelForCausalLM.from_pretrained("openai-community/gpt2-xl")\nexcept OSError:\n'
        '    model = AutoModelForCausalLM.from_pretrained("openai-community/gpt2")\n',
    ],
)
def test_which_of_two_models_trains_is_not_guessed(models: str) -> None:
    assert all(unit.dialect != "loop" for unit in read(HEAD + models + PASS))


def test_a_model_that_a_flag_names_is_the_programs_where_the_flag_is_left_out() -> None:
    head = HEAD.replace(
        'model = AutoModelForCausalLM.from_pretrained("openai-community/gpt2")\n',
        """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--model_name_or_path", default=None)
args = parser.parse_args()
if args.model_name_or_path:
    model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path)
else:
    model = AutoModelForCausalLM.from_config(config)
""",
    )
    assert said(head + PASS)[BATCH] == 8


def test_a_function_trains_the_model_that_its_call_meets() -> None:
    body = "def train():\n" + "".join(f"    {line}\n" for line in PASS.strip().splitlines())
    other = 'model = AutoModelForCausalLM.from_pretrained("openai-community/gpt2-xl")\n'
    assert said(HEAD + body + "train()\n" + other)["model.name"] == "openai-community/gpt2"
    twice = read(HEAD + body + "train()\n" + other + "train()\n")
    assert all(unit.dialect != "loop" for unit in twice)


def test_a_class_of_the_projects_own_is_no_model_that_kb_reads() -> None:
    own = "class GPT2ForScores(GPT2PreTrainedModel):\n    pass\n\nmodel = GPT2ForScores.from_pretrained('gpt2')\n"
    assert all(unit.dialect != "loop" for unit in read(HEAD + own + PASS))


@pytest.mark.parametrize(
    ("old", "new", "name", "value"),
    [
        ("        outputs = model(**batch)", "        with torch.no_grad():\n            aim = teacher(**batch)\n"
         "        outputs = model(**batch)", "run.not_modelled", "model(…) + teacher(…)"),
        ("        loss = outputs.loss", "        again = model(**batch)\n        loss = outputs.loss",
         "run.not_modelled", "model(…) + model(…)"),
        ("        loss.backward()", "        loss.backward()\n        judge(batch).backward()",
         "run.not_modelled", "backward(…) + backward(…)"),
        ("        outputs = model(**batch)", "        with amp_context():\n            outputs = model(**batch)",
         "training.fp16", None),
        ("        optimizer.zero_grad()", "        break", "run.gradients_kept", "unsaid"),
        ("        loss.backward()", "        del outputs\n        loss.backward()", "run.keeps_outputs", "no"),
        ("        optimizer.zero_grad()", "        optimizer.zero_grad()\n        del outputs, loss",
         "run.keeps_outputs", "step"),
        ("        outputs = model", "        batch = {key: each[:2] for key, each in batch.items()}\n"
         "        outputs = model", BATCH, None),
        ("        optimizer.step()", "        if step % 100 != 0:\n            optimizer.step()", STEPS, None),
        ("        optimizer.step()", "        if step % 4 == 3 or step == last:\n            optimizer.step()",
         STEPS, 4),
        ("        optimizer.step()", "        if not (step + 1) % 4:\n            optimizer.step()", STEPS, 4),
        ("        optimizer.step()", "        if (step + 1) % 4 != 0:\n            continue\n        optimizer.step()",
         STEPS, 4),
        ("        optimizer.step()\n        optimizer.zero_grad()", "        optimizer.step()\n        clear(model)",
         "run.gradients_kept", "unsaid"),
    ],
)  # fmt: skip
def test_what_else_a_step_does_is_read_or_left_open(old: str, new: str, name: str, value: object) -> None:
    teacher = 'teacher = AutoModelForCausalLM.from_pretrained("openai-community/gpt2-large")\n'
    assert PASS.count(old) == 1
    assert said(HEAD + teacher + PASS.replace(old, new)).get(name, "unsaid") == value


def test_autocast_is_known_by_another_name_and_open_as_a_decorator() -> None:
    alias = "from torch.cuda.amp import autocast as narrow\n"
    inside = "        with narrow():\n            outputs = model(**batch)"
    assert said(HEAD + alias + PASS.replace("        outputs = model(**batch)", inside))["training.fp16"] is True
    body = "".join(f"    {line}\n" for line in PASS.strip().splitlines())
    decorated = f"@torch.autocast('cuda', dtype=torch.bfloat16)\ndef train():\n{body}train()\n"
    assert said(HEAD + decorated)["training.bf16"] is None


def test_two_passes_of_one_loop_leave_open_what_they_say_otherwise() -> None:
    text = (
        HEAD
        + """
for batch in loader:
    if args.fp16:
        with torch.cuda.amp.autocast():
            loss = model(**batch).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
    else:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
    optimizer.zero_grad()
"""
    )
    found = said(text)
    assert (found["training.fp16"], found["training.optim"], found[BATCH]) == (None, "adamw_torch", 8)


def test_what_never_updates_is_no_training() -> None:
    test = "def test_gradients():\n    for batch in loader:\n        model(**batch).loss.backward()\n"
    assert all(unit.dialect != "loop" for unit in read(HEAD + test))


def test_options_of_generating_say_no_length_of_rows() -> None:
    options = 'OPTIONS = {"max_length": 50, "num_beams": 4}\n'
    assert said(HEAD.replace("max_length = 256", options) + PASS)["data.max_source_length"] is None
    for call in ("print(sample(model, max_len=40))\n", "def generate_text(text, max_length=40):\n    return text\n"):
        assert said(HEAD.replace("max_length = 256", call) + PASS)["data.max_source_length"] is None
    given = 'OPTIONS = {"max_length": 50}\nmodel.generate(ids, **OPTIONS)\n'
    assert said(HEAD.replace("max_length = 256", given) + PASS)["data.max_source_length"] is None


def test_a_width_under_an_open_condition_is_not_the_programs() -> None:
    (unit,) = read(
        "from transformers import AutoModelForCausalLM, BitsAndBytesConfig\nif args.qlora:\n"
        "    narrow = BitsAndBytesConfig(load_in_4bit=True)\n"
        "    model = AutoModelForCausalLM.from_pretrained('gpt2', quantization_config=narrow)\n"
        "else:\n    model = AutoModelForCausalLM.from_pretrained('gpt2')\n"
    )
    assert is_unknown(unit.settings["quantization.load_in_4bit"].value)


@pytest.mark.parametrize(
    "change",
    [
        PASS.replace("        optimizer.zero_grad()\n", "        break\n"),
        PASS.replace("        optimizer.zero_grad()\n", "").replace("in loader:", "in range(1):"),
        PASS.replace("        optimizer.zero_grad()\n", "")
        + "for p in model.parameters():\n    p.register_post_accumulate_grad_hook(drop)\n",
        "from project.optim import AdamW\noptimizer = AdamW(model.parameters())\n"
        + PASS.replace("        optimizer.zero_grad()\n", ""),
    ],
)
def test_gradients_that_other_code_may_let_go_of_are_not_told(change: str) -> None:
    assert all("run.gradients_kept" not in unit.settings for unit in read(HEAD + change))


def test_what_accelerate_shards_or_keeps_off_the_gpu_is_not_predicted() -> None:
    head = HEAD + "from accelerate import Accelerator\n"
    rest = "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n"
    rest += PASS.replace("loss.backward()", "accelerator.backward(loss)")
    for given in ("deepspeed_plugin=plugin", "fsdp_plugin=plugin", "cpu=True", "**options"):
        found = said(head + f"accelerator = Accelerator(mixed_precision='bf16', {given})\n" + rest)
        assert "run.not_modelled" in found
    logs = "options = {}\noptions['log_with'] = 'wandb'\n"
    assert "run.not_modelled" not in said(f"{head}{logs}accelerator = Accelerator(**options)\n{rest}")
    found = said(head + "accelerator = Accelerator(mixed_precision='fp8')\n" + rest)
    assert found["run.not_modelled"] == "fp8"


@pytest.mark.parametrize(
    ("imported", "opened", "fp16"),
    [
        ("from torch.cuda.amp import autocast", "autocast(False)", False),
        ("from torch.cuda.amp import autocast", "autocast(args.fp16)", None),
        ("from torch.cuda.amp import autocast", "autocast(True)", True),
        ("from torch import autocast", "autocast('cpu')", False),
        ("from torch import autocast", "autocast('cuda')", True),
        ("from torch.cuda import amp", "amp.autocast(False)", False),
        ("", "torch.cpu.amp.autocast()", False),
        ("", "torch.autocast(*options)", None),
    ],
)
def test_autocast_is_what_its_import_says(imported: str, opened: str, fp16: bool | None) -> None:
    old = "        outputs = model(**batch)"
    text = PASS.replace(old, f"        with {opened}:\n            outputs = model(**batch)")
    assert said(imported + HEAD + text)["training.fp16"] == fp16


def test_what_an_object_was_given_in_prepare_is_followed() -> None:
    text = (
        HEAD.split("model =")[0]
        + """
from accelerate import Accelerator
MAX_LEN = 64
class Fit:
    def __init__(self):
        self.accelerator = Accelerator(mixed_precision="bf16")
        self.model = AutoModelForCausalLM.from_pretrained("openai-community/gpt2")
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.loader = DataLoader(rows, batch_size=4)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(self.model, self.optimizer, self.loader)

    def fit(self):
        for batch in self.loader:
            loss = self.model(**batch).loss
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
"""
    )
    found = said(text)
    assert (found["training.bf16"], found[BATCH], found["training.optim"]) == (True, 4, "adamw_torch")


@pytest.mark.parametrize(
    "line",
    [
        "for n, p in model.named_parameters():\n    p.requires_grad = 'lm_head' in n",
        "for n, p in model.named_parameters():\n    p.requires_grad_('lm_head' in n)",
        "model.train_adapter('x')",
    ],
)
def test_weights_that_code_chooses_are_open(line: str) -> None:
    assert said(HEAD + line + PASS)["lora.enabled"] is None


def test_odd_classes_and_many_calls_are_no_fault() -> None:
    read(HEAD + "class A:\n    class __init__:\n        pass\n" + PASS)
    deep = "l0 = model(**batch)\n" + "".join(f"l{n} = c({', '.join([f'l{n - 1}'] * 4)})\n" for n in range(1, 12))
    read(HEAD + "for batch in loader:\n    " + deep.replace("\n", "\n    ") + "l11.backward()\n    optimizer.step()\n")


def test_a_plain_loop_runs_on_one_gpu_and_an_accelerated_one_on_all(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(HEAD + PASS)
    prepared = "from accelerate import Accelerator\naccelerator = Accelerator(mixed_precision='bf16')\n"
    prepared += "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n"
    (tmp_path / "all.py").write_text(HEAD + prepared + PASS.replace("loss.backward()", "accelerator.backward(loss)"))

    def batch(name: str) -> str:
        shown = run_text("kb.check", name, "--gpu", "rtx-3090", "--gpus", 4, "--lang", "en", cwd=tmp_path).stdout
        return " ".join(shown.split())

    assert "effective batch 8 = 8 × 1 " in batch("plain.py")
    assert "effective batch 32 = 8 × 1 × 4" in batch("all.py")


FABRIC = """
fabric = Fabric(precision="bf16-mixed")
model, optimizer = fabric.setup(model, optimizer)
loader = fabric.setup_dataloaders(loader)
"""


@pytest.mark.parametrize(
    ("old", "new", "name", "value"),
    [
        ("", "", "training.bf16", True),
        ("", "", BATCH, 8),
        ("", "", "training.optim", "adamw_torch"),
        ("bf16-mixed", "16-mixed", "training.fp16", True),
        ("bf16-mixed", "bf16-true", "run.not_modelled", "Fabric(precision='bf16-true')"),
        ('precision="bf16-mixed"', "precision=choice", "training.bf16", None),
        ('precision="bf16-mixed"', "strategy=FSDPStrategy()", "run.not_modelled", "Fabric(strategy=…)"),
        ("model, optimizer = fabric.setup(model, optimizer)", "", "training.bf16", False),
    ],
)
def test_lightnings_fabric_says_its_precision(old: str, new: str, name: str, value: object) -> None:
    made = FABRIC.replace(old, new) if old else FABRIC
    found = said(HEAD + "from lightning.fabric import Fabric\n" + made + PASS.replace("loss.b", "fabric.b").replace(
        "backward()", "backward(loss)"))  # fmt: skip
    assert found[name] == value


def test_a_loop_of_a_deepspeed_engine_names_its_model_and_no_more_than_is_known() -> None:
    made = "import deepspeed\nengine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=ds)\n"
    loop = PASS.replace("model(", "engine(").replace("loss.backward()", "engine.backward(loss)")
    found = said(HEAD + made + loop.replace("optimizer.step()\n        optimizer.zero_grad()", "engine.step()"))
    assert found["model.name"] == "openai-community/gpt2" and found[BATCH] == 8
    assert found["run.not_modelled"] == "deepspeed.initialize(…)"
    assert all(found[name] is None for name in (STEPS, "training.optim", "training.fp16", "training.bf16"))


@pytest.mark.parametrize(
    ("made", "batch"),
    [
        ("{'train': loader, 'test': DataLoader(rows, batch_size=64)}", 8),
        ("{part: DataLoader(data[part], batch_size=16) for part in ('train', 'test')}", 16),
        ("{'train': loader}\nloaders['train'] = DataLoader(rows, batch_size=64)", None),
        ("make(rows)", None),
    ],
)
def test_a_loader_in_a_dictionary_is_found(made: str, batch: int | None) -> None:
    found = said(HEAD + f"loaders = {made}\n" + PASS.replace("in loader:", "in loaders['train']:"))
    assert found[BATCH] == batch


FIT = """
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

class Net(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.model = AutoModelForCausalLM.from_pretrained(name)
        self.tokenizer = AutoTokenizer.from_pretrained(name)

    def forward(self, ids, labels=None):
        return self.model(ids, labels=labels)

    def training_step(self, batch):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            outputs = self(batch["ids"], batch["labels"])
        return outputs.loss

net = Net("openai-community/gpt2").to("cuda")
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
loader = DataLoader(rows, batch_size=8)
max_length = 256
for batch in loader:
    loss = net.training_step(batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("old", "new", "name", "value"),
    [
        ("", "", "model.name", "openai-community/gpt2"),
        ("", "", "training.bf16", True),
        ("", "", "training.optim", "adamw_torch"),
        ("", "", "run.keeps_outputs", "no"),
        ("net.training_step(batch)", "net(batch['ids'], batch['labels']).loss", "training.optim", "adamw_torch"),
        ("net = Net(", "net = Net(", "model.torch_dtype", ...),
        ('net = Net("openai-community/gpt2").to("cuda")', 'net = Net("openai-community/gpt2").half()',
         "model.torch_dtype", "float16"),
        ("optimizer =", "net = torch.compile(net)\noptimizer =", "training.torch_compile", True),
        ("        return outputs.loss", "        return outputs.loss, outputs", "run.keeps_outputs", "no"),
        ("            outputs = self(", "            self.model(batch['wrong'])\n            outputs = self(",
         "run.not_modelled", "self.model(…) + self.model(…)"),
        ("    def training_step", "    @torch.autocast('cuda')\n    def training_step", None, None),
    ],
)  # fmt: skip
def test_a_loss_that_a_method_returns_is_followed(old: str, new: str, name: str | None, value: object) -> None:
    text = FIT.replace(old, new) if old else FIT
    if "return outputs.loss, outputs" in new:
        text = text.replace("loss = net", "loss, _ = net")
        value = "loop"
    if name is None:
        assert "loop" not in {unit.dialect for unit in read(text)}
    elif value is ...:
        assert name not in said(text)
    else:
        assert said(text)[name] == value


@pytest.mark.parametrize(
    "line",
    [
        "self.head = nn.Linear(768, 2)",
        "self.teacher = AutoModelForCausalLM.from_pretrained('openai-community/gpt2-xl')",
        "self.extra = self.make(name)",
        "self.a, self.b = parts(name)",
    ],
)
def test_an_object_that_may_hold_more_weights_than_its_model_is_left_alone(line: str) -> None:
    text = FIT.replace("        self.tokenizer", f"        {line}\n        self.tokenizer")
    assert "loop" not in {unit.dialect for unit in read(text)}


def test_a_function_in_the_function_that_trains_is_followed() -> None:
    imports, _, body = HEAD.partition("model =")
    text = imports + "def main():\n    model =" + body.replace("\n", "\n    ")
    text += """
    def step(batch):
        outputs = model(**batch)
        accuracy = (outputs.logits.argmax(-1) == batch["labels"]).float().mean().item()
        return outputs.loss, accuracy

    for batch in loader:
        loss, accuracy = step(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

main()
"""
    found = said(text)
    assert (found["model.name"], found["training.optim"]) == ("openai-community/gpt2", "adamw_torch")
    assert found["run.keeps_outputs"] == "no"


def test_a_model_that_is_asked_in_the_method_of_the_loss_runs_beside() -> None:
    text = """
from transformers import AutoModelForCausalLM
class Fit:
    def __init__(self, rows):
        self.model = AutoModelForCausalLM.from_pretrained("openai-community/gpt2")
        self.reference = AutoModelForCausalLM.from_pretrained("openai-community/gpt2-medium")
        self.loader = DataLoader(rows, batch_size=4)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)

    def compute_loss(self, batch):
        other = self.reference(**batch)
        outputs = self.model(input_ids=batch["ids"], labels=batch["labels"])
        return outputs.loss

    def train(self):
        for batch in self.loader:
            loss = self.compute_loss(batch)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
"""
    assert said(text)["run.not_modelled"] == "self.model(…) + self.reference(…)"


@pytest.mark.parametrize(
    ("scorer", "said_of_it"),
    [
        ("AutoModelForSequenceClassification.from_pretrained('openai-community/gpt2').to('cuda')",
         "model(…) + scorer(…)"),
        ("AutoModelForSequenceClassification.from_pretrained('openai-community/gpt2')", None),  # on the CPU
        ("CrossEntropyLoss()", None),
    ],
)  # fmt: skip
def test_a_model_that_a_function_of_the_loop_asks_runs_beside(scorer: str, said_of_it: str | None) -> None:
    functions = """
def score(rows):
    return [scorer(row) for row in rows]

def choose(batch):
    return batch[score(batch)]
"""
    text = (
        HEAD
        + f"scorer = {scorer}\n"
        + functions
        + PASS.replace("outputs =", "batch = choose(batch)\n        outputs =")
    )
    assert said(text).get("run.not_modelled") == said_of_it


@pytest.mark.parametrize(("given", "bf16"), [("'bf16'", True), ("choose(rows)", None), ("'no'", False)])
def test_a_precision_that_accelerate_is_told_out_of_sight_is_open(given: str, bf16: bool | None) -> None:
    made = f"accelerator = Accelerator(mixed_precision={given})\n"
    made += "model, optimizer = accelerator.prepare(model, optimizer)\n"
    loop = PASS.replace("loss.backward()", "accelerator.backward(loss)")
    found = said("from accelerate import Accelerator\n" + HEAD + made + loop)
    assert found.get("training.bf16", "not said") == bf16


CHECKPOINTING = "training.gradient_checkpointing"


@pytest.mark.parametrize("enables", ["gradient_checkpointing_enable()", "activation_checkpointing_enable()"])
@pytest.mark.parametrize(
    ("trains", "value"),
    [
        ("model.train()", True),
        ("model.train(True)", True),
        ("model.train(mode=True)", True),
        ("model.to('cuda').train()", True),
        ("", False),
        ("model.eval()", False),
        ("model.train(False)", False),
        ("model.train(flags.train)", None),
        ("model.train(mode=not frozen)", None),
        ("model.training = True", None),
    ],
)
def test_checkpointing_counts_in_training_mode_alone(enables: str, trains: str, value: bool | None) -> None:
    found = said(HEAD + f"model.{enables}\n{trains}\n" + PASS)
    assert (found[CHECKPOINTING], found["training.activation_checkpointing"]) == (value, value)


def test_a_model_prepared_for_k_bits_is_in_eval_mode_too() -> None:
    prepared = "from peft import prepare_model_for_kbit_training\nmodel = prepare_model_for_kbit_training(model)\n"
    assert said(HEAD + prepared + PASS)[CHECKPOINTING] is False
    assert (
        said(HEAD + prepared + PASS.replace("    for batch", "    model.train()\n    for batch"))[CHECKPOINTING] is True
    )


def test_the_train_of_a_trainer_of_its_own_is_no_training_mode() -> None:
    loop = PASS.replace("\n", "\n        ").replace("for epoch", "{mode}for epoch")
    own = "\nclass Run:\n    def train(self):" + loop.rstrip() + "\n\nRun().train()\n"
    head = HEAD + "model.gradient_checkpointing_enable()\n"
    assert said(head + own.format(mode=""))[CHECKPOINTING] is None
    assert said(head + own.format(mode="model.train()\n        "))[CHECKPOINTING] is True


class Beside(NoSources):
    """One module that lies beside the program."""

    def __init__(self, text: str) -> None:
        self._text = text

    def module(self, path: str, imported: Imported) -> tuple[str, str] | None:
        return ("modes.py", self._text) if imported.module == "modes" else None


@pytest.mark.parametrize("called", ["begin(model)", "model = begin(model)", "start = begin"])
@pytest.mark.parametrize(("body", "off"), [("model.train()", False), ("model.eval()", True)])
def test_another_module_may_put_the_model_in_training_mode(called: str, body: str, off: bool) -> None:
    text = f"from modes import begin\n{HEAD}model.gradient_checkpointing_enable()\n{called}\n{PASS}"
    (unit,) = READER.read(text, "train.py", Beside(f"def begin(model):\n    {body}\n    return model\n"))
    assert (unit.settings[CHECKPOINTING].value is False) == off


def test_without_checkpointing_nothing_is_said_of_it_and_of_some_layers_it_is_open() -> None:
    assert CHECKPOINTING not in said(HEAD + PASS)
    some = said(HEAD + "model.activation_checkpointing_enable(every_n_layers=2)\nmodel.train()\n" + PASS)
    assert (some[CHECKPOINTING], some["training.activation_checkpointing"]) == (None, None)
    moved = said(HEAD + "model.activation_checkpointing_enable(offload=True)\nmodel.train()\n" + PASS)
    assert moved["run.not_modelled"] == "activation_checkpointing_enable(offload=True)"


@pytest.mark.parametrize(
    ("beside", "is_told"),
    [("nn.Dropout(0.1)", True), ("0.5", True), ("extra", False), ("timm.create_model('vit_large_patch16_224')", False)],
)
def test_a_wrapper_is_told_only_where_all_beside_its_model_is_known_to_hold_no_weights(
    beside: str, is_told: bool
) -> None:
    wrapper = f"""
class Both(nn.Module):
    def __init__(self, extra):
        super().__init__()
        self.text = AutoModelForCausalLM.from_pretrained("openai-community/gpt2")
        self.beside = {beside}
    def forward(self, batch):
        return self.text(**batch).loss
both = Both(other).cuda()
optimizer = torch.optim.AdamW(both.parameters(), lr=5e-5)
for batch in loader:
    loss = both(batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    found = [each for each in read(HEAD + wrapper) if each.dialect == "loop"]
    assert bool(found) is is_told


def test_a_loss_that_is_given_to_a_call_that_may_run_it_backward_is_no_evaluation() -> None:
    other = """
for batch in loader:
    outputs = model(**batch)
    losses.append(outputs.loss)
    {given}
"""
    assert said(HEAD + PASS + other.format(given="print(outputs.loss)")).get("run.graphs_summed") == "losses"
    assert "run.graphs_summed" not in said(HEAD + PASS + other.format(given="stepper(outputs.loss)"))


@pytest.mark.parametrize(
    ("made", "then"),
    [
        ("{'train': DataLoader(rows, batch_size=4)}", ""),
        ("{'train': DataLoader(rows, batch_size=4), **others}", "open"),
        ("{'train': DataLoader(rows, batch_size=4), name: DataLoader(rows, batch_size=9)}", "open"),
        ("{'train': DataLoader(rows, batch_size=4)}\ndef swap(of):\n    of['train'] = 1\nswap(loaders)", "open"),
        ("{'train': DataLoader(rows, batch_size=4)}\nsame = loaders\nsame['train'] = DataLoader(rows)", "open"),
        ("{'train': DataLoader(rows, batch_size=4)}\ndef count(of):\n    return len(of)\ncount(loaders)", ""),
    ],
)
def test_a_loader_of_a_dictionary_that_may_have_another_is_open(made: str, then: str) -> None:
    found = said(HEAD + f"loaders = {made}\n" + PASS.replace("in loader:", "in loaders['train']:"))
    assert found.get(BATCH) == (None if then else 4)


PLAIN = """
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

class Plain:
    def loss_of(self, batch):
        return self.model(**batch).loss

    def fit(self):
        self.model = AutoModelForCausalLM.from_pretrained("openai-community/gpt2").cuda()
        loader = DataLoader(rows, batch_size=4)
        optimizer = torch.optim.AdamW(self.model.parameters())
        for batch in loader:
            loss = self.loss_of(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
"""
TWICE = """
class Twice(Plain):
    def loss_of(self, batch):
        return self.model(**batch).loss + self.model(**batch).loss
"""


def test_a_method_that_a_class_built_on_it_has_of_its_own_is_not_read_from_a_class() -> None:
    assert [each.dialect for each in read(PLAIN + "\nPlain().fit()\n")] == ["loop"]
    assert "loop" not in [each.dialect for each in read(PLAIN + TWICE + "\nTwice().fit()\n")]
