"""The three conjugate models of the NA-DPVI paper (M1, M2, M3), one column of rows each."""

import jax
import jax.numpy as jnp
import numpy as np

from discreet.model import Model


def gamma_exponential(shape: float, rate: float, column: str = "x") -> Model:
    """M1: waiting times x ~ Exponential(θ), θ ~ Gamma(shape, rate), θ = softplus(z)."""

    def theta(z):
        return jax.nn.softplus(z[0])

    def log_prior(z):
        return (shape - 1) * jnp.log(theta(z)) - rate * theta(z) + jax.nn.log_sigmoid(z[0])

    def sample_prior(key):
        draw = jax.random.gamma(key, shape) / rate
        return jnp.atleast_1d(draw + jnp.log(-jnp.expm1(-draw)))

    return Model(
        dim=1,
        log_prior=log_prior,
        log_likelihood=lambda z, row: jnp.log(theta(z)) - theta(z) * row[column],
        constrain=lambda z: {"theta": theta(z)},
        sample_prior=sample_prior,
        columns=(column,),
        outcome=(column,),
        simulate=lambda key, z, row: {column: jax.random.exponential(key) / theta(z)},
        mean=lambda z, row: 1 / theta(z),
        description={"family": "gamma-exponential", "shape": shape, "rate": rate},
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
        description={"family": "beta-bernoulli", "a": a, "b": b},
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
        description={"family": "dirichlet-categorical", "alpha": list(alpha)},
    )


def exact_beta(rng: np.random.Generator, a: float, b: float, ones, num_rows: int, draws: int) -> np.ndarray:
    """Draws of z = logit θ from the non-private posterior of `beta_bernoulli`, shape (…, draws)."""
    ones = np.asarray(ones)[..., None]
    shape = (*ones.shape[:-1], draws)
    theta = rng.beta(np.broadcast_to(a + ones, shape), np.broadcast_to(b + num_rows - ones, shape))
    return np.log(theta) - np.log1p(-theta)
