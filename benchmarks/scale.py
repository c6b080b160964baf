"""What a step and its memory cost as tables, features and runs grow.

N: rows on disk (20 whole-number covariates and an outcome), batches of 3000 on average, ten draws. d: rows in memory,
batches of 1000. T: the exact posterior read from a release of so many steps. Each case is a process of its own, so that
its anonymous memory (the most of RssAnon: page cache does not count) is its own; times are medians of `REPEATS`
differences of a long and a short run. The table of 10⁸ rows takes minutes to write and is kept in out/scale.

Criteria (written before the run): the time of a step grows with N by an exponent of at most .05 from 10⁵ rows on; 10⁸
rows take less than 4 GB; reading a release by an exponent of at most .05 with T. FULL=1 goes to 10⁸ rows, else to 10⁷.
"""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
from harness import FULL, RESULTS, finish, picture

COLUMNS, BATCH, REPEATS, SHORT, LONG = 20, 3000, 5, 50, 250
FOLDER = RESULTS.parent / "out" / "scale"
ROWS = [10**power for power in range(4, 9 if FULL else 8)]
FEATURES = [10, 30, 100, 300, 1000, 2000]
STEPS = [10**3, 10**4, 10**5]


def schema_of(columns, whole):
    """So many covariates between 0 and 100, and an outcome."""
    from discreet.schema import Categorical, Numeric, Schema

    covariates = (Numeric(f"x{place}", 0, 100, integer=whole) for place in range(columns))
    return Schema((*covariates, Categorical("y", (0, 1))))


def on_disk(num_rows):
    """Rows of a table of this size, encoded from a Parquet file that is written first."""
    import pyarrow as pa
    from pyarrow import parquet

    from discreet.fitting import encode

    schema, folder, path = schema_of(COLUMNS, True), FOLDER / f"{num_rows}.rows", FOLDER / f"{num_rows}.parquet"
    if folder.exists():
        return encode(folder, schema)
    FOLDER.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(num_rows)
    fields = [(name, pa.int8()) for name in schema.names]
    with parquet.ParquetWriter(path, pa.schema(fields)) as file:
        for first in range(0, num_rows, 10**6):
            count = min(10**6, num_rows - first)
            columns = {f"x{place}": rng.integers(0, 101, count, np.int8) for place in range(COLUMNS)}
            file.write_table(pa.table(columns | {"y": rng.integers(0, 2, count, np.int8)}, pa.schema(fields)))
    rows = encode(path, schema, folder)
    path.unlink()
    return rows


def in_memory(columns):
    """100 000 rows with so many covariates."""
    from discreet.mechanism.rows import store

    schema = schema_of(columns, False)
    return store(schema, schema.sample(np.random.default_rng(columns), 10**5))


def step_time(rows, batch):
    """Seconds a step of DPVI with ten draws."""
    from discreet.families.glm import glm
    from discreet.fitting import run, simulated
    from discreet.methods import elbo
    from discreet.plan import Plan, default_batch_limit

    model = glm("logistic", "y", rows.schema.names[:-1], rows.schema)
    rate = batch / rows.num_rows
    settings = elbo.Settings(elbo.start_at(model, 0.01), 1e-5)

    def seconds(steps):
        plan = Plan(rows.num_rows, steps, rate, 2.0, 5.0, default_batch_limit(rows.num_rows, rate))
        began = time.perf_counter()
        run(simulated(1), plan, elbo.query(model, plan, settings), rows)
        return time.perf_counter() - began

    for steps in (SHORT, LONG):
        seconds(steps)
    return float(np.median([(seconds(LONG) - seconds(SHORT)) / (LONG - SHORT) for _ in range(REPEATS)]))


def reading_time(steps):
    """Seconds to read 4000 draws of 100 coordinates from a release of so many steps."""
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from importlib import import_module

    solvers = import_module("trace-solvers")
    from discreet.posterior import exact
    from discreet.posterior.trace_model import trace_model

    plan, points = solvers.trace_of(np.random.default_rng(3), max(steps, 1000), 100)
    release = solvers.release_of(plan, points)
    return solvers.seconds(lambda: exact.solve(np.random.default_rng(1), trace_model(release), 4000), REPEATS)


def watched(kind, size):
    """The case's time, and the most anonymous memory that this process has had."""
    most, over = [0], threading.Event()

    def watch():
        while not over.wait(0.02):
            lines = Path("/proc/self/status").read_text().splitlines()
            most[0] = max(most[0], *(int(line.split()[1]) for line in lines if line.startswith("RssAnon")))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        spent = {
            "N": lambda: step_time(on_disk(size), BATCH),
            "d": lambda: step_time(in_memory(size), 1000),
            "T": lambda: reading_time(size),
        }[kind]()
    finally:
        over.set()
        thread.join()
    print(json.dumps({"seconds": spent, "GB": most[0] / 2**20}))


def case(kind, size):
    """The record of one case, in a process of its own."""
    if kind == "N":
        made = [sys.executable, "-c", f"import sys; sys.argv = ['']; import scale; scale.on_disk({size})"]
        subprocess.run(made, check=True, cwd=Path(__file__).parent)
    done = subprocess.run([sys.executable, __file__, kind, str(size)], stdout=subprocess.PIPE, text=True, check=True)
    return {"grows": kind, "size": size, **json.loads(done.stdout), "verdict": None}


def exponent(records, least=0):
    """The slope of log time against log size."""
    chosen = [record for record in records if record["size"] >= least]
    return float(np.polyfit(*(np.log([record[name] for record in chosen]) for name in ("size", "seconds")), 1)[0])


def main():
    """Run every case, fit exponents, and judge them."""
    records = [case(kind, size) for kind, sizes in (("N", ROWS), ("d", FEATURES), ("T", STEPS)) for size in sizes]
    by_kind = {kind: [record for record in records if record["grows"] == kind] for kind in "NdT"}
    exponents = {"N": exponent(by_kind["N"], 10**5), "d": exponent(by_kind["d"], 100), "T": exponent(by_kind["T"])}
    memory = by_kind["N"][-1]["GB"]
    verdicts = {"N": exponents["N"] <= 0.05 and memory < 4, "d": None, "T": exponents["T"] <= 0.05}
    records += [{"grows": kind, "exponent": exponents[kind], "verdict": verdicts[kind]} for kind in "NdT"]
    with picture("scale", columns=3) as axes:
        for axis, kind in zip(axes, "NdT", strict=True):
            axis.loglog(*zip(*((record["size"], record["seconds"]) for record in by_kind[kind]), strict=True), "o-")
            axis.set(xlabel=kind, ylabel="seconds", title=f"exponent {exponents[kind]:.3f}")
    finish(
        "scale",
        records,
        {},
        columns=["grows", "size", "seconds", "GB", "exponent", "verdict"],
        target=FULL,
        kind="bench",
    )


if __name__ == "__main__":
    watched(sys.argv[1], int(sys.argv[2])) if len(sys.argv) == 3 else main()
