"""The non-private posterior of a public table, to compare with."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from discreet.model import Model


class Laplace(NamedTuple):
    """Mode and covariance of the unconstrained parameters."""

    mean: np.ndarray
    covariance: np.ndarray


def non_private(model: Model, columns: dict[str, np.ndarray], most_steps: int = 200) -> Laplace:
    """Laplace approximation of the exact posterior given encoded `columns`, by damped Newton steps.

    Not private: for simulated and public tables only.
    """

    def loss(z):
        return -model.log_prior(z) - jax.vmap(lambda row: model.log_likelihood(z, row))(columns).sum()

    with jax.enable_x64(True):
        start = jnp.zeros(model.dim)
        value, slope, curvature = jax.jit(loss), jax.jit(jax.grad(loss)), jax.jit(jax.hessian(loss))
        z, step = start, jnp.ones(model.dim)
        for _ in range(most_steps):
            if jnp.linalg.norm(step) < 1e-9:
                break
            step = _newton_step(curvature(z), slope(z))
            while not value(z + step) <= value(z) and jnp.linalg.norm(step) > 1e-12:
                step = step / 2
            z = z + step
        else:
            raise ValueError(f"no mode was found in {most_steps} Newton steps: the log joint may have none")
        return Laplace(np.asarray(z), np.linalg.inv(np.asarray(curvature(z))))


def _newton_step(curvature, slope):
    values, vectors = jnp.linalg.eigh(curvature)
    return -vectors @ ((vectors.T @ slope) / jnp.maximum(jnp.abs(values), 1e-6))
