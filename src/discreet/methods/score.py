"""The score: rows answer with ∇ log p(row | z) at the iterate itself, in units of the information expected there.

No variational family is needed. Rows simulated at the iterate, in public, say how much rows tell there in every
direction; in those units the answers of real ones are about one in size wherever the iterate is, so that one clip norm
serves all of a run, and a natural step closes the same share of every distance. The trace is that of a dense quadratic,
y = κA(x − x*), and A is expected to be N times the information there, plus the prior's precision.
"""

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from discreet.model import Model
from discreet.plan import Plan
from discreet.query import Point, Query

FEW, MANY, SEED = 2**9, 2**13, 17


class Settings(NamedTuple):
    """The public choices of a run.

    `start` is z₀. A step is in units of what rows simulated at the iterate and the prior, of this `prior_precision`,
    tell together (`whitening`). Its first closes the share `first` of any distance; the share falls geometrically to
    `last` in the first `falling` of all steps, and stays there, and so do the units, which are renewed after `every` so
    many steps until then. No step is longer than `longest` units, and none leaves the box of `reach` prior sds around
    the start: a variance would follow the residuals of coefficients that have not arrived. `sample` are public columns
    whose law the covariates are known to follow ({} where there are none).
    """

    start: np.ndarray
    prior_precision: np.ndarray
    first: float
    last: float
    falling: float
    sample: Mapping[str, np.ndarray]
    longest: float = 0.2
    reach: float = 6.0
    every: int = 5


class Constants(NamedTuple):
    """The numbers of a plan and its settings, as values: runs that differ in these alone share one compiled step.

    `covariates` are those of the rows that are simulated, and `keys` their chance: the same ones at every place.
    """

    start: Array
    prior_precision: Array
    first: Array
    last: Array
    falling: Array
    longest: Array
    reach: Array
    every: Array
    num_rows: Array
    sampling_prob: Array
    steps: Array
    covariates: Mapping[str, Array]
    keys: Array


class State(NamedTuple):
    """The iterate, the units of the present answers (`whitening`), how many steps were taken, and what stays."""

    z: Array
    whiten: Array
    step: Array
    constants: Constants


class Question(NamedTuple):
    """Asked of every row: where, and in which units."""

    z: Array
    whiten: Array


def query(model: Model, plan: Plan, settings: Settings) -> Query:
    """Whitened gradients of −log p(row | z), and natural steps along their noisy sum and the prior's gradient.

    The trace is of κ·∇(−log p(z, rows)), against z, both in whitened units. `last` is z and then the units it ended in.
    """
    check(model, settings)
    numbers = (settings.first, settings.last, settings.falling, settings.longest, settings.reach, settings.every)
    public = (plan.num_rows, plan.sampling_prob, plan.steps)

    def init(key):
        del key
        values = (jnp.asarray(number, float) for number in (settings.prior_precision, *numbers, *public))
        named = dict(zip(Constants._fields[1:-2], values, strict=True))
        covariates, keys = simulated_rows(settings.sample, MANY)
        keys = jax.random.key_data(keys)  # as numbers, which a checkpoint can keep
        start = jnp.asarray(settings.start, float)
        constants = Constants(start=start, **named, covariates=covariates, keys=keys)
        return State(start, _whitening_at(model, constants, start, FEW), jnp.zeros(()), constants)

    return _functions(model)._replace(init=init, settings=describe(settings))


@lru_cache(maxsize=64)
def _functions(model: Model) -> Query:
    """What queries of one model have in common, so that their steps are compiled once."""

    def row_value(question, row):
        return -question.whiten @ jax.grad(model.log_likelihood)(question.z, row)

    def update(state, question, answer):
        fixed, whiten = state.constants, question.whiten
        gradient = answer - fixed.sampling_prob * whiten @ jax.grad(model.log_prior)(state.z)
        step = _share(fixed, state.step) * gradient / (fixed.sampling_prob * fixed.num_rows)
        short = jnp.minimum(1.0, fixed.longest / jnp.maximum(jnp.linalg.norm(step), 1e-300))
        box = fixed.reach / jnp.sqrt(fixed.prior_precision)
        moved = jnp.clip(state.z - whiten.T @ step * short, fixed.start - box, fixed.start + box)
        taken, until = state.step + 1, jnp.ceil(fixed.falling * fixed.steps)
        place = (taken < until) & (taken % fixed.every == 0), taken == until
        ways = (lambda: whiten), *(partial(_whitening_at, model, fixed, moved, count) for count in (FEW, MANY))
        units = jax.lax.switch(place[0] + 2 * place[1], ways)
        point = Point(state.z, jnp.linalg.solve(whiten.T, state.z), gradient, jnp.ones_like(answer))
        return State(moved, units, taken, fixed), point

    return Query(
        init=lambda key: None,
        ask=lambda chance, state: Question(state.z, state.whiten),
        row_value=row_value,
        update=update,
        last=lambda state: jnp.concatenate([state.z, state.whiten.reshape(*state.z.shape[:-1], -1)], axis=-1),
        size=model.dim,
        columns=model.columns,
        settings={},
        chance=lambda key: jnp.zeros(()),
    )


def whitening(information: Any, prior_precision: Any, num_rows: Any, xp: Any = jnp) -> Any:
    """W (…, d, d) with W(F + P/N)Wᵀ = 1 and WPWᵀ diagonal: z = Wᵀx, and x is independent under the prior, too.

    `information` (…, d, d) is F, of a row; P the diagonal `prior_precision`.
    """
    sd = prior_precision**-0.5
    values, vectors = xp.linalg.eigh(information * (sd[:, None] * sd[None]) + xp.eye(len(sd)) / num_rows)
    return xp.swapaxes(vectors * xp.maximum(values, 1 / num_rows)[..., None, :] ** -0.5, -1, -2) * sd[None]


def _whitening_at(model: Model, constants: Constants, z: Array, count: int) -> Array:
    covariates, keys = jax.tree.map(lambda column: column[:count], (constants.covariates, constants.keys))
    gradients = gradients_at(model, z, covariates, jax.random.wrap_key_data(keys))
    return whitening(gradients.T @ gradients / len(gradients), constants.prior_precision, constants.num_rows)


def gradients_at(model: Model, z: Array, covariates: Mapping[str, Array], keys: Array) -> Array:
    """∇ log p(row | z) of rows drawn from the model at z, with these covariates, (rows, d); zero if not finite."""
    simulate = model.simulate
    if simulate is None:
        raise ValueError("this model cannot simulate its outcome: scores cannot be asked, nor read, without it")

    def gradient(key, row):
        return jax.grad(model.log_likelihood)(z, {**row, **simulate(key, z, row)})

    found = jax.vmap(gradient)(keys, covariates)
    return jnp.where(jnp.isfinite(found).all(1, keepdims=True), found, 0.0)


def simulated_rows(sample: Mapping[str, Any], count: int) -> tuple[dict[str, Array], Array]:
    """Covariates of `count` rows, those of the sample again and again, and a key for each."""
    covariates = {name: jnp.resize(jnp.asarray(column), (count,)) for name, column in sample.items()}
    return covariates, jax.random.split(jax.random.key(SEED), count)


def _share(constants: Constants, step: Array) -> Array:
    """The share of a distance that a step closes."""
    passed = jnp.minimum(1.0, step / (constants.falling * constants.steps))
    return constants.first * (constants.last / constants.first) ** passed


def resampled(rng: np.random.Generator, sample: Mapping[str, Any], shape: Any) -> dict[str, np.ndarray]:
    """Rows of a public sample at random, with replacement; nothing where it has no columns."""
    if not sample:
        return {}
    places = rng.integers(0, len(next(iter(sample.values()))), shape)
    return {name: np.asarray(column)[places] for name, column in sample.items()}


def describe(settings: Settings) -> dict[str, Any]:
    """Plain values of the settings, for the release."""
    return {"method": "score", **{name: _plain(value) for name, value in settings._asdict().items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return np.asarray(value).tolist() if isinstance(value, np.ndarray | Array) else value


def described(settings: Mapping[str, Any]) -> Settings:
    """The settings that `describe` wrote into a release."""
    known = {name: settings[name] for name in Settings._fields}
    vectors = {name: np.asarray(known[name]) for name in ("start", "prior_precision")}
    sample = {name: np.asarray(column) for name, column in known["sample"].items()}
    return Settings(**{**known, **vectors, "sample": sample})


def check(model: Model, settings: Settings) -> None:
    """Refuse settings that do not fit the model, or each other."""
    dim = model.dim
    shapes = {"start": (dim,), "prior_precision": (dim,)}
    for name, shape in shapes.items():
        value = np.asarray(getattr(settings, name))
        if value.shape != shape or not np.isfinite(value).all():
            raise ValueError(f"{name} has shape {value.shape}; this model needs finite numbers of shape {shape}")
    if not 0 < settings.last <= settings.first <= 1:
        raise ValueError(f"first={settings.first}, last={settings.last} must be shares, 0 < last ≤ first ≤ 1")
    if not 0 < settings.falling <= 1 or not settings.longest > 0:
        raise ValueError(f"falling={settings.falling} must lie in (0, 1], longest={settings.longest} above 0")
