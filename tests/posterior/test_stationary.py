"""The stationary covariance of noisy steps on a quadratic: its equation, a simulation, and its limit."""

import numpy as np
import pytest

from discreet.posterior.stationary import ou_covariance, stationary_covariance
from discreet.posterior.trace import TraceError

CURVATURE = np.array([[2.0, 0.9, -0.3], [0.9, 1.0, 0.2], [-0.3, 0.2, 0.5]])
NOISE = np.array([[1.0, -0.4, 0.0], [-0.4, 2.0, 0.3], [0.0, 0.3, 0.7]])
STEPS = {
    "a number": 0.3,
    "one for each coordinate": np.array([0.3, 0.1, 0.6]),
    "a matrix": np.array([[0.3, 0.05, 0.0], [-0.02, 0.2, 0.1], [0.0, 0.1, 0.5]]),
}


def as_matrix(step):
    return step if np.ndim(step) == 2 else np.diag(np.broadcast_to(step, 3))


@pytest.mark.parametrize("name", STEPS)
def test_it_solves_the_stein_equation(name):
    step = as_matrix(STEPS[name])
    found, moved = stationary_covariance(STEPS[name], CURVATURE, NOISE), np.eye(3) - step @ CURVATURE
    np.testing.assert_allclose(found, moved @ found @ moved.T + step @ NOISE @ step.T, atol=1e-12)
    np.testing.assert_allclose(found, found.T, atol=1e-12)
    assert (np.linalg.eigvalsh(found) > 0).all()


@pytest.mark.parametrize("name", STEPS)
def test_the_ou_covariance_solves_the_lyapunov_equation(name):
    step = as_matrix(STEPS[name])
    found, pull = ou_covariance(STEPS[name], CURVATURE, NOISE), step @ CURVATURE
    np.testing.assert_allclose(pull @ found + found @ pull.T, step @ NOISE @ step.T, atol=1e-12)


@pytest.mark.parametrize("name", STEPS)
def test_it_is_where_the_recursion_settles(name):
    """40 000 independent runs; each entry within 5 standard errors √((Σ_ii Σ_jj + Σ_ij²)/n): 6 entries, 3e-6.

    The slowest direction shrinks by .9 a step at most, so 300 steps forget the start.
    """
    rng, runs, step = np.random.default_rng(0), 40_000, as_matrix(STEPS[name])
    moved, push = np.eye(3) - step @ CURVATURE, step @ np.linalg.cholesky(NOISE)
    assert np.abs(np.linalg.eigvals(moved)).max() ** 300 < 1e-2
    phi = np.zeros((runs, 3))
    for _ in range(300):
        phi = phi @ moved.T + rng.standard_normal((runs, 3)) @ push.T
    expected = stationary_covariance(STEPS[name], CURVATURE, NOISE)
    error = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / runs)
    assert (np.abs(phi.T @ phi / runs - expected) < 5 * error).all()
    if name == "a matrix":  # long steps: the Lyapunov solution is visibly too small
        gap = np.diag(expected - ou_covariance(STEPS[name], CURVATURE, NOISE))
        assert (gap > 5 * np.diag(error)).all()


def test_lyapunov_is_the_limit_of_short_steps_at_first_order():
    """The relative gap halves with the step: its order is 1 to within .02."""
    rates = 0.02 * 0.5 ** np.arange(5)
    pairs = [(stationary_covariance(rate, CURVATURE, NOISE), ou_covariance(rate, CURVATURE, NOISE)) for rate in rates]
    gaps = np.array([np.linalg.norm(discrete - limit) / np.linalg.norm(limit) for discrete, limit in pairs])
    np.testing.assert_allclose(np.log2(gaps[:-1] / gaps[1:]), 1, atol=0.02)
    assert gaps[-1] < 1e-2


@pytest.mark.parametrize("step", [0.01, 0.5, 1.5])
def test_one_coordinate_has_a_formula(step):
    h, variance = 1.3, 0.7
    found = stationary_covariance(step, np.array([[h]]), np.array([[variance]]))
    np.testing.assert_allclose(found, [[step * variance / (2 * h - step * h**2)]])
    np.testing.assert_allclose(
        ou_covariance(step, np.array([[h]]), np.array([[variance]])), [[step * variance / 2 / h]]
    )


def test_the_limit_is_the_paper_s_equation():
    """DPVIm E.7: ΣA + AΣ = α(Z/S + σ²I)."""
    alpha, batch, std = 0.05, 20, 3.0
    total = NOISE / batch + std**2 * np.eye(3)
    found = ou_covariance(alpha, CURVATURE, total)
    np.testing.assert_allclose(found @ CURVATURE + CURVATURE @ found, alpha * total, atol=1e-12)


@pytest.mark.parametrize("step", [2 / 2.6, 5.0, np.array([0.1, 5.0, 0.1]), np.eye(3)])
def test_steps_that_explode_are_refused(step):
    """The largest eigenvalue of the curvature is about 2.6, and a step of 2 over it neither grows nor settles."""
    step = 2 / np.linalg.eigvalsh(CURVATURE)[-1] * (1 + 1e-12) if np.ndim(step) == 0 and step < 1 else step
    with pytest.raises(TraceError, match=r"explode: .* is (1|[1-9][\d.]*); below 1 .*lower the step"):
        stationary_covariance(step, CURVATURE, NOISE)


def test_without_a_pull_back_nothing_settles():
    saddle = np.diag([1.0, -0.1, 1.0])
    with pytest.raises(TraceError, match="not positive"):
        ou_covariance(0.1, saddle, NOISE)
    with pytest.raises(TraceError, match="explode"):
        stationary_covariance(0.1, saddle, NOISE)
