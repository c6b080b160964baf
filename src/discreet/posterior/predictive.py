"""Synthetic tables: rows of the posterior predictive distribution, in the words of the schema.

Post-processing of a private posterior: fresh randomness, no rows, no further cost, whatever n and m are.
"""

import operator
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from discreet.model import Model, covariates_of
from discreet.schema import Numeric, Schema

if TYPE_CHECKING:
    from discreet.posterior.types import Posterior

CHUNK = 2**16
NAIVE = ("last iterate", "without noise")
ONLY_NOISE_AWARE = "pooling is valid only for tables drawn from a noise-aware posterior"
_SEEDS = 2**63


class Source(NamedTuple):
    """What rows are drawn from: the model, the schema of its columns, draws of z, and encoded public covariates."""

    model: Model
    schema: Schema
    z: np.ndarray
    covariates: dict[str, np.ndarray]


def synthesize(
    posterior: "Posterior", n: int, m: int, *, covariates: Any = None, seed: Any = None, naive: bool = False
) -> Iterator[dict[str, np.ndarray]]:
    """`m` tables of `n` rows each from the posterior predictive distribution, made one by one as they are asked for.

    Each table is of one draw of z, and no two are of the same. Columns are in the schema's own words: text levels as
    text, integers as integers, numbers clamped to their bounds.

    A model of some columns given others needs `covariates`: a PUBLIC table of those, raw, of any make that a schema
    encodes. If it has n rows all tables have these, else each has n of its rows, drawn with replacement.

    Any `seed` is safe, and may be published: nothing here is secret. Without one the operating system gives it.
    Posteriors that ignore privacy's noise are refused, unless `naive` asks for their tables, to compare.
    """
    return drawn(checked(posterior, n, m, covariates, naive), n, m, seed)


def is_naive(posterior: "Posterior") -> bool:
    """Whether it was read as if what rows told had no noise."""
    return any(words in str(posterior.info.get("method")) for words in NAIVE)


def whole(name: str, value: Any, least: int = 1) -> int:
    """The value, if it is a whole number and large enough."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool | np.bool_) or number < least:
        raise ValueError(f"{name}={value!r} must be a whole number ≥ {least}")
    return number


def checked(posterior: "Posterior", n: int, m: int, covariates: Any = None, naive: bool = False) -> Source:
    """What `synthesize` draws from; every refusal comes here."""
    whole("n", n)
    whole("m", m)
    if is_naive(posterior) and not naive:
        raise ValueError(
            f"this posterior ({posterior.info['method']}) ignores privacy's noise, and {ONLY_NOISE_AWARE}: read the "
            "release noise-aware, which costs nothing"
        )
    model, schema = _of_one_fit(posterior)
    z = np.asarray(posterior.z).reshape(-1, posterior.z.shape[-1])
    if m > len(z):
        raise ValueError(
            f"m={m} exceeds the {len(z)} draws of this posterior, and each table needs its own: read the release again "
            f"with draws={m}, which costs nothing, or take fewer tables"
        )
    return Source(model, schema, z, _encoded(model, schema, covariates))


def _of_one_fit(posterior: "Posterior") -> tuple[Model, Schema]:
    """The model, and the schema of its columns; refused if they and the draws do not belong together."""
    model, schema = posterior.model, posterior.schema
    if model is None or schema is None:
        lacking = " and ".join(name for name, part in (("model", model), ("schema", schema)) if part is None)
        raise ValueError(f"this posterior has no {lacking} to make rows with: Posterior.load(path, model=…, schema=…)")
    if model.simulate is None:
        raise ValueError("this model cannot simulate rows: give it a simulate function")
    fitted = posterior.info.get("schema")
    if fitted is not None and fitted != schema.to_dict():
        raise ValueError(f"the schema is not that of the fit: {_difference(fitted['columns'], schema)}; give that one")
    missing = [name for name in model.columns if name not in schema]
    if missing:
        raise ValueError(f"the schema has no column {', '.join(missing)}, which the model has: it is of another fit")
    if model.dim != posterior.z.shape[-1]:
        raise ValueError(
            f"the posterior has {posterior.z.shape[-1]} parameters and the model {model.dim}: the model, or the levels "
            "in its schema, are of another fit"
        )
    return model, replace(schema.select([name for name in schema.names if name in model.columns]), unit=None)


def _difference(fitted: Mapping[str, Any], schema: Schema) -> str:
    """What a schema has that the fit's has not, and the other way round, by names of columns."""
    given = schema.to_dict()["columns"]
    parts = {
        "missing": [name for name in fitted if name not in given],
        "extra": [name for name in given if name not in fitted],
        "declared otherwise": [name for name in given if name in fitted and given[name] != fitted[name]],
    }
    return "; ".join(f"{what}: {', '.join(names)}" for what, names in parts.items() if names) or "another unit or order"


def _encoded(model: Model, schema: Schema, table: Any) -> dict[str, np.ndarray]:
    """The covariates that rows are made for; none where the model makes whole rows."""
    wanted = covariates_of(model)
    if table is None and wanted:
        raise ValueError(
            f"this model says how {', '.join(model.outcome)} depends on {', '.join(wanted)}, not how these are "
            "distributed: fit a joint model, such as a mixture, or give covariates, a PUBLIC table of them"
        )
    if table is not None and not wanted:
        raise ValueError("this model makes every column itself: leave the covariates out")
    return schema.select(wanted).encode(table) if wanted else {}


def drawn(source: Source, n: int, m: int, seed: Any = None) -> Iterator[dict[str, np.ndarray]]:
    """The tables that `synthesize` makes, from what was `checked`."""
    if isinstance(seed, int):
        whole("seed", seed, least=0)
    return _tables(source, n, m, np.random.default_rng(seed))


def _tables(source: Source, n: int, m: int, rng: np.random.Generator) -> Iterator[dict[str, np.ndarray]]:
    chosen, seeds = rng.choice(len(source.z), m, replace=False), rng.integers(_SEEDS, size=m)
    given = len(next(iter(source.covariates.values()), ()))
    for place, seed in zip(chosen, seeds, strict=True):
        some = slice(None) if given == n else np.random.default_rng(seed).integers(given or 1, size=n)
        rows = {name: values[some] for name, values in source.covariates.items()}
        rows |= _outcome(source, int(seed), source.z[place], rows, n)
        yield {column.name: _in_words(column, rows[column.name]) for column in source.schema.columns}


def _outcome(source: Source, seed: int, z: np.ndarray, rows: dict[str, np.ndarray], n: int) -> dict[str, np.ndarray]:
    """The encoded outcome columns of n rows, in chunks of one shape, so that they are compiled once."""
    size, parts = min(n, CHUNK), []
    with jax.enable_x64(True):
        for start in range(0, n, size):
            ahead = np.minimum(np.arange(start, start + size), n - 1)
            chunk = {name: values[ahead] for name, values in rows.items()}
            parts.append(_chunk(source.model.simulate, size, np.uint64(seed), np.uint32(start), z, chunk))
    return {name: np.concatenate([np.asarray(part[name]) for part in parts])[:n] for name in source.model.outcome}


@partial(jax.jit, static_argnums=(0, 1))
def _chunk(simulate, size: int, seed, start, z, rows):
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), start), size)
    return jax.vmap(simulate, in_axes=(0, None, 0), axis_size=size)(keys, z, rows)


def _in_words(column, values: np.ndarray) -> np.ndarray:
    """Values as a table of this schema would hold them."""
    if isinstance(column, Numeric):
        if not np.isfinite(values).all():
            raise ValueError(f"the model draws {column.name!r} that is not a number: its parameters are too wide")
        values = np.clip(np.asarray(values, np.float64), float(column.low), float(column.high))
        return column.decode(np.rint(values).astype(np.int64) if column.integer else values)
    if not np.issubdtype(values.dtype, np.integer) or values.min() < 0 or values.max() >= column.size:
        raise ValueError(
            f"the model draws levels of {column.name!r} that the schema does not have: it is of another fit"
        )
    return column.decode(values)
