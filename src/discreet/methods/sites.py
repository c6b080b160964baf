"""Sites: a Gaussian stand-in for one row's likelihood, as expectation propagation matches it.

Given the cavity (the posterior without one row's worth), the row's likelihood tilts it; the Gaussian with the tilted
moments, divided by the cavity, is the row's site. All of it in natural parameters, where division is subtraction.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.polynomial.hermite import hermgauss

from discreet.families.gaussian_mixture import Mixture
from discreet.families.gaussian_mixture import check as check_mixture
from discreet.methods.natural import Factorised, Shape
from discreet.model import Linear, Model, Row
from discreet.query import Numbers
from discreet.schema import Schema

NODES, CENTRING, FAR = 20, 4, 30.0
ENOUGH_ROWS = 64


class SiteError(ValueError):
    """A site, or the Gaussian that it is matched against, does not exist."""


class Cavity(NamedTuple):
    """What rows are matched against: θ, its means (blocks, dim) and covariances (blocks, dim, dim), or what else the
    moments of a shape are.
    """

    theta: Array
    mean: Array
    cov: Array


class Site(NamedTuple):
    """A model as expectation propagation sees it.

    shape                  how many Gaussians of how many parameters stand for the posterior
    prior                  θ₀, the natural parameters of the prior
    of_row(cavity, row)    θ of the row's site
    exists(cavity, row)    whether the tilted moments do
    columns                the columns that a row must have
    description            plain public values, for the release
    start                  θ₀ as long as it was not refined, if it is not the prior
    refined(φ, θ₀)         θ₀ once rows said φ, for priors with unknowns of their own; public
    """

    shape: Shape | Factorised
    prior: np.ndarray
    of_row: Callable[[Cavity, Row], Array]
    exists: Callable[[Cavity, Row], Array]
    columns: tuple[str, ...]
    description: Mapping[str, Any]
    start: np.ndarray | None = None
    refined: Callable[[Numbers, Numbers], Array] | None = None

    @property
    def first(self) -> np.ndarray:
        """θ₀ as rows find it at first."""
        return self.prior if self.start is None else self.start


def cavity(shape: Shape | Factorised, theta: Array) -> Cavity:
    """The cavity with these natural parameters."""
    return Cavity(theta, *shape.moments(theta))


def linear(model: Model) -> Site:
    """Sites of a model whose rows see z through a linear predictor x·z alone: a GLM without further parameters.

    The tilted moments are those of one number, u = x·z, by Gauss-Hermite quadrature; the site is (νx, τxxᵀ).
    """
    likelihood = model.log_likelihood
    if not isinstance(likelihood, Linear) or likelihood.predictors > 1 or likelihood.log_partition:
        raise SiteError("expectation propagation needs a likelihood of a linear predictor: use glm(), or DPVI")
    row = {name: jax.ShapeDtypeStruct((), np.float64) for name in model.columns}
    (count,) = jax.eval_shape(likelihood.features, row).shape
    if count != model.dim:
        raise SiteError(
            f"{model.dim - count} of {model.dim} parameters are not coefficients: use a GLM without, or DPVI"
        )
    shape, (first, second) = Shape(1, model.dim), np.triu_indices(model.dim)

    def predictor(cavity, row):
        x = likelihood.features(row)
        return x, jnp.dot(cavity.mean[0], x), jnp.dot(cavity.cov[0] @ x, x)

    def of_row(cavity, row):
        x, mean, variance = predictor(cavity, row)
        shift, precision = tilted(lambda u: likelihood.of_predictor(u, jnp.zeros(0), row), mean, variance)
        return jnp.concatenate([shift * x, precision * x[first] * x[second]])

    def exists(cavity, row):
        _, mean, variance = predictor(cavity, row)
        u = mean + jnp.sqrt(variance) * np.array([-FAR, 0.0, FAR])
        low, middle, high = jax.vmap(lambda u: likelihood.of_predictor(u, jnp.zeros(0), row))(u)
        return jnp.maximum(low, high) - FAR**2 / 2 < middle

    described = {"sites": "linear", **model.description}
    return Site(shape, gaussian_prior(model), of_row, exists, model.columns, described)


def tilted(log_likelihood: Callable[[Array], Array], mean: Array, variance: Array) -> tuple[Array, Array]:
    """(ν, τ) of the Gaussian in u that turns N(mean, variance) into one with the moments of N·exp(log_likelihood).

    Nodes are centred near the mode: for a concave log-likelihood it lies between the mean and mean + variance × slope
    at the mean, and a few Newton steps that may not leave that bracket come close enough. Any centre gives a valid
    rule, the nearer the more exact. Measured for a logistic likelihood: sds to 10⁻⁹ for a variance of 1, 10⁻⁵ for 5,
    2 % for 20.
    """
    slope = jax.grad(log_likelihood)
    bend = jax.grad(slope)

    def width(u):
        return 1 / (1 / variance + jnp.maximum(-bend(u), 0.0))

    reach = variance * slope(mean)
    low, high = mean + jnp.minimum(reach, 0.0), mean + jnp.maximum(reach, 0.0)
    centre = mean
    for _ in range(CENTRING):
        rise = slope(centre) - (centre - mean) / variance
        low, high = jnp.where(rise > 0, centre, low), jnp.where(rise > 0, high, centre)
        step = centre + rise * width(centre)
        centre = jnp.where((step >= low) & (step <= high), step, (low + high) / 2)
    nodes, weights = hermgauss(NODES)
    u = centre + jnp.sqrt(2 * width(centre)) * nodes
    height = jax.vmap(log_likelihood)(u) - (u - mean) ** 2 / (2 * variance) + nodes**2 + np.log(weights)
    share = jax.nn.softmax(height)
    first = (share * (u - mean)).sum()
    second = (share * (u - mean - first) ** 2).sum()
    precision = 1 / second - 1 / variance
    return first / second + mean * precision, precision


def mixture(given: Mixture) -> Site:
    """Sites of a mixture's means, one block for each component.

    Tilted moments are in closed form: row and component j belong together with the probability r_j, and then μ_j is
    updated; otherwise it is as the cavity says.
    """
    check_mixture(given)
    columns, share, sd, shape = given.columns, np.log(np.asarray(given.weights, float)), given.sd, Shape(*given.shape)
    identity = np.eye(shape.dim)

    def of_row(cavity, row):
        x = jnp.stack([row[name] for name in columns])
        eta, precision = shape.unpack(cavity.theta)
        predicted = jnp.linalg.cholesky(cavity.cov + sd**2 * identity[None])
        away = jax.scipy.linalg.solve_triangular(predicted, (x[None] - cavity.mean)[..., None], lower=True)[..., 0]
        height = share - 0.5 * (away**2).sum(-1) - jnp.log(jnp.diagonal(predicted, axis1=-2, axis2=-1)).sum(-1)
        belongs = jax.nn.softmax(height)[:, None]
        new_cov = jnp.linalg.inv(precision + identity[None] / sd**2)
        moved = jnp.einsum("jab,jb->ja", new_cov, eta + x[None] / sd**2) - cavity.mean
        spread = (belongs * (1 - belongs))[..., None] * moved[:, :, None] * moved[:, None, :]
        cov = belongs[..., None] * new_cov + (1 - belongs)[..., None] * cavity.cov + spread
        return shape.of_moments(cavity.mean + belongs * moved, cov) - cavity.theta

    with jax.enable_x64(True):
        spread = np.tile(given.prior_sd**2 * identity, (shape.blocks, 1, 1))
        prior = np.asarray(shape.of_moments(np.asarray(given.mean, float), spread))
    described = {"sites": "mixture", **given.describe()}
    return Site(shape, prior, of_row, lambda cavity, row: jnp.array(True), tuple(columns), described)


def gaussian_prior(model: Model) -> np.ndarray:
    """θ₀ of a model whose prior is Gaussian in z; others are refused."""
    shape = Shape(1, model.dim)
    with jax.enable_x64(True):
        slope, bend = jax.grad(model.log_prior), jax.hessian(model.log_prior)
        origin = jnp.zeros(model.dim)
        eta, precision = slope(origin), -bend(origin)
        for key in jax.random.split(jax.random.key(5), 3):
            z = model.sample_prior(key)
            if not np.allclose(slope(z), eta - precision @ z, rtol=1e-6, atol=1e-9):
                raise SiteError(
                    "the prior is not Gaussian in z, and expectation propagation multiplies Gaussians: use DPVI"
                )
        theta = np.asarray(shape.pack(eta[None], precision[None]))
    if not np.linalg.eigvalsh(np.asarray(precision)).min() > 0:
        raise SiteError("the prior's precision is not positive definite: give every parameter a proper prior")
    return theta


def check(site: Site, schema: Schema, theta: np.ndarray | None = None) -> None:
    """Refuse a site before any row is asked: a cavity (the prior, or `theta`) that is none, moments that do not exist.

    The moments are looked for in random rows of the schema.
    """
    missing = set(site.columns) - set(schema.names)
    if missing:
        raise SiteError(f"the sites need columns {sorted(missing)}; the schema has {list(schema.names)}")
    theta = site.prior if theta is None else theta
    rows = {name: schema.sample(np.random.default_rng(6), ENOUGH_ROWS)[name] for name in site.columns}
    with jax.enable_x64(True):
        smallest = float(site.shape.smallest(theta, site.prior))
        if not smallest > 0:
            raise SiteError(
                f"the cavity is not positive definite (smallest eigenvalue {smallest:.3g} prior precisions)"
            )
        against = cavity(site.shape, jnp.asarray(theta))
        found, good = jax.jit(jax.vmap(lambda row: (site.of_row(against, row), site.exists(against, row))))(rows)
    bad = np.flatnonzero(~(np.isfinite(np.asarray(found)).all(1) & np.asarray(good)))
    if len(bad):
        row = {name: float(values[bad[0]]) for name, values in rows.items()}
        raise SiteError(f"the tilted moments of {len(bad)} of {ENOUGH_ROWS} random rows do not exist, such as of {row}")
