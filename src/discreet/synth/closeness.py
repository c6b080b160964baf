"""How like a public or simulated truth synthetic tables are: one column at a time, two, and what an analysis finds."""

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from discreet.schema import Categorical, Numeric, Schema

BINS = 16


class Closeness(NamedTuple):
    """One comparison. `difference` is the total variation between margins, or synthetic − truth of anything else."""

    columns: str
    measure: str
    truth: float
    synthetic: float
    difference: float


def utility(
    tables: Iterable[Any],
    truth: Any,
    schema: Schema,
    *,
    bins: int = BINS,
    analysis: Callable[[Any], Mapping[str, float]] | None = None,
) -> list[Closeness]:
    """Margins, associations and coefficients of synthetic tables beside those of `truth`, as rows of a small table.

    Margins: total variation, 0 (alike) to 1, of all tables together; numbers fall into `bins` between their public
    bounds. Associations of all pairs, on average over tables: the correlation of two numbers, else Cramér's V.
    Coefficients, likewise on average: whatever `analysis` finds in a table, by term, such as the `params` of a
    regression. `pandas.DataFrame(utility(…))` shows them.

    `truth` is a PUBLIC table, or one that was simulated. Comparing with the private table would be a leak: nothing here
    adds noise, and synthetic tables are public. So plain tables are taken, and `Rows` are refused. That a plain table
    is public nobody can check.
    """
    from discreet.fitting import Rows

    if isinstance(truth, Rows):
        raise ValueError("rows are secret, and utility adds no noise: compare with a public or simulated table")
    if bins < 2:
        raise ValueError(f"bins={bins} must be at least 2")

    def compared(table):
        terms = {} if analysis is None else {term: float(value) for term, value in analysis(table).items()}
        return _measured(schema, schema.encode(table), bins), terms

    wanted, terms = compared(truth)
    both = [compared(table) for table in tables]
    if not both:
        raise ValueError("there are no tables to compare: synthesize some")
    found = [measured for measured, _ in both]
    other = next((names for _, names in both if names.keys() != terms.keys()), None)
    if other is not None:
        raise ValueError(f"analysis must find the same terms in every table: {sorted(terms)} and {sorted(other)}")
    margins = [
        Closeness(name, "total variation", 0.0, value, value)
        for name in schema.names
        for value in [_total_variation(wanted.margins[name], [each.margins[name] for each in found])]
    ]
    pairs = []
    for (first, second), (measure, value) in wanted.pairs.items():
        synthetic = float(np.mean([each.pairs[first, second][1] for each in found]))
        pairs.append(Closeness(f"{first} × {second}", measure, value, synthetic, synthetic - value))
    coefficients = []
    for term, value in terms.items():
        synthetic = float(np.mean([names[term] for _, names in both]))
        coefficients.append(Closeness(term, "coefficient", value, synthetic, synthetic - value))
    return margins + pairs + coefficients


class _Measured(NamedTuple):
    margins: dict[str, np.ndarray]
    pairs: dict[tuple[str, str], tuple[str, float]]


def _measured(schema: Schema, rows: dict[str, np.ndarray], bins: int) -> _Measured:
    cells = {column.name: _cells(column, rows[column.name], bins) for column in schema.columns}
    margins = {name: np.bincount(code, minlength=size) for name, (code, size) in cells.items()}
    pairs = {}
    for first, second in combinations(schema.columns, 2):
        if isinstance(first, Numeric) and isinstance(second, Numeric):
            measured = "correlation", _correlation(rows[first.name], rows[second.name])
        else:
            measured = "Cramér's V", _cramers_v(cells[first.name], cells[second.name])
        pairs[first.name, second.name] = measured
    return _Measured(margins, pairs)


def _cells(column: Numeric | Categorical, values: np.ndarray, bins: int) -> tuple[np.ndarray, int]:
    """Which level or bin each value is in, and how many there are; whole numbers have bins of their own if few."""
    if isinstance(column, Categorical):
        return values, column.size
    low, high = float(column.low), float(column.high)
    if column.size is not None and column.size <= bins:
        return (values - low).astype(np.int64), column.size
    return np.minimum(((values - low) / (high - low) * bins).astype(np.int64), bins - 1), bins


def _total_variation(truth: np.ndarray, found: list[np.ndarray]) -> float:
    counts = np.sum(found, axis=0)
    return float(np.abs(truth / truth.sum() - counts / counts.sum()).sum() / 2)


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson's; 0 where a column is constant."""
    x, y = x - x.mean(), y - y.mean()
    scale = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / scale) if scale > 0 else 0.0


def _cramers_v(first: tuple[np.ndarray, int], second: tuple[np.ndarray, int]) -> float:
    """√(χ² / (rows · (fewest occupied levels − 1))); 0 where a column is constant."""
    table = np.zeros((first[1], second[1]))
    np.add.at(table, (first[0], second[0]), 1.0)
    table = table[table.sum(1) > 0][:, table.sum(0) > 0]
    if min(table.shape) < 2:
        return 0.0
    expected = np.outer(table.sum(1), table.sum(0)) / table.sum()
    return float(np.sqrt(np.sum((table - expected) ** 2 / expected) / (table.sum() * (min(table.shape) - 1))))
