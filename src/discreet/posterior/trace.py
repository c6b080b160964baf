"""Trace statistics: the moments of a part of the trace, joined from blocks."""

from typing import NamedTuple

import numpy as np

from discreet.release import Blocks, Release

FEWEST_STEPS = 10
METHODS = (None, "elbo", "sep", "score")


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
    """Moments of the steps after the first share `burn_in`, to the nearest block."""
    check_release(release)
    return moments(release.blocks, after(release.blocks, burn_in))


def after(blocks: Blocks, burn_in: float) -> np.ndarray:
    """Which blocks lie after the first share `burn_in`, shape (blocks, 1)."""
    if not 0 <= burn_in < 1:
        raise ValueError(f"burn_in={burn_in} must lie in [0, 1)")
    count = np.shape(blocks.weight)[-2]
    return np.arange(count)[:, None] >= round(burn_in * count)


def retained_points(release: Release, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, y and noise scale of each step of the blocks `inside`, a mask (blocks,); the release has kept its trace."""
    assert release.trace is not None
    kept = np.repeat(inside, np.asarray(release.blocks.steps).reshape(-1, len(inside))[0].astype(int))
    x, y, scale = (np.asarray(part)[..., kept, :] for part in release.trace[1:])
    return x, y, scale


def halves(blocks: Blocks, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The blocks `inside`, cut in two where half of their steps are over."""
    steps = np.where(inside, np.asarray(blocks.steps), 0.0)
    early = np.cumsum(steps, -2) <= steps.sum(-2, keepdims=True) / 2
    return inside & early, inside & ~early


def moments(blocks: Blocks, inside: np.ndarray) -> Moments:
    """Moments of the blocks that are `inside`, a mask (…, blocks, 1 or d).

    Centred sums are joined by the between-block spread, so the result does not depend on where the blocks end.
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        joined = _join(blocks, inside)
    _check(joined)
    return joined


def check_release(release: Release) -> None:
    """Refuse what is not a release of gradients: its points would not lie on a line."""
    if not isinstance(release, Release):
        raise TraceError(f"a {type(release).__name__} is not a release: load one with Release.load")
    method = release.settings.get("method")
    if method not in METHODS:
        raise TraceError(f"this is a release of method {method!r}: the trace model is of gradients, scores and sites")
    if not np.size(release.blocks.weight):
        raise TraceError("this release has no answers: its blocks are empty")


def _join(blocks: Blocks, inside: np.ndarray) -> Moments:
    fields = {name: np.where(inside, np.asarray(getattr(blocks, name)), 0.0) for name in Moments._fields}
    steps, weight, mean_x, mean_y, xx, xy, yy = fields.values()
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
    if moments.steps.min() < FEWEST_STEPS:
        raise TraceError(f"{int(moments.steps.min())} retained steps are too few: at least {FEWEST_STEPS} are needed")
    for name, value in moments._asdict().items():
        if not np.isfinite(value).all():
            raise TraceError(f"the trace is not finite ({name}): the steps diverged; lower the learning rate")
    rounding = moments.weight * (2e-15 * moments.mean_x) ** 2
    still = np.unique(np.argwhere(moments.xx <= rounding)[:, -1])
    if len(still):
        raise TraceError(f"coordinates {still.tolist()} never moved: their curvature cannot be seen in the trace")
