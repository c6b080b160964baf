"""What m analyses of synthetic tables say together: the rules for fully synthetic data.

Raghunathan, Reiter and Rubin (2003), Reiter and Raghunathan (2007). Table l is drawn from one posterior draw of z and
analysed as if it were real, with estimate q_l and variance u_l. Then q_l has mean E Q and variance V + W over tables,
V the posterior variance of Q and W the sampling variance in a table of n rows. So B, the variance between tables,
estimates V + W, Ū, the mean of the u_l, estimates W, and the mean Q̄ of the q_l misses E Q by B/m:

    T = (B − Ū) + B/m = (1 + 1/m)B − Ū

whatever n is. It is V that holds privacy's noise, so the posterior must know it. T is a small difference of large
numbers where n is small: take n of at least the number of rows, and m of 50 or more; both are free.
"""

import csv
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

MOST = 1e100
TERMS, SPREADS = ("term", "name"), ("variance", "std_error", "std.error")


class Pooled(NamedTuple):
    """One entry for each term: estimate Q̄, its standard error √T, the interval [low, high] and its degrees of freedom.

    `within` is Ū, `between` is B. Where `adjusted`, (1 + 1/m)B − Ū was not positive and T = (n/num_rows)Ū stands in:
    such an interval is a makeshift that does not see privacy's noise; make larger tables, or more.
    """

    term: tuple[str, ...]
    estimate: np.ndarray
    std_error: np.ndarray
    low: np.ndarray
    high: np.ndarray
    df: np.ndarray
    within: np.ndarray
    between: np.ndarray
    adjusted: np.ndarray


def rubin(
    estimates: Any, variances: Any, *, n: int | None = None, num_rows: int | None = None, prob: float = 0.9
) -> Pooled:
    """Pool m analyses of fully synthetic tables; central t intervals of probability `prob`.

    `estimates` and their `variances` (squared standard errors) are of shape (m,) or (m, terms), or map each term to m
    values, as data frames do. `n` (rows of a synthetic table) and `num_rows` (of the private one) are needed only where
    (1 + 1/m)B − Ū is not positive. Valid only for tables that were drawn from a noise-aware posterior.

    This is not the rule for missing data, Ū + (1 + 1/m)B, which counts sampling twice: DPVIm's code falls back to
    that one, and divides B by m, not by m − 1.

    >>> pooled = rubin({"mean": [1.0, 2.0, 3.0]}, {"mean": [0.25, 0.25, 0.25]})
    >>> pooled.estimate, pooled.between, pooled.std_error.round(4), pooled.df.round(4)
    (array([2.]), array([1.]), array([1.0408]), array([1.3203]))
    """
    names, estimate, variance = _matched(estimates, variances)
    if not 0 < prob < 1:
        raise ValueError(f"prob={prob} must lie in (0, 1)")
    m = len(estimate)
    mean, between, within = estimate.mean(0), estimate.var(0, ddof=1), variance.mean(0)
    inflated = (1 + 1 / m) * between
    total = inflated - within
    adjusted = total <= 0
    if adjusted.any():
        total = np.where(adjusted, _ratio(n, num_rows, names, adjusted) * within, total)
    share = 1 - within / np.where(adjusted, 1.0, inflated)
    df = (m - 1) * np.where(adjusted, 1.0, share**2)
    half = np.sqrt(total) * stats.t.ppf((1 + prob) / 2, df)
    return Pooled(names, mean, np.sqrt(total), mean - half, mean + half, df, within, between, adjusted)


def records(pooled: Pooled) -> list[dict[str, Any]]:
    """One mapping of plain values for each term; None where an interval has no end, since JSON has no infinity."""
    columns: dict[str, list] = {name: np.asarray(values).tolist() for name, values in pooled._asdict().items()}
    for end in ("low", "high"):
        columns[end] = [value if math.isfinite(value) else None for value in columns[end]]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def read_results(paths: Iterable[Path]) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Estimates and variances by term, of all tables, from CSV files of columns table, term, estimate, variance.

    `name` stands for term too, and `std_error` for the root of the variance. A file without a column `table` is of one.
    """
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for path in paths:
        for number, line in enumerate(_lines(path), start=2):
            where = f"{path}, line {number}"
            table, term, numbers = _result(line, path, where)
            if term in found.setdefault(table, {}):
                raise ValueError(f"{where}: {term!r} of table {table} is there twice: give one result for each")
            found[table][term] = numbers
    terms = list(dict.fromkeys(term for results in found.values() for term in results))
    for table, results in found.items():
        lacking = [term for term in terms if term not in results]
        if lacking:
            raise ValueError(
                f"table {table} has no {', '.join(lacking)}, which others have: pool the same terms of all"
            )
    both = [{term: [results[term][place] for results in found.values()] for term in terms} for place in (0, 1)]
    return both[0], both[1]


def _result(line: Mapping[str, str], path: Path, where: str) -> tuple[str, str, tuple[float, float]]:
    """Table, term, and (estimate, variance) of a line."""
    term, spread = (next(name for name in names if name in line) for names in (TERMS, SPREADS))
    try:
        estimate, value = float(line["estimate"]), float(line[spread])
    except (TypeError, ValueError):
        raise ValueError(f"{where}: estimate and {spread} must be numbers") from None
    empty = [name for name in ("table", term) if name in line and not line[name]]
    if empty:
        raise ValueError(f"{where}: {empty[0]} is empty: say of which table, and what, the estimate is")
    if value < 0:
        raise ValueError(f"{where}: {spread}={value} must not be negative")
    return line.get("table", str(path)), line[term], (estimate, value if spread == "variance" else value**2)


def _lines(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            lines, names = list(reader), reader.fieldnames or []
    except (UnicodeDecodeError, csv.Error):
        raise ValueError(f"{path} is not UTF-8 CSV: give results as columns table, term, estimate, variance") from None
    wanted = {"term": TERMS, "estimate": ("estimate",), "variance or std_error": SPREADS}
    lacking = [what for what, any_of in wanted.items() if not set(any_of) & set(names)]
    if lacking:
        raise ValueError(f"{path} has no column {', '.join(lacking)}; it has {', '.join(names) or 'none'}")
    if not lines:
        raise ValueError(f"{path} has no results: give a line for each table and term")
    return lines


def _matched(estimates: Any, variances: Any) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Names, and both as finite arrays (m, terms)."""
    if _named(estimates) != _named(variances):
        raise ValueError("estimates and variances must be of one kind: both by term, or both arrays")
    names: tuple = ()
    if _named(estimates):
        names = tuple(estimates.keys())
        if set(names) != set(variances.keys()):
            odd = sorted(map(str, set(names) ^ set(variances.keys())))
            raise ValueError(f"estimates and variances must have the same terms; {', '.join(odd)} is in one alone")
        estimates, variances = ([values[name] for name in names] for values in (estimates, variances))
    estimate, variance = (_array(*part) for part in (("estimates", estimates), ("variances", variances)))
    if names:
        estimate, variance = estimate.T, variance.T
    _check(estimate, variance)
    if estimate.ndim == 1:
        estimate, variance = estimate[:, None], variance[:, None]
    return tuple(map(str, names or range(estimate.shape[1]))), estimate, variance


def _named(values: Any) -> bool:
    return isinstance(values, Mapping) or (hasattr(values, "columns") and hasattr(values, "keys"))


def _array(name: str, values: Any) -> np.ndarray:
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numbers, as many for each term: one for each table") from None


def _check(estimate: np.ndarray, variance: np.ndarray) -> None:
    if estimate.shape != variance.shape:
        raise ValueError(f"estimates have shape {estimate.shape} and variances {variance.shape}: give one for each")
    if estimate.ndim not in (1, 2) or 0 in estimate.shape[1:]:
        raise ValueError(f"estimates have shape {estimate.shape}; give (m,) or (m, terms)")
    if len(estimate) < 2:
        raise ValueError(f"{len(estimate)} tables cannot be pooled: what they differ by is needed; give 2, better 50")
    for name, values in (("estimates", estimate), ("variances", variance)):
        wild = np.sum(~(np.abs(values) < MOST))
        if wild:
            raise ValueError(f"{name} have {wild} values that are not finite, or beyond {MOST:g}: mend those analyses")
    if (variance < 0).any():
        raise ValueError(f"variances have {np.sum(variance < 0)} negative values: give squared standard errors")


def _ratio(n: int | None, num_rows: int | None, names: tuple[str, ...], adjusted: np.ndarray) -> float:
    """n / num_rows, for terms whose variance is not positive."""
    from discreet.posterior.predictive import whole

    lacking = [name for name, value in (("n", n), ("num_rows", num_rows)) if value is None]
    if lacking:
        terms = ", ".join(name for name, flag in zip(names, adjusted, strict=True) if flag)
        raise ValueError(
            f"(1 + 1/m)B - U is not positive for {terms}: give {' and '.join(lacking)} (rows of a synthetic table are "
            "n, of the private one num_rows) for a makeshift, or better make larger tables, or more"
        )
    return whole("n", n) / whole("num_rows", num_rows)
