"""NA-DPVI, Table 1 and Figure 2: the three conjugate models at ε = .1, with marginal coverages of M3 (appendix H.5).

Every row of the paper with its settings, `full` on the same releases, two more ways to be honest (Bernstein and Sheldon
with Laplace and with Gaussian noise), and our own settings. K = 500 data sets of 5000 rows, T = 10⁴ steps; NUTS
and `full` at the paper's settings on the first 100 of them (their own band). Quick: K = 100, and 20.

Criteria (written before the run): with our settings, inside the bands for M1, M2 and M3, joint and marginal, and no
wider than with the paper's; Bernstein-Sheldon inside its bands. A band is the 1 − .05/c quantile of the same statistic
for perfect posteriors, c the number of cells judged.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from _nadpvi import (
    DELTA,
    DRAWS,
    ROWS,
    coverage_picture,
    dense,
    finish_table,
    methods,
    of_method,
    paper_readings,
    plan_for,
    scored,
    scores_of,
    settings,
    simulate_public,
    whitened,
    whitened_clip,
)
from harness import FULL, run_parts

from discreet.accounting import calibrate
from discreet.evaluate import scorecard, study
from discreet.families import exponential
from discreet.methods import elbo, statistics
from discreet.model import Model
from discreet.plan import Plan
from discreet.posterior import gibbs
from discreet.schema import Categorical, Numeric, Schema

SEED, EPSILON, CLOSING, UNCLIPPED = 500, 0.1, 0.001, 0.998
PARTS, REPLICAS = (4, 125) if FULL else (2, 50)
SLOW = 100 if FULL else 20


class Task(NamedTuple):
    """A conjugate model with its public schema, what one sum of statistics needs, and its exact posterior."""

    model: Model
    schema: Schema
    conjugate: exponential.Conjugate
    exact: Callable


class Setup(NamedTuple):
    """The paper's clip norm, β of the scales, and start."""

    clip_norm: float
    beta: float
    start: tuple[float, ...]


def gamma(link):
    return Task(
        exponential.gamma_exponential(8.0, 2.0, link=link),
        Schema((Numeric("x", 0, 20),)),
        exponential.conjugate_gamma(8.0, 2.0, bound=2.0, link=link),
        lambda rng, x: exponential.exact_gamma(rng, 8, 2, x.sum(-1), x.shape[-1], DRAWS, link=link)[..., None],
    )


def beta():
    return Task(
        exponential.beta_bernoulli(10.0, 10.0),
        Schema((Categorical("x", ("no", "yes")),)),
        exponential.conjugate_beta(10.0, 10.0),
        lambda rng, x: exponential.exact_beta(rng, 10, 10, x.sum(-1), x.shape[-1], DRAWS)[..., None],
    )


def dirichlet(alpha=(5.0, 5.0, 5.0)):
    return Task(
        exponential.dirichlet_categorical(alpha),
        Schema((Categorical("x", ("a", "b", "c")),)),
        exponential.conjugate_dirichlet(alpha),
        lambda rng, x: exponential.exact_dirichlet(rng, alpha, (x[..., None] == np.arange(3)).sum(-2), DRAWS),
    )


TASKS = {"M1": gamma("softplus"), "M2": beta(), "M3": dirichlet()}
OUR_TASKS = TASKS | {"M1": gamma("log")}
SETUPS = {
    "M1": Setup(2.0, 100.0, (0.0, -4.0)),
    "M2": Setup(2.0, 120.0, (0.0, -4.0)),
    "M3": Setup(np.sqrt(2), 100.0, (0.0, 0.0, -6.0, -6.0)),
}
PAPER = {
    "noise-aware, NUTS": (0.023, 0.016, 0.020),
    "Bernstein-Sheldon, Laplace": (0.034, 0.018, 0.017),
    "last iterate": (0.232, 0.273, 0.355),
    "DPVIm": (0.038, 0.044, 0.251),
}
JUDGED = ("ours", "Bernstein-Sheldon, Laplace", "Bernstein-Sheldon, Gaussian")


def gradients(seed, task, tables, plan, chosen, keep="blocks"):
    """The release of DPVI on all tables."""
    return study.fit_tables(seed, task.schema, plan, elbo.query(task.model, plan, chosen), tables, keep=keep)


def sums(seed, task, tables, kind):
    """The release of the statistics' sums, asked for once."""
    plan = calibrate(Plan(ROWS, 1, 1.0, task.conjugate.bound, 1.0, noise_kind=kind), EPSILON, DELTA)
    return study.fit_tables(seed, task.schema, plan, statistics.of_family(task.conjugate, plan), tables)


def job(index):
    """All methods on one part of the data sets of one model."""
    name, seed = list(TASKS)[index // PARTS], SEED + index
    rng, task, setup = np.random.default_rng(seed), TASKS[name], SETUPS[name]
    truth, tables = study.simulate_tables(seed, task.model, task.schema, ROWS, REPLICAS)
    reference = task.exact(rng, tables["x"])
    sds = reference.std(1)
    plan, public = plan_for(task.schema, ROWS, setup.clip_norm, EPSILON), simulate_public(task.model, task.schema, ROWS)
    release = gradients(seed, task, tables, plan, settings(plan, setup.start, setup.beta), keep="cross")
    slow = SLOW if index % PARTS == 0 else 0
    aligned = gradients(seed + 1000, task, tables, plan, settings(plan, setup.start))
    drawn = {"non-private, exact": reference, **paper_readings(rng, release, aligned, public, slow)}
    for kind in ("laplace", "gaussian"):
        noisy = sums(seed + 2000, task, tables, kind)
        found = gibbs.from_release(jax.random.key(seed), task.conjugate, noisy, DRAWS)
        drawn[f"Bernstein-Sheldon, {kind.title()}"] = found
    return scores_of(rng, drawn, truth, sds) | our_way(rng, seed + 3000, name, tables, truth)


def our_way(rng, seed, name, tables, truth):
    """Whitened gradients and a dense curvature whose law is public; M1 in log θ."""
    task = OUR_TASKS[name]
    if name == "M1":
        truth = np.log(np.logaddexp(0, truth))
    public = simulate_public(task.model, task.schema, ROWS)
    plan = plan_for(task.schema, ROWS, whitened_clip(public, ROWS, UNCLIPPED), EPSILON)
    release = gradients(seed, task, tables, plan, whitened(task.model, public, plan, CLOSING), keep="cross")
    reference = task.exact(rng, tables["x"])
    return scored(rng, "ours", dense(rng, release, public.prior), truth, reference.std(1))


def line(parts, model, method, cells):
    scores = of_method(parts, method)
    found = scorecard.summary(scores, cells)
    paper = PAPER.get(method)
    return {
        "model": model,
        "method": method,
        "paper": None if paper is None else paper[list(TASKS).index(model)],
        **found,
        "verdict": scorecard.calibrated(found) and not found["failed"] if method in JUDGED else None,
    }


def main():
    began = time.time()
    facts = {"seed": SEED, "epsilon": EPSILON, "replicas": REPLICAS, "parts": PARTS, "version": 3}
    parts = run_parts("na-dpvi-table1", job, len(TASKS) * PARTS, facts)
    by_model = {name: parts[place * PARTS : (place + 1) * PARTS] for place, name in enumerate(TASKS)}
    cells = 2 * len(JUDGED) * len(TASKS)
    records = [line(mine, name, method, cells) for name, mine in by_model.items() for method in methods(mine)]
    for record in records:
        if record["method"] == "ours":
            theirs = next(r for r in records if (r["model"], r["method"]) == (record["model"], "noise-aware, exact"))
            narrow = record["width ÷ non-private"] <= theirs["width ÷ non-private"]
            record["verdict"] = bool(record["verdict"] and narrow)
    shown = ("noise-aware, exact", "ours", *PAPER)
    coverage_picture("na-dpvi-table1", {name: (mine, None) for name, mine in by_model.items()}, shown)
    m3 = {f"M3, z{place + 1} alone": (by_model["M3"], place) for place in range(2)}
    coverage_picture("na-dpvi-table1-m3", m3, shown)
    finish_table("na-dpvi-table1", records, SEED, len(parts), began)


if __name__ == "__main__":
    main()
