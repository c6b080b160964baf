"""The noise-aware posterior with a dense curvature: honest where parameters are correlated.

The location block of the trace follows y_t = κA(x_t − φ*) + noise with A symmetric. A Gaussian linear model: given the
noise variance, the entries of A have a joint Gaussian posterior; given A, φ* is Gaussian; given both, z is Gaussian
around φ* with precision A, so no mean-field width enters. Public knowledge keeps weak directions in place: A is around
its expected value (prior precision plus N times the Fisher information of simulated rows), with a standard deviation as
large as that value itself; it is at least the prior's precision; and φ* and z together are distributed like the prior
before anything is seen. None of it is taken from the trace, so nothing is used twice.
"""

from typing import NamedTuple

import numpy as np
from scipy import linalg

from discreet.posterior.trace import FEWEST_STEPS, TraceError
from discreet.release import Release

MOST_PARAMETERS = 100
_DRAWS_AT_ONCE = 2**24


class Prior(NamedTuple):
    """What is known in public about each parameter: its prior mean and sd, and the curvature to expect."""

    mean: np.ndarray
    sd: np.ndarray
    curvature: np.ndarray


class Draws(NamedTuple):
    """Joint draws, shape (draws, dim): the optimum φ* that the rows have, and parameters z around it."""

    optimum: np.ndarray
    z: np.ndarray


class Curvature(NamedTuple):
    """Gaussian posterior of the upper triangle of A: its mean, and the Cholesky factor of its precision."""

    mean: np.ndarray
    factor: np.ndarray


def noise_aware(
    rng: np.random.Generator, release: Release, prior: Prior, draws: int = 4000, *, burn_in: float = 0.2
) -> Draws:
    """Draws of φ* and of z from a release that kept its trace."""
    rate, dim = release.plan.sampling_prob, len(prior.mean)
    x, y, known = location_trace(release, dim, burn_in)
    x, y, known = (x - prior.mean) / prior.sd, y * prior.sd, known * prior.sd**2
    curvature, variance = fit_curvature(rate * x, y, known, prior.curvature * prior.sd**2)
    optima, spreads = [], []
    for count in _portions(draws, dim):
        values, vectors = _draw_curvature(rng, curvature, count, dim)
        optima.append(_draw_optimum(rng, rate, values, vectors, (x.mean(0), y.mean(0), variance / len(x))))
        spread = rng.standard_normal((count, dim)) / np.sqrt(values)
        spreads.append(np.einsum("nij,nj->ni", vectors, spread))
    optimum = prior.mean + prior.sd * np.concatenate(optima)
    return Draws(optimum, optimum + prior.sd * np.concatenate(spreads))


def location_trace(release: Release, dim: int, burn_in: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The retained x_t and y_t of the first `dim` coordinates, and the noise variance of y that the plan added."""
    if release.trace is None:
        raise TraceError("a dense curvature needs the whole trace: run with keep_trace=True")
    first = round(burn_in * len(release.trace.x))
    x, y, scale = (np.asarray(part)[first:, :dim] for part in release.trace)
    if len(x) < fewest_steps(dim):
        raise TraceError(f"{len(x)} retained steps are too few for a dense curvature of {dim} parameters")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise TraceError("the trace is not finite: the steps diverged; lower the learning rate")
    if np.ptp(scale, axis=0).any():
        raise TraceError("the noise scale changes along the trace: a dense curvature needs a constant one")
    if (np.ptp(x, axis=0) == 0).any():
        raise TraceError("some coordinates never moved: their curvature cannot be seen in the trace")
    return x, y, (release.plan.noise_std * scale[0]) ** 2


def fewest_steps(dim: int) -> int:
    """Retained steps without which the residual variance cannot be seen."""
    return max(FEWEST_STEPS, 2 * dim)


def fit_curvature(x, y, known: np.ndarray, expected: np.ndarray) -> tuple[Curvature, np.ndarray]:
    """Regression of y on x with a symmetric slope matrix around diag(expected).

    Entries have prior sd √(expected_i expected_j), half that off the diagonal. Residual variance above the known noise
    is kept as noise.
    """
    dx, dy = x - x.mean(0), y - y.mean(0)
    xx, yx = dx.T @ dx, dy.T @ dx
    free = np.linalg.solve(xx, yx.T).T
    residual = ((dy - dx @ free.T) ** 2).sum(0) / (len(x) - x.shape[1] - 1)
    variance = np.maximum(known, residual)
    place, upper = _triangle_places(x.shape[1]), np.triu_indices(x.shape[1])
    weight = (np.outer(expected, expected) * np.where(np.eye(len(expected)), 1.0, 0.25))[upper] ** -1
    precision, shift = np.diag(weight), weight * np.diag(expected)[upper]
    for row, spots in enumerate(place):
        precision[np.ix_(spots, spots)] += xx / variance[row]
        shift[spots] += yx[row] / variance[row]
    factor = linalg.cholesky(precision, lower=True)
    return Curvature(linalg.cho_solve((factor, True), shift), factor), variance


def _draw_curvature(rng, curvature: Curvature, count: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors of draws of A in prior units, where the prior's own precision is 1: no less.

    Eigenvalues below 1 are raised to 1 rather than drawn again: a direction whose curvature the trace hardly shows is
    then as wide as the prior in some draws. That costs width in such directions and keeps coverage.
    """
    noise = rng.standard_normal((len(curvature.mean), count))
    noise = linalg.solve_triangular(curvature.factor, noise, trans=1, lower=True)
    values, vectors = np.linalg.eigh((curvature.mean + noise.T)[:, _triangle_places(dim)])
    return np.maximum(values, 1.0), vectors


def _draw_optimum(rng, rate: float, values: np.ndarray, vectors: np.ndarray, means) -> np.ndarray:
    """φ* given A: mean_y = κA(mean_x − φ*) + noise, and before that φ* ~ N(0, I − A⁻¹).

    That prior is what makes z ~ N(φ*, A⁻¹) distributed like the model's prior when nothing was learned.
    """
    mean_x, mean_y, variance = means
    across = np.swapaxes(vectors, 1, 2)
    b = rate * (vectors * values[:, None, :]) @ across
    weighted = b / variance[:, None]
    known = values / np.maximum(values - 1, 1e-6)
    precision = (vectors * known[:, None, :]) @ across + b @ weighted
    mean = np.linalg.solve(precision, (b @ (weighted @ mean_x - mean_y / variance)[..., None]))[..., 0]
    factor = np.linalg.cholesky(precision)
    noise = np.linalg.solve(np.swapaxes(factor, 1, 2), rng.standard_normal((*mean.shape, 1)))[..., 0]
    return mean + noise


def _triangle_places(dim: int) -> np.ndarray:
    """For each entry of a symmetric matrix, its place in the list of the upper triangle."""
    place = np.zeros((dim, dim), int)
    upper = np.triu_indices(dim)
    place[upper] = np.arange(len(upper[0]))
    return np.maximum(place, place.T)


def _portions(draws: int, dim: int) -> list[int]:
    most = max(1, _DRAWS_AT_ONCE // dim**2)
    return [min(most, draws - start) for start in range(0, draws, most)]
