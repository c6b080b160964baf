"""The mean-field Gaussian q(z) = N(m, diag(T(s)²)), T = softplus, as a vector φ = (m, s)."""

import jax
import jax.numpy as jnp
from jax import Array

from discreet.query import Numbers


def pack(mean: Numbers, sd: Numbers) -> Array:
    """φ of the Gaussian with these means and standard deviations."""
    return jnp.concatenate([jnp.asarray(mean), sd + jnp.log(-jnp.expm1(-sd))])


def unpack(phi: Numbers) -> tuple[Array, Array]:
    """(mean, sd) of q; works on any leading axes."""
    mean, scale = jnp.split(phi, 2, axis=-1)
    return mean, jax.nn.softplus(scale)


def transform(phi: Numbers, eta: Numbers) -> Array:
    """z = m + T(s)·η for standard normal η."""
    mean, sd = unpack(phi)
    return mean + sd * eta


def entropy(phi: Array) -> Array:
    """Entropy of q up to a constant."""
    return jnp.log(unpack(phi)[1]).sum()


def antithetic(key: Array, draws: int, dim: int) -> Array:
    """`draws` standard normal vectors in pairs (η, −η): their mean is zero where `draws` is even.

    One public set of draws serves all rows of a step. With a zero mean it adds no noise to the location gradient of
    a quadratic loss, so the trace model need not know about it.
    """
    half = jax.random.normal(key, ((draws + 1) // 2, dim))
    return jnp.concatenate([half, -half])[:draws]
