"""What a release of scores means: the dense trace model, with the curvature that is expected where the iterates went.

Iterates are public, so that rows can be simulated there: N times the information of these, clipped as the real ones
were, is the curvature to expect, up to a few per cent.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discreet.methods.score import described_information, resampled
from discreet.model import Model
from discreet.posterior import full
from discreet.posterior.trace import tail
from discreet.posterior.trace_model import Subsampling
from discreet.release import Release

ROWS, SEED, ERROR = 2**14, 17, 0.1


def solve(
    rng: np.random.Generator,
    release: Release,
    model: Model,
    prior: full.Prior,
    draws: int = 4000,
    *,
    burn_in: float | None = None,
    subsampling: Subsampling = "learned",
) -> full.Draws:
    """Draws of the optimum and of z; `prior` has the prior's mean and sd. Steps that fell are left out by default."""
    share = release.settings["falling"] if burn_in is None else burn_in
    expected = _expected(release, model, prior, share)
    return full.solve(rng, release, expected, draws, burn_in=share, subsampling=subsampling, arrived=True)


def _expected(release: Release, model: Model, prior: full.Prior, burn_in: float) -> full.Prior:
    """The prior with the curvature to expect where the iterates stayed."""
    place, settings, num_rows = tail(release, burn_in).mean_x, release.settings, release.plan.num_rows
    sizes = described_information(settings).at(place, np)
    units = np.sqrt(sizes + prior.sd**-2 / num_rows)
    answers = _simulated(model, place, settings["sample"]) / units
    kept = np.minimum(1, release.plan.clip_norm / np.maximum(np.linalg.norm(answers, axis=1), 1e-300))
    error = ERROR / np.sqrt(len(place))  # of entries, so that directions err by the same share in any dimension
    seen = (kept[:, None] * answers).T @ answers / len(answers) * np.outer(units, units)
    return prior._replace(curvature=num_rows * (seen + seen.T) / 2 + np.diag(prior.sd**-2), error=error)


def _simulated(model: Model, z: np.ndarray, sample: Mapping[str, Any]) -> np.ndarray:
    """Gradients of log p(row | z) of `ROWS` rows drawn from the model at z, with covariates of the sample."""
    rows = resampled(np.random.default_rng(SEED), sample, ROWS)
    with jax.enable_x64(True):
        found = np.asarray(_gradients(model)(jnp.asarray(z), jax.random.split(jax.random.key(SEED), ROWS), rows))
    return np.where(np.isfinite(found).all(1, keepdims=True), found, 0.0)


@lru_cache(maxsize=8)
def _gradients(model: Model) -> Callable:
    """(z, keys, covariates) → gradients of rows drawn from the model at z; compiled once for a model."""
    simulate = model.simulate
    if simulate is None:
        raise ValueError("this model cannot simulate its outcome: scores cannot be read without it")

    def gradient(z, key, row):
        return jax.grad(model.log_likelihood)(z, {**row, **simulate(key, z, row)})

    return jax.jit(jax.vmap(gradient, in_axes=(None, 0, 0)))
