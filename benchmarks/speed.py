"""Steps per second beside every peer: logistic regression, 30 000 rows, 100 features, mean field, K shared draws.

Each peer is a process of its own (`peers/`), in its own environment where it needs one; those that cannot be installed
are reported as such. All are asked in turn, `REPEATS` times; medians are reported, and ratios within this run. Their
loss, sampler and batches are written as well as we could: see what each says of itself. Single precision and simulated
noise on both sides; discreet's secure path (double precision, exact guarantees, ChaCha20 keyed by the system) and its
aligned gradient have rows of their own.

Criteria (written before the run): discreet is at least 10 × as fast as the fastest private peer at rate .01 and at rate
.1 with ten draws, at least 6 × at rate .1 with one; at least .9 × NumPyro without privacy, whose indices are drawn
outside; its secure path takes at most twice as long.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from harness import RESULTS, finish, picture, progress

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))
from environments import PEERS, python_for  # noqa: E402

REPEATS, STEPS, FEW = 5, 1000, 100
SETTINGS = [(0.01, 1, 10.0), (0.01, 10, 10.0), (0.1, 1, 6.0), (0.1, 10, 10.0)]
OURS, SECURE, ALIGNED = "discreet", "discreet, secure", "discreet, aligned"
VARIANTS = {
    OURS: ("single", "vanilla", "simulated"),
    SECURE: ("double", "vanilla", "secure"),
    ALIGNED: ("single", "aligned", "simulated"),
}
NOT_PRIVATE = ("numpyro_plate", "numpyro_outside")
SLOW = ("numpyro_plate", "opacus_sgd", "d3p_svi")  # timed over fewer steps


class Worker:
    """A peer's process, and what it said of itself."""

    def __init__(self, python, script, *given):
        self.process = subprocess.Popen(
            [str(python), str(script), *given], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.about = self._heard()

    def steps_a_second(self, rate, draws, steps):
        """The speed in this setting; NaN where the peer failed."""
        self.process.stdin.write(json.dumps({"rate": rate, "draws": draws, "steps": steps}) + "\n")
        self.process.stdin.flush()
        return steps / self._heard().get("seconds", float("nan"))

    def _heard(self):
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": f"ended with code {self.process.wait()}"}


def started():
    """Workers by name, and why others are missing."""
    workers, missing = {}, {}
    for name, given in VARIANTS.items():
        workers[name] = Worker(sys.executable, HERE / "peers" / "ours.py", *given)
    for name in PEERS:
        try:
            python = python_for(name, RESULTS.parent / "out" / "peers")
            workers[name] = Worker(python, HERE / "peers" / f"{name}.py")
        except (RuntimeError, OSError) as error:
            missing[name] = str(error)
    for name in [name for name, worker in workers.items() if "error" in worker.about]:
        missing[name] = workers.pop(name).about["error"]
    return workers, missing


def record(setting, speeds):
    """One setting: everybody's median speed, and ours in units of theirs."""
    rate, draws, wanted = setting
    median = {name: float(np.median(values)) for name, values in speeds.items()}
    private = {name: value for name, value in median.items() if name in PEERS and name not in NOT_PRIVATE}
    best = max(private, key=lambda name: private[name] if np.isfinite(private[name]) else 0.0)
    ours = median[OURS]
    return {
        "rate": rate,
        "draws": draws,
        **{name: round(value) if np.isfinite(value) else None for name, value in median.items()},
        "fastest private peer": best,
        "÷ it": ours / median[best],
        "wanted": wanted,
        "÷ NumPyro": ours / median["numpyro_outside"] if "numpyro_outside" in median else None,
        "time, secure ÷ simulated": ours / median[SECURE],
        "spread": {name: [round(min(values)), round(max(values))] for name, values in speeds.items()},
        "verdict": bool(
            ours >= wanted * median[best]
            and ours >= 0.9 * median.get("numpyro_outside", 0.0)
            and median[SECURE] >= 0.5 * ours
        ),
    }


def main():
    """Ask everybody in turn, and judge the ratios."""
    workers, missing = started()
    speeds = {setting: {name: [] for name in workers} for setting in SETTINGS}
    turns = [(setting, name) for _ in range(REPEATS) for setting in SETTINGS for name in workers]
    for turn in progress("speed")(range(len(turns))):
        (rate, draws, wanted), name = turns[turn]
        speeds[rate, draws, wanted][name].append(
            workers[name].steps_a_second(rate, draws, FEW if name in SLOW else STEPS)
        )
    for worker in workers.values():
        worker.process.stdin.close()
        worker.process.wait()
    records = [record(setting, speeds[setting]) for setting in SETTINGS]
    with picture("speed", columns=len(SETTINGS), size=(4.2, 4.0)) as axes:
        for axis, shown in zip(axes, records, strict=True):
            names = sorted(workers, key=lambda name: shown[name] or 0)
            axis.barh(
                names, [shown[name] or 0 for name in names], color=["C0" if n in VARIANTS else "0.7" for n in names]
            )
            axis.set(title=f"rate {shown['rate']}, {shown['draws']} draws", xlabel="steps per second")
    notes = [f"{name} is missing: {why}" for name, why in missing.items()]
    columns = [name for name in records[0] if name != "spread"]
    finish("speed", records, {"table": 0, "noise": 1}, columns=columns, notes=notes, kind="bench")


if __name__ == "__main__":
    main()
