"""The trace model by Laplace's approximation: one Gaussian around the joint mode of all unknowns, none of them fixed.

It is taken in the coordinates of `trace_model.place`, with their Jacobian. The prior is stated for v, so v needs none.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from discreet.posterior import exact
from discreet.posterior.trace import TraceError
from discreet.posterior.trace_model import Solution, TraceModel, coordinates, flattened, place, potential, solution

STEPS, MOST_DAMPING = 100, 1e12


def solve(rng: np.random.Generator, model: TraceModel, draws: int = 4000) -> Solution:
    """`draws` from the Gaussian, shape (…, draws, d)."""
    flat = flattened(model)
    with jax.enable_x64(True):
        mode, covariance = (np.asarray(part) for part in _gaussian(flat))
        found = np.linalg.eigvalsh(np.where(np.isfinite(covariance), covariance, 0.0))[:, 0]
        if not (found > 0).all():
            bad = np.flatnonzero(~(found > 0))[:10].tolist()
            raise TraceError(f"coordinates {bad} have no mode that is curved on all sides: use solver='exact'")
        noise = rng.standard_normal((draws, *mode.shape))
        drawn = mode + np.einsum("dij,ndj->ndi", np.linalg.cholesky(covariance), noise)
        at = dict(zip(coordinates(flat), np.moveaxis(drawn, -1, 0), strict=True))
        parts = [np.asarray(part) for part in jax.vmap(partial(place, flat))(at)[:3]]
    parts = (part.reshape(draws, *model.moments.xx.shape) for part in parts)
    return solution(parts, {})


def _gaussian(model: TraceModel) -> tuple[Array, Array]:
    """Mode (d, k) and covariance (d, k, k) of each coordinate's k unknowns."""
    names, learned, rate = tuple(coordinates(model)), model.learned, model.rate
    start, unit = _start(model)

    def one(parts, start, unit):
        alone = TraceModel(parts[0], rate, parts[1], learned, *parts[2:])

        def loss(moved):
            return potential(alone, dict(zip(names, start + unit * moved, strict=True)))

        moved = _minimise(loss, jnp.zeros_like(start))
        return start + unit * moved, jnp.linalg.inv(jax.hessian(loss)(moved)) * unit[:, None] * unit[None]

    return jax.jit(jax.vmap(one))((model.moments, model.known, model.variance, model.prior), start, unit)


def _start(model: TraceModel) -> tuple[np.ndarray, np.ndarray]:
    """Where the search begins and its units: the middle of `exact`'s grid."""
    found = exact.grid(model)
    v = (found.mass * found.v).sum((0, 1))
    start, unit = [v, np.zeros_like(v)], [np.sqrt((found.mass * (found.v - v) ** 2).sum((0, 1))), np.ones_like(v)]
    if model.learned:
        variance = (found.mass * found.variance).sum((0, 1))
        start.append(np.log(np.maximum(variance - model.known, 1e-3 * variance) / model.variance))
        unit.append(np.ones_like(v))
    return np.stack(start, -1), np.stack(unit, -1)


def _minimise(loss, start: Array) -> Array:
    """Newton's method; a step that does not descend is damped and tried again."""

    def step(_, carry):
        at, damping = carry
        values, vectors = jnp.linalg.eigh(jax.hessian(loss)(at))
        move = -vectors @ ((vectors.T @ jax.grad(loss)(at)) / (jnp.abs(values) + damping + 1e-12))
        better = loss(at + move) <= loss(at)
        damping = jnp.where(better, damping / 10, jnp.minimum(10 * damping + 1e-3, MOST_DAMPING))
        return jnp.where(better, at + move, at), damping

    return jax.lax.fori_loop(0, STEPS, step, (start, jnp.zeros(())))[0]
