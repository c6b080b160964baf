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
    It exceeds 1 only where the terms of an answer cancel. Where features are taken about means, x and its mean are two
    terms, added apart: what they miss by is the same, for a bounds the sum of their sizes.
    """
    spread = products.spread(question)
    own = {name: rows[name] for name in rows if name not in (FEATURES, FINITE)}
    private, tree = jax.tree.flatten(own)

    def flat_slopes(predictors, rest, *leaves):
        return products.slopes(predictors, rest, jax.tree.unflatten(tree, leaves))

    one_row = (jax.ShapeDtypeStruct(one.shape[1:], one.dtype) for one in private)
    closed = jax.make_jaxpr(flat_slopes)(*_point(products, rows[FEATURES]), *one_row)
    refuse_side_effects(closed.jaxpr)
    parts = [part for part in spread if part is not None]
    public = [*closed.consts, *parts]
    operands = [*public, rows[FEATURES], rows[FINITE], *private, multiplicity, clip_norm]
    shape = {"kind": products.kind, "draws": products.draws, "predictors": products.predictors, "parts": len(parts)}
    return linear_sum_p.bind(*operands, jaxpr=closed.jaxpr, num_public=len(public), order=2, **shape)


def _linear_sum(*operands, jaxpr, num_public, order, kind, draws, predictors, parts):
    del order
    public, (x, finite, *rows) = operands[:num_public], operands[num_public:-2]
    multiplicity, clip_norm = operands[-2:]
    consts, spread = public[:-parts], Spread(*public[-parts:])
    width, one_row = predictors * x.shape[1], jaxpr_as_fun(ClosedJaxpr(jaxpr, consts))
    by_row = jax.vmap(one_row, in_axes=(-1, None, *(0 for _ in rows)), out_axes=-1)
    points = _points(x, spread, draws, predictors)
    by_draw = jax.vmap(by_row, in_axes=(0, 0, *(None for _ in rows)))(*points, *rows)
    joined = [_join(kind, part, len(spread.arms)) for part in by_draw]
    own = jnp.where((multiplicity > 0)[:, None], x, 0.0)  # not x² as it was picked: XLA is slow with that
    if spread.means is None:
        length, term = _lengths(kind, spread, own**2, *joined)
    else:
        length, term = _lengths_about_means(kind, spread, own, *joined)
    radius, longest = _reach(len(x), draws, _size(kind, draws, spread))
    shrink = clip_norm / jnp.maximum(clip_norm, jnp.maximum(length / radius, term / longest))
    weight = jnp.where((finite > 0) & jnp.isfinite(length) & jnp.isfinite(term), multiplicity * shrink, 0.0)
    slopes, others = (jnp.where(jnp.isfinite(part), part, 0.0) for part in joined)
    weighted = weight[None] * slopes.reshape(-1, len(x))
    by_features = (weighted @ x).reshape(-1, width)
    if spread.means is not None:
        by_features = by_features - jnp.repeat(weighted.sum(1), x.shape[1]).reshape(-1, width) * spread.means[:, :width]
    totals = jnp.concatenate([by_features, jnp.einsum("i,kqi->kq", weight, others)], axis=1)
    return _whole(_answer(kind, spread, totals) * (GRID / clip_norm))


def _whole(units: Array) -> Array:
    return jnp.round(units)


def _times(x: Array, columns: Array) -> Array:
    """Products of `columns` (n, predictors, features) with rows, as (n, predictors, rows): rows stand last in all that
    is made of them, because loops over a short last axis go number by number.
    """
    flat = columns.reshape(-1, x.shape[1])
    if len(flat) == 1:
        return (x @ flat[0])[None, None]
    spare = jnp.zeros((-len(flat) % LANES, x.shape[1]), x.dtype)
    product = jax.lax.optimization_barrier(x @ jnp.concatenate([flat, spare]).T)  # its transpose is slower to make
    return product.T[: len(flat)].reshape(*columns.shape[:2], len(x))


def _points(x: Array, spread: Spread, draws: int, predictors: int) -> tuple[Array, Array]:
    """Rows' predictors (draws, predictors, rows) and what is beside them (draws, rest) at each point."""
    width, arms = predictors * x.shape[1], len(spread.arms)
    parts = [spread.centre[None] + spread.arms] if draws == 1 else [spread.centre[None], spread.arms]
    ways = jnp.concatenate(parts)
    by_row = _times(x, ways[:, :width].reshape(-1, predictors, x.shape[1]))

    def both(part):
        return jnp.concatenate([part[:1] + part[1:], (part[:1] - part[1:])[: draws - arms]]) if draws > 1 else part

    beside = both(ways[:, width:])
    return both(by_row) if spread.partition is None else both(by_row) - spread.partition[..., None], beside


def _join(kind: str, by_draw: Array, arms: int) -> Array:
    """Slopes by draw (draws, …, rows) as answers use them: ΣG_k and those of the arms; as they are for one point, or if
    "aligned".
    """
    if kind == "aligned" or len(by_draw) == 1:
        return by_draw
    first, second = by_draw[:arms], by_draw[arms:]
    return jnp.concatenate([by_draw.sum(0, keepdims=True), first[: len(second)] - second, first[len(second) :]])


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


def _lengths(kind: str, spread: Any, square: Array, slopes: Array, others: Array) -> tuple[Array, Array]:
    """Of each row: the norm of its answer, and a bound on the sum of the sizes of the terms of any coordinate.

    `square` are the squares of features.
    """
    dim, predictors = spread.centre.shape[0], slopes.shape[1]
    width = predictors * square.shape[1]

    def by_predictor(weights):
        return weights[..., :width].reshape(-1, predictors, square.shape[1])

    if kind == "aligned" or (kind == "mean-field" and len(slopes) == 1):  # every coordinate is one term
        weights = _weights(kind, spread)
        norm = ((slopes**2).sum(0) * _times(square, by_predictor(weights))[0]).sum(0)
        norm = norm + jnp.einsum("kqi,q->i", others**2, weights[width:])
        return _at_least(norm, jnp.sqrt(norm), dim), jnp.sqrt(norm)
    location, scale, eta = spread.factor[:dim], spread.factor[dim : 2 * dim] * spread.slope, spread.eta
    arms, others_arms, loudest = slopes[-len(eta) :], others[-len(eta) :], jnp.abs(eta).max(0)
    most = jnp.abs(scale) * loudest
    if kind == "full-rank":
        most = jnp.maximum(most, (jnp.abs(_below(spread)) * loudest[None]).max(1))
    paired = predictors > 1 or (kind == "mean-field" and len(eta) <= MOST_PAIRED)
    further = _pairs(eta * scale[None]) if paired else most[None] ** 2
    of_location, of_arms = jnp.split(_times(square, by_predictor(jnp.concatenate([location[None] ** 2, further]))), [1])
    norm = (slopes[:1] ** 2 * of_location).sum((0, 1)) + location[width:] ** 2 @ others[0] ** 2
    terms = jnp.sqrt(norm) + most[width:] @ jnp.abs(others_arms).sum(0)
    norm = norm + scale[width:] ** 2 @ jnp.einsum("kqi,kq->qi", others_arms, eta[:, width:]) ** 2
    if paired:
        own = np.cumsum([0, *range(len(eta), 1, -1)])  # where a pair is an arm with itself
        twice = np.full(len(of_arms), 2.0)
        twice[own] = 1.0
        norm = norm + (of_arms * _pairs(arms) * twice[:, None, None]).sum((0, 1))
        by_arm = (jnp.abs(arms) * jnp.sqrt(of_arms[own])).sum(0)
    else:
        norm = norm + ((arms[:, 0].T @ eta[:, :width]) ** 2 * square) @ scale[:width] ** 2
        by_arm = jnp.abs(arms).sum(0) * jnp.sqrt(of_arms[0])
    if kind == "full-rank":
        below = _below(spread)
        mixed = jnp.einsum("kqi,kl->qli", others_arms, eta) * below[width:, :, None]
        norm = norm + ((arms[:, 0].T @ eta) ** 2 * (square @ below[:width] ** 2)).sum(1) + (mixed**2).sum((0, 1))
    terms = terms + jnp.sqrt((by_arm**2).sum(0))
    return _at_least(norm, terms, dim + len(slopes) + len(of_arms) * predictors), terms


def _weights(kind: str, spread: Any) -> Array:
    """What each squared slope ⊗ feature counts in the square of an answer: aligned, or mean-field with one draw."""
    dim = spread.centre.shape[0]
    location = spread.factor[:dim] ** 2
    return location if kind == "aligned" else location + (spread.factor[dim:] * spread.slope * spread.eta[0]) ** 2


def _lengths_about_means(kind: str, spread: Any, x: Array, slopes: Array, others: Array) -> tuple[Array, Array]:
    """`_lengths` of answers whose features are taken about the spread's means: Σ_k |g_k|² |f∘(x − c_k)|².

    They are aligned, or mean-field with one draw. A square (x − c)² is made as x² − 2xc + c², whose terms together are
    at most 2x² + 2c² in size.
    """
    dim, (draws, predictors, _) = spread.centre.shape[0], slopes.shape
    width = predictors * x.shape[1]
    weights = _weights(kind, spread)
    of_features, means = ((part[..., :width]).reshape(-1, predictors, x.shape[1]) for part in (weights, spread.means))
    squares = _times(x**2, of_features)
    own = (of_features * means**2).sum(-1)[..., None]
    apart = squares - 2 * _times(x, of_features * means) + own
    beside = jnp.einsum("kqi,q->i", others**2, weights[width:])
    norm = (slopes**2 * apart).sum((0, 1)) + beside
    terms = jnp.sqrt((slopes**2 * 2 * (squares + own)).sum((0, 1)) + beside)
    return _at_least(norm, terms, dim + draws * predictors), terms


def _below(spread: Any) -> Array:
    """The factors of the entries below the diagonal, as a matrix."""
    dim = spread.centre.shape[0]
    return jnp.zeros((dim, dim)).at[np.tril_indices(dim, -1)].set(spread.factor[2 * dim :])


def _pairs(arms: Array) -> Array:
    """Products of every arm with itself and those after it.

    Σ_j (x_j Σ_r a_r η_rj)² = Σ_rs a_r a_s Σ_j x_j² η_rj η_sj: a product of matrices with few columns.
    """
    return jnp.concatenate([arms[place : place + 1] * arms[place:] for place in range(len(arms))])


def _at_least(square: Array, terms: Array, count: int) -> Array:
    """The root of a sum of `count` terms of these sizes, and all that rounding may hide of it."""
    return jnp.sqrt(jnp.maximum(square, 0.0) + 4 * (count + 8) * UNIT_ROUNDOFF * terms**2)


def _linear_sum_shape(*operands, jaxpr, num_public, order, kind, draws, predictors, parts):
    del jaxpr, order, predictors
    size = _size(kind, draws, Spread(*operands[num_public - parts : num_public]))
    return operands[num_public - 1].update(shape=(size,))


linear_sum_p = private_primitive("linear_sum", _linear_sum, _linear_sum_shape)
