"""How the answers were read: each parameter's answers over its iterates, the fitted line, and a table of doubts.

NA-DPVI's Figure 1 in plain SVG. One answer's noise drowns the line, so single answers are a haze behind the means of
many, grouped by iterate. Means of consecutive steps would lie too flat: noise moves the iterates that follow it.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from discreet.posterior.diagnostics import FALSE_ALARM, FEWEST_INDEPENDENT, SEEN
from discreet.posterior.trace import after, retained_points, tail
from discreet.posterior.trace_model import residual_variance
from discreet.posterior.types import Posterior
from discreet.release import Release
from discreet.report.forest import tick_step
from discreet.report.words import rounded

BURN_IN, MOST_PANELS, DOTS, GROUPS, PROB, BAR = 0.2, 12, 150, 10, 0.9, 1.645
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 200, 150, 30, 196, 6, 126


class Panel(NamedTuple):
    """What is drawn of one parameter; y is in units of the noise on one answer.

    x, y        every retained answer, or every retained block's mean where the trace was not kept
    groups      (groups, 3): mean x, mean y and half a bar; empty without a trace
    slope, zero of the line
    low, high   of the parameter's interval
    """

    x: np.ndarray
    y: np.ndarray
    groups: np.ndarray
    slope: float
    zero: float
    low: float
    high: float


class Axis(NamedTuple):
    """The span of an axis, and where its ends lie on the canvas."""

    low: float
    high: float
    first: float
    last: float

    def place(self, value: float) -> float:
        """The value's place, or the nearer end where it lies outside."""
        share = min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)
        return round(self.first + (self.last - self.first) * share, 1)

    def ticks(self) -> list[float]:
        """Two to five round values."""
        step = tick_step(self.high - self.low, 4.5)
        return [step * place for place in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def how_read(posterior: Posterior) -> str:
    """HTML of the section: nothing without diagnostics, and no picture without a release."""
    records = posterior.info.get("diagnostics")
    if not records:
        return ""
    names = [str(record["parameter"]) for record in records]
    picture = "" if posterior.release is None else figure(posterior.release, posterior.z, names)
    return f"<h2>How the answers were read</h2>\n{picture}\n{table(records)}"


def figure(release: Release, z: np.ndarray, names: Sequence[str]) -> str:
    """A panel for each of the first parameters, from draws `z` of shape (…, parameters), and a caption."""
    drawn = [
        f"<figure><figcaption>{escape(name)}</figcaption>{_svg(panel)}</figure>"
        for name, panel in zip(names, panels(release, z), strict=False)
    ]
    more = f" {len(names) - len(drawn)} more parameters are not drawn." if len(names) > len(drawn) else ""
    words = f"{_OF_BLOCKS if release.trace is None else _OF_STEPS} {_CAPTION}{more}"
    return f'<p>{_INTRO}</p>\n<div class="lines">{"".join(drawn)}</div>\n<p><small>{words}</small></p>'


def panels(release: Release, z: np.ndarray) -> list[Panel]:
    """The panels of the first parameters, at most `MOST_PANELS`, over the retained steps."""
    seen, std = tail(release, BURN_IN), release.plan.noise_std
    variance = residual_variance(seen, std**2)
    unit = np.sqrt(np.where(variance > 0, std**2 or variance, 1.0) * seen.steps / seen.weight)
    slope = seen.xy / seen.xx
    zero = seen.mean_x - np.divide(seen.mean_y, slope, out=np.full_like(slope, np.nan), where=slope != 0)
    low, high = np.quantile(z.reshape(-1, z.shape[-1]), [(1 - PROB) / 2, (1 + PROB) / 2], axis=0)
    points, drawn = _points(release), []
    for place in range(min(len(low), MOST_PANELS)):
        weight, x, y = (part[:, place] for part in points)
        groups = _groups(weight, x, y, variance[place]) if release.trace is not None else np.empty((0, 3))
        numbers = (slope[place] / unit[place], zero[place], low[place], high[place])
        drawn.append(Panel(x, y / unit[place], groups / [1, unit[place], unit[place]], *map(float, numbers)))
    return drawn


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """The diagnostics of each parameter; numbers that a warning speaks of are marked."""
    heads = "".join(f"<th{_TEXT if place == 0 else ''}>{name}</th>" for place, name in enumerate(_COLUMNS))
    rows = []
    for record in records:
        cells = [f"<td{_DOUBT if doubtful else ''}>{text}</td>" for text, doubtful in _cells(record, len(records))]
        rows.append(f"<tr class=next><td{_TEXT}>{escape(str(record['parameter']))}</td>{''.join(cells)}</tr>")
    body = f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="wide"><table class="doubts">{body}</table></div>\n<p><small>{_NOTE}</small></p>'


def _points(release: Release) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weight, x and y of every retained step, or of every retained block where the trace was not kept."""
    blocks, inside = release.blocks, after(release.blocks, BURN_IN)[:, 0]
    if release.trace is None:
        weight, x, y = (np.asarray(part)[inside] for part in (blocks.weight, blocks.mean_x, blocks.mean_y))
        return weight, x, y
    x, y, scale = retained_points(release, inside)
    return scale**-2.0, x, y


def _groups(weight: np.ndarray, x: np.ndarray, y: np.ndarray, variance: float) -> np.ndarray:
    """Means of equally many points in the order of x, with half of a bar that holds the line with `PROB`."""
    parts = np.array_split(np.argsort(x), min(GROUPS, len(x)))
    total = np.array([weight[part].sum() for part in parts])
    mean_x, mean_y = (np.array([weight[part] @ values[part] for part in parts]) / total for values in (x, y))
    return np.stack([mean_x, mean_y, BAR * np.sqrt(variance / total)], -1)


def _svg(panel: Panel) -> str:
    canvas = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}">'
    if not (np.isfinite(panel.x).all() and np.isfinite(panel.y).all() and math.isfinite(panel.zero)):
        return f'{canvas}<text x="{WIDTH / 2:g}" y="{HEIGHT / 2:g}">not finite</text></svg>'
    across, up = _axes(panel)
    marks = [
        *(f'<text x="{across.place(tick)}" y="{BOTTOM + 14}">{_tick(tick)}</text>' for tick in across.ticks()),
        *(f'<text class="y" x="{LEFT - 4}" y="{up.place(tick) + 3:.1f}">{_tick(tick)}</text>' for tick in up.ticks()),
        _line("axis", LEFT, BOTTOM, RIGHT, BOTTOM),
        _line("axis", LEFT, up.place(0), RIGHT, up.place(0)),
        _dots(panel, across, up),
        *_reading(panel, across, up),
    ]
    return f"{canvas}{''.join(marks)}</svg>"


def _axes(panel: Panel) -> tuple[Axis, Axis]:
    """Across: where the iterates were, and the interval unless it is far away. Up: the line, the groups and zero."""
    least, most = panel.x.min(), panel.x.max()
    near = [end for end in (panel.low, panel.high) if least - (most - least) < end < most + (most - least)]
    across = _axis([least, most, *near], LEFT, RIGHT)
    ends = [panel.slope * (end - panel.zero) for end in (across.low, across.high)]
    x, y, bar = panel.groups.T
    shown = [*ends, *(y - bar), *(y + bar), *([] if len(x) else panel.y), 0.0]
    return across, _axis(shown, BOTTOM, TOP)


def _axis(values: Sequence[float], first: float, last: float) -> Axis:
    low, high = float(min(values)), float(max(values))
    pad = 0.03 * (high - low) or 1.0
    return Axis(low - pad, high + pad, first, last)


def _dots(panel: Panel, across: Axis, up: Axis) -> str:
    """At most `DOTS` of the points that lie within the axes."""
    seen = np.flatnonzero((panel.y > up.low) & (panel.y < up.high))
    seen = seen[:: max(1, math.ceil(len(seen) / DOTS))]
    size, kind = ("1.6", "haze") if len(panel.groups) else ("2.4", "haze blocks")
    points = zip(panel.x[seen].tolist(), panel.y[seen].tolist(), strict=True)
    each = (f'<circle cx="{across.place(x)}" cy="{up.place(y)}" r="{size}"/>' for x, y in points)
    return f'<g class="{kind}">{"".join(each)}</g>'


def _reading(panel: Panel, across: Axis, up: Axis) -> list[str]:
    """The groups, the line, and its zero over the interval."""
    marks, ends = [], [panel.slope * (end - panel.zero) for end in (across.low, across.high)]
    for x, y, bar in panel.groups.tolist():
        marks.append(_line("bar", across.place(x), up.place(y - bar), across.place(x), up.place(y + bar)))
        marks.append(f'<circle class="group" cx="{across.place(x)}" cy="{up.place(y)}" r="2.4"/>')
    marks.append(_line("fit", LEFT, up.place(ends[0]), RIGHT, up.place(ends[1])))
    if math.isfinite(panel.low) and math.isfinite(panel.high):
        marks.append(_line("interval", across.place(panel.low), BOTTOM, across.place(panel.high), BOTTOM))
    if across.low < panel.zero < across.high:
        marks.append(_line("zero", across.place(panel.zero), up.place(0), across.place(panel.zero), BOTTOM))
    return marks


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _tick(value: float) -> str:
    return f"{value + 0.0:.6g}".replace("-", "−")


def _cells(record: Mapping[str, Any], count: int) -> list[tuple[str, bool]]:
    """The numbers of one parameter, and whether a warning speaks of them; p-values are of `count` parameters."""
    curvature, sd, independent = record["curvature"], record["curvature_sd"], record["independent"]
    value, error = (text.replace("-", "−") for text in rounded([curvature, sd], sd))
    return [
        (f"{value} ± {error}", curvature < SEEN * sd),
        (f"{independent:.1f}" if independent < 10 else f"{independent:.0f}", independent < FEWEST_INDEPENDENT),
        (f"{record['time_constant']:.0f}", False),
        ("–" if record["extra_noise"] is None else f"{record['extra_noise']:.2f}", False),
        (_p_value(record["bend"]), record["bend"] < FALSE_ALARM / count),
        (_p_value(record["approach"]), False),
    ]


def _p_value(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.1g}" if value >= 1e-6 else "&lt; 1e−6"


_TEXT, _DOUBT = ' class="text"', ' class="doubt"'
_COLUMNS = (
    "parameter",
    "curvature ± sd",
    "independent steps",
    "memory in steps",
    "extra noise",
    "straight line? (p)",
    "on the way? (p)",
)
_INTRO = (
    "Each panel shows what the rows answered (upwards) where the steps had taken a parameter (across). The answers "
    "should scatter around a straight line. Where the line crosses zero there is nothing left to improve, and that is "
    "the estimate. A bend would mean that the model behind the intervals is wrong."
)
_OF_STEPS = (
    "Large dots are means of a tenth of the answers each, with 90 % bars; small dots are single answers, most of them "
    "outside the panel."
)
_OF_BLOCKS = (
    "Dots are means of blocks of steps. Within a block the noise moves the parameter, so dots lie flatter than the "
    "line, which is fitted to single steps."
)
_CAPTION = (
    "Blue is the parameter's 90 % interval. Answers are in units of the noise on one of them, parameters on the scale "
    "on which steps are taken. The line is fitted to one parameter at a time, with the others around their means; "
    "where parameters are correlated its zero need not be the middle of the interval."
)
_NOTE = (
    "Curvature: how strongly the answers pull towards the estimate. Independent steps: what the retained steps are "
    "worth, since each remembers those before it; memory: how many of them. Extra noise: variance of the answers "
    "around the line, divided by what the plan added. Straight line: p-value of a line against a curve; on the way: "
    "the same with the first steps, where clipping shows. What a warning speaks of is red."
)
