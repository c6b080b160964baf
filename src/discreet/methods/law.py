"""The law of the covariates, bought from the rows: which values each column has, then how columns go together.

Two questions, each asked once of every row. The first counts cells: levels, whole numbers, or bins between the declared
bounds. Its answer gives every column public scores: numbers in units of their own spread, cut at 3.5, and centred
indicators of levels. The second asks for moments of these scores: means and squares of numbers, and the products of all
pairs of columns. Rows are then made that have the moments that were told: numbers by a Gaussian copula, whose margins
are smooth densities tilted to their means and squares; then levels, column by column, with chances that are linear in
what is there already. What noise leaves open is drawn several times; small correlations are shrunk as their noise asks.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy import special

from discreet.methods import statistics
from discreet.plan import Plan
from discreet.query import Numbers, Query
from discreet.release import Release
from discreet.schema import Categorical, Numeric

MOST_PAIRS, CUT, IN_A_CELL = 2**14, 3.5, 8
LEAST_EIGENVALUE, KEPT_EIGENVALUE, MOST_CORRELATED, LEAST_SQUARE, RAKES = 0.02, 0.5, 0.97, 0.05, 5
MATCHES, MADE, DROWNED = 6, 2**13, 2.5
SMOOTHNESS, ATOM_SD, FLAT, ROUGH = (1e-2, 1.0, 1e2, 1e4), 1.5, 1e-3, 0.1
Columns = tuple[Numeric | Categorical, ...]
Heard = tuple[np.ndarray, float]
"""A sum that was told, and the sd of the noise in its entries."""


class Margin(NamedTuple):
    """What the counts say of one column: shares of its cells, and for numbers the unit of their scores.

    `unsure` (cells, cells) is the covariance of the shares of numbers, as far as noise made it.
    """

    share: Numbers
    centre: Any = 0.0
    unit: Any = 1.0
    unsure: Any = 0.0


class Law(NamedTuple):
    """How covariates are distributed: the cells of each column, and the covariance of their scores.

    `least` is the least eigenvalue that the correlations of numbers may have.
    """

    columns: Columns
    bins: int
    margins: tuple[Margin, ...]
    covariance: np.ndarray
    least: float


def cells(column: Numeric | Categorical, bins: int) -> int:
    """How many cells a column has: its values if they are few, else bins, and one for either bound."""
    return column.size if column.size is not None and _few(column, bins) else bins + 2


def cell_of(column: Numeric | Categorical, bins: int, value: Any, xp: Any = np) -> Any:
    """The cell of a value."""
    if _few(column, bins):
        first = 0 if isinstance(column, Categorical) else column.low
        return xp.round(xp.asarray(value) - first).astype(int)
    assert isinstance(column, Numeric)
    inner = 1 + xp.clip(xp.floor((value - column.low) / (column.high - column.low) * bins), 0, bins - 1)
    return xp.where(value <= column.low, 0, xp.where(value >= column.high, bins + 1, inner)).astype(int)


def value_in(column: Numeric | Categorical, bins: int, cell: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Encoded values in these cells, at this share of their width."""
    if isinstance(column, Categorical):
        return cell.astype(np.int32)
    if _few(column, bins):
        return column.low + cell.astype(float)
    inner = column.low + (cell - 1 + share) * (column.high - column.low) / bins
    values = np.where(cell == 0, column.low, np.where(cell == bins + 1, column.high, inner))
    return np.round(values) if column.integer else values


def _few(column: Numeric | Categorical, bins: int) -> bool:
    return isinstance(column, Categorical) or (column.size is not None and column.size <= bins + 2)


def count_norm(columns: Columns) -> float:
    """The length of what a row answers when cells are counted."""
    return len(columns) ** 0.5


def ask_counts(columns: Columns, bins: int, plan: Plan) -> Query:
    """Ask every row once for its cells, one indicator for each.

    Guarantee: a row's answer has length √columns, and is clipped to the plan's clip norm.
    """
    size, names = sum(cells(column, bins) for column in columns), [column.name for column in columns]
    return statistics.once(_count(columns, bins), (), size, names, plan, {"method": "law, counts", "bins": bins})


def heard(release: Release) -> Heard:
    """What was asked once."""
    return np.asarray(release.last), release.plan.noise_std


def units(columns: Columns, bins: int, counts: Heard) -> dict[str, tuple[float, float]]:
    """Centre and scale of each number, from noisy counts: the median, and half of what lies between 16 % and 84 %."""
    margins = zip(columns, _margins(columns, bins, counts), strict=True)
    return {column.name: (float(m.centre), float(m.unit)) for column, m in margins if isinstance(column, Numeric)}


def reach(columns: Columns) -> float:
    """The length to which a row's scores are cut, squared: one sd above what normal ones have on average."""
    return len(columns) + (2 * len(columns)) ** 0.5


def moment_norm(columns: Columns) -> float:
    """The most that a row's moments can be: products count once, squares half."""
    most = reach(columns)
    return (most**2 / 2 + most) ** 0.5


def size_of_moments(columns: Columns) -> int:
    """How many numbers the second question asks for."""
    widths, numbers = _widths(columns), len(_numeric(columns))
    return len(_pair_places(widths)[0]) + 2 * numbers


def ask_moments(columns: Columns, bins: int, told: Heard, plan: Plan) -> Query:
    """Ask every row once for moments of its scores, scores being those that the `told` counts give.

    Guarantee: a row's answer is at most `moment_norm` long, and is clipped to the plan's clip norm.
    """
    margins = tuple(Margin(*map(jnp.asarray, margin[:3])) for margin in _margins(columns, bins, told))
    names, size = [column.name for column in columns], size_of_moments(columns)
    return statistics.once(_multiply(columns), margins, size, names, plan, {"method": "law, moments", "bins": bins})


def learn(
    rng: np.random.Generator, columns: Columns, bins: int, counts: Heard, moments: Heard, num_rows: int, laws: int
) -> list[dict[str, np.ndarray]]:
    """Rows (`MADE`, encoded) of the law that two noisy answers speak for, and then of `laws` others that they allow."""
    margins = _margins(columns, bins, counts)
    numbers = len(_numeric(columns))
    noise = max(moments[1] / num_rows, 1e-9)
    told, unsure = _with_counts(columns, bins, margins, moments[0] / num_rows, noise)
    offset, unit = _pair_scales(columns, margins, told)
    seen, loud = (told[2 * numbers :] - offset) / unit, noise / unit
    fitted = _one_factor(columns, seen, loud)
    weight = loud**-4.0
    weight /= max(weight.sum(), 1e-300)
    by_chance = np.sqrt(2 * np.sum((weight * loud**2) ** 2))  # how large noise alone makes the spread, one time in six
    spread = max(float(weight @ ((seen - fitted) ** 2 - loud**2)) - by_chance, 1e-6)
    gain = spread / (spread + loud**2)
    middle, open_to_noise = fitted + gain * (seen - fitted), loud * np.sqrt(gain)
    own = told[: 2 * numbers]

    def target(own, pairs):
        return np.concatenate([own, _apart(columns, pairs, open_to_noise) * unit + offset])

    law = Law(columns, bins, margins, np.eye(0), LEAST_EIGENVALUE)
    found = [_matched(int(rng.integers(2**31)), law, target(own, middle))]
    least = max(LEAST_EIGENVALUE, KEPT_EIGENVALUE * _least_eigenvalue(law, found[0]))
    for _ in range(laws):
        chance = rng.standard_normal(len(told))
        again = target(own + unsure * chance[: 2 * numbers], middle + open_to_noise * chance[2 * numbers :])
        levels = _margins_again(rng, columns, margins, counts[1] / num_rows)
        found.append(_matched(int(rng.integers(2**31)), law._replace(margins=levels, least=least), again))
    return found


def _with_counts(
    columns: Columns, bins: int, margins: Sequence[Margin], told: np.ndarray, noise: float
) -> tuple[np.ndarray, np.ndarray]:
    """Moments as told, those of single numbers joined with what the counts say of them; and the sds of these."""
    numeric, joined = _numeric(columns), np.array(told)
    unsure = np.full(2 * len(numeric), noise)
    for number, place in enumerate(numeric):
        margin, (_, powers) = margins[place], _score_parts(columns[place], bins, margins[place])
        of_cells = powers.reshape(2, -1, IN_A_CELL).mean(2) / np.array([[1.0], [2**0.5]])
        mean = of_cells @ margin.share
        about = of_cells - mean[:, None]
        sd = np.sqrt(np.einsum("pi,ij,pj->p", about, margin.unsure, about) + (ROUGH * np.maximum(mean, 1.0)) ** 2)
        for spot, value, error in zip((number, len(numeric) + number), mean, sd, strict=True):
            joined[spot] += (value - told[spot]) * noise**2 / (noise**2 + error**2)
            unsure[spot] = noise * error / np.hypot(noise, error)
    return joined, unsure


def _apart(columns: Columns, correlations: np.ndarray, unsure: np.ndarray) -> np.ndarray:
    """Correlations of all pairs, those of numbers with eigenvalues that are above zero as far as noise leaves them.

    An eigenvalue becomes the mean of what it may be, a normal around it cut at zero: else noise alone makes columns
    nearly the same, and what tells them apart is taken to be tiny.
    """
    among, places = _among_numbers(columns, correlations), _numeric_pairs(columns)
    if not len(places):
        return correlations
    values, vectors = np.linalg.eigh(among)
    noise = max((2 * len(among)) ** 0.5 * float(unsure[places].mean()), 1e-9)
    at = values / noise
    values = noise * (at + np.exp(-0.5 * at**2 - special.log_ndtr(at)) / (2 * np.pi) ** 0.5)
    among = vectors * values @ vectors.T
    sd = np.sqrt(np.diag(among))
    mended = np.array(correlations)
    mended[places] = (among / np.outer(sd, sd))[np.triu_indices(len(among), 1)]
    return mended


def _least_eigenvalue(law: Law, made: Mapping[str, np.ndarray]) -> float:
    """Of the correlations of numbers in these rows: noise alone must not make others nearly the same."""
    places = _numeric(law.columns)
    if len(places) < 2:
        return 1.0
    scores = [_column_scores(law, place, made[law.columns[place].name])[:, 0] for place in places]
    centred = np.stack(scores) - np.mean(scores, axis=1, keepdims=True)
    centred /= np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)  # a column may be constant
    return float(np.linalg.eigvalsh(centred @ centred.T).min())


def _one_factor(columns: Columns, seen: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """What correlations of numbers would be if one hidden factor made them, where noise does not drown it; others zero.

    Correlations are shrunk towards these: columns that all go together do so with little error.
    """
    among, fitted = _among_numbers(columns, seen), np.zeros(len(seen))
    places = _numeric_pairs(columns)
    if (
        len(among) < 3
        or np.linalg.eigvalsh(among - np.eye(len(among))).max() < DROWNED * len(among) ** 0.5 * noise[places][0]
    ):
        return fitted
    loading = _leading(among, np.abs(among - np.eye(len(among))).max(1))
    for _ in range(20):
        loading = _leading(among, np.minimum(loading**2, MOST_CORRELATED))
    first, second = np.triu_indices(len(among), 1)
    fitted[places] = (loading[first] * loading[second]).clip(-MOST_CORRELATED, MOST_CORRELATED)
    return fitted


def _leading(among: np.ndarray, shared: np.ndarray) -> np.ndarray:
    """Loadings of the largest factor, if each column shares so much with the others."""
    values, vectors = np.linalg.eigh(among - np.diag(1 - shared))
    return np.sqrt(max(values[-1], 0.0)) * vectors[:, -1]


def _numeric_pairs(columns: Columns) -> np.ndarray:
    """Which of all pairs are of two numbers."""
    spots = np.zeros(sum(_widths(columns)), bool)
    spots[_number_spots(columns)] = True
    first, second = _pair_places(_widths(columns))
    return np.flatnonzero(spots[first] & spots[second])


def _among_numbers(columns: Columns, pairs: np.ndarray) -> np.ndarray:
    """The correlations of numbers, as a matrix."""
    found = np.eye(len(_numeric(columns)))
    first, second = np.triu_indices(len(found), 1)
    found[first, second] = found[second, first] = pairs[_numeric_pairs(columns)]
    return found


def _matched(seed: int, law: Law, target: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of the law whose moments, cut as those of real rows are, come out as the target.

    What rows lack of the target is added to what they are made from, and they are made again, by the same chance.
    """
    aim = np.array(target)
    for _ in range(MATCHES):
        aim += target - _moments(law, _made(seed, law, aim))
    return _made(seed, law, aim)


def _made(seed: int, law: Law, aim: np.ndarray) -> dict[str, np.ndarray]:
    """Rows whose scores have about these means, squares and products."""
    numbers, widths = len(_numeric(law.columns)), _widths(law.columns)
    means, squares = aim[:numbers], aim[numbers : 2 * numbers] * 2**0.5
    covariance = np.zeros((sum(widths), sum(widths)))
    covariance[_pair_places(widths)] = aim[2 * numbers :]
    whole = law._replace(covariance=covariance + covariance.T)
    return _draw(np.random.default_rng(seed), whole, means, np.maximum(squares, means**2 + LEAST_SQUARE))


def _moments(law: Law, made: Mapping[str, np.ndarray]) -> np.ndarray:
    """What these rows would answer to the second question, on average."""
    scores = np.concatenate(
        [_column_scores(law, place, made[column.name]) for place, column in enumerate(law.columns)], 1
    )
    scores *= np.sqrt(np.minimum(1, reach(law.columns) / np.maximum((scores**2).sum(1, keepdims=True), 1e-12)))
    own = scores[:, _number_spots(law.columns)]
    products = (scores.T @ scores / MADE)[_pair_places(_widths(law.columns))]
    return np.concatenate([own.mean(0), (own**2).mean(0) / 2**0.5, products])


def _draw(rng: np.random.Generator, law: Law, means: np.ndarray, squares: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of the law, numbers with these means and mean squares of their scores."""
    made: dict[int, np.ndarray] = {}
    numeric, parts = _numeric(law.columns), _parts(_widths(law.columns))
    if numeric:
        spots = _number_spots(law.columns)
        sd = np.sqrt(squares - means**2)
        told = (law.covariance[np.ix_(spots, spots)] - np.outer(means, means)) / np.outer(sd, sd)
        told = np.clip(told, -MOST_CORRELATED, MOST_CORRELATED)
        np.fill_diagonal(told, 1.0)
        values, vectors = np.linalg.eigh(told)
        factor = vectors * np.sqrt(np.maximum(values, law.least))
        factor /= np.linalg.norm(factor, axis=1, keepdims=True)
        chance = special.ndtr(rng.standard_normal((MADE, len(numeric))) @ factor.T)
        for number, place in enumerate(numeric):
            tilted = _tilted(law, place, means[number], squares[number])
            made[place] = _values_at(law.columns[place], law.bins, tilted, chance[:, number])
    there = {place: _column_scores(law, place, values) for place, values in made.items()}
    for place, column in enumerate(law.columns):
        if isinstance(column, Categorical):
            share = law.margins[place].share
            below = np.cumsum(_chances(law, place, parts, there), 1) < rng.random((MADE, 1))
            made[place] = np.minimum(below.sum(1), len(share) - 1).astype(np.int32)
            there[place] = _column_scores(law, place, made[place])
    return {column.name: made[place] for place, column in enumerate(law.columns)}


def _tilted(law: Law, place: int, mean: float, square: float) -> np.ndarray:
    """Shares of parts of cells times exp(αh + βh²), h their scores, so that these have this mean and mean square.

    Parts, because where all rows are in one cell no others can make up for where in it they are.
    """
    share, powers = _score_parts(law.columns[place], law.bins, law.margins[place])
    told = np.array([mean, square])
    start = np.log(share)

    def at(bend):
        exponent = start + bend @ powers
        weight = np.exp(exponent - exponent.max())
        return weight / weight.sum(), bend @ told - exponent.max() - np.log(weight.sum())

    bend = np.zeros(2)
    now, height = at(bend)
    for _ in range(20):
        gap = told - powers @ now
        if np.abs(gap).max() < 1e-5:
            break
        about = powers - (powers @ now)[:, None]
        step = np.linalg.solve(about * now @ about.T + 1e-6 * np.eye(2), gap)
        moved = np.clip(bend + step * min(1.0, 0.5 / np.abs(step).max()), -5, 5)
        there, reached = at(moved)
        while reached < height and np.abs(moved - bend).max() > 1e-4:
            moved = (moved + bend) / 2  # whole steps go in circles where hardly any row is outside one cell
            there, reached = at(moved)
        bend, now, height = moved, there, reached
    return now


def _score_parts(column: Numeric | Categorical, bins: int, margin: Margin) -> tuple[np.ndarray, np.ndarray]:
    """Shares of parts of cells, and their scores and squares of these, (2, parts)."""
    share = np.repeat(np.maximum(margin.share, 1e-12) / IN_A_CELL, IN_A_CELL)
    cell, part = np.divmod(np.arange(len(share)), IN_A_CELL)
    score = _number_score(margin, value_in(column, bins, cell, (part + 0.5) / IN_A_CELL).astype(float))
    return share, np.stack([score, score**2])


def _values_at(column: Numeric | Categorical, bins: int, share: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """The quantiles of a margin, by the shares of parts of its cells."""
    ends = np.cumsum(share)
    place = np.minimum(np.searchsorted(ends, chance), len(share) - 1)
    inside = np.clip((chance - ends[place] + share[place]) / np.maximum(share[place], 1e-300), 0, 1)
    cell, part = np.divmod(place, IN_A_CELL)
    return value_in(column, bins, cell, (part + inside) / IN_A_CELL)


def _chances(law: Law, place: int, parts: Sequence[slice], there: Mapping[int, np.ndarray]) -> np.ndarray:
    """(rows, levels) of one column: linear in the scores of columns that are there, cut at zero, raked to shares."""
    share = law.margins[place].share
    if not there:
        return np.tile(share, (MADE, 1))
    scores = np.concatenate(list(there.values()), 1)
    scores = scores - scores.mean(0)
    values, vectors = np.linalg.eigh(scores.T @ scores / MADE)
    good = values > LEAST_EIGENVALUE
    inverse = vectors[:, good] / values[good] @ vectors[:, good].T
    spots = np.concatenate([np.arange(parts[other].start, parts[other].stop) for other in there])
    chance = share + scores @ inverse @ law.covariance[spots, parts[place]] * _indicator_unit(share)
    for _ in range(RAKES):
        chance = np.maximum(chance, 0)
        chance = chance * share / np.maximum(chance.mean(0), 1e-12) + 1e-12 * share
        chance /= chance.sum(1, keepdims=True)
    return chance


def _column_scores(law: Law, place: int, values: np.ndarray) -> np.ndarray:
    margin = law.margins[place]
    if isinstance(law.columns[place], Numeric):
        return _number_score(margin, values)[:, None]
    return (np.eye(len(margin.share))[values] - margin.share) / _indicator_unit(margin.share)


def _number_score(margin: Margin, value: Any, xp: Any = np) -> Any:
    return xp.clip((value - margin.centre) / margin.unit, -CUT, CUT)


def _indicator_unit(share: Any, xp: Any = np) -> Any:
    """The length of centred indicators, on average."""
    return xp.sqrt(xp.maximum(1 - (share**2).sum(), 1e-6))


def _pair_scales(columns: Columns, margins: Sequence[Margin], told: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For all pairs, what their products are if columns are independent, and the product of their sds."""
    numbers = len(_numeric(columns))
    mean, sd = np.zeros(sum(_widths(columns))), np.ones(sum(_widths(columns)))
    for column, margin, part in zip(columns, margins, _parts(_widths(columns)), strict=True):
        if isinstance(column, Categorical):
            share = np.asarray(margin.share)
            sd[part] = np.sqrt(np.maximum(share * (1 - share), 1e-6)) / _indicator_unit(share)
    spots = _number_spots(columns)
    mean[spots] = told[:numbers]
    sd[spots] = np.sqrt(np.maximum(2**0.5 * told[numbers : 2 * numbers] - told[:numbers] ** 2, LEAST_SQUARE))
    first, second = _pair_places(_widths(columns))
    return mean[first] * mean[second], sd[first] * sd[second]


def _margins(columns: Columns, bins: int, counts: Heard) -> tuple[Margin, ...]:
    """Of each column, from noisy counts: few cells one by one, many as a smooth density."""
    return _margins_of(columns, bins, np.asarray(counts[0], float).tobytes(), counts[1])


@lru_cache(maxsize=4)
def _margins_of(columns: Columns, bins: int, told: bytes, noise: float) -> tuple[Margin, ...]:
    found = []
    for column, part in zip(columns, _parts([cells(column, bins) for column in columns]), strict=True):
        of_cells = np.frombuffer(told)[part]
        total = max(of_cells.sum(), 1.0)
        if _few(column, bins):
            share, unsure = _nearest(of_cells / total), (noise / total) ** 2 * np.eye(len(of_cells))
        else:
            share, unsure = _smooth(of_cells, noise)
        if isinstance(column, Numeric):
            low, centre, high = _quantiles(column, bins, share, [0.16, 0.5, 0.84])
            least = (column.high - column.low) / (2 * bins)
            found.append(Margin(share, float(centre), float(max((high - low) / 2, least)), unsure))
        else:
            found.append(Margin(share))
    return tuple(found)


def _quantiles(column: Numeric, bins: int, share: np.ndarray, chance: Sequence[float]) -> np.ndarray:
    """Of a number: between the middles of values that are few, and between the edges of bins."""
    if _few(column, bins):
        return np.interp(chance, np.cumsum(share) - share / 2, value_in(column, bins, np.arange(len(share)), share))
    return np.interp(chance, np.cumsum(share)[:-1], np.linspace(column.low, column.high, bins + 1))


def _margins_again(rng, columns: Columns, margins: Sequence[Margin], noise: float) -> tuple[Margin, ...]:
    """Margins whose levels are as they might have been told, had the noise been drawn again; numbers are tilted."""

    def again(column, margin):
        if isinstance(column, Numeric):
            return margin
        return margin._replace(share=_nearest(margin.share + noise * rng.standard_normal(len(margin.share))))

    return tuple(again(column, margin) for column, margin in zip(columns, margins, strict=True))


def _smooth(told: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """A log density of bins whose third differences are small, so that noise alone leaves a normal; bounds are atoms.

    How small, is weighed by the evidence (Laplace's). Shares, and their covariance.
    """
    count, noise = len(told), max(noise, 1.0)
    total = max(told.sum(), noise)
    rough = np.diff(np.eye(count - 2), 3, axis=0)
    rough = np.pad(rough, ((0, 0), (1, 1)))
    ends = np.zeros((2, count))
    ends[0, :2] = ends[1, -2:] = (1, -1)
    found = []
    for weight in SMOOTHNESS:
        penalty = weight * rough.T @ rough + ends.T @ ends / ATOM_SD**2 + FLAT * np.eye(count)
        theta, height, hessian = _fit_density(told, total, noise, penalty)
        evidence = height + 0.5 * len(rough) * np.log(weight) - 0.5 * np.linalg.slogdet(hessian)[1]
        found.append((evidence, special.softmax(theta), hessian))
    _, share, hessian = max(found, key=lambda one: one[0])
    slope = np.diag(share) - np.outer(share, share)
    return share, slope @ np.linalg.solve(hessian, slope)


def _fit_density(
    told: np.ndarray, total: float, noise: float, penalty: np.ndarray
) -> tuple[np.ndarray, float, np.ndarray]:
    """Of log shares: the most likely ones, their height, and the curvature there."""

    def at(theta):
        share = np.exp(theta - theta.max())
        share /= share.sum()
        gap = (told - total * share) / noise
        slope = total * (np.diag(share) - np.outer(share, share)) / noise
        height = -0.5 * (gap @ gap + theta @ penalty @ theta)
        return height, slope.T @ gap - penalty @ theta, slope.T @ slope + penalty

    theta, damping = np.zeros(len(told)), 1e-3
    height, uphill, hessian = at(theta)
    for _ in range(60):
        moved = theta + np.clip(np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), uphill), -2, 2)
        there = at(moved)
        if there[0] <= height:
            damping *= 10
            continue
        gained = there[0] - height
        theta, damping, (height, uphill, hessian) = moved, damping / 5, there
        if gained < 1e-6:
            break
    return theta, height, hessian


def _nearest(values: np.ndarray) -> np.ndarray:
    """The point of the simplex that is nearest."""
    ordered = np.sort(values)[::-1]
    surplus = (np.cumsum(ordered) - 1) / np.arange(1, len(values) + 1)
    last = np.flatnonzero(ordered > surplus)[-1]
    return np.maximum(values - surplus[last], 0.0)


def _numeric(columns: Columns) -> list[int]:
    return [place for place, column in enumerate(columns) if isinstance(column, Numeric)]


def _widths(columns: Columns) -> list[int]:
    return [column.size if isinstance(column, Categorical) else 1 for column in columns]


def _number_spots(columns: Columns) -> list[int]:
    parts = _parts(_widths(columns))
    return [parts[place].start for place in _numeric(columns)]


def _parts(widths: Sequence[int]) -> list[slice]:
    ends = np.cumsum(widths)
    return [slice(int(end - width), int(end)) for end, width in zip(ends, widths, strict=True)]


def _pair_places(widths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the entries of a covariance that are of two columns of the table."""
    owner = np.repeat(np.arange(len(widths)), widths)
    first, second = np.triu_indices(len(owner), 1)
    apart = owner[first] != owner[second]
    return first[apart], second[apart]


@lru_cache(maxsize=16)
def _count(columns: Columns, bins: int) -> Callable:
    def row_value(question, row):
        del question
        there = ((column, cell_of(column, bins, row[column.name], jnp)) for column in columns)
        return jnp.concatenate([jnp.arange(cells(column, bins)) == cell for column, cell in there]).astype(float)

    return row_value


@lru_cache(maxsize=16)
def _multiply(columns: Columns) -> Callable:
    (first, second), numbers = _pair_places(_widths(columns)), np.array(_number_spots(columns), int)
    most = reach(columns)

    def of_column(column, margin, value):
        if isinstance(column, Numeric):
            return _number_score(margin, value, jnp)[None]
        indicators = jnp.arange(len(column.levels)) == value
        return (indicators - margin.share) / _indicator_unit(margin.share, jnp)

    def row_value(margins, row):
        there = zip(columns, margins, strict=True)
        scores = jnp.concatenate([of_column(column, margin, row[column.name]) for column, margin in there])
        scores = scores * jnp.sqrt(jnp.minimum(1.0, most / jnp.maximum((scores**2).sum(), 1e-12)))
        own = scores[numbers]
        return jnp.concatenate([own, own**2 / 2**0.5, scores[first] * scores[second]])

    return row_value
