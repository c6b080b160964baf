"""Noise-aware linear regression from one noisy sum of products (after Bernstein and Sheldon 2019).

The release is s̃ = s + Gaussian noise, s = (XᵀX, Xᵀy, yᵀy) with X the covariates and a column of ones. A sweep draws

    s | w, σ²       a normal approximation proposes, elliptical slices correct to the exact law (below)
    σ², w | s       normal-inverse-gamma
    w | u, e        with u = Xᵀ(y − Xw) and e = ‖y − Xw‖² held, s moving along
    σ² | u/σ, e/σ²  likewise

The last two do not leave s where it is. Without them w moves by σ/√N a sweep, however wide the noise has made its
posterior: at ε = .1 a chain of Bernstein and Sheldon's two steps would need 10⁴ sweeps for one independent draw.

Given XᵀX: u ~ N(0, σ²XᵀX) and e − uᵀ(XᵀX)⁻¹u ~ σ²χ²(N − p), exactly. What is believed of XᵀX before the release:

    nothing          a flat density over positive definite matrices (the default)
    a public design  normal with N times its moments (`design`; Bernstein and Sheldon's Gibbs-SS-Prior is like it)
    `factor` > 0     normal around N times the released second moments, with the covariance that released fourth
                     moments say: the paper's Gibbs-SS-Noisy. It uses one release as prior and as evidence, so XᵀX looks
                     better known than it is once noise is wider than √N times a row's spread; and fourth moments cost.

Where it breaks: with noise as large as the moments. Released moments are then not positive definite and are repaired
(`repairs` counts the eigenvalues raised), fourth moments are mostly noise, and a flat density over the 65 entries of
an 11 × 11 matrix favours large ones: coefficients shrink and intervals are too long. Rows that the clip norm shortens
are read as if they were whole.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from discreet.families.conjugate_regression import (
    Design,
    Prior,
    Statistic,
    design_basis,
    design_covariance,
    design_entries,
    design_matrix,
    pairs,
    repaired,
    residual_maps,
)
from discreet.model import softplus_inverse
from discreet.plan import require
from discreet.posterior.gibbs import TRIES, check_release, elliptical, normal_by_precision
from discreet.release import Release


class Setting(NamedTuple):
    """What a chain is told, of the sums (products of pairs of the design, of the design with y, and y·y).

    `noisy` and `precise` are the release and 1/variance of its noise; `mean`, `covariance` and `root` (a square root)
    join it with what was believed of XᵀX. `second` is a guess at a root of E[xxᵀ], for proposals. `raised` counts
    repaired eigenvalues of the second moments and of the fourth.
    """

    noisy: Array
    precise: Array
    num_rows: Array
    mean: Array
    covariance: Array
    root: Array
    second: Array
    raised: tuple[Array, Array]


class Chance(NamedTuple):
    """The randomness of one sweep: normals for sums, (u, e) and w (twice); gammas for σ² (twice); uniforms."""

    sums: Array
    residuals: Array
    coefficients: Array
    gammas: Array
    angles: Array
    accept: Array


class Sweep(NamedTuple):
    """Where the chain is: coefficients (bias last), σ² and the sums."""

    w: Array
    variance: Array
    sums: Array


def sample(
    key: Array,
    statistic: Statistic,
    prior: Prior,
    noisy: np.ndarray,
    num_rows: int,
    noise_std: float,
    draws: int,
    *,
    warm_up: int = 500,
    thin: int = 1,
    at_once: int = 50,
    design: Design | None = None,
) -> np.ndarray:
    """Draws of z = (w, bias, softplus⁻¹(σ²)) given noisy sums (size,), shape (draws, d + 2).

    A leading axis of replicas stays; `at_once` of them run side by side. `design` is what is publicly known of XᵀX.
    """
    if design is not None and statistic.factor:
        raise ValueError(f"design is given, and factor={statistic.factor} asks for the same in private: leave one out")
    noisy = np.asarray(noisy, np.float64)
    require(noise_std > 0, "noise_std", noise_std, "be above 0: without noise draw from the exact posterior")
    if noisy.ndim not in (1, 2) or noisy.shape[-1] != statistic.size:
        raise ValueError(f"noisy has shape {noisy.shape}; this statistic needs (…, {statistic.size})")
    with jax.enable_x64(True):
        several = np.atleast_2d(noisy)
        keys = jax.random.split(key, len(several))
        chain = partial(_chains, statistic, prior, (warm_up, draws, thin, at_once))
        z = np.asarray(chain(keys, several, jnp.asarray(float(num_rows)), jnp.asarray(float(noise_std)), design))
    return z if noisy.ndim == 2 else z[0]


def from_release(
    key: Array, statistic: Statistic, prior: Prior, release: Release, draws: int, **sampling: Any
) -> np.ndarray:
    """Draws of z from a release of `methods.statistics.of_regression`, with its replicas if it has them."""
    check_release(release, statistic.settings)
    plan = release.plan
    require(plan.noise_kind == "gaussian", "noise_kind", plan.noise_kind, "be gaussian for this sampler")
    return sample(key, statistic, prior, release.last, plan.num_rows, plan.noise_std, draws, **sampling)


def repairs(statistic: Statistic, noisy: np.ndarray, num_rows: int, noise_std: float) -> tuple[int, int]:
    """How many eigenvalues of the released second and of the fourth moments were raised to be positive definite."""
    with jax.enable_x64(True):
        second, fourth = setting(statistic, jnp.asarray(noisy), jnp.asarray(float(num_rows)), noise_std, None).raised
        return int(second), int(fourth)


def setting(statistic: Statistic, noisy: Array, num_rows: Array, noise_std: Any, design: Design | None) -> Setting:
    """What a release says before any sampling: unweighted sums, their precision, and repaired moments."""
    dim = len(statistic.covariates)
    weight, size = pairs(dim)[1], design_basis(dim).shape[-1]
    sums, precise = noisy[: len(weight)] / weight, (weight / noise_std) ** 2
    second, raised = repaired(design_matrix(sums[:size], num_rows) / num_rows)
    ones = jnp.ones(dim + 1).at[-1].set(second[-1, -1] ** -0.5)
    second, raises = second * jnp.outer(ones, ones), (raised, jnp.zeros((), int))  # E[1·1] = 1: raising may change it
    if statistic.factor:
        fourth = noisy[len(weight) :] / (num_rows * statistic.factor)
        spread, fourth_raised = repaired(design_covariance(fourth, second))
        design, raises = Design(design_entries(second), spread), (raised, fourth_raised)
    elif design is not None:
        second = design_matrix(design.mean, 1.0)
    mean, covariance = sums, jnp.diag(1 / precise)
    if design is not None:
        centre, spread = num_rows * design.mean, num_rows * design.covariance
        gain = jnp.linalg.solve(spread + jnp.diag(1 / precise[:size]), spread)
        mean = mean.at[:size].set(centre + (sums[:size] - centre) @ gain)
        covariance = covariance.at[:size, :size].set(gain / precise[:size, None])
        covariance = (covariance + covariance.T) / 2
    root = jnp.linalg.cholesky(covariance)
    return Setting(sums, precise, num_rows, mean, covariance, root, jnp.linalg.cholesky(second), raises)


def _parts(told: Setting, sums: Array) -> tuple[Array, Array, Array]:
    """(XᵀX, Xᵀy, yᵀy)."""
    size = _design_sums(told)
    return design_matrix(sums[:size], told.num_rows), sums[size:-1], sums[-1]


def _join(told: Setting, sums: Array, w: Array, u: Array, e: Array) -> Array:
    """The sums with this design, coefficients and residual parts."""
    design = _parts(told, sums)[0]
    return jnp.concatenate([sums[: _design_sums(told)], design @ w + u, jnp.atleast_1d(w @ (design @ w + 2 * u) + e)])


def _residuals(told: Setting, sums: Array, w: Array) -> tuple[Array, Array]:
    design, cross, square = _parts(told, sums)
    return cross - design @ w, square - w @ (2 * cross - design @ w)


def _correction(told: Setting, w: Array, variance: Array, sums: Array) -> Array:
    """log of the exact density of (u, e) given XᵀX, over its normal approximation; −∞ for impossible sums."""
    design = _parts(told, sums)[0]
    u, e = _residuals(told, sums, w)
    root = jnp.linalg.cholesky(design)
    left = e - jnp.square(jax.scipy.linalg.solve_triangular(root, u, lower=True)).sum()
    total = told.num_rows
    exact = -e / (2 * variance) + ((total - len(w)) / 2 - 1) * jnp.log(left) - jnp.log(jnp.diagonal(root)).sum()
    guess = jnp.square(jax.scipy.linalg.solve_triangular(told.second, u, lower=True)).sum()
    normal = guess / (2 * total * variance) + (e / variance - total) ** 2 / (4 * total)
    return jnp.where((left > 0) & jnp.isfinite(exact), exact + normal, -jnp.inf)


def proposal(chance: Chance, told: Setting, w: Array, variance: Array) -> tuple[Array, Array]:
    """(mean, a draw around 0) of the sums given w, σ² and the release, (u, e) normal by the central limit theorem.

    Matheron's rule: a draw that knows nothing of (u, e) is corrected by what it misses of them.
    """
    maps, constant = residual_maps(w)
    size, total = len(w), told.num_rows
    root = jnp.zeros((size + 1, size + 1)).at[:size, :size].set(jnp.sqrt(variance * total) * told.second)
    root = root.at[-1, -1].set(jnp.sqrt(2 * total) * variance)
    expected = jnp.zeros(size + 1).at[-1].set(total * variance) - total * constant
    free = told.root @ chance.sums
    missed = jnp.stack([expected - maps @ told.mean, -maps @ free - root @ chance.residuals], 1)
    reach = told.covariance @ maps.T
    factor = jnp.linalg.cholesky(maps @ reach + root @ root.T)
    change = reach @ jax.scipy.linalg.cho_solve((factor, True), missed)
    return told.mean + change[:, 0], free + change[:, 1]


def _draw_sums(chance: Chance, told: Setting, at: Sweep) -> Sweep:
    mean, away = proposal(chance, told, at.w, at.variance)
    correction = partial(_correction, told, at.w, at.variance)
    return at._replace(sums=elliptical(chance.angles[0], correction, mean, away, at.sums))


def _draw_parameters(chance: Chance, told: Setting, prior: Prior, at: Sweep) -> Sweep:
    """Normal-inverse-gamma given the sums."""
    design, cross, square = _parts(told, at.sums)
    precision = design + jnp.eye(len(cross)) / prior.scale**2
    mean, away = normal_by_precision(chance.coefficients[0], precision, cross)
    variance = (prior.rate + 0.5 * (square - cross @ mean)) / chance.gammas[0]
    return at._replace(w=mean + jnp.sqrt(variance) * away, variance=variance)


def _move_coefficients(chance: Chance, told: Setting, prior: Prior, at: Sweep) -> Sweep:
    design, size = _parts(told, at.sums)[0], _design_sums(told)
    u, e = _residuals(told, at.sums, at.w)
    seen = design * told.precise[None, size:-1]
    precision = seen @ design + jnp.eye(len(u)) / (prior.scale**2 * at.variance)
    mean, away = normal_by_precision(chance.coefficients[1], precision, seen @ (told.noisy[size:-1] - u))

    def of_square(w):
        return -0.5 * told.precise[-1] * (told.noisy[-1] - w @ (design @ w + 2 * u) - e) ** 2

    w = elliptical(chance.angles[1], of_square, mean, away, at.w)
    return at._replace(w=w, sums=_join(told, at.sums, w, u, e))


def _move_variance(chance: Chance, told: Setting, prior: Prior, at: Sweep) -> Sweep:
    """Propose σ² from what w alone says; accept by what the release says."""
    rate = prior.rate + jnp.dot(at.w, at.w) / (2 * prior.scale**2)
    variance = rate / chance.gammas[1]
    u, e = _residuals(told, at.sums, at.w)
    ratio = variance / at.variance
    sums = _join(told, at.sums, at.w, jnp.sqrt(ratio) * u, ratio * e)
    gain = jnp.dot(told.precise, (told.noisy - at.sums) ** 2 - (told.noisy - sums) ** 2) / 2
    accept = jnp.log(chance.accept) < gain
    return at._replace(variance=jnp.where(accept, variance, at.variance), sums=jnp.where(accept, sums, at.sums))


def _chance(key: Array, told: Setting, prior: Prior) -> Chance:
    first, second, third = jax.random.split(key, 3)
    sums, size = len(told.noisy), len(told.second)
    normal = jax.random.normal(first, (sums + 3 * size + 1,))
    uniform = jax.random.uniform(second, (2 * (TRIES + 2) + 1,))
    gammas = jax.random.gamma(third, prior.shape + jnp.stack([told.num_rows, jnp.asarray(float(size))]) / 2)
    residuals, coefficients = normal[sums : sums + size + 1], normal[sums + size + 1 :].reshape(2, size)
    return Chance(normal[:sums], residuals, coefficients, gammas, uniform[1:].reshape(2, -1), uniform[0])


def _sweep(told: Setting, prior: Prior, key: Array, at: Sweep) -> Sweep:
    chance = _chance(key, told, prior)
    at = _draw_sums(chance, told, at)
    at = _draw_parameters(chance, told, prior, at)
    at = _move_coefficients(chance, told, prior, at)
    return _move_variance(chance, told, prior, at)


def _start(told: Setting, prior: Prior) -> Sweep:
    """The repaired design, the coefficients it suggests, and σ² at the prior's mode."""
    design = told.num_rows * told.second @ told.second.T
    size, variance = len(design), jnp.asarray(prior.rate / (prior.shape + 1))
    w = jnp.linalg.solve(design + jnp.eye(size) / prior.scale**2, told.noisy[_design_sums(told) : -1])
    w = w * jnp.minimum(1.0, 3 * prior.scale * jnp.sqrt(variance * size) / jnp.linalg.norm(w))
    sums = told.noisy.at[: _design_sums(told)].set(design_entries(design))
    return Sweep(w, variance, _join(told, sums, w, jnp.zeros(size), told.num_rows * variance))


def _design_sums(told: Setting) -> int:
    return len(told.noisy) - len(told.second) - 1


@partial(jax.jit, static_argnums=(0, 1, 2))
def _chains(
    statistic: Statistic, prior: Prior, lengths: tuple[int, ...], keys, noisy, num_rows, noise_std, design
) -> Array:
    warm_up, draws, thin, at_once = lengths
    unkept = -(-warm_up // thin)  # warmed up as it is kept, so that one sweep is compiled

    def chain(inputs):
        key, noisy = inputs
        told = setting(statistic, noisy, num_rows, noise_std, design)

        def kept(at, keys):
            at = jax.lax.scan(lambda at, key: (_sweep(told, prior, key, at), None), at, keys)[0]
            return at, jnp.append(at.w, softplus_inverse(at.variance, jnp))

        keys = jax.random.split(key, (unkept + draws, thin))
        return jax.lax.scan(kept, _start(told, prior), keys)[1][unkept:]

    return jax.lax.map(chain, (keys, noisy), batch_size=min(at_once, len(noisy)))
