"""Width, colour and block characters follow the stream, the options and NO_COLOR."""

import io

import pytest

from kb.report.terminal import choose_style


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


class Pipe(io.StringIO):
    def __init__(self, encoding: str | None) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str | None:  # type: ignore[override]
        return self._encoding


@pytest.mark.parametrize(
    ("stream", "color", "environ", "colored"),
    [
        (Terminal(), "auto", {}, True),
        (Terminal(), "auto", {"NO_COLOR": "1"}, False),
        (Terminal(), "auto", {"NO_COLOR": ""}, True),
        (Terminal(), "auto", {"TERM": "dumb"}, False),
        (Terminal(), "always", {"NO_COLOR": "1"}, True),
        (Terminal(), "never", {}, False),
        (Pipe("utf-8"), "auto", {}, False),
        (Pipe("utf-8"), "always", {}, True),
    ],
)
def test_color_only_where_it_is_wanted(stream: io.StringIO, color: str, environ: dict[str, str], colored: bool) -> None:
    assert choose_style(stream, color, environ).color is colored


@pytest.mark.parametrize(("said", "width"), [("72", 72), ("300", 100), ("10", 60), ("wide", 80)])
def test_a_terminal_is_used_up_to_100_columns(said: str, width: int) -> None:
    assert choose_style(Terminal(), "auto", {"COLUMNS": said}).width == width


def test_a_pipe_gets_80_columns_whatever_the_terminal_has() -> None:
    assert choose_style(Pipe("utf-8"), "auto", {"COLUMNS": "200"}).width == 80


@pytest.mark.parametrize(("encoding", "holds"), [("utf-8", True), ("ascii", False), (None, False), ("latin-1", False)])
def test_blocks_are_drawn_only_where_the_encoding_holds_them(encoding: str | None, holds: bool) -> None:
    assert choose_style(Pipe(encoding), "auto", {}).unicode is holds


def test_a_closed_stream_is_no_terminal() -> None:
    stream = io.StringIO()
    stream.close()
    assert not choose_style(stream, "auto", {}).color
