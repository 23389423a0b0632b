"""``kb lengths``: how long the samples of a data set are, and what each max_length would cut.

Which columns hold the text, how its tokens are counted, and which rows are read.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kb import __version__
from kb.advice.data_lengths import spread_of
from kb.commands.options import Options
from kb.config.data_rows import Row, table_rows, text_rows
from kb.config.files import is_device
from kb.core.record import NamedTuple
from kb.core.text import UserError, nearest
from kb.report.json_parts import head, to_json
from kb.report.lengths_report import Part, Report, lengths_object, lengths_text
from kb.report.terminal import choose_style
from kb.session import cli
from kb.session.knowledge import open_knowledge
from kb.session.project import find_project

TABLES = (".parquet", ".arrow")
# Columns that data sets have as a rule: those of the input, and those of a target that an encoder-decoder model reads.
KNOWN: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("input_ids",), ()),
    (("messages",), ()),
    (("conversations",), ()),
    (("prompt", "completion"), ()),
    (("prompt", "response"), ()),
    (("instruction", "input", "output"), ()),
    (("instruction", "output"), ()),
    (("instruction", "response"), ()),
    (("document",), ("summary",)),
    (("article",), ("highlights",)),
    (("dialogue",), ("summary",)),
    (("text",), ("summary",)),
    (("text",), ()),
    (("content",), ()),
)
JUDGED = 200  # texts whose script is looked at
_LETTER, _LATIN = re.compile(r"[^\W\d_]"), re.compile(r"[A-Za-zÀ-ɏ]")
Count = Callable[[str], int]
ROWS, BATCH = 10_000, 8


@cli.program
def main(arguments: Sequence[str], language: str) -> int:
    """Measure the data that the arguments name; 2 where it cannot be read."""
    messages = cli.load_words_or_none(language)
    options = build_parser(messages).parse_args(arguments)
    if options.target and not options.column:
        raise UserError("lengths.target_alone")
    catalog, words = open_knowledge(options, find_project(os.getcwd()), language, messages)
    factor = options.tokens_per_word or catalog.constants["tokens_per_word"]
    by_words = WordCount(factor)
    count = tokenizer_at(options.tokenizer) if options.tokenizer else by_words
    found = measure(options.path, options.column, options.target, count, options.rows)
    parts = [Part("input", found.columns.inputs, spread_of(found.inputs, options.batch))]
    if found.columns.targets:
        parts.append(Part("target", found.columns.targets, spread_of(found.targets, options.batch)))
    way = "tokens" if found.counted else "tokenizer" if options.tokenizer else "words"
    report = Report(
        path=options.path,
        rows=found.rows,
        parts=tuple(parts),
        guessed=found.columns.guessed,
        batch=options.batch,
        counted=way,
        tokenizer=options.tokenizer if way == "tokenizer" else None,
        factor=factor if way == "words" else None,
        assumed=way == "words" and options.tokens_per_word is None,
        other_script=way == "words" and by_words.other_script,
    )
    if options.format == "json":
        cli.put(to_json({**head(__version__, catalog.version), **lengths_object(report)}))
    else:
        cli.put(lengths_text(report, words, choose_style(sys.stdout)))
    return cli.CLEAN


def build_parser(words: cli.Words) -> cli.Parser:
    made = Options(words, "lengths")
    parser, say = made.parser, made.say
    parser.add_argument("path", metavar="FILE|FOLDER", help=say("path"))
    data = made.group("data")
    data.add_argument("--column", action="append", default=[], metavar="NAME", help=say("column"))
    data.add_argument("--target", action="append", default=[], metavar="NAME", help=say("target"))
    most = cli.number(words, low=100, high=10_000_000)
    data.add_argument("--sample-rows", dest="rows", type=most, default=ROWS, metavar="N", help=say("sample_rows"))
    tokens = made.group("tokens")
    way = tokens.add_mutually_exclusive_group()
    way.add_argument("--tokenizer", metavar="DIR", help=say("tokenizer"))
    factor = cli.number(words, whole=False, low=0.1, high=100)
    way.add_argument("--tokens-per-word", type=factor, metavar="X", help=say("tokens_per_word"))
    batch = cli.number(words, low=1, high=1_000_000)
    tokens.add_argument("--batch", type=batch, default=BATCH, metavar="N", help=say("batch"))
    made.output(color=False)
    return parser


class Columns(NamedTuple):
    """``inputs`` make one sequence together; ``targets`` make a second, of an encoder-decoder model."""

    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    guessed: bool


class Measured(NamedTuple):
    """Lengths of the rows that were read, evenly spaced among ``rows`` in all. ``counted``: the columns hold tokens,
    nothing was left to count."""

    rows: int
    columns: Columns
    inputs: list[int]
    targets: list[int]
    counted: bool


class WordCount:
    """Tokens as words times a factor, where no tokenizer is at hand; it notes how much of the text is not Latin."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self._texts = self._letters = self._latin = 0

    def __call__(self, text: str) -> int:
        if self._texts < JUDGED:
            self._texts += 1
            self._letters += len(_LETTER.findall(text[:10_000]))
            self._latin += len(_LATIN.findall(text[:10_000]))
        return round(len(text.split()) * self.factor)

    @property
    def other_script(self) -> bool:
        """Whether more than a tenth of the letters are of another script than the factor's."""
        return self._latin < 0.9 * self._letters


def tokenizer_at(path: str) -> Count:
    """Counts by a ``tokenizer.json``, with its special tokens, without its truncation and padding.

    Raises:
        UserError: there is none, it is broken, or ``tokenizers`` is not installed.
    """
    file = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
    if not os.path.isfile(file):
        raise UserError("lengths.no_tokenizer", path=path)
    try:
        from tokenizers import Tokenizer  # optional: words are counted without it
    except ImportError:
        raise UserError("lengths.needs", path=path, library="tokenizers") from None
    try:
        tokenizer = Tokenizer.from_file(file)
    except Exception as error:  # what its Rust code says is a bare Exception
        raise UserError("lengths.unreadable", path=file, reason=str(error).partition("\n")[0]) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text).ids)


def measure(path: str, inputs: Sequence[str], targets: Sequence[str], count: Count, most: int) -> Measured:
    """The lengths of at most ``most`` rows, evenly spaced; the memory taken does not grow with the file.

    Args:
        inputs: columns of the input; guessed where empty.
        targets: columns of the target.

    Raises:
        UserError: the data cannot be read, has no rows, no text, or no such column.
    """
    columns: Columns | None = None
    kept: list[tuple[int, int]] = []
    stride, rows, counted = 1, 0, True
    for number, row in enumerate(_rows(path)):
        rows = number + 1
        if number % stride:
            continue
        values = row.read()
        if columns is None:
            columns = _columns(path, values, inputs, targets)
        read = _Reading(path, row.line, count)
        kept.append((read.length(values, columns.inputs), read.length(values, columns.targets)))
        counted = counted and not read.texts
        if len(kept) > most:
            kept, stride = kept[::2], stride * 2
    if columns is None:
        raise UserError("lengths.no_rows", path=path)
    found = Measured(rows, columns, [each[0] for each in kept], [each[1] for each in kept], counted)
    for part, lengths in ((columns.inputs, found.inputs), (columns.targets, found.targets)):
        if part and not any(lengths):
            raise UserError("lengths.no_text", path=path, columns=", ".join(part))
    return found


def _rows(path: str) -> Iterator[Row]:
    if is_device(path):
        raise UserError("config.not-a-file", path=path)
    try:
        if os.path.isdir(path) or path.lower().endswith(TABLES):
            yield from table_rows(path)
        else:
            yield from text_rows(path)
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError("lengths.unreadable", path=path, reason=reason) from None


def _columns(path: str, row: Mapping[str, Any], inputs: Sequence[str], targets: Sequence[str]) -> Columns:
    """As asked, else the first of the known ones that the row has."""
    for name in (*inputs, *targets):
        if name not in row:
            meant = nearest(name, row)
            key = "lengths.no_column_meant" if meant else "lengths.no_column"
            raise UserError(key, path=path, name=name, meant=meant[0] if meant else "", known=_named(row))
    if inputs:
        return Columns(tuple(inputs), tuple(targets), guessed=False)
    for found, target in KNOWN:
        if all(name in row for name in (*found, *target)):
            return Columns(found, target, guessed=True)
    raise UserError("lengths.which_column", path=path, known=_named(row))


def _named(row: Mapping[str, Any]) -> str:
    return ", ".join(map(str, row)) or "–"


class _Reading:
    """One row on its way to its length; ``texts`` is how many of its values had to be counted."""

    def __init__(self, path: str, line: int, count: Count) -> None:
        self.path, self.line, self.count, self.texts = path, line, count, 0

    def length(self, row: Mapping[str, Any], names: Sequence[str]) -> int:
        """Tokens of the columns together; one that the row lacks, or that is null, is empty."""
        if names and not any(name in row for name in names):
            raise UserError("lengths.row_without", path=self.path, at=str(self.line), columns=", ".join(names))
        texts, tokens = [], 0
        for name in names:
            value = row.get(name)
            if isinstance(value, list) and all(isinstance(each, int) for each in value):
                tokens += len(value)
            elif text := self._text(value, name):
                texts.append(text)
        self.texts += len(texts)
        return tokens + (self.count("\n".join(texts)) if texts else 0)

    def _text(self, value: Any, name: str) -> str:
        """A text, or the contents of messages (of ``messages`` and of ShareGPT's ``conversations``)."""
        if value is None or isinstance(value, str):
            return value or ""
        if isinstance(value, list):
            return "\n".join(filter(None, (self._text(each, name) for each in value)))
        if isinstance(value, Mapping) and (key := next((k for k in ("content", "value", "text") if k in value), None)):
            return self._text(value[key], name)
        if isinstance(value, Mapping) and ("role" in value or "type" in value):
            return ""  # a message without content (a call of a tool), an image
        raise UserError("lengths.not_text", path=self.path, at=str(self.line), name=name, kind=type(value).__name__)
