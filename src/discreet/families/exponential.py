"""The three conjugate models of the NA-DPVI paper (M1, M2, M3), one column of rows each, and their conjugate sides.

A conjugate side says which bounded statistic each row is asked for once (Bernstein and Sheldon 2018), how it is
distributed, and what its sum says about the parameters. Bounds are of what one row adds, so they are sensitivities
under zero-out adjacency. For counts that is 1 in L1 and in L2 (under replace-one it would be 2 and √2).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from discreet.model import Model, Row, softplus_inverse


class Link(NamedTuple):
    """A map from z to θ > 0: θ, log θ, log dθ/dz, and z as a function of log θ by `jax.numpy` or `numpy`."""

    theta: Callable[[Array], Array]
    log_theta: Callable[[Array], Array]
    log_slope: Callable[[Array], Array]
    inverse: Callable[[Any, Any], Any]


LINKS = {
    "softplus": Link(
        jax.nn.softplus,
        lambda z: jnp.log(jax.nn.softplus(z)),
        jax.nn.log_sigmoid,
        inverse=lambda log_theta, xp: softplus_inverse(xp.exp(log_theta), xp),
    ),
    "log": Link(jnp.exp, lambda z: z, lambda z: z, inverse=lambda log_theta, xp: log_theta),
}


class RowMoments(NamedTuple):
    """Moments of one row's sufficient and released statistics at a z: means, and a root of their joint covariance.

    The covariance of (sufficient, released) is R·Rᵀ with R = (root over released_root). It may be singular.
    """

    mean: Array
    root: Array
    released_mean: Array
    released_root: Array


class Conjugate(NamedTuple):
    """What one release of a sum needs to know of a conjugate family.

    statistic(row) -> vector of `size`     what a row answers
    bound                                  largest L1 norm, and largest L2 norm, of that vector
    moments(z) -> RowMoments               of one row's sufficient and released statistics
    possible(total, num_rows) -> bool      whether rows exist whose sufficient statistics sum to `total`
    draw(key, total, num_rows) -> z        from the posterior given the sum of sufficient statistics; no rows: prior
    columns                                the columns that `statistic` reads
    settings                               plain public values that describe the statistic
    """

    statistic: Callable[[Row], Array]
    size: int
    bound: float
    moments: Callable[[Array], RowMoments]
    possible: Callable[[Array, Array], Array]
    draw: Callable[[Array, Array, Array], Array]
    columns: tuple[str, ...]
    settings: Mapping[str, Any]

    def __hash__(self):
        """By identity of the functions: conjugate sides are static to compiled samplers."""
        return hash((self.statistic, self.moments, self.draw))


def gamma_exponential(shape: float, rate: float, column: str = "x", *, link: str = "softplus") -> Model:
    """M1: waiting times x ~ Exponential(θ), θ ~ Gamma(shape, rate), θ = softplus(z), or exp(z) with `link` = "log"."""
    to = _link(link)

    def theta(z):
        return to.theta(z[0])

    def log_prior(z):
        return (shape - 1) * to.log_theta(z[0]) - rate * theta(z) + to.log_slope(z[0])

    def sample_prior(key):
        return to.inverse(jax.random.loggamma(key, jnp.full(1, shape)) - np.log(rate), jnp)

    return Model(
        dim=1,
        log_prior=log_prior,
        log_likelihood=lambda z, row: to.log_theta(z[0]) - theta(z) * row[column],
        constrain=lambda z: {"theta": theta(z)},
        sample_prior=sample_prior,
        columns=(column,),
        outcome=(column,),
        simulate=lambda key, z, row: {column: jax.random.exponential(key) / theta(z)},
        mean=lambda z, row: 1 / theta(z),
        description={"family": "gamma-exponential", "shape": shape, "rate": rate, "link": link, "column": column},
    )


def beta_bernoulli(a: float, b: float, column: str = "x") -> Model:
    """M2: x ~ Bernoulli(θ), θ ~ Beta(a, b), θ = sigmoid(z). The column has two levels (codes 0 and 1)."""

    def log_likelihood(z, row):
        return jax.nn.log_sigmoid(jnp.where(row[column] == 1, z[0], -z[0]))

    def sample_prior(key):
        first, second = jax.random.split(key)
        return jnp.atleast_1d(jax.random.loggamma(first, a) - jax.random.loggamma(second, b))

    return Model(
        dim=1,
        log_prior=lambda z: a * jax.nn.log_sigmoid(z[0]) + b * jax.nn.log_sigmoid(-z[0]),
        log_likelihood=log_likelihood,
        constrain=lambda z: {"theta": jax.nn.sigmoid(z[0])},
        sample_prior=sample_prior,
        columns=(column,),
        outcome=(column,),
        simulate=lambda key, z, row: {column: jax.random.bernoulli(key, jax.nn.sigmoid(z[0])).astype(jnp.int32)},
        mean=lambda z, row: jax.nn.sigmoid(z[0]),
        description={"family": "beta-bernoulli", "a": a, "b": b, "column": column},
    )


def dirichlet_categorical(alpha: tuple[float, ...], column: str = "x") -> Model:
    """M3: x ~ Categorical(θ), θ ~ Dirichlet(alpha), θ = softmax(z₁, …, z_{k−1}, 0)."""
    weights = np.asarray(alpha, float)

    def log_theta(z):
        return jax.nn.log_softmax(jnp.append(z, 0.0))

    def sample_prior(key):
        draws = jax.random.loggamma(key, weights)
        return draws[:-1] - draws[-1]

    return Model(
        dim=len(weights) - 1,
        log_prior=lambda z: jnp.dot(weights, log_theta(z)),
        log_likelihood=lambda z, row: log_theta(z).at[row[column]].get(mode="fill", fill_value=jnp.nan),
        constrain=lambda z: {"theta": jnp.exp(log_theta(z))},
        sample_prior=sample_prior,
        columns=(column,),
        outcome=(column,),
        simulate=lambda key, z, row: {column: jax.random.categorical(key, log_theta(z)).astype(jnp.int32)},
        description={"family": "dirichlet-categorical", "alpha": list(alpha), "column": column},
    )


def conjugate_gamma(shape: float, rate: float, bound: float, column: str = "x", *, link: str = "softplus") -> Conjugate:
    """The conjugate side of `gamma_exponential`: rows answer min(x, bound) ∈ [0, bound], `bound` a public choice.

    With t = θ·bound and e = exp(−t), one row's (x, min(x, bound)) has means (1, 1 − e)/θ, variances
    (1, 1 − 2te − e²)/θ² and covariance (1 − e − te)/θ². Given Σx the clamped sum tells nothing more about θ.
    """
    if not 0 < bound < np.inf:
        raise ValueError(f"bound={bound} must be positive and finite: it is the most that one row can add")
    to = _link(link)

    def moments(z):
        theta = to.theta(z)
        t = theta * bound
        e = jnp.exp(-t)
        sd = jnp.sqrt(jnp.maximum(1 - 2 * t * e - e**2, 1e-300))
        slope = (1 - e - t * e) / sd
        root = jnp.stack([slope, jnp.sqrt(jnp.maximum(1 - slope**2, 0.0))], 1)
        released = jnp.stack([sd, jnp.zeros_like(sd)], 1)
        return RowMoments(1 / theta, root / theta[:, None], -jnp.expm1(-t) / theta, released / theta[:, None])

    def draw(key, total, num_rows):
        return to.inverse(jax.random.loggamma(key, jnp.reshape(shape + num_rows, (1,))) - jnp.log(rate + total), jnp)

    return Conjugate(
        statistic=lambda row: jnp.clip(jnp.reshape(row[column], (1,)), 0.0, bound),
        size=1,
        bound=float(bound),
        moments=moments,
        possible=lambda total, num_rows: total[0] > 0,
        draw=draw,
        columns=(column,),
        settings={"statistic": "clamped value", "column": column, "bound": float(bound)},
    )


def conjugate_beta(a: float, b: float, column: str = "x") -> Conjugate:
    """The conjugate side of `beta_bernoulli`: rows answer 1{x = 1}, and the sum is the count of ones."""

    def moments(z):
        mean, root = jax.nn.sigmoid(z), jnp.sqrt(jax.nn.sigmoid(z) * jax.nn.sigmoid(-z))[:, None]
        return RowMoments(mean, root, mean, root)

    def draw(key, total, num_rows):
        ones, zeros = jax.random.loggamma(key, jnp.concatenate([a + total, b + num_rows - total]))
        return jnp.reshape(ones - zeros, (1,))

    return Conjugate(
        statistic=lambda row: jnp.reshape(row[column] == 1, (1,)).astype(float),
        size=1,
        bound=1.0,
        moments=moments,
        possible=lambda total, num_rows: (total[0] >= 0) & (total[0] <= num_rows),
        draw=draw,
        columns=(column,),
        settings={"statistic": "count of ones", "column": column},
    )


def conjugate_dirichlet(alpha: tuple[float, ...], column: str = "x") -> Conjugate:
    """The conjugate side of `dirichlet_categorical`: rows answer with an indicator, and the sum is the k counts.

    A root of the singular covariance diag(θ) − θθᵀ is diag(√θ) − θ√θᵀ, so drawn counts add up to num_rows.
    """
    weights = np.asarray(alpha, float)
    levels = np.arange(len(weights))

    def moments(z):
        theta = jax.nn.softmax(jnp.append(z, 0.0))
        root = jnp.diag(jnp.sqrt(theta)) - jnp.outer(theta, jnp.sqrt(theta))
        return RowMoments(theta, root, theta, root)

    def draw(key, total, num_rows):
        del num_rows
        log_theta = jax.random.loggamma(key, weights + total)
        return log_theta[:-1] - log_theta[-1]

    return Conjugate(
        statistic=lambda row: (row[column] == levels).astype(float),
        size=len(weights),
        bound=1.0,
        moments=moments,
        possible=lambda total, num_rows: (total >= 0).all(),
        draw=draw,
        columns=(column,),
        settings={"statistic": "counts", "column": column, "levels": len(weights)},
    )


def exact_gamma(
    rng: np.random.Generator, shape: float, rate: float, total, num_rows: int, draws: int, *, link: str = "softplus"
) -> np.ndarray:
    """Draws of z from the non-private posterior of `gamma_exponential` given Σx = `total`, shape (…, draws)."""
    total = np.asarray(total)[..., None]
    theta = rng.gamma(shape + num_rows, size=(*total.shape[:-1], draws)) / (rate + total)
    return _link(link).inverse(np.log(theta), np)


def exact_beta(rng: np.random.Generator, a: float, b: float, ones, num_rows: int, draws: int) -> np.ndarray:
    """Draws of z = logit θ from the non-private posterior of `beta_bernoulli`, shape (…, draws)."""
    ones = np.asarray(ones)[..., None]
    shape = (*ones.shape[:-1], draws)
    theta = rng.beta(np.broadcast_to(a + ones, shape), np.broadcast_to(b + num_rows - ones, shape))
    return np.log(theta) - np.log1p(-theta)


def exact_dirichlet(rng: np.random.Generator, alpha: tuple[float, ...], counts, draws: int) -> np.ndarray:
    """Draws of z from the non-private posterior of `dirichlet_categorical`, (…, k) counts to (…, draws, k − 1)."""
    weights = (np.asarray(alpha, float) + np.asarray(counts))[..., None, :]
    log_theta = np.log(rng.standard_gamma(np.broadcast_to(weights, (*weights.shape[:-2], draws, weights.shape[-1]))))
    return log_theta[..., :-1] - log_theta[..., -1:]


def _link(name: str) -> Link:
    if name not in LINKS:
        raise ValueError(f"link={name!r} must be one of {', '.join(LINKS)}")
    return LINKS[name]
