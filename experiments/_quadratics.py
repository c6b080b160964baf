"""Many SGD runs on quadratic losses at once: the trace model's own world, with a known optimum and curvature."""

import numpy as np

from discreet.query import Point
from discreet.release import Blocks, Release, summarize

BLOCK = 100


def diagonal(rng, plan, curvature, optimum, step):
    """One release of `curvature.size` independent one-dimensional runs, started at zero, noise as the plan's."""
    phi, blocks = np.zeros_like(optimum), []
    for _ in range(plan.steps // BLOCK):
        x, y = np.empty((2, BLOCK, len(optimum)))
        noise = plan.noise_std * rng.standard_normal(x.shape)
        for place in range(BLOCK):
            x[place] = phi
            y[place] = plan.sampling_prob * curvature * (phi - optimum) + noise[place]
            phi = phi - step * y[place]
        blocks.append(summarize(Point(x, x, y, np.ones_like(x))))
    stacked = Blocks(*(np.stack(field) for field in zip(*blocks, strict=True)))
    return Release(plan, "simulated", {}, stacked, phi)


def dense(rng, plan, curvature, optimum, step):
    """One release of a run with a dense curvature, with its trace."""
    x, y = np.empty((2, plan.steps, len(optimum)))
    noise, phi = plan.noise_std * rng.standard_normal(x.shape), np.zeros(len(optimum))
    pull = plan.sampling_prob * curvature
    for place in range(plan.steps):
        x[place] = phi
        y[place] = pull @ (phi - optimum) + noise[place]
        phi = phi - step * y[place]
    return Release(plan, "simulated", {}, blocks_of(x, y, BLOCK), phi, Point(x, x, y, np.ones_like(x)))


def blocks_of(x, y, length):
    """Moments of consecutive blocks of `length` steps with unit noise scale."""
    scale = np.ones((length, x.shape[1]))
    parts = (slice(start, start + length) for start in range(0, len(x), length))
    pieces = [summarize(Point(x[part], x[part], y[part], scale)) for part in parts]
    return Blocks(*(np.stack(field) for field in zip(*pieces, strict=True)))
