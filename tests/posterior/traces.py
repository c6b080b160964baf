"""Traces with a known optimum and curvature, and the trace model solved on them by brute force."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.signal import lfilter

from discreet.plan import Plan
from discreet.query import Point
from discreet.release import Blocks, Cross, Release, multiply, summarize


def quadratic(
    rng,
    curvature,
    optimum,
    *,
    steps=2000,
    std=20.0,
    rate=0.1,
    step_size=None,
    start=None,
    block=50,
    beta=None,
    scale=None,
):
    """The release of `steps` noisy gradients κA(φ − φ*) and SGD on them.

    Their noise is the plan's divided by `beta`, or times `scale` (steps, dim). Without a `step_size` the curvature is
    seen to about √15 of its sds, whatever the noise; ten times that step size gives √150.
    """
    curvature = np.atleast_2d(curvature)
    dim = len(optimum)
    scale = np.broadcast_to(1 / (np.ones(dim) if beta is None else beta), (steps, dim)) if scale is None else scale
    step_size = 30 / (steps * rate * np.linalg.eigvalsh(curvature).max()) if step_size is None else step_size
    plan = Plan(num_rows=1000, steps=steps, sampling_prob=rate, clip_norm=1.0, noise_multiplier=std, batch_limit=None)
    phi = np.array(optimum, float) if start is None else np.array(start, float)
    x, y = np.empty((steps, dim)), np.empty((steps, dim))
    for step in range(steps):
        x[step] = phi
        y[step] = rate * curvature @ (phi - optimum) + std * scale[step] * rng.standard_normal(dim)
        phi = phi - step_size * y[step]
    return release_of(plan, x, y, scale, phi, block)


def release_of(plan, x, y, scale, last, block=50):
    points = Point(x, x, y, np.array(scale))
    return Release(plan, "simulated", {}, blocks_of(points, block), last, points)


def line(rng, curvature, optimum, x, *, std, rate=0.1, block=50):
    """The release of points at given iterates `x` (steps, d): y = κa(x − φ*) + noise, coordinate by coordinate."""
    plan = Plan(num_rows=1000, steps=len(x), sampling_prob=rate, clip_norm=1.0, noise_multiplier=std)
    y = rate * np.asarray(curvature) * (x - optimum) + std * rng.standard_normal(x.shape)
    return release_of(plan, x, y, np.ones_like(x), x[-1], block)


def with_products(release, block=50):
    """The same release as if it had been run with keep="cross": products of blocks in place of the trace."""
    starts = range(0, len(release.trace.x), block)
    parts = [multiply(Point(*(part[start : start + block] for part in release.trace))) for start in starts]
    return replace(release, trace=None, cross=Cross(*(np.stack(field) for field in zip(*parts, strict=True))))


def with_plan(release, **changes):
    """The same release under another plan."""
    return replace(release, plan=replace(release.plan, **changes))


def stacked(releases):
    """Releases of one plan as replicas of one release, without their traces."""
    blocks = Blocks(*(np.stack(field) for field in zip(*(release.blocks for release in releases), strict=True)))
    last = np.stack([release.last for release in releases])
    return replace(releases[0], blocks=blocks, last=last, trace=None)


def of_iterates(iterates, block=50):
    """The release of these iterates, (steps, |φ|), without a trace; what rows answered is left blank."""
    plan = Plan(num_rows=1000, steps=len(iterates), sampling_prob=0.1, clip_norm=1.0, noise_multiplier=1.0)
    blank = np.ones((len(iterates), 1))
    return Release(plan, "simulated", {}, blocks_of(Point(iterates, blank, blank, blank), block), iterates[-1])


def blocks_of(points, block):
    """Moments of consecutive blocks; the last may be shorter."""
    with np.errstate(invalid="ignore", over="ignore"):
        starts = range(0, len(points.iterate), block)
        parts = [summarize(Point(*(part[start : start + block] for part in points))) for start in starts]
    return Blocks(*(np.stack(field) for field in zip(*parts, strict=True)))


def autoregression(rng, steps, count, memory, sd):
    """`count` stationary traces (steps, count) around zero: an Ornstein-Uhlenbeck process seen at whole times.

    `memory` is its correlation time in steps, `sd` its stationary sd.
    """
    rho = np.exp(-1 / memory)
    shocks = sd * np.sqrt(1 - rho**2) * rng.standard_normal((steps, count))
    shocks[0] /= np.sqrt(1 - rho**2)
    return lfilter([1.0], [1.0, -rho], shocks, axis=0)


class Marginal(NamedTuple):
    """Points on a line and the probability of each."""

    at: np.ndarray
    mass: np.ndarray

    @property
    def mean(self):
        return self.at @ self.mass

    @property
    def sd(self):
        return np.sqrt((self.at - self.mean) ** 2 @ self.mass)

    def quantile_points(self, probs):
        """Points near these quantiles, and the probability below each; a spline through the masses is integrated."""
        steps = np.arange(len(self.mass))
        below = CubicSpline(steps, self.mass).antiderivative()(steps)
        places = np.searchsorted(below, probs)
        return self.at[places], below[places]


def brute_force(release, model, first, *, coordinate=0, points=(1500, 2000), variances=40):
    """Marginals of φ*, a and w by quadrature over (v, φ*[, w]) on the raw steps from `first` on.

    Nothing is integrated analytically. Points crowd around the least squares line, and reach ten sds of the prior.
    """
    x, y, scale = (np.asarray(part)[first:, coordinate] for part in release.trace[1:])
    v_mean, v_sd, centre, centre_sd = (part[coordinate] for part in model.prior)
    rate, weight, guess = release.plan.sampling_prob, scale**-2.0, model.variance[coordinate]
    middle, answer = np.average(x, weights=weight), np.average(y, weights=weight)
    spread = weight @ (x - middle) ** 2
    a_sd = np.sqrt(guess / spread) / rate
    a = max(weight @ ((x - middle) * (y - answer)) / spread / rate, a_sd)
    v_hat, phi_hat = a + np.log(-np.expm1(-a)), middle - answer / (rate * a)
    v, dv = _crowded(v_hat, min(a_sd / -np.expm1(-a), v_sd), abs(v_hat - v_mean) + 10 * v_sd, points[0])
    phi_sd = np.sqrt(guess / weight.sum()) / (rate * a)
    phi, dphi = _crowded(phi_hat, min(phi_sd, centre_sd), abs(phi_hat - centre) + 10 * centre_sd, points[1])
    w, dw = _variances(model.known[coordinate], guess, len(x), variances) if model.learned else ([guess], [1.0])

    slope = rate * np.logaddexp(0, v)
    residual = y[:, None] - slope * (x - middle)[:, None]
    away = slope[:, None] * (phi - middle)
    squares = (weight @ residual**2)[:, None] + 2 * away * (weight @ residual)[:, None] + away**2 * weight.sum()
    log_prior = (np.log(dv) - 0.5 * ((v - v_mean) / v_sd) ** 2)[:, None]
    log_prior = log_prior + np.log(dphi) - 0.5 * ((phi - centre) / centre_sd) ** 2

    def log_joint(variance):
        return log_prior - squares / (2 * variance) - 0.5 * len(x) * np.log(variance)

    peak, sums = log_joint(guess).max(), []
    for variance, step in zip(w, dw, strict=True):
        density = step * np.exp(log_joint(variance) - peak)
        sums.append((density.sum(0), density.sum(1), density.sum()))
    of_phi, of_v, of_w = (np.array(part) for part in zip(*sums, strict=True))
    total = of_w.sum()
    return (
        Marginal(phi, of_phi.sum(0) / total),
        Marginal(slope / rate, of_v.sum(0) / total),
        Marginal(np.array(w), of_w / total),
    )


def _crowded(centre, scale, reach, points):
    """Points `reach` to both sides of `centre`, `scale` apart times a small number near it, and their steps."""
    end = np.arcsinh(reach / scale)
    at = np.linspace(-end, end, points)
    return centre + scale * np.sinh(at), scale * np.cosh(at) * (at[1] - at[0])


def _variances(known, guess, steps, count):
    """Gauss-Legendre points in log w, where the density ∝ 1/w is flat, within 10 sds and above what is known."""
    sd = np.sqrt(2 / steps)
    low, high = np.log(max(known, guess * np.exp(-10 * sd))), np.log(guess) + 10 * sd
    at, step = np.polynomial.legendre.leggauss(count)
    return np.exp(low + (high - low) * (1 + at) / 2), step
