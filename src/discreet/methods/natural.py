"""Densities by their natural parameters, of Gaussians η = Λm and Λ: products of densities are sums of these vectors."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from discreet.query import Numbers


class Shape(NamedTuple):
    """`blocks` independent Gaussians of `dim` parameters each.

    As one vector θ: every block's η, then every block's upper triangle of Λ, row by row.

    >>> Shape(blocks=2, dim=3).size
    18
    """

    blocks: int
    dim: int

    @property
    def size(self) -> int:
        """Length of θ."""
        return self.blocks * self.dim * (self.dim + 3) // 2

    @property
    def means(self) -> int:
        """How many entries of θ, its first, are η."""
        return self.blocks * self.dim

    def pack(self, eta: Numbers, precision: Numbers) -> Array:
        """θ from η (…, blocks, dim) and Λ (…, blocks, dim, dim)."""
        row, column = np.triu_indices(self.dim)
        lead, precision = np.shape(eta)[:-2], jnp.asarray(precision)
        parts = (jnp.asarray(eta), precision[..., row, column])
        return jnp.concatenate([part.reshape(*lead, -1) for part in parts], -1)

    def unpack(self, theta: Numbers) -> tuple[Array, Array]:
        """η (…, blocks, dim) and Λ (…, blocks, dim, dim) of θ."""
        theta = jnp.asarray(theta)
        lead, means = theta.shape[:-1], self.blocks * self.dim
        triangle = theta[..., means:].reshape(*lead, self.blocks, -1)
        return theta[..., :means].reshape(*lead, self.blocks, self.dim), triangle[..., triangle_places(self.dim)]

    def moments(self, theta: Numbers) -> tuple[Array, Array]:
        """Means (…, blocks, dim) and covariances (…, blocks, dim, dim) of θ."""
        eta, precision = self.unpack(theta)
        cov = jnp.linalg.inv(precision)
        return jnp.einsum("...ij,...j->...i", cov, eta), (cov + jnp.swapaxes(cov, -1, -2)) / 2

    def of_moments(self, mean: Numbers, cov: Numbers) -> Array:
        """θ of the Gaussians with these moments."""
        precision = jnp.linalg.inv(jnp.asarray(cov))
        return self.pack(jnp.einsum("...ij,...j->...i", precision, jnp.asarray(mean)), precision)

    def about(self, theta: Numbers, origin: Numbers) -> Array:
        """θ of the same Gaussians if parameters are measured from `origin` (…, blocks, dim): η − Λ·origin, and Λ."""
        eta, precision = self.unpack(theta)
        return self.pack(eta - jnp.einsum("...ij,...j->...i", precision, jnp.asarray(origin)), precision)

    def smallest(self, theta: Numbers, unit: Numbers) -> Array:
        """The smallest eigenvalue of Λ in units of that of the vector `unit`, over all blocks, shape (…)."""
        return jnp.linalg.eigvalsh(self._in_units(theta, unit)[1]).min((-2, -1))

    def lifted(self, theta: Numbers, unit: Numbers, least: float) -> Array:
        """θ with eigenvalues of Λ of at least `least`, in units of that of the vector `unit`; η stays."""
        factor, relative = self._in_units(theta, unit)
        values, vectors = jnp.linalg.eigh(relative)
        lifted = (vectors * jnp.maximum(values, least)[..., None, :]) @ jnp.swapaxes(vectors, -1, -2)
        precision = factor @ lifted @ jnp.swapaxes(factor, -1, -2)
        fine = (values >= least).all(-1)[..., None, None]  # what needs no repair is not rounded either
        eta, before = self.unpack(theta)
        return self.pack(eta, jnp.where(fine, before, precision))

    def exists(self, theta: Numbers, unit: Numbers) -> Array:
        """Whether these are Gaussians: one answer for all entries of θ."""
        return self.smallest(theta, unit) > 0

    def sds(self, theta: Numbers) -> Array:
        """Standard deviations, shape of the means."""
        return jnp.sqrt(jnp.diagonal(self.moments(theta)[1], axis1=-2, axis2=-1))

    def _in_units(self, theta: Numbers, unit: Numbers) -> tuple[Array, Array]:
        factor = jnp.linalg.cholesky(self.unpack(unit)[1])
        inverse = jnp.linalg.inv(factor)
        return factor, inverse @ self.unpack(theta)[1] @ jnp.swapaxes(inverse, -1, -2)


class Factorised(NamedTuple):
    """Independent Gaussians and Gammas of one parameter each: what `Shape` is to dense blocks, entry by entry.

    As one vector θ: every Gaussian's η, then every Λ, every Gamma's shape less one, and every Gamma's rate.

    >>> Factorised(gaussians=3, gammas=1).size
    8
    """

    gaussians: int
    gammas: int = 0

    @property
    def size(self) -> int:
        """Length of θ."""
        return 2 * (self.gaussians + self.gammas)

    @property
    def means(self) -> int:
        """How many entries of θ, its first, are η."""
        return self.gaussians

    def pack(self, eta: Numbers, precision: Numbers, shape: Numbers, rate: Numbers) -> Array:
        """θ from η and Λ (…, gaussians), shapes and rates (…, gammas)."""
        return jnp.concatenate([*map(jnp.asarray, (eta, precision)), jnp.asarray(shape) - 1, jnp.asarray(rate)], -1)

    def unpack(self, theta: Numbers) -> tuple[Array, Array, Array, Array]:
        """η, Λ, shapes and rates of θ."""
        theta, n, k = jnp.asarray(theta), self.gaussians, self.gammas
        cuts = (n, 2 * n, 2 * n + k)
        eta, precision, shape, rate = jnp.split(theta, cuts, -1)
        return eta, precision, shape + 1, rate

    def moments(self, theta: Numbers) -> tuple[Array, Array]:
        """Means and variances of the Gaussians, (…, gaussians)."""
        eta, precision, _, _ = self.unpack(theta)
        return eta / precision, 1 / precision

    def about(self, theta: Numbers, origin: Numbers) -> Array:
        """θ of the same densities if the Gaussians' parameters are measured from `origin` (…, gaussians)."""
        eta, precision, *gammas = self.unpack(theta)
        return self.pack(eta - precision * origin, precision, *gammas)

    def smallest(self, theta: Numbers, unit: Numbers) -> Array:
        """The smallest of all Λ, shapes less one and rates, in units of those of the vector `unit`, shape (…)."""
        return (jnp.asarray(theta) / jnp.broadcast_to(unit, theta.shape))[..., self.gaussians :].min(-1)

    def lifted(self, theta: Numbers, unit: Numbers, least: float) -> Array:
        """θ with Λ, shapes less one and rates of at least `least`, in units of those of the vector `unit`; η stays."""
        lowest = (least * jnp.asarray(unit)).at[..., : self.gaussians].set(-jnp.inf)
        return jnp.maximum(theta, jnp.broadcast_to(lowest, theta.shape))

    def exists(self, theta: Numbers, unit: Numbers) -> Array:
        """Whether each entry of θ belongs to a density, a Gamma's shape being above one; shape (…, size)."""
        del unit
        _, precision, shape, rate = self.unpack(theta)
        gaussians, gammas = precision > 0, (shape > 1) & (rate > 0)
        return jnp.concatenate([gaussians, gaussians, gammas, gammas], -1)

    def sds(self, theta: Numbers) -> Array:
        """Standard deviations of the Gaussians."""
        return jnp.sqrt(self.moments(theta)[1])


def shortened(theta: Array, most: float) -> Array:
    """The vector, no longer than `most`."""
    return theta * jnp.minimum(1.0, most / jnp.maximum(jnp.linalg.norm(theta), 1e-300))


def triangle_places(dim: int) -> np.ndarray:
    """For each entry of a symmetric matrix, its place in the list of the upper triangle.

    >>> triangle_places(2).tolist()
    [[0, 1], [1, 2]]
    """
    place = np.zeros((dim, dim), int)
    upper = np.triu_indices(dim)
    place[upper] = np.arange(len(upper[0]))
    return np.maximum(place, place.T)
