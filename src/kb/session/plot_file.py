"""Drawings put into files: SVG as it is, PNG through a converter that happens to be installed."""

import os
from collections.abc import Sequence
from typing import Any

from kb.advice.estimate import Estimated
from kb.core.text import UserError
from kb.report.estimate_report import timeline_json
from kb.report.timeline import timeline_svg

TIMEOUT_SECONDS = 60


def write_pictures(found: Sequence[Estimated], plot: str | None, timeline: str | None, words: Any) -> None:
    """Each run over time as a drawing and as JSON, where it is known; the second run's file gets a number, and so on.

    Raises:
        UserError: a file cannot be written, or no converter to PNG is here.
    """
    done = [one for one in found if one.drawn is not None]
    for number, one in enumerate(done, 1):
        if plot is not None:
            write_plot(numbered(plot, number), timeline_svg(one, words))
        if timeline is not None:
            _write(numbered(timeline, number), timeline_json(one.drawn).encode())


def numbered(path: str, number: int) -> str:
    """``plot.svg`` for the first run, ``plot-2.svg`` for the second."""
    stem, suffix = os.path.splitext(path)
    return path if number == 1 else f"{stem}-{number}{suffix}"


def write_plot(path: str, svg: str) -> None:
    """Write ``svg`` to ``path``, converted where its name ends in ``.png``.

    Raises:
        UserError: no converter is installed or it fails, or the file cannot be written.
    """
    _write(path, _png(svg) if path.lower().endswith(".png") else svg.encode())


def _write(path: str, content: bytes) -> None:
    try:
        with open(path, "wb") as stream:
            stream.write(content)
    except OSError as error:
        raise UserError("history.plot_unwritable", path=path, reason=error.strerror or str(error)) from None


def _png(svg: str) -> bytes:
    """Twice the drawing's size, by the package cairosvg, else by the program rsvg-convert."""
    try:
        import cairosvg  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except (ImportError, OSError):  # OSError: the package is here, the library cairo is not
        return _by_program(svg)
    content: bytes = cairosvg.svg2png(bytestring=svg.encode(), scale=2)
    return content


def _by_program(svg: str) -> bytes:
    import shutil
    import subprocess

    program = shutil.which("rsvg-convert")
    if program is None:
        raise UserError("history.no_converter")
    command = [program, "--format", "png", "--zoom", "2"]
    try:
        run = subprocess.run(command, input=svg.encode(), capture_output=True, timeout=TIMEOUT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError("history.not_converted", program=program, reason=str(error)) from None
    return run.stdout
