"""The few shapes of kb's drawings as SVG text (coordinates in pixels, y downwards), and the colours of terms."""

from xml.sax.saxutils import escape

FONT = "system-ui, 'Noto Sans KR', 'Apple SD Gothic Neo', 'Malgun Gothic', sans-serif"
INK, FAINT = "#1a1a1a", "#d0d0d0"
PALE = 0.35
# A term has one colour in every drawing, the playground's too (kb-dom.mjs); those of one colour hardly meet in one run.
HUES = {
    "parameters": 0,
    "optimizer": 1,
    "gradients": 2,
    "gradients_held": 2,
    "activations_decoder": 3,
    "activations_encoder": 4,
    "reference_model": 4,
    "logits": 5,
    "loss": 6,
    "vllm": 6,
    "buckets": 6,
    "activations_head": 7,
    "adapters": 7,
    "vllm_weights": 7,
    "kv_cache_self": 10,
    "gathered": 10,
    "autocast_copies": 10,
    "gathered_parameters": 10,
    "kv_cache_cross": 11,
    "temporaries": 11,
    "quantization": 11,
}
SMALL, UNUSED = 8, 9  # colours of all other terms, and of what no term holds


def document(width: float, height: float, title: str, described: str, parts: list[str]) -> str:
    """A whole drawing on white, with a title and a description for who cannot see it."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-labelledby="title desc" font-family="{escape(FONT)}" font-size="12">'
    )
    named = [f'<title id="title">{escape(title)}</title>', f'<desc id="desc">{escape(described)}</desc>']
    return "\n".join([head, *named, rect(0, 0, width, height, "#ffffff"), *parts, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, *, size: int = 12, anchor: str = "start", bold: bool = False) -> str:
    """Words whose base line is at ``y``; ``anchor`` is ``start``, ``middle`` or ``end``."""
    weight = ' font-weight="600"' if bold else ""
    placed = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{INK}"{weight}'
    return f"<text {placed}>{escape(words)}</text>"


def rect(x: float, y: float, width: float, height: float, colour: str, *, pale: bool = False) -> str:
    opacity = f' fill-opacity="{PALE}"' if pale else ""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"{opacity}/>'


def line(
    x1: float, y1: float, x2: float, y2: float, colour: str = INK, *, dashed: bool = False, thick: float = 1
) -> str:
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{thick:g}"{dashes}/>'


def diamond(x: float, y: float) -> str:
    """A mark whose middle is at the point."""
    return f'<path d="M{x:.1f} {y - 5:.1f}l5 5-5 5-5-5z" fill="#000000" stroke="#ffffff"/>'


def group(x: float, y: float, parts: list[str], *, hover: str = "") -> str:
    """Parts moved by ``x`` and ``y``; ``hover`` is shown to a pointer over them."""
    title = f"<title>{escape(hover)}</title>" if hover else ""
    return f'<g transform="translate({x:.1f} {y:.1f})">{title}{"".join(parts)}</g>'


def path(points: list[tuple[float, float]], colour: str) -> str:
    """A line through points."""
    return f'<path d="{_through(points)}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def area(points: list[tuple[float, float]], colour: str) -> str:
    """What points enclose."""
    return f'<path d="{_through(points)}Z" fill="{colour}"/>'


def _through(points: list[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
