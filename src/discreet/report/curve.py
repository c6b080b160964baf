"""A picture of what a budget buys: widths against ε, a line for each number of rows."""

import math
from pathlib import Path

from discreet.atomic import new_file
from discreet.planner.outlook import Curves
from discreet.report.lines import Axis

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 520, 340, 52, 380, 16, 296
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.grid{stroke:#ddd}.line{fill:none;stroke:#2a6f97;stroke-width:2}"
    ".asked{fill:#c1121f}.goal{stroke:#888;stroke-dasharray:4 3}circle{fill:#2a6f97}"
)


def draw_curve(path: Path, curves: Curves, num_rows: int, epsilon: float) -> None:
    """Write the picture, an SVG file; the dot that was asked for is red."""
    with new_file(path) as scratch:
        scratch.write_text(_svg(curves, num_rows, epsilon), encoding="utf-8")


def _svg(curves: Curves, num_rows: int, epsilon: float) -> str:
    across = _log_axis(curves.epsilons, LEFT, RIGHT)
    most = float(curves.widths.max())
    up = _log_axis((1.0, max(2.0, most)), BOTTOM, TOP)
    heights = [height for height in (1, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000) if height <= max(2.0, most)]
    marks = [
        f'<text x="{LEFT}" y="{HEIGHT - 8}">ε</text>',
        f'<text x="{LEFT}" y="{TOP - 4}">width ÷ non-private</text>',
        *(_grid(f"{height:g}", up.place(math.log(height))) for height in heights),
        *(
            f'<text text-anchor="middle" x="{across.place(math.log(e))}" y="{BOTTOM + 18}">{e:g}</text>'
            for e in curves.epsilons
        ),
    ]
    for rows, widths in zip(curves.rows, curves.widths, strict=True):
        pairs = zip(curves.epsilons, widths, strict=True)
        points = [(across.place(math.log(e)), up.place(math.log(width)), e) for e, width in pairs]
        marks.append(f'<polyline class="line" points="{" ".join(f"{x},{y}" for x, y, _ in points)}"/>')
        for x, y, e in points:
            asked = ' class="asked"' if (rows, e) == (num_rows, epsilon) else ""
            marks.append(f'<circle{asked} cx="{x}" cy="{y}" r="4"/>')
        marks.append(f'<text x="{points[-1][0] + 10}" y="{points[-1][1] + 4}">{rows:,} rows</text>')
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(marks)}</svg>\n'
    )


def _log_axis(values: tuple[float, ...], first: float, last: float) -> Axis:
    low, high = math.log(min(values)), math.log(max(values))
    pad = 0.04 * (high - low) or 1.0
    return Axis(low - pad, high + pad, first, last)


def _grid(label: str, y: float) -> str:
    line = f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y}" y2="{y}"/>'
    return f'{line}<text text-anchor="end" x="{LEFT - 6}" y="{y + 4}">{label}</text>'
