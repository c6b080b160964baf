"""Default `fit` at ε = 1 on public tables that were never used to choose anything.

Each table is fitted 10 times with fresh (simulated) noise and compared with its non-private Laplace posterior.
Criteria (written before the run): of the 90 % intervals for the optimum, which know only privacy's noise, at least 80 %
contain the non-private estimate; of the full 90 % intervals, which add the uncertainty of a finite table, at least
90 %.
"""

import time

import numpy as np
from harness import finish, progress

from discreet import datasets, planner
from discreet.evaluate.reference import non_private
from discreet.families.glm import glm
from discreet.fitting import encode, fit, naive_posterior, simulated
from discreet.posterior import full

EPSILON, DELTA, FITS = 1.0, 1e-5, 10
TABLES = {
    "anes96": ("logistic", "vote"),
    "randhie": ("poisson", "mdvis"),
    "diabetes": ("gaussian", "target"),
    "breast_cancer": ("logistic", "target"),
}


def held(draws, value):
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    return (low <= value) & (value <= high)


def study(name, family, outcome):
    table, schema = getattr(datasets, name)()
    model = glm(family, outcome, [column for column in schema.names if column != outcome], schema)
    rows, reference = encode(table, schema), non_private(model, schema.encode(table))
    choice = planner.choose(model, schema, rows.num_rows, EPSILON, DELTA)
    rng, optimum, parameter, naive, width, warned = np.random.default_rng(0), [], [], [], [], 0
    for seed in range(FITS):
        posterior = fit(
            model,
            rows,
            epsilon=EPSILON,
            delta=DELTA,
            choice=choice,
            noise=simulated(seed),
            progress=progress(f"{name} {seed}"),
        )
        draws = full.solve(rng, posterior.release, choice.prior)
        optimum.append(held(draws.optimum, reference.mean))
        parameter.append(held(posterior.z[0], reference.mean))
        naive.append(held(naive_posterior(posterior).z[0], reference.mean))
        warned += bool(posterior.info["warnings"])
        width.append(posterior.z[0].std(0) / np.sqrt(np.diag(reference.covariance)))
    shares = [float(np.mean(part)) for part in (optimum, parameter, naive)]
    return {
        "table": f"{name} ({family})",
        "rows": rows.num_rows,
        "parameters": model.dim,
        "optimum in 90 %": shares[0],
        "full in 90 %": shares[1],
        "last iterate in 90 %": shares[2],
        "width ÷ non-private": float(np.median(width)),
        "fits with a warning": warned,
        "verdict": shares[0] >= 0.8 and shares[1] >= 0.9,
    }


began = time.time()
records = [study(name, *what) for name, what in TABLES.items()]
finish(
    "default-fit",
    records,
    {"fits": list(range(FITS))},
    columns=list(records[0]),
    notes=[f"ε = {EPSILON}, δ = {DELTA}, {FITS} fits a table, {time.time() - began:.0f} s."],
)
