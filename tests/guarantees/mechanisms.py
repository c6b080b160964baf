"""Every mechanism of the house, small, as the cross-cutting tests want it: (plan, query, rows) by recipe."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from discreet.families.exponential import beta_bernoulli, dirichlet_categorical, gamma_exponential
from discreet.families.glm import glm
from discreet.families.mixture import mixture
from discreet.mechanism.rows import store
from discreet.methods import elbo, score
from discreet.methods.gaussian import NAMES, POSITIVE, Family
from discreet.model import Linear, Model
from discreet.plan import NORM_ORDERS, Plan, default_batch_limit
from discreet.schema import Categorical, Numeric, Schema

COVARIATES = (Numeric("age", 20, 60), Categorical("sex", ("f", "m", "x")))
SCHEMAS = {
    "gamma-exponential": Schema((Numeric("x", 0, 20),)),
    "beta-bernoulli": Schema((Categorical("x", ("no", "yes")),)),
    "dirichlet-categorical": Schema((Categorical("x", ("a", "b", "c")),)),
    "gaussian": Schema((*COVARIATES, Numeric("y", -5, 5))),
    "logistic": Schema((*COVARIATES, Categorical("y", ("no", "yes")))),
    "poisson": Schema((*COVARIATES, Numeric("y", 0, 50, integer=True))),
    "network": Schema((*COVARIATES, Numeric("y", -5, 5))),
    "mixture": Schema((*COVARIATES, Numeric("y", 0, 9, integer=True))),
}
HIDDEN, INPUTS = 3, 2


def _network():
    """A network with one hidden layer: as many linear predictors as hidden units."""

    def of_predictor(u, rest, row):
        return -0.5 * (row["y"] + 4 - jnp.dot(rest[:-1], jnp.tanh(u)) - rest[-1]) ** 2

    return Model(
        dim=HIDDEN * INPUTS + HIDDEN + 1,
        log_prior=lambda z: -0.5 * jnp.sum(z**2),
        log_likelihood=Linear(lambda row: jnp.stack([1.0, (row["age"] - 40) / 20]), of_predictor, HIDDEN),
        constrain=lambda z: {"weights": z},
        sample_prior=lambda key: jax.random.normal(key, (HIDDEN * INPUTS + HIDDEN + 1,)),
        columns=("age", "y"),
    )


MODELS = {
    "gamma-exponential": gamma_exponential(8.0, 2.0),
    "beta-bernoulli": beta_bernoulli(10.0, 10.0),
    "dirichlet-categorical": dirichlet_categorical((5.0, 5.0, 5.0)),
    **{name: glm(name, "y", ["age", "sex"], SCHEMAS[name]) for name in ("gaussian", "logistic", "poisson")},
    "network": _network(),
    "mixture": mixture(SCHEMAS["mixture"], 2, "y", "poisson", bins=3),
}


class Recipe(NamedTuple):
    """One way to ask: a gradient variant on a family, with an optimiser, a number of draws and a kind of noise.

    The variant `SCORE` asks for scores instead, without any of the others but the kind of noise.
    """

    variant: str = "vanilla"
    family: Family = Family()
    optimiser: str = "sgd"
    draws: int = 4
    noise_kind: str = "gaussian"


VANILLA, SCORE = Recipe(), "score"
PRECONDITIONED = ("preconditioned", "aligned preconditioned")
RECIPES = [
    Recipe(variant, Family(family, positive), optimiser, draws)
    for variant, parts in elbo.VARIANTS.items()
    for family in parts.only
    for positive, optimiser, draws in zip(POSITIVE, elbo.OPTIMISERS, (4, 1), strict=True)
]
assert {recipe.variant for recipe in RECIPES} == set(elbo.VARIANTS)
assert {recipe.family.name for recipe in RECIPES} == set(NAMES)


def simple_settings(model, recipe=VANILLA, beta=50.0):
    """Settings of this recipe that any model can run with; q starts off centre, with unequal and correlated widths."""
    family, dim = recipe.family, model.dim
    start = np.array(elbo.start_at(model, np.linspace(0.03, 0.09, dim), np.linspace(-0.2, 0.3, dim), family))
    start[2 * dim :] = 0.02 * np.cos(np.arange(len(start) - 2 * dim))
    given = recipe.variant in PRECONDITIONED
    precondition = np.repeat([1.0, beta], [dim, len(start) - dim]) * np.linspace(1, 2, len(start)) if given else None
    return elbo.Settings(start, 1e-4, recipe.variant, precondition, family, recipe.optimiser, recipe.draws)


def make(name, recipe=VANILLA, num_rows=40, steps=6, sampling_prob=0.25, clip_norm=2.0, noise_multiplier=3.0):
    model, schema = MODELS[name], SCHEMAS[name]
    rows = store(schema, schema.sample(np.random.default_rng(3), num_rows))
    whole = schema.held_as_counts(num_rows) or recipe.noise_kind == "laplace"
    limit = None if whole else default_batch_limit(num_rows, sampling_prob)
    plan = Plan(num_rows, steps, sampling_prob, clip_norm, noise_multiplier, limit, recipe.noise_kind)
    if recipe.variant == SCORE:
        return plan, score.query(model, plan, simple_scores(model, rows)), rows
    return plan, elbo.query(model, plan, simple_settings(model, recipe)), rows


def simple_scores(model, rows):
    """Settings of a score query that any model can run with: the rows' own covariates are its public sample."""
    dim, columns = model.dim, {name: np.ravel(column)[:100] for name, column in rows._columns.items()}
    sample = {name: columns[name] for name in model.columns if name not in model.outcome}
    return score.Settings(np.linspace(-0.2, 0.3, dim), np.full(dim, 0.7), 0.1, 0.01, 0.5, sample)


def first_question(query, key=None):
    """The question of a first step."""
    key = jax.random.key(0) if key is None else key
    return query.ask(query.chance(key), query.init(key))


EVERY = [(name, VANILLA) for name in MODELS] + [("logistic", recipe) for recipe in RECIPES]
EVERY += [(name, Recipe(variant)) for name in ("gaussian", "beta-bernoulli") for variant in elbo.VARIANTS]
EVERY += [("network", Recipe("aligned")), ("network", Recipe(draws=1))]
EVERY += [("mixture", Recipe("aligned")), ("mixture", Recipe(draws=1))]
EVERY += [(name, Recipe(SCORE, draws=1)) for name in ("gaussian", "poisson", "beta-bernoulli", "logistic")]
EVERY += [  # of several draws, aligned answers would have the noise of a sum: not Laplace
    ("logistic", Recipe("preconditioned", noise_kind="laplace")),
    ("beta-bernoulli", Recipe(noise_kind="laplace")),
    ("logistic", Recipe("aligned", Family("full-rank", "exp"), "adam", 1, "laplace")),
]
EVERY = list(dict.fromkeys(EVERY))
assert {recipe.noise_kind for _, recipe in EVERY} == set(NORM_ORDERS)


def title(name, recipe):
    """What a test of this mechanism is called."""
    family, noise = recipe.family, "" if recipe.noise_kind == "gaussian" else f" {recipe.noise_kind}"
    return f"{name} {recipe.variant} {family.name} {family.positive} {recipe.optimiser} K={recipe.draws}{noise}"


every = pytest.mark.parametrize(("name", "recipe"), EVERY, ids=[title(*pair) for pair in EVERY])
of_elbo = pytest.mark.parametrize(
    ("name", "recipe"),
    [pair for pair in EVERY if pair[1].variant != SCORE],
    ids=[title(*pair) for pair in EVERY if pair[1].variant != SCORE],
)
