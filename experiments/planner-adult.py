"""The default fit on Adult: are its predicted probabilities honest, and do its intervals hold known coefficients?

`fit` knows the model (logistic regression, 57 coefficients, w ~ N(0, I)), the bounds and levels of 11 covariates, and
the number of rows; it buys the law of the covariates. Test rows are predicted, as in NA-DPVI's Table 3; then outcomes
of the training rows are simulated at coefficients drawn from the prior, again until 10 to 90 % of the rows have a one,
as in `adult-coefficients`. ε ∈ {.1, .3, 1}, 10 repeats of the first and 5 of the second (FULL=1; SEEDS=n asks for
others; quick: 1 of each at ε = 1).

Criteria (written before the run), at each ε: mean calibration RMSE at most the paper's (.061, .026, .024), and a log
score better than that of a constant base rate; 90 % intervals hold at least 85 % of the simulated coefficients.
"""

import time
from functools import cache, partial
from importlib import import_module

import numpy as np
from _adult import OUTCOME, SCHEMA, encoded, features, predicted, regression
from _nadpvi import DELTA, finish_table
from harness import FULL, epsilons, run_parts, seeds

from discreet import planner
from discreet.evaluate import calibration, reference, study
from discreet.fitting import fit, simulated

SEED, BINS = 1400, 10
PAPER = {0.1: 0.061, 0.3: 0.026, 1.0: 0.024}
EPSILONS = epsilons(0.1, 0.3, 1.0) if FULL else epsilons(1.0)
REPEATS = len(seeds(10, 1))
TRUTHS = -(-REPEATS // 2)
coefficients = import_module("adult-coefficients")


@cache
def planned(epsilon):
    return planner.choose_best(regression(), SCHEMA, len(encoded()[OUTCOME]), epsilon, DELTA)


def fitted(seed, columns, epsilon):
    began = time.perf_counter()
    rows, stream = study.stored(SCHEMA, columns), simulated(seed)
    found = fit(regression(), rows, epsilon=np.inf, delta=DELTA, choice=planned(epsilon), noise=stream)
    return found.z[0], time.perf_counter() - began


@cache
def tested():
    """What test rows are predicted from, and what became of them."""
    rows = encoded("test")
    return features(regression(), rows), rows[OUTCOME]


def job(epsilon, part):
    rows, outcome = tested()
    z, seconds = fitted(SEED + part, encoded(), epsilon)
    probability = predicted(rows, z)
    sd = np.sqrt(np.diag(reference.non_private(regression(), encoded()).covariance))
    kept = {
        "rmse": calibration.rmse(probability, outcome, BINS),
        "log score": calibration.log_score(probability, outcome),
        "accuracy": calibration.accuracy(probability, outcome),
        "width": (z.std(0) / sd).mean(),
        "seconds": seconds,
        "held": np.nan,
        "known width": np.nan,
    }
    if part < TRUTHS:
        truth, columns = coefficients.simulated(SEED + part, regression())
        z, _ = fitted(SEED + 100 + part, columns, epsilon)
        low, high = np.quantile(z, [0.05, 0.95], axis=0)
        known = np.sqrt(np.diag(reference.non_private(regression(), columns).covariance))
        kept |= {"held": ((low <= truth) & (truth <= high)).mean(), "known width": (z.std(0) / known).mean()}
    return {name: np.array([value]) for name, value in kept.items()}


def main():
    began, records = time.time(), []
    outcome = tested()[1]
    base = calibration.log_score(np.full(len(outcome), encoded()[OUTCOME].mean()), outcome)
    for epsilon in EPSILONS:
        facts = {"seed": SEED, "epsilon": epsilon, "truths": TRUTHS, "version": 1}
        parts = run_parts(f"planner-adult-{epsilon:g}", partial(job, epsilon), REPEATS, facts)
        found = study.joined(parts)
        error = found["rmse"].std(ddof=1) / np.sqrt(REPEATS) if REPEATS > 1 else None
        records.append(
            {
                "ε": epsilon,
                "calibration RMSE": float(found["rmse"].mean()),
                "± s.e.": None if error is None else float(error),
                "paper": PAPER.get(epsilon),
                "log score": float(found["log score"].mean()),
                "of the base rate": float(base),
                "accuracy": float(found["accuracy"].mean()),
                "width ÷ non-private": float(found["width"].mean()),
                "known coefficients in 90 %": float(np.nanmean(found["held"])),
                "their width": float(np.nanmean(found["known width"])),
                "seconds": float(found["seconds"].mean()),
                "verdict": bool(
                    found["rmse"].mean() <= PAPER.get(epsilon, np.inf)
                    and found["log score"].mean() > base
                    and np.nanmean(found["held"]) >= 0.85
                ),
            }
        )
    finish_table("planner-adult", records, SEED, REPEATS, began)


if __name__ == "__main__":
    main()
