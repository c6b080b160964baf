"""The two steps that make a value public: a bounded sum over rows, and noise.

Both are private JAX primitives, so that the taint check (`tests/guarantees/taint.py`) can recognise them in a traced
mechanism by what they are, not by what they are called. `bounded_sum` evaluates the row function itself, one row at
a time, so a row's contribution cannot depend on another row.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import batching, mlir

from discreet.query import Numbers

GRID = 2.0**20
MOST_ENTRIES = 2**24


def bounded_sum(
    row_value: Callable[[Any, Mapping[str, Array]], Array],
    question: Any,
    rows: Mapping[str, Array],
    multiplicity: Numbers,
    clip_norm: Numbers,
    order: int = 2,
) -> Array:
    """Σ multiplicity_i · clip(row_value(question, row_i)), in units of clip_norm / 2²⁰.

    Guarantee: a row of multiplicity 1 moves the result by at most 2²⁰ units, that is `clip_norm`, exactly, in the norm
    of this `order` (`Plan.norm_order`: 2 or 1): every term is a whole number, and sums of whole numbers below 2⁵³ have
    no rounding. A row without a finite norm adds zero. A row function that calls back to Python, prints or has another
    effect is refused: rows would leave through it.
    """
    public, public_tree = jax.tree.flatten(question)
    private, rows_tree = jax.tree.flatten(rows)

    def flat_value(*leaves):
        one_question = jax.tree.unflatten(public_tree, leaves[: len(public)])
        return row_value(one_question, jax.tree.unflatten(rows_tree, leaves[len(public) :]))

    first = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in private]
    closed = jax.make_jaxpr(flat_value)(*public, *first)
    refuse_side_effects(closed.jaxpr)
    operands = [*closed.consts, *public, *private, multiplicity, clip_norm]
    num_public = len(closed.consts) + len(public)
    return bounded_sum_p.bind(*operands, jaxpr=closed.jaxpr, num_public=num_public, order=order)


def refuse_side_effects(jaxpr: Any) -> None:
    """Refuse a traced row function that shows rows to the outside."""
    for eqn in jaxpr.eqns:
        if eqn.effects or "callback" in eqn.primitive.name:
            raise ValueError(
                f"the model's row function calls {eqn.primitive.name}: rows would leave through it; take prints, "
                "callbacks and other effects out of it"
            )
        several = [value if isinstance(value, tuple | list) else [value] for value in eqn.params.values()]
        values = [part for parts in several for part in parts]
        for inner in (getattr(value, "jaxpr", value) for value in values):
            if hasattr(inner, "eqns"):
                refuse_side_effects(inner)


@lru_cache(maxsize=64)
def of_unit(row_value: Callable[[Any, Mapping[str, Array]], Array], unit: str) -> Callable:
    """What a unit of rows answers: the sum over the places that hold one. To `bounded_sum` it is a row."""

    def value(question: Any, rows: Mapping[str, Array]) -> Array:
        values = jax.vmap(lambda row: row_value(question, row))({name: rows[name] for name in rows if name != unit})
        return jnp.where(rows[unit][:, None] > 0, values, 0.0).sum(0)

    return value


def privatize(total: Array, noise: Numbers, noise_scale: Numbers, clip_norm: Numbers) -> Array:
    """A `bounded_sum` total plus `noise_scale` times standard `noise`, back in units of 1.

    Guarantee: the noise is rounded to the same whole-number grid as the total, so the result is a post-processing of
    total + noise, and the same floats are reachable with and without any one row.
    """
    return privatize_p.bind(total, noise, noise_scale, clip_norm)


def _bounded_sum(*operands, jaxpr, num_public, order):
    public, rows = operands[:num_public], operands[num_public:-2]
    multiplicity, clip_norm = operands[-2:]
    consts, question = public[: len(jaxpr.constvars)], public[len(jaxpr.constvars) :]
    one_row = jaxpr_as_fun(ClosedJaxpr(jaxpr, consts))

    def total(multiplicity, *rows):
        values = jax.vmap(lambda *row: one_row(*question, *row)[0])(*rows)
        return (multiplicity[:, None] * clip_to_grid(values, clip_norm, order)).sum(0)

    count, size = len(multiplicity), jaxpr.outvars[0].aval.size
    portions = -(-count * size // MOST_ENTRIES)
    if portions <= 1:
        return total(multiplicity, *rows)
    each = -(-count // portions)
    # rows beyond the last repeat it, with multiplicity zero: whole numbers have the same sum in any order
    places = jnp.minimum(jnp.arange(portions * each), count - 1).reshape(portions, each)
    counted = jnp.pad(multiplicity, (0, portions * each - count)).reshape(portions, each)

    def add(sums, portion):
        return sums + total(portion[1], *(row[portion[0]] for row in rows)), None

    start = jnp.zeros(jaxpr.outvars[0].aval.shape, jaxpr.outvars[0].aval.dtype)
    return jax.lax.scan(add, start, (places, counted))[0]


def clip_to_grid(values: Array, clip_norm: Array, order: int = 2) -> Array:
    """Each row of `values` clipped to `clip_norm` and rounded to whole units of clip_norm / 2²⁰.

    Guarantee: the norm of each rounded row is at most 2²⁰: the Euclidean norm for `order` 2, the sum of absolute values
    for 1. The clip is reduced by the norm of half a unit in every coordinate, which is what rounding can add back.
    """
    if order not in (1, 2):
        raise ValueError(f"order={order} must be 1 or 2")
    radius = GRID - 0.5 * values.shape[1] ** (1 / order)
    if radius < GRID / 2:
        raise ValueError(f"a row answers with {values.shape[1]} numbers: rounding would use up half of the clip norm")
    units = values * (GRID / clip_norm)
    norm = jnp.abs(units).sum(1, keepdims=True) if order == 1 else jnp.sqrt((units**2).sum(1, keepdims=True))
    shrink = jnp.minimum(1.0, radius / jnp.maximum(norm, 1.0))
    return jnp.round(jnp.where(jnp.isfinite(norm), units * shrink, 0.0))


def _bounded_sum_shape(*operands, jaxpr, num_public, order):
    del operands, num_public, order
    return jaxpr.outvars[0].aval


def _privatize(total, noise, noise_scale, clip_norm):
    unit = clip_norm / GRID
    return (total + jnp.round(noise * (noise_scale / unit))) * unit


def private_primitive(name: str, impl: Callable, shape: Callable) -> Primitive:
    """A primitive of this name that the taint check can recognise; compiled and batched as `impl` is."""
    primitive = Primitive(name)
    primitive.def_impl(impl)
    primitive.def_abstract_eval(shape)
    mlir.register_lowering(primitive, mlir.lower_fun(impl, multiple_results=False))

    def batch(operands, axes, **params):
        return jax.vmap(lambda *one: impl(*one, **params), in_axes=axes)(*operands), 0

    batching.primitive_batchers[primitive] = batch
    return primitive


bounded_sum_p = private_primitive("bounded_sum", _bounded_sum, _bounded_sum_shape)
privatize_p = private_primitive("privatize", _privatize, lambda total, *_: total)
