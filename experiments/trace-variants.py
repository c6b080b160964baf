"""Noise-aware posteriors from the trace of every gradient variant: Beta-Bernoulli (M2), 5000 rows, 10⁴ steps, ε = 1.

κ = .1. Each variant has the clip norm that few rows exceed at the optimum's scale. SGD steps give the location the 20
time constants that M2 has in the paper (there ε = .1, at which the natural variant's scales wander off); natural
gradients take Adam's steps of 10⁻³, as in DPVIm: with SGD the scales of the aligned natural variant explode. Scales
start at the non-private optimum of θ = ½.

Aligned traces speak of the location alone: there q's sd is read from the curvature of the location, draw by draw, and
the averaged scale of the iterates, which have hardly left their good start, is shown beside it.

Criteria (written before the run): TARP RMSE of θ inside the 95 % null band for every variant, by `exact`.
"""

import time
from dataclasses import replace

import numpy as np
from harness import FULL, finish, progress

from discreet.accounting import calibrate
from discreet.evaluate import sharpness, study, tarp
from discreet.families.exponential import beta_bernoulli, exact_beta
from discreet.methods import elbo
from discreet.methods.gaussian import MEAN_FIELD
from discreet.model import prior_moments
from discreet.plan import Plan
from discreet.posterior import exact
from discreet.posterior.reading import around_locations
from discreet.posterior.trace_model import trace_model
from discreet.posterior.types import through_q
from discreet.release import tail_mean
from discreet.schema import Categorical, Schema

SEED, DRAWS, EPSILON, DELTA = 21, 4000, 1.0, 1e-5
DATA_SETS = 500 if FULL else 300
SD, TIME_CONSTANTS = 0.029, 20.0  # of z given 5000 rows at θ = ½
CURVATURE = SD**-2
CLIP = {
    "vanilla": 1.0,
    "preconditioned": 2.0,
    "T′-preconditioned": 1.0,
    "natural": 0.02,
    "aligned": 0.32,  # ten draws share a row's norm
    "aligned preconditioned": 0.64,
    "aligned natural": 0.32 * 2 * SD**2,
}

began = time.time()
model, schema = beta_bernoulli(10.0, 10.0), Schema((Categorical("x", ("no", "yes")),))
calibrated = calibrate(Plan(5000, 10_000, 0.1, 1.0, 1.0), EPSILON, DELTA)
band = tarp.null_band(DATA_SETS, repetitions=20)


def settings_of(variant):
    """SGD whose location closes the distance to the optimum `TIME_CONSTANTS` times, or Adam."""
    beta = {"preconditioned": np.array([1.0, 120.0]), "aligned preconditioned": np.array([2.0, 1.0])}.get(variant)
    start = np.asarray(MEAN_FIELD.pack(np.zeros(1), np.full(1, SD)))
    if "natural" in variant:
        return elbo.Settings(start, 1e-3, variant, optimiser="adam")
    rate = TIME_CONSTANTS / (calibrated.steps * calibrated.sampling_prob * CURVATURE)
    return elbo.Settings(start, rate, variant, beta)


def judge(variant, reading, z, truth, reference, promised):
    score = tarp.mean_rmse(np.random.default_rng(SEED), z, truth)
    return {
        "variant": variant,
        "scale of q": reading,
        "TARP RMSE": score,
        "null 95 %": band[1],
        "width ÷ non-private": float(sharpness.sd_ratio(z, reference)[0]),
        "log score": sharpness.normal_log_score(z, truth),
        "verdict": bool(score <= band[1]) if promised else None,
    }


def study_of(variant):
    rng, plan = np.random.default_rng(SEED), replace(calibrated, clip_norm=CLIP[variant])
    query = elbo.query(model, plan, settings_of(variant))
    found = study.simulate_fits(SEED, model, schema, plan, query, DATA_SETS, progress(variant))
    reference = exact_beta(rng, 10, 10, found.tables["x"].sum(-1), plan.num_rows, DRAWS)[..., None]
    drawn = exact.solve(rng, trace_model(found.release), DRAWS)
    if "aligned" not in variant:
        z = through_q(rng, drawn.optimum)
        return [judge(variant, "read from its trace", z, found.truth, reference, True)]
    z = around_locations(rng, drawn, prior_moments(model)[1])
    scale = np.broadcast_to(tail_mean(found.release)[:, None, 1:], drawn.optimum.shape)
    averaged = through_q(rng, np.concatenate([drawn.optimum, scale], -1))
    return [
        judge(variant, "curvature of the location", z, found.truth, reference, True),
        judge(variant, "average of the iterates", averaged, found.truth, reference, False),
    ]


records = [record for variant in elbo.VARIANTS for record in study_of(variant)]
finish(
    "trace-variants",
    records,
    {"all": SEED},
    columns=list(records[0]),
    notes=[f"{DATA_SETS} data sets a variant, σ = {calibrated.noise_multiplier:.1f}, {time.time() - began:.0f} s."],
    target=FULL,
)
