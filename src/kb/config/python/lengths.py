"""How many tokens the rows of a data set are cut to, and how many rows there are, as the code that does it says."""

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from kb.config.python.calls import Call
from kb.config.python.expressions import Expressions, untold
from kb.config.python.held import UnknownValueError
from kb.config.python.names import Names
from kb.config.python.places import MAX_STEPS, Where
from kb.config.python.syntax import Module, called_name, words_of
from kb.config.python.values import Values
from kb.core.document import Setting
from kb.core.finding import Span
from kb.core.record import NamedTuple

EVALUATED, GIVEN = "data.eval_samples", "eval_dataset"
SPLIT, SELECT, LOAD = "train_test_split", "select", "load_dataset"
SIZES = {"test": "test_size", "train": "train_size"}
# Methods of a Dataset or a DatasetDict (datasets 4.x, arrow_dataset.py) that give as many rows back, or fewer.
NO_MORE = frozenset((
    "shuffle", "sort", "filter", "remove_columns", "rename_column", "rename_columns", "select_columns", "with_format",
    "with_transform", "cast", "cast_column", "add_column", "flatten_indices", "class_encode_column", "map",
))  # fmt: skip
BATCHED = "batched"  # of ``map``: a function of many rows may give more back
_FIRST = r"\w+\[:(\d+)\]"  # ``split="test[:200]"``


def evaluated_rows(call: Call, expressions: Expressions, span: Span) -> dict[str, Setting]:
    """What a trainer's call says by the data set that it evaluates, where the code tells how long that is."""
    given = call.argument(GIVEN)
    if given is None or call.home is not None:
        return {}
    try:
        rows = _rows(given, call.where, expressions, None)
    except UnknownValueError:
        return {}
    return {EVALUATED: Setting(rows, span, span, (GIVEN,), alias=True)} if rows > 0 else {}


def _rows(node: ast.expr, at: Where, known: Expressions, key: str | None, depth: int = 0) -> int:
    """The rows of a data set, or of one of a dictionary of them.

    Raises:
        UnknownValueError: nothing says it.
    """
    if depth > MAX_STEPS:
        raise UnknownValueError
    if isinstance(node, ast.Name):
        binding = known.bound(node.id, at)
        if binding is None or binding.value is None or not binding.where.holds_at(at):
            raise UnknownValueError
        return _rows(binding.value, binding.where.told(at), known, key, depth + 1)
    if isinstance(node, ast.Subscript) and key is None:
        if isinstance(node.slice, ast.Slice):
            raise UnknownValueError  # of a Dataset that is a dictionary of columns
        name = known.read(node.slice, at).data
        return _rows(node.value, at, known, str(name), depth + 1)
    if isinstance(node, ast.Call):
        return _of_call(node, at, known, key, depth)
    raise UnknownValueError


def _of_call(node: ast.Call, at: Where, known: Expressions, key: str | None, depth: int) -> int:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    named = {keyword.arg: keyword.value for keyword in node.keywords}
    if name == LOAD and key is None and "split" in named:
        found = re.fullmatch(_FIRST, str(known.read(named["split"], at).data))
        if found is not None:
            return int(found[1])
    if not isinstance(node.func, ast.Attribute):
        raise UnknownValueError
    if name == SELECT and key is None and node.args:
        return _counted(node.args[0], at, known)
    if name == SPLIT and key in SIZES and SIZES[key] in named:
        return _whole(named[SIZES[key]], at, known)
    if name not in NO_MORE or BATCHED in named:
        raise UnknownValueError
    return _rows(node.func.value, at, known, key, depth + 1)


def _counted(node: ast.expr, at: Where, known: Expressions) -> int:
    """The numbers of ``range(200)``; of ``range(min(200, len(rows)))`` as many at most."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"):
        raise UnknownValueError
    if len(node.args) == 2:
        return _whole(node.args[1], at, known) - _whole(node.args[0], at, known)
    if len(node.args) != 1:
        raise UnknownValueError
    end = node.args[0]
    if isinstance(end, ast.Call) and isinstance(end.func, ast.Name) and end.func.id == "min":
        for each in end.args:
            try:
                return _whole(each, at, known)
            except UnknownValueError:
                continue
        raise UnknownValueError
    return _whole(end, at, known)


def _whole(node: ast.expr, at: Where, known: Expressions) -> int:
    value = known.read(node, at).data
    if type(value) is not int:
        raise UnknownValueError
    return value


SOURCE, TARGET = "data.max_source_length", "data.max_target_length"
# Names that programs give the length of a row, folded; texts are cut to one of OF_GROUPS where they are grouped.
OF_ROWS = ("max_input_length", "max_source_length", "max_seq_length", "max_seq_len", "max_input_len", "max_source_len")
OF_ANSWERS = ("max_target_length", "max_target_len", "max_label_length")
CUT = "max_seq_length"
WORD = ("max_length",)  # what a length is called that has no one name
OF_GROUPS, GROUPING = ("block_size", "chunk_size"), "group_texts"
MOST = 1_000_000  # tokens; what is longer is a size of something else


def lengths_by_constants(module: Module, names: Names, values: Values) -> dict[str, Setting]:
    """The lengths that plain constants at the top of a module give, each where it is assigned and used once."""
    found: dict[str, Setting] = {}
    grouped = GROUPING in names.uses
    for setting, known in ((SOURCE, (*OF_ROWS, *(OF_GROUPS if grouped else ()))), (TARGET, OF_ANSWERS)):
        named = [name for name in names.at_top() if name.casefold() in known and name in names.uses]
        read = [(name, binding) for name in named if (binding := names.only(name)) is not None]
        given = [(name, value, length) for name, (value, at) in read if (length := _length(values, value, at))]
        if len({length for _, _, length in given}) == 1:
            name, value, length = given[0]
            found[setting] = _set_at(module, value, length, name)
    if grouped and SOURCE not in found:
        found |= _length_of_groups(module)
    return found or _length_of_embedder(module, names)


class Around(NamedTuple):
    """A module's tree and those of the project that it takes something from."""

    trees: tuple[ast.AST, ...]
    cut: bool  # whether a tokenizer is told to cut
    flags: (
        tuple[tuple[str, int | None], ...] | None
    )  # numbers of the command; None: what it has by default says nothing


def lengths_inferred(around: Around, span: Span) -> dict[str, Setting]:
    """How long the rows of a program's own data sets are, where numbers under such names agree; unknown where they do
    not, or where no tokenizer is told to cut to what the model takes."""
    cut = around.cut and not cuts_out_of_sight(around.trees)
    found: dict[str, Setting] = {}
    for name, numbers in lengths_by_names(around.trees, flags=around.flags).items():
        if len(numbers) == 1:
            word = (name.rpartition(".")[2],)
            found[name] = Setting(next(iter(numbers)), span, span, word, alias=True, by_default=True)
        elif numbers or (name == SOURCE and not cut):
            found[name] = Setting(untold(name), span, span, WORD, alias=True)
    return found | rows_joined(around.trees, span)


JOINED = "run.not_modelled"
_FILLS = r"(?i)pad|\b(?:full|zeros|ones|tensor|LongTensor)(?:_like)?\(|\bnew_"
_EACH = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp)


def rows_joined(trees: Sequence[ast.AST], span: Span) -> dict[str, Setting]:
    """The collator that puts two tensors or two lists of rows behind one another (``torch.cat([one, other])``), as of
    pairs: a step has more rows than its batch. What is joined to each row, or fills one up, is none."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    handed = {
        each.id
        for node in nodes
        if isinstance(node, ast.keyword) and node.arg in ("collate_fn", "data_collator")
        for each in ast.walk(node.value)
        if isinstance(each, ast.Name)
    }
    made = [each for each in nodes if isinstance(each, ast.FunctionDef | ast.ClassDef) and _collates(each)]
    for node in [each for each in made if each.name in handed] or made:
        within = [node] if isinstance(node, ast.FunctionDef) else [
            each for each in node.body if isinstance(each, ast.FunctionDef) and each.name in ("__call__", "torch_call")
        ]  # fmt: skip
        if any(_joins(each) for function in within for each in _once(function)):
            return {JOINED: Setting(node.name, span, span, (node.name,), alias=True)}
    return {}


def _collates(node: ast.FunctionDef | ast.ClassDef) -> bool:
    return "collat" in node.name.casefold()


def _joins(node: ast.AST) -> bool:
    """Whether two batches, or two lists with something of each row, are put behind one another."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return isinstance(node.left, ast.ListComp) and isinstance(node.right, ast.ListComp)
    if not isinstance(node, ast.Call) or called_name(node) not in ("cat", "concat", "concatenate", "vstack"):
        return False
    parts = getattr(node.args[0], "elts", []) if node.args else []
    along = [*node.args[1:], *(each.value for each in node.keywords if each.arg in ("dim", "axis"))]
    first = all(isinstance(each, ast.Constant) and each.value == 0 for each in along)
    return first and len(parts) > 1 and not any(re.search(_FILLS, ast.unparse(each)) for each in parts)


def _once(node: ast.AST) -> Iterator[ast.AST]:
    """What of a function is done once, not for each row."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _EACH):
            yield child
            yield from _once(child)


LENGTH_WORDS = frozenset(("len", "length", "maxlen", "seqlen", "maxlength", "seqlength", "ctx"))
_OF_TARGETS = frozenset(
    ("target", "tgt", "summary", "label", "labels", "answer", "decoder", "dec", "response", "reply")
)
_OF_OTHERS = frozenset((  # of what is generated, counted or paid for
    "min", "gen", "generate", "generated", "generation", "new", "output", "penalty", "warmup", "query", "doc", "mean",
    "avg", "total", "train", "val", "test", "data", "dataset", "audio", "stride", "overlap", "name", "names", "title",
    "line", "lines", "char", "chars", "word", "words", "display", "print", "log", "preview", "snippet", "file", "path",
    "id", "prefix", "suffix", "buffer", "queue", "cache", "history", "password", "url", "column", "key",
))  # fmt: skip
LEAST = 8  # tokens: what is shorter is a length of something else


@lru_cache(1)  # every loop of a program asks
def lengths_by_names(
    modules: tuple[ast.AST, ...], *, flags: tuple[tuple[str, int | None], ...] | None = ()
) -> dict[str, set[int]]:
    """The lengths that plain numbers give under such names anywhere in a program, for what its own data sets cut to:
    ``max_len=64`` of a call, ``MAX_LENGTH = 64``, ``"max_length": 64``, a flag ``--max_len``. A number that is given by
    position counts under the argument's name, and an argument's default where nothing else has that name.

    Args:
        flags: what the command gives flags in the place of their defaults; None where it may give any.
    """
    nodes = [node for tree in modules for node in ast.walk(tree)]
    apart = _of_generating(nodes)
    nodes = [node for node in nodes if id(node) not in apart]
    told = dict(flags or ())
    given = [
        pair for node in nodes if flags is not None or called_name(node) != "add_argument"
        for pair in _numbered(node, told)
    ]  # fmt: skip
    calls: dict[str, list[ast.Call]] = {}
    for node in nodes:
        if isinstance(node, ast.Call):
            calls.setdefault(called_name(node), []).append(node)
    functions = [(function, calls.get(called, [])) for function, called in _functions(nodes)]
    handed = {name for function, made in functions for name in _handed(function, made)}
    for function, made in functions:
        given += _by_position(function, made, {*handed, *(name for name, _ in given)})
    found: dict[str, set[int]] = {SOURCE: set(), TARGET: set()}
    for name, value in given:
        words = words_of(name)
        if words & LENGTH_WORDS and not words & _OF_OTHERS and LEAST <= value <= MOST:
            found[TARGET if words & _OF_TARGETS else SOURCE].add(value)
    return found


_NO = ast.Constant(False)


@lru_cache(1)
def cuts_out_of_sight(modules: tuple[ast.AST, ...]) -> bool:
    """Whether a tokenizer of a program is told to cut to a length that is no plain number: ``max_length=limit``."""
    for node in (node for tree in modules for node in ast.walk(tree) if isinstance(node, ast.Call)):
        given = {each.arg: each.value for each in node.keywords}
        length = given.get("max_length", ast.Constant(None))
        if (
            getattr(given.get("truncation", _NO), "value", True) is not False
            and not isinstance(length, ast.Constant)
            and "model_max_length" not in ast.unparse(length)
        ):
            return True
    return False


_GENERATES = frozenset((
    "num_beams", "do_sample", "top_k", "top_p", "temperature", "max_new_tokens", "no_repeat_ngram_size",
    "repetition_penalty", "num_return_sequences", "early_stopping", "length_penalty",
))  # fmt: skip


_ANSWERS = frozenset((
    "generate", "generation", "pipeline", "sample", "sampling", "decode", "infer", "inference", "predict", "prediction",
    "beam", "respond",
))  # fmt: skip


_OF_ROWS = frozenset(("dataset", "data", "loader", "collator", "collate", "tokenizer", "tokenize", "examples", "train"))


def _generates(name: str) -> bool:
    """Whether a function or class is named for what it has a model write, not for what it reads."""
    words = words_of(name)
    return not _ANSWERS.isdisjoint(words) and _OF_ROWS.isdisjoint(words)


def _of_generating(nodes: Iterable[ast.AST]) -> set[int]:
    """The dictionaries that ``generate(**options)`` is given, by their ids: by their name or by what is in them."""
    names: set[str] = set()
    found: set[int] = set()
    dictionaries: list[tuple[str, ast.Dict]] = []
    for node in nodes:
        if isinstance(node, ast.Call) and called_name(node) == "generate":
            names |= {each.value.id for each in node.keywords if each.arg is None and isinstance(each.value, ast.Name)}
        elif isinstance(node, ast.Dict):
            keys = {each.value for each in node.keys if isinstance(each, ast.Constant)}
            if keys & _GENERATES and len(keys & _GENERATES) * 2 >= len(keys) - 1:
                found.add(id(node))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            dictionaries += [(each.id, node.value) for each in node.targets if isinstance(each, ast.Name)]
    return found | {id(node) for name, node in dictionaries if name in names}


def _functions(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.FunctionDef, str]]:
    """Every function, and the name that it is called by: of ``__init__`` that of its class."""
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            made = (each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
            yield from ((each, node.name) for each in made)
        elif isinstance(node, ast.FunctionDef) and node.name != "__init__" and _cuts(node):
            yield node, node.name


def _cuts(function: ast.FunctionDef) -> bool:
    """Whether a function has to do with tokens: another shortens a text, or a line that it prints."""
    return not _generates(function.name) and "token" in ast.unparse(function)


def _placed(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args]


def _names(placed: Iterable[ast.arg]) -> list[str]:
    return [each.arg for each in placed if each.arg not in ("self", "cls")]


def _handed(function: ast.FunctionDef, calls: Iterable[ast.Call]) -> Iterator[str]:
    """The arguments that some call of a function gives a value, whatever it is."""
    for call in calls:
        yield from (name for name, _ in zip(_names(_placed(function)), call.args, strict=False))
        yield from (each.arg for each in call.keywords if each.arg)


def _by_position(function: ast.FunctionDef, calls: Sequence[ast.Call], known: Collection[str]) -> list[tuple[str, int]]:
    """The numbers that a function's calls give by position, else the defaults of arguments that nothing else names."""
    placed = _placed(function)
    found = [
        (name, value.value) for call in calls for name, value in zip(_names(placed), call.args, strict=False)
        if isinstance(value, ast.Constant) and type(value.value) is int
    ]  # fmt: skip
    defaults = dict(zip((each.arg for each in placed[::-1]), function.args.defaults[::-1], strict=False))
    defaults |= {
        arg.arg: each for arg, each in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if each
    }
    return found + [
        (name, each.value) for name, each in defaults.items()
        if name not in known and isinstance(each, ast.Constant) and type(each.value) is int
    ]  # fmt: skip


def _numbered(node: ast.AST, flags: Mapping[str, int | None]) -> Iterator[tuple[str, int]]:
    """The names that an assignment, a dictionary or a call gives a plain number, or the command a flag."""
    pairs: list[tuple[str | None, ast.expr | None]] = []
    if isinstance(node, ast.Assign):
        pairs = [(called_or_named(each), node.value) for each in node.targets]
    elif isinstance(node, ast.AnnAssign):
        pairs = [(called_or_named(node.target), node.value)]
    elif isinstance(node, ast.Dict):
        keys = ((getattr(key, "value", None), value) for key, value in zip(node.keys, node.values, strict=True))
        pairs = [(key, value) for key, value in keys if isinstance(key, str)]
    elif isinstance(node, ast.Call) and not _generates(called_name(node)):
        pairs = [(each.arg, each.value) for each in node.keywords]
        flag = node.args[0] if node.args and called_name(node) == "add_argument" else None
        if isinstance(flag, ast.Constant):
            key = str(flag.value).lstrip("-").replace("-", "_")
            default = next((each.value for each in node.keywords if each.arg == "default"), None)
            pairs = [(key, ast.Constant(flags[key]) if key in flags else default)]
    for name, value in pairs:
        if name and isinstance(value, ast.Constant) and type(value.value) is int:
            yield name, value.value


def called_or_named(node: ast.expr) -> str | None:
    """``max_len`` of ``max_len``, ``self.max_len`` and ``config["max_len"]``."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)


def _length_of_groups(module: Module) -> dict[str, Setting]:
    """The length that texts joined together are cut to, where a function says it: ``block_size = 128``, or
    ``group_texts(rows, 128)``; none where several are said."""
    said: list[ast.expr] = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assign):
            said += [node.value for each in node.targets if isinstance(each, ast.Name) and each.id in OF_GROUPS]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == GROUPING:
            said += node.args[1:2]
    known = {each.value for each in said if isinstance(each, ast.Constant) and type(each.value) is int}
    length = known.pop() if len(known) == 1 and all(isinstance(each, ast.Constant) for each in said) else None
    if not (isinstance(length, int) and 1 < length <= MOST):
        return {}
    return {SOURCE: _set_at(module, said[0], length, OF_GROUPS[0])}


def _length_of_embedder(module: Module, names: Names) -> dict[str, Setting]:
    """The length that a model of sentence-transformers is set to after it is made: ``model.max_seq_length = 128``."""
    if CUT not in names.stored or not names.imports("sentence_transformers"):
        return {}
    found = [
        node.value for node in ast.walk(module.tree) if isinstance(node, ast.Assign)
        for each in node.targets if isinstance(each, ast.Attribute) and each.attr == CUT
    ]  # fmt: skip
    value = found[0] if len(found) == 1 else None
    if isinstance(value, ast.Name):
        known = names.only(value.id)
        value = known[0] if known is not None else None
    if not (isinstance(value, ast.Constant) and type(value.value) is int and 1 < value.value <= MOST):
        return {}
    return {SOURCE: _set_at(module, value, value.value, CUT)}


def _set_at(module: Module, place: ast.expr, length: int, name: str) -> Setting:
    span = module.span(place)
    return Setting(length, span, span, (name,), alias=True)


def _length(values: Values, value: ast.expr, at: Where) -> int | None:
    length = values.scalar_of(value, at)
    whole = isinstance(length, int) and not isinstance(length, bool)
    return length if whole and 1 < length <= MOST else None
