"""How rows reach the arguments of a NumPyro function, and the refusals at that door."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from discreet.schema import Categorical, Numeric, Schema

Columns = str | tuple[str, ...]
MOST_WHOLE = 2**15
"""Larger whole numbers go as floats, so that their squares do not overflow int32."""


class ModelError(ValueError):
    """A function that is not p(z) · Π_i p(row_i | z) with a proper prior; the message names the site."""


class Binding(NamedTuple):
    """Which argument of `fn` holds which columns, and which columns are whole; all else it needs is constant."""

    fn: Callable[..., Any]
    arguments: Mapping[str, Columns]
    constants: Mapping[str, Any]
    whole: frozenset[str]

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column once, in the order of the arguments."""
        groups = [(c,) if isinstance(c, str) else c for c in self.arguments.values()]
        return tuple(dict.fromkeys(name for group in groups for name in group))


def bind(fn: Callable[..., Any], schema: Schema, arguments: Mapping, constants: Mapping) -> Binding:
    """Each parameter of `fn` as columns or constant; what is neither must have a default."""
    parameters = inspect.signature(plain(fn)).parameters
    named = {n: p for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in (*arguments, *constants):
        if name not in named and not open_ended:
            raise ModelError(f"{name!r} is not a parameter of the model; it has {list(named)}")
        if name in arguments and name in constants:
            raise ModelError(f"{name!r} is given as column and as constant; give it once")
    by_name = {name: name for name in named if name in schema and name not in constants}
    mapped = {name: _as_columns(name, columns, schema) for name, columns in {**by_name, **arguments}.items()}
    for name, parameter in named.items():
        if name not in mapped and name not in constants and parameter.default is parameter.empty:
            raise ModelError(
                f"parameter {name!r} has no value; map it to columns with arguments={{{name!r}: ...}} "
                f"or pass it as a constant, {name}=..."
            )
    if not mapped:
        raise ModelError(f"no parameter of the model is a column; map one of {list(named)} with arguments=")
    whole = {column.name for column in schema.columns if _is_whole(column)}
    return Binding(fn, mapped, dict(constants), frozenset(whole))


def _is_whole(column: Numeric | Categorical) -> bool:
    if isinstance(column, Categorical):
        return True
    return column.integer and max(abs(column.low), abs(column.high)) <= MOST_WHOLE


def plain(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside NumPyro's handlers: one that decorates does not keep its signature."""
    from numpyro.primitives import Messenger

    while isinstance(fn, Messenger) and fn.fn is not None:
        fn = fn.fn
    return fn


def _as_columns(name: str, columns: str | Sequence[str], schema: Schema) -> Columns:
    wanted = (columns,) if isinstance(columns, str) else tuple(columns)
    if not wanted or any(column not in schema for column in wanted):
        raise ModelError(f"arguments[{name!r}]={columns!r} must name columns of the schema, {list(schema.names)}")
    return columns if isinstance(columns, str) else wanted


def call_arguments(binding: Binding, rows: Mapping[str, Any]) -> dict[str, Any]:
    """What `fn` is called with: a scalar becomes an array of one row, of the default int if whole, else float.

    A matrix takes the common type of its columns.
    """

    def column(name: str) -> Array:
        return jnp.reshape(jnp.asarray(rows[name]), (-1,)).astype(int if name in binding.whole else float)

    def value(columns: Columns) -> Array:
        return column(columns) if isinstance(columns, str) else jnp.stack([column(c) for c in columns], axis=1)

    return {name: value(columns) for name, columns in binding.arguments.items()} | dict(binding.constants)


def lenient(function):
    """NumPyro broadcasts by rank promotion, so its models may, whatever the caller's setting."""

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        with jax.numpy_rank_promotion("allow"):
            return function(*args, **kwargs)

    return wrapped
