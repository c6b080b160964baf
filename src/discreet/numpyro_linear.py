"""Whether the rows of a NumPyro function see a latent vector w and a matrix argument X through X·w alone.

The row's log density is traced, and its equations are evaluated with w and X unknown: what only shapes an unknown is
unknown, the contraction of the two is the linear predictor u, which is known, and what else looks at an unknown is
lost. A result that is not lost is a function of u, by structure and not by a guess from numbers.
"""

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from discreet.numpyro_binding import ModelError, plain
from discreet.numpyro_checks import Piece, Program
from discreet.schema import Schema

Pair = tuple[str, str]
"""The names of a latent and of an argument."""
Term = Callable[[Array, Array], Array]
"""A row's log density as a function of a latent w and of an argument X, (1, columns)."""

_SHAPING = {"reshape", "squeeze", "expand_dims", "broadcast_in_dim", "transpose", "copy", "copy_p", "slice"}
_WHOLE_SLICES = {"dynamic_slice", "gather"}
_SURE_MODES = (jax.lax.GatherScatterMode.CLIP, jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS)
_CALLS = {"jit", "pjit"}
_PREDICTOR = "u"


class NotLinearError(Exception):
    """A term that is not a function of X·w; the message names the first operation that looks at either."""


class _Unknown(NamedTuple):
    """A value that is w, X or their entrywise product but for its shape; else lost, with the operation's name."""

    what: str


_W, _X, _PRODUCT = _Unknown("w"), _Unknown("X"), _Unknown("w * X")


def check_choice(fn: Callable[..., Any], schema: Schema, arguments: Mapping, chosen: Any) -> None:
    """Refuse a `linear_predictor` that is none, or that may be meant for the model's own parameter of this name."""
    own = inspect.signature(plain(fn)).parameters.get("linear_predictor")
    column = "linear_predictor" in arguments or "linear_predictor" in schema
    if own is not None and not column and (own.default is own.empty or chosen is not True):
        raise ModelError(
            f"linear_predictor={chosen!r} belongs to from_numpyro and does not reach the model, which has a parameter "
            "of this name; rename the model's"
        )
    pair = isinstance(chosen, tuple | list) and len(chosen) == 2 and all(isinstance(name, str) for name in chosen)
    if not pair and not isinstance(chosen, bool):
        raise ModelError(
            f"linear_predictor={chosen!r} must be True, False or a pair (latent, argument), such as ('w', 'X'); "
            "a constant of the model needs another name"
        )


def choose(
    program: Program, chosen: bool | Sequence[str], term: Callable[[Pair], tuple[Term, Array, Array]]
) -> Pair | None:
    """The latent and the argument of the linear predictor, the longest if there are several; None if there is none.

    `term(pair)` is the row's log density as a function of the two, and values of theirs for shape and type. A pair
    that was declared and that the structure does not confirm is refused.
    """
    if chosen is False:
        return None
    pairs = _pairs(program)
    if chosen is True:
        longest_first = sorted(pairs, key=lambda pair: -math.prod(program.pieces[pair[0]].shape))
        return next((pair for pair in longest_first if obstacle(*term(pair)) is None), None)
    latent, argument = pair = (chosen[0], chosen[1])
    if pair not in pairs:
        raise ModelError(
            f"linear_predictor={pair!r} must name a latent vector and an argument of as many columns, mapped with "
            f"arguments={{{argument!r}: [...]}}; the model has {pairs or 'no such pair'}"
        )
    found = obstacle(*term(pair))
    if found is not None:
        raise ModelError(
            f"linear_predictor={pair!r}: rows must see {latent!r} and {argument!r} through their product alone, but "
            f"there is {found}; use {argument} @ {latent} and neither of them elsewhere, or leave linear_predictor out"
        )
    return pair


def _pairs(program: Program) -> list[Pair]:
    """Latent vectors and arguments of as many columns, in order of appearance."""
    widths = {name: len(columns) for name, columns in program.binding.arguments.items() if not isinstance(columns, str)}
    shapes = {name: piece.shape for name, piece in program.pieces.items() if piece.shape}
    return [(latent, name) for latent in shapes for name in widths if _is_line(shapes[latent], widths[name])]


def with_first(program: Program, latent: str) -> Program:
    """The program whose z begins with this latent; the others keep their order."""
    pieces, start = {}, 0
    for name in sorted(program.pieces, key=lambda name: name != latent):
        shape = program.pieces[name].shape
        pieces[name], start = Piece(start, shape), start + math.prod(shape)
    return program._replace(pieces=pieces)


def obstacle(term: Term, w: Array, x: Array) -> str | None:
    """What keeps term(w, x) from being a function of x·w; None if nothing does. Values of w and x are not looked at."""
    predictor = jax.ShapeDtypeStruct((), jnp.result_type(float))
    try:
        jaxpr = jax.make_jaxpr(functools.partial(of_product, term, w, x))(predictor).jaxpr
    except NotLinearError as error:
        return str(error)
    used = any(var is jaxpr.invars[0] for eqn in jaxpr.eqns for var in eqn.invars)
    return None if used else "no use of it"


def of_product(term: Term, w: Array, x: Array, u: Array) -> Array:
    """term(w, x) where x·w = u; of w and x only shape and type are used."""
    traced = jax.make_jaxpr(term)(w, x)
    if traced.effects:
        raise NotLinearError("a side effect")
    (result,) = _evaluate(traced.jaxpr, traced.consts, [_W, _X], u)
    if isinstance(result, _Unknown):
        raise NotLinearError(f"the operation {result.what!r} on one of them")
    return result


def _evaluate(jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any], u: Array) -> list[Any]:
    """The outputs of a jaxpr some of whose inputs are unknown."""
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))
    for eqn in jaxpr.eqns:
        operands = {var: values[var] for var in eqn.invars if not isinstance(var, Literal)}
        if any(isinstance(value, _Unknown) for value in operands.values()):
            outputs = _of_unknowns(eqn, [_read(values, var) for var in eqn.invars], u)
        else:
            alone = jaxpr.replace(constvars=[], invars=[*operands], outvars=eqn.outvars, eqns=[eqn])
            outputs = jaxpr_as_fun(ClosedJaxpr(alone, []))(*operands.values())
        values.update(zip(eqn.outvars, outputs, strict=True))
    return [_read(values, var) for var in jaxpr.outvars]


def _read(values: Mapping, var: Any) -> Any:
    return var.val if isinstance(var, Literal) else values[var]


def _of_unknowns(eqn: Any, operands: list[Any], u: Array) -> list[Any]:
    if eqn.primitive.name in _CALLS:
        inner = eqn.params["jaxpr"]
        return _evaluate(inner.jaxpr, inner.consts, operands, u)
    what = _follow(eqn, [operand if isinstance(operand, _Unknown) else None for operand in operands])
    if what == _PREDICTOR:
        shaped = eqn.outvars[0].aval
        return [jnp.reshape(u, shaped.shape).astype(shaped.dtype)]
    return [_Unknown(what)] * len(eqn.outvars)


def _follow(eqn: Any, unknown: list[_Unknown | None]) -> str:
    """What an operation on unknowns gives. All that are not lost have one axis of the vector's length, others of 1.

    So shaping cannot reorder entries, and what is a single number after a contraction has contracted that axis.
    """
    lost = [value for value in unknown if value not in (None, _W, _X, _PRODUCT)]
    if lost:
        return lost[0].what
    name, shape = eqn.primitive.name, eqn.outvars[0].aval.shape
    one_number = math.prod(shape) == 1
    same_length = _is_line(shape, math.prod(eqn.invars[0].aval.shape))
    if set(unknown) == {_W, _X} and one_number and name in ("mul", "dot_general"):
        return _PREDICTOR
    if set(unknown) == {_W, _X} and same_length and name == "mul":
        return _PRODUCT.what
    if unknown[0] is None or any(unknown[1:]):
        return name
    if unknown[0] == _PRODUCT and one_number and name == "reduce_sum":
        return _PREDICTOR
    return unknown[0].what if same_length and _keeps_entries(eqn) else name


def _keeps_entries(eqn: Any) -> bool:
    """Whether each entry of a vector stays as it is, if the result has the vector's length."""
    name = eqn.primitive.name
    if name == "convert_element_type":
        kind = eqn.params["new_dtype"]
        return jnp.issubdtype(kind, jnp.floating) and jnp.finfo(kind).bits >= 32
    if name in _WHOLE_SLICES:  # whatever the index, it is clamped to where the only slice begins
        whole = tuple(eqn.params["slice_sizes"]) == eqn.invars[0].aval.shape
        return whole and eqn.params.get("mode", _SURE_MODES[0]) in _SURE_MODES
    return name in _SHAPING


def _is_line(shape: Sequence[int], length: int) -> bool:
    """Whether one axis has this length, and all others 1."""
    return math.prod(shape) == length and max(shape, default=1) == length
