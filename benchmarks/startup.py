"""How long one waits: for `import discreet`, and for the first step of `discreet fit` when its programs are kept.

Each is a process of its own, started `REPEATS` times; medians. A fit's first step begins when its first batches are
drawn: the process tells when, in a fit of the demo's survey (6366 rows, secure noise) after one that filled the cache.
Before it the table is read, a plan is simulated from the prior and priced.

Criteria (written before the run): importing takes less than 1.5 s, the first step begins within 3 s.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from harness import finish

from discreet import datasets

REPEATS = 5
TOLD = """
import sys, time
from discreet import cli
fit = cli._fit
def watched(*given):  # JAX must not be imported before the command has said where its cache is
    from discreet.mechanism import loop
    draw = loop._draw
    def first(*drawn):
        print("first step", time.time(), file=sys.stderr, flush=True)
        loop._draw = draw
        return draw(*drawn)
    loop._draw = first
    return fit(*given)
cli._fit = watched
cli.run(sys.argv[1:])
"""


def imported(folder):
    """Seconds of `import discreet` in a process that has nothing loaded."""
    del folder
    code = "import time; began = time.perf_counter(); import discreet; print(time.perf_counter() - began)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def first_step(folder):
    """Seconds from the start of a process to the first step of its fit."""
    number = len(list(folder.iterdir()))
    files = [str(folder / "table.csv"), "--schema", str(folder / "schema.toml"), "--out", str(folder / f"out-{number}")]
    asked = ["--outcome", "affair", "--family", "logistic", "--epsilon", "1", "--delta", "1e-5"]
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-c", TOLD, "fit", *files, *asked],
        env=os.environ | {"DISCREET_CACHE": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    told = [line.split()[-1] for line in done.stderr.splitlines() if line.startswith("first step")]
    if done.returncode or not told:
        sys.exit(done.stderr)
    return float(told[0]) - began


def main():
    """Time both, after a first fit that fills the cache."""
    records = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table, schema = datasets.fair()
        table.to_csv(folder / "table.csv", index=False)
        schema.save(folder / "schema.toml")
        cold = first_step(folder)
        for what, wait, wanted in (("import discreet", imported, 1.5), ("first step of discreet fit", first_step, 3.0)):
            spent = float(np.median([wait(folder) for _ in range(REPEATS)]))
            records.append({"what": what, "seconds": spent, "wanted": wanted, "verdict": spent < wanted})
    records.append({"what": "first step with an empty cache", "seconds": cold, "verdict": None})
    finish("startup", records, {}, columns=["what", "seconds", "wanted", "verdict"], kind="bench")


if __name__ == "__main__":
    main()
