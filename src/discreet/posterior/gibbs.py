"""Noise-aware posteriors of conjugate families from one noisy sum of statistics (Bernstein and Sheldon 2018).

The release is s̃ = s + noise, s the sum of what rows answered. Given z, the sums (S, s) of sufficient and released
statistics over N rows are taken as normal with N times a row's moments: the central limit theorem is the one
approximation. A sweep draws

    τ | noise           Laplace noise of scale b is N(0, τ), τ ~ Exponential(mean 2b²), one τ for each coordinate;
                        Gaussian noise has constant τ and no such step
    (S, noise) | z, τ   normal, by Matheron's rule: draw from the prior, then correct by what the release says
    z | S               conjugate

S must be a sum that rows can have (counts between 0 and N, waiting times above 0): a draw that is not is refused and
S stays where it was, which leaves the normal restricted to possible sums invariant. Pushing S to the nearest possible
sum would pile draws up there.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from discreet.families.exponential import Conjugate, RowMoments
from discreet.plan import NORM_ORDERS, require
from discreet.release import Release

TRIES = 60


class Told(NamedTuple):
    """What a chain is told: the noisy sums, the number of rows, the noise's scale, and whether it is Laplace's."""

    noisy: Array
    num_rows: Array
    scale: Array
    laplace: Array


class Sweep(NamedTuple):
    """Where the chain is: z, the sum of sufficient statistics, and the noise of the release."""

    z: Array
    total: Array
    noise: Array


def sample(
    key: Array,
    conjugate: Conjugate,
    noisy: np.ndarray,
    num_rows: int,
    noise_scale: float,
    kind: str,
    draws: int,
    *,
    warm_up: int = 500,
    thin: int = 1,
) -> np.ndarray:
    """Draws of z given a noisy sum of the family's statistics: (size,) to (draws, dim), (K, size) to (K, draws, dim).

    `noise_scale` is the sd of "gaussian" noise or the scale b of "laplace" noise. Every `thin`-th sweep is kept.
    """
    noisy = np.asarray(noisy, np.float64)
    _check(conjugate, noisy, noise_scale, kind, draws, warm_up, thin)
    with jax.enable_x64(True):
        several = jnp.asarray(np.atleast_2d(noisy))
        told = Told(
            several, jnp.asarray(float(num_rows)), jnp.asarray(float(noise_scale)), jnp.asarray(kind == "laplace")
        )
        keys = jax.random.split(key, len(several))
        z = np.asarray(_chains(conjugate, (warm_up, draws, thin), keys, told))
    return z if noisy.ndim == 2 else z[0]


def from_release(key: Array, conjugate: Conjugate, release: Release, draws: int, **sampling: int) -> np.ndarray:
    """Draws of z from a release of `methods.statistics.of_family`, with its replicas if it has them."""
    check_release(release, conjugate.settings)
    plan = release.plan
    return sample(key, conjugate, release.last, plan.num_rows, plan.noise_scale, plan.noise_kind, draws, **sampling)


def check_release(release: Release, settings: Mapping[str, Any]) -> None:
    """Refuse a release of other statistics than those that `settings` describe."""
    expected = {"method": "statistics", **settings}
    if {name: release.settings.get(name) for name in expected} != expected:
        raise ValueError(f"this release is of {dict(release.settings)}, not of {expected}")


def mixing_variance(normal: Array, uniform: Array, noise: Array, scale: Array) -> Array:
    """τ given noise ~ N(0, τ) and τ ~ Exponential(mean 2·scale²): 1/τ is inverse Gaussian(1/(scale·|noise|), 1/scale²).

    By Michael, Schucany and Haas (1976), written for τ: nothing is divided by the noise, which may be 0.
    """
    u, y = jnp.abs(noise) / scale, normal**2
    root = u + y / 2 + jnp.sqrt(y**2 / 4 + u * y) + 1e-300
    return scale**2 * jnp.where(uniform * (root + u) <= root, root, u * (u / root))


def sums_given(normal: Array, moments: RowMoments, told: Told, variance: Array) -> tuple[Array, Array]:
    """(S, noise) given a row's moments, the noise's variances and the release: singular covariances are allowed."""
    root, released_root = (jnp.sqrt(told.num_rows) * part for part in (moments.root, moments.released_root))
    first, noise = normal[: root.shape[1]], jnp.sqrt(variance) * normal[root.shape[1] :]
    missed = told.noisy - told.num_rows * moments.released_mean - released_root @ first - noise
    weight = _solve(released_root @ released_root.T + jnp.diag(variance), missed)
    return told.num_rows * moments.mean + root @ (first + released_root.T @ weight), noise + variance * weight


def elliptical(chance: Array, log_weight, mean: Array, away: Array, at: Array) -> Array:
    """A step that leaves N(mean, ·)·exp(log_weight) invariant; `away` is a draw from N(0, ·) (Murray et al. 2010).

    `chance` holds uniforms: for the height, the first angle, and every later try.
    """
    height = log_weight(at) + jnp.log(chance[0])

    def place(angle):
        return mean + (at - mean) * jnp.cos(angle) + away * jnp.sin(angle)

    def narrow(state):
        tries, low, high, angle, _ = state
        angle = low + (high - low) * chance[tries + 1]
        found = log_weight(place(angle)) > height
        return tries + 1, jnp.where(angle < 0, angle, low), jnp.where(angle < 0, high, angle), angle, found

    first = 2 * np.pi * chance[-1]
    start = (0, first - 2 * np.pi, first, first, log_weight(place(first)) > height)
    search = jax.lax.while_loop(lambda state: ~state[-1] & (state[0] < TRIES), narrow, start)
    return jnp.where(search[-1], place(search[-2]), at)


def normal_by_precision(normal: Array, matrix: Array, vector: Array) -> tuple[Array, Array]:
    """(mean, a draw around 0) of the normal with precision `matrix` and mean matrix⁻¹·vector."""
    root = jnp.linalg.cholesky(matrix)
    forward = jax.scipy.linalg.solve_triangular(root, vector, lower=True)
    mean, away = jax.scipy.linalg.solve_triangular(root, jnp.stack([forward, normal], 1), lower=True, trans=1).T
    return mean, away


def _solve(matrix: Array, vector: Array) -> Array:
    """matrix⁻¹·vector. One coordinate is a division, which costs a tenth of a factorisation."""
    if len(vector) == 1:
        return vector / matrix[0]
    return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(matrix), True), vector)


def _sweep(key: Array, conjugate: Conjugate, told: Told, at: Sweep) -> Sweep:
    first, second, third = jax.random.split(key, 3)
    moments, size = conjugate.moments(at.z), conjugate.size
    normal = jax.random.normal(first, (2 * size + moments.root.shape[1],))
    mixed = mixing_variance(normal[:size], jax.random.uniform(second, (size,)), at.noise, told.scale)
    variance = jnp.where(told.laplace, mixed, told.scale**2)
    total, noise = sums_given(normal[size:], moments, told, variance)
    possible = conjugate.possible(total, told.num_rows)
    total, noise = jnp.where(possible, total, at.total), jnp.where(possible, noise, at.noise)
    return Sweep(conjugate.draw(third, total, told.num_rows), total, noise)


def _chain(conjugate: Conjugate, lengths: tuple[int, int, int], key: Array, told: Told) -> Array:
    warm_up, draws, thin = lengths
    start, keep = jax.random.split(key)
    z = conjugate.draw(start, jnp.zeros(conjugate.size), jnp.zeros(()))
    moments = conjugate.moments(z)
    at = Sweep(z, told.num_rows * moments.mean, told.noisy - told.num_rows * moments.released_mean)
    unkept = -(-warm_up // thin)  # warmed up as it is kept, so that one sweep is compiled

    def kept(at, keys):
        at = jax.lax.scan(lambda at, key: (_sweep(key, conjugate, told, at), None), at, keys)[0]
        return at, at.z

    return jax.lax.scan(kept, at, jax.random.split(keep, (unkept + draws, thin)))[1][unkept:]


@partial(jax.jit, static_argnums=(0, 1))
def _chains(conjugate: Conjugate, lengths: tuple[int, int, int], keys: Array, told: Told) -> Array:
    axes = Told(0, None, None, None)  # pyright: ignore[reportArgumentType]
    return jax.vmap(partial(_chain, conjugate, lengths), in_axes=(0, axes))(keys, told)


def _check(conjugate, noisy, noise_scale, kind, draws, warm_up, thin) -> None:
    if noisy.ndim not in (1, 2) or noisy.shape[-1] != conjugate.size:
        raise ValueError(f"noisy has shape {noisy.shape}; this family needs (…, {conjugate.size})")
    if kind not in NORM_ORDERS:
        raise ValueError(f"kind={kind!r} must be one of {', '.join(NORM_ORDERS)}")
    require(noise_scale > 0, "noise_scale", noise_scale, "be above 0: without noise draw from the exact posterior")
    for name, value, least in (("draws", draws, 1), ("warm_up", warm_up, 0), ("thin", thin, 1)):
        require(value >= least, name, value, f"be at least {least}")
