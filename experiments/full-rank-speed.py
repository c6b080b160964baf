"""Steps per second of full rank against mean field, d = 200, in one run: the ratio is the result, not the time.

Criterion (written before the run): aligned full rank trains at no less than a third of aligned mean field's speed.
Vanilla full rank is shown beside it: there every row answers with 20 300 numbers, so it cannot.
"""

import time

import numpy as np
import pandas
from _dpvim import linear_regression, train
from harness import finish

from discreet import fitting
from discreet.methods import elbo
from discreet.methods.gaussian import Family
from discreet.plan import Plan, default_batch_limit
from discreet.schema import Numeric, Schema

DIM, NUM_ROWS, REPEATS = 200, 10_000, 3
STEPS = {"aligned": 6000, "vanilla": 300}

names = [f"x{i}" for i in range(DIM - 1)]
model = linear_regression(names)
schema = Schema((*(Numeric(name, -10, 10) for name in names), Numeric("y", -200, 200)))
table = np.random.default_rng(0).standard_normal((NUM_ROWS, DIM))
rows = fitting.encode(pandas.DataFrame(table, columns=schema.names), schema)


def milliseconds(variant, family):
    """A step's time after the first fifth of the run, which has the compilation."""
    plan = Plan(NUM_ROWS, STEPS[variant], 0.01, 2.0, 5.0, default_batch_limit(NUM_ROWS, 0.01))
    start = elbo.start_at(model, 0.1, np.zeros(DIM), family)
    times = []

    def watch(blocks):
        for block in blocks:
            times.append(time.perf_counter())
            yield block

    train(model, rows, variant, plan, 1, start, family=family, progress=watch)
    skipped = len(times) // 5
    return 1000 * (times[-1] - times[skipped]) / (plan.steps * (len(times) - 1 - skipped) / len(times))


records = []
for variant in STEPS:
    pairs = [[milliseconds(variant, Family(name)) for name in ("mean-field", "full-rank")] for _ in range(REPEATS)]
    mean_field, full_rank = np.median(pairs, axis=0)
    speed = float(np.median([first / second for first, second in pairs]))
    records.append(
        {
            "variant": variant,
            "mean field, ms a step": float(mean_field),
            "full rank, ms a step": float(full_rank),
            "speed of full rank ÷ mean field": speed,
            "verdict": bool(speed >= 1 / 3) if variant == "aligned" else None,
        }
    )
finish(
    "full-rank-speed",
    records,
    {"table": 0, "runs": 1},
    columns=list(records[0]),
    notes=[
        f"d = {DIM} (φ: {2 * DIM} and {Family('full-rank').size(DIM)} numbers), N = {NUM_ROWS}, κ = .01, Adam, K = 1"
    ],
)
