"""The non-private Laplace approximation: a stationary point, and the inverse of a finite-difference Hessian."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from discreet.evaluate.reference import non_private
from discreet.families.exponential import beta_bernoulli
from discreet.families.glm import glm
from discreet.schema import Categorical, Numeric, Schema

SCHEMA = Schema((Numeric("age", 20, 60), Categorical("y", ("no", "yes"))))
MODEL = glm("logistic", "y", ["age"], SCHEMA)
TABLE = SCHEMA.sample(np.random.default_rng(1), 30)


def log_joint(z):
    """Log joint density of the logistic regression and its priors (both sds 2), in NumPy."""
    predictor = z[0] + z[1] * (TABLE["age"] - 40) / 20
    return np.sum(TABLE["y"] * predictor - np.logaddexp(0, predictor)) - np.sum(z**2) / 8


def difference(function, z, step):
    return np.array([(function(z + h) - function(z - h)) / (2 * step) for h in step * np.eye(len(z))])


@pytest.fixture(scope="module")
def laplace():
    return non_private(MODEL, TABLE)


def test_the_gradient_of_the_log_joint_is_zero_at_the_mode(laplace):
    np.testing.assert_allclose(difference(log_joint, laplace.mean, 1e-5), 0, atol=1e-8)


def test_the_covariance_is_the_inverse_of_the_curvature(laplace):
    curvature = -difference(lambda z: difference(log_joint, z, 1e-3), laplace.mean, 1e-3)
    np.testing.assert_allclose(laplace.covariance @ curvature, np.eye(2), atol=1e-5)


def test_the_mode_of_a_conjugate_model_is_known():
    """θ ~ Beta(2, 5), 30 of 40 ones: on the logit scale the mode is (2 + 30) / (7 + 40), curvature n·θ(1 − θ)."""
    found = non_private(beta_bernoulli(2.0, 5.0), {"x": np.repeat([1, 0], [30, 10]).astype(np.int32)})
    theta = 32 / 47
    np.testing.assert_allclose(found.mean, np.log(theta / (1 - theta)), rtol=1e-9)
    np.testing.assert_allclose(found.covariance, 1 / (47 * theta * (1 - theta)), rtol=1e-9)


def test_precision_does_not_depend_on_the_caller(laplace):
    """The approximation is made in float64 although the session runs in float32."""
    assert not jax.config.jax_enable_x64
    assert jnp.zeros(1).dtype == jnp.float32
    assert laplace.mean.dtype == laplace.covariance.dtype == np.float64
