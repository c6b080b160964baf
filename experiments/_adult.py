"""What the studies on Adult share: the public schema and units, NA-DPVI's settings for it, and how rows are predicted.

Nothing is learned from the rows: bounds and levels are in `adult-schema.toml` (`Schema.save` wrote it), numeric columns
are measured in the round numbers of `_dpvim.ADULT_UNITS`. The paper's appendix says "normalized to be within (0, 1)",
its clip norm and step fit columns of unit spread, which is what these units come close to.
"""

import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from _dpvim import ADULT_UNITS
from _nadpvi import DELTA, plan_for
from scipy.special import expit

from discreet import datasets, planner
from discreet.evaluate import study
from discreet.families.glm import Priors, glm
from discreet.methods import elbo
from discreet.posterior import full
from discreet.posterior.trace import TraceError
from discreet.schema import Schema

SCHEMA = Schema.load(Path(__file__).with_name("adult-schema.toml"))
OUTCOME, COVARIATES = SCHEMA.names[-1], SCHEMA.names[:-1]
CLIP_NORM, BETA, START = 11.0, 550.0, (0.0, -6.0)
PREDICTING, ROWS_AT_ONCE = 1000, 2048


@cache
def regression(coding="every level"):
    """Logistic regression of income, w ~ N(0, I): 57 coefficients with one for every level."""
    return glm("logistic", OUTCOME, COVARIATES, SCHEMA, Priors(1.0, 1.0), coding=coding, units=ADULT_UNITS)


@cache
def encoded(split="train"):
    """The columns of a split, encoded under the public schema."""
    return SCHEMA.encode(datasets.adult(split)[0])


@cache
def planned(coding, epsilon, num_rows):
    """Our own choice for this model, in public; its `prior` is what `full` knows before any row is asked."""
    return planner.choose(regression(coding), SCHEMA, num_rows, epsilon, DELTA)


def release_of(seed, model, columns, epsilon, variant="preconditioned"):
    """The release of DPVI with the paper's settings and simulated noise; DPVIm is aligned, with one draw."""
    plan, dim = plan_for(SCHEMA, len(columns[OUTCOME]), CLIP_NORM, epsilon), model.dim
    start, rate = np.repeat(START, dim), elbo.heuristic_rate(plan, 2 * dim, np.sqrt(dim))
    chosen = elbo.Settings(start, rate, "preconditioned", np.repeat([1.0, BETA], dim))
    if variant == "aligned":
        chosen = elbo.Settings(start, rate, variant, draws=1)
    return study.fit_tables(seed, SCHEMA, plan, elbo.query(model, plan, chosen), columns, keep="cross")


class Attempt(NamedTuple):
    """Draws of z (NaN where the release could not be read so), how long they took, and the drift of `full`'s chains.

    A hundred settled chains drift by about a tenth; none at all says that they did not move.
    """

    draws: np.ndarray
    seconds: float
    drift: float = np.nan


def attempted(read, dim):
    """What a reading gave: an array of draws, or the draws of `full`."""
    began = time.perf_counter()
    try:
        found = read()
    except (TraceError, np.linalg.LinAlgError):
        return Attempt(np.full((1, dim), np.nan), time.perf_counter() - began)
    seconds = time.perf_counter() - began
    return (
        Attempt(found.z, seconds, found.report["drift"]) if isinstance(found, full.Draws) else Attempt(found, seconds)
    )


def features(model, columns):
    """(rows, coefficients): what each coefficient of a linear predictor is multiplied by."""
    with jax.enable_x64(True):
        return np.asarray(jax.jit(jax.vmap(model.log_likelihood.features))(columns))


def predicted(rows, draws):
    """Probability of a one for each row of `features`: the mean over up to `PREDICTING` of the draws of z."""
    z = draws[:: max(1, len(draws) // PREDICTING)][:PREDICTING]
    parts = np.array_split(rows, -(-len(rows) // ROWS_AT_ONCE))
    return np.concatenate([expit(part @ z.T).mean(1) for part in parts])


def check_predictions(model, columns, rows=5, draws=7):
    """End the study if `predicted` is not the mean of the model's own predictions."""
    some = {name: values[:rows] for name, values in columns.items()}
    z = np.random.default_rng(0).standard_normal((draws, model.dim))
    with jax.enable_x64(True):
        over_rows = jax.vmap(model.mean, in_axes=(None, 0))
        expected = np.asarray(jax.vmap(over_rows, in_axes=(0, None))(z, some)).mean(0)
    if not np.allclose(predicted(features(model, some), z), expected, rtol=1e-12):
        raise SystemExit("predictions by matrix products are not the model's own")
