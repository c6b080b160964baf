"""Probabilistic back-propagation (Hernández-Lobato and Adams, 2015): sites of a network with one hidden layer.

q has an independent Gaussian for every weight, and a Gamma for the precision of the noise. Means and variances go
forward through the network, as if what a layer receives were Gaussian; a row's site is what the derivatives of log Z
say. How large weights are is one more unknown, λ, with a Gamma prior. Rows know it by the weights alone, so that it is
integrated out in public: `refined`.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from discreet.families.network import Layers
from discreet.methods.natural import Factorised
from discreet.methods.sites import Cavity, Site, SiteError
from discreet.model import Row
from discreet.query import Numbers

GAMMA = (6.0, 6.0)
WIDE, NEAR = np.linspace(-30.0, 30.0, 121), np.linspace(-8.0, 8.0, 512)
TINY, LEAST_SEEN = 1e-12, 1e-6


class Predicted(NamedTuple):
    """Of each row: the mean of its outcome, the variance of the network's output, and that of the noise on top."""

    mean: np.ndarray
    of_weights: np.ndarray
    of_noise: np.ndarray

    @property
    def sd(self) -> np.ndarray:
        """Of the outcome, all in all."""
        return np.sqrt(self.of_weights + self.of_noise)


def sites(
    layers: Layers, *, noise: tuple[float, float] = GAMMA, precision: tuple[float, float] = GAMMA, seed: int = 0
) -> Site:
    """Sites of a network: Gaussians for its weights, and a Gamma for the noise's precision.

    `noise` and `precision` are shape and rate of the Gamma priors of the noise's precision and of λ, the weights' own.
    Where the first rows are matched, weights have random means, or all hidden units would stay alike; these are
    forgotten when the prior is first `refined`. A weight whose tilted variance does not exist answers zero for it.
    """
    for name, (shape, rate) in (("noise", noise), ("precision", precision)):
        if not (1 < shape < np.inf and 0 < rate < np.inf):
            raise SiteError(f"{name}=({shape}, {rate}) must be a Gamma's shape, above 1, and its positive rate")
    shape = Factorised(layers.weights, 1)
    with jax.enable_x64(True):
        flat = np.full(layers.weights, (precision[0] - 1) / precision[1])
        gamma = (np.array([number]) for number in noise)
        prior = np.asarray(shape.pack(np.zeros(layers.weights), flat, *gamma))
        start = np.asarray(shape.about(prior, -layers.random_weights(seed)))
    described = {
        "sites": "network",
        "noise": list(noise),
        "precision": list(precision),
        "seed": seed,
        **layers.describe(),
    }
    return Site(
        shape,
        prior,
        partial(of_row, layers, shape),
        lambda cavity, row: jnp.array(True),
        layers.columns,
        described,
        start=start,
        refined=jax.jit(partial(refined, shape, prior, precision)),
    )


def of_row(layers: Layers, shape: Factorised, cavity: Cavity, row: Row) -> Array:
    """θ of a row's site: (g + mc)/(1 − vc) and c/(1 − vc), c = g² − 2h, for a weight N(m, v); g and h are the slopes of
    log Z by m and by v.
    """
    _, _, (gamma,), (rate,) = shape.unpack(cavity.theta)
    x, y = layers.features(row), layers.target(row)
    (centre, spread), back = jax.vjp(lambda m, v: forward(layers, m, v, x), cavity.mean, cavity.cov)

    def log_z(centre, spread, shape):
        variance = spread + rate / (shape - 1)
        return -0.5 * (jnp.log(variance) + (y - centre) ** 2 / variance)

    g, h = back(jax.grad(log_z, (0, 1))(centre, spread, gamma))
    bend = g**2 - 2 * h
    left = 1 - cavity.cov * bend
    good = (left > TINY) & jnp.isfinite(left)
    eta, precision = (jnp.where(good, part / left, 0.0) for part in (g + cavity.mean * bend, bend))
    z, z1, z2 = (log_z(centre, spread, gamma + more) for more in range(3))
    new = 1 / (jnp.exp(z2 + z - 2 * z1) * (gamma + 1) / gamma - 1)
    new_rate = 1 / (jnp.exp(z2 - z1) * (gamma + 1) / rate - jnp.exp(z1 - z) * gamma / rate)
    good = (new > 1) & (new_rate > 0) & jnp.isfinite(new + new_rate)
    change = [jnp.where(good, part, 0.0)[None] for part in (new - gamma, new_rate - rate)]
    return jnp.concatenate([eta, precision, *change])


def forward(layers: Layers, mean: Array, variance: Array, x: Array) -> tuple[Array, Array]:
    """Mean and variance of the network's output, for features x and independent weights of these moments."""
    (hidden, outer), (of_hidden, of_outer) = layers.split(mean), layers.split(variance)
    centre, spread = hidden @ x, jnp.maximum(of_hidden @ x**2, TINY)
    sd = jnp.sqrt(spread)
    share = jax.scipy.special.ndtr(centre / sd)
    edge = sd * jnp.exp(-0.5 * centre**2 / spread) / np.sqrt(2 * np.pi)
    first = share * centre + edge
    second = (centre**2 + spread) * share + centre * edge
    above = jnp.append(first, 1.0) / np.sqrt(layers.hidden + 1)
    of_above = jnp.append(jnp.maximum(second - first**2, 0.0), 0.0) / (layers.hidden + 1)
    return outer @ above, of_outer @ (of_above + above**2) + outer**2 @ of_above


def refined(
    shape: Factorised, usual: np.ndarray, precision: tuple[float, float], phi: Numbers, prior: Numbers
) -> Array:
    """θ₀ once rows said φ of the weights: Gaussians that, with φ, have the moments they have when λ is integrated out.

    Given λ weights are independent, so that its posterior is a sum over weights at every λ of a grid: a wide one about
    the prior's mean, and a close one about the best of these. Of a weight of which φ says nothing, or less than
    nothing, λ hears nothing; it has the `usual` prior, or keeps the `prior` that it has.
    """
    eta, seen, _, _ = shape.unpack(phi)
    known = seen > LEAST_SEEN

    def told(grid):
        total = jnp.where(known, seen, 1.0)[None] + jnp.exp(grid)[:, None]
        height = 0.5 * jnp.where(known[None], grid[:, None] - jnp.log(total) + eta[None] ** 2 / total, 0.0).sum(1)
        return height + precision[0] * grid - precision[1] * jnp.exp(grid), total

    wide = np.log(precision[0] / precision[1]) + WIDE
    near = jnp.asarray(wide)[jnp.argmax(told(wide)[0])] + NEAR
    height, total = told(near)
    share = jax.nn.softmax(height)
    mean = share @ (eta[None] / total)
    variance = share @ (1 / total + (eta[None] / total - mean[None]) ** 2)
    first, flat, *gammas = shape.unpack(usual)
    silent = jnp.abs(seen) <= LEAST_SEEN
    before, found = shape.unpack(prior)[:2], (mean / variance - eta, 1 / variance - seen)
    kept = (jnp.where(silent, own, old) for own, old in zip((first, flat), before, strict=True))
    return shape.pack(*(jnp.where(known, new, old) for new, old in zip(found, kept, strict=True)), *gammas)


def posterior(site: Site, phi: np.ndarray) -> np.ndarray:
    """θ of all that is known once rows said φ, taken at its word: privacy's noise in φ is not added to any variance.

    The prior is refined, and no density is missing.
    """
    assert site.refined is not None
    with jax.enable_x64(True):
        return np.asarray(site.shape.lifted(site.refined(phi, site.prior) + phi, site.prior, TINY))


class Weights(NamedTuple):
    """Independent Gaussians of a network's weights, by means and variances, and the variance of the noise."""

    mean: Numbers
    variance: Numbers
    noise: float


def weights(site: Site, theta: np.ndarray) -> Weights:
    """What θ says of a network."""
    assert isinstance(site.shape, Factorised)
    with jax.enable_x64(True):
        mean, variance = site.shape.moments(theta)
        _, _, (gamma,), (rate,) = site.shape.unpack(theta)
        return Weights(np.asarray(mean), np.asarray(variance), float(rate / (gamma - 1)))


def predict(layers: Layers, q: Weights, columns: Mapping[str, Any]) -> Predicted:
    """What a network says of rows that are public, or that were simulated: in the outcome's own units.

    With one hidden layer of independent weights these means and variances are exact.
    """
    with jax.enable_x64(True):
        rows = {name: jnp.asarray(columns[name]) for name in layers.covariates}
        mean, variance = jnp.asarray(q.mean), jnp.asarray(q.variance)
        told = jax.jit(jax.vmap(lambda row: forward(layers, mean, variance, layers.features(row))))
        centre, spread = map(np.asarray, told(rows))
    own = layers.scale**2
    return Predicted(centre * layers.scale + layers.centre, spread * own, np.full(len(centre), q.noise) * own)
