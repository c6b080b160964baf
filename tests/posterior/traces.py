"""Traces with a known optimum and curvature: SGD on a quadratic loss under the plan's own noise."""

import numpy as np
from scipy.signal import lfilter

from discreet.plan import Plan
from discreet.query import Point
from discreet.release import Blocks, Release, summarize


def quadratic(
    rng, curvature, optimum, *, steps=2000, std=20.0, rate=0.1, step_size=None, start=None, block=50, beta=None
):
    """The release of `steps` noisy gradients κA(φ − φ*) and SGD on them."""
    curvature = np.atleast_2d(curvature)
    dim = len(optimum)
    beta = np.ones(dim) if beta is None else beta
    step_size = 30 / (steps * rate * np.linalg.eigvalsh(curvature).max()) if step_size is None else step_size
    plan = Plan(num_rows=1000, steps=steps, sampling_prob=rate, clip_norm=1.0, noise_multiplier=std, batch_limit=None)
    phi = np.array(optimum, float) if start is None else np.array(start, float)
    x, y = np.empty((steps, dim)), np.empty((steps, dim))
    for step in range(steps):
        x[step] = phi
        y[step] = rate * curvature @ (phi - optimum) + std / beta * rng.standard_normal(dim)
        phi = phi - step_size * y[step]
    return release_of(plan, x, y, np.broadcast_to(1 / beta, x.shape), phi, block)


def release_of(plan, x, y, scale, last, block=50):
    points = Point(x, x, y, np.array(scale))
    return Release(plan, "simulated", {}, blocks_of(points, block), last, points)


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
