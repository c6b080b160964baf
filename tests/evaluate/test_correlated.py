import warnings

import numpy as np
import pytest
from scipy.optimize import minimize

from discreet.evaluate.correlated import correlated_normals, nearest_correlation, sparse_correlation

VALID = np.array([[1.0, 0.6, -0.3, 0.0], [0.6, 1.0, 0.1, 0.2], [-0.3, 0.1, 1.0, -0.5], [0.0, 0.2, -0.5, 1.0]])


def smallest(matrix):
    return np.linalg.eigvalsh(matrix)[0]


@pytest.mark.parametrize("density", [0.0, 0.2, 0.8, 1.0])
def test_a_sparse_correlation_has_the_density_that_was_asked_for(density):
    dim = 41
    matrix = sparse_correlation(np.random.default_rng(0), dim, density)
    below = matrix[np.tril_indices(dim, -1)]
    assert (below != 0).sum() == density * len(below)
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_array_equal(np.diag(matrix), 1)
    assert (np.abs(below) < 1).all()


def test_its_entries_are_of_the_beta_s_size_and_either_sign():
    """4950 entries: mean size 8/18 with sd √(80/(18²·19)) = .114, half of them negative; 5 standard errors, 1e-6."""
    entries = sparse_correlation(np.random.default_rng(1), 100, 1.0)[np.tril_indices(100, -1)]
    assert abs(np.abs(entries).mean() - 8 / 18) < 5 * 0.114 / np.sqrt(4950)
    assert abs((entries < 0).mean() - 0.5) < 5 * 0.5 / np.sqrt(4950)


def test_where_the_entries_stand_is_chance():
    """Each of 10 places is filled in .3 of 2000 matrices; sd 1 %, 5 of them: 6e-6."""
    rng = np.random.default_rng(2)
    filled = np.mean([sparse_correlation(rng, 5, 0.3)[np.tril_indices(5, -1)] != 0 for _ in range(2000)], axis=0)
    assert (np.abs(filled - 0.3) < 0.052).all()


@pytest.mark.parametrize("density", [-0.1, 1.1, float("nan")])
def test_a_density_that_is_no_share_is_refused(density):
    with pytest.raises(ValueError, match=f"density={density} must lie in"):
        sparse_correlation(np.random.default_rng(0), 5, density)


@pytest.mark.parametrize("density", [0.2, 0.8])
def test_the_paper_s_matrices_are_indefinite_and_their_projections_are_not(density):
    rng = np.random.default_rng(3)
    matrices = [sparse_correlation(rng, 100, density) for _ in range(20)]
    assert max(smallest(matrix) for matrix in matrices) < -1
    found = nearest_correlation(sparse_correlation(rng, 40, density))
    np.testing.assert_allclose(np.diag(found), 1, atol=1e-15)
    np.testing.assert_allclose(found, found.T, atol=1e-15)
    assert smallest(found) > 0.9e-4
    assert np.abs(found).max() < 1 + 1e-15


def test_a_correlation_matrix_is_left_alone():
    np.testing.assert_allclose(nearest_correlation(VALID), VALID, atol=1e-6)
    np.testing.assert_array_equal(nearest_correlation(np.eye(7)), np.eye(7))


def test_higham_s_example():
    """Higham (2002), §4: the nearest to [[1, 1, 0], [1, 1, 1], [0, 1, 1]] has .7607 and .1573, at .5278."""
    matrix = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    found = nearest_correlation(matrix, least=1e-9)
    np.testing.assert_allclose(found[[0, 1, 0], [1, 2, 2]], [0.7607, 0.7607, 0.1573], atol=5e-5)
    assert np.linalg.norm(found - matrix) == pytest.approx(0.5278, abs=5e-5)


def test_nothing_is_nearer():
    """Neither what a descent over all correlation matrices LLᵀ finds from three starts, nor statsmodels."""
    from statsmodels.stats.correlation_tools import corr_nearest

    rng, dim = np.random.default_rng(1), 5
    matrix = sparse_correlation(rng, dim, 1.0)
    assert smallest(matrix) < -0.1

    def correlation(entries):
        factor = np.zeros((dim, dim))
        factor[np.tril_indices(dim)] = entries
        factor /= np.linalg.norm(factor, axis=1, keepdims=True)
        return factor @ factor.T

    def distance(found):
        return np.linalg.norm(found - matrix)

    found = distance(nearest_correlation(matrix, least=1e-6))
    starts = rng.normal(size=(3, dim * (dim + 1) // 2))
    descents = [minimize(lambda entries: distance(correlation(entries)) ** 2, start).fun ** 0.5 for start in starts]
    assert found <= min(descents) + 1e-5  # eigenvalues from 1e-6 on cost no more
    assert found >= min(descents) - 1e-3  # and the descents are near it, so they mean something
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it stops at an iteration limit, near enough
        other = corr_nearest(matrix, 1e-6, 1000)
    assert found <= distance(other) + 1e-6


def test_normals_have_the_correlations():
    """20 000 rows; means, variances and correlations within 5 standard errors: 14 comparisons, 1e-5."""
    rows = correlated_normals(np.random.default_rng(5), 20_000, VALID)
    assert rows.shape == (20_000, 4)
    assert (np.abs(rows.mean(0)) < 5 / np.sqrt(20_000)).all()
    assert (np.abs(rows.var(0) - 1) < 5 * np.sqrt(2 / 20_000)).all()
    assert (np.abs(np.corrcoef(rows.T) - VALID) < 5 * (1 - VALID**2) / np.sqrt(20_000) + 1e-12).all()


def test_an_indefinite_matrix_is_refused_with_its_eigenvalue_and_the_remedy():
    rng = np.random.default_rng(6)
    matrix = sparse_correlation(rng, 30, 0.8)
    with pytest.raises(ValueError, match=rf"smallest eigenvalue {smallest(matrix):.3g}\).*nearest_correlation"):
        correlated_normals(rng, 10, matrix)
    assert np.isfinite(correlated_normals(rng, 10, nearest_correlation(matrix))).all()


@pytest.mark.parametrize("bad", [np.ones(3), np.ones((2, 3)), 2 * np.eye(3), np.triu(np.ones((3, 3)))])
def test_what_is_no_correlation_matrix_is_refused(bad):
    with pytest.raises(ValueError, match="square, symmetric"):
        correlated_normals(np.random.default_rng(0), 10, bad)
