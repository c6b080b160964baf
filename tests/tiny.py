"""One small fit, made once per process and shared by the tests that only need some posterior."""

import math
from dataclasses import replace
from functools import cache

import numpy as np

from discreet.evaluate import reference
from discreet.families.glm import glm
from discreet.fitting import Rows, encode, fit, simulated
from discreet.plan import non_private
from discreet.planner import Choice, choose
from discreet.posterior.types import Posterior
from discreet.schema import Categorical, Numeric, Schema

EPSILON, DELTA, NUM_ROWS, STEPS, DRAWS = 1.0, 1e-4, 300, 200, 500
SCHEMA = Schema((Numeric("age", 20, 60), Categorical("sex", ("f", "m")), Categorical("ill", ("no", "yes"))))
MODEL = glm("logistic", "ill", ["age", "sex"], SCHEMA)


def table(num_rows: int = NUM_ROWS) -> dict[str, list]:
    rng = np.random.default_rng(0)
    age, sex = rng.uniform(20, 60, num_rows).round(1), rng.choice(["f", "m"], num_rows)
    ill = np.where(rng.random(num_rows) < 1 / (1 + np.exp(-(age - 40) / 10)), "yes", "no")
    return {"age": age.tolist(), "sex": sex.tolist(), "ill": ill.tolist()}


def rows(num_rows: int = NUM_ROWS) -> Rows:
    return encode(table(num_rows), SCHEMA)


@cache
def choice() -> Choice:
    return choose(MODEL, SCHEMA, NUM_ROWS, EPSILON, DELTA, steps=STEPS)


@cache
def posterior(seed: int | None = None) -> Posterior:
    """Secure noise without a seed, simulated noise with one."""
    noise = None if seed is None else simulated(seed)
    return fit(MODEL, rows(), epsilon=EPSILON, delta=DELTA, choice=choice(), noise=noise, draws=DRAWS)


def noiseless_choice(**changes) -> Choice:
    """The choice without noise, and with these changes of its plan."""
    return choice()._replace(plan=replace(non_private(choice().plan), **changes))


@cache
def noiseless() -> Posterior:
    """A long fit without noise, read as its iterates' average: they settle at the table's own optimum."""
    long, noise = noiseless_choice(steps=3000), simulated(1)
    return fit(MODEL, rows(), epsilon=math.inf, delta=DELTA, choice=long, noise=noise, reading="iterate average")


@cache
def laplace() -> reference.Laplace:
    """Mode and covariance of the table's own posterior."""
    return reference.non_private(MODEL, SCHEMA.encode(table()))
