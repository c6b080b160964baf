"""DPVIm, Figure 5b: is the noise that privacy leaves in an iterate seen in the trace of one run?

On Adult: the spread of the last iterate over repeated runs, against the spread of one run's converged trace, by
coordinate of φ. Quick: 120 epochs, 10 repeats, ε ∈ {1, 10}, and steps six times as long as the paper's, so that the run
lasts as many of its own time constants. FULL=1: 4000 epochs, 50 repeats, all four ε.

The claim counts as confirmed (written before the run) if, where the trace has converged (|slope| < .05), the mean
squared error of the trace's sd is below half of the mean squared sd, which is the error of not estimating it at all.
"""

import time

import numpy as np
from _dpvim import ADULT_CLIP, COLOURS, adult, clipped, plan_for, train
from harness import FULL, claim, epsilons, finish, parallel, picture, seeds

from discreet.methods import elbo
from discreet.posterior import averaging

VARIANTS = ("aligned", "aligned natural")
EPSILONS = epsilons(*((1.0, 2.0, 4.0, 10.0) if FULL else (1.0, 10.0)))
EPOCHS, LEARNING_RATE = (4000, 1e-3) if FULL else (120, 6e-3)
REPEATS = len(seeds(50, 10))

began = time.time()
model, rows, _ = adult()
start = elbo.start_at(model, 1.0, np.zeros(model.dim))
plans = {epsilon: plan_for(rows, EPOCHS, epsilon) for epsilon in EPSILONS}


def job(variant, epsilon, seed):
    plan = clipped(plans[epsilon], ADULT_CLIP[variant])
    release = train(model, rows, variant, plan, seed, start, rate=LEARNING_RATE)
    return release.last, averaging.average(release)


jobs = [(variant, epsilon, seed) for variant in VARIANTS for epsilon in EPSILONS for seed in range(REPEATS)]
runs = dict(zip(jobs, parallel(job, jobs, "runs"), strict=True))


def every(window):
    return window.converged


def agreeing(window):
    return window.converged & (window.r_hat < averaging.LARGEST_R_HAT)


def remembering_little(window):
    return window.converged & (window.sd > np.sqrt(20) * window.mean_sd)


WINDOWS = {"slope < .05": every, "… and R̂ < 1.1": agreeing, "… and 20 effective steps": remembering_little}


def compare(variant, epsilon, choose):
    """MSE of the trace's sd over converged coordinates of each run, and the mean square of the sd over repeats."""
    lasts, windows = zip(*(runs[variant, epsilon, seed] for seed in range(REPEATS)), strict=True)
    truth = np.std(lasts, axis=0, ddof=1)
    errors, squares, ratios = [], [], []
    for window in windows:
        used = choose(window)
        errors.append((window.sd[used] - truth[used]) ** 2)
        squares.append(truth[used] ** 2)
        ratios.append(window.sd[used] / truth[used])
    used = np.concatenate(errors)
    share = len(used) / (REPEATS * len(truth))
    if not len(used):
        return {"share of φ": 0.0, "MSE": None, "baseline": None, "MSE ÷ baseline": None, "sd ratio": None}
    error, baseline = used.mean(), np.concatenate(squares).mean()
    ratio = np.exp(np.median(np.log(np.concatenate(ratios))))
    return {
        "share of φ": share,
        "MSE": float(error),
        "baseline": float(baseline),
        "MSE ÷ baseline": float(error / baseline),
        "sd ratio": float(ratio),
    }


records = []
for variant in VARIANTS:
    for epsilon in EPSILONS:
        for label, choose in WINDOWS.items():
            records.append({"variant": variant, "ε": epsilon, "windows": label, **compare(variant, epsilon, choose)})
by_slope = [record for record in records if record["windows"] == "slope < .05"]
claims = [
    claim(
        "the sd inferred from converged traces is close to that over repeated runs",
        "MSE far below the baseline (Figure 5b)",
        "; ".join(
            f"{r['variant']}, ε = {r['ε']:g}: MSE {r['MSE']:.2g} of {r['baseline']:.2g}, sd × {r['sd ratio']:.2f}"
            for r in by_slope
        ),
        all(r["MSE ÷ baseline"] is not None and r["MSE ÷ baseline"] < 0.5 for r in by_slope),
    )
]

with picture("noise-from-trace", columns=len(EPSILONS), size=(3.6, 3.4)) as axes:
    for axis, epsilon in zip(axes, EPSILONS, strict=True):
        for variant in VARIANTS:
            lasts, windows = zip(*(runs[variant, epsilon, seed] for seed in range(REPEATS)), strict=True)
            seen, truth = np.array([window.sd for window in windows]), np.std(lasts, axis=0, ddof=1)
            used = np.isfinite(seen)
            across = np.broadcast_to(truth, seen.shape)[used]
            axis.loglog(across, seen[used], ".", color=COLOURS[variant], label=variant, alpha=0.5, markersize=2)
        limits = np.array(axis.get_xlim())
        axis.loglog(limits, limits, color="#999999", linewidth=1)
        axis.set(title=f"ε = {epsilon:g}", xlabel=f"sd of the last iterate, {REPEATS} runs", ylabel="sd of a trace")
    axes[0].legend(fontsize="small")

finish(
    "noise-from-trace",
    records,
    {"runs": f"0 to {REPEATS - 1}"},
    columns=list(records[0]),
    claims=claims,
    target=FULL,
    notes=[
        f"Adult, κ = .01, {EPOCHS} epochs, Adam {LEARNING_RATE:g}; {time.time() - began:.0f} s. With {REPEATS} repeats "
        f"the sd over repeats is itself uncertain by {1 / np.sqrt(2 * (REPEATS - 1)):.0%}: a perfect trace would score "
        f"{1 / (2 * (REPEATS - 1)):.2f} of the baseline. sd ratio: median of trace sd ÷ sd over repeats."
    ],
)
