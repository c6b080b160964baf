"""The noise-aware posterior with a dense curvature: honest where parameters are correlated.

The location block of the trace follows y_t = κA(x_t − φ*) + noise with A symmetric. A Gaussian linear model: given the
noise variance, the entries of A have a joint Gaussian posterior; given A, φ* is Gaussian; given both, z is Gaussian
around φ* with precision A, so no mean-field width enters. Public knowledge keeps weak directions in place: A is around
its expected value (prior precision plus N times the Fisher information of simulated rows) times an unknown factor,
since real covariates seldom fill their bounds; it is at least the prior's precision; and φ* and z together are
distributed like the prior before anything is seen. None of it is taken from the trace, so nothing is used twice.
"""

from typing import NamedTuple

import numpy as np
from scipy import linalg

from discreet.posterior.trace import FEWEST_STEPS, TraceError
from discreet.release import Release

MOST_PARAMETERS = 100
FACTORS = 2.0 ** np.arange(-5, 3)
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
    """Gaussian posterior of the upper triangle of A under one factor of its expected value.

    `precision` is held as its Cholesky factor; `log_evidence` is that of the trace, up to a constant.
    """

    mean: np.ndarray
    precision: np.ndarray
    log_evidence: float


def noise_aware(
    rng: np.random.Generator, release: Release, prior: Prior, draws: int = 4000, *, burn_in: float = 0.2
) -> Draws:
    """Draws of φ* and of z from a release that kept its trace."""
    rate, dim = release.plan.sampling_prob, len(prior.mean)
    x, y, known = location_trace(release, dim, burn_in)
    x, y, known = (x - prior.mean) / prior.sd, y * prior.sd, known * prior.sd**2
    curvatures, variance = fit_curvature(rate * x, y, known, prior.curvature * prior.sd**2)
    evidence = np.array([curvature.log_evidence for curvature in curvatures])
    weights = np.exp(evidence - evidence.max())
    optima, spreads = [], []
    for curvature, share in zip(curvatures, rng.multinomial(draws, weights / weights.sum()), strict=True):
        for count in _portions(share, dim):
            values, vectors = _draw_curvature(rng, curvature, count, dim)
            optima.append(_draw_optimum(rng, rate, values, vectors, (x.mean(0), y.mean(0), variance / len(x))))
            spread = rng.standard_normal((count, dim)) / np.sqrt(values)
            spreads.append(np.einsum("nij,nj->ni", vectors, spread))
    order = rng.permutation(draws)
    optimum = prior.mean + prior.sd * np.concatenate(optima)[order]
    return Draws(optimum, optimum + prior.sd * np.concatenate(spreads)[order])


def location_trace(release: Release, dim: int, burn_in: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The retained x_t and y_t of the first `dim` coordinates, and the noise variance of y that the plan added."""
    if release.trace is None:
        raise TraceError("a dense curvature needs the whole trace: run with keep_trace=True")
    first = round(burn_in * len(release.trace.x))
    x, y, scale = (np.asarray(part)[first:, :dim] for part in release.trace[1:])
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


def fit_curvature(x, y, known: np.ndarray, expected: np.ndarray) -> tuple[list[Curvature], np.ndarray]:
    """Regressions of y on x with a symmetric slope matrix around f·diag(expected), one for each f in `FACTORS`.

    Entries have prior sd f·√(expected_i expected_j): parameters may be as correlated as can be. Residual variance above
    the known noise is kept as noise and returned.
    """
    dx, dy = x - x.mean(0), y - y.mean(0)
    xx, yx = dx.T @ dx, dy.T @ dx
    free = np.linalg.solve(xx, yx.T).T
    residual = ((dy - dx @ free.T) ** 2).sum(0) / (len(x) - x.shape[1] - 1)
    variance = np.maximum(known, residual)
    place, upper = _triangle_places(x.shape[1]), np.triu_indices(x.shape[1])
    seen, shift = np.zeros((len(upper[0]), len(upper[0]))), np.zeros(len(upper[0]))
    for row, spots in enumerate(place):
        seen[np.ix_(spots, spots)] += xx / variance[row]
        shift[spots] += yx[row] / variance[row]
    centre = np.diag(expected)[upper]
    spread = np.sqrt(np.outer(expected, expected))[upper]
    return [_given_factor(seen, shift, f * centre, f * spread) for f in FACTORS], variance


def _given_factor(seen: np.ndarray, shift: np.ndarray, centre: np.ndarray, spread: np.ndarray) -> Curvature:
    """Posterior and evidence of entries with prior N(centre, spread²) and Gaussian likelihood (seen, shift)."""
    factor = linalg.cholesky(seen + np.diag(spread**-2), lower=True)
    mean = linalg.cho_solve((factor, True), shift + centre / spread**2)
    fit = (factor.T @ mean) @ (factor.T @ mean) - (centre / spread) @ (centre / spread)
    return Curvature(mean, factor, float(0.5 * fit - np.log(np.diag(factor)).sum() - np.log(spread).sum()))


def _draw_curvature(rng, curvature: Curvature, count: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors of draws of A in prior units, where the prior's own precision is 1: no less.

    Draws with an eigenvalue below 1 are drawn once more, and then raised to 1. Where the trace shows the curvature,
    none is left; a direction that it hardly shows is as wide as the prior in many draws: that costs width and keeps
    coverage.
    """

    def draw(number):
        noise = rng.standard_normal((len(curvature.mean), number))
        noise = linalg.solve_triangular(curvature.precision, noise, trans=1, lower=True)
        return np.linalg.eigh((curvature.mean + noise.T)[:, _triangle_places(dim)])

    values, vectors = draw(count)
    low = np.flatnonzero(values[:, 0] < 1)
    values[low], vectors[low] = draw(len(low))
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
