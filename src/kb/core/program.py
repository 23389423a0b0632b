"""The source of a program, and what it shows of how settings reach the library: by patterns in its text, never run."""

import re
from collections.abc import Iterable
from functools import lru_cache

from kb.core.document import Setting
from kb.core.record import NamedTuple

# Texts of patterns, which `re` compiles when a program is met and keeps: most runs meet none.
# Each begins with the letters that are looked for: that is what makes the search quick.
_PARSERS = ("HfArgumentParser(", "TrlParser(", "H4ArgumentParser(")
_CLASS = r"TrainingArguments\b|Config\b"
_CALLED = (r"TrainingArguments\s*\(", r"Config\s*\(")
_FILLED = r"[^()]{0,2000}\*\*\s*\w"
_PARSED = r"(?:Hf|Trl|H4)ArgumentParser\(|TrlParser\("
_FIRST_ARGUMENT = r"\s*(?:dataclass_types\s*=\s*)?[\[(]?([\w.,\s]*?)\s*,?\s*[\])]"
_OTHER_FRAMEWORK = r"(?m)^[ \t]*(?:import|from)[ \t]+(?:flax|optax|paddle|mindspore)\b"
_ADAPTS = r"\b(?:get_peft_model|LoraConfig|LoraModel|PeftModel\.from_pretrained)\s*\("
# Trains the adapters that lie in the model's folder, or in another, whatever flags say.
_LOADS_ADAPTERS = r"(?m)^[^#\n]*\b(?:AutoPeftModel\w*\.from_pretrained\s*\(|is_trainable\s*=\s*True\b)"
_FREEZES = r"(?m)^[^#\n]*\.requires_grad(?:_\(\s*False\b|\s*=(?!=)(?!\s*True\b))"
# A loss that never holds all logits, or a language model's class with a forward of its own.
_OWN_LOSS = r"""(?mx) \b(?:linear_cross_entropy|cce_patch|apply_liger_kernel_to_\w+|LigerFusedLinear\w+)\(
    | \bAutoLigerKernelFor | ^class[ ]\w+\([^)\n]*\w(?:ForCausalLM|ForConditionalGeneration)\b"""
_BY_UNSLOTH = r"(?m)^[^#\n]*\bFast(?:Language|Vision|Text)?Model\.from_pretrained\s*\("
# Before a colon stands what a table or a field gives a value: not a condition (``if args.do_eval:``).
# A variable that holds a setting's name stands for it: ``key = "eval_strategy" if new else "evaluation_strategy"``.
_GIVEN = (
    r"""(?m)\b(\w+)["']?\s*(?:=(?!=)|\]\s*=(?!=))(?:[ \t]*["'](\w+)["'](?=[ \t]*(?:if\b|$)))?"""
    r"""|(?<![\w.])(\w+)["']?\s*:(?=[ \t]*[^\s#])"""
)
_READS = r"(?m)^[ \t]*(\w+)[ \t]*=[ \t]*[\w.]*\.\1[ \t]*$"  # ``factor = self.args.factor``
# What the Trainer's own loops take by this name, and a trainer built on it hands on: it says nothing of the arguments.
OF_LOOPS = ("prediction_loss_only",)
MOST_PROGRAMS = 1024  # whose sources' marks are remembered
_TRAINS = r"Trainer\(|TrainingArguments\b|\.backward\(|\.fit\("
_MAY_TRAIN = r"""(?mix)^[ \t]*(?:from|import)\b[^\n]*(?:train|tune|tuning|runner|engine|lightning|accelerate|deepspeed)
    |\b\w*(?:train|tune|fit|run_exp)\w*\s*\(|\bsubprocess\b|\bos\.(?:system|exec\w+|popen)\b|\brunpy\b|\b_target_\b|\binstantiate\("""
_OWN_STRATEGY = r"""(?mx)^[ \t]+eval(?:uation)?_strategy[ \t]*:[ \t]*[A-Za-z][^\n]*=
    |["']--eval(?:uation)?[-_]strategy["']"""
_SPREADS = r"(?i)\*\*\s*(?!kwargs\b)[\w.]*(?:cfg|conf|arg|param|opt|train|hyper|setting|data\b|dict\b)|\bsetattr\("
# Both turn gradient checkpointing on where they are not told otherwise (peft/utils/other.py, unsloth/models/llama.py).
_CHECKPOINTS = r"\bprepare_model_for_(?:kbit|int8)_training\(|\bFastLanguageModel\.get_peft_model\("
# a switch for adapters that is off unless it is written
_ASKS_TO = r"""(?mxi)^[ \t]+\w*(?:lora|peft|adapter)\w*[ \t]*:[ \t]*(?:Optional\[)?bool\]?
    [ \t]*=[ \t]*(?:field\(\s*default[ \t]*=[ \t]*)?False\b
    |add_argument\(\s*["']--\w*(?:lora|peft|adapter)[\w-]*["'][^()]*?(?:store_true|default[ \t]*=[ \t]*False)
    |\bget_peft_config\("""
_IMPORTS_TRAINER = r"(?m)^[ \t]*(?:from|import)[ \t]+(?:trl\b|transformers\b[^\n]*\bTrainer\b)|^[ \t]+Trainer,"
_OF_TRL = ("SFT", "DPO", "GRPO", "Reward", "KTO", "ORPO", "CPO", "PPO", "RLOO", "GKD", "XPO", "NashMD", "BCO", "PRM")
# What a program that reads no file of settings has none of: loaders, a file's flag, a module that nobody here knows.
_MAY_READ = (
    r"(?i)yaml|omegaconf|hydra|json\.load|json import|toml|json_file|args_and_config|config_?(arg)?parse"
    r"|\bopen\(|\.load\w*\(|from_?file|\.read|importlib|runpy|\bexec\(|[\"']-*[\w-]*(config|cfg|conf|file|path)[\"']"
)
_IMPORTS = r"(?m)^[ \t]*(?:from[ \t]+([\w.]+)|import[ \t]+([\w., \t]+))"
_READ_NO_SETTINGS = (
    "torch", "transformers", "datasets", "peft", "accelerate", "bitsandbytes", "evaluate", "numpy", "pandas", "tqdm",
    "sklearn", "wandb", "argparse", "os", "sys", "math", "random", "logging", "time", "typing", "functools", "json",
    "__future__",
)  # fmt: skip
SEVERAL_HAVE_IT = "preference"  # what ``script.trainer`` is by a name that several trainers of TRL take (``beta``)
_TRAINERS = {"NashMD": "nash_md"}
_EVERY = (("Online", "DPO"), *(("", name) for name in _OF_TRL))


class Program(NamedTuple):
    """The source of a program: its own, and that of the project's modules that it imports."""

    path: str
    text: str
    own_length: int | None = None  # of its own source, before that of the modules; None: there is no other

    @property
    def own(self) -> str:
        """Its own source alone."""
        return self.text[: self.own_length]

    @property
    def imported(self) -> str:
        """The source of the modules that it imports."""
        return "" if self.own_length is None else self.text[self.own_length :]

    @property
    def hands_on(self) -> bool:
        """Whether it gives a config's names to the library's class of arguments as they are."""
        return _hands_on(self.text)

    @property
    def may_read_files(self) -> bool:
        """Whether it may read a file of settings; argparse alone reads none."""
        found = re.findall(_IMPORTS, self.text)
        modules = (each.split()[0] for origin, names in found for each in (origin or names).split(",") if each.split())
        known = all(each.partition(".")[0] in _READ_NO_SETTINGS for each in modules)
        return not known or _has(_MAY_READ, self.text)

    @property
    def trains(self) -> bool:
        """Whether a training starts there: by a Trainer, or by a loop of its own."""
        return _has(_TRAINS, self.text)

    @property
    def trains_nothing(self) -> bool:
        """Whether it is sure to train nothing: no training starts there, and it neither calls nor brings in anything,
        or starts another program, that may."""
        return not self.trains and not _has(_MAY_TRAIN, self.own)

    @property
    def is_of_trainer(self) -> bool:
        """Whether the library's class of arguments, or a trainer of the library, is there: its defaults may count."""
        return "TrainingArguments" in self.text or _has(_IMPORTS_TRAINER, self.text)

    @property
    def parses(self) -> bool:
        """Whether it hands names on by a parser made of the library's own class, which has the library's defaults."""
        return self.hands_on and any(parser in self.text for parser in _PARSERS)

    def has_own(self, key: str) -> bool:
        """Whether it names a key itself: in quotes, as a flag, as a field of a class, or as an attribute."""
        return key in self.text and _own(key, self.hands_on).search(self.text) is not None

    def declares(self, key: str) -> bool:
        """Whether a key is a field of a class, a flag of a parser, or read from the arguments there."""
        return key in self.text and _declaration(key).search(self.text) is not None

    def decides(self, key: str) -> bool:
        """Whether it may give a setting a value of its own: it names the key, or is of a framework that has other
        defaults.
        """
        return self.speaks_of(key) or _has(_OTHER_FRAMEWORK, self.text)

    def sets(self, key: str) -> bool:
        """Whether it gives a setting of this name a value itself: as an argument of a call, by assignment, or in a
        table. Reading one, as ``args.bf16``, does not.
        """
        if key == "gradient_checkpointing" and _has(_CHECKPOINTS, self.text):
            return True
        given = _given(self.text)
        of_loop = key in OF_LOOPS and not self.fixes(key) and not _has(rf"\.{key}\s*=(?!=)", self.text)
        return (key in given and not of_loop) or f"use_{key}" in given

    def fixes(self, key: str) -> bool:
        """Whether it gives a setting of this name a value that stands there, in a table of arguments."""
        return key in _fixed(self.text)

    @property
    def loads_by_unsloth(self) -> bool:
        """Whether Unsloth loads the model that it trains: in half precision or 4 bit, with kernels of its own."""
        return "unsloth" in self.text and self.trains and _has(_BY_UNSLOTH, self.text)

    @property
    def loads_adapters(self) -> bool:
        """Whether it trains adapters that are loaded, whatever its flags say: ``PeftModel.from_pretrained(model,
        folder, is_trainable=True)``."""
        return ("AutoPeftModel" in self.text or "is_trainable" in self.text) and _has(_LOADS_ADAPTERS, self.text)

    @property
    def adds_adapter(self) -> bool:
        """Whether it trains adapters unless a flag forbids it: it makes them, and none of its flags asks for them."""
        return _has(_ADAPTS, self.text) and not _has(_ASKS_TO, self.text)

    @property
    def spreads(self) -> bool:
        """Whether it hands on a table of settings whole, or sets them one by one by names that it does not say."""
        return _has(_SPREADS, self.text)

    @property
    def has_own_strategy(self) -> bool:
        """Whether a flag or a field of its own says when evaluation runs: the library's default is not its own."""
        return "_strategy" in self.text and _has(_OWN_STRATEGY, self.text)

    def speaks_of(self, key: str) -> bool:
        """Whether it has a key anywhere, as a word."""
        if key.isidentifier():
            return key in words_of(self.text)
        return key in self.text and _has(rf"\b{re.escape(key)}\b", self.text)


@lru_cache(MOST_PROGRAMS // 4)
def words_of(text: str) -> frozenset[str]:
    """Every word of a source, once."""
    return frozenset(re.findall(r"\w+", text))


@lru_cache(8 * MOST_PROGRAMS)
def _has(pattern: str, text: str) -> bool:
    """Whether a pattern is found in a program, which many scripts of a folder may start."""
    return re.search(pattern, text) is not None


def freezes(text: str) -> bool:
    """Whether a source lets weights not train, or some alone (``parameter.requires_grad = "head" in name``): that may
    be no full fine-tuning."""
    return "requires_grad" in text and _has(_FREEZES, text)


def trainers_of(text: str) -> frozenset[str]:
    """The trainers of TRL that a source calls, or builds a class of its own on, in the words of ``script.trainer``."""
    if "trl" not in text:
        return frozenset()
    return _as_trainers(re.findall(rf"\b(Online|)({'|'.join(_OF_TRL)})Trainer[(),]", text))


@lru_cache(MOST_PROGRAMS)
def names_of_trainers(text: str) -> frozenset[str]:
    """The trainers of TRL whose class, or whose class of arguments, a source names anywhere."""
    if "trl" not in text:
        return frozenset()
    return _as_trainers(re.findall(rf"(Online|)({'|'.join(_OF_TRL)})(?:Trainer|Config)\b", text))


def hints_at_trainer(setting: Setting | None, *texts: str) -> bool:
    """Whether what names hint at may be the trainer that these sources start: one of them names it, or it is none of
    those that a source tells apart.
    """
    if setting is None:
        return False
    named = frozenset[str]().union(*map(names_of_trainers, texts))
    return not named or setting.alias or setting.value not in _as_trainers(_EVERY) or setting.value in named


def _as_trainers(found: Iterable[tuple[str, str]]) -> frozenset[str]:
    return frozenset(_TRAINERS.get(name, "online_dpo" if online else name.lower()) for online, name in found)


def guards_sampling(text: str) -> bool:
    """Whether a source asks ``do_sample`` before it hands such options on: ``t if args.do_sample else None``."""
    return "do_sample" in text and _has(r"\bif\b[^\n]*\bdo_sample\b", text)


def has_own_loss(text: str) -> bool:
    """Whether a source has a loss of its own that need not hold all logits."""
    return _has(_OWN_LOSS, text)


@lru_cache(MOST_PROGRAMS)
def _fixed(text: str) -> frozenset[str]:
    """Every name that a source gives a value that stands there, in a table."""
    return frozenset(re.findall(r"""["']([^"'\n]+)["']\s*:\s*(?=["'\d]|True\b|False\b)""", text))


@lru_cache(MOST_PROGRAMS)
def _given(text: str) -> frozenset[str]:
    """Every name that a source gives a value, as an argument, by assignment, or in a table."""
    found = re.findall(_GIVEN, re.sub(_READS, "", text))
    return frozenset(name for one, held, other in found for name in (one, held if "_" in held else "", other) if name)


@lru_cache(MOST_PROGRAMS)
def _hands_on(text: str) -> bool:
    if _has(_OTHER_FRAMEWORK, text):
        return False
    if any(parser in text for parser in _PARSERS):
        named = [_classes(text, match.end()) for match in re.finditer(_PARSED, text)]
        if named and all(classes is not None for classes in named):
            return any(_is_arguments(text, name) for classes in named for name in classes or ())
        return any(_of_arguments(text, match) for match in re.finditer(_CLASS, text))
    if "**" not in text:
        return False
    calls = (match for called in _CALLED for match in re.finditer(called, text))
    return any(_of_arguments(text, match) and re.compile(_FILLED).match(text, match.end()) for match in calls)


def _classes(text: str, at: int) -> tuple[str, ...] | None:
    """The classes that a parser is made of, as they are named; None where they are not told there."""
    match = re.compile(_FIRST_ARGUMENT).match(text, at)
    names = tuple(name.strip().rpartition(".")[2] for name in match[1].split(",")) if match else ()
    names = tuple(name for name in names if name)
    return names if names and all(name[:1].isupper() for name in names) else None


def _is_arguments(text: str, name: str) -> bool:
    """Whether a class is one of training arguments, or is built on one."""
    match = re.search(_CLASS, name)
    if match is not None and match.end() == len(name) and _of_arguments(name, match):
        return re.search(rf"^class {re.escape(name)}[ \t]*(?:\([ \t]*\))?:", text, re.MULTILINE) is None  # its own
    base = re.search(rf"^class {re.escape(name)}\(([^()]*)\)", text, re.MULTILINE)
    return base is not None and any(_of_arguments(base[1], each) for each in re.finditer(_CLASS, base[1]))


def _of_arguments(text: str, match: re.Match[str]) -> bool:
    """Whether a name that ends so is that of a class of training arguments."""
    return match[0][0] == "T" or text.endswith(_OF_TRL, 0, match.start())


@lru_cache(512)
def _declaration(key: str) -> re.Pattern[str]:
    name = re.escape(key)
    return re.compile(rf"""["']--{name}["']|^[ \t]+{name}[ \t]*:[ \t]*[A-Za-z][^\n]*=|args\.{name}\b""", re.MULTILINE)


@lru_cache(512)
def _own(key: str, hands_on: bool) -> re.Pattern[str]:
    name = re.escape(key)
    flag = "[-_]".join(re.escape(part) for part in re.split("[-_]", key))
    ways = [rf"""["'](?:--?{flag}|{name})["'=]""", rf"^[ \t]+{name}[ \t]*:[ \t]*\w", rf"\bself\.{name}[ \t]*=(?!=)"]
    if not hands_on:  # of a library's arguments the attributes are the library's own
        ways.append(rf"\.{name}\b(?!\s*\()")
    return re.compile("|".join(ways), re.MULTILINE)
