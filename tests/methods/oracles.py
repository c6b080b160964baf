"""What the methods are held against, written without them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from discreet.model import Model
from discreet.schema import Numeric, Schema

TRANSFORMS = {"softplus": (lambda s: np.logaddexp(0, s), special.expit), "exp": (np.exp, np.exp)}
"""T and T′."""

SCHEMA = Schema((Numeric("x", -3, 3), Numeric("y", -9, 9)))
LINE = Model(
    dim=2,
    log_prior=lambda z: -0.5 * jnp.sum(z**2),
    log_likelihood=lambda z, row: -0.5 * (row["y"] - z[0] - z[1] * row["x"]) ** 2,
    constrain=lambda z: {"intercept": z[0], "slope": z[1]},
    sample_prior=lambda key: jax.random.normal(key, (2,)),
    columns=("x", "y"),
)
"""A line through points with known noise: its negative log posterior is quadratic, with correlated parameters."""


def points(count, seed=0):
    """Rows of `LINE`, off centre in x."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 3, count)
    return {"x": x, "y": 1.5 - 0.8 * x + rng.normal(size=count)}


def line_posterior(columns):
    """Mean and precision of the posterior of `LINE`."""
    design = np.stack([np.ones_like(columns["x"]), columns["x"]], 1)
    precision = design.T @ design + np.eye(2)
    return np.linalg.solve(precision, design.T @ columns["y"]), precision


def cholesky(family, phi):
    """L, entry by entry."""
    dim = next(dim for dim in range(1, 99) if family.size(dim) == len(phi))
    factor, entries = np.diag(TRANSFORMS[family.positive][0](phi[dim : 2 * dim])), iter(phi[2 * dim :])
    if family.name == "full-rank":
        for row in range(dim):
            for column in range(row):
                factor[row, column] = next(entries)
    return factor


@partial(jax.jit, static_argnums=0)
def fisher_information(positive, phi):
    """The Hessian of KL(q_φ ‖ q_φ′) in φ′ at φ′ = φ, mean field: no sampling."""
    transform = {"softplus": lambda s: jnp.logaddexp(s, 0.0), "exp": jnp.exp}[positive]
    dim = len(phi) // 2
    mean, sd = phi[:dim], transform(phi[dim:])

    def divergence(other):
        ratio = sd / transform(other[dim:])
        return (0.5 * ratio**2 - jnp.log(ratio) + 0.5 * ((mean - other[:dim]) / transform(other[dim:])) ** 2).sum()

    return jax.hessian(divergence)(phi)
