"""NA-DPVI's theorems against enumeration, simulation and each other; its misprints against the same."""

import itertools
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import optimize, stats

from discreet.methods.elbo import heuristic_rate
from discreet.plan import Plan
from discreet.posterior import theory
from discreet.posterior.stationary import ou_covariance, stationary_covariance
from discreet.posterior.trace import TraceError
from tests.posterior.traces import quadratic

PLAN = Plan(num_rows=1000, steps=400, sampling_prob=0.1, clip_norm=2.0, noise_multiplier=3.0)
DENSE = np.array([[2.0, 0.9, -0.3], [0.9, 1.0, 0.2], [-0.3, 0.2, 0.5]])


KEPT, CUBIC = 0.3, 0.05
POINTS = np.array([-1.0, -0.6, -0.1, 0.2, 0.5, 1.0])
BATCHES = np.array(list(itertools.product([0, 1], repeat=6)))
CHANCE = (KEPT**BATCHES * (1 - KEPT) ** (1 - BATCHES)).prod(1)


def batch_errors(phi, clip_norm=np.inf):
    """Squares of batch sum − κ∇L and of batch sum − κA(φ − φ*), for every batch; the optimum is 0.

    Six rows have losses ½(φ − x)² + wφ³.
    """
    rows = phi - POINTS + 3 * CUBIC * phi**2
    sums = BATCHES @ np.clip(rows, -clip_norm, clip_norm)
    return (sums - KEPT * rows.sum()) ** 2, (sums - KEPT * 6 * phi) ** 2


def error_bound(phi, clip_norm=np.inf, biased=False):
    """Theorem 1's at radius |φ|, within which the Taylor error of ∇L = 6φ + 18wφ² is 18w|φ|."""
    return theory.approximation_error(
        sampling_prob=KEPT,
        subsampling_error=np.sqrt(CHANCE @ batch_errors(phi, clip_norm)[0]),
        taylor_error=18 * CUBIC * abs(phi),
        radius=abs(phi),
        biased=biased,
    )


@pytest.mark.parametrize("phi", [-0.8, -0.1, 0.3, 1.5])
def test_on_average_the_approximation_error_is_reached(phi):
    """Over all batches: the cross term is zero, so on the sphere the bound is an equality."""
    np.testing.assert_allclose(CHANCE @ batch_errors(phi)[1], error_bound(phi) ** 2)


def test_batch_by_batch_the_proof_s_inequality_fails():
    """The proof drops the cross term before it takes the mean: false for batches of about half the probability."""
    sampled, both = batch_errors(0.8)
    curved = (KEPT * 18 * CUBIC * 0.8**2) ** 2
    assert 0.3 < CHANCE @ (both > sampled + curved + 1e-12) < 0.7


def test_clipped_rows_need_the_biased_bound():
    mean_square = CHANCE @ batch_errors(-0.8, clip_norm=0.5)[1]
    assert mean_square > 1.2 * error_bound(-0.8, clip_norm=0.5) ** 2
    assert mean_square <= error_bound(-0.8, clip_norm=0.5, biased=True) ** 2


def test_the_largest_subsampling_error_is_that_of_rows_at_the_clip_norm():
    plan = Plan(num_rows=6, steps=1, sampling_prob=KEPT, clip_norm=0.5, noise_multiplier=1.0)
    sums = BATCHES @ np.full(6, 0.5)
    np.testing.assert_allclose(theory.largest_subsampling_error(plan) ** 2, CHANCE @ (sums - KEPT * 3.0) ** 2)


def least_squares(plan, away, y):
    """A15: curvature per coordinate of the steps (leading axis), with φ* known."""
    return (away * y).sum(0) / (plan.sampling_prob * (away**2).sum(0))


def test_curvature_sd_is_that_of_least_squares():
    """Fixed iterates, 20 000 draws of the noise; each of 3 sds within 5 standard errors (sd/√2n): 2e-6."""
    rng, runs = np.random.default_rng(1), 20_000
    away = rng.normal(size=(40, 1, 3)) * [0.5, 1.0, 4.0]
    y = PLAN.sampling_prob * np.array([5.0, 2.0, 1.0]) * away + PLAN.noise_std * rng.standard_normal((40, runs, 3))
    expected = theory.curvature_sd(PLAN, (away**2).sum((0, 1)))
    found = least_squares(PLAN, away, y).std(0)
    np.testing.assert_array_less(np.abs(found / expected - 1), 5 / np.sqrt(2 * runs))


@pytest.mark.parametrize("dim", [1, 5])
def test_no_iterates_within_the_radius_beat_the_floor(dim):
    rng, radius = np.random.default_rng(2), 0.7
    floor = theory.curvature_sd_floor(PLAN, radius=radius, dim=dim, retained=300)
    away = rng.normal(size=(200, 300, dim))
    away *= radius * rng.random((200, 300, 1)) / np.linalg.norm(away, axis=-1, keepdims=True)
    assert (theory.curvature_sd(PLAN, (away**2).sum(1)).max(-1) > floor).all()
    corners = radius / np.sqrt(dim) * rng.choice([-1, 1], (300, dim))
    np.testing.assert_allclose(theory.curvature_sd(PLAN, (corners**2).sum(0)), floor)


def test_the_printed_floor_of_the_variance_is_false():
    """The floor is reached by the sd. Where that is below 1, the variance is lower than the printed floor allows."""
    radius, retained = 20.0, 400
    floor = theory.curvature_sd_floor(PLAN, radius=radius, dim=1, retained=retained)
    sd = theory.curvature_sd(PLAN, retained * radius**2)
    assert floor < 1
    np.testing.assert_allclose(radius * sd, PLAN.noise_std / PLAN.sampling_prob / np.sqrt(retained))
    assert radius * sd**2 < 0.2 * PLAN.noise_std / PLAN.sampling_prob / np.sqrt(retained)


def test_under_sgd_the_curvature_estimate_is_too_high():
    """20 000 runs of 400 steps, 16 relaxation times: 2/16 too high with φ* known, 4/16 without, to within .025.

    Standard errors are .003 and the next order of the bias about .01, so 5 of them fit: 6e-7.
    """
    rng, runs, steps, curvature = np.random.default_rng(3), 20_000, 400, 5.0
    rate = 16 / (steps * PLAN.sampling_prob * curvature)
    away, y = np.empty((steps, runs)), np.empty((steps, runs))
    at = np.sqrt(theory.stationary_spread(PLAN, rate, curvature)) * rng.standard_normal(runs)
    for t in range(steps):
        away[t] = at
        y[t] = PLAN.sampling_prob * curvature * at + PLAN.noise_std * rng.standard_normal(runs)
        at = at - rate * y[t]
    for known, bias in ((away, 2 / 16), (away - away.mean(0), 4 / 16)):
        assert least_squares(PLAN, known, y).mean() / curvature - 1 == pytest.approx(bias, abs=0.025)


@pytest.mark.parametrize("curvature", [3.0, np.array([1.0, 0.2, 4.0]), DENSE], ids=["number", "vector", "matrix"])
@pytest.mark.parametrize("rate", [0.01, 1.0, 4.0])
def test_spreads_are_traces_of_the_covariances(curvature, rate):
    dense = np.diag(np.atleast_1d(curvature)) if np.ndim(curvature) < 2 else curvature
    pull, noise = PLAN.sampling_prob * dense, PLAN.noise_std**2 * np.eye(len(dense))
    np.testing.assert_allclose(theory.ou_spread(PLAN, rate, curvature), np.trace(ou_covariance(rate, pull, noise)))
    np.testing.assert_allclose(
        theory.stationary_spread(PLAN, rate, curvature), np.trace(stationary_covariance(rate, pull, noise))
    )


def printed_spread(rate, values):
    """Appendix F's last line: λl² where κ is missing."""
    return rate * PLAN.noise_std**2 / PLAN.sampling_prob * (1 / (2 * values - rate * values**2)).sum()


def test_the_printed_discrete_spread_misses_a_simulation():
    """40 000 runs, mean of ‖φ − φ*‖² within 5 standard errors: 6e-7. The printed one is 2.4 times as large.

    60 steps take the start, at the Ornstein-Uhlenbeck spread that is 6 % too small, to within 1e-4 of where it settles.
    """
    rng, rate, runs = np.random.default_rng(4), 3.0, 40_000
    values = np.array([0.5, 0.4, 0.3])
    at = np.sqrt(rate * PLAN.noise_std**2 / (2 * PLAN.sampling_prob * values)) * rng.standard_normal((runs, 3))
    for _ in range(60):
        at = at - rate * (PLAN.sampling_prob * values * at + PLAN.noise_std * rng.standard_normal((runs, 3)))
    squares = (at**2).sum(1)
    error = squares.std() / np.sqrt(runs)
    assert abs(squares.mean() - theory.stationary_spread(PLAN, rate, values)) < 5 * error
    assert squares.mean() > theory.ou_spread(PLAN, rate, values) + 5 * error
    assert printed_spread(rate, values) > squares.mean() + 50 * error


def test_the_printed_discrete_spread_is_negative_for_steps_that_settle():
    assert theory.stationary_spread(PLAN, 12.0, 1.0) > 0 > printed_spread(12.0, np.ones(1))


@pytest.mark.parametrize("curvature", [3.0, np.full(4, 0.5), np.array([1e-3, 1.0, 1e4]), DENSE])
@pytest.mark.parametrize("radius", [1e-6, 0.1, 10.0, 1e6])
def test_rate_limits_have_the_spread_of_the_radius(curvature, radius):
    ou = theory.ou_rate_limit(PLAN, curvature=curvature, radius=radius)
    exact = theory.stationary_rate_limit(PLAN, curvature=curvature, radius=radius)
    explodes = 2 / (PLAN.sampling_prob * np.max(np.linalg.eigvalsh(DENSE) if curvature is DENSE else curvature))
    np.testing.assert_allclose(theory.ou_spread(PLAN, ou, curvature), radius**2)
    harmonic = 1 / (1 / ou + 1 / explodes)
    assert harmonic * (1 - 1e-12) <= exact <= min(ou, explodes)
    if np.ndim(curvature) == 0 or np.ptp(curvature) == 0:
        np.testing.assert_allclose(exact, harmonic)
    if exact < (1 - 1e-4) * explodes:
        np.testing.assert_allclose(theory.stationary_spread(PLAN, exact, curvature), radius**2, rtol=1e-9)


def test_the_limit_keeps_the_mean_square_and_not_the_iterates():
    """Outside the radius at the limit: P(χ²_d > d), from a third to a half."""
    for dim in (1, 50):
        rate = theory.stationary_rate_limit(PLAN, curvature=np.ones(dim), radius=2.0)
        variance = theory.stationary_spread(PLAN, rate, np.ones(dim)) / dim
        assert 0.31 < stats.chi2(dim).sf(2.0**2 / variance) < 0.5


def test_steps_that_explode_are_refused():
    edge = 2 / (PLAN.sampling_prob * 4.0)
    assert theory.stationary_spread(PLAN, edge * (1 - 1e-6), np.array([1.0, 4.0])) > 1e6
    with pytest.raises(TraceError, match=r"explode: .* is 2; below 2 .*lower the rate"):
        theory.stationary_spread(PLAN, edge * (1 + 1e-15), np.array([1.0, 4.0]))


def sgd(rate):
    """A run's release, and its iterates with the last."""
    rng, optimum = np.random.default_rng(5), np.array([1.0, -2.0, 0.5])
    release = quadratic(rng, DENSE, optimum, steps=300, step_size=rate, start=np.ones(3))
    return release, np.concatenate([release.trace.iterate, release.last[None]])


@pytest.mark.parametrize("rate", [0.002, np.array([0.01, 0.002, 0.3])], ids=["number", "per coordinate"])
def test_iterates_hold_their_gradients(rate):
    release, iterates = sgd(rate)
    np.testing.assert_allclose(theory.gradients_of(iterates, rate), release.trace.y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rate", [0.02, np.array([0.01, 0.002, 0.3])], ids=["number", "per coordinate"])
def test_both_models_of_the_trace_differ_by_a_constant(rate):
    """At any curvature and optimum, log p(y) − log p(φ) = T·Σ log λ; the gradient-based density is SciPy's."""
    rng, noise = np.random.default_rng(6), np.diag([400.0, 300.0, 500.0]) + 50.0
    release, iterates = sgd(rate)
    jacobian = len(release.trace.y) * np.log(np.broadcast_to(rate, 3)).sum()
    for curvature in (DENSE, rng.normal(size=(3, 3))):
        optimum = rng.normal(size=3)
        mean = 0.1 * (release.trace.iterate - optimum) @ curvature.T
        of_gradients = stats.multivariate_normal(cov=noise).logpdf(release.trace.y - mean).sum()
        of_iterates = theory.step_log_likelihood(
            iterates, rate, sampling_prob=0.1, curvature=curvature, optimum=optimum, noise=noise
        )
        np.testing.assert_allclose(of_gradients - of_iterates, jacobian, rtol=1e-9)


def test_adam_hides_its_gradients():
    """Its steps are about λ long whatever the gradient: a gradient of 1000 is read as 1."""
    adam = optax.adam(0.01)
    phi = jnp.zeros(1)
    change, _ = adam.update(jnp.full(1, 1000.0), adam.init(phi))
    read = theory.gradients_of(np.array([phi, phi + change]), 0.01)
    np.testing.assert_allclose(read, 1.0, rtol=1e-3)


def mean_squares(plan, rate, values, start):
    """E‖∇L(φ_t)‖² for t < T on ½Σ l(φ − φ*)², exactly: mean and variance of each coordinate, step by step."""
    mean, variance = np.array(start, float), np.zeros(len(values))
    shrink, squares = 1 - rate * plan.sampling_prob * values, []
    for _ in range(plan.steps):
        squares.append((values**2 * (mean**2 + variance)).sum())
        mean, variance = shrink * mean, shrink**2 * variance + (rate * plan.noise_std) ** 2
    return np.array(squares)


@pytest.mark.parametrize("share", [0.001, 0.03, 0.3, 1.0, 1.9])
@pytest.mark.parametrize("start", [0.0, 3.0, 300.0])
def test_the_convergence_bound_holds(share, start):
    values, dim = np.array([0.3, 2.0, 5.0]), 3
    rate = share / (PLAN.sampling_prob * values.max())
    squares = mean_squares(PLAN, rate, values, np.full(dim, start))
    bound = theory.convergence_bound(
        PLAN,
        rate,
        dim=dim,
        smoothness=values.max(),
        gap=(values * start**2).sum() / 2,
        gradient_norm=np.sqrt(squares.max()),
    )
    assert squares.mean() <= bound


def test_the_convergence_bound_is_reached():
    """Equal curvatures, a start at the stationary distance, short steps: within 1 %. Without one dimension it fails."""
    values, dim, rate = np.full(10, 2.0), 10, 0.02
    start = np.full(dim, np.sqrt(theory.stationary_spread(PLAN, rate, values) / dim))
    squares = mean_squares(PLAN, rate, values, start)
    parts = {"smoothness": 2.0, "gap": (start**2).sum(), "gradient_norm": np.sqrt(squares.max())}
    longer = replace(PLAN, steps=100_000)
    np.testing.assert_allclose(squares, squares[0])
    assert squares.mean() <= theory.convergence_bound(longer, rate, dim=dim, **parts) < 1.01 * squares.mean()
    assert theory.convergence_bound(longer, rate, dim=dim - 1, **parts) < squares.mean()


def test_the_convergence_bound_holds_with_real_batches():
    """400 runs on 50 rows with losses ½‖φ − x‖²: the mean is not 5 standard errors above the bound (3e-7).

    It is that far above what is left of the bound without the noise, or without the subsampling error.
    """
    rng, runs, rate = np.random.default_rng(7), 400, 0.02
    plan = Plan(num_rows=50, steps=300, sampling_prob=0.2, clip_norm=10.0, noise_multiplier=0.3)
    points = rng.normal(size=(50, 2))
    points, phi = points - points.mean(0), np.full((runs, 2), 0.13)
    parts = {"dim": 2, "smoothness": 50.0, "gap": 25 * (phi[0] ** 2).sum()}
    gradient, sampled = np.empty((2, plan.steps, runs))
    for t in range(plan.steps):
        gradient[t] = ((50 * phi) ** 2).sum(1)
        sampled[t] = 0.2 * 0.8 * ((phi[:, None] - points) ** 2).sum((1, 2))
        batch = rng.random((runs, 50)) < plan.sampling_prob
        total = batch.sum(1, keepdims=True) * phi - batch @ points
        phi = phi - rate * (total + plan.noise_std * rng.standard_normal((runs, 2)))
    norms = {"gradient_norm": np.sqrt(gradient.mean(1).max()), "subsampling_error": np.sqrt(sampled.mean(1).max())}
    found, error = gradient.mean(), gradient.mean(0).std() / np.sqrt(runs)
    assert found < theory.convergence_bound(plan, rate, **parts, **norms) + 5 * error
    for silent, fewer in ((replace(plan, noise_multiplier=0.0), norms), (plan, {**norms, "subsampling_error": 0.0})):
        assert found > theory.convergence_bound(silent, rate, **parts, **fewer) + 5 * error


def test_the_optimal_rate_makes_the_bound_least():
    parts = {"dim": 4, "smoothness": 3.0, "gap": 50.0, "subsampling_error": 20.0, "gradient_norm": 70.0}
    found = optimize.minimize_scalar(lambda log: theory.convergence_bound(PLAN, np.exp(log), **parts), bounds=(-12, 2))
    np.testing.assert_allclose(theory.optimal_rate(PLAN, **parts), np.exp(found.x), rtol=1e-4)


@pytest.mark.parametrize(("gap", "smoothness"), [(1.0, 1.0), (200.0, 0.3)])
def test_the_heuristic_is_the_optimal_rate_without_other_errors(gap, smoothness):
    exact = theory.optimal_rate(PLAN, dim=6, smoothness=smoothness, gap=gap)
    np.testing.assert_allclose(heuristic_rate(PLAN, 6, factor=np.sqrt(gap / smoothness)), exact)
    assert theory.optimal_rate(PLAN, dim=6, smoothness=smoothness, gap=gap, gradient_norm=1e3) < 0.5 * exact


QUIET = replace(PLAN, noise_multiplier=0.0)
FIRST = {"sampling_prob": 0.1, "subsampling_error": 1.0, "taylor_error": 1.0, "radius": 1.0}
BOUND = {"dim": 2, "smoothness": 1.0, "gap": 1.0}
STEPS = {"sampling_prob": 0.1, "curvature": np.eye(2), "optimum": np.zeros(2), "noise": np.eye(2)}
REFUSED = {
    "sampling_prob=0 ": lambda: theory.approximation_error(**{**FIRST, "sampling_prob": 0}),
    "subsampling_error=-1": lambda: theory.approximation_error(**{**FIRST, "subsampling_error": -1}),
    "taylor_error=nan": lambda: theory.approximation_error(**{**FIRST, "taylor_error": np.nan}),
    "radius=0 ": lambda: theory.approximation_error(**{**FIRST, "radius": 0}),
    "squares=.*never moved": lambda: theory.curvature_sd(PLAN, np.array([1.0, 0.0])),
    "radius=-1": lambda: theory.curvature_sd_floor(PLAN, radius=-1, dim=2, retained=10),
    "dim=0 ": lambda: theory.curvature_sd_floor(PLAN, radius=1, dim=0, retained=10),
    "retained=401 .*steps=400": lambda: theory.curvature_sd_floor(PLAN, radius=1, dim=1, retained=401),
    "rate=0 ": lambda: theory.ou_spread(PLAN, 0, 1.0),
    "rate=inf": lambda: theory.stationary_spread(PLAN, np.inf, 1.0),
    "curvature=-2.0 .* is -2": lambda: theory.ou_spread(PLAN, 0.1, -2.0),
    "an eigenvalue is -1$": lambda: theory.stationary_spread(PLAN, 0.1, np.array([[0.0, 1.0], [1.0, 0.0]])),
    "symmetric": lambda: theory.stationary_spread(PLAN, 0.1, np.array([[1.0, 1.0], [0.0, 1.0]])),
    "curvature=nan": lambda: theory.ou_rate_limit(PLAN, curvature=np.nan, radius=1.0),
    "radius=inf": lambda: theory.ou_rate_limit(PLAN, curvature=1.0, radius=np.inf),
    "noise_multiplier=0.0": lambda: theory.stationary_rate_limit(QUIET, curvature=1.0, radius=1.0),
    r"iterates=\(1, 2\)": lambda: theory.gradients_of(np.zeros((1, 2)), 0.1),
    r"shape of rate=\(3,\)": lambda: theory.gradients_of(np.zeros((4, 2)), np.ones(3)),
    "rate=-0.1": lambda: theory.step_log_likelihood(np.zeros((4, 2)), -0.1, **STEPS),
    "covariance, positive definite": lambda: theory.step_log_likelihood(
        np.zeros((4, 2)), 0.1, **{**STEPS, "noise": -np.eye(2)}
    ),
    "rate=nan": lambda: theory.convergence_bound(PLAN, np.nan, **BOUND),
    "smoothness=0 ": lambda: theory.convergence_bound(PLAN, 0.1, **{**BOUND, "smoothness": 0}),
    "gap=-1": lambda: theory.convergence_bound(PLAN, 0.1, **{**BOUND, "gap": -1}),
    "gradient_norm=-1": lambda: theory.convergence_bound(PLAN, 0.1, **BOUND, gradient_norm=-1),
    "gap=0 ": lambda: theory.optimal_rate(PLAN, **{**BOUND, "gap": 0}),
    "without noise": lambda: theory.optimal_rate(QUIET, **BOUND),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_has_no_answer_is_refused(words):
    with pytest.raises(ValueError, match=words):
        REFUSED[words]()
