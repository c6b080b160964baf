"""Which reading of a DPVI release is honest about a mixture of whole rows?

Tables like those of `sharing-coverage` (5000 rows, four columns of levels and a rare count; a mixture of 1, 3 and 12
components, with a truth from the prior for each) are fitted by DPVI at the planner's choices, ε = 1: one release for
each data set. Twelve components have 103 parameters, so that `fit` has nothing but DPVI for them; one and three have 15
and 31, where `fit` would take one step, and DPVI is asked for by name. Each release is read in every way there is. What
is looked at is what does not depend on labels: coefficients of the Poisson regression, shares of levels, and of pairs
of levels, taken straight from the posterior's draws, so that no synthetic table stands between. The count's bound is
120 where `sharing-coverage` has 30, which no row comes near: rows are then sampled, not cells, and a step is twice as
fast. "refused" is the share of releases whose iterates the iterate average finds not converged; they are averaged
over their last 80 % all the same. K = 100 data sets (FULL=1; quick: 10).

Criterion (written before the run): the reading that `fit` takes by default at this size (dense curvature up to 100
parameters, diagonal beyond) holds 90 % of the truths within three standard errors over data sets, for coefficients,
shares and pairs. The other readings are there to compare.
"""

import time
from functools import cache, partial

import jax
import numpy as np
from _nadpvi import DELTA, finish_table, iterate_average
from _sharing import KINDS, in_endless_rows, model_on, survey
from harness import epsilons, run_parts, seeds

from discreet import planner
from discreet.evaluate import study
from discreet.fitting import fit, simulated
from discreet.posterior import averaging
from discreet.posterior.reading import Options, default_solver, read

SEED, ROWS, IN_PART, PROB, DRAWS = 1700, 5000, 2, 0.9, 2000
DATA_SETS = max(len(seeds(100, 10)), IN_PART)
EPSILONS = epsilons(1.0)
COMPONENTS = (12, 1, 3)
SCHEMA = survey(most=120)
FULL, EXACT, AVERAGE, LAST = "noise-aware, full", "noise-aware, exact", "iterate average", "last iterate"
READINGS = (FULL, EXACT, AVERAGE, LAST)


@cache
def model_of(components):
    return model_on(SCHEMA, components)


@cache
def planned(components, epsilon):
    return planner.choose(model_of(components), SCHEMA, ROWS, epsilon, DELTA)


@cache
def prior_widths(components):
    model = model_of(components)
    with jax.enable_x64(True):
        z = jax.vmap(model.sample_prior)(jax.random.split(jax.random.key(SEED), DRAWS))
    return {kind: np.ptp(ends, axis=0) for kind, ends in intervals(model, np.asarray(z)).items()}


def intervals(model, z):
    """Both ends of the intervals of everything that is looked at, by kind, from draws of z."""
    with jax.enable_x64(True):
        drawn = in_endless_rows(jax.vmap(model.constrain)(z))
    return {kind: np.quantile(values, [(1 - PROB) / 2, (1 + PROB) / 2], axis=0) for kind, values in drawn.items()}


def readings(rng, found):
    """{reading: draws of z} of one release; the first is the one that `fit` took."""
    release, model = found.release, found.model
    default = default_solver(release, model)
    drawn = {f"noise-aware, {default}": np.concatenate(found.z)}
    for how, options, name in (("noise-aware", Options("exact"), EXACT), ("last iterate", Options(), LAST)):
        if name not in drawn:
            again = read(release, model, found.guarantee, how, options=options, draws=DRAWS)
            drawn[name] = np.concatenate(again.z)
    return {**drawn, AVERAGE: iterate_average(rng, release, noise_aware=True)}


def job(components, epsilon, part):
    seed, model, kept = SEED + part, model_of(components), {}
    truth, tables = study.simulate_tables(seed, model, SCHEMA, ROWS, IN_PART)
    for place in range(IN_PART):
        rows = study.stored(SCHEMA, study.one_table(SCHEMA, tables, place))
        choice, stream = planned(components, epsilon), simulated(1000 * seed + place)
        found = fit(model, rows, epsilon=np.inf, delta=DELTA, choice=choice, noise=stream, draws=DRAWS)
        with jax.enable_x64(True):
            wanted = in_endless_rows(model.constrain(truth[place]))
        for name, z in readings(np.random.default_rng(seed), found).items():
            for kind, (low, high) in intervals(model, z).items():
                held = (low < wanted[kind]) & (wanted[kind] < high)
                kept.setdefault(f"{name}/{kind}/held", []).append(held.mean())
                kept.setdefault(f"{name}/{kind}/width", []).append((high - low).mean())
        kept.setdefault("refused", []).append(not averaging.average(found.release).converged.all())
    return {name: np.array(values) for name, values in kept.items()}


def record(components, epsilon, name, kind, found, default):
    held, width = found[f"{name}/{kind}/held"], found[f"{name}/{kind}/width"].mean()
    error = held.std(ddof=1) / np.sqrt(len(held))
    return {
        "components": components,
        "parameters": model_of(components).dim,
        "ε": epsilon,
        "of": kind,
        "reading": name,
        "by default": "yes" if name == default else "",
        "in 90 %": float(held.mean()),
        "± s.e.": float(error),
        "width ÷ default": float(width / found[f"{default}/{kind}/width"].mean()),
        "width ÷ prior": float(width / prior_widths(components)[kind].mean()),
        "refused": float(found["refused"].mean()) if name == AVERAGE else None,
        "data sets": len(held),
        "verdict": bool(abs(held.mean() - PROB) <= 3 * error) if name == default else None,
    }


def main():
    began, records = time.time(), []
    for components in COMPONENTS:
        for epsilon in EPSILONS:
            facts = {"seed": SEED, "components": components, "epsilon": epsilon, "version": 1}
            label = f"sharing-solvers-{components}-{epsilon:g}"
            found = study.joined(run_parts(label, partial(job, components, epsilon), DATA_SETS // IN_PART, facts))
            read_as = [name for name in READINGS if f"{name}/{KINDS[0]}/held" in found]
            for kind in KINDS:
                records += [record(components, epsilon, name, kind, found, read_as[0]) for name in read_as]
    records.sort(key=lambda one: one["components"])
    finish_table("sharing-solvers", records, SEED, DATA_SETS // IN_PART, began)


if __name__ == "__main__":
    main()
