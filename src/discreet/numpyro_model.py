"""A NumPyro function as the pure functions of a `Model`."""

import contextlib
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from discreet.numpyro_binding import ModelError, bind, call_arguments, lenient, plain
from discreet.numpyro_checks import NUM_ROWS, Evaluation, Program, Table, check_numbers, check_structure, close
from discreet.numpyro_linear import Pair, Term, check_choice, choose, of_product, with_first
from discreet.schema import Schema

__all__ = ["ModelError", "numpyro_fields"]

Outcome = Mapping[str, tuple[str, ...]]
"""The columns that each observed site shows."""
_quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
"""For checks that run once: compiling costs more than running."""


def numpyro_fields(
    fn: Callable[..., Any], schema: Schema, arguments: Mapping, constants: Mapping, linear_predictor: Any = True
) -> dict[str, Any]:
    """The fields of the `Model` that the NumPyro function `fn` describes.

    Where rows have a linear predictor, `log_likelihood` is a pair: the functions of a `Linear`.
    """
    check_choice(fn, schema, arguments, linear_predictor)
    binding = bind(fn, schema, arguments, constants)
    table = schema.sample(np.random.default_rng(0), 2 * NUM_ROWS)
    rows = {name: np.asarray(table[name]) for name in binding.columns}
    program = check_structure(binding, rows)
    pair = choose(program, linear_predictor, functools.partial(_dummy_term, program))
    program = with_first(program, pair[0]) if pair else program
    draw = _quick_jit(functools.partial(_sample_prior, program))
    zs = [draw(jax.random.key(seed)) for seed in range(3)]
    evaluate = _quick_jit(functools.partial(_evaluate, program))
    kept = check_numbers(evaluate, rows, zs)
    dummies = {name: values[:NUM_ROWS] for name, values in rows.items()}
    outcome = _match_columns(evaluate(zs[0], dummies).shown, dummies)
    return {
        "dim": program.dim,
        "log_prior": functools.partial(_log_prior, program),
        "log_likelihood": _linear(program, pair) if pair else functools.partial(_log_likelihood, program),
        "constrain": functools.partial(_constrain, program, (*program.pieces, *kept)),
        "sample_prior": functools.partial(_sample_prior, program),
        "columns": binding.columns,
        "description": {"numpyro": getattr(plain(fn), "__name__", type(fn).__name__)},
        **(_outcome_fields(program, outcome, dummies, zs[0]) if outcome else {}),
    }


def _run(program: Program, z: Array, rows: Mapping[str, Any], wrap: Callable = lambda fn: fn):
    """The trace of `fn` on `rows` with its latents read from z, and log|det J| of each latent."""
    return _call(program, _free(program, z), call_arguments(program.binding, rows), wrap)


def _free(program: Program, z: Array) -> dict[str, Array]:
    """The latents' parts of z, in their unconstrained shapes."""
    z = z.astype(jnp.result_type(float))  # the one dtype all of NumPyro's transforms work in
    return {
        name: z[piece.start : piece.start + math.prod(piece.shape)].reshape(piece.shape)
        for name, piece in program.pieces.items()
    }


def _call(program: Program, free: Mapping[str, Array], inputs: Mapping[str, Any], wrap: Callable = lambda fn: fn):
    """The trace of `fn` called with `inputs`, its latents made of their unconstrained values, and their log|det J|."""
    from numpyro import handlers
    from numpyro.distributions import biject_to

    log_dets = {}

    def constrained(site):
        if site["name"] not in free or site["type"] != "sample":
            return None
        transform = biject_to(site["fn"].support)
        value = transform(free[site["name"]])
        log_dets[site["name"]] = jnp.sum(transform.log_abs_det_jacobian(free[site["name"]], value))
        return value

    # No seed: a function that wants randomness beyond z fails instead of returning a random density.
    fn = handlers.substitute(wrap(program.binding.fn), substitute_fn=constrained)
    return handlers.trace(fn).get_trace(**inputs), log_dets


def _log_prob(site) -> Array:
    """Log density of a site's value, by batch entry, with its mask and scale."""
    log_prob = site["fn"].log_prob(site["value"])
    return log_prob if site["scale"] is None else site["scale"] * log_prob


@lenient
def _log_prior(program: Program, z: Array) -> Array:
    """Σ log p(latent) + log|det J|: the dummy row is there to be ignored, `check_numbers` saw to it."""
    sites, log_dets = _run(program, z, program.row)
    terms = [jnp.sum(_log_prob(sites[name])) + log_dets[name] for name in program.pieces]
    return jnp.asarray(sum(terms), z.dtype)


@lenient
def _log_likelihood(program: Program, z: Array, row: Mapping[str, Any]) -> Array:
    """Σ log p(observed site | z) of one row."""
    sites, _ = _run(program, z, row)
    return jnp.asarray(_observed(program, sites), z.dtype)


def _observed(program: Program, sites) -> Any:
    return sum(jnp.sum(_log_prob(sites[name])) for name in program.observed)


def _linear(program: Program, pair: Pair) -> tuple[Callable[..., Array], Callable[..., Array]]:
    """The features of a row, and its log density by the linear predictor."""
    return functools.partial(_features, program, pair[1]), functools.partial(_of_predictor, program, pair)


@lenient
def _features(program: Program, argument: str, row: Mapping[str, Any]) -> Array:
    """One row of a matrix argument, as floats."""
    return _argument(program, argument, row)[0].astype(jnp.result_type(float))


@lenient
def _of_predictor(program: Program, pair: Pair, u: Array, rest: Array, row: Mapping[str, Any]) -> Array:
    """Σ log p(observed site | z) of one row whose linear predictor is u; `rest` is z without the pair's latent."""
    return jnp.asarray(of_product(*_term(program, pair, rest, row), u), rest.dtype)


def _term(program: Program, pair: Pair, rest: Array, row: Mapping[str, Any]) -> tuple[Term, Any, Any]:
    """A row's log density as a function of the pair's latent and argument, and what these are in shape and type.

    The argument's columns are not read.
    """
    latent, argument = pair
    w = jax.ShapeDtypeStruct(program.pieces[latent].shape, jnp.result_type(float))
    x = jax.eval_shape(functools.partial(_argument, program, argument), program.row)
    free = _free(program, jnp.concatenate([jnp.zeros(w.size, rest.dtype), rest]))
    others = {name: columns for name, columns in program.binding.arguments.items() if name != argument}
    inputs = call_arguments(program.binding._replace(arguments=others), row)

    @lenient
    def term(w, x):
        return _observed(program, _call(program, {**free, latent: w}, {**inputs, argument: x})[0])

    return term, w, x


def _dummy_term(program: Program, pair: Pair) -> tuple[Term, Any, Any]:
    first = with_first(program, pair[0])
    return _term(first, pair, jnp.zeros(first.dim - math.prod(first.pieces[pair[0]].shape)), first.row)


def _argument(program: Program, name: str, row: Mapping[str, Any]) -> Array:
    own = program.binding._replace(arguments={name: program.binding.arguments[name]})
    return call_arguments(own, row)[name]


@lenient
def _constrain(program: Program, names: tuple[str, ...], z: Array) -> dict[str, Array]:
    """The latents and the deterministic sites that are about z alone."""
    sites, _ = _run(program, z, program.row)
    values = {name: jnp.asarray(sites[name]["value"]) for name in names}
    return {n: v.astype(z.dtype) if jnp.issubdtype(v.dtype, jnp.floating) else v for n, v in values.items()}


@lenient
def _sample_prior(program: Program, key: Array) -> Array:
    """One prior draw of z; a value that rounds to the edge of its support becomes ±log(1/eps)."""
    from numpyro import handlers
    from numpyro.distributions import biject_to

    inputs = call_arguments(program.binding, program.row)
    sites = handlers.trace(handlers.seed(program.binding.fn, key)).get_trace(**inputs)
    free = [biject_to(sites[name]["fn"].support).inv(sites[name]["value"]) for name in program.pieces]
    z = jnp.concatenate([jnp.ravel(f) for f in free])
    edge = -math.log(jnp.finfo(z.dtype).eps)
    return jnp.nan_to_num(z, nan=jnp.nan, posinf=edge, neginf=-edge)


@lenient
def _simulate(program: Program, outcome: Outcome, key: Array, z: Array, row: Mapping) -> dict[str, Array]:
    """The outcome columns of one row.

    A site may depend on the column of another, so there are as many rounds as sites, all with the same key:
    a column is final one round after the columns it depends on.
    """
    from numpyro import handlers

    drawn: dict[str, Any] = {c: program.row[c] for columns in outcome.values() for c in columns}
    for _ in outcome:
        sites, _ = _run(program, z, {**row, **drawn}, lambda fn: handlers.seed(handlers.uncondition(fn), key))
        for name, columns in outcome.items():
            for column, value in zip(columns, _by_row(program, sites[name], sites[name]["value"])[0], strict=True):
                drawn[column] = value.astype(z.dtype if program.row[column].dtype.kind == "f" else jnp.int32)
    return drawn


@lenient
def _mean(program: Program, outcome: Outcome, z: Array, row) -> Array:
    """Expected outcome of one row: a scalar, or a vector if the outcome has several columns."""
    ((name, columns),) = outcome.items()
    sites, _ = _run(program, z, {**row, **{column: program.row[column] for column in columns}})
    mean = _by_row(program, sites[name], sites[name]["fn"].mean)[0].astype(z.dtype)
    return mean[0] if len(columns) == 1 else mean


def _by_row(program: Program, site, values) -> Array:
    """The values of an observed site as a matrix (rows, entries)."""
    values = jnp.broadcast_to(values, jnp.broadcast_shapes(jnp.shape(values), site["fn"].shape()))
    rows_first = jnp.moveaxis(values, values.ndim + _row_dim(program, site) - len(site["fn"].event_shape), 0)
    return rows_first.reshape(len(rows_first), math.prod(rows_first.shape[1:]))


def _row_dim(program: Program, site) -> int:
    return next(frame.dim for frame in site["cond_indep_stack"] if frame.name == program.row_plate)


@lenient
def _evaluate(program: Program, z: Array, rows: Table) -> Evaluation:
    """Everything the checks look at."""
    sites, log_dets = _run(program, z, rows)

    def log_probs(site) -> Array:
        values = _log_prob(site)
        row_axis = values.ndim + _row_dim(program, site)
        return jnp.sum(values, axis=[axis for axis in range(values.ndim) if axis != row_axis])

    return Evaluation(
        prior={n: (sites[n]["value"], jnp.sum(_log_prob(sites[n])), log_dets[n]) for n in program.pieces},
        fixed={n: site["value"] for n, site in sites.items() if site["type"] == "deterministic"},
        log_probs={n: log_probs(sites[n]) for n in program.observed},
        shown={n: _by_row(program, sites[n], sites[n]["value"]) for n in program.observed},
    )


def _match_columns(shown: Mapping[str, Array], rows: Table) -> Outcome:
    """The columns each observed site shows, by comparing values; {} unless every site has its own columns."""
    rounded = {name: v.astype(jnp.result_type(float)) if v.dtype.kind == "f" else v for name, v in rows.items()}
    outcome = {}
    for name, values in shown.items():
        matches = [[c for c in rounded if np.array_equal(rounded[c], entry)] for entry in np.asarray(values).T]
        if not matches or any(len(match) != 1 for match in matches):
            return {}
        outcome[name] = tuple(match[0] for match in matches)
    found = [column for columns in outcome.values() for column in columns]
    return outcome if len(set(found)) == len(found) else {}


def _outcome_fields(program: Program, outcome: Outcome, fillers: Table, z: Array) -> dict[str, Any]:
    """`outcome`, `simulate` and `mean`, if they are the same whatever the row held as outcome."""
    keys = jax.random.split(jax.random.key(0), NUM_ROWS)  # one draw of a binary outcome tells little

    def results(filler):
        filled = program._replace(row=filler)
        found: dict[str, Any] = {
            "simulate": jax.vmap(lambda key: _simulate(filled, outcome, key, z, program.row))(keys)
        }
        with contextlib.suppress(NotImplementedError):  # a distribution without a mean
            if len(outcome) == 1:
                found["mean"] = _mean(filled, outcome, z, program.row)
        return found

    def ignores_filler(result) -> bool:
        arrays = [np.asarray(x, float) for x in jax.tree.leaves(result)]
        return all(np.isfinite(x).any() and close(x, np.broadcast_to(x[:1], x.shape)) for x in arrays)

    sound = {n for n, result in _quick_jit(jax.vmap(results))(fillers).items() if ignores_filler(result)}
    if "simulate" not in sound:
        return {}
    functions = {"simulate": _simulate, "mean": _mean}
    return {
        "outcome": tuple(column for columns in outcome.values() for column in columns),
        **{name: functools.partial(functions[name], program, outcome) for name in sound},
    }
