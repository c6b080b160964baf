"""The default fit on five public tables that nothing here was ever tuned on, at ε = 1, δ = 10⁻⁵.

Of statsmodels and scikit-learn: diabetes (442 rows, Gaussian), breast cancer (569, logistic), the 1996 election study
(944, logistic), digits (1797, logistic) and the RAND health insurance experiment (20 190, Poisson). None of 200 000
rows comes with these packages. Each table is cut in two: one half is the private table; the other is what a public
sample would be. Two fits of each: the default, which knows bounds alone, and buys the law of the covariates where the
budget suffices (else it is DPVI); and the same with `sample=`, the other half. Refits: tables simulated at draws of
each posterior, with the covariates of the private half: the truth is known.

What is reported: how many of the non-private estimates lie in the 90 % intervals of the real table, their width ÷
non-private, and of 10 refits (FULL=1; quick: 2) the share of truths in 90 % intervals and their width. A criterion for
each: refits hold 90 % less three standard errors over tables.
"""

import time
from functools import partial

import jax
import numpy as np
from _nadpvi import DELTA, finish_table
from harness import run_parts, seeds
from sklearn import datasets as sklearn_data

from discreet import datasets
from discreet.evaluate import study
from discreet.evaluate.reference import non_private
from discreet.families.glm import glm
from discreet.fitting import fit, simulated
from discreet.schema import Categorical, Numeric, Schema

SEED, EPSILON, REFITS = 970, 1.0, len(seeds(10, 2))


PIXELS = ((2, 2), (2, 5), (4, 2), (4, 4), (5, 5))


def digits():
    """Is a handwritten digit above four? 1797 pictures from scikit-learn, five of their pixels."""
    found = sklearn_data.load_digits()
    pixels = {f"pixel {row} {column}": found.data[:, 8 * row + column] for row, column in PIXELS}
    schema = (*(Numeric(name, 0, 16) for name in pixels), Categorical("above four", (0, 1)))
    return {**pixels, "above four": (found.target > 4).astype(int)}, Schema(schema)


TABLES = {
    "diabetes": (datasets.diabetes, "gaussian", "target"),
    "breast_cancer": (datasets.breast_cancer, "logistic", "target"),
    "anes96": (datasets.anes96, "logistic", "vote"),
    "digits": (digits, "logistic", "above four"),
    "randhie": (datasets.randhie, "poisson", "mdvis"),
}
KINDS = ("default", "with a public sample")


def job(which, part):
    """One fit of the real table and `REFITS` of tables simulated from its posterior."""
    told = KINDS[part] != "default"
    load, family, outcome = TABLES[which]
    table, schema = load()
    covariates = [name for name in schema.names if name != outcome]
    model = glm(family, outcome, covariates, schema)
    mine, others = np.array_split(np.random.default_rng(SEED).permutation(len(table[outcome])), 2)
    columns = {name: np.asarray(table[name]) for name in schema.names}
    sample = {name: columns[name][others] for name in covariates} if told else None
    own = schema.encode({name: column[mine] for name, column in columns.items()})

    def fitted(columns, seed):
        rows = study.stored(schema, columns)
        return fit(model, rows, epsilon=EPSILON, delta=DELTA, sample=sample, noise=simulated(seed))

    used = []

    def compared(columns, truth, seed):
        try:
            found = fitted(columns, seed)
            used.append(found.info["method"].startswith("one step"))
            z = found.z.reshape(-1, model.dim)
        except ValueError:  # counted as failed
            return np.full(model.dim, np.nan), np.full(model.dim, np.nan), None
        exact = non_private(model, columns)
        low, high = np.quantile(z, [0.05, 0.95], axis=0)
        aim = exact.mean if truth is None else truth
        return ((low <= aim) & (aim <= high)).astype(float), z.std(0) / np.sqrt(np.diag(exact.covariance)), z

    held, width, z = compared(own, None, SEED)
    simulate, again = model.simulate, []
    for number in range(REFITS if z is not None else 0):
        truth = z[number * len(z) // REFITS]
        with jax.enable_x64(True):
            keys = jax.random.split(jax.random.key(number), len(mine))
            made = jax.vmap(lambda key, row, truth=truth: simulate(key, truth, row))(keys, own)
        again.append(compared({**own, **{name: np.asarray(made[name]) for name in made}}, truth, SEED + 1 + number)[:2])
    refits = np.array(again) if again else np.full((1, 2, model.dim), np.nan)
    return {"held": held, "width": width, "refits": refits, "one step": np.array(used, float)}


def main():
    began, records = time.time(), []
    for which, (load, _, outcome) in TABLES.items():
        parts = run_parts(
            f"planner-public-{which}",
            partial(job, which),
            len(KINDS),
            {"seed": SEED, "table": which, "refits": REFITS, "version": 2},
        )
        for kind, found in zip(KINDS, parts, strict=True):
            refits = found["refits"]
            each = np.nan_to_num(refits[:, 0]).mean(1)
            error = each.std(ddof=1) / np.sqrt(len(each)) if len(each) > 1 else np.nan
            records.append(
                {
                    "table": which,
                    "private rows": -(-len(load()[0][outcome]) // 2),
                    "fit": kind,
                    "method": "one step" if found["one step"].mean() > 0.5 else "dpvi",
                    "held of the real one": f"{np.nansum(found['held']):.0f} of {len(found['held'])}",
                    "width ÷ non-private": float(np.nanmean(found["width"])),
                    "refits in 90 %": float(each.mean()),
                    "± s.e.": float(error),
                    "refits' width": float(np.nanmean(refits[:, 1])),
                    "failed": int(np.isnan(refits[:, 0]).any(1).sum() + np.isnan(found["held"]).any()),
                    "verdict": bool(each.mean() >= 0.9 - 3 * error),
                }
            )
    finish_table("planner-public", records, SEED, len(records), began)


if __name__ == "__main__":
    main()
