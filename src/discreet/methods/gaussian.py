"""Gaussian families q(z) = N(m, LLᵀ) as a vector φ = (m, s, l).

L has diagonal T(s) and, in full rank, the entries l below it. A full-rank φ with l = 0 is the mean-field one.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from discreet.model import softplus_inverse
from discreet.query import Numbers

POSITIVE = {
    "softplus": (jax.nn.softplus, lambda sd: softplus_inverse(sd, jnp)),
    "exp": (jnp.exp, jnp.log),
}
NAMES = ("mean-field", "full-rank")


class Family(NamedTuple):
    """Which Gaussian: "mean-field" or "full-rank"; T is "softplus" or "exp"."""

    name: str = "mean-field"
    positive: str = "softplus"

    def size(self, dim: int) -> int:
        """Length of φ for `dim` parameters.

        >>> Family().size(3), Family("full-rank").size(3)
        (6, 9)
        """
        return 2 * dim if self.name == "mean-field" else 2 * dim + dim * (dim - 1) // 2

    def dim(self, phi: Numbers) -> int:
        """Number of parameters whose φ has this length."""
        size = phi.shape[-1]
        return size // 2 if self.name == "mean-field" else int((np.sqrt(9 + 8 * size) - 3) / 2 + 0.5)

    def pack(self, mean: Numbers, sd: Numbers) -> Array:
        """φ of the Gaussian with these means and standard deviations, uncorrelated."""
        mean, sd = jnp.asarray(mean), jnp.asarray(sd)
        rest = jnp.zeros(self.size(len(mean)) - 2 * len(mean), mean.dtype)
        return jnp.concatenate([mean, POSITIVE[self.positive][1](sd), rest])

    def mean(self, phi: Numbers) -> Numbers:
        """Means of q; any leading axes."""
        return phi[..., : self.dim(phi)]

    def sd(self, phi: Numbers) -> Array:
        """Standard deviations of q; any leading axes."""
        diagonal, below = self._factor(phi)
        return diagonal if below is None else jnp.sqrt(diagonal**2 + (below**2).sum(-1))

    def draws(self, phi: Numbers, eta: Numbers) -> Array:
        """z = m + Lη for each row of standard normal η; φ and η may have leading axes that match."""
        diagonal, below = self._factor(phi)
        spread = diagonal[..., None, :] * eta
        if below is not None:
            spread = spread + jnp.einsum("...ij,...kj->...ki", below, eta)
        return jnp.asarray(self.mean(phi))[..., None, :] + spread

    def entropy(self, phi: Numbers) -> Array:
        """Entropy of q up to a constant: log det L."""
        return jnp.log(self._diagonal(phi)).sum(-1)

    def slope(self, phi: Array) -> Array:
        """T′(s)."""
        dim = self.dim(phi)
        return jax.jvp(POSITIVE[self.positive][0], (phi[dim : 2 * dim],), (jnp.ones(dim, phi.dtype),))[1]

    def inverse_fisher(self, phi: Array) -> Array:
        """Diagonal of the inverse Fisher information of a mean-field φ: (T², T²/(2T′²))."""
        sd = self._diagonal(phi)
        return jnp.concatenate([sd**2, (sd / self.slope(phi)) ** 2 / 2])

    def _diagonal(self, phi: Numbers) -> Array:
        dim = self.dim(phi)
        return POSITIVE[self.positive][0](phi[..., dim : 2 * dim])

    def _factor(self, phi: Numbers) -> tuple[Array, Array | None]:
        """The diagonal of L, and what stands below it."""
        if self.name == "mean-field":
            return self._diagonal(phi), None
        dim = self.dim(phi)
        return self._diagonal(phi), strictly_lower(phi[..., 2 * dim :], dim)


MEAN_FIELD = Family()


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def strictly_lower(entries: Numbers, dim: int) -> Array:
    """The (…, dim, dim) matrix with these dim(dim − 1)/2 entries below its diagonal, row by row.

    It is gathered, and so is its derivative: scattering entries one by one takes longer than the rest of a step.

    >>> strictly_lower(np.arange(1.0, 4.0), 3).astype(int).tolist()
    [[0, 0, 0], [1, 0, 0], [2, 3, 0]]
    """
    row, column = np.indices((dim, dim))
    place = np.where(row > column, row * (row - 1) // 2 + column, entries.shape[-1])
    padded = jnp.concatenate([entries, jnp.zeros((*entries.shape[:-1], 1), entries.dtype)], -1)
    return padded[..., place]


def _read_lower(dim: int, _: None, matrix: Array) -> tuple[Array]:
    row, column = np.tril_indices(dim, -1)
    return (matrix.reshape(*matrix.shape[:-2], dim * dim)[..., row * dim + column],)


strictly_lower.defvjp(lambda entries, dim: (strictly_lower(entries, dim), None), _read_lower)


def antithetic(key: Array, draws: int, dim: int) -> Array:
    """`draws` standard normal vectors in pairs (η, −η): their mean is zero where `draws` is even.

    One public set of draws serves all rows of a step. With a zero mean it adds no noise to the location gradient of
    a quadratic loss.
    """
    half = jax.random.normal(key, ((draws + 1) // 2, dim))
    return jnp.concatenate([half, -half])[:draws]
