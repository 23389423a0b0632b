"""The model that a config names: of the catalogue, of a folder, of the cache, or guessed from its name."""

import re
from collections.abc import Collection, Mapping
from itertools import takewhile

from kb.core.catalog import Catalog
from kb.core.document import Unit
from kb.core.expression import Unknown
from kb.core.model import DYNAMIC_4BIT, Model
from kb.core.record import NamedTuple
from kb.core.text import UserError, fold, nearest

_TOKEN = (
    r"\d+(?:\.\d+)?x\d+(?:\.\d+)?b(?![a-z])|(?<![a-z0-9])a\d+(?:\.\d+)?b(?![a-z])|\d+(?:\.\d+)?[bm](?![a-z])"
    r"|\d+(?:\.\d+)?|[a-z]+"
)
_PARAMETERS = r"(?:a|\d+(?:\.\d+)?x)?\d+(?:\.\d+)?[bm]\Z"
_WORDS = frozenset(("tiny", "mini", "small", "base", "medium", "large", "xl", "xxl"))
# Names with these are of another architecture, or of weights that were made smaller or wider.
_OTHERS = frozenset(
    (
        *("vl", "vision", "audio", "omni", "speech", "vlm", "llava", "moe", "mamba", "ssm", "efficient", "long", "byt"),
        *("asr", "tts", "ocr"),
        *("embedding", "reranker", "reward", "rm", "draft", "eagle", "medusa", "pruned", "minitron", "expanded"),
        "upscaled",
        *("awq", "gptq", "gguf", "ggml", "fp", "int", "exl", "mlx", "onnx", "bit", "bnb", "quantized", "marlin", "hqq"),
        *("nvfp", "mxfp", "aqlm", "torchao", "w"),  # w4a16
        # built on a model whose name they keep: a vision tower, encoders over pieces of a long text, two towers
        *("idefics", "vila", "bunny", "cambrian", "colpali", "colqwen", "internvl", "minicpm", "cogvlm", "mipha"),
        *("minigpt", "mplug", "otter", "kosmos", "ovis", "video", "pixtral", "molmo", "openvla", "salmonn"),
        *("sled", "lsg", "longformer", "unlimiformer", "fid", "dpr", "clip"),
    )
)
# Behind a size that is a word they say that the model was made from scratch, with a vocabulary of its own:
# bert-base-dutch-cased, t5-base-japanese, deberta-v3-base-korean. Models of many languages are tuned for one.
_LANGUAGES = frozenset(
    (
        *("arabic", "bangla", "bengali", "chinese", "czech", "danish", "dutch", "estonian", "finnish", "french"),
        *("german", "greek", "hebrew", "hindi", "hungarian", "indonesian", "italian", "japanese", "korean", "latin"),
        *("malay", "marathi", "norwegian", "persian", "polish", "portuguese", "romanian", "russian", "serbian"),
        *("slovak", "slovenian", "spanish", "swedish", "tamil", "thai", "turkish", "ukrainian", "urdu", "vietnamese"),
    )
)
_OF_MANY_LANGUAGES = frozenset(("mt", "umt", "mbart", "xlm", "mdeberta", "multilingual", "nllb", "whisper"))
_IN_ONE_WORD = ("llava", "vlm", "blip", "flamingo")  # tinyllava, smolvlm, instructblip


class _Marks(NamedTuple):
    """What of a catalogued model's name must stand in a name that speaks of it."""

    family: tuple[str, ...]  # the tokens before the size
    size: tuple[str, ...]
    rest: tuple[str, ...]

    @property
    def weight(self) -> int:
        return len(self.family) + len(self.size) + len(self.rest)


def _may_say_a_size(folded: str) -> bool:
    """Whether a name is worth parting: each size has a digit, or is a word."""
    return any(letter.isdigit() for letter in folded) or any(word in folded for word in _WORDS)


def _tokens(name: str) -> tuple[str, ...]:
    tail = name.strip().rstrip("/").casefold().rpartition("/")[2]
    return tuple(re.findall(_TOKEN, tail[:200]))


def _marks_of(name: str) -> _Marks | None:
    """The marks in a catalogued model's name; None where it says no size, or nothing but one."""
    tokens = _tokens(name)
    sizes = [at for at, token in enumerate(tokens) if _is_size(token)]
    if not sizes or sizes[0] == 0:
        return None
    last = sizes[0]
    while last + 1 < len(tokens) and _is_size(tokens[last + 1]):
        last += 1
    return _Marks(tokens[: sizes[0]], tokens[sizes[0] : last + 1], tokens[last + 1 :])


def _is_size(token: str) -> bool:
    return token in _WORDS or re.match(_PARAMETERS, token) is not None


def _speaks_of(tokens: tuple[str, ...], marks: _Marks) -> bool:
    own = {*marks.family, *marks.size, *marks.rest}
    own |= {"asr"} if "whisper" in own else set()  # that is what it is for
    if any((token in _OTHERS or any(part in token for part in _IN_ONE_WORD)) and token not in own for token in tokens):
        return False
    sizes = tuple(token for token in tokens if _is_size(token))
    if sizes != marks.size:
        return False
    starts = [at for at in range(len(tokens)) if tokens[at : at + len(marks.family)] == marks.family]
    if not starts:
        return False
    behind = tokens[starts[0] + len(marks.family) :]
    if marks.size[0] in _WORDS:
        # many models made from scratch are called ko-t5-base: only the name itself, with something after it
        if starts[0] > 0 or behind[: len(marks.size)] != marks.size:
            return False
        if own.isdisjoint(_OF_MANY_LANGUAGES) and not _LANGUAGES.isdisjoint({*behind} - own):
            return False
    elif behind[:1] and behind[0][0].isdigit() and behind[0] not in marks.size:
        return False  # another version: gemma-3 is no gemma
    elif any(len(each) == 1 and each not in own for each in takewhile(lambda each: each != marks.size[0], behind)):
        return False  # gemma-3n-E4B is no gemma-3-4b
    return not marks.rest or any(behind[at : at + len(marks.rest)] == marks.rest for at in range(len(behind)))


# Saved under `unsloth/` as Llama's or Mistral's architecture: the same size, the fused projections in parts.
_SPLIT_BY_UNSLOTH = ("phi-4", "phi-3-mini", "phi-3-medium-4k-instruct")
IN_4BIT = (DYNAMIC_4BIT, "-bnb-4bit")  # end Unsloth's names for a model whose weights it stores in 4 bits


class ModelIndex:
    """Catalogued models by every name they answer to.

    Args:
        models: by id.
        called: every name of them, in small letters → the id; where it is empty, as the models say.
    """

    def __init__(self, models: Mapping[str, Model], called: Mapping[str, str] = {}) -> None:
        self._models = models
        self._called = called or {
            name.casefold(): model.id for model in models.values() for name in (model.id, model.name, *model.aliases)
        }
        self._by_tail: dict[str, str] = {}

    def resolve(self, name: str | None) -> Model | None:
        """The model that ``name`` means, or None: a name that is only similar is another model.

        ``google/mt5-base``, ``mt5-base`` and ``./models/mt5-base/`` are one: owners differ, dimensions do not.
        """
        if not name:
            return None
        wanted = _of_cache(name.strip()).rstrip("/").casefold()
        for suffix in IN_4BIT:
            wanted = wanted.removesuffix(suffix)
        known = self._called.get(wanted) or self._of_any_owner(wanted.rpartition("/")[2])
        found = self._models[known] if known else None
        if found is not None and found.id in _SPLIT_BY_UNSLOTH and wanted.startswith("unsloth/"):
            parts = found.architecture._replace(model_type="llama", fused_qkv=False, fused_gates=False)
            return found._replace(architecture=parts)
        return _of_this_name(found, wanted) if found is not None and found.other_weights else found

    def _of_any_owner(self, tail: str) -> str | None:
        """The model whose name ends so."""
        if not self._by_tail:
            for name, model in self._called.items():
                self._by_tail.setdefault(name.rpartition("/")[2], model)
        return self._by_tail.get(tail)

    def named_in_config(self, name: str) -> Model | None:
        """As :meth:`resolve`, of a name in a project's file. One by which kb alone calls a model, and which leaves out
        its size or version (``koelectra``), may be the project's own word for another: it is guessed from.
        """
        found, said = self.resolve(name), fold(name)
        if found is None or "/" in name or said in (fold(found.id), fold(found.name.rpartition("/")[2])):
            return found
        return found._replace(guessed_from=name) if fold(found.id).startswith(said) else found

    def guess(self, name: str) -> Model | None:
        """The model whose family *and* size the name says; None where it says less, or two models' alike.

        The weights are taken to have the base model's dimensions. Names that speak of another architecture or of
        quantized files are left alone. ``guessed_from`` of the model is the name.
        """
        called = _of_cache(name)
        if not _may_say_a_size(called.casefold()):
            return None
        tokens = _tokens(called)
        sizes = [token for token in tokens if _is_size(token)]
        alike = [each for each in self._called if all(size in each for size in sizes)] if sizes else []
        marked = [(marks, self._called[each]) for each in alike if (marks := _marks_of(each)) is not None]
        found = [(marks.weight, model) for marks, model in marked if _speaks_of(tokens, marks)]
        most = max((weight for weight, _ in found), default=0)
        models = [self._models[model] for model in dict.fromkeys(model for weight, model in found if weight == most)]
        if len({model.architecture for model in models}) != 1:
            return None
        return models[0]._replace(guessed_from=name)


def _of_cache(name: str) -> str:
    """The repository of a folder of the Hub's cache, ``…/models--Qwen--Qwen3-8B/snapshots/d0e1…`` (huggingface_hub,
    ``repo_folder_name``); any other name as it is."""
    before, _, inside = name.partition("models--")
    folder, _, rest = inside.partition("/")
    return folder.replace("--", "/") if rest.startswith("snapshots/") and before[-1:] in ("", "/") else name


def _of_this_name(model: Model, wanted: str) -> Model:
    """The model with the type that the checkpoint of this very name stores."""
    tail = wanted.rpartition("/")[2]
    stored = next((each for name, each in model.other_weights if name.casefold().rpartition("/")[2] == tail), None)
    return model if stored is None else model._replace(weights_dtype=stored, packed=None)


def unknown_model(name: str, catalog: Catalog) -> UserError:
    """The error for a model that kb does not know, with those whose name it may be a misspelling of."""
    names = {each: model.id for model in catalog.models.values() for each in (model.id, model.name, *model.aliases)}
    leaf, leaves = _leaf(name), {each: _leaf(each) for each in names}
    same = [each for each in names if leaf and fold(leaves[each]) == fold(leaf)]
    known = {word for each in leaves.values() for word in _words(each)}
    alike = same or [each for each in names if _misspells(leaf, leaves[each], known)]
    meant = list(dict.fromkeys(names[each] for each in nearest(name, alike, count=4, cutoff=0.0)))[:3]
    key = "recommend.unknown_model" if meant else "recommend.unknown_model_alone"
    return UserError(key, name=name[:100], meant=", ".join(meant))


def _leaf(name: str) -> str:
    return name.strip().rstrip("/").casefold().rpartition("/")[2][:100]


def _words(leaf: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?|[^\W\d_]+", leaf)


def _misspells(leaf: str, meant: str, known: Collection[str]) -> bool:
    """Whether a name is a known one begun, or has a letter wrong in one word that no name has. With another number it
    is of another version or size, with an x more (XL, XXL) of another size, and with another first letter (mT5, umT5)
    of another family."""
    if leaf and meant.startswith(leaf):
        return not re.match(r"[._]?\d", meant[len(leaf) :])  # phi-1 is no Phi-1.5, and StarCoder no StarCoder2
    one, other = _words(leaf), _words(meant)
    apart = [(left, right) for left, right in zip(one, other, strict=False) if left != right]
    if len(one) != len(other) or len(apart) != 1 or apart[0][0] in known:
        return False
    ((left, right),) = apart
    of_sizes = right in ("xl", "xxl")
    return left[0] == right[0] and not of_sizes and right.isalpha() and _differ_by_a_letter(left, right)


def _differ_by_a_letter(one: str, other: str) -> bool:
    """Whether a letter is too many, too few or another, or two are turned round."""
    begin = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    one, other = one[begin:], other[begin:]
    return one[1:] in (other, other[1:]) or one == other[1:] or (one[2:] == other[2:] and one[:2] == other[1::-1])


def with_model_of_project(unit: Unit, models: Mapping[str, str], left_open: str | None) -> Unit:
    """The unit with its project's model: of a name that only the project knows, or that the file leaves open.

    Args:
        models: ``[models]`` of ``kb.toml``: the name in a file → the model that lies there.
        left_open: the model of what sets one that only the run can tell (``model.name`` of ``[facts]``).
    """
    said = unit.settings.get("model.name")
    if said is None or not (models or left_open):
        return unit
    if isinstance(said.value, str):
        own = {_of_folder(name): model for name, model in models.items()}
        known = own.get(_of_folder(said.value))
    else:
        known = left_open if isinstance(said.value, Unknown) else None
    if known is None:
        return unit
    return unit._replace(settings={**unit.settings, "model.name": said._replace(value=known)})


def _of_folder(name: str) -> str:
    return name.strip().removeprefix("./").rstrip("/")


HEADS: Mapping[str, str] = {
    "sequence": "ForSequenceClassification",
    "token": "ForTokenClassification",
    "span": "ForQuestionAnswering",
    "masked": "ForMaskedLM",
    "none": "AutoModel",
}


def with_head(unit: Unit, model: Model | None) -> tuple[Unit, Model | None]:
    """The model with the head that the program's class puts on it, whatever the checkpoint was saved with.

    Where kb follows no such head on this type of model, the unit says that it is not modelled. A reward trainer's head
    is a part of its run.
    """
    said = unit.settings.get("model.head")
    trainer = unit.settings.get("script.trainer")
    if model is None or said is None or said.value not in HEADS or (trainer and trainer.value in ("reward", "prm")):
        return unit, model
    found = model.architecture
    if said.value == found.head or (said.value == "none" and found.head != "causal"):  # an encoder's head is small
        return unit, model
    if found.head == "causal":
        beyond = said._replace(value=HEADS[said.value])
        return unit._replace(settings={"run.not_modelled": beyond, **unit.settings}), model
    return unit, model._replace(architecture=found._replace(head=said.value, pooler=said.value == "sequence", labels=2))


# What names of checkpoints that are stored packed hold; of one in a folder its config.json says it.
_PACKED = ("bit", "bnb", "gptq", "awq", "int4", "int8", "fp8", "hqq", "aqlm", "eetq", "gguf", "quant")


def may_be_stored_packed(name: str) -> bool:
    """Whether a checkpoint may bring a ``quantization_config`` of its own: its name says so, or it lies in a folder."""
    return name[:1] in ("", ".", "/", "~") or any(word in name.casefold() for word in _PACKED)


# How owners call the checkpoints in which they pack the weights of a model of their own. Qwen's fp8 packs all layers;
# Meta's leaves the attention in 16 bits (vllm-project/vllm#6746: a rank of 405B has 57.8 GiB; all packed 47.8).
PACKED_UNDER = {"-awq": "awq", "-gptq-int4": "gptq"}
PACKED_UNDER_OF_QWEN = {**PACKED_UNDER, "-gptq-int8": "gptq-int8", "-fp8": "fp8"}
_OWN_GPTQ_IN_PART = ("qwen3.5", "qwen3.6")  # attention stays in 16 bits: "dynamic" of their quantization_config
# Those who pack models of others: AWQ of 4 bits for 128 weights (their quant_config.json), and Red Hat's of all linear
# layers (the files of Llama-3.1-70B w8a8 have 72.7 GB: a byte a weight, the tables in 16 bits).
_AWQ = {"-awq": "awq"}
_RED_HAT = {"-fp8": "fp8", "-fp8-dynamic": "fp8", "-quantized.w8a8": "int8", "-quantized.w4a16": "gptq"}
PACKERS = {"thebloke": _AWQ, "solidrust": _AWQ, "redhatai": _RED_HAT, "neuralmagic": _RED_HAT}


def packed_by_name(name: str, called: Mapping[str, str]) -> tuple[str, str | None]:
    """The model whose weights its owner, or one who packs those of others, packs under this name, and how; of any other
    name the name itself."""
    wanted = name.casefold()
    owner, _, tail = wanted.rpartition("/")
    if not owner or wanted in called:
        return name, None
    named = PACKERS.get(owner) or (PACKED_UNDER_OF_QWEN if owner == "qwen" else PACKED_UNDER)
    for ending, packing in named.items():
        if not wanted.endswith(ending):
            continue
        base, of_another = wanted.removesuffix(ending), tail.removesuffix(ending)
        if owner in PACKERS:  # who leaves the owner of the model out, and -hf
            alike = (of_another, of_another + "-hf")
            base = next((each for each in called if each.rpartition("/")[2] in alike), base)
        in_part = packing.startswith("gptq") and tail.startswith(_OWN_GPTQ_IN_PART)
        if base in called and not in_part:
            return base, packing
    return name, None
