"""Sums over the trace that a dense curvature needs: means and centred products of the location block."""

from typing import NamedTuple

import numpy as np

from discreet.posterior import averaging
from discreet.posterior.trace import FEWEST_STEPS, TraceError, after, check_release, moments, retained_points
from discreet.posterior.trace_model import BurnIn
from discreet.release import Blocks, Cross, Release


class Sums(NamedTuple):
    """What A and φ* need of the trace: weighted means and centred products of the retained steps.

    Each row of A may have weights of its own (noise that changes along the trace): then g = d, else g = 1.

    steps    number of retained steps
    weight   (d,) sum of weights
    mean_x   (g, d)
    mean_y   (d,)
    xx       (g, d, d)
    yx       (d, d)
    yy       (d,)
    known    (d,) variance of y per unit weight that the plan added
    """

    steps: float
    weight: np.ndarray
    mean_x: np.ndarray
    mean_y: np.ndarray
    xx: np.ndarray
    yx: np.ndarray
    yy: np.ndarray
    known: np.ndarray


def location_sums(release: Release, dim: int, burn_in: BurnIn, known: float | np.ndarray) -> Sums:
    """The sums of the first `dim` coordinates over the retained steps; `known` is the known variance of an answer."""
    check_release(release)
    blocks = release.blocks
    if np.ndim(blocks.weight) != 2:
        raise TraceError("a dense curvature is read from one release at a time: this one has replicas")
    chosen = after(blocks, burn_in) if burn_in != "converged" else averaging.inside(release, dim)
    inside = np.all(chosen, axis=1)
    retained = float(np.asarray(blocks.steps)[inside].sum())
    if retained < fewest_steps(dim):
        raise TraceError(f"{retained:.0f} retained steps are too few for a dense curvature of {dim} parameters")
    locations = Blocks(*(np.asarray(part)[:, :dim] for part in blocks))
    moments(locations, inside[:, None])  # named errors for what is not finite and for what never moved
    if release.trace is not None:
        x, y, scale = (part[:, :dim] for part in retained_points(release, inside))
        return _from_points(x, y, scale, known)
    if release.cross is not None:
        return _from_products(locations, release.cross, inside, known)
    raise TraceError("a dense curvature needs products of all coordinates: run with keep='cross' or keep='trace'")


def fewest_steps(dim: int) -> int:
    """Retained steps without which the residual variance cannot be seen."""
    return max(FEWEST_STEPS, 2 * dim)


def noise_changes(steps: np.ndarray, weight: np.ndarray) -> bool:
    """Whether blocks of these lengths (…, blocks, 1) and weights (…, blocks, d) have noise of different scales."""
    each = weight / steps
    return bool((np.ptp(each, axis=-2) > 1e-9 * each[..., 0, :]).any())


def in_units(sums: Sums, mean: np.ndarray, sd: np.ndarray) -> Sums:
    """The same where parameters are measured from `mean` in units of `sd`."""
    return sums._replace(
        mean_x=(sums.mean_x - mean) / sd,
        mean_y=sums.mean_y * sd,
        xx=sums.xx / np.outer(sd, sd),
        yx=sums.yx * sd[:, None] / sd,
        yy=sums.yy * sd**2,
        known=sums.known * sd**2,
    )


def residual_variance(sums: Sums) -> np.ndarray:
    """Variance of y per unit weight around the fitted planes, or the plan's where that is more: Σ_sub is learned."""
    dim = len(sums.mean_y)
    xx = np.broadcast_to(sums.xx, (dim, dim, dim))
    explained = np.einsum("ij,ij->i", sums.yx, np.linalg.solve(xx, sums.yx[..., None])[..., 0])
    return np.maximum(sums.known, (sums.yy - explained) / (sums.steps - dim - 1))


def _from_points(x: np.ndarray, y: np.ndarray, scale: np.ndarray, known: float | np.ndarray) -> Sums:
    steps, dim = x.shape
    known = np.broadcast_to(known, dim)
    if not np.ptp(scale, axis=0).any():
        dx, dy = x - x.mean(0), y - y.mean(0)
        xx, yx, yy = (dx.T @ dx)[None], dy.T @ dx, (dy**2).sum(0)
        return Sums(steps, np.full(dim, float(steps)), x.mean(0)[None], y.mean(0), xx, yx, yy, known * scale[0] ** 2)
    weight = scale**-2
    total = weight.sum(0)
    mean_x, mean_y = weight.T @ x / total[:, None], (weight * y).sum(0) / total
    dy = y - mean_y
    xx, yx = np.empty((dim, dim, dim)), np.empty((dim, dim))
    for row in range(dim):
        dx = x - mean_x[row]
        xx[row], yx[row] = (weight[:, row : row + 1] * dx).T @ dx, (weight[:, row] * dy[:, row]) @ dx
    return Sums(steps, total, mean_x, mean_y, xx, yx, (weight * dy**2).sum(0), known)


def _from_products(blocks: Blocks, cross: Cross, inside: np.ndarray, known: float | np.ndarray) -> Sums:
    parts = (blocks.steps, blocks.weight, blocks.mean_x, blocks.mean_y, blocks.yy)
    steps, weight, x, y, yy = (np.asarray(part)[inside] for part in parts)
    dim = x.shape[1]
    each = weight / steps
    if noise_changes(steps, weight):
        raise TraceError("the noise changes along the trace: a dense curvature then needs keep='trace'")
    total = steps.sum()
    mean_x, mean_y = steps[:, 0] @ x / total, steps[:, 0] @ y / total
    dx, dy = x - mean_x, y - mean_y
    return Sums(
        steps=total,
        weight=np.full(dim, total),
        mean_x=mean_x[None],
        mean_y=mean_y,
        xx=(np.asarray(cross.xx)[inside, :dim, :dim].sum(0) + (steps * dx).T @ dx)[None],
        yx=np.asarray(cross.yx)[inside, :dim, :dim].sum(0) + (steps * dy).T @ dx,
        yy=(yy / each + steps * dy**2).sum(0),
        known=known / each[0],
    )
