"""The noise-aware posterior of φ* under y_t = κA(φ_t − φ*) + noise with diagonal A, without Monte Carlo chains.

Given the curvature a, φ* is Gaussian; a itself has a one-dimensional density. Each coordinate is drawn by inverting
that density on a grid, then φ* given a. The cost does not depend on the number of steps.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy import special

from discreet.posterior.trace import Moments, tail
from discreet.release import Release

GRID = 512


class TracePrior(NamedTuple):
    """Priors of the trace model: v ~ N(curvature_mean, curvature_sd²), a = softplus(v); φ* ~ N(centre, centre_sd²)."""

    curvature_mean: np.ndarray
    curvature_sd: np.ndarray
    centre: np.ndarray
    centre_sd: np.ndarray


def noise_aware(
    rng: np.random.Generator,
    release: Release,
    draws: int = 4000,
    *,
    burn_in: float = 0.2,
    centre: np.ndarray | None = None,
    centre_sd: float | np.ndarray = 1.0,
    extra_noise: bool = True,
    paper_prior: bool = False,
) -> np.ndarray:
    """`draws` exact draws of φ*, shape (…, draws, d).

    Without `centre` the prior of φ* is centred at the trace's own mean, as in NA-DPVI (H.3): that uses the trace twice,
    and undercovers where privacy's noise is as wide as `centre_sd`. Give the model's prior mean where it is known.
    `extra_noise`: where the residuals of the trace exceed the noise that the plan added (subsampling, a loss that is
    not quadratic), their variance is used instead. `paper_prior` centres v at the estimate of a, as NA-DPVI prints it.
    """
    moments = tail(release, burn_in)
    rate = release.plan.sampling_prob
    variance = noise_variance(moments, release.plan.noise_std**2, extra_noise)
    prior = trace_prior(moments, rate, variance, centre_sd, paper_prior)
    if centre is not None:
        prior = prior._replace(centre=np.broadcast_to(centre, prior.centre.shape))
    curvature = _draw_curvature(rng, moments, rate, variance, prior, draws)
    mean, precision = centre_given_curvature(curvature, _spread(moments), variance[..., None, :], _spread(prior), rate)
    return mean + rng.standard_normal(mean.shape) / np.sqrt(precision)


def noise_variance(moments: Moments, known: float, extra_noise: bool) -> np.ndarray:
    """Variance of y per unit weight: the plan's, or the residual variance of the fitted line where that is larger."""
    residual = (moments.yy - moments.xy**2 / moments.xx) / (moments.steps - 2)
    return np.maximum(known, residual) if extra_noise else np.full_like(moments.xx, known)


def trace_prior(moments: Moments, rate: float, variance, centre_sd, paper_prior: bool = False) -> TracePrior:
    """NA-DPVI's priors (H.3), with v centred at softplus⁻¹(â) and its delta-method sd unless `paper_prior`."""
    estimate = np.abs(moments.xy) / (rate * moments.xx)
    sd = np.sqrt(variance / moments.xx) / rate
    if paper_prior:
        mean = estimate
    else:
        estimate = np.maximum(estimate, 1e-3 * sd)
        mean, sd = softplus_inverse(estimate), sd / -np.expm1(-estimate)
    return TracePrior(mean, sd, moments.mean_x, np.broadcast_to(centre_sd, mean.shape).astype(float))


def log_density(v, moments: Moments, variance, prior: TracePrior, rate: float) -> np.ndarray:
    """log p(v | trace) up to a constant, φ* integrated out."""
    slope = rate * np.logaddexp(0, v)
    rss = moments.yy - 2 * slope * moments.xy + slope**2 * moments.xx
    total = variance / moments.weight + (slope * prior.centre_sd) ** 2
    offset = moments.mean_y - slope * (moments.mean_x - prior.centre)
    fit = -rss / (2 * variance) - 0.5 * np.log(total) - offset**2 / (2 * total)
    return fit - 0.5 * ((v - prior.curvature_mean) / prior.curvature_sd) ** 2


def centre_given_curvature(a, moments: Moments, variance, prior: TracePrior, rate: float):
    """Mean and precision of φ* given the curvature a."""
    information = moments.weight * rate * a / variance
    precision = prior.centre_sd**-2 + information * rate * a
    mean = (prior.centre * prior.centre_sd**-2 + information * (rate * a * moments.mean_x - moments.mean_y)) / precision
    return mean, precision


def softplus_inverse(a):
    """v with softplus(v) = a."""
    return a + np.log(-np.expm1(-a))


def _draw_curvature(rng, moments: Moments, rate: float, variance, prior: TracePrior, draws: int) -> np.ndarray:
    grid = _curvature_grid(moments, rate, variance, prior)
    log_mass = log_density(grid, moments, variance, prior, rate) + np.log(np.gradient(grid, axis=0))
    low = prior.curvature_sd * np.sqrt(2 * np.pi) * special.ndtr((grid[0] - prior.curvature_mean) / prior.curvature_sd)
    tail_mass = log_density(grid[0], moments, variance, prior._replace(curvature_sd=np.inf), rate) + np.log(
        low + 1e-300
    )
    log_mass[0] = np.logaddexp(log_mass[0], tail_mass)
    mass = np.exp(log_mass - log_mass.max(0))
    cdf = np.cumsum(mass, 0)
    cdf = (cdf - 0.5 * mass) / cdf[-1]
    uniform = rng.random((draws, *cdf.shape[1:]))
    v = np.empty_like(uniform)
    for place in np.ndindex(cdf.shape[1:]):
        inside = (slice(None), *place)
        v[inside] = np.interp(uniform[inside], cdf[inside], grid[inside])
    return np.moveaxis(np.logaddexp(0, v), 0, -2)


def _curvature_grid(moments: Moments, rate: float, variance, prior: TracePrior) -> np.ndarray:
    """Points in v that hold the mass; below the first, a is too small to matter and its mass is lumped there."""
    sd = np.sqrt(variance / moments.xx) / rate
    flat = 1e-3 * np.minimum(sd, np.sqrt(variance / moments.weight) / (rate * prior.centre_sd))
    low = np.maximum(prior.curvature_mean - 8 * prior.curvature_sd, softplus_inverse(flat))
    estimate = np.abs(moments.xy) / (rate * moments.xx)
    high = np.maximum(softplus_inverse(estimate + 8 * sd), low + 1e-6)
    return np.linspace(low, high, GRID)


def _spread(part: Any) -> Any:
    """Every field with an axis for draws."""
    return type(part)(*(np.asarray(value)[..., None, :] for value in part))
