"""The mean-field Gaussian: coordinates, entropy and draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from discreet.methods import mean_field


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-30, 6)), min_size=1, max_size=3))
def test_pack_then_unpack_is_the_identity(pairs):
    """For sds from 1e-13 to 400: softplus is undone without loss."""
    mean, sd = np.array(pairs).T
    sd = np.exp(sd)
    with jax.enable_x64(True):
        back = mean_field.unpack(mean_field.pack(jnp.asarray(mean), jnp.asarray(sd)))
    np.testing.assert_array_equal(back[0], mean)
    np.testing.assert_allclose(back[1], sd, rtol=1e-12)


def test_unpack_works_on_leading_axes():
    phi = np.arange(24.0).reshape(2, 3, 4)
    mean, sd = mean_field.unpack(phi)
    np.testing.assert_array_equal(mean, phi[..., :2])
    np.testing.assert_allclose(sd, np.logaddexp(0, phi[..., 2:]), rtol=1e-6)


def test_transform_is_location_and_scale():
    with jax.enable_x64(True):
        phi = mean_field.pack(jnp.array([1.0, -2.0]), jnp.array([0.5, 3.0]))
        z = mean_field.transform(phi[None], jnp.array([[0.0, 0.0], [1.0, -1.0]]))
    np.testing.assert_allclose(z, [[1.0, -2.0], [1.5, -5.0]], rtol=1e-12)


def test_entropy_is_that_of_the_gaussian_up_to_a_constant():
    phis = np.random.default_rng(1).normal(size=(4, 6))
    with jax.enable_x64(True):
        ours = np.array([mean_field.entropy(jnp.asarray(phi)) for phi in phis])
    theirs = stats.norm(phis[:, :3], np.logaddexp(0, phis[:, 3:])).entropy().sum(1)
    np.testing.assert_allclose(np.diff(ours), np.diff(theirs), rtol=1e-10)


def test_entropy_gradient_is_softplus_slope_over_softplus():
    phi = np.array([0.3, -1.0, -4.0, 2.0])
    with jax.enable_x64(True):
        slope = np.asarray(jax.grad(mean_field.entropy)(jnp.asarray(phi)))
    np.testing.assert_array_equal(slope[:2], 0)
    np.testing.assert_allclose(slope[2:], 1 / (1 + np.exp(-phi[2:])) / np.logaddexp(0, phi[2:]), rtol=1e-12)


@pytest.mark.parametrize("draws", [1, 2, 7, 10])
def test_antithetic_draws_come_in_pairs(draws, key):
    eta = np.asarray(mean_field.antithetic(key, draws, 3))
    half = (draws + 1) // 2
    assert eta.shape == (draws, 3)
    np.testing.assert_array_equal(eta[half:], -eta[: draws - half])
    if draws % 2 == 0:
        np.testing.assert_array_equal(eta[:half].sum(0) + eta[half:].sum(0), 0)


def test_antithetic_draws_are_standard_normal():
    """Kolmogorov-Smirnov on the independent half. False alarms: 1e-4."""
    eta = np.asarray(mean_field.antithetic(jax.random.key(2), 4000, 1))[:2000, 0]
    assert stats.kstest(eta, "norm").pvalue > 1e-4
