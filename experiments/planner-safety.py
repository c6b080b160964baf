"""The default fit where the world is not as it was told: 10-D linear, logistic and Poisson regression.

`fit` knows the model, bounds and the number of rows, and buys the law of the covariates. Truths come from the prior as
told, or from one half as wide; covariates are independent normals, have heavy tails (t with 5 degrees of freedom), or
are correlated (.6 each pair); outcomes follow the model, or have heavier tails (t₅ residuals, negative binomial counts
of twice the variance). The last line of each model is one whose public sample says that covariates are independent,
while they are correlated. K = 100 data sets of 5000 rows (FULL=1; quick: 20), ε = 1 and .3 (quick: 1).

Criteria (written before the run): 90 % intervals hold at least as many truths as those of the non-private posterior of
the same tables, or 90 % if these are fewer, less three standard errors over tables; widths ÷ non-private are at most
twice as large as where all is as it was told.
"""

import time
from functools import cache, partial
from importlib import import_module
from itertools import product
from typing import NamedTuple

import numpy as np
from _nadpvi import DELTA, finish_table
from harness import FULL, epsilons, run_parts, seeds
from scipy import special

from discreet import planner
from discreet.evaluate import study
from discreet.evaluate.reference import non_private
from discreet.families.glm import Priors, glm
from discreet.fitting import fit, simulated
from discreet.schema import Numeric, Schema

NAMES = import_module("na-dpvi-table2").NAMES
SEED, ROWS, IN_PART, DRAWS = 950, 5000, 10, 1000
DATA_SETS = len(seeds(100, 20))
EPSILONS = epsilons(1.0, 0.3) if FULL else epsilons(1.0)
TRUTH_SD = {"linear": 0.5, "logistic": 0.5, "poisson": 0.15}
OUTCOMES = {
    "linear": ("gaussian", Numeric("y", -8, 8)),
    "logistic": ("logistic", Numeric("y", 0, 1, integer=True)),
    "poisson": ("poisson", Numeric("y", 0, 200, integer=True)),
}
MISTOLD = "correlated, told as independent"
WORLDS = (
    "as told",
    "prior twice too wide",
    "heavy-tailed covariates",
    "correlated covariates",
    "heavier outcomes",
    MISTOLD,
)


class Case(NamedTuple):
    """A model as the planner is told it, and its schema."""

    model: object
    schema: Schema


@cache
def case(name, wide):
    family, outcome = OUTCOMES[name]
    schema = Schema((*(Numeric(column, -8, 8) for column in NAMES), outcome))
    times = 2 if wide else 1
    priors = Priors(times * TRUTH_SD[name], times * TRUTH_SD[name], (8.0, 2.0 * times))
    return Case(glm(family, "y", NAMES, schema, priors, units=dict.fromkeys(NAMES, (0.0, 1.0))), schema)


@cache
def planned(name, world, epsilon):
    one, rng = case(name, world == "prior twice too wide"), np.random.default_rng(1)
    sample = {column: rng.normal(size=5000) for column in NAMES} if world == MISTOLD else None
    return planner.choose_best(one.model, one.schema, ROWS, epsilon, DELTA, sample=sample)


def covariates(rng, world):
    x = rng.normal(size=(ROWS, len(NAMES)))
    if world in ("correlated covariates", MISTOLD):
        x = np.sqrt(0.4) * x + np.sqrt(0.6) * rng.normal(size=(ROWS, 1))
    if world == "heavy-tailed covariates":
        x = x * np.sqrt(3 / rng.chisquare(5, (ROWS, 1)))
    return np.clip(x, -8, 8)


def table_of(rng, name, world):
    """Where the slopes are among the parameters, their truth, and a table of this world."""
    one = case(name, world == "prior twice too wide")
    x, sd = covariates(rng, world), TRUTH_SD[name]
    beta = rng.normal(0, sd, len(NAMES))
    u = x @ beta
    heavy = world == "heavier outcomes"
    if name == "linear":
        noise = rng.standard_t(5, ROWS) * np.sqrt(3 / 5) if heavy else rng.normal(size=ROWS)
        y = np.clip(u + noise, -8, 8)
    elif name == "logistic":
        y = (rng.random(ROWS) < special.expit(u)).astype(float)
    else:
        rate = np.exp(np.log(200) / 3 + u)  # where the prior has its centre
        y = np.minimum(rng.poisson(rng.gamma(rate, 1.0) if heavy else rate), 200).astype(float)
    places = [list(one.model.labels["coefficients"]).index(column) for column in NAMES]
    return places, beta, {**dict(zip(NAMES, x.T, strict=True)), "y": y}


def job(name, world, epsilon, part):
    rng, one = np.random.default_rng([SEED, part]), case(name, world == "prior twice too wide")
    chosen = planned(name, world, epsilon)
    kept = {"private": [], "open": [], "width": []}
    for number in range(IN_PART):
        places, beta, table = table_of(rng, name, world)
        rows, stream = study.stored(one.schema, table), simulated(10_000 * part + number)
        found = fit(one.model, rows, epsilon=np.inf, delta=DELTA, choice=chosen, noise=stream, draws=DRAWS)
        z = found.z[0][:, places]
        exact = non_private(one.model, table)
        mean, sd = exact.mean[places], np.sqrt(np.diag(exact.covariance))[places]
        low, high = np.quantile(z, [0.05, 0.95], axis=0)
        kept["private"].append(((low < beta) & (beta < high)).mean())
        kept["open"].append((np.abs(mean - beta) < 1.645 * sd).mean())
        kept["width"].append((z.std(0) / sd).mean())
    return {key: np.array(values) for key, values in kept.items()}


def main():
    began, records, told = time.time(), [], {}
    worlds = [
        (name, world) for name in OUTCOMES for world in WORLDS if (name, world) != ("logistic", "heavier outcomes")
    ]
    for epsilon, (name, world) in product(EPSILONS, worlds):
        facts = {"seed": SEED, "model": name, "world": world, "epsilon": epsilon, "version": 2}
        label = f"planner-safety-{name}-{world.replace(',', '').replace(' ', '-')}-{epsilon:g}"
        parts = run_parts(label, partial(job, name, world, epsilon), DATA_SETS // IN_PART, facts)
        found = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        covered, in_the_open = found["private"].mean(), found["open"].mean()
        error = found["private"].std(ddof=1) / np.sqrt(len(found["private"]))
        width = found["width"].mean()
        told.setdefault((name, epsilon), width)
        safe = covered >= min(0.9, in_the_open) - 3 * error
        records.append(
            {
                "model": name,
                "ε": epsilon,
                "world": world,
                "in 90 %": float(covered),
                "± s.e.": float(error),
                "non-private in 90 %": float(in_the_open),
                "width ÷ non-private": float(width),
                "÷ as told": float(width / told[name, epsilon]),
                "verdict": bool(safe and width <= 2 * told[name, epsilon]),
            }
        )
    finish_table("planner-safety", records, SEED, DATA_SETS // IN_PART, began)


if __name__ == "__main__":
    main()
