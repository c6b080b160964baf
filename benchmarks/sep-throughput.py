"""What a step of DP-SEP costs beside a step of DPVI: logistic regression of 10⁵ rows on 20 columns, batches of 1000.

Both run through the same loop on the same rows with the same plan, one after the other. Each is run twice with
different numbers of steps; the difference is free of compilation.

Criterion (written before the run): a step of DP-SEP takes at most three times as long as one of DPVI.
"""

import time
from dataclasses import replace

import numpy as np
from harness import finish

from discreet.families.glm import glm
from discreet.fitting import encode, run, simulated
from discreet.methods import elbo, sep
from discreet.methods.sites import linear
from discreet.plan import Plan, default_batch_limit
from discreet.schema import Categorical, Numeric, Schema

ROWS, COLUMNS, BATCH, STEPS = 100_000, 20, 1000, 400
NAMES = tuple(f"x{place}" for place in range(COLUMNS))
SCHEMA = Schema((*(Numeric(name, -1, 1) for name in NAMES), Categorical("y", ("no", "yes"))))
MODEL = glm("logistic", "y", NAMES, SCHEMA)


def step_time(make, rows, plan):
    """Seconds a step: the difference of a long and a short run, the median of three."""

    def seconds(steps):
        now = replace(plan, steps=steps)
        query = make(now)
        began = time.perf_counter()
        run(simulated(1), now, query, rows)
        return time.perf_counter() - began

    seconds(STEPS // 4)
    return float(np.median([(seconds(STEPS) - seconds(STEPS // 4)) / (STEPS - STEPS // 4) for _ in range(3)]))


def main():
    """Time both, and judge the ratio."""
    rng = np.random.default_rng(1)
    table = {name: rng.uniform(-1, 1, ROWS) for name in NAMES} | {"y": rng.choice(["no", "yes"], ROWS)}
    rows, rate = encode(table, SCHEMA), BATCH / ROWS
    plan = Plan(ROWS, STEPS, rate, 2.0, 5.0, default_batch_limit(ROWS, rate))
    settings = elbo.Settings(elbo.start_at(MODEL, 0.01), 1e-5)
    site = linear(MODEL)
    times = {
        "DPVI, ten draws": step_time(lambda now: elbo.query(MODEL, now, settings), rows, plan),
        "DP-SEP": step_time(lambda now: sep.query(site, now, sep.Settings(0.05 * ROWS / rate)), rows, plan),
    }
    base = times["DPVI, ten draws"]
    records = [
        {
            "method": method,
            "numbers a row answers with": 2 * MODEL.dim if method != "DP-SEP" else site.shape.size,
            "ms a step": 1e3 * spent,
            "rows a second": BATCH / spent,
            "÷ DPVI": spent / base,
            "verdict": spent / base <= 3 if method == "DP-SEP" else None,
        }
        for method, spent in times.items()
    ]
    finish("sep-throughput", records, {"noise": 1}, columns=list(records[0]), kind="bench")


if __name__ == "__main__":
    main()
