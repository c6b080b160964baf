"""A NumPyro function as the pure functions of a `Model`, or a refusal that says what to change."""

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from discreet.schema import Schema

NUM_ROWS = 64
"""Dummy rows: enough that no two columns, even binary ones, look alike."""
Columns = str | tuple[str, ...]
Table = Mapping[str, np.ndarray]
Outcome = Mapping[str, tuple[str, ...]]
"""The columns that each observed site shows."""
_quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
"""For checks that run once: compiling costs more than running."""
_NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


class ModelError(ValueError):
    """A function that is not p(z) · Π_i p(row_i | z) with a proper prior; the message names the site."""


class _Binding(NamedTuple):
    """Which argument of `fn` holds which columns; everything else it needs is constant."""

    fn: Callable[..., Any]
    arguments: Mapping[str, Columns]
    constants: Mapping[str, Any]

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column once, in the order of the arguments."""
        groups = [(c,) if isinstance(c, str) else c for c in self.arguments.values()]
        return tuple(dict.fromkeys(name for group in groups for name in group))


class _Site(NamedTuple):
    """The public shape of a site; of its unconstrained value if the site is latent."""

    kind: str
    shape: tuple[int, ...]
    plates: tuple[str, ...]


class _Piece(NamedTuple):
    """Where a latent site lives in z."""

    start: int
    shape: tuple[int, ...]


class _Program(NamedTuple):
    """A checked function: its latents as pieces of z, the plate over rows, one public dummy row."""

    binding: _Binding
    pieces: Mapping[str, _Piece]
    row_plate: str
    row: Mapping[str, np.ndarray]

    @property
    def dim(self) -> int:
        """Length of z."""
        return sum(math.prod(piece.shape) for piece in self.pieces.values())


def numpyro_fields(
    fn: Callable[..., Any], schema: Schema, arguments: Mapping, constants: Mapping
) -> dict[str, Any]:
    """The fields of the `Model` that the NumPyro function `fn` describes."""
    binding = _bind(fn, schema, arguments, constants)
    table = schema.sample(np.random.default_rng(0), NUM_ROWS)
    rows = {name: np.asarray(table[name]) for name in binding.columns}
    program, sites = _check_structure(binding, rows)
    draw = _quick_jit(functools.partial(_sample_prior, program))
    zs = [draw(jax.random.key(seed)) for seed in range(3)]
    kept = _check_numbers(program, rows, zs)
    parts = {
        "dim": program.dim,
        "log_prior": functools.partial(_log_prior, program),
        "log_likelihood": functools.partial(_log_likelihood, program),
        "constrain": functools.partial(_constrain, program, (*program.pieces, *kept)),
        "sample_prior": functools.partial(_sample_prior, program),
        "columns": binding.columns,
        "description": {"numpyro": getattr(_plain(fn), "__name__", type(fn).__name__)},
    }
    observed = [name for name, site in sites.items() if site.kind == "observed"]
    return parts | _outcome_fields(program, observed, rows, zs[0])


def _bind(fn: Callable[..., Any], schema: Schema, arguments: Mapping, constants: Mapping) -> _Binding:
    """Each parameter of `fn` as columns or constant; what is neither must have a default."""
    parameters = inspect.signature(_plain(fn)).parameters
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
    return _Binding(fn, mapped, dict(constants))


def _plain(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside NumPyro's handlers: one that decorates does not keep its signature."""
    from numpyro.primitives import Messenger

    while isinstance(fn, Messenger) and fn.fn is not None:
        fn = fn.fn
    return fn


def _as_columns(name: str, columns: str | Sequence[str], schema: Schema) -> Columns:
    wanted = (columns,) if isinstance(columns, str) else tuple(columns)
    missing = [column for column in wanted if column not in schema]
    if missing or not wanted:
        raise ModelError(
            f"arguments[{name!r}]={columns!r} must name columns of the schema, {list(schema.names)}"
        )
    return columns if isinstance(columns, str) else wanted


def _call_arguments(binding: _Binding, rows: Mapping[str, Any]) -> dict[str, Any]:
    """What `fn` is called with: scalars become arrays of one row, floats take the default dtype."""
    dtype = jnp.result_type(float)

    def column(name: str) -> Array:
        values = jnp.reshape(jnp.asarray(rows[name]), (-1,))
        return values.astype(dtype) if jnp.issubdtype(values.dtype, jnp.floating) else values

    def value(columns: Columns) -> Array:
        if isinstance(columns, str):
            return column(columns)
        return jnp.stack([column(name).astype(dtype) for name in columns], axis=1)

    return {name: value(columns) for name, columns in binding.arguments.items()} | dict(binding.constants)


def _lenient(function):
    """NumPyro broadcasts by rank promotion, so its models may, whatever the caller's setting."""

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        with jax.numpy_rank_promotion("allow"):
            return function(*args, **kwargs)

    return wrapped


def _run(program: _Program, z: Array, rows: Mapping[str, Any], wrap: Callable = lambda fn: fn):
    """The trace of `fn` on `rows` with its latents read from z, and log|det J| of each latent."""
    from numpyro import handlers
    from numpyro.distributions import biject_to

    z = z.astype(jnp.result_type(float))  # the one dtype all of NumPyro's transforms work in
    log_dets = {}

    def constrained(site):
        piece = program.pieces.get(site["name"])
        if piece is None or site["type"] != "sample":
            return None
        free = z[piece.start : piece.start + math.prod(piece.shape)].reshape(piece.shape)
        transform = biject_to(site["fn"].support)
        value = transform(free)
        log_dets[site["name"]] = jnp.sum(transform.log_abs_det_jacobian(free, value))
        return value

    # No seed: a function that wants randomness beyond z fails instead of returning a random density.
    fn = handlers.substitute(wrap(program.binding.fn), substitute_fn=constrained)
    return handlers.trace(fn).get_trace(**_call_arguments(program.binding, rows)), log_dets


def _log_prob(site) -> Array:
    """Log density of a site's value, by batch entry, with its mask and scale."""
    log_prob = site["fn"].log_prob(site["value"])
    return log_prob if site["scale"] is None else site["scale"] * log_prob


def _is_observed(site) -> bool:
    return site["type"] == "sample" and site["is_observed"]


@_lenient
def _log_prior(program: _Program, z: Array) -> Array:
    """Σ log p(latent) + log|det J|: the dummy row is there to be ignored, `_check_numbers` saw to it."""
    sites, log_dets = _run(program, z, program.row)
    terms = [jnp.sum(_log_prob(sites[name])) + log_dets[name] for name in program.pieces]
    return jnp.asarray(sum(terms), z.dtype)


@_lenient
def _log_likelihood(program: _Program, z: Array, row: Mapping[str, Any]) -> Array:
    """Σ log p(observed site | z) of one row."""
    sites, _ = _run(program, z, row)
    terms = [jnp.sum(_log_prob(site)) for site in sites.values() if _is_observed(site)]
    return jnp.asarray(sum(terms), z.dtype)


@_lenient
def _constrain(program: _Program, names: tuple[str, ...], z: Array) -> dict[str, Array]:
    """The latents and the deterministic sites that are about z alone."""
    sites, _ = _run(program, z, program.row)
    values = {name: jnp.asarray(sites[name]["value"]) for name in names}
    return {n: v.astype(z.dtype) if jnp.issubdtype(v.dtype, jnp.floating) else v for n, v in values.items()}


@_lenient
def _sample_prior(program: _Program, key: Array) -> Array:
    """One prior draw of z; a value that rounds to the edge of its support becomes ±log(1/eps)."""
    from numpyro import handlers
    from numpyro.distributions import biject_to

    inputs = _call_arguments(program.binding, program.row)
    sites = handlers.trace(handlers.seed(program.binding.fn, key)).get_trace(**inputs)
    free = [biject_to(sites[name]["fn"].support).inv(sites[name]["value"]) for name in program.pieces]
    z = jnp.concatenate([jnp.ravel(f) for f in free])
    edge = -math.log(jnp.finfo(z.dtype).eps)
    return jnp.nan_to_num(z, nan=jnp.nan, posinf=edge, neginf=-edge)


def _by_row(program: _Program, site, values: Array) -> Array:
    """The values of an observed site as a matrix (rows, entries)."""
    values = jnp.broadcast_to(values, jnp.broadcast_shapes(jnp.shape(values), site["fn"].shape()))
    axis = values.ndim + _row_dim(program, site) - len(site["fn"].event_shape)
    rows_first = jnp.moveaxis(values, axis, 0)
    return rows_first.reshape(len(rows_first), math.prod(rows_first.shape[1:]))


def _row_dim(program: _Program, site) -> int:
    return next(frame.dim for frame in site["cond_indep_stack"] if frame.name == program.row_plate)


@_lenient
def _simulate(program: _Program, outcome: Outcome, key: Array, z: Array, row: Mapping) -> dict[str, Array]:
    """The outcome columns of one row.

    A site may depend on the column of another, so there are as many rounds as sites, all with the same key:
    a column is final one round after the columns it depends on.
    """
    from numpyro import handlers

    def draw(row):
        sites, _ = _run(program, z, row, lambda fn: handlers.seed(handlers.uncondition(fn), key))
        drawn = {}
        for name, columns in outcome.items():
            drawn |= zip(columns, _by_row(program, sites[name], sites[name]["value"])[0], strict=True)
        return {
            c: v.astype(z.dtype if program.row[c].dtype.kind == "f" else jnp.int32) for c, v in drawn.items()
        }

    drawn: dict[str, Any] = {
        column: program.row[column] for columns in outcome.values() for column in columns
    }
    for _ in outcome:
        drawn = draw({**row, **drawn})
    return drawn


@_lenient
def _mean(program: _Program, outcome: Outcome, z: Array, row) -> Array:
    """Expected outcome of one row: a scalar, or a vector if the outcome has several columns."""
    ((name, columns),) = outcome.items()
    sites, _ = _run(program, z, {**row, **{column: program.row[column] for column in columns}})
    mean = _by_row(program, sites[name], sites[name]["fn"].mean)[0].astype(z.dtype)
    return mean[0] if len(columns) == 1 else mean


def _outcome_fields(program: _Program, observed: Sequence[str], rows: Table, z: Array) -> dict[str, Any]:
    """`outcome`, `simulate` and `mean`, as far as every observed site is made of columns as they are."""
    outcome = _match_columns(program, observed, rows, z)
    if not outcome:
        return {}

    def ignores_outcome(function) -> bool:
        """Whether the result is finite somewhere and the same whatever the row held as outcome."""
        of_filler = _quick_jit(jax.vmap(lambda filler: function(program._replace(row=filler), outcome)))
        results = [np.asarray(x, float) for x in jax.tree.leaves(of_filler(rows))]
        return all(np.isfinite(x).any() and _close(x, np.broadcast_to(x[:1], x.shape)) for x in results)

    def draws(filled, outcome):
        keys = jax.random.split(jax.random.key(0), NUM_ROWS)  # one draw of a binary outcome tells little
        return jax.vmap(lambda key: _simulate(filled, outcome, key, z, program.row))(keys)

    if not ignores_outcome(draws):
        return {}
    found: dict[str, Any] = {"outcome": tuple(column for columns in outcome.values() for column in columns)}
    found["simulate"] = functools.partial(_simulate, program, outcome)
    with contextlib.suppress(NotImplementedError):  # a distribution without a mean
        if len(outcome) == 1 and ignores_outcome(
            lambda filled, outcome: _mean(filled, outcome, z, program.row)
        ):
            found["mean"] = functools.partial(_mean, program, outcome)
    return found


def _match_columns(program: _Program, observed: Sequence[str], rows: Table, z: Array) -> Outcome:
    """The columns each observed site shows, by comparing values; {} unless every site has its own columns."""

    def shown(z, rows):
        sites, _ = _run(program, z, rows)
        return {name: _by_row(program, sites[name], jnp.asarray(sites[name]["value"])) for name in observed}

    values = _quick_jit(_lenient(shown))(z, rows)
    columns = {
        name: np.asarray(rows[name], z.dtype if rows[name].dtype.kind == "f" else None) for name in rows
    }
    outcome = {}
    for name in observed:
        entries = np.asarray(values[name]).T
        matches = [[c for c in columns if np.array_equal(columns[c], entry)] for entry in entries]
        outcome[name] = tuple(match[0] for match in matches if len(match) == 1)
        if not matches or len(outcome[name]) < len(matches):
            return {}
    found = [column for columns in outcome.values() for column in columns]
    return outcome if len(set(found)) == len(found) else {}


def _close(a, b, unit: float = 0.0) -> bool:
    """Equal up to what float32 sums differ by, on the scale of the values or `unit`; nan equals nan."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    scale = max(unit, np.max(np.abs(b), initial=0.0, where=np.isfinite(b)))
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-3, atol=1e-5 * scale, equal_nan=True)


def _check_numbers(program: _Program, rows: Table, zs: Sequence[Array]) -> list[str]:
    """Names of the deterministic sites that ignore the rows; refuses row-dependent priors, dependent rows."""

    @_quick_jit
    @_lenient
    def evaluate(z, rows):
        sites, log_dets = _run(program, z, rows)
        prior = {n: (sites[n]["value"], jnp.sum(_log_prob(sites[n])), log_dets[n]) for n in program.pieces}
        by_row = {n: _row_log_probs(program, s) for n, s in sites.items() if _is_observed(s)}
        return prior, by_row, {n: s["value"] for n, s in sites.items() if s["type"] == "deterministic"}

    def part(start, stop):
        return {name: values[start:stop] for name, values in rows.items()}

    whole, fixed, finite, varying = {}, {}, set(), set()
    for z in zs:
        prior, whole, fixed = evaluate(z, part(0, 3))
        singles = [evaluate(z, part(i, i + 1)) for i in range(3)]
        for other in (evaluate(z, part(3, 6)), *singles):
            _refuse_unless_same_prior(prior, other[0])
            varying |= {name for name in fixed if not _close(fixed[name], other[2][name])}
        for name in whole:
            alone = np.concatenate([by_row[name] for _, by_row, _ in singles])
            _refuse_unless_same_rows(name, whole[name], alone)
            finite |= {name} if np.isfinite(alone).any() else set()
    for name in whole.keys() - finite:
        _refuse(
            name, "has no finite density on rows within the schema's bounds", "declare bounds in its support"
        )
    return [name for name in fixed if name not in varying]


def _row_log_probs(program: _Program, site) -> Array:
    """Log density of an observed site, by row."""
    log_prob = _log_prob(site)
    row_axis = log_prob.ndim + _row_dim(program, site)
    return jnp.sum(log_prob, axis=[axis for axis in range(log_prob.ndim) if axis != row_axis])


def _refuse_unless_same_prior(prior: Mapping, other: Mapping) -> None:
    for name, (value, *logs) in prior.items():
        if not (_close(value, other[name][0]) and _close(logs, other[name][1:], unit=1.0)):
            _refuse(name, "has a prior that depends on the rows", "write it with public constants")


def _refuse_unless_same_rows(name: str, together, alone) -> None:
    if not _close(together, alone, unit=1.0):
        _refuse(
            name,
            "gives a row another density beside other rows than alone",
            "use nothing that mixes or counts rows (means, positions, len) but public constants, and one "
            "log density per row",
        )


def _refuse(name: str, why: str, remedy: str) -> NoReturn:
    raise ModelError(f"site {name!r} {why}; {remedy}")


def _check_structure(binding: _Binding, rows: Table) -> tuple[_Program, dict[str, _Site]]:
    """The program and its sites; refuses what is not global latents and one plate over rows."""
    two, three = (_structure(binding, {name: v[:n] for name, v in rows.items()}) for n in (2, 3))
    row_plate = _find_row_plate(two, three)
    pieces, start = {}, 0
    for name, site in three.items():
        inside = row_plate in site.plates
        if site.kind == "latent":
            if inside or site.shape != two[name].shape:
                _refuse(name, "is latent and there is one of it per row", "integrate it out, or observe it")
            pieces[name] = _Piece(start, site.shape)
            start += math.prod(site.shape)
        elif site.kind == "observed" and not inside:
            _refuse(name, f"is observed outside the plate {row_plate!r}", "move it inside, or into a prior")
    for kind, remedy in {"latent": "sample a parameter", "observed": "pass obs= a column"}.items():
        if kind not in {site.kind for site in three.values()}:
            raise ModelError(f"the model has no {kind} site; {remedy}")
    return _Program(binding, pieces, row_plate, {name: values[0] for name, values in rows.items()}), three


def _find_row_plate(two: Mapping[str, _Site], three: Mapping[str, _Site]) -> str:
    """The one plate with as many places as there are rows."""
    plates = {name: site.shape for name, site in three.items() if site.kind == "plate"}
    growing = [name for name, shape in plates.items() if name not in two or two[name].shape != shape]
    if not growing:
        raise ModelError(
            f"no plate over rows among {list(plates)}; observe under numpyro.plate('rows', len(y))"
        )
    if len(growing) > 1:
        raise ModelError(f"several plates over rows, {growing}; observe every column under one plate")
    if plates[growing[0]] != (3,):
        _refuse(growing[0], f"is a plate of {plates[growing[0]][0]} for 3 rows", "give it one place per row")
    return growing[0]


def _structure(binding: _Binding, rows: Table) -> dict[str, _Site]:
    """The sites of `fn` on these rows, by abstract evaluation: no value is looked at."""
    from numpyro import handlers

    found = {}

    @_lenient
    def run(rows):
        fn = handlers.substitute(handlers.seed(binding.fn, 0), substitute_fn=_vet)
        inputs = _call_arguments(binding, rows)
        found.update({name: _describe(site) for name, site in handlers.trace(fn).get_trace(**inputs).items()})

    try:
        jax.eval_shape(run, rows)
    except _NEEDS_VALUES as error:
        raise ModelError(
            "the model looks at the values of its columns while it is built, as in int(group.max()); pass "
            "sizes as constants, from_numpyro(..., num_groups=4), and branch with jnp.where"
        ) from error
    return found


def _describe(site) -> _Site:
    """The structure of a traced site."""
    from numpyro.distributions import biject_to

    plates = tuple(frame.name for frame in site["cond_indep_stack"])
    if site["type"] == "plate":
        return _Site("plate", (site["args"][0],), plates)
    if site["type"] == "deterministic":
        return _Site("deterministic", jnp.shape(site["value"]), plates)
    if site.get("_control_flow_done"):
        _refuse(site["name"], "is sampled inside scan or cond", "write the sequence as one vector site")
    if site["is_observed"]:
        return _Site("observed", jnp.shape(site["value"]), plates)
    try:
        shape = biject_to(site["fn"].support).inverse_shape(jnp.shape(site["value"]))
    except NotImplementedError:
        _refuse(site["name"], f"has support {site['fn'].support}, not an image of Rⁿ", "choose another prior")
    return _Site("latent", tuple(shape), plates)


def _vet(site) -> None:
    """Refuse a site that no z can stand for, before it is sampled."""
    from numpyro import distributions as dist

    name, kind = site["name"], site["type"]
    if kind in ("param", "mutable"):
        _refuse(name, f"is a numpyro.{kind}, which has no prior", "give it one with numpyro.sample")
    if kind == "plate" and site["args"][1] not in (None, site["args"][0]):
        _refuse(name, "is a plate with subsample_size", "leave it out: discreet does the sampling")
    if kind != "sample" or site["is_observed"]:
        return
    layers = [site["fn"]]
    while hasattr(layers[-1], "base_dist"):
        layers.append(layers[-1].base_dist)
    if any(isinstance(layer, dist.ImproperUniform) for layer in layers):
        _refuse(name, "has an improper prior, so it cannot be drawn", "give it a proper one")
    if any(isinstance(layer, dist.Delta) for layer in layers):
        _refuse(name, "is a point mass", "use numpyro.deterministic")
    if site["scale"] is not None or any(getattr(layer, "_mask", True) is not True for layer in layers):
        _refuse(
            name, "is latent under scale or mask, so draws disagree with its density", "use them on rows only"
        )
    if site["fn"].support.is_discrete:
        _refuse(
            name,
            "is a discrete latent",
            "sum it out (dist.MixtureSameFamily), or, if it is an outcome, map its argument to a column",
        )
