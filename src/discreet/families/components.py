"""Components of a mixture of rows: what each says of the columns, which are independent within it.

z holds the logits of all binned columns side by side, the logits of the weights, and two numbers for each Gaussian
column. The last logit of each binned column, and of the weights, is zero and left out. Logits come first because they
are natural parameters: where nothing is missing, what a component says of its binned columns is a linear predictor,
indicators of what is seen times its logits, less its log partition.
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


class Binned(NamedTuple):
    """A column with a probability for each bin: the values from `low` to below `high`, and in the last to `top` itself.

    A level, or one of few whole numbers, is a bin of its own. `missing` is the encoded value that means "not observed";
    nan where there is none.
    """

    column: Numeric | Categorical
    low: np.ndarray
    high: np.ndarray
    top: float = math.nan
    missing: float = math.nan


class Layout(NamedTuple):
    """Which columns are binned, and which Gaussian; and all bins in one line, `of` which of the binned columns.

    There the last bin of each column, whose logit is zero, stands behind all that have logits.
    """

    components: int
    binned: tuple[Binned, ...]
    smooth: tuple[Numeric, ...]
    of: np.ndarray
    low: np.ndarray
    high: np.ndarray
    top: np.ndarray

    @property
    def uneven(self) -> bool:
        """Whether the width of a bin is not one."""
        return bool((self.high - self.low != 1).any())

    @property
    def absent(self) -> bool:
        """Whether some value means "not observed"."""
        return any(not math.isnan(cut.missing) for cut in self.binned)

    @property
    def free(self) -> int:
        """How many logits a component has."""
        return len(self.of) - len(self.binned)

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
    binned = tuple(_cut(c, bins, missing.get(c.name)) for c in columns if c not in smooth)
    whose = [np.full(len(cut.low), number) for number, cut in enumerate(binned)]
    tops = [np.where(cut.high == cut.top, cut.top, np.nan) for cut in binned]
    lows, highs = [cut.low for cut in binned], [cut.high for cut in binned]
    return Layout(components, binned, tuple(smooth), *map(_in_line, (whose, lows, highs, tops)))


def is_listed(column: Numeric | Categorical) -> bool:
    """Whether each value of the column has a probability of its own: a public rule."""
    return column.size is not None and (isinstance(column, Categorical) or column.size <= MOST_VALUES)


def _cut(column: Numeric | Categorical, bins: int, missing: Any) -> Binned:
    if is_listed(column):
        values = range(column.size) if isinstance(column, Categorical) else range(int(column.low), int(column.high) + 1)
        absent = column.levels.index(missing) if isinstance(column, Categorical) and missing is not None else missing
        low = np.array([value for value in values if value != absent], float)
        return Binned(column, low, low + 1, missing=math.nan if absent is None else float(absent))
    assert isinstance(column, Numeric)
    if column.size is None:
        edges = np.linspace(column.low, column.high, bins + 1)
        return Binned(column, edges[:-1], edges[1:], edges[-1])
    bins = min(bins, column.size)
    edges = column.low + np.ceil(np.arange(bins + 1) * (column.size / bins))  # whole numbers, as evenly as they go
    return Binned(column, edges[:-1], edges[1:])


def _in_line(values: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, int), *(one[:-1] for one in values), *(one[-1:] for one in values)])


def split(layout: Layout, z: Array) -> Parts:
    """The parts of z; what stands behind them is another's."""
    logits, weights, *others = jnp.split(z, layout.ends)[:4]
    logits, ratio, inverse = (part.reshape(layout.components, -1) for part in (logits, *others))
    return Parts(logits, weights, ratio, inverse)


def log_weights(parts: Parts) -> Array:
    """Log weights of the components, (K,)."""
    return jax.nn.log_softmax(jnp.append(parts.weights, 0.0))


def of_binned(layout: Layout, parts: Parts, row: Row) -> Array:
    """log p of the binned columns, by component: logits of what is seen, less the normaliser of each column.

    A value that is missing adds nothing; one that is not declared makes it nan.
    """
    values, hit, seen = _looked_up(layout, row, parts.logits.dtype)
    absent = values == np.array([cut.missing for cut in layout.binned], values.dtype)
    found = parts.logits @ hit[: layout.free] - _normalisers(layout, parts) @ seen
    return jnp.where(((seen > 0) | absent).all(), found + _density(layout, hit), jnp.nan)


def indicators(layout: Layout, row: Row) -> Array:
    """Which bins but the last of each column the row's values are in; nan if one of them is in none."""
    _, hit, seen = _looked_up(layout, row, jnp.result_type(float))
    return jnp.where((seen > 0).all(), hit[: layout.free], jnp.nan)


def log_partition(layout: Layout, z: Array) -> Array:
    """What all binned columns of each component take off its indicators times logits, (K,)."""
    return _normalisers(layout, split(layout, z)).sum(1)


def density_of(layout: Layout, row: Row, dtype: Any) -> Array:
    """What the widths of the bins where values are add to log p."""
    return _density(layout, _looked_up(layout, row, dtype)[1])


def _density(layout: Layout, hit: Array) -> Array:
    return -jnp.dot(hit, np.log(layout.high - layout.low).astype(hit.dtype))


def _looked_up(layout: Layout, row: Row, dtype: Any) -> tuple[Array, Array, Array]:
    """The row's values, by binned column; which bins they are in; and in how many of each column."""
    values = jnp.stack([jnp.asarray(row[cut.column.name], dtype) for cut in layout.binned])
    low, high, top = (np.asarray(one, dtype) for one in (layout.low, layout.high, layout.top))
    here = values[layout.of]
    hit = ((here >= low) & ((here < high) | (here == top))).astype(dtype)
    owner = layout.of[:, None] == np.arange(len(layout.binned))
    return values, hit, hit @ np.asarray(owner, dtype)


def of_numbers(layout: Layout, parts: Parts, row: Row) -> Array:
    """log p of the Gaussian columns, by component."""
    values = jnp.stack([jnp.asarray(row[column.name], parts.ratio.dtype) for column in layout.smooth])
    middle, half = _units(layout)
    distance = jax.nn.softplus(parts.inverse) * ((values - middle) / half)[None] - parts.ratio
    return (_log_softplus(parts.inverse) - 0.5 * distance**2).sum(1) - jnp.sum(jnp.log(half) + 0.5 * np.log(2 * np.pi))


def log_prior(layout: Layout, priors: Priors, parts: Parts) -> Array:
    """Log density of z, up to a constant: Dirichlet densities in logits, which have the Jacobian in them."""
    sizes = np.array([len(cut.low) for cut in layout.binned])
    log_levels = parts.logits.sum() - jnp.sum(_normalisers(layout, parts) @ sizes) if layout.binned else 0.0
    mean, sd = priors.inverse_scale
    squares = jnp.sum((parts.ratio / priors.location_sd) ** 2 + ((parts.inverse - mean) / sd) ** 2)
    return priors.weights * log_weights(parts).sum() + priors.levels * log_levels - 0.5 * squares


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
    """A name for each entry of z: what it is of, and its component behind a bar."""
    logits = [f"{cut.column.name}[{_label(cut, place)}" for cut in layout.binned for place in range(len(cut.low) - 1)]
    numbers = ([f"{column.name}[{part}" for column in layout.smooth] for part in ("location ÷ scale", "1/scale"))
    every = range(layout.components)
    of_all = [f"{name} | {k}]" for part in (logits, *numbers) for k in every for name in part]
    return (*of_all[: layout.ends[0]], *(f"weights[{k}]" for k in every[:-1]), *of_all[layout.ends[0] :])


def _label(cut: Binned, place: int) -> str:
    column = cut.column
    return str(column.levels[int(cut.low[place])]) if isinstance(column, Categorical) else f"{cut.low[place]:g}"


def named(layout: Layout, parts: Parts) -> dict[str, Array]:
    """Weights (K), probabilities of each binned column (K, bins), and location and scale (K) of each Gaussian one."""
    middle, half = _units(layout)
    scale = 1 / jax.nn.softplus(parts.inverse)
    location, logits = middle[None] + half[None] * parts.ratio * scale, _by_column(layout, parts.logits)
    found: dict[str, Array] = {"weights": jnp.exp(log_weights(parts))}
    found |= {cut.column.name: jax.nn.softmax(own, -1) for cut, own in zip(layout.binned, logits, strict=True)}
    for number, column in enumerate(layout.smooth):
        found |= {
            f"{column.name}.location": location[:, number],
            f"{column.name}.scale": half[number] * scale[:, number],
        }
    return found


def simulated(layout: Layout, parts: Parts, key: Array) -> dict[str, Array]:
    """One row: a component, and then its columns."""
    first, second, third, fourth = jax.random.split(key, 4)
    component = jax.random.categorical(first, log_weights(parts))
    logits, ratio, inverse = (part[component] for part in (parts.logits, parts.ratio, parts.inverse))
    # one call for all columns: each call of a generator takes long to compile
    scores = jnp.pad(logits, (0, len(layout.binned))) + jax.random.gumbel(second, layout.of.shape, logits.dtype)
    shares, made = jax.random.uniform(third, (len(layout.binned),), logits.dtype), {}
    for number, cut in enumerate(layout.binned):
        chosen = jnp.argmax(scores[np.flatnonzero(layout.of == number)])
        made[cut.column.name] = clamp(_within(cut, chosen, shares[number]), cut.column)
    middle, half = _units(layout)
    noise = jax.random.normal(fourth, (len(layout.smooth),), ratio.dtype)
    values = middle + half * (ratio + noise) / jax.nn.softplus(inverse)
    return made | {column.name: clamp(values[number], column) for number, column in enumerate(layout.smooth)}


def _within(cut: Binned, chosen: Array, share: Array) -> Array:
    """A value that is even in its bin."""
    low, high = (jnp.asarray(edges, share.dtype)[chosen] for edges in (cut.low, cut.high))
    value = low + (high - low) * share
    return value if cut.column.size is None else jnp.minimum(jnp.floor(value), high - 1)


def _normalisers(layout: Layout, parts: Parts) -> Array:
    """log Σ exp of each column's logits, (K, columns). By segments: their gradient is then a look-up, not a sum."""
    own, count = layout.of[: layout.free], len(layout.binned)
    logits = parts.logits.T
    most = jax.lax.stop_gradient(jnp.maximum(jax.ops.segment_max(logits, own, count), 0.0))
    total = jnp.exp(-most) + jax.ops.segment_sum(jnp.exp(logits - most[own]), own, count)
    return (most + jnp.log(total)).T


def _by_column(layout: Layout, logits: Array) -> list[Array]:
    """The logits of each binned column, with the last, (K, bins)."""
    ends = np.cumsum([len(cut.low) - 1 for cut in layout.binned])
    each = jnp.split(logits, ends[:-1], axis=1) if layout.binned else []
    return [jnp.pad(own, ((0, 0), (0, 1))) for own in each]


def _log_softplus(v: Array) -> Array:
    """log softplus(v), which is v where softplus(v) would underflow."""
    low = v < -20
    return jnp.where(low, v, jnp.log(jax.nn.softplus(jnp.where(low, 0.0, v))))


def _units(layout: Layout) -> tuple[Array, Array]:
    """Mid-bounds, and half the range, of Gaussian columns."""
    low, high = (np.array([getattr(c, end) for c in layout.smooth], float) for end in ("low", "high"))
    return jnp.asarray((low + high) / 2, float), jnp.asarray((high - low) / 2, float)
