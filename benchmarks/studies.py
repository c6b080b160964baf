"""How long the fits of NA-DPVI's Table 1 take: 500 data sets of 5000 rows at once, 10⁴ steps each, for M1, M2 and M3.

With the paper's settings (ten shared draws, β-preconditioned) and with ours (one draw, aligned). Compiled before the
clock starts, by a run of the same shape with few steps. M2 and M3 are held as counts; M1's rows are not.

Criterion (written before the run): each takes less than 20 seconds.
"""

import time
from dataclasses import replace
from importlib import import_module

import numpy as np
from _nadpvi import ROWS, plan_for, settings, simulate_public, whitened, whitened_clip
from harness import finish

from discreet.evaluate import study
from discreet.methods import elbo

table1 = import_module("na-dpvi-table1")
FITS, WANTED = 500, 20.0


def cases():
    """(model, whose settings, task, plan, settings) of every study."""
    for name, setup in table1.SETUPS.items():
        task = table1.TASKS[name]
        plan = plan_for(task.schema, ROWS, setup.clip_norm, table1.EPSILON)
        yield name, "the paper's", task, plan, settings(plan, setup.start, setup.beta)
        task = table1.OUR_TASKS[name]
        public = simulate_public(task.model, task.schema, ROWS)
        plan = plan_for(task.schema, ROWS, whitened_clip(public, ROWS, table1.UNCLIPPED), table1.EPSILON)
        yield name, "ours", task, plan, whitened(task.model, public, plan, table1.CLOSING)


def seconds(task, plan, chosen, tables):
    """Time of the fits of all tables."""
    query = elbo.query(task.model, plan, chosen)
    began = time.perf_counter()
    release = study.fit_tables(1, task.schema, plan, query, tables)
    assert np.isfinite(release.last).all()
    return time.perf_counter() - began


def main():
    """Time every study."""
    records = []
    for name, whose, task, plan, chosen in cases():
        _, tables = study.simulate_tables(7, task.model, task.schema, ROWS, FITS)
        seconds(task, replace(plan, steps=plan.steps // 50), chosen, tables)
        spent = seconds(task, plan, chosen, tables)
        fact = {"model": name, "settings": whose, "seconds": spent, "fits × steps a second": FITS * plan.steps / spent}
        records.append(fact | {"verdict": spent < WANTED})
        print(records[-1], flush=True)
    finish("studies", records, {"tables": 7, "noise": 1}, columns=list(records[0]), kind="bench")


if __name__ == "__main__":
    main()
