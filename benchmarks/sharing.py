"""How long data sharing takes: DPVIm's mixture on a table of the census's shape, and a hundred synthetic tables.

The fit has 320 754 rows (made up, uniform) of the census's 13 columns, 16 components, κ = .01, the aligned variant with
one draw and Adam, as DPVIm has it: 1000 epochs are 10⁵ steps. FULL=1 runs all of them; else 2000 steps are timed, and
multiplied. Vanilla gradients, which are summed row by row, stand beside it (20 times fewer steps). The tables have
58 261 rows of seven categorical columns and a count, written as CSV. Compiled before the clock starts.

Criteria (written before the run): the aligned fit takes less than 20 minutes, the tables less than 60 seconds.
"""

import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from harness import FULL, finish

from discreet import datasets, fitting, synth
from discreet.accounting import guarantee
from discreet.evaluate import study
from discreet.families import glm
from discreet.families.components import Priors
from discreet.families.mixture import mixture
from discreet.methods import elbo
from discreet.plan import Plan, default_batch_limit
from discreet.posterior.types import from_draws
from discreet.schema import Categorical, Numeric, Schema

ROWS, EPOCHS, RATE, COMPONENTS = 320_754, 1000, 0.01, 16
TIMED = round(EPOCHS / RATE) if FULL else 2000
TABLES, TABLE_ROWS, LEVELS = 100, 58_261, (2, 3, 5, 4, 6, 2, 5)
PRIORS = Priors(outcome=glm.Priors(1.0, 1.0, intercept=0.0))
MOST_MINUTES, MOST_SECONDS = 20.0, 60.0


def fit_minutes(variant, steps):
    """Minutes that a fit of 1000 epochs takes, from so many steps of it; parameters; whether sums are products."""
    schema = datasets.CENSUS1990
    model = mixture(schema, COMPONENTS, "poor", "poisson", coding="every level", priors=PRIORS)
    rows = study.stored(schema, schema.sample(np.random.default_rng(0), ROWS))
    plan = Plan(ROWS, steps, RATE, 2.0, 1.0, default_batch_limit(ROWS, RATE))
    start = elbo.start_at(model, 0.1, np.random.default_rng(1).uniform(-1, 1, model.dim))
    query = elbo.query(model, plan, elbo.Settings(start, 1e-3, variant, optimiser="adam", draws=1))
    fitting.run(fitting.simulated(1), replace(plan, steps=max(steps // 10, 50)), query, rows)
    began = time.perf_counter()
    release = fitting.run(fitting.simulated(2), plan, query, rows)
    spent = time.perf_counter() - began
    assert np.isfinite(release.last).all()
    return spent / steps * EPOCHS / RATE / 60, model.dim, query.products is not None


def table_seconds():
    """Seconds that the synthetic tables take, from draws of the prior to files; and megabytes of these."""
    columns = (Categorical(f"x{place}", tuple(map(str, range(size)))) for place, size in enumerate(LEVELS))
    schema = Schema((*columns, Numeric("y", 0, 20, integer=True)))
    model = mixture(schema, COMPONENTS, "y", "poisson", priors=PRIORS)
    z, _ = study.simulate_tables(3, model, schema, 1, TABLES)
    promise = guarantee(Plan(TABLE_ROWS, 1, 1.0, 1.0, 4.0), 1e-5, "simulated")
    posterior = from_draws(z, model, promise, info={"method": "the prior"}, schema=schema)
    with tempfile.TemporaryDirectory() as folder:
        synth.save(Path(folder) / "first", posterior, TABLE_ROWS, 1, seed=1)
        began = time.perf_counter()
        synth.save(Path(folder) / "all", posterior, TABLE_ROWS, TABLES, seed=1)
        spent = time.perf_counter() - began
        return spent, sum(path.stat().st_size for path in (Path(folder) / "all").iterdir()) / 1e6


def main():
    """Time both."""
    records = []
    for variant, steps in (("aligned", TIMED), ("vanilla", max(TIMED // 20, 50))):
        minutes, dim, products = fit_minutes(variant, steps)
        what = f"1000 epochs, {dim} parameters, {variant}, {'by products' if products else 'row by row'}"
        wanted = MOST_MINUTES if variant == "aligned" else None
        verdict = None if wanted is None else minutes < wanted
        records.append({"what": what, "timed": f"{steps} steps", "taken": minutes, "unit": "minutes", "wanted": wanted})
        records[-1]["verdict"] = verdict
        print(records[-1], flush=True)
    seconds, size = table_seconds()
    what = f"{TABLES} tables of {TABLE_ROWS} rows, {size:.0f} MB of CSV"
    records.append({"what": what, "timed": "all", "taken": seconds, "unit": "seconds", "wanted": MOST_SECONDS})
    records[-1]["verdict"] = seconds < MOST_SECONDS
    finish("sharing", records, {"rows": 0, "start": 1}, columns=list(records[0]), kind="bench")


if __name__ == "__main__":
    main()
