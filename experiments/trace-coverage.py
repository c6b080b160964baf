"""Is the trace model's posterior of φ* calibrated where the trace model is true? Quadratic losses, known A and φ*.

Diagonal: K = 500 data sets of 4 coordinates with curvatures 500 to 5000 (N = 5000 rows, T = 10⁴ steps, κ = .1, C = 2,
λ_heur), φ* ~ N(0, 1), started at zero, at ε = .1, 1 and 10; every solver and every prior. Dense: 5 coordinates,
condition number 100, no axis of their own, K = 100 (500 with FULL=1).

Criteria (written before the run): `exact` with its default prior has a TARP RMSE inside the 95 % null band at each ε;
`full` is inside its band where the condition number is 100, and `exact` with a diagonal curvature is not.
"""

import time

import numpy as np
from _quadratics import dense, diagonal
from harness import FULL, finish, parallel

from discreet.accounting import calibrate
from discreet.evaluate import tarp
from discreet.methods import elbo
from discreet.plan import Plan
from discreet.posterior import exact, full, laplace
from discreet.posterior.trace import TraceError
from discreet.posterior.trace_model import trace_model

SEED, DELTA, DRAWS, DATA_SETS = 11, 1e-5, 1000, 500
CURVATURES = np.array([500.0, 1250.0, 2500.0, 5000.0])
DENSE_SETS, DIM, CONDITION = 500 if FULL else 100, 5, 100.0
WAYS = {
    "exact, H.3": (exact, {}),
    "exact, H.3, φ* centred in public": (exact, {"centre": np.zeros(1)}),
    "exact, H.3 as printed": (exact, {"prior": "paper"}),
    "exact, cross-fitted": (exact, {"prior": "cross-fitted"}),
    "exact, weak": (exact, {"prior": "weak"}),
    "exact, weak, φ* centred in public": (
        exact,
        {"prior": "weak", "centre": np.zeros(1), "centre_sd": np.ones(1)},
    ),
    "exact, H.3, converged window": (exact, {"burn_in": "converged"}),
    "exact, H.3, no burn-in": (exact, {"burn_in": 0.0}),
    "laplace, H.3": (laplace, {}),
}


def plan_at(epsilon):
    return calibrate(Plan(5000, 10_000, 0.1, 2.0, 1.0), epsilon, DELTA)


def judged(label, epsilon, draws, truth, oracle, verdict):
    """`draws` (K, M, d), `truth` (K, d); `oracle` is the sd of φ* were A known."""
    rng = np.random.default_rng(SEED)
    score, band = tarp.mean_rmse(rng, draws, truth), tarp.null_band(len(truth), dim=truth.shape[1], repetitions=20)
    below = (draws < truth[:, None]).mean(1)
    return {
        "solver": label,
        "ε": epsilon,
        "TARP RMSE": score,
        "null 95 %": band[1],
        "in 90 %": float((np.abs(below - 0.5) < 0.45).mean()),
        "in 50 %": float((np.abs(below - 0.5) < 0.25).mean()),
        "width ÷ A known": float(np.median(draws.std(1) / oracle)),
        "verdict": verdict(score, band[1]) if verdict else None,
    }


def within(score, bound):
    return bool(score <= bound)


def diagonal_study(epsilon):
    rng, plan = np.random.default_rng(SEED), plan_at(epsilon)
    curvature, optimum = np.tile(CURVATURES, DATA_SETS), rng.standard_normal(4 * DATA_SETS)
    release = diagonal(rng, plan, curvature, optimum, elbo.heuristic_rate(plan, 4))
    oracle = plan.noise_std / (plan.sampling_prob * CURVATURES * np.sqrt(0.8 * plan.steps))
    records = []
    for label, (solver, options) in WAYS.items():
        try:
            problem = trace_model(release, **options)
        except TraceError as error:  # windows that have not converged
            records.append({"solver": f"{label}: {str(error).split(' coordinates')[0]}", "ε": epsilon})
            continue
        draws = solver.solve(rng, problem, DRAWS).optimum
        draws = draws.T.reshape(DATA_SETS, 4, DRAWS).transpose(0, 2, 1)
        records.append(
            judged(label, epsilon, draws, optimum.reshape(-1, 4), oracle, within if label == "exact, H.3" else None)
        )
    return records


def dense_one(seed):
    rng, plan = np.random.default_rng([SEED, seed]), plan_at(1.0)
    rotation = np.linalg.qr(rng.standard_normal((DIM, DIM)))[0]
    curvature = 5000 * (rotation * np.geomspace(1, 1 / CONDITION, DIM)) @ rotation.T
    optimum = rng.standard_normal(DIM)
    release = dense(rng, plan, curvature, optimum, elbo.heuristic_rate(plan, DIM))
    prior = full.Prior(np.zeros(DIM), np.ones(DIM), np.full(DIM, 1250.0))
    wide = full.solve(rng, release, prior, DRAWS, least=0.0).optimum
    narrow = exact.solve(rng, trace_model(release, centre=np.zeros(1)), DRAWS).optimum
    noise = plan.noise_std / (plan.sampling_prob * np.sqrt(0.8 * plan.steps))
    return optimum, wide, narrow, noise * np.sqrt(np.diag(np.linalg.inv(curvature @ curvature)))


began = time.time()
records = [record for epsilon in (0.1, 1.0, 10.0) for record in diagonal_study(epsilon)]
truth, wide, narrow, oracle = map(
    np.stack, zip(*parallel(dense_one, [(seed,) for seed in range(DENSE_SETS)], "condition 100"), strict=True)
)
oracle = np.median(oracle, 0)
records.append(judged("full, condition 100", 1.0, wide, truth, oracle, within))
records.append(judged("exact, condition 100", 1.0, narrow, truth, oracle, lambda score, bound: bool(score > bound)))
finish(
    "trace-coverage",
    records,
    {"all": SEED},
    columns=list(records[0]),
    notes=[
        f"φ* ~ N(0, 1); diagonal: {DATA_SETS} data sets of 4 coordinates; dense: {DENSE_SETS} of {DIM}; "
        f"{DRAWS} draws each; {time.time() - began:.0f} s. The last verdict holds if the diagonal solver fails there."
    ],
    target=True,
)
