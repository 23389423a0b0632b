"""A recording judged as if it were watched."""

import argparse
import sys

from kb.advice.watching import Watch
from kb.commands.monitor.outputs import Outputs
from kb.commands.monitor.replay import Replay
from kb.config.log.text import log_lines
from kb.report.monitor.summary import summary_text
from kb.report.style import choose_style
from kb.report.words import Words
from kb.session import cli

# Warnings that tell of a driver, and not of a limit.
_NO_FINDING = ("driver_gone", "driver_back")


def replay(options: argparse.Namespace, watch: Watch, words: Words) -> int:
    """Print what the recording comes to; 1 where it was beyond a target.

    Raises:
        UserError: it cannot be read, or is broken: with file and line.
    """
    fields = [name for name in (options.fields or "").split(",") if name.strip()]
    recording = Replay(log_lines(options.replay), options.replay, fields, options.interval)
    outputs = Outputs(options, words)
    try:
        sinks = outputs.sinks
        for snapshot in recording:
            watch.add(snapshot)
            for sink in sinks:
                sink(snapshot)
    finally:
        outputs.close()
    notes = [words(key, seconds=f"{options.interval:g}") for key in recording.notes] + outputs.lost()
    summary = watch.summary()
    if options.format == "json":
        from kb.report.monitor.json_report import summary_json

        cli.put(summary_json(summary, recording.kind, notes, options.versions))
    else:
        cli.put(summary_text(summary, words, choose_style(sys.stdout, options.color), notes))
    return cli.FINDINGS if set(summary.alert_counts).difference(_NO_FINDING) else cli.CLEAN
