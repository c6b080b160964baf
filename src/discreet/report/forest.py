"""A forest plot in plain SVG: one axis per parameter, because each has its own unit, and one mark per reading.

Horizontal places are percentages, so the plot fills any width and its text keeps its size.
"""

import math
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas

COLOURS = ("#0b5cad", "#c2410c", "#6b7280", "#0f766e")
FAR = 4.0


class Axis(NamedTuple):
    """The span of one parameter's axis and where its ticks are."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def place(self, value: float) -> str:
        """The value's place across the plot."""
        return f"{5 + 90 * (value - self.low) / (self.high - self.low):.2f}%"


def forest(summaries: Mapping[str, "pandas.DataFrame"]) -> str:
    """HTML of means and intervals, from tables as `Posterior.summary` gives them, all with the same index."""
    tables = list(summaries.values())
    names = "".join(f"<li>{_dot(order)} {escape(name)}</li>" for order, name in enumerate(summaries))
    rows = [
        f'<div class="row"><span>{escape(str(label))}</span>{_row([_numbers(table, place) for table in tables])}</div>'
        for place, label in enumerate(tables[0].index)
    ]
    legend = f'<ul class="legend">{names}</ul>' if len(tables) > 1 else ""
    note = (
        f"Mean and {interval_name(tables[0])} interval. Each parameter has its own axis, in its own unit; "
        "the vertical line is zero, left out where zero is far away."
    )
    return f'<div class="forest">{legend}{"".join(rows)}<p><small>{note}</small></p></div>'


def axis(values: np.ndarray) -> Axis:
    """The axis that holds the values, and zero if that is within `FAR` times their range; at most 6 ticks."""
    low, high = float(values.min()), float(values.max())
    if not high > low:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    reach = FAR * (high - low)
    if 0 < low <= reach:
        low = 0.0
    if -reach <= high < 0:
        high = 0.0
    step = tick_step(high - low)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(low, high, tuple(step * count for count in range(first, last + 1)))


def interval_name(table: "pandas.DataFrame") -> str:
    """The probability of the table's intervals, for example "90 %"."""
    low, high = (float(name.rstrip("%")) for name in table.columns[2:4])
    return f"{high - low:g} %"


def _numbers(table: "pandas.DataFrame", place: int) -> np.ndarray:
    return table.iloc[place, [0, 2, 3]].to_numpy(float)


def tick_step(span: float, most: float = 5) -> float:
    """The least round step of which `span` holds no more than `most`."""
    power = 10.0 ** math.floor(math.log10(span / most))
    return next(unit * power for unit in (1, 2, 5, 10) if span / (unit * power) <= most)


def _row(readings: list[np.ndarray]) -> str:
    """One parameter's marks over its axis; a reading that is not finite is not drawn."""
    drawn = [(order, reading) for order, reading in enumerate(readings) if np.isfinite(reading).all()]
    bottom = 10 * len(readings) + 4
    if not drawn:
        return f'<svg width="100%" height="{bottom + 20}"><text x="50%" y="{bottom}">not finite</text></svg>'
    scale = axis(np.concatenate([reading for _, reading in drawn]))
    marks = [f'<line class="axis" x1="0" x2="100%" y1="{bottom}" y2="{bottom}"/>']
    if scale.low <= 0 <= scale.high:
        marks.append(f'<line class="zero" x1="{scale.place(0)}" x2="{scale.place(0)}" y1="0" y2="{bottom}"/>')
    for tick in scale.ticks:
        text = f"{tick + 0.0:.6g}".replace("-", "−")
        marks.append(f'<text x="{scale.place(tick)}" y="{bottom + 13}">{text}</text>')
    marks += [_mark(order, scale, *reading) for order, reading in drawn]
    return f'<svg width="100%" height="{bottom + 20}">{"".join(marks)}</svg>'


def _mark(order: int, scale: Axis, mean: float, low: float, high: float) -> str:
    colour, y = COLOURS[order % len(COLOURS)], 10 * order + 7
    line = f'<line x1="{scale.place(low)}" x2="{scale.place(high)}" y1="{y}" y2="{y}" stroke="{colour}"/>'
    return f'{line}<circle cx="{scale.place(mean)}" cy="{y}" r="3.5" fill="{colour}"/>'


def _dot(order: int) -> str:
    return f'<svg width="10" height="10"><circle cx="5" cy="5" r="4" fill="{COLOURS[order % len(COLOURS)]}"/></svg>'
