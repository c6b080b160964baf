"""Logistic regression by four methods at equal ε: DPVI and DP-SEP, each by its last iterate and noise-aware.

Five parameters, 5000 rows. Every method runs as `fit` would run it: the planner's choices, which never see a row, with
its own account under zero-out. DP-SEP in its paper's form (one row a step, 10 passes, γ = N, the planner's clip norm)
pays for independent draws of one row, under replace-one. "About zero" are noise-aware posteriors of rows that answer
as the paper's do, by the same planner's plan and constant steps: the linear trace model of φ itself. K = 100 data sets
at each ε (FULL=1; quick: 40 at ε = 1). Settings of the planner were chosen on tables of another seed.

Criteria (written before the run): the noise-aware posteriors of both planners are inside the joint TARP band at each ε,
the 1 − .05/6 quantile of the same statistic for perfect posteriors. Which is sharper is reported, not judged.
"""

import time
from functools import partial

import numpy as np
from _nadpvi import coverage_picture, dense, finish_table, last_iterate, methods, of_method, scores_of
from harness import FULL, epsilons, run_parts, seeds

from discreet import planner
from discreet.accounting import calibrate, guarantee
from discreet.evaluate import reference, scorecard, study
from discreet.families.glm import glm
from discreet.methods import elbo, sep
from discreet.methods.sites import linear
from discreet.plan import Plan
from discreet.posterior import sep as read_sites
from discreet.schema import Categorical, Numeric, Schema

SEED, ROWS, DELTA, DRAWS, PASSES, CLOSING = 2600, 5000, 1e-5, 2000, 10, 0.0125
NAMES = ("x1", "x2", "x3", "x4")
SCHEMA = Schema((*(Numeric(name, -1, 1) for name in NAMES), Categorical("y", ("no", "yes"))))
MODEL = glm("logistic", "y", NAMES, SCHEMA)
EPSILONS = epsilons(0.3, 1.0, 3.0) if FULL else epsilons(1.0)
DATA_SETS, IN_PART = len(seeds(100, 40)), 20
JUDGED = ("NA-DPVI", "noise-aware DP-SEP")


def one_row(clip_norm, epsilon):
    """The paper's schedule, with the noise that it needs."""
    steps = PASSES * ROWS
    return calibrate(Plan(ROWS, steps, 1 / ROWS, clip_norm, 1.0, sampling="one row"), epsilon, DELTA)


def by_sites(rng, release, prior):
    """Noise-aware draws of z, (data sets, draws, dim)."""
    each = (study.chosen(release, place) for place in range(len(release.last)))
    return np.stack([read_sites.solve(rng, one, DRAWS, prior=prior).z for one in each])


def job(epsilon, part):
    """All methods on one part of the data sets at one ε; the tables are the same at every ε."""
    seed = SEED + part
    rng = np.random.default_rng([seed, round(1000 * epsilon)])
    truth, tables = study.simulate_tables(seed, MODEL, SCHEMA, ROWS, IN_PART)
    fits = [reference.non_private(MODEL, {n: c[place] for n, c in tables.items()}) for place in range(IN_PART)]
    sds = np.stack([np.sqrt(np.diag(fit.covariance)) for fit in fits])
    gradients = planner.choose(MODEL, SCHEMA, ROWS, epsilon, DELTA)
    asked = elbo.query(MODEL, gradients.plan, gradients.settings)
    release = study.fit_tables(seed, SCHEMA, gradients.plan, asked, tables, keep="cross")
    drawn = {"NA-DPVI": dense(rng, release, gradients.prior), "DPVI": last_iterate(rng, release)}
    sites, site = planner.choose_sites(MODEL, SCHEMA, ROWS, epsilon, DELTA), linear(MODEL)
    release = study.fit_tables(seed + 1000, SCHEMA, sites.plan, sep.query(site, sites.plan, sites.settings), tables)
    drawn["noise-aware DP-SEP"] = by_sites(rng, release, sites.prior)
    drawn["DP-SEP"] = read_sites.last_iterate(rng, release, DRAWS)
    about_zero = sep.query(site, sites.plan, sep.Settings(CLOSING * ROWS / sites.plan.sampling_prob))
    release = study.fit_tables(seed + 3000, SCHEMA, sites.plan, about_zero, tables)
    drawn["noise-aware DP-SEP, about zero"] = by_sites(rng, release, sites.prior)
    plan = one_row(sites.plan.clip_norm, epsilon)
    release = study.fit_tables(seed + 2000, SCHEMA, plan, sep.query(site, plan, sep.Settings(ROWS)), tables)
    drawn["DP-SEP, one row a step"] = read_sites.last_iterate(rng, release, DRAWS)
    paid = {"gradients": gradients.plan, "sites": sites.plan, "one row": plan}
    spent = {f"ε of {name}": np.array([guarantee(used, DELTA).epsilon]) for name, used in paid.items()}
    return scores_of(rng, drawn, truth, sds) | spent


def line(parts, epsilon, method, cells):
    found = scorecard.summary(of_method(parts, method), cells)
    asked = "gradients" if "DPVI" in method else "one row" if "one row" in method else "sites"
    inside = found["TARP RMSE"] <= found["band"] and not found["failed"]
    spent = float(parts[0][f"ε of {asked}"][0])
    verdict = bool(inside) if method in JUDGED else None
    return {"ε": epsilon, "method": method, "ε spent": spent, **found, "verdict": verdict}


def main():
    began = time.time()
    count, by_epsilon = DATA_SETS // IN_PART, {}
    for epsilon in EPSILONS:
        facts = {"seed": SEED, "epsilon": epsilon, "in a part": IN_PART, "version": 2}
        by_epsilon[epsilon] = run_parts(f"sep-comparison-{epsilon:g}", partial(job, epsilon), count, facts)
    cells = len(JUDGED) * len(EPSILONS)
    records = [line(mine, e, method, cells) for e, mine in by_epsilon.items() for method in methods(mine)]
    panels = {f"ε = {epsilon:g}": (mine, None) for epsilon, mine in by_epsilon.items()}
    coverage_picture("sep-comparison", panels, methods(by_epsilon[EPSILONS[0]]))
    finish_table("sep-comparison", records, SEED, count, began)


if __name__ == "__main__":
    main()
