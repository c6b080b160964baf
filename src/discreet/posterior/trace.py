"""Trace statistics: the moments of a tail of the trace, joined from blocks."""

from typing import NamedTuple

import numpy as np

from discreet.release import Blocks, Release

FEWEST_STEPS = 10


class TraceError(ValueError):
    """The trace does not say what was asked of it. `release` is set where a fit had been paid for."""

    release: Release | None = None


class Moments(NamedTuple):
    """Weighted moments of (x, y) over the retained steps, per coordinate that rows answered; centred, shape (…, d)."""

    steps: np.ndarray
    weight: np.ndarray
    mean_x: np.ndarray
    mean_y: np.ndarray
    xx: np.ndarray
    xy: np.ndarray
    yy: np.ndarray


def tail(release: Release, burn_in: float = 0.2) -> Moments:
    """Moments of the steps after the first share `burn_in`, to the nearest block.

    Centred sums are joined by the between-block spread, so the result does not depend on where the blocks end.
    """
    if not 0 <= burn_in < 1:
        raise ValueError(f"burn_in={burn_in} must lie in [0, 1)")
    with np.errstate(invalid="ignore", over="ignore"):
        moments = _join(release.blocks, burn_in)
    _check(moments)
    return moments


def tail_mean(release: Release, burn_in: float = 0.2) -> np.ndarray:
    """Mean of the iterates after the first share `burn_in`, all of φ, shape (…, |φ|)."""
    steps, mean = (np.asarray(field) for field in release.blocks[:2])
    first = round(burn_in * mean.shape[-2])
    return (steps * mean)[..., first:, :].sum(-2) / steps[..., first:, :].sum(-2)


def _join(blocks: Blocks, burn_in: float) -> Moments:
    first = round(burn_in * blocks.weight.shape[-2])
    fields = {name: np.asarray(field)[..., first:, :] for name, field in blocks._asdict().items()}
    steps, weight, mean_x, mean_y, xx, xy, yy = (fields[name] for name in Moments._fields)
    total = weight.sum(-2)
    x, y = (weight * mean_x).sum(-2) / total, (weight * mean_y).sum(-2) / total
    dx, dy = mean_x - x[..., None, :], mean_y - y[..., None, :]
    return Moments(
        steps=steps.sum(-2),
        weight=total,
        mean_x=x,
        mean_y=y,
        xx=(xx + weight * dx * dx).sum(-2),
        xy=(xy + weight * dx * dy).sum(-2),
        yy=(yy + weight * dy * dy).sum(-2),
    )


def _check(moments: Moments) -> None:
    for name, value in moments._asdict().items():
        if not np.isfinite(value).all():
            raise TraceError(f"the trace is not finite ({name}): the steps diverged; lower the learning rate")
    if moments.steps.min() < FEWEST_STEPS:
        raise TraceError(f"{int(moments.steps.min())} retained steps are too few: at least {FEWEST_STEPS} are needed")
    still = np.unique(np.argwhere(moments.xx <= 0)[:, -1])
    if len(still):
        raise TraceError(f"coordinates {still.tolist()} never moved: their curvature cannot be seen in the trace")
