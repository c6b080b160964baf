"""A forest plot: one line per parameter, one mark per reading of the release."""

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas

COLOURS = ("#0b5cad", "#d1495b", "#6b7280", "#2a9d8f")


def forest_svg(summaries: Mapping[str, "pandas.DataFrame"]) -> str:
    """An SVG of means and intervals, from tables as `Posterior.summary` gives them, all with the same index."""
    import matplotlib
    from matplotlib.figure import Figure

    labels = list(next(iter(summaries.values())).index)
    figure = Figure(figsize=(8.5, 0.9 + 0.42 * len(labels)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color="#c4c9d1", linewidth=1, zorder=0)
    step = 0.8 / max(len(summaries), 2)
    for order, (name, table) in enumerate(summaries.items()):
        places = [row + (order - (len(summaries) - 1) / 2) * step for row in range(len(labels))]
        means, low, high = table["mean"], table.iloc[:, 2], table.iloc[:, 3]
        axes.hlines(places, low, high, color=COLOURS[order % len(COLOURS)], linewidth=2.4)
        axes.plot(means, places, "o", color=COLOURS[order % len(COLOURS)], markersize=4.5, label=name)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"mean and {_interval_name(next(iter(summaries.values())))} interval, in the columns' own units")
    figure.legend(loc="outside upper left", ncols=len(summaries), frameon=False)
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "discreet"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]


def _interval_name(table: "pandas.DataFrame") -> str:
    low, high = (float(name.rstrip("%")) for name in table.columns[2:4])
    return f"{high - low:g} %"
