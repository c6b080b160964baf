"""Every mechanism of the house, small, as the cross-cutting tests want it: (name, plan, query, rows)."""

import numpy as np

from discreet.families.exponential import beta_bernoulli, dirichlet_categorical, gamma_exponential
from discreet.families.glm import glm
from discreet.mechanism.rows import store
from discreet.methods import elbo
from discreet.plan import Plan, default_batch_limit
from discreet.schema import Categorical, Numeric, Schema

COVARIATES = (Numeric("age", 20, 60), Categorical("sex", ("f", "m", "x")))
SCHEMAS = {
    "gamma-exponential": Schema((Numeric("x", 0, 20),)),
    "beta-bernoulli": Schema((Categorical("x", ("no", "yes")),)),
    "dirichlet-categorical": Schema((Categorical("x", ("a", "b", "c")),)),
    "gaussian": Schema((*COVARIATES, Numeric("y", -5, 5))),
    "logistic": Schema((*COVARIATES, Categorical("y", ("no", "yes")))),
    "poisson": Schema((*COVARIATES, Numeric("y", 0, 50, integer=True))),
}
MODELS = {
    "gamma-exponential": gamma_exponential(8.0, 2.0),
    "beta-bernoulli": beta_bernoulli(10.0, 10.0),
    "dirichlet-categorical": dirichlet_categorical((5.0, 5.0, 5.0)),
    **{name: glm(name, "y", ["age", "sex"], SCHEMAS[name]) for name in ("gaussian", "logistic", "poisson")},
}


def simple_settings(model, beta=1.0, draws=4):
    """Vanilla (β = 1) or β-preconditioned settings that any model can run with."""
    size = 2 * model.dim
    precondition = np.concatenate([np.ones(model.dim), np.full(model.dim, beta)])
    return elbo.Settings(
        np.concatenate([np.zeros(model.dim), np.full(model.dim, -3.0)]),
        precondition,
        np.full(size, 1e-4),
        draws,
    )


def make(name, num_rows=40, steps=6, sampling_prob=0.25, clip_norm=2.0, noise_multiplier=3.0, beta=1.0):
    model, schema = MODELS[name], SCHEMAS[name]
    rows = store(schema, schema.sample(np.random.default_rng(3), num_rows))
    limit = None if schema.held_as_counts(num_rows) else default_batch_limit(num_rows, sampling_prob)
    plan = Plan(num_rows, steps, sampling_prob, clip_norm, noise_multiplier, limit)
    return plan, elbo.query(model, plan, simple_settings(model, beta)), rows


EVERY = [(name, beta) for name in MODELS for beta in (1.0, 50.0)]
