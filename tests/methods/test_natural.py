"""Gaussians by natural parameters, against their moments."""

import jax
import numpy as np
import pytest
from scipy import stats

from discreet.methods.natural import Factorised, Shape, triangle_places

SHAPE = Shape(2, 3)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def gaussians(rng, lead=()):
    root = rng.standard_normal((*lead, 2, 3, 5))
    return rng.standard_normal((*lead, 2, 3)), root @ np.swapaxes(root, -1, -2)


def test_moments_come_back():
    mean, cov = gaussians(np.random.default_rng(1), (4,))
    theta = SHAPE.of_moments(mean, cov)
    assert theta.shape == (4, SHAPE.size)
    again = SHAPE.moments(theta)
    np.testing.assert_allclose(again[0], mean, rtol=1e-9)
    np.testing.assert_allclose(again[1], cov, rtol=1e-9)


def test_the_vector_is_every_eta_and_then_every_upper_triangle():
    eta, precision = np.arange(6.0).reshape(2, 3), 10 + np.arange(18.0).reshape(2, 3, 3)
    assert SHAPE.pack(eta, precision).tolist() == [*range(6), 10, 11, 12, 14, 15, 18, 19, 20, 21, 23, 24, 27]
    symmetric = np.triu(precision) + np.swapaxes(np.triu(precision, 1), -1, -2)
    back = SHAPE.unpack(SHAPE.pack(eta, precision))
    np.testing.assert_array_equal(back[0], eta)
    np.testing.assert_array_equal(back[1], symmetric)
    assert (triangle_places(3) == triangle_places(3).T).all()


def test_the_product_of_densities_is_the_sum_of_vectors():
    rng = np.random.default_rng(2)
    parts = [gaussians(rng) for _ in range(2)]
    mean, cov = SHAPE.moments(sum(SHAPE.of_moments(*part) for part in parts))
    precisions = [np.linalg.inv(part[1]) for part in parts]
    expected = np.linalg.inv(sum(precisions))
    weighted = sum(p @ part[0][..., None] for p, part in zip(precisions, parts, strict=True))
    np.testing.assert_allclose(cov, expected, rtol=1e-8)
    np.testing.assert_allclose(mean, (expected @ weighted)[..., 0], rtol=1e-8)


def test_only_eigenvalues_below_the_least_are_lifted_in_units_of_the_prior():
    """One block has eigenvalues (−3, .5, 7) prior precisions, the other has none below a tenth and stays as it is."""
    rng = np.random.default_rng(3)
    unit = SHAPE.of_moments(*gaussians(rng))
    factor = np.linalg.cholesky(SHAPE.unpack(unit)[1])
    turn = np.linalg.qr(rng.standard_normal((2, 3, 3)))[0]
    values = np.array([[-3.0, 0.5, 7.0], [0.2, 1.0, 9.0]])
    precision = factor @ (turn * values[:, None]) @ np.swapaxes(turn, -1, -2) @ np.swapaxes(factor, -1, -2)
    theta = SHAPE.pack(rng.standard_normal((2, 3)), precision)
    assert SHAPE.smallest(theta, unit) == pytest.approx(-3)
    lifted = SHAPE.lifted(theta, unit, 0.1)
    assert SHAPE.smallest(lifted, unit) == pytest.approx(0.1)
    inverse = np.linalg.inv(factor)
    after = np.linalg.eigvalsh(inverse @ SHAPE.unpack(lifted)[1] @ np.swapaxes(inverse, -1, -2))
    np.testing.assert_allclose(after, np.maximum(values, 0.1), rtol=1e-8)
    np.testing.assert_array_equal(SHAPE.unpack(lifted)[0], SHAPE.unpack(theta)[0])
    np.testing.assert_array_equal(SHAPE.unpack(lifted)[1][1], SHAPE.unpack(theta)[1][1])


# Independent Gaussians and Gammas.

SINGLES = Factorised(3, 2)


def singles(rng, lead=()):
    """Means, variances, shapes and rates."""
    return (
        rng.standard_normal((*lead, 3)),
        rng.uniform(0.5, 2, (*lead, 3)),
        rng.uniform(2, 5, (*lead, 2)),
        rng.uniform(1, 3, (*lead, 2)),
    )


def of_singles(mean, variance, shape, rate):
    return SINGLES.pack(mean / variance, 1 / variance, shape, rate)


@pytest.mark.parametrize("lead", [(), (4,)])
def test_moments_and_gammas_of_independent_entries_come_back(lead):
    mean, variance, shape, rate = singles(np.random.default_rng(1), lead)
    theta = of_singles(mean, variance, shape, rate)
    assert theta.shape == (*lead, SINGLES.size)
    for found, expected in zip(SINGLES.moments(theta), (mean, variance), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    for found, expected in zip(SINGLES.unpack(theta)[2:], (shape, rate), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(SINGLES.sds(theta), np.sqrt(variance), rtol=1e-12)


def test_the_vector_is_every_eta_precision_shape_less_one_and_rate():
    theta = SINGLES.pack(np.arange(3.0), np.arange(3.0, 6), np.array([7.0, 8]), np.array([9.0, 10]))
    assert theta.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 9, 10]
    assert (SINGLES.size, SINGLES.means, Factorised(2).size) == (10, 3, 4)


def test_the_product_of_independent_densities_is_the_sum_of_vectors():
    """By scipy's log densities at some points, up to a constant."""
    rng = np.random.default_rng(2)
    parts = [singles(rng) for _ in range(2)]
    theta = sum(of_singles(*part) for part in parts)
    mean, variance = map(np.asarray, SINGLES.moments(theta))
    shape, rate = map(np.asarray, SINGLES.unpack(theta)[2:])
    x, t = rng.standard_normal((50, 3)), rng.uniform(0.1, 4, (50, 2))

    def heights(mean, variance, shape, rate):
        gaussian = stats.norm.logpdf(x, mean[None], np.sqrt(variance)[None])
        return np.column_stack([gaussian, stats.gamma.logpdf(t, shape[None], scale=1 / rate[None])])

    apart = sum(heights(*part) for part in parts) - heights(mean, variance, shape, rate)
    assert np.ptp(apart, axis=0).max() < 1e-9


def test_densities_about_an_origin_are_the_same_ones():
    mean, variance, shape, rate = singles(np.random.default_rng(3))
    origin = np.array([0.5, -1.0, 2.0])
    theta = of_singles(mean, variance, shape, rate)
    moved = SINGLES.about(theta, origin)
    np.testing.assert_allclose(SINGLES.moments(moved)[0], mean - origin, rtol=1e-10)
    np.testing.assert_array_equal(moved[3:], theta[3:])
    np.testing.assert_allclose(SINGLES.about(moved, -origin), theta, rtol=1e-12)


def test_only_entries_below_the_least_are_lifted_in_units_of_the_prior():
    rng = np.random.default_rng(4)
    unit = of_singles(*singles(rng))
    share = np.array([-3.0, 0.5, 7.0, 0.2, 0.05, 1.0, -1.0])  # Λ, shapes less one, rates
    theta = np.concatenate([rng.standard_normal(3), share * np.asarray(unit[3:])])
    assert SINGLES.smallest(theta, unit) == pytest.approx(-3)
    lifted = np.asarray(SINGLES.lifted(theta, unit, 0.1))
    np.testing.assert_array_equal(lifted[:3], theta[:3])
    np.testing.assert_allclose(lifted[3:], np.maximum(share, 0.1) * np.asarray(unit[3:]), rtol=1e-12)
    assert SINGLES.smallest(lifted, unit) == pytest.approx(0.1)
    np.testing.assert_array_equal(lifted[4:7], theta[4:7])


def test_each_entry_exists_by_itself_and_both_numbers_of_a_density_together():
    """Two Gaussians of three, and a Gamma with shape above one of two."""
    theta = SINGLES.pack(np.zeros(3), np.array([1.0, -1.0, 2.0]), np.array([1.5, 0.9]), np.array([1.0, 1.0]))
    found = SINGLES.exists(theta, theta)
    assert found.tolist() == [True, False, True, True, False, True, True, False, True, False]
    assert not SINGLES.exists(theta.at[-2].set(-1.0), theta)[-2]
    assert SINGLES.exists(of_singles(*singles(np.random.default_rng(5))), theta).all()


def test_many_vectors_are_lifted_and_moved_like_each_one():
    rng = np.random.default_rng(6)
    unit, origin = of_singles(*singles(rng)), rng.standard_normal((4, 3))
    theta = of_singles(*singles(rng, (4,))) - 1.5 * unit[None]
    for many, each in (
        (SINGLES.lifted(theta, unit, 0.1), [SINGLES.lifted(one, unit, 0.1) for one in theta]),
        (SINGLES.smallest(theta, unit), [SINGLES.smallest(one, unit) for one in theta]),
        (SINGLES.about(theta, origin), [SINGLES.about(*pair) for pair in zip(theta, origin, strict=True)]),
    ):
        np.testing.assert_allclose(many, np.stack(each), rtol=1e-12)
