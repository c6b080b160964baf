"""The score: rows answer with ∇ log p(row | z) at the iterate itself, in units of the information expected there.

No variational family is needed. Every coordinate of a whitened answer is about one in size whatever z is, so that one
public clip norm serves all of a run, and a natural step closes the same share of every distance. The trace is that of
a dense quadratic, y = κA(z − z*), and A is expected to be N times the information there, plus the prior's precision.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from discreet.model import Linear, Model
from discreet.plan import Plan
from discreet.query import Numbers, Point, Products, Query, Spread

RIDGE = 1.0


class Information(NamedTuple):
    """The diagonal of a row's Fisher information as a function of z, in public, found by simulation.

    Its logarithm is a quadratic in (z − centre) / unit without mixed terms, `coefficients` (d, 1 + 2d): constant,
    linear, square; it stays within `low` and `high`, (d,), as far as simulations reach.
    """

    centre: Numbers
    unit: Numbers
    coefficients: Numbers
    low: Numbers
    high: Numbers

    def at(self, z: Any, xp: Any = jnp) -> Any:
        """The diagonal at z, (d,)."""
        moved = (z - self.centre) / self.unit
        log = self.coefficients @ xp.concatenate([xp.ones(1), moved, moved**2])
        return xp.exp(xp.clip(log, self.low, self.high))


class Settings(NamedTuple):
    """The public choices of a run.

    `start` is z₀. A step is in units of 1/√(information + `prior_precision`/N), coordinate by coordinate. Its first
    closes the share `first` of any distance; the share falls geometrically to `last` in the first `falling` of all
    steps, and stays there. No step is longer than `longest` units, and none leaves the box of `reach` prior sds around
    the start: a variance would follow the residuals of coefficients that have not arrived. `sample` are public columns
    whose law the covariates are known to follow ({} where there are none): it is needed when the trace is read.
    """

    start: np.ndarray
    information: Information
    prior_precision: np.ndarray
    first: float
    last: float
    falling: float
    sample: Mapping[str, np.ndarray]
    longest: float = 0.5
    reach: float = 6.0


class Constants(NamedTuple):
    """The numbers of a plan and its settings, as values: runs that differ in these alone share one compiled step."""

    information: Information
    prior_precision: Array
    first: Array
    last: Array
    falling: Array
    longest: Array
    reach: Array
    num_rows: Array
    sampling_prob: Array
    steps: Array


class State(NamedTuple):
    """The iterate, the number of steps that were taken, and what stays."""

    z: Array
    start: Array
    step: Array
    constants: Constants


class Question(NamedTuple):
    """Asked of every row: where, and the factor of each coordinate of the answer."""

    z: Array
    factor: Array


def query(model: Model, plan: Plan, settings: Settings) -> Query:
    """Whitened gradients of −log p(row | z), and natural steps along their noisy sum and the prior's gradient.

    The trace is of κ·∇(−log p(z, rows)), against z.
    """
    check(model, settings)
    numbers = (settings.first, settings.last, settings.falling, settings.longest, settings.reach)
    public = (plan.num_rows, plan.sampling_prob, plan.steps)

    def init(key):
        del key
        known = Information(*(jnp.asarray(part, float) for part in settings.information))
        values = (jnp.asarray(number, float) for number in (settings.prior_precision, *numbers, *public))
        start = jnp.asarray(settings.start, float)
        return State(start, start, jnp.zeros(()), Constants(known, *values))

    return _functions(model)._replace(init=init, settings=describe(settings))


@lru_cache(maxsize=64)
def _functions(model: Model) -> Query:
    """What queries of one model have in common, so that their steps are compiled once."""

    def ask(chance, state):
        del chance
        return Question(state.z, _factor(state.constants, state.z))

    def row_value(question, row):
        return -question.factor * jax.grad(model.log_likelihood)(question.z, row)

    def update(state, question, answer):
        fixed = state.constants
        gradient = answer / question.factor - fixed.sampling_prob * jax.grad(model.log_prior)(state.z)
        whitened = _share(fixed, state.step) * question.factor * gradient / (fixed.sampling_prob * fixed.num_rows)
        short = jnp.minimum(1.0, fixed.longest / jnp.maximum(jnp.linalg.norm(whitened), 1e-300))
        box = fixed.reach / jnp.sqrt(fixed.prior_precision)
        moved = jnp.clip(state.z - question.factor * whitened * short, state.start - box, state.start + box)
        return State(moved, state.start, state.step + 1, fixed), Point(state.z, state.z, gradient, 1 / question.factor)

    return Query(
        init=lambda key: None,
        ask=ask,
        row_value=row_value,
        update=update,
        last=lambda state: state.z,
        size=model.dim,
        columns=model.columns,
        settings={},
        chance=lambda key: jnp.zeros(()),
        products=_products(model, row_value),
    )


def _factor(constants: Constants, z: Array) -> Array:
    return (constants.information.at(z) + constants.prior_precision / constants.num_rows) ** -0.5


def _share(constants: Constants, step: Array) -> Array:
    """The share of a distance that a step closes."""
    passed = jnp.minimum(1.0, step / (constants.falling * constants.steps))
    return constants.first * (constants.last / constants.first) ** passed


def _products(model: Model, row_value: Callable) -> Products | None:
    likelihood = model.log_likelihood
    if not isinstance(likelihood, Linear):
        return None

    def slopes(u, rest, row):
        return jax.grad(lambda u, rest: -likelihood.at(u, rest, row), (0, 1))(u, rest)

    def spread(question):
        nowhere = jnp.zeros((1, model.dim))
        return Spread(question.z, nowhere, nowhere, jnp.ones(model.dim), jnp.tile(question.factor, 2))

    return Products(row_value, "aligned", model.dim, 1, likelihood.predictors, likelihood.features, slopes, spread)


def fit_information(z: np.ndarray, diagonal: np.ndarray, centre: np.ndarray, unit: np.ndarray) -> Information:
    """The `Information` that describes diagonals (tables, d) found at z (tables, d), by ridge regression."""
    typical = np.median(diagonal, axis=0)
    if not (typical > 0).all():
        raise ValueError("rows simulated from the prior have no finite gradient: check the model, or give choice=")
    log, moved = np.log(np.maximum(diagonal, 1e-9 * typical)), (z - centre) / unit
    design = np.concatenate([np.ones((len(z), 1)), moved, moved**2], axis=1)
    penalty = RIDGE * np.eye(design.shape[1])
    penalty[0, 0] = 0.0
    coefficients = np.linalg.solve(design.T @ design + penalty, design.T @ log).T
    low, high = np.quantile(log, [0.01, 0.99], axis=0)
    return Information(centre, unit, coefficients, low, high)


def resampled(rng: np.random.Generator, sample: Mapping[str, Any], shape: Any) -> dict[str, np.ndarray]:
    """Rows of a public sample at random, with replacement; nothing where it has no columns."""
    if not sample:
        return {}
    places = rng.integers(0, len(next(iter(sample.values()))), shape)
    return {name: np.asarray(column)[places] for name, column in sample.items()}


def describe(settings: Settings) -> dict[str, Any]:
    """Plain values of the settings, for the release."""
    plain = {name: _plain(value) for name, value in settings._asdict().items()}
    return {"method": "score", **plain, "information": _plain(settings.information._asdict())}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return np.asarray(value).tolist() if isinstance(value, np.ndarray | Array) else value


def described_information(settings: Mapping[str, Any]) -> Information:
    """The `Information` that `describe` wrote into a release."""
    return Information(**{name: np.asarray(part) for name, part in settings["information"].items()})


def described(settings: Mapping[str, Any]) -> Settings:
    """The settings that `describe` wrote into a release."""
    known = {name: settings[name] for name in Settings._fields}
    vectors = {name: np.asarray(known[name]) for name in ("start", "prior_precision")}
    sample = {name: np.asarray(column) for name, column in known["sample"].items()}
    return Settings(**{**known, **vectors, "sample": sample, "information": described_information(settings)})


def check(model: Model, settings: Settings) -> None:
    """Refuse settings that do not fit the model, or each other."""
    dim = model.dim
    shapes = {"start": (dim,), "prior_precision": (dim,)}
    for name, shape in shapes.items():
        value = np.asarray(getattr(settings, name))
        if value.shape != shape or not np.isfinite(value).all():
            raise ValueError(f"{name} has shape {value.shape}; this model needs finite numbers of shape {shape}")
    if np.shape(settings.information.coefficients) != (dim, 1 + 2 * dim):
        raise ValueError(f"information is of another model: this one has {dim} parameters")
    if not 0 < settings.last <= settings.first <= 1:
        raise ValueError(f"first={settings.first}, last={settings.last} must be shares, 0 < last ≤ first ≤ 1")
    if not 0 < settings.falling <= 1 or not settings.longest > 0:
        raise ValueError(f"falling={settings.falling} must lie in (0, 1], longest={settings.longest} above 0")
