"""Traces with a known optimum and curvature: SGD on a quadratic loss under the plan's own noise."""

import numpy as np

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
    with np.errstate(invalid="ignore"):
        parts = [summarize(Point(*(part[i : i + block] for part in (x, y, scale)))) for i in range(0, len(x), block)]
    blocks = Blocks(*(np.stack(field) for field in zip(*parts, strict=True)))
    return Release(plan, "simulated", {}, blocks, last, Point(x, y, np.array(scale)))
