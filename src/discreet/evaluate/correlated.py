"""Correlated covariates for simulated studies (DPVIm, appendix J)."""

import numpy as np


def sparse_correlation(
    rng: np.random.Generator, dim: int, density: float, alpha: float = 8.0, beta: float = 10.0
) -> np.ndarray:
    """DPVIm's Algorithm J.1: a share `density` of the off-diagonal entries are ±Beta(alpha, beta), the others zero.

    Nothing makes this a correlation matrix: for most densities it is indefinite. See `nearest_correlation`.
    """
    if not 0 <= density <= 1:
        raise ValueError(f"density={density} must lie in [0, 1]: it is the share of entries that are not zero")
    below = np.stack(np.tril_indices(dim, -1), 1)
    i, j = rng.permutation(below)[: round(density * len(below))].T
    matrix = np.eye(dim)
    matrix[i, j] = matrix[j, i] = rng.choice([-1.0, 1.0], len(i)) * rng.beta(alpha, beta, len(i))
    return matrix


def nearest_correlation(matrix: np.ndarray, least: float = 1e-4, most_steps: int = 1000) -> np.ndarray:
    """The correlation matrix with eigenvalues from about `least` on that is nearest in Frobenius norm (Higham 2002).

    Alternating projections with Dykstra's correction; the unit diagonal is exact.
    """
    matrix = np.asarray(matrix, np.float64)
    near, correction = matrix, np.zeros_like(matrix)
    for _ in range(most_steps):
        shifted = near - correction
        values, vectors = np.linalg.eigh(shifted)
        positive = (vectors * np.maximum(values, least)) @ vectors.T
        correction = positive - shifted
        before, near = near, positive.copy()
        np.fill_diagonal(near, 1.0)
        if np.abs(near - before).max() < 1e-7:
            break
    values, vectors = np.linalg.eigh(near)
    near = (vectors * np.maximum(values, least)) @ vectors.T
    scale = np.sqrt(np.diag(near))
    return near / np.outer(scale, scale)


def correlated_normals(rng: np.random.Generator, count: int, correlation: np.ndarray) -> np.ndarray:
    """`count` standard normal vectors with this correlation matrix, which must be one."""
    correlation = np.asarray(correlation, np.float64)
    square = correlation.ndim == 2 and correlation.shape[0] == correlation.shape[1]
    if not square or not np.allclose(correlation, correlation.T) or not np.allclose(np.diag(correlation), 1):
        raise ValueError("a correlation matrix is square, symmetric and has ones on its diagonal")
    smallest = np.linalg.eigvalsh(correlation)[0]
    if smallest <= 0:
        raise ValueError(
            f"the correlation matrix is indefinite (smallest eigenvalue {smallest:.3g}): no rows have it; "
            "project it with nearest_correlation"
        )
    return rng.standard_normal((count, len(correlation))) @ np.linalg.cholesky(correlation).T
