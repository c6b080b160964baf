"""Linear regression with its conjugate prior: the 10-dimensional model of the NA-DPVI paper (eq. 28).

σ² ~ InverseGamma(shape, rate); coefficients ~ N(0, scale²·σ²·I), one for each covariate and, last, the bias;
y | x ~ N(w·x + bias, σ²). In unconstrained terms z = (w, bias, softplus⁻¹(σ²)).

`Statistic` says which products of its columns a row is asked for once (Bernstein and Sheldon 2019); the functions on
the design, (x, 1), turn their sums into matrices.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations_with_replacement
from math import factorial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from discreet.model import Linear, Model, Row, softplus_inverse

FLOOR = 1e-3


class Prior(NamedTuple):
    """Of σ²: InverseGamma(shape, rate). Of each coefficient given σ²: N(0, (scale·σ)²)."""

    shape: float = 20.0
    rate: float = 0.5
    scale: float = 2.0


def conjugate_regression(
    outcome: str, covariates: Sequence[str], *, shape: float = 20.0, rate: float = 0.5, scale: float = 2.0
) -> Model:
    """The regression of `outcome` on numeric `covariates`, in their own units.

    >>> conjugate_regression("y", ["a", "b"]).labels
    {'coefficients': ('a', 'b', 'Intercept')}
    """
    _check(outcome, covariates, Prior(shape, rate, scale))
    terms = len(covariates) + 1

    def features(row):
        return jnp.stack([*(row[name] for name in covariates), jnp.ones(())])

    def predictor(z, row):
        return jnp.dot(z[:terms], features(row))

    def log_prior(z):
        variance, w = jax.nn.softplus(z[-1]), z[:-1]
        of_variance = -(shape + 1) * jnp.log(variance) - rate / variance + jax.nn.log_sigmoid(z[-1])
        return of_variance - 0.5 * (jnp.dot(w, w) / (scale**2 * variance) + terms * jnp.log(variance))

    def of_predictor(u, rest, row):
        variance = jax.nn.softplus(rest[0])
        return -0.5 * ((row[outcome] - u) ** 2 / variance + jnp.log(2 * np.pi * variance))

    def sample_prior(key):
        first, second = jax.random.split(key)
        variance = rate / jax.random.gamma(first, shape)
        w = scale * jnp.sqrt(variance) * jax.random.normal(second, (terms,))
        return jnp.append(w, softplus_inverse(variance, jnp))

    def simulate(key, z, row):
        return {outcome: predictor(z, row) + jnp.sqrt(jax.nn.softplus(z[-1])) * jax.random.normal(key)}

    return Model(
        dim=terms + 1,
        log_prior=log_prior,
        log_likelihood=Linear(features, of_predictor),
        constrain=lambda z: {"coefficients": z[:-1], "variance": jax.nn.softplus(z[-1])},
        sample_prior=sample_prior,
        columns=(*covariates, outcome),
        outcome=(outcome,),
        simulate=simulate,
        mean=predictor,
        labels={"coefficients": (*covariates, "Intercept")},
        description={
            "family": "conjugate-regression",
            "outcome": outcome,
            "covariates": list(covariates),
            **Prior(shape, rate, scale)._asdict(),
        },
    )


def exact_posterior(rng: np.random.Generator, x, y, prior: Prior, draws: int) -> np.ndarray:
    """Draws of z from the non-private posterior of rows x (…, N, d) and y (…, N), shape (…, draws, d + 2).

    Normal-inverse-gamma: Λ = XᵀX + I/scale², μ = Λ⁻¹Xᵀy, σ² ~ InverseGamma(shape + N/2, rate + ½(yᵀy − μᵀΛμ)) and
    coefficients ~ N(μ, σ²Λ⁻¹).
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    design = np.concatenate([x, np.ones((*x.shape[:-1], 1))], -1)
    precision = np.swapaxes(design, -1, -2) @ design + np.eye(design.shape[-1]) / prior.scale**2
    moment = (np.swapaxes(design, -1, -2) @ y[..., None])[..., 0]
    mean = np.linalg.solve(precision, moment[..., None])[..., 0]
    left = prior.rate + 0.5 * ((y**2).sum(-1) - (moment * mean).sum(-1))
    shape = (*y.shape[:-1], draws)
    variance = left[..., None] / rng.standard_gamma(prior.shape + y.shape[-1] / 2, shape)
    normal = rng.standard_normal((*shape, design.shape[-1]))
    root = np.linalg.cholesky(np.linalg.inv(precision))
    w = mean[..., None, :] + np.sqrt(variance)[..., None] * (normal @ np.swapaxes(root, -1, -2))
    return np.concatenate([w, softplus_inverse(variance, np)[..., None]], -1)


class Statistic(NamedTuple):
    """What a row answers: products of pairs of (x, 1, y), and with `factor` > 0 products of four of (x, 1), times it.

    Products of different entries are weighted by the root of how often they occur in v⊗v (or v⊗v⊗v⊗v), so that norms
    are rotation-free: with q = ‖x‖² the pairs have norm² (q + 1 + y²)² − 1 and the fours factor²·q³(q + 4). Each
    moment is asked for once: 1·1 sums to the public number of rows, and fours with two ones are pairs.
    """

    outcome: str
    covariates: tuple[str, ...]
    factor: float = 0.0

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a row must have."""
        return (*self.covariates, self.outcome)

    @property
    def settings(self) -> dict:
        """Plain public values that describe the statistic."""
        return {"statistic": "regression", **self._asdict(), "covariates": list(self.covariates)}

    @property
    def size(self) -> int:
        """Entries of a row's answer."""
        return len(pairs(len(self.covariates))[1]) + (len(fours(len(self.covariates))[1]) if self.factor else 0)

    def of_row(self, row: Row) -> Array:
        """The weighted products of one row."""
        return products(jnp.stack([row[name] for name in self.covariates]), row[self.outcome], self.factor)


def products(x: Array, y: Array, factor: float = 0.0) -> Array:
    """The answer of a row with covariates x (d,) and outcome y."""
    whole = jnp.concatenate([x, jnp.ones(1, x.dtype), jnp.reshape(y, (1,))])
    (first, weight), (second, times) = pairs(len(x)), fours(len(x))
    parts = [weight * jnp.prod(whole[first], 1)]
    return jnp.concatenate([*parts, factor * times * jnp.prod(whole[second], 1)] if factor else parts)


def pairs(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Index pairs into (x, 1, y) and their weights: products of (x, 1), then those with y, 1·1 left out."""
    design = [pair for pair in combinations_with_replacement(range(dim + 1), 2) if pair[0] < dim]
    index = np.array(design + [(place, dim + 1) for place in range(dim + 2)])
    return index, _weights(index)


def fours(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Sorted index quadruples into (x, 1), 1 at most once, and their weights."""
    index = np.array([four for four in combinations_with_replacement(range(dim + 1), 4) if four[2] < dim])
    return index, _weights(index)


def clip_and_factor(x, y, *, share: float = 0.0, prob: float = 0.999) -> tuple[float, float]:
    """A clip norm that a share `prob` of public rows x (n, d), y (n,) do not exceed, and the factor of the fours.

    `share` of the squared norm is for the fours (0: they are not asked for). The rows are simulated or otherwise
    public; the single row of largest absolute bounds gives the clip norm that no row of the schema exceeds.
    """
    if not (0 <= share < 1 and 0 < prob <= 1):
        raise ValueError(f"share={share} must lie in [0, 1) and prob={prob} in (0, 1]")
    square = (np.asarray(x, float) ** 2).sum(-1)
    two, four = (square + 1 + np.asarray(y, float) ** 2) ** 2 - 1, square**3 * (square + 4)
    if not share:
        return float(np.sqrt(np.quantile(two, prob))), 0.0
    factor = np.sqrt(share / (1 - share) * np.quantile(two, prob) / np.quantile(four, prob))
    return float(np.sqrt(np.quantile(two + factor**2 * four, prob))), float(factor)


class Design(NamedTuple):
    """Mean (E[(x, 1)(x, 1)ᵀ] as `design_entries`) and covariance of one row's products of (x, 1)."""

    mean: Array
    covariance: Array


def public_design(x) -> Design:
    """The design's moments in public rows x (n, d): simulated ones, or another table's."""
    x = np.asarray(x, float)
    index = _design_pairs(x.shape[1])
    whole = np.column_stack([x, np.ones(len(x))])
    each = whole[:, index[:, 0]] * whole[:, index[:, 1]]
    return Design(each.mean(0), np.cov(each.T))  # pyright: ignore[reportArgumentType]


def repaired(matrix: Array) -> tuple[Array, Array]:
    """The nearest symmetric matrix with eigenvalues at least `FLOOR` times the largest, and how many were raised."""
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    floor = FLOOR * jnp.maximum(values[-1], 1e-12)
    return (vectors * jnp.maximum(values, floor)[None]) @ vectors.T, (values < floor * (1 - 1e-9)).sum()


@lru_cache
def design_basis(dim: int) -> np.ndarray:
    """XᵀX = basis·(design sums) + N at the ones' place: shape (p, p, design sums), p = dim + 1."""
    index = _design_pairs(dim)
    basis = np.zeros((dim + 1, dim + 1, len(index)))
    place = np.arange(len(index))
    basis[index[:, 0], index[:, 1], place] = basis[index[:, 1], index[:, 0], place] = 1
    return basis


def design_matrix(sums: Array, num_rows: Any) -> Array:
    """XᵀX from the sums of products of (x, 1)."""
    size = int(np.sqrt(2 * len(sums) + 2))  # of p(p + 1)/2 − 1 sums
    return jnp.asarray(design_basis(size - 1)) @ sums + jnp.zeros((size, size)).at[-1, -1].set(num_rows)


def design_entries(matrix: Array) -> Array:
    """The inverse of `design_matrix`."""
    dim = len(matrix) - 1
    index = _design_pairs(dim)
    return matrix[index[:, 0], index[:, 1]]


def residual_maps(w: Array) -> tuple[Array, Array]:
    """(H, c): the sums s over N rows have (u, e) = H·s + N·c, with u = Xᵀ(y − Xw) and e = ‖y − Xw‖².

    Given w and σ², one row's H·t + c has mean (0, σ²) and covariance diag(σ²E[xxᵀ], 2σ⁴), and is uncorrelated with the
    products of the design: the covariance of all products needs second and fourth moments of x alone.
    """
    by_design = jnp.einsum("abs,b->as", design_basis(len(w) - 1), w)
    to_u = jnp.concatenate([-by_design, jnp.eye(len(w)), jnp.zeros((len(w), 1))], 1)
    to_e = jnp.concatenate([w @ by_design, -2 * w, jnp.ones(1)])
    return jnp.concatenate([to_u, to_e[None]]), jnp.zeros(len(w) + 1).at[-2:].set(jnp.stack([-w[-1], w[-1] ** 2]))


def design_covariance(fourth: Array, second: Array) -> Array:
    """Covariance of one row's products of (x, 1), from weighted means of `fours` and the matrix of second moments."""
    dim = len(second) - 1
    index, weight = fours(dim)
    place = np.zeros((dim + 1,) * 4, int)
    place[tuple(index.T)] = np.arange(len(index))
    design = _design_pairs(dim)
    both = np.concatenate(np.broadcast_arrays(design[:, None], design[None]), -1)
    i, j, k, last = np.sort(both, -1).transpose(2, 0, 1)
    moments = jnp.where(k == dim, second[i, j], (fourth / weight)[place[i, j, k, last]])
    entries = design_entries(second)
    return moments - jnp.outer(entries, entries)


def _design_pairs(dim: int) -> np.ndarray:
    index = pairs(dim)[0]
    return index[index[:, 1] <= dim]


def _weights(index: np.ndarray) -> np.ndarray:
    """Root of the number of orderings of each tuple."""
    orderings = [
        factorial(len(one)) // np.prod([factorial(list(one).count(entry)) for entry in set(one)]) for one in index
    ]
    return np.sqrt(np.array(orderings, float))


def _check(outcome: str, covariates: Sequence[str], prior: Prior) -> None:
    if outcome in covariates:
        raise ValueError(f"outcome={outcome!r} is also a covariate: remove it from the covariates")
    if len(set(covariates)) != len(covariates):
        raise ValueError(f"covariates={list(covariates)} has a name twice")
    for name, value in prior._asdict().items():
        if not 0 < value < np.inf:
            raise ValueError(f"{name}={value} must be positive and finite")
