"""DPVI: rows answer with gradients of the negative ELBO; prior and entropy are public and come after the noise.

Every variant is the same three parts. A row's gradient with respect to each draw z_k is pulled back through
z = m + L(a)η to the family's parameters φ, and scaled by a public factor. `VARIANTS` says where the pull-back stands
(the row, before its clip, or the answer, after the noise) and which factor is used.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from discreet.methods.gaussian import MEAN_FIELD, NAMES, POSITIVE, Family, antithetic
from discreet.model import Linear, Model, Row, prior_moments
from discreet.plan import Plan
from discreet.query import Point, Products, Query, Spread


class Settings(NamedTuple):
    """The public choices of a DPVI run.

    `start` is φ₀ (see `start_at`). `learning_rate` is a number or one for each entry of φ. `variant` is a name from
    `VARIANTS`, `optimiser` one from `OPTIMISERS`. `precondition` is β, for the variants of that name alone. Without
    antithetic pairs (`draws` = 1) the papers' single draw. `decay` is the share of the learning rate that is left at
    the last step: it falls geometrically, so that late iterates hardly wander. `rest`, a number or one for each entry
    of φ, is the share of the steps for which an entry stays at its start: a variance would follow the residuals of
    coefficients that have not arrived.
    """

    start: np.ndarray
    learning_rate: np.ndarray | float
    variant: str = "vanilla"
    precondition: np.ndarray | None = None
    family: Family = MEAN_FIELD
    optimiser: str = "sgd"
    draws: int = 10
    decay: float = 1.0
    rest: np.ndarray | float = 0.0


class Variant(NamedTuple):
    """How a gradient is bought.

    aligned    rows answer with location gradients, one for each shared draw, and the answer is pulled back to φ;
               otherwise each row pulls back its own, and all of φ shares the clip
    factor     of (family, β, φ): multiplies what a row answers, and is undone after the noise
    in_step    whether the step keeps the factor: λ·factor·gradient
    only       the families that the factor is known for
    """

    aligned: bool
    factor: Callable[[Family, Any, Array], Array]
    in_step: bool
    only: tuple[str, ...] = NAMES


def _one(family: Family, beta: Any, phi: Array) -> Array:
    return jnp.ones_like(phi)


def _beta(family: Family, beta: Any, phi: Array) -> Array:
    return jnp.asarray(beta, phi.dtype)


def _steepness(family: Family, beta: Any, phi: Array) -> Array:
    dim = family.dim(phi)
    return jnp.ones_like(phi).at[dim : 2 * dim].set(1 / family.slope(phi))


def _inverse_fisher(family: Family, beta: Any, phi: Array) -> Array:
    return family.inverse_fisher(phi)


VARIANTS = {
    "vanilla": Variant(aligned=False, factor=_one, in_step=False),
    "preconditioned": Variant(aligned=False, factor=_beta, in_step=True),
    "T′-preconditioned": Variant(aligned=False, factor=_steepness, in_step=False),
    "natural": Variant(aligned=False, factor=_inverse_fisher, in_step=True, only=("mean-field",)),
    "aligned": Variant(aligned=True, factor=_one, in_step=False),
    "aligned preconditioned": Variant(aligned=True, factor=_beta, in_step=True),
    "aligned natural": Variant(aligned=True, factor=_inverse_fisher, in_step=True, only=("mean-field",)),
}
_VECTORS = ("start", "learning_rate", "precondition", "rest")
OPTIMISERS = {"sgd": optax.sgd, "adam": optax.adam}


class Constants(NamedTuple):
    """The numbers of a plan and its settings, as values: runs that differ in these alone share one compiled step."""

    rate: Array
    decay: Array
    rest: Array
    sampling_prob: Array
    steps: Array
    precondition: Array | None


class State(NamedTuple):
    """The iterate φ, the optimiser's memory, the number of steps that were taken, and what stays."""

    phi: Array
    optimiser: optax.OptState
    step: Array
    constants: Constants


class Question(NamedTuple):
    """Asked of every row of a batch: the iterate, the draws it is judged at, and the factor of the answer."""

    phi: Array
    eta: Array
    draws: Array
    factor: Array


def query(model: Model, plan: Plan, settings: Settings) -> Query:
    """The gradient of κ·(negative ELBO) by the variant's way, with an Optax optimiser on batch sums.

    The trace it reports is the answer with its factor undone plus κ·∇(−log p(z) − H(q)), against the mean draw of the
    step: for a quadratic loss the draws' own scatter then adds no noise. An aligned trace is of the location alone.
    """
    check(model, settings)
    start = np.asarray(settings.start, np.float64)
    numbers = (settings.learning_rate, settings.decay, settings.rest, plan.sampling_prob, plan.steps)

    def init(key):
        del key
        beta = None if settings.precondition is None else jnp.asarray(settings.precondition, float)
        constants = Constants(*(jnp.asarray(number, float) for number in numbers), precondition=beta)
        return State(
            jnp.asarray(start), OPTIMISERS[settings.optimiser](1.0).init(jnp.asarray(start)), jnp.zeros(()), constants
        )

    same = (settings.variant, settings.family, settings.optimiser, settings.draws)
    return _functions(model, *same)._replace(init=init, settings=describe(settings))


@lru_cache(maxsize=64)
def _functions(model: Model, variant_name: str, family: Family, optimiser_name: str, draws: int) -> Query:
    """What queries of one shape have in common, so that their steps are compiled once."""
    variant, dim, optimiser = VARIANTS[variant_name], model.dim, OPTIMISERS[optimiser_name](1.0)

    def ask(eta, state):
        return _question(variant, family, state.constants.precondition, state.phi, eta)

    def row_value(question, row):
        if variant.aligned:
            by_draw = _slopes(lambda z: model.log_likelihood(z, row), question.draws)
            return (question.factor[None, :dim] * by_draw).ravel()
        return question.factor * _row_gradient(model, family, question, row)

    def complete(question, answer, sampling_prob):
        """The gradient of φ, and what of it is linear in the mean draw: (y, its noise scale)."""
        public = sampling_prob * _slopes(model.log_prior, question.draws)
        entropy = sampling_prob * jax.grad(family.entropy)(question.phi)
        if not variant.aligned:
            gradient = answer / question.factor + _pull_back(family, question, public) - entropy
            return gradient, gradient, 1 / question.factor
        by_draw = answer.reshape(draws, dim) / question.factor[None, :dim] + public
        gradient = _pull_back(family, question, by_draw) - entropy
        return gradient, by_draw.sum(0), np.sqrt(draws) / question.factor[:dim]

    def update(state, question, answer):
        constants, step = state.constants, state.step
        gradient, y, scale = complete(question, answer, constants.sampling_prob)
        direction = question.factor * gradient if variant.in_step else gradient
        change, memory = optimiser.update(direction, state.optimiser)
        share = constants.decay ** (step / constants.steps) * (step >= constants.rest * constants.steps)
        x = state.phi.at[:dim].set(question.draws.mean(0))[: len(y)]
        moved = state.phi + constants.rate * share * change
        return State(moved, memory, step + 1, constants), Point(state.phi, x, y, scale)

    return Query(
        init=lambda key: None,
        ask=ask,
        row_value=row_value,
        update=update,
        last=lambda state: state.phi,
        size=draws * dim if variant.aligned else family.size(dim),
        columns=model.columns,
        settings={},
        chance=lambda key: antithetic(key, draws, dim),
        products=_products(model, row_value, variant, family, draws),
    )


def _products(model: Model, row_value: Callable, variant: Variant, family: Family, draws: int) -> Products | None:
    """Sums of these answers by matrix products, if rows have linear predictors: one, for all but mean-field and aligned
    answers; without a log partition, for all but aligned ones and mean-field ones of one draw.
    """
    likelihood, kind = model.log_likelihood, "aligned" if variant.aligned else family.name
    if not isinstance(likelihood, Linear) or (kind == "full-rank" and likelihood.predictors > 1):
        return None
    partition = likelihood.log_partition
    if partition is not None and kind != "aligned" and (kind, draws) != ("mean-field", 1):
        return None

    def slopes(u, rest, row):
        return jax.grad(lambda u, rest: -likelihood.at(u, rest, row) / draws, (0, 1))(u, rest)

    def spread(question):
        centre, eta = question.phi[: model.dim], question.eta[: (draws + 1) // 2]
        arms = question.draws[: (draws + 1) // 2] - centre[None]
        found = Spread(centre, arms, eta, family.slope(question.phi), question.factor)
        return found if partition is None else _about_means(found, jax.vmap(partition), question.draws)

    return Products(row_value, kind, model.dim, draws, likelihood.predictors, likelihood.features, slopes, spread)


def _about_means(spread: Spread, partition: Callable[[Array], Array], draws: Array) -> Spread:
    """The spread where these log partitions are taken from linear predictors."""
    return spread._replace(partition=partition(draws), means=jax.grad(lambda z: partition(z).sum())(draws))


def question_at(settings: Settings, phi: Array, eta: Array) -> Question:
    """The question at this φ with these draws."""
    return _question(VARIANTS[settings.variant], settings.family, settings.precondition, phi, eta)


def _question(variant: Variant, family: Family, beta: Any, phi: Array, eta: Array) -> Question:
    return Question(phi, eta, family.draws(phi, eta), variant.factor(family, beta, phi))


def _row_gradient(model: Model, family: Family, question: Question, row: Row) -> Array:
    """The gradient of −log p(row) with respect to φ, over the draws.

    With a linear predictor u the slopes by draw are u's alone, and their sums are products with the public η: for many
    rows two matrix products, and never an array of rows × draws × parameters.
    """
    likelihood = model.log_likelihood
    if (
        not isinstance(likelihood, Linear)
        or likelihood.predictors > 1
        or likelihood.log_partition is not None
        or family.name != "mean-field"
    ):
        return _pull_back(family, question, _slopes(lambda z: likelihood(z, row), question.draws))
    features = likelihood.features(row)
    count = len(features)
    slope = jax.vmap(jax.grad(lambda u, rest: -likelihood.of_predictor(u, rest, row) / len(question.draws), (0, 1)))
    by_predictor, by_rest = slope(question.draws[:, :count] @ features, question.draws[:, count:])

    def total(weights):
        return jnp.concatenate([features * (by_predictor @ weights[:, :count]), (by_rest * weights[:, count:]).sum(0)])

    moved = question.eta * family.slope(question.phi)[None]
    return jnp.concatenate([total(jnp.ones_like(moved)), total(moved)])


def _slopes(log_density: Callable[[Array], Array], draws: Array) -> Array:
    """∇_z of −log density at each draw, over the number of draws: what their mean loss owes to each."""
    return -jax.vmap(jax.grad(log_density))(draws) / len(draws)


def _pull_back(family: Family, question: Question, by_draw: Array) -> Array:
    """Σ_k (∂z_k/∂φ)ᵀ by_draw_k."""
    return jax.vjp(lambda phi: family.draws(phi, question.eta), question.phi)[1](by_draw)[0]


def start_at(
    model: Model, sd: float | np.ndarray, mean: np.ndarray | None = None, family: Family = MEAN_FIELD
) -> np.ndarray:
    """φ₀ with these standard deviations, at `mean` or at the prior's centre."""
    mean = prior_moments(model)[0] if mean is None else np.asarray(mean, np.float64)
    sd = _for_each(sd, model.dim)
    _check_vector("mean", mean, model.dim)
    _check_vector("sd", sd, model.dim, positive=True)
    with jax.enable_x64(True):
        return np.asarray(family.pack(mean, sd))


def heuristic_rate(plan: Plan, size: int, factor: float = 1.0) -> float:
    """λ = √2·factor / (σC√(T·size)): steps whose noise wanders about one unit in T steps (NA-DPVI A58).

    >>> plan = Plan(num_rows=5000, steps=10_000, sampling_prob=0.1, clip_norm=2.0, noise_multiplier=307.8)
    >>> round(heuristic_rate(plan, 2) * 1e5, 4)
    1.6244
    """
    if plan.noise_std == 0:
        raise ValueError("noise_multiplier=0: the heuristic measures steps by their noise; give a learning rate")
    return float(np.sqrt(2) * factor / (plan.noise_std * np.sqrt(plan.steps * size)))


def describe(settings: Settings) -> dict[str, Any]:
    """Plain values of the settings, for the release."""
    vectors = {name: getattr(settings, name) for name in _VECTORS}
    return {
        "method": "elbo",
        **settings._asdict(),
        **{name: None if value is None else np.asarray(value).tolist() for name, value in vectors.items()},
        "family": settings.family.name,
        "positive": settings.family.positive,
    }


def described_family(settings: Any) -> Family:
    """The family of a release, from its settings."""
    return Family(settings.get("family", "mean-field"), settings.get("positive", "softplus"))


def described(settings: Any) -> Settings:
    """The settings that `describe` wrote into a release."""
    known = {name: settings[name] for name in Settings._fields if name in settings}
    vectors = {name: np.asarray(known[name], np.float64) for name in _VECTORS if known.get(name) is not None}
    return Settings(**{**known, **vectors, "family": described_family(settings)})


def check(model: Model, settings: Settings) -> None:
    """Refuse settings that do not fit the model, or each other."""
    family = settings.family
    for name, value, known in (
        ("variant", settings.variant, tuple(VARIANTS)),
        ("optimiser", settings.optimiser, tuple(OPTIMISERS)),
        ("family.name", family.name, NAMES),
        ("family.positive", family.positive, tuple(POSITIVE)),
    ):
        if value not in known:
            raise ValueError(f"{name}={value!r} must be one of {', '.join(known)}")
    variant = VARIANTS[settings.variant]
    if family.name not in variant.only:
        raise ValueError(f"variant={settings.variant!r} needs a mean-field family: only there is F⁻¹ diagonal")
    if (settings.precondition is not None) != (variant.factor is _beta):
        given = "not given" if settings.precondition is None else "given"
        raise ValueError(
            f"precondition (β) is {given} with variant={settings.variant!r}: it is for the preconditioned ones alone"
        )
    if not isinstance(settings.draws, int) or settings.draws < 1:
        raise ValueError(f"draws={settings.draws} must be a whole number, at least 1")
    if not 0 < settings.decay <= 1:
        raise ValueError(f"decay={settings.decay} must lie in (0, 1]: it is what is left of the rate at the last step")
    size = family.size(model.dim)
    _check_vector("start", settings.start, size)
    _check_vector("learning_rate", _for_each(settings.learning_rate, size), size, positive=True)
    _check_vector("rest", _for_each(settings.rest, size), size)
    if np.min(settings.rest) < 0 or np.max(settings.rest) >= 1:
        raise ValueError(f"rest={settings.rest} must lie in [0, 1): it is the share of steps before an entry moves")
    if settings.precondition is not None:
        _check_vector("precondition", settings.precondition, size, positive=True)


def _for_each(value: np.ndarray | float, size: int) -> np.ndarray:
    return np.full(size, value, np.float64) if np.ndim(value) == 0 else np.asarray(value, np.float64)


def _check_vector(name: str, value: Any, size: int, positive: bool = False) -> None:
    value = np.asarray(value)
    if value.shape != (size,):
        raise ValueError(f"{name} has shape {value.shape}; this model and family need ({size},)")
    bad = ~np.isfinite(value) | ((value <= 0) & positive)
    if bad.any():
        place = int(np.flatnonzero(bad)[0])
        raise ValueError(f"{name}[{place}]={value[place]} must be finite{' and positive' if positive else ''}")
