"""Gaussians by natural parameters, against their moments."""

import jax
import numpy as np
import pytest

from discreet.methods.natural import Shape, triangle_places

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
