"""Downstream intervals from synthetic tables: do they hold the truth, pooled, and taken for real?

Tables of 5000 rows with four categorical columns and a rare count are drawn from a mixture of independent categoricals
with a Poisson regression (DPVIm's generative model; one component, and three), each with a truth from the prior.
`fit` gets the model, the schema and ε = 1, and nothing else. Of its posterior 50 tables of 5000 rows are drawn; on each
an analyst runs a Poisson regression (maximum likelihood) and takes shares of levels, and of pairs of levels. Results
are pooled by `synth.rubin`, or one table is taken for real. K = 200 data sets (FULL=1; quick: 20).

Criteria (written before the run): 90 % intervals, pooled, hold 90 % of the truths within three standard errors over
tables, for coefficients, shares and pairs, with one component and with three. One table taken for real is there to
compare, and no criterion is about it.
"""

import time
from functools import cache, partial

import jax
import numpy as np
from _nadpvi import DELTA, finish_table
from _sharing import KINDS, in_endless_rows, indicators, model_on, regression, shares, survey
from harness import epsilons, run_parts, seeds
from scipy import stats

from discreet import planner, synth
from discreet.evaluate import study
from discreet.fitting import fit, simulated

SEED, ROWS, TABLES, IN_PART, PROB = 1600, 5000, 50, 10, 0.9
DATA_SETS = max(len(seeds(200, 20)), IN_PART)
EPSILONS = epsilons(1.0)
COMPONENTS = (1, 3)
SCHEMA = survey()


@cache
def model_of(components):
    return model_on(SCHEMA, components)


@cache
def planned(components, epsilon):
    return planner.choose_best(model_of(components), SCHEMA, ROWS, epsilon, DELTA)


def analysed(table):
    """What an analyst gets from a table: estimates and variances, by kind."""
    columns = SCHEMA.encode(table)
    found = {"coefficients": regression(indicators(columns), columns["events"])}
    for kind, share in shares(columns).items():
        found[kind] = share, share * (1 - share) / len(columns["events"])
    return found


def job(components, epsilon, part):
    seed, model, kept = SEED + part, model_of(components), {}
    truth, tables = study.simulate_tables(seed, model, SCHEMA, ROWS, IN_PART)
    for place in range(IN_PART):
        rows = study.stored(SCHEMA, study.one_table(SCHEMA, tables, place))
        stream = simulated(1000 * seed + place)
        found = fit(
            model, rows, epsilon=np.inf, delta=DELTA, choice=planned(components, epsilon), noise=stream, draws=1000
        )
        each = [analysed(table) for table in synth.synthesize(found, ROWS, TABLES, seed=place)]
        with jax.enable_x64(True):
            wanted = in_endless_rows(model.constrain(truth[place]))
        for kind in KINDS:
            estimates, variances = (np.stack([one[kind][side] for one in each]) for side in (0, 1))
            pooled = synth.rubin(estimates, variances, n=ROWS, num_rows=ROWS, prob=PROB)
            half = stats.norm.ppf((1 + PROB) / 2) * np.sqrt(variances[0])
            kept.setdefault(f"{kind}/pooled", []).append(
                ((pooled.low < wanted[kind]) & (wanted[kind] < pooled.high)).mean()
            )
            kept.setdefault(f"{kind}/one", []).append((np.abs(estimates[0] - wanted[kind]) < half).mean())
            kept.setdefault(f"{kind}/width", []).append((pooled.std_error / np.sqrt(variances.mean(0))).mean())
            kept.setdefault(f"{kind}/makeshift", []).append(pooled.adjusted.mean())
    return {name: np.array(values) for name, values in kept.items()}


def main():
    began, records = time.time(), []
    for components in COMPONENTS:
        for epsilon in EPSILONS:
            facts = {"seed": SEED, "components": components, "epsilon": epsilon, "version": 1}
            label = f"sharing-coverage-{components}-{epsilon:g}"
            parts = run_parts(label, partial(job, components, epsilon), DATA_SETS // IN_PART, facts)
            found = study.joined(parts)
            for kind in KINDS:
                held = found[f"{kind}/pooled"]
                error = held.std(ddof=1) / np.sqrt(len(held))
                records.append(
                    {
                        "components": components,
                        "ε": epsilon,
                        "of": kind,
                        "method": planned(components, epsilon).reasons[0].split(":")[0].removeprefix("method "),
                        "pooled in 90 %": float(held.mean()),
                        "± s.e.": float(error),
                        "one table in 90 %": float(found[f"{kind}/one"].mean()),
                        "pooled width ÷ of one table": float(found[f"{kind}/width"].mean()),
                        "makeshift variances": float(found[f"{kind}/makeshift"].mean()),
                        "data sets": len(held),
                        "verdict": bool(abs(held.mean() - PROB) <= 3 * error),
                    }
                )
    finish_table("sharing-coverage", records, SEED, DATA_SETS // IN_PART, began)


if __name__ == "__main__":
    main()
