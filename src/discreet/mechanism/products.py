"""Sums of clipped answers by matrix products, where rows answer through linear predictors (`query.Products`).

A row's answer is a public linear map of its slopes ⊗ its features. So neither its length nor the sum over rows needs
the answer itself: lengths are products of slopes and squared features, and the map is applied to the sum. No array of
rows × answers is ever made. `bounded_sum` is the oracle: the same sum, row by row. A network with one hidden layer has
as many predictors as hidden units: for it these are the ghost norms of DP-SGD.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from discreet.mechanism.clipping import GRID, private_primitive, refuse_side_effects
from discreet.query import Numbers, Products, Spread

FEATURES, FINITE = "features of a row", "whether they are finite"
MOST_ROWS = 2**15
LONGEST, SLACK = 64.0, 0.125
UNIT_ROUNDOFF = 2.0**-53
LANES = 8  # products with a multiple of so many columns are twice as quick
MOST_PAIRED = 5
_PARTS = len(Spread._fields)


def with_features(products: Products, columns: Mapping[str, Array]) -> dict[str, Array]:
    """Each row's features, zero if they are not all finite, whether they are, and the columns that slopes look at."""
    features = jax.vmap(products.features)(dict(columns))
    finite = jnp.isfinite(features).all(1)
    others = {name: columns[name] for name in _looked_at(products, columns, features)}
    return {**others, FEATURES: jnp.where(finite[:, None], features, 0.0), FINITE: finite.astype(features.dtype)}


def _looked_at(products: Products, columns: Mapping[str, Array], features: Array) -> list[str]:
    """Names of the columns that slopes depend on."""
    points = _point(products, features)
    row = {name: jax.ShapeDtypeStruct(column.shape[1:], column.dtype) for name, column in columns.items()}
    jaxpr = jax.make_jaxpr(products.slopes)(*points, row).jaxpr
    seen = {id(var) for eqn in jaxpr.eqns for var in eqn.invars} | {id(var) for var in jaxpr.outvars}
    return [name for name, var in zip(sorted(columns), jaxpr.invars[2:], strict=True) if id(var) in seen]


def _point(products: Products, features: Array) -> list[jax.ShapeDtypeStruct]:
    """What slopes are given of a point: the predictors, and what is beside them."""
    rest = products.dim - products.predictors * features.shape[1]
    return [jax.ShapeDtypeStruct((size,), features.dtype) for size in (products.predictors, rest)]


def linear_sum(
    products: Products, question: Any, rows: Mapping[str, Array], multiplicity: Numbers, clip_norm: Numbers
) -> Array:
    """What `bounded_sum` gives, within rounding: Σ multiplicity_i · clip(answer_i), in whole units of clip_norm / 2²⁰.

    `rows` are those of `with_features`.

    Guarantee: in double precision, a row of multiplicity 1 moves the result by at most 2²⁰ units in the Euclidean norm;
    one without finite features, slopes and length adds zero. The sum is rounded to whole units once, which moves either
    of two sums by half a unit in each coordinate. Its terms are added in floating point, in any order: n rows, whose
    terms are a·clip_norm at most, miss by no more than (n + draws + 8)·n·a·2⁻⁵³ clip norms. The clip is reduced by one
    unit and twice this slack in each coordinate, and a row counts as longer by what rounding may hide of its length.
    Rows whose terms are longer are shortened, too: a is `LONGEST`, or as much more as keeps the slack at `SLACK` units.
    It exceeds 1 only where the terms of an answer cancel.
    """
    spread = products.spread(question)
    own = {name: rows[name] for name in rows if name not in (FEATURES, FINITE)}
    private, tree = jax.tree.flatten(own)

    def flat_slopes(predictors, rest, *leaves):
        return products.slopes(predictors, rest, jax.tree.unflatten(tree, leaves))

    one_row = (jax.ShapeDtypeStruct(one.shape[1:], one.dtype) for one in private)
    closed = jax.make_jaxpr(flat_slopes)(*_point(products, rows[FEATURES]), *one_row)
    refuse_side_effects(closed.jaxpr)
    public = [*closed.consts, *spread]
    operands = [*public, rows[FEATURES], rows[FINITE], *private, multiplicity, clip_norm]
    shape = {"kind": products.kind, "draws": products.draws, "predictors": products.predictors}
    return linear_sum_p.bind(*operands, jaxpr=closed.jaxpr, num_public=len(public), order=2, **shape)


def _linear_sum(*operands, jaxpr, num_public, order, kind, draws, predictors):
    del order
    public, (x, finite, *rows) = operands[:num_public], operands[num_public:-2]
    multiplicity, clip_norm = operands[-2:]
    consts, spread = public[:-_PARTS], Spread(*public[-_PARTS:])
    width, one_row = predictors * x.shape[1], jaxpr_as_fun(ClosedJaxpr(jaxpr, consts))
    points = spread.centre[None] + jnp.concatenate([spread.arms, -spread.arms])[:draws]
    points = jnp.pad(points, ((0, -draws % LANES if draws > 1 == predictors else 0), (0, 0)))
    count = len(x) * len(points)

    def at_points(part):  # of all rows and points in one axis: loops over short last axes are slow
        return jnp.broadcast_to(part, (len(x), len(points), *part.shape[2:])).reshape(count, *part.shape[2:])

    given = _times(x, points[:, :width].reshape(-1, predictors, x.shape[1])), points[None, :, width:]
    by_point = jax.vmap(one_row)(*map(at_points, given), *(at_points(part[:, None]) for part in rows))
    slopes, others = (part.reshape(len(x), len(points), part.shape[1])[:, :draws] for part in by_point)
    joined = _join(kind, slopes, len(spread.arms)), _join(kind, others, len(spread.arms))
    length, term = _lengths(kind, spread, x, *joined)
    radius, longest = _reach(len(x), draws, _size(kind, draws, spread))
    shrink = clip_norm / jnp.maximum(clip_norm, jnp.maximum(length / radius, term / longest))
    weight = jnp.where((finite > 0) & jnp.isfinite(length) & jnp.isfinite(term), multiplicity * shrink, 0.0)
    slopes, others = (jnp.where(jnp.isfinite(part), part, 0.0) for part in joined)
    by_features = (weight[:, None] * slopes.reshape(len(x), -1)).T @ x
    totals = jnp.concatenate([by_features.reshape(-1, width), jnp.einsum("i,ikq->kq", weight, others)], axis=1)
    return _whole(_answer(kind, spread, totals) * (GRID / clip_norm))


def _whole(units: Array) -> Array:
    return jnp.round(units)


def _times(x: Array, columns: Array) -> Array:
    """Products of rows with `columns` (n, predictors, features), as (rows, n, predictors)."""
    flat = columns.reshape(-1, x.shape[1])
    if len(flat) == 1:
        return (x @ flat[0])[:, None, None]
    spare = jnp.zeros((-len(flat) % LANES, x.shape[1]), x.dtype)
    return (x @ jnp.concatenate([flat, spare]).T)[:, : len(flat)].reshape(len(x), *columns.shape[:2])


def _join(kind: str, by_draw: Array, arms: int) -> Array:
    """Slopes by draw (rows, draws, …) as answers use them: ΣG_k and those of the arms; as they are for one point, or if
    "aligned".
    """
    if kind == "aligned" or by_draw.shape[1] == 1:
        return by_draw
    first, second = by_draw[:, :arms], by_draw[:, arms:]
    pairs = first[:, : second.shape[1]] - second
    return jnp.concatenate([by_draw.sum(1, keepdims=True), pairs, first[:, second.shape[1] :]], axis=1)


def _reach(count: int, draws: int, size: int) -> tuple[float, float]:
    """How long answers of `count` rows may be, and how long their terms, in clip norms (see `linear_sum`)."""
    miss = (count + draws + 8) * count * UNIT_ROUNDOFF * GRID
    longest = max(LONGEST, SLACK / miss)
    radius = 1 - (1 + 2 * miss * longest) * size**0.5 / GRID
    if radius < 0.5:
        raise ValueError(f"a row answers with {size} numbers: rounding would use up half of the clip norm")
    return radius, longest


def _size(kind: str, draws: int, spread: Spread) -> int:
    """The length of an answer."""
    return draws * spread.centre.shape[0] if kind == "aligned" else spread.factor.shape[0]


def _answer(kind: str, spread: Any, totals: Array) -> Array:
    """The public map from joined slopes (…, dim) to an answer."""
    dim = totals.shape[1]
    if kind == "aligned":
        return (spread.factor[None, :dim] * totals).ravel()
    location, arms = totals[0], totals[-len(spread.arms) :]
    parts = [location, spread.slope * (spread.eta * arms).sum(0)]
    if kind == "full-rank":
        row, column = np.tril_indices(dim, -1)
        parts.append((arms.T @ spread.eta).reshape(dim * dim)[row * dim + column])
    return spread.factor * jnp.concatenate(parts)


def _lengths(kind: str, spread: Any, x: Array, slopes: Array, others: Array) -> tuple[Array, Array]:
    """Of each row: the norm of its answer, and a bound on the sum of the sizes of the terms of any coordinate."""
    dim, predictors, square = spread.centre.shape[0], slopes.shape[2], x**2
    width = predictors * x.shape[1]

    def by_predictor(weights):
        return weights[..., :width].reshape(-1, predictors, x.shape[1])

    location, scale, eta = spread.factor[:dim], spread.factor[dim : 2 * dim] * spread.slope, spread.eta
    if kind == "aligned" or (kind == "mean-field" and slopes.shape[1] == 1):  # every coordinate is one term
        weights = location**2 if kind == "aligned" else location**2 + (scale * eta[0]) ** 2
        norm = ((slopes**2).sum(1) * _times(square, by_predictor(weights))[:, 0]).sum(1)
        norm = norm + jnp.einsum("ikq,q->i", others**2, weights[width:])
        return _at_least(norm, jnp.sqrt(norm), dim), jnp.sqrt(norm)
    arms, others_arms, loudest = slopes[:, -len(eta) :], others[:, -len(eta) :], jnp.abs(eta).max(0)
    most = jnp.abs(scale) * loudest
    if kind == "full-rank":
        most = jnp.maximum(most, (jnp.abs(_below(spread)) * loudest[None]).max(1))
    paired = predictors > 1 or (kind == "mean-field" and len(eta) <= MOST_PAIRED)
    columns = [location[None] ** 2, most[None] ** 2, *([_pairs(eta * scale[None], 0)] if paired else [])]
    of_location, of_most, of_pairs = jnp.split(_times(square, by_predictor(jnp.concatenate(columns))), [1, 2], axis=1)
    norm = (slopes[:, :1] ** 2 * of_location).sum((1, 2)) + others[:, 0] ** 2 @ location[width:] ** 2
    terms = jnp.sqrt(norm)
    norm = norm + jnp.einsum("ikq,kq->iq", others_arms, eta[:, width:]) ** 2 @ scale[width:] ** 2
    if paired:
        twice = np.concatenate([[1.0, *(2.0,) * more] for more in reversed(range(len(eta)))])
        norm = norm + (of_pairs * _pairs(arms, 1) * twice[None, :, None]).sum((1, 2))
    else:
        norm = norm + ((arms[..., 0] @ eta[:, :width]) ** 2 * square) @ scale[:width] ** 2
    if kind == "full-rank":
        below = _below(spread)
        mixed = jnp.einsum("ikq,kl->iql", others_arms, eta) * below[None, width:]
        norm = norm + ((arms[..., 0] @ eta) ** 2 * (square @ below[:width] ** 2)).sum(1) + (mixed**2).sum((1, 2))
    terms = terms + jnp.sqrt((jnp.abs(arms).sum(1) ** 2 * of_most[:, 0]).sum(1))
    terms = terms + jnp.abs(others_arms).sum(1) @ most[width:]
    return _at_least(norm, terms, dim + slopes.shape[1] + of_pairs.shape[1] * predictors), terms


def _below(spread: Any) -> Array:
    """The factors of the entries below the diagonal, as a matrix."""
    dim = spread.centre.shape[0]
    return jnp.zeros((dim, dim)).at[np.tril_indices(dim, -1)].set(spread.factor[2 * dim :])


def _pairs(arms: Array, axis: int) -> Array:
    """Products of every arm with itself and those after it.

    Σ_j (x_j Σ_r a_r η_rj)² = Σ_rs a_r a_s Σ_j x_j² η_rj η_sj: a product of matrices with few columns.
    """
    count = arms.shape[axis]
    ones, rests = (
        [jax.lax.slice_in_dim(arms, place, stop, axis=axis) for place, stop in enumerate(stops)]
        for stops in (range(1, count + 1), [count] * count)
    )
    return jnp.concatenate([one * rest for one, rest in zip(ones, rests, strict=True)], axis)


def _at_least(square: Array, terms: Array, count: int) -> Array:
    """The root of a sum of `count` terms of these sizes, and all that rounding may hide of it."""
    return jnp.sqrt(jnp.maximum(square, 0.0) + 4 * (count + 8) * UNIT_ROUNDOFF * terms**2)


def _linear_sum_shape(*operands, jaxpr, num_public, order, kind, draws, predictors):
    del jaxpr, order, predictors
    size = _size(kind, draws, Spread(*operands[num_public - _PARTS : num_public]))
    return operands[num_public - 1].update(shape=(size,))


linear_sum_p = private_primitive("linear_sum", _linear_sum, _linear_sum_shape)
