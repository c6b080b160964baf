"""The trace model solved without Monte Carlo chains, for a diagonal curvature.

Given the curvature a and the variance w, φ* is Gaussian; a and w have a density in one or two dimensions, which is put
on a grid. The cost does not depend on the number of steps.
"""

from typing import NamedTuple

import numpy as np
from scipy import special

from discreet.model import softplus_inverse
from discreet.posterior.trace_model import (
    Solution,
    TraceModel,
    coordinate,
    estimate,
    flattened,
    optimum_given,
)

CURVATURES, VARIANCES = 300, 12
LOOKS, LOOK, FLAT, NEGLIGIBLE = 5, 120, 1e-6, 40.0


class Grid(NamedTuple):
    """Curvatures and variances with their probabilities, shape (variances, curvatures, …, d); the latter sum to 1."""

    v: np.ndarray
    variance: np.ndarray
    mass: np.ndarray


def solve(rng: np.random.Generator, model: TraceModel, draws: int = 4000) -> Solution:
    """`draws` independent draws, shape (…, draws, d)."""
    shape, flat = model.moments.xx.shape, flattened(model)
    found = grid(flat)
    drawn = np.empty((3, len(flat.known), draws))
    for spot in range(len(flat.known)):  # one by one they stay in the processor's cache
        v, variance = _draw(rng, found, spot, draws)
        a = np.logaddexp(0, v)
        mean, precision = optimum_given(coordinate(flat, spot), a, variance)
        drawn[:, spot] = mean + rng.standard_normal(draws) / np.sqrt(precision), a, variance
    optimum, curvature, variance = np.swapaxes(drawn.reshape(3, *shape, draws), -1, -2)
    return Solution(optimum, curvature, variance, {})


def moments_of_optimum(model: TraceModel) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of φ*, by quadrature."""
    found = grid(model)
    mean, precision = optimum_given(model, np.logaddexp(0, found.v), found.variance)
    centre = (found.mass * mean).sum((0, 1))
    return centre, np.sqrt((found.mass * ((mean - centre) ** 2 + 1 / precision)).sum((0, 1)))


def probability_below(model: TraceModel, phi: np.ndarray) -> np.ndarray:
    """P(φ* < phi) for `phi` of shape (…, d), by quadrature."""
    found = grid(model)
    mean, precision = optimum_given(model, np.logaddexp(0, found.v), found.variance)
    return (found.mass * special.ndtr((phi - mean) * np.sqrt(precision))).sum((0, 1))


def log_density(model: TraceModel, v, variance) -> np.ndarray:
    """log p(trace | v, w), φ* integrated out, up to a constant."""
    seen, prior = model.moments, model.prior
    slope = model.rate * np.logaddexp(0, v)
    rss = seen.yy + slope * (slope * seen.xx - 2 * seen.xy)
    total = variance / seen.weight + (slope * prior.centre_sd) ** 2
    offset = seen.mean_y - slope * (seen.mean_x - prior.centre)
    return -0.5 * (rss / variance + offset**2 / total + np.log(total) + (seen.steps - 1) * np.log(variance))


def grid(model: TraceModel) -> Grid:
    """The posterior of (v, w) on a grid that holds its mass.

    Below the first v the curvature is too small to matter: what lies there is lumped onto it.
    """
    log_a = _log_curvatures(model)
    v, variance, prior = softplus_inverse(np.exp(log_a))[None], _variances(model)[:, None], model.prior
    log_prior = _log_prior(model, log_a)[None] + np.log(log_a[1] - log_a[0])
    low = (v[:, :1] - prior.curvature_mean) / prior.curvature_sd
    beneath = np.log(prior.curvature_sd * np.sqrt(2 * np.pi)) + special.log_ndtr(low)
    log_prior[:, :1] = np.logaddexp(log_prior[:, :1] - np.log(2), beneath)
    log_mass = log_density(model, v, variance) + log_prior
    mass = np.exp(log_mass - log_mass.max((0, 1)))
    return Grid(v, variance, mass / mass.sum((0, 1)))


def _log_prior(model: TraceModel, log_a) -> np.ndarray:
    """log prior of log a: that of v, and dv/d log a."""
    a, prior = np.exp(log_a), model.prior
    jacobian = log_a - np.log(-np.expm1(-a))
    return jacobian - 0.5 * ((softplus_inverse(a) - prior.curvature_mean) / prior.curvature_sd) ** 2


def _log_curvatures(model: TraceModel) -> np.ndarray:
    """Equally spaced log a, (CURVATURES, …, d), wherever the density is above e^−NEGLIGIBLE of its peak.

    Small curvatures, at which φ* may be anywhere, are seen as sharply as large ones. The peak is found by looking
    closer, `LOOKS` times, at where the density is high.
    """
    seen, prior, variance = model.moments, model.prior, model.variance
    found, sd = estimate(seen, model.rate, variance)
    matters = np.sqrt(variance / seen.weight) / (model.rate * prior.centre_sd)
    low = np.log(FLAT * np.minimum(sd, matters))
    most = np.logaddexp(0, prior.curvature_mean + 9 * prior.curvature_sd)
    high = np.log(np.maximum(np.maximum(found, 0) + 9 * sd, most))
    high = np.maximum(high, low + 1)
    for _ in range(LOOKS):
        u = np.linspace(low, high, LOOK)
        height = log_density(model, softplus_inverse(np.exp(u)), variance) + _log_prior(model, u)
        high_enough = height > height.max(0) - NEGLIGIBLE
        first = np.maximum(high_enough.argmax(0) - 1, 0)
        last = np.minimum(LOOK - high_enough[::-1].argmax(0), LOOK - 1)
        low, high = (np.take_along_axis(u, place[None], 0)[0] for place in (first, last))
    return np.linspace(low, high, CURVATURES)


def _variances(model: TraceModel) -> np.ndarray:
    """What is known, or `VARIANCES` values above it, equally spaced in log w: the density ∝ 1/w is flat there."""
    if not model.learned:
        return model.known[None]
    sd = np.sqrt(2 / model.moments.steps)
    low = np.log(np.maximum(model.known, model.variance * np.exp(-5 * sd)))
    cells = np.linspace(low, np.log(model.variance) + 5 * sd, VARIANCES + 1)
    return np.exp((cells[1:] + cells[:-1]) / 2)


def _draw(rng: np.random.Generator, found: Grid, spot: int, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws of (v, w) of one coordinate: w from its cells, v between the points of the grid."""
    mass, points = found.mass[:, :, spot], found.v[0, :, spot]
    cells, count = mass.shape
    of_cell = mass.sum(1)
    below = (np.cumsum(mass, 1) - mass / 2) / np.maximum(of_cell[:, None], 1e-300)
    below += np.arange(cells)[:, None]  # cell by cell, one increasing line
    cell = np.searchsorted(np.cumsum(of_cell[:-1]) / of_cell.sum(), rng.random(draws))
    place = np.clip(cell + rng.random(draws), below[cell, 0], below[cell, count - 1])
    v = np.interp(place, below.ravel(), np.tile(points, cells))
    return v, found.variance[:, 0, spot][cell]
