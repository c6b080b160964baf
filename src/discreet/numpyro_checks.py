"""What a NumPyro function must be for a `Model`: refusals that name the site and say what to change."""

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from discreet.numpyro_binding import Binding, ModelError, call_arguments, lenient, plain

NUM_ROWS = 64
"""Rows of a dummy table: enough that no two columns, even binary ones, look alike."""
NUM_ALONE = 8
"""Those of them that are also evaluated alone."""
Table = Mapping[str, np.ndarray]
_NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


class Piece(NamedTuple):
    """Where a latent site lives in z."""

    start: int
    shape: tuple[int, ...]


class Program(NamedTuple):
    """A checked function: its latents as pieces of z, its observed sites, their plate, one public dummy row."""

    binding: Binding
    pieces: Mapping[str, Piece]
    observed: tuple[str, ...]
    row_plate: str
    row: Mapping[str, np.ndarray]

    @property
    def dim(self) -> int:
        """Length of z."""
        return sum(math.prod(piece.shape) for piece in self.pieces.values())


class Evaluation(NamedTuple):
    """What one z gives on some rows, by site.

    prior       value, log density and log|det J| of a latent
    fixed       value of a deterministic site
    log_probs   log density of an observed site, by row
    shown       values of an observed site, (rows, entries)
    """

    prior: Mapping[str, tuple[Array, Array, Array]]
    fixed: Mapping[str, Array]
    log_probs: Mapping[str, Array]
    shown: Mapping[str, Array]


class _Site(NamedTuple):
    """The public shape of a site: places of a plate, unconstrained shape of a latent, nothing else."""

    kind: str
    shape: tuple[int, ...]
    plates: tuple[str, ...]


def check_structure(binding: Binding, rows: Table) -> Program:
    """The program of `fn`; refuses what is not global latents and one plate over rows."""
    two, three = (_structure(binding, {name: v[:n] for name, v in rows.items()}) for n in (2, 3))
    row_plate = _find_row_plate(two, three)
    pieces, observed, start = {}, [], 0
    for name, site in three.items():
        inside = row_plate in site.plates
        if site.kind == "latent":
            if inside or site.shape != two[name].shape:
                _refuse(name, "is latent and there is one of it per row", "integrate it out, or observe it")
            pieces[name] = Piece(start, site.shape)
            start += math.prod(site.shape)
        elif site.kind == "observed":
            if not inside:
                _refuse(name, f"is observed outside the plate {row_plate!r}", "move it inside, or into a prior")
            observed.append(name)
    if not pieces:
        raise ModelError("the model has no latent site; sample a parameter")
    if not observed:
        raise ModelError("the model has no observed site; pass obs= a column")
    row = {name: values[0] for name, values in rows.items()}
    return Program(binding, pieces, tuple(observed), row_plate, row)


def _find_row_plate(two: Mapping[str, _Site], three: Mapping[str, _Site]) -> str:
    """The one plate with as many places as there are rows."""
    plates = {name: site.shape for name, site in three.items() if site.kind == "plate"}
    growing = [name for name, shape in plates.items() if name not in two or two[name].shape != shape]
    if not growing:
        raise ModelError(f"no plate over rows among {list(plates)}; observe under numpyro.plate('rows', len(y))")
    if len(growing) > 1:
        raise ModelError(f"several plates over rows, {growing}; observe every column under one plate")
    if plates[growing[0]] != (3,):
        _refuse(growing[0], f"is a plate of {plates[growing[0]][0]} for 3 rows", "give it one place per row")
    return growing[0]


def _structure(binding: Binding, rows: Table) -> dict[str, _Site]:
    """The sites of `fn` on these rows, by abstract evaluation: no value is looked at."""
    from numpyro import handlers

    found = {}

    @lenient
    def run(rows):
        fn = handlers.substitute(handlers.seed(binding.fn, 0), substitute_fn=_vet)
        sites = handlers.trace(fn).get_trace(**call_arguments(binding, rows))
        found.update({name: _describe(site) for name, site in sites.items()})

    try:
        jax.eval_shape(run, rows)
    except _NEEDS_VALUES as error:
        raise ModelError(
            f"the model looks at the values of its columns while it is built{_place(binding.fn, error)}; pass "
            "sizes as constants, from_numpyro(..., num_groups=4), and branch with jnp.where"
        ) from error
    return found


def _place(fn: Callable[..., Any], error: Exception) -> str:
    """The last line of the model's own file on the way to the error."""
    code = getattr(plain(fn), "__code__", None)
    steps = traceback.extract_tb(error.__traceback__)
    own = [step for step in steps if code is not None and step.filename == code.co_filename and step.line]
    return f", in line {own[-1].lineno}, {own[-1].line!r}" if own else ", as in int(group.max())"


def _describe(site) -> _Site:
    """The structure of a traced site."""
    from numpyro.distributions import biject_to

    plates = tuple(frame.name for frame in site["cond_indep_stack"])
    if site["type"] == "plate":
        return _Site("plate", (site["args"][0],), plates)
    if site["type"] == "deterministic":
        return _Site("deterministic", (), plates)
    if site.get("_control_flow_done"):
        _refuse(site["name"], "is sampled inside scan or cond", "write the sequence as one vector site")
    if site["is_observed"]:
        return _Site("observed", (), plates)
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
    if site["fn"].support.is_discrete:
        _refuse(
            name,
            "is a discrete latent",
            "sum it out (dist.MixtureSameFamily), or, if it is an outcome, map its argument to a column",
        )
    if site["scale"] is not None or any(getattr(layer, "_mask", True) is not True for layer in layers):
        _refuse(name, "is latent under scale or mask, so draws disagree with its density", "use them on rows only")


def check_numbers(evaluate: Callable[[Array, Table], Evaluation], rows: Table, zs: Sequence[Array]) -> list[str]:
    """Names of the deterministic sites that ignore the rows; refuses row-dependent priors, dependent rows.

    `rows` are two tables of `NUM_ROWS`; they and single rows must agree on everything that is about z alone.
    """

    def part(start, stop):
        return {name: values[start:stop] for name, values in rows.items()}

    fixed, finite, varying = {}, {}, set()
    for z in zs:
        prior, fixed, log_probs, _ = evaluate(z, part(0, NUM_ROWS))
        singles = [evaluate(z, part(i, i + 1)) for i in range(NUM_ALONE)]
        for other in (evaluate(z, part(NUM_ROWS, 2 * NUM_ROWS)), *singles):
            _refuse_unless_same_prior(prior, other.prior)
            varying |= {name for name in fixed if not close(fixed[name], other.fixed[name])}
        for name in log_probs:
            alone = np.concatenate([single.log_probs[name] for single in singles])
            _refuse_unless_same_rows(name, log_probs[name][:NUM_ALONE], alone)
            finite[name] = finite.get(name, False) or np.isfinite(log_probs[name]).any()
    for name in finite:
        if not finite[name]:
            _refuse(name, "has no finite density on rows within the schema's bounds", "declare bounds in its support")
    return [name for name in fixed if name not in varying]


def _refuse_unless_same_prior(prior: Mapping, other: Mapping) -> None:
    for name, (value, *logs) in prior.items():
        if not (close(value, other[name][0]) and close(logs, other[name][1:], unit=1.0)):
            _refuse(name, "has a prior that depends on the rows", "write it with public constants")


def _refuse_unless_same_rows(name: str, together, alone) -> None:
    if not close(together, alone, unit=1.0):
        _refuse(
            name,
            "gives a row another density beside other rows than alone",
            "use nothing that mixes or counts rows (means, positions, len) but public constants, and one "
            "log density per row",
        )


def close(a, b, unit: float = 0.0) -> bool:
    """Equal up to what float32 sums differ by, on the scale of the values or `unit`; nan equals nan."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    scale = max(unit, np.max(np.abs(b), initial=0.0, where=np.isfinite(b)))
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-3, atol=1e-5 * scale, equal_nan=True)


def _refuse(name: str, why: str, remedy: str) -> NoReturn:
    raise ModelError(f"site {name!r} {why}; {remedy}")
