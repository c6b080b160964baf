"""Components of a mixture of rows: what each says of the columns, which are independent within it.

z holds the logits of all tables side by side, the logits of the weights, and two numbers for each Gaussian column. The
last logit of each table, and of the weights, is zero and left out. Logits come first because they are natural
parameters: where nothing is missing a component's tables are a linear predictor, indicators of what is seen times its
logits, less its log partition.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from discreet.families import glm
from discreet.families.glm import clamp
from discreet.model import Row
from discreet.schema import Categorical, Numeric

MOST_VALUES = 32


class Priors(NamedTuple):
    """Symmetric Dirichlet priors on weights and on each component's levels, and normal ones for Gaussian columns.

    The latter are for a column scaled to [−1, 1]: the sd of location ÷ scale, around 0, and the mean and sd of
    softplus⁻¹(1/scale). `outcome` is for the regression; without it that has its family's own.
    """

    weights: float = 1.0
    levels: float = 1.0
    location_sd: float = 2.0
    inverse_scale: tuple[float, float] = (3.0, 1.5)
    outcome: glm.Priors | None = None


class Table(NamedTuple):
    """A column with a probability for each place: for the values from `low` to below `high`, or to `top` itself.

    `missing` is the encoded value that means "not observed"; nan where there is none.
    """

    column: Numeric | Categorical
    low: np.ndarray
    high: np.ndarray
    top: float = math.nan
    missing: float = math.nan


class Layout(NamedTuple):
    """Which columns have tables, and which are Gaussian; and the places of all tables in one line.

    There the last place of each table, whose logit is zero, stands behind all others: `of` says whose a place is.
    """

    components: int
    tables: tuple[Table, ...]
    smooth: tuple[Numeric, ...]
    of: np.ndarray
    low: np.ndarray
    high: np.ndarray
    top: np.ndarray

    @property
    def binned(self) -> bool:
        """Whether some places are wider than one, or narrower."""
        return bool((self.high - self.low != 1).any())

    @property
    def absent(self) -> bool:
        """Whether some value means "not observed"."""
        return any(not math.isnan(table.missing) for table in self.tables)

    @property
    def free(self) -> int:
        """How many logits a component has."""
        return len(self.of) - len(self.tables)

    @property
    def ends(self) -> list[int]:
        """Where parts of z end: logits, weights, then location ÷ scale and softplus⁻¹(1/scale) of numbers."""
        count, numbers = self.components, self.components * len(self.smooth)
        return np.cumsum([count * self.free, count - 1, numbers, numbers]).tolist()


class Parts(NamedTuple):
    """z, cut: (K − 1) for the weights, and (K, …) for the others."""

    logits: Array
    weights: Array
    ratio: Array
    inverse: Array


def layout(
    columns: Sequence[Numeric | Categorical], components: int, numeric: str, bins: int, missing: Mapping[str, Any]
) -> Layout:
    """How a mixture of these columns is laid out."""
    smooth = [c for c in columns if numeric == "gaussian" and isinstance(c, Numeric) and not is_listed(c)]
    tables = tuple(_table(c, bins, missing.get(c.name)) for c in columns if c not in smooth)
    whose = [np.full(len(table.low), place) for place, table in enumerate(tables)]
    tops = [np.where(table.high == table.top, table.top, np.nan) for table in tables]
    lows, highs = [table.low for table in tables], [table.high for table in tables]
    return Layout(components, tables, tuple(smooth), *map(_in_line, (whose, lows, highs, tops)))


def is_listed(column: Numeric | Categorical) -> bool:
    """Whether each value of the column has a probability of its own: a public rule."""
    return column.size is not None and (isinstance(column, Categorical) or column.size <= MOST_VALUES)


def _table(column: Numeric | Categorical, bins: int, missing: Any) -> Table:
    if is_listed(column):
        values = range(column.size) if isinstance(column, Categorical) else range(int(column.low), int(column.high) + 1)
        absent = column.levels.index(missing) if isinstance(column, Categorical) and missing is not None else missing
        low = np.array([value for value in values if value != absent], float)
        return Table(column, low, low + 1, missing=math.nan if absent is None else float(absent))
    assert isinstance(column, Numeric)
    if column.size is None:
        edges = np.linspace(column.low, column.high, bins + 1)
        return Table(column, edges[:-1], edges[1:], edges[-1])
    bins = min(bins, column.size)
    edges = column.low + np.ceil(np.arange(bins + 1) * (column.size / bins))  # whole numbers, as evenly as they go
    return Table(column, edges[:-1], edges[1:])


def _in_line(values: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, int), *(one[:-1] for one in values), *(one[-1:] for one in values)])


def split(layout: Layout, z: Array) -> Parts:
    """The parts of z; what stands behind them is another's."""
    logits, weights, ratio, inverse, _ = jnp.split(z, layout.ends)
    return Parts(_by_component(layout, logits), weights, _by_component(layout, ratio), _by_component(layout, inverse))


def _by_component(layout: Layout, part: Array) -> Array:
    return part.reshape(layout.components, -1)


def log_weights(parts: Parts) -> Array:
    """Log weights of the components, (K,)."""
    return jax.nn.log_softmax(jnp.append(parts.weights, 0.0))


def of_tables(layout: Layout, parts: Parts, row: Row) -> Array:
    """log p of the columns with tables, by component: log-odds of what is seen, less the normaliser of each table.

    A value that is missing adds nothing; one that is not declared makes it nan.
    """
    values, hit, seen = _looked_up(layout, row, parts.logits.dtype)
    absent = values == np.array([table.missing for table in layout.tables], values.dtype)
    found = parts.logits @ hit[: layout.free] - _normalisers(layout, parts) @ seen
    return jnp.where(((seen > 0) | absent).all(), found + _density(layout, hit), jnp.nan)


def indicators(layout: Layout, row: Row) -> Array:
    """Which places but the last of each table the row's values are in; nan if one of them is in none."""
    _, hit, seen = _looked_up(layout, row, jnp.result_type(float))
    return jnp.where((seen > 0).all(), hit[: layout.free], jnp.nan)


def log_partition(layout: Layout, z: Array) -> Array:
    """What all tables of each component take off its indicators times logits, (K,)."""
    return _normalisers(layout, split(layout, z)).sum(1)


def density_of(layout: Layout, row: Row, dtype: Any) -> Array:
    """What the widths of the places where values are add to log p."""
    return _density(layout, _looked_up(layout, row, dtype)[1])


def _density(layout: Layout, hit: Array) -> Array:
    return -jnp.dot(hit, np.log(layout.high - layout.low).astype(hit.dtype))


def _looked_up(layout: Layout, row: Row, dtype: Any) -> tuple[Array, Array, Array]:
    """The row's values, by table; which places they are in; and in how many of each table."""
    values = jnp.stack([jnp.asarray(row[table.column.name], dtype) for table in layout.tables])
    low, high, top = (np.asarray(one, dtype) for one in (layout.low, layout.high, layout.top))
    here = values[layout.of]
    hit = ((here >= low) & ((here < high) | (here == top))).astype(dtype)
    return values, hit, jax.ops.segment_sum(hit, layout.of, len(layout.tables))


def of_numbers(layout: Layout, parts: Parts, row: Row) -> Array:
    """log p of the Gaussian columns, by component."""
    values = jnp.stack([jnp.asarray(row[column.name], parts.ratio.dtype) for column in layout.smooth])
    middle, half = _units(layout)
    distance = jax.nn.softplus(parts.inverse) * ((values - middle) / half)[None] - parts.ratio
    return (_log_softplus(parts.inverse) - 0.5 * distance**2).sum(1) - jnp.sum(jnp.log(half) + 0.5 * np.log(2 * np.pi))


def log_prior(layout: Layout, priors: Priors, parts: Parts) -> Array:
    """Log density of z, up to a constant: Dirichlet densities in logits, which have the Jacobian in them."""
    sizes = np.array([len(table.low) for table in layout.tables])
    of_levels = parts.logits.sum() - jnp.sum(_normalisers(layout, parts) @ sizes) if layout.tables else 0.0
    mean, sd = priors.inverse_scale
    of_numbers = jnp.sum((parts.ratio / priors.location_sd) ** 2 + ((parts.inverse - mean) / sd) ** 2)
    return priors.weights * log_weights(parts).sum() + priors.levels * of_levels - 0.5 * of_numbers


def prior_draw(layout: Layout, priors: Priors, key: Array) -> Array:
    """One draw of z from the prior."""
    of_weights, of_levels, of_ratios, of_scales = jax.random.split(key, 4)
    count, numbers = layout.components, (layout.components, len(layout.smooth))
    weights = jax.random.loggamma(of_weights, jnp.full(count, priors.weights))
    levels = jax.random.loggamma(of_levels, jnp.full((count, len(layout.of)), priors.levels))
    logits = (levels - levels[:, layout.free + layout.of])[:, : layout.free]
    mean, sd = priors.inverse_scale
    ratio = priors.location_sd * jax.random.normal(of_ratios, numbers)
    inverse = mean + sd * jax.random.normal(of_scales, numbers)
    return jnp.concatenate([logits.ravel(), weights[:-1] - weights[-1], ratio.ravel(), inverse.ravel()])


def coordinates(layout: Layout) -> tuple[str, ...]:
    """A name for each entry of z: its component behind a bar."""
    tables = [
        f"{table.column.name}[{_label(table, place)}" for table in layout.tables for place in range(len(table.low) - 1)
    ]
    numbers = [f"{column.name}.{part}[" for part in ("location ÷ scale", "1/scale") for column in layout.smooth]
    names = [f"{name}|{k}]" for k in range(layout.components) for name in tables]
    names += [f"weights[{k}]" for k in range(layout.components - 1)]
    cut = len(layout.smooth)
    return (
        *names,
        *(f"{name}{k}]" for part in (numbers[:cut], numbers[cut:]) for k in range(layout.components) for name in part),
    )


def _label(table: Table, place: int) -> str:
    column = table.column
    return str(column.levels[int(table.low[place])]) if isinstance(column, Categorical) else f"{table.low[place]:g}"


def named(layout: Layout, parts: Parts) -> dict[str, Array]:
    """Weights (K), the probabilities of each table (K, values), and location and scale (K) of Gaussian columns."""
    middle, half = _units(layout)
    scale = 1 / jax.nn.softplus(parts.inverse)
    location, tables = middle[None] + half[None] * parts.ratio * scale, _each_table(layout, parts.logits)
    found: dict[str, Array] = {"weights": jnp.exp(log_weights(parts))}
    found |= {table.column.name: jax.nn.softmax(own, -1) for table, own in zip(layout.tables, tables, strict=True)}
    for place, column in enumerate(layout.smooth):
        found |= {f"{column.name}.location": location[:, place], f"{column.name}.scale": half[place] * scale[:, place]}
    return found


def simulated(layout: Layout, parts: Parts, key: Array) -> dict[str, Array]:
    """One row: a component, and then its columns."""
    of_component, of_tables, within, of_numbers = jax.random.split(key, 4)
    component = jax.random.categorical(of_component, log_weights(parts))
    logits, ratio, inverse = (part[component] for part in (parts.logits, parts.ratio, parts.inverse))
    # one call for all tables, and one for all shares: each call of a generator takes long to compile
    scores = jnp.pad(logits, (0, len(layout.tables))) + jax.random.gumbel(of_tables, layout.of.shape, logits.dtype)
    shares, made = jax.random.uniform(within, (len(layout.tables),), logits.dtype), {}
    for number, table in enumerate(layout.tables):
        place = jnp.argmax(scores[np.flatnonzero(layout.of == number)])
        made[table.column.name] = clamp(_within(table, place, shares[number]), table.column)
    middle, half = _units(layout)
    noise = jax.random.normal(of_numbers, (len(layout.smooth),), ratio.dtype)
    values = middle + half * (ratio + noise) / jax.nn.softplus(inverse)
    return made | {column.name: clamp(values[place], column) for place, column in enumerate(layout.smooth)}


def _within(table: Table, place: Array, share: Array) -> Array:
    """A value that is even in its place."""
    low, high = (jnp.asarray(edges, share.dtype)[place] for edges in (table.low, table.high))
    value = low + (high - low) * share
    return value if table.column.size is None else jnp.minimum(jnp.floor(value), high - 1)


def _normalisers(layout: Layout, parts: Parts) -> Array:
    """log Σ exp of each table's logits, (K, tables). By segments: their gradient is then a look-up, not a sum."""
    own, count = layout.of[: layout.free], len(layout.tables)
    logits = parts.logits.T
    most = jax.lax.stop_gradient(jnp.maximum(jax.ops.segment_max(logits, own, count), 0.0))
    total = jnp.exp(-most) + jax.ops.segment_sum(jnp.exp(logits - most[own]), own, count)
    return (most + jnp.log(total)).T


def _each_table(layout: Layout, logits: Array) -> list[Array]:
    """The logits of each table, with the last, (K, values)."""
    ends = np.cumsum([len(table.low) - 1 for table in layout.tables])
    tables = jnp.split(logits, ends[:-1], axis=1) if layout.tables else []
    return [jnp.pad(own, ((0, 0), (0, 1))) for own in tables]


def _log_softplus(v: Array) -> Array:
    """log softplus(v), which is v where softplus(v) would underflow."""
    low = v < -20
    return jnp.where(low, v, jnp.log(jax.nn.softplus(jnp.where(low, 0.0, v))))


def _units(layout: Layout) -> tuple[Array, Array]:
    """Mid-bounds, and half the range, of Gaussian columns."""
    low, high = (np.array([getattr(c, end) for c in layout.smooth], float) for end in ("low", "high"))
    return jnp.asarray((low + high) / 2, float), jnp.asarray((high - low) / 2, float)
