"""``kb.lengths``: how long the samples of a data set are, and what each max_length would cut."""

import os
import sys
from collections.abc import Sequence

from kb import __version__
from kb.advice.data_lengths import spread_of
from kb.commands.options import Options
from kb.core.text import UserError
from kb.report.json_parts import head, to_json
from kb.report.lengths_report import Part, Report, lengths_object, lengths_text
from kb.report.terminal import choose_style
from kb.session import cli
from kb.session.data_lengths import WordCount, measure, tokenizer_at
from kb.session.knowledge import open_knowledge
from kb.session.project import find_project

ROWS, BATCH = 10_000, 8


def main(arguments: Sequence[str] | None = None) -> int:
    return cli.run(command, arguments)


def command(arguments: Sequence[str], language: str) -> int:
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
