"""Gaussians by their natural parameters η = Λm and Λ: products of densities are sums of these vectors."""

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

    def _in_units(self, theta: Numbers, unit: Numbers) -> tuple[Array, Array]:
        factor = jnp.linalg.cholesky(self.unpack(unit)[1])
        inverse = jnp.linalg.inv(factor)
        return factor, inverse @ self.unpack(theta)[1] @ jnp.swapaxes(inverse, -1, -2)


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
