"""What a release of sites means: a noise-aware posterior for DP-SEP.

The trace of φ is one of the trace model's: y = κ(I − J)(φ − φ*) + noise, where J says how the sites answer to φ. Its
slope is near one, so φ* is known as well as the average answer is. φ* is η and Λ of all rows together. Λ, seen with
noise, is the posterior's precision less the prior's, and η = Λm, seen with noise, tells its mean m: the very model that
`full` solves for gradients, where A is seen by its slopes. Here it is seen as it stands.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from discreet.methods.natural import Shape
from discreet.methods.sites import SiteError
from discreet.model import softplus_inverse
from discreet.posterior import exact, full
from discreet.posterior.sums import Sums, in_units
from discreet.posterior.trace import TraceError
from discreet.posterior.trace_model import BurnIn, Subsampling, TracePrior, trace_model
from discreet.release import Release

SLOPE_SD, LOOSE = 0.3, 1e3
OF_OPTIMUM = 500


class Seen(NamedTuple):
    """The optimum φ* as the trace tells it: mean and sd of each entry, and of the slopes."""

    mean: np.ndarray
    sd: np.ndarray
    slope: np.ndarray


def seen(
    rng: np.random.Generator, release: Release, *, burn_in: BurnIn = 0.2, subsampling: Subsampling = "learned"
) -> Seen:
    """φ* by the exact solver of the trace model, any leading axes; slopes are around one, φ* is anywhere."""
    size = np.shape(release.last)[-1]
    spread = LOOSE * (release.plan.noise_std / release.plan.sampling_prob + np.abs(release.last))
    prior = TracePrior(np.full(size, softplus_inverse(1.0)), np.full(size, SLOPE_SD), np.asarray(release.last), spread)
    model = trace_model(release, burn_in=burn_in, prior=prior, subsampling=subsampling)
    found = exact.solve(rng, model, OF_OPTIMUM)
    return Seen(found.optimum.mean(-2), found.optimum.std(-2), found.curvature.mean(-2))


def solve(
    rng: np.random.Generator,
    release: Release,
    draws: int = 4000,
    *,
    prior: full.Prior | None = None,
    burn_in: BurnIn = 0.2,
    subsampling: Subsampling = "learned",
) -> full.Draws:
    """Draws of the posterior's mean (`optimum`) and of z from one release of linear sites (log-concave rows).

    `prior` says what is publicly known of the posterior's precision (`full.Prior.curvature`); without it any is as
    likely as another.
    """
    shape, theta = described(release.settings)
    if shape.blocks != 1:
        raise SiteError("a mixture's sites have several optima: a noise-aware posterior is for linear sites alone")
    if np.ndim(release.last) != 1:
        raise TraceError("sites are read from one release at a time: this one has replicas")
    known = public_prior(theta, shape)
    found = seen(rng, release, burn_in=burn_in, subsampling=subsampling)
    dim, whole = shape.dim, theta + found.mean
    units = np.outer(known.sd, known.sd)[np.triu_indices(dim)]
    precision = (found.sd[dim:] * units) ** -2.0
    slopes = (np.diag(precision), precision * whole[dim:] * units)
    sums = in_units(_means(whole[:dim], found.sd[:dim] ** 2), known.mean, known.sd)
    belief = full.beliefs(prior) if prior else [_anything(len(units), np.abs(whole[dim:] * units) + 1)]
    drawn = full.draw(rng, slopes, belief, sums, 1.0, sums.known, draws, least=1.0)
    optimum, z = (known.mean + known.sd * part for part in drawn[:2])
    return full.Draws(optimum, z, {**drawn.report, "slope": found.slope.tolist()})


def described(settings: Mapping[str, Any]) -> tuple[Shape, np.ndarray]:
    """The shape of a release's sites, and the natural parameters of the prior."""
    if settings.get("method") != "sep":
        raise TraceError(f"this is a release of method {settings.get('method')!r}, not of sites (sep)")
    return Shape(settings["blocks"], settings["dim"]), np.asarray(settings["prior_theta"])


def public_prior(theta: np.ndarray, shape: Shape) -> full.Prior:
    """Prior means and sds, from natural parameters of independent priors."""
    upper = np.triu_indices(shape.dim)
    triangle = theta[shape.dim :]
    if np.abs(triangle[upper[0] != upper[1]]).max(initial=0.0) > 0:
        raise SiteError("the prior's parameters are correlated: a noise-aware posterior needs independent ones")
    precision = triangle[upper[0] == upper[1]]
    return full.Prior(theta[: shape.dim] / precision, precision**-0.5, precision)


def _means(eta: np.ndarray, variance: np.ndarray) -> Sums:
    """η = Λm, seen with this variance, as one answer y = A(x − φ*) at x = 0."""
    dim, nothing = len(eta), np.zeros((1, len(eta), len(eta)))
    return Sums(1.0, np.ones(dim), np.zeros((1, dim)), -eta, nothing, nothing[0], np.zeros(dim), variance)


def _anything(count: int, size: np.ndarray) -> full.Belief:
    spread = LOOSE * size
    return full.Belief(np.zeros(count), np.diag(spread**-2.0), -2 * float(np.log(spread).sum()))
