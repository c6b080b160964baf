"""Networks of DP-SEP's size: a pass of SEP over protein, and what an epoch of DP-SEP costs in batches and row by row.

The first split of protein (41 157 rows, 100 hidden units, 1101 weights). Every run is made twice with different numbers
of steps or passes; the difference is free of compilation. Row by row is 4000 steps of one row each, scaled to an epoch.
Memory is the largest the process had, the table and everything compiled included.

Criteria (written before the run): a pass of SEP in under 10 s; an epoch in batches at least 5 times as fast as one row
at a time; less than half of what all rows' answers would need in memory at once is added by the batched run.
"""

import resource
import time

import jax
import numpy as np
from _networks import BATCH, private_units, split_of
from harness import finish

from discreet.evaluate import ep
from discreet.fitting import run, simulated
from discreet.methods import collapsed, pbp, sep
from discreet.plan import Plan, default_batch_limit

STEPS_ALONE, RATE, TIMES = 4000, 0.2, 3


def seconds(function, short, long):
    """Seconds for each of what comes between, the median of three."""

    def once(count):
        began = time.perf_counter()
        function(count)
        return time.perf_counter() - began

    once(short)
    return float(np.median([once(long) - once(short) for _ in range(TIMES)])) / (long - short)


def memory():
    """The most that this process had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    """Time passes and epochs, and judge them."""
    split = split_of("protein", 0)
    made = split.layers(private_units(split))
    site, num_rows, rows = pbp.sites(made), split.num_rows, split.rows

    def asked(query_of, **of_plan):
        def steps(count):
            plan = Plan(num_rows, count, clip_norm=1.0, noise_multiplier=10.0, **of_plan)
            run(simulated(1), plan, query_of(plan), rows)

        return steps

    def of_sites(plan):
        return sep.query(site, plan, sep.Settings(0.1 * num_rows / plan.sampling_prob, least=20.0, refine=5))

    def of_draws(plan):
        return collapsed.query(made, plan, collapsed.Settings(1e-3, 50.0, draws=20))

    def batches(rate):
        return {"sampling_prob": rate, "batch_limit": default_batch_limit(num_rows, rate)}

    settings, share = sep.Settings(num_rows, least=1e-6), BATCH / num_rows
    with jax.enable_x64(True):
        a_pass = seconds(lambda count: ep.sep(site, split.train, settings, passes=count), 1, 3)
        before = memory()
        in_batches = seconds(asked(of_sites, **batches(RATE)), 2, 6) / RATE
        added = memory() - before
        alone = seconds(asked(of_sites, sampling_prob=1 / num_rows, sampling="one row"), 1000, 1000 + STEPS_ALONE)
        by_draws = seconds(asked(of_draws, **batches(share)), 20, 120) / share
    alone, whole = alone * num_rows, num_rows * site.shape.size * 8 / 2**20
    records = [
        {"what": "SEP, a pass", "seconds": a_pass, "verdict": a_pass < 10},
        {"what": "DP-SEP in batches of a fifth, an epoch", "seconds": in_batches, "verdict": None},
        {"what": "DP-SEP one row at a time, an epoch", "seconds": alone, "verdict": None},
        {"what": "the one ÷ the other", "ratio": alone / in_batches, "verdict": alone / in_batches >= 5},
        {"what": f"DP-VI in batches of {BATCH}, 20 draws, an epoch", "seconds": by_draws, "verdict": None},
        {
            "what": f"memory that batches of a fifth add; every row's answer at once would be {whole:.0f} MB",
            "MB": added,
            "verdict": added < whole / 2,
        },
    ]
    finish(
        "networks",
        records,
        {"noise": 1},
        columns=["what", "seconds", "ratio", "MB", "verdict"],
        notes=[
            f"{num_rows} rows, {made.weights} weights, {site.shape.size} numbers in an answer; one thread, float64."
        ],
        kind="bench",
    )


if __name__ == "__main__":
    main()
