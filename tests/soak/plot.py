"""Values over time as small plots, in plain SVG; thin lines show what was done when."""

from collections.abc import Mapping, Sequence
from html import escape

from holdfast.bench.plot import STYLE, WIDTH
from tests.soak.trouble import Deed

HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 220, 60, 48, 24, 10
COLOURS = ("#1f6feb", "#d4a72c", "#2da44e", "#8250df", "#cf222e", "#8b949e")
MARKS = {"kill": "#d0d7de", "cut": "#d0d7de", "move": "#8250df", "failover": "#cf222e"}

Points = Sequence[tuple[float, float]]


def lines(title: str, series: Mapping[str, Points], deeds: Sequence[Deed], seconds: float) -> str:
    """Draw each series as a line, from 0 to the highest value of all."""
    last = max([seconds, *(at for points in series.values() for at, _ in points)])
    most = max((value for points in series.values() for _, value in points), default=0.0) or 1.0
    across, up = (WIDTH - LEFT - RIGHT) / last, (HEIGHT - TOP - BOTTOM) / most
    floor = HEIGHT - BOTTOM
    parts = [_text(0, 16, title, "h")]
    for deed in deeds:
        if deed.what in MARKS:
            top = TOP if deed.what in ("move", "failover") else floor - 6
            x = LEFT + deed.at * across
            parts.append(f'<path d="M{x:.1f} {floor}V{top}" stroke="{MARKS[deed.what]}"/>')
            if top == TOP:
                parts.append(_text(x + 3, TOP + 10, deed.what))
    parts.append(f'<path d="M{LEFT} {TOP}V{floor}H{WIDTH - RIGHT}" stroke="#8b949e" fill="none"/>')
    parts += [_text(0, TOP + 4, f"{most:,.3g}"), _text(0, floor, "0"), _text(LEFT, HEIGHT - 6, "0 s")]
    parts.append(_text(WIDTH - RIGHT - 50, HEIGHT - 6, f"{last:,.0f} s"))
    place = 0.0
    for number, (name, points) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{LEFT + at * across:.1f},{floor - value * up:.1f}" for at, value in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<rect x="{LEFT + place:.0f}" y="26" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(LEFT + place + 14, 36, name))
        place += 30 + 7.5 * len(name)
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><style>{STYLE}</style>'
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{f" class={kind!r}" if kind else ""}>{escape(words)}</text>'
