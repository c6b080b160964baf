"""What a release of sites means: a noise-aware posterior for DP-SEP.

Rows answer with η and Λ of their sites about the cavity's mean m. The average of Λ, seen with noise, is the posterior's
precision less the prior's; that of η is Λ(m* − m), seen with noise, and tells the posterior's mean m*: the very model
that `full` solves for gradients. There A is seen by its slopes alone, here as it stands.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from discreet.methods.natural import Shape
from discreet.methods.sites import SiteError
from discreet.model import softplus_inverse
from discreet.posterior import averaging, exact, full, naive
from discreet.posterior.sums import Sums, in_units
from discreet.posterior.trace import Moments, TraceError, after, check_release, moments
from discreet.posterior.trace_model import BurnIn, Subsampling, TracePrior, noise_of, residual_variance, trace_model
from discreet.release import Release

SLOPE_SD, LOOSE = 0.3, 1e3
OF_OPTIMUM = 500


class Seen(NamedTuple):
    """What the trace tells of all rows together: Λ with the prior's, by its upper triangle, and the answers' means.

    `means` are those of y = κA(x − m*), A the same Λ and m* the posterior's mean.
    """

    precision: np.ndarray
    precision_sd: np.ndarray
    means: Sums


def seen(release: Release, *, burn_in: BurnIn = 0.2, subsampling: Subsampling = "learned") -> Seen:
    """Of a release whose rows answered about the cavity's mean: the average answers.

    Iterates stay so near that Λ answers alike at all of them.
    """
    shape, theta = described(release.settings)
    told, variance = _tail(release, burn_in, subsampling)
    dim = shape.dim
    precision = theta[dim:] + told.mean_x[dim:] - told.mean_y[dim:] / release.plan.sampling_prob
    sd = np.sqrt(variance[dim:] / told.weight[dim:]) / release.plan.sampling_prob
    return Seen(precision, sd, _means(told.weight[:dim], told.mean_x[:dim], told.mean_y[:dim], variance[:dim]))


def seen_about_zero(
    rng: np.random.Generator, release: Release, *, burn_in: BurnIn = 0.2, subsampling: Subsampling = "learned"
) -> Seen:
    """The same for the paper's form, by the exact solver of the trace model: slopes around one, φ* anywhere.

    Not calibrated where parameters are far from zero: there φ's entries depend on one another (see `sep-comparison`).
    """
    shape, theta = described(release.settings)
    size, dim = shape.size, shape.dim
    spread = LOOSE * (release.plan.noise_std / release.plan.sampling_prob + np.abs(release.last))
    prior = TracePrior(np.full(size, softplus_inverse(1.0)), np.full(size, SLOPE_SD), np.asarray(release.last), spread)
    found = exact.solve(rng, trace_model(release, burn_in=burn_in, prior=prior, subsampling=subsampling), OF_OPTIMUM)
    whole, sd = theta + found.optimum.mean(-2), found.optimum.std(-2)
    rate = release.plan.sampling_prob
    return Seen(whole[dim:], sd[dim:], _means(np.ones(dim), np.zeros(dim), -rate * whole[:dim], (rate * sd[:dim]) ** 2))


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
    known, how = public_prior(theta, shape), {"burn_in": burn_in, "subsampling": subsampling}
    found = seen(release, **how) if release.settings["centred"] else seen_about_zero(rng, release, **how)
    units = np.outer(known.sd, known.sd)[np.triu_indices(shape.dim)]
    weight = (found.precision_sd * units) ** -2.0
    slopes = (np.diag(weight), weight * found.precision * units)
    sums = in_units(found.means, known.mean, known.sd)
    belief = full.beliefs(prior) if prior else [_anything(len(units), np.abs(found.precision * units) + 1)]
    drawn = full.draw(rng, slopes, belief, sums, release.plan.sampling_prob, sums.known, draws, least=1.0)
    optimum, z = (known.mean + known.sd * part for part in drawn[:2])
    return full.Draws(optimum, z, drawn.report)


def last_iterate(rng: np.random.Generator, release: Release, draws: int = 4000) -> np.ndarray:
    """Draws of z, shape (…, draws, dim), as if the last φ had no noise; linear sites, any leading axes."""
    shape, theta = described(release.settings)
    if shape.blocks != 1:
        raise SiteError("a mixture's last iterate is one Gaussian per component: read it with shape.moments")
    last, least = naive.last_iterate(release, 1)[..., 0, :], release.settings["least"]
    with jax.enable_x64(True):
        mean, cov = map(np.asarray, shape.moments(shape.lifted(theta + last, theta, least)))
    normal = rng.standard_normal((*last.shape[:-1], draws, shape.dim))
    return mean + normal @ np.swapaxes(np.linalg.cholesky(cov[..., 0, :, :]), -1, -2)


def described(settings: Mapping[str, Any]) -> tuple[Shape, np.ndarray]:
    """The shape of a release's sites, and the natural parameters of the prior."""
    if settings.get("method") != "sep":
        raise TraceError(f"this is a release of method {settings.get('method')!r}, not of sites (sep)")
    if "blocks" not in settings:
        raise SiteError("a network's sites have several optima, and are read by methods.pbp alone: posterior, weights")
    return Shape(settings["blocks"], settings["dim"]), np.asarray(settings["prior_theta"])


def public_prior(theta: np.ndarray, shape: Shape) -> full.Prior:
    """Prior means and sds, from natural parameters of independent priors."""
    upper = np.triu_indices(shape.dim)
    triangle = theta[shape.dim :]
    if np.abs(triangle[upper[0] != upper[1]]).max(initial=0.0) > 0:
        raise SiteError("the prior's parameters are correlated: a noise-aware posterior needs independent ones")
    precision = triangle[upper[0] == upper[1]]
    return full.Prior(theta[: shape.dim] / precision, precision**-0.5, precision)


def _tail(release: Release, burn_in: BurnIn, subsampling: Subsampling) -> tuple[Moments, np.ndarray]:
    """Moments of the retained steps, and the variance of an answer around them."""
    check_release(release)
    inside = after(release.blocks, burn_in) if burn_in != "converged" else averaging.inside(release)
    told = moments(release.blocks, inside)
    known, learned = noise_of(release, subsampling)
    variance = residual_variance(told, known) if learned else np.broadcast_to(known, told.mean_y.shape)
    return told, np.maximum(variance, np.finfo(float).tiny)


def _means(weight: np.ndarray, x: np.ndarray, y: np.ndarray, variance: np.ndarray) -> Sums:
    dim, nothing = len(y), np.zeros((1, len(y), len(y)))
    return Sums(1.0, weight, x[None], y, nothing, nothing[0], np.zeros(dim), variance)


def _anything(count: int, size: np.ndarray) -> full.Belief:
    spread = LOOSE * size
    return full.Belief(np.zeros(count), np.diag(spread**-2.0), -2 * float(np.log(spread).sum()))
