"""The plot: the drains of each database as bars, in plain SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from holdfast.bench.measure import Figure, Result
from holdfast.bench.report import number

WIDTH, LEFT, BAR, GAP, HEAD = 760, 150, 18, 6, 34
ROOM = 110
COLOURS = {"holdfast": "#1f6feb", "raw": "#8b949e"}
OTHERS = "#d4a72c"
# Grey enough to be read on a light and on a dark page.
STYLE = "text{font:13px system-ui,sans-serif;fill:#6e7781}.h{font-weight:600}"


def svg(results: Sequence[Result]) -> str:
    """Draw each drain as a group of bars, longest rate to the full width; thin lines show the spread."""
    shown = [result for result in results if result.name.startswith("drain")]
    parts: list[str] = []
    top = 4.0
    for result in shown:
        parts.append(_text(0, top + 18, f"{result.database}: {result.name}, jobs/s", "h"))
        top += HEAD - 8
        most = max(figure.high for figure in result.figures.values())
        for side, figure in sorted(result.figures.items(), key=lambda item: -item[1].median):
            parts += _bar(side, figure, top, (WIDTH - LEFT - ROOM) / most)
            top += BAR + GAP
        top += 10
    size = f'width="{WIDTH}" height="{top:.0f}" viewBox="0 0 {WIDTH} {top:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><style>{STYLE}</style>'
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def _bar(side: str, figure: Figure, top: float, scale: float) -> list[str]:
    middle = top + BAR / 2
    low, high = (LEFT + value * scale for value in (figure.low, figure.high))
    return [
        _text(0, top + 14, side),
        f'<rect x="{LEFT}" y="{top}" width="{figure.median * scale:.1f}" height="{BAR}" rx="2" '
        f'fill="{COLOURS.get(side, OTHERS)}"/>',
        f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="#57606a" stroke-width="2"/>',
        _text(high + 8, top + 14, number(figure.median)),
    ]


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{f" class={kind!r}" if kind else ""}>{escape(words)}</text>'
