"""Steps per second beside every peer: logistic regression, 30 000 rows, 100 features, mean field, K shared draws.

Each peer is a process of its own (`peers/`), in its own environment where it needs one; those that cannot be installed
are reported as such. All are asked in turn, `REPEATS` times; medians are reported, and ratios within this run. What a
JAX peer leaves to its user is there in two forms: plainly written, and "tuned", with a sampler and a loss rewritten as
this project would, and XLA with one thread, as discreet's command line has it: on two cores a second thread makes steps
this short up to twice as long. NumPyro is there with both. Single precision and simulated noise on both sides;
discreet's secure path (double precision, exact guarantees, ChaCha20 keyed by the system) and its aligned gradient have
rows of their own.

Criteria (written before the run): discreet is at least 10 × as fast as the fastest private peer at rate .01 and at rate
.1 with ten draws, at least 6 × at rate .1 with one; at least .9 × NumPyro without privacy, whose indices are drawn
outside; its secure path takes at most twice as long.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from harness import RESULTS, finish, picture, progress

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))
from environments import PEERS, python_for  # noqa: E402

REPEATS, STEPS, FEW = 5, 1000, 100


class Setting(NamedTuple):
    """Sampling rate, draws, and how many times as fast as private peers is wanted."""

    rate: float
    draws: int
    wanted: float


SETTINGS = [Setting(0.01, 1, 10), Setting(0.01, 10, 10), Setting(0.1, 1, 6), Setting(0.1, 10, 10)]
LABELS = [f"rate {setting.rate}, {setting.draws} draw{'s' * (setting.draws > 1)}" for setting in SETTINGS]
OURS, SECURE, ALIGNED = "discreet", "discreet, secure", "discreet, aligned"
VARIANTS = {
    OURS: ("single", "vanilla", "simulated"),
    SECURE: ("double", "vanilla", "secure"),
    ALIGNED: ("single", "aligned", "simulated"),
}
PLATE, OUTSIDE, ALONE = NOT_PRIVATE = (
    "NumPyro, plate", "NumPyro, indices outside", "NumPyro, indices outside, one thread",
)  # fmt: skip
SLOW = (PLATE, "Opacus", "d3p", "vmap(grad)", "jax-privacy, scan")  # timed over fewer steps


class Worker:
    """A peer's process, and what it said of itself."""

    def __init__(self, python, script, *given, threads=None):
        environment = {name: value for name, value in os.environ.items() if name != "NPROC"}
        environment |= {} if threads is None else {"NPROC": str(threads)}
        self.process = subprocess.Popen(
            [str(python), str(script), *given], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env=environment,
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
        workers[name] = Worker(sys.executable, HERE / "peers" / "ours.py", *given, threads=1)
    for name, peer in PEERS.items():
        try:
            python = python_for(peer, RESULTS.parent / "out" / "peers")
            workers[name] = Worker(python, HERE / "peers" / f"{peer.script}.py", *peer.given, threads=peer.threads)
        except (RuntimeError, OSError) as error:
            missing[name] = str(error)
    for name in [name for name, worker in workers.items() if "error" in worker.about]:
        missing[name] = workers.pop(name).about["error"]
    return workers, missing


def ratios(median):
    """Ours in units of others in every setting, with what is wanted of it: a record for each criterion."""
    private = [name for name in median if name in PEERS and name not in NOT_PRIVATE]
    plain = [name for name in private if "tuned" not in name]

    def fastest(names):
        return [np.nanmax([median[name][place] for name in names]) for place in range(len(SETTINGS))]

    ours, secure = np.array(median[OURS]), np.array(median[SECURE])
    compared = [
        ("discreet ÷ the fastest private peer", ours / fastest(private), "≥ 10, 10, 6, 10"),
        ("discreet ÷ the fastest of those plainly written", ours / fastest(plain), "≥ 10, 10, 6, 10"),
        ("simulated ÷ secure", ours / secure, "≤ 2"),
    ]
    wanted = [setting.wanted for setting in SETTINGS]
    holds = [compared[0][1] >= wanted, compared[1][1] >= wanted, compared[2][1] <= 2]
    for name in (OUTSIDE, ALONE):
        if name in median:
            compared.append((f"discreet ÷ {name}", ours / median[name], "≥ .9"))
            holds.append(compared[-1][1] >= 0.9)
    return [
        {"who": name, **dict(zip(LABELS, map(float, values), strict=True)), "wanted": asked,
         "holds": f"{int(held.sum())} of {len(held)}", "verdict": bool(held.all())}
        for (name, values, asked), held in zip(compared, holds, strict=True)
    ]  # fmt: skip


def main():
    """Ask everybody in turn, and judge the ratios."""
    workers, missing = started()
    speeds = {name: [[] for _ in SETTINGS] for name in workers}
    turns = [(place, name) for _ in range(REPEATS) for place in range(len(SETTINGS)) for name in workers]
    for turn in progress("speed")(range(len(turns))):
        place, name = turns[turn]
        setting, steps = SETTINGS[place], FEW if name in SLOW else STEPS
        speeds[name][place].append(workers[name].steps_a_second(setting.rate, setting.draws, steps))
    for worker in workers.values():
        worker.process.stdin.close()
        worker.process.wait()
    median = {name: [float(np.median(values)) for values in by_setting] for name, by_setting in speeds.items()}
    records = [
        {
            "who": name,
            **{label: round(value) if np.isfinite(value) else None for label, value in zip(LABELS, of, strict=True)},
            "slowest and fastest": [[round(min(values)), round(max(values))] for values in speeds[name]],
            "versions": workers[name].about["versions"],
            "verdict": None,
        }
        for name, of in sorted(median.items(), key=lambda item: -np.nan_to_num(item[1][0]))
    ]
    with picture("speed", columns=len(SETTINGS), size=(4.6, 4.4)) as axes:
        for place, axis in enumerate(axes):
            names = sorted(workers, key=lambda name: np.nan_to_num(median[name][place]))
            colors = ["C0" if n in VARIANTS else "C1" if n in NOT_PRIVATE else "0.7" for n in names]
            axis.barh(names, [np.nan_to_num(median[name][place]) for name in names], color=colors)
            axis.set(title=LABELS[place], xlabel="steps per second", xscale="log")
    notes = [f"{name} is missing: {why}" for name, why in missing.items()]
    notes.append("The picture: discreet blue, NumPyro without privacy orange, private peers grey.")
    columns = ["who", *LABELS, "wanted", "holds", "verdict"]
    records += ratios(median)
    finish("speed", records, {"table": 0, "noise": 1}, columns=columns, notes=notes, kind="bench")


if __name__ == "__main__":
    main()
