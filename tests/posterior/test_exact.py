"""The exact solver against brute-force quadrature on raw traces, on ordinary traces and on extreme ones."""

import numpy as np
import pytest
from scipy import stats

from discreet.posterior import exact
from discreet.posterior.trace import tail
from discreet.posterior.trace_model import TracePrior, trace_model
from tests.posterior.traces import brute_force, line, quadratic, release_of, stacked, with_plan

PROBS = np.array([0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99])


def random_trace(seed, speed=10.0, **options):
    """1000 steps on a random quadratic; the curvature is seen to about √(15·speed) of its sds."""
    rng = np.random.default_rng(seed)
    curvature, optimum, std = rng.uniform(20, 200), rng.normal(), rng.uniform(2, 20)
    step_size = speed * 30 / (1000 * 0.1 * curvature)
    return quadratic(rng, [[curvature]], [optimum], steps=1000, std=std, step_size=step_size, **options)


def assert_solved(release, model, first=200, tolerance=1e-4, **options):
    """Mean and sd of φ* within `tolerance` of brute force, in its sds, and its quantiles' probabilities."""
    expected, _, _ = brute_force(release, model, first, **options)
    mean, sd = exact.moments_of_optimum(model)
    assert abs(mean[0] - expected.mean) < tolerance * expected.sd
    np.testing.assert_allclose(sd[0], expected.sd, rtol=tolerance)
    points, below = expected.quantile_points(PROBS)
    found = [exact.probability_below(model, point[None])[0] for point in points]
    np.testing.assert_allclose(found, below, atol=tolerance)


@pytest.mark.parametrize("prior", ["H.3", "paper", "cross-fitted", "weak"])
@pytest.mark.parametrize("seed", range(4))
def test_it_equals_two_dimensional_quadrature(seed, prior):
    """A curvature seen to about 12 sds (cross-fitted: 9): mean, sd and probabilities within 10⁻⁴."""
    release = random_trace(seed)
    model = trace_model(release, prior=prior, subsampling="none")
    assert_solved(release, model, first=600 if prior == "cross-fitted" else 200)


@pytest.mark.parametrize("centre_sd", [0.05, 1.0, 10.0])
def test_it_equals_quadrature_with_a_public_centre(centre_sd):
    release = random_trace(11, start=[0.0])
    assert_solved(release, trace_model(release, subsampling="none", centre=np.zeros(1), centre_sd=centre_sd))


@pytest.mark.parametrize("prior", ["H.3", "paper", "weak"])
@pytest.mark.parametrize("speed", [0.1, 1.0])
def test_it_equals_quadrature_where_the_curvature_is_hardly_seen(speed, prior):
    """One to four sds from zero: now and then the curvature is almost nothing, and φ* is anywhere in its prior."""
    release = random_trace(21, speed)
    assert_solved(release, trace_model(release, prior=prior, subsampling="none"))


@pytest.mark.parametrize("curvature", [0.2, 0.5, 2.0])
def test_the_papers_prior_of_a_small_curvature_is_solved_as_printed(curvature):
    """It centres v at the estimate of a: softplus of that is .8 where a = .2, far from what the trace says."""
    rng = np.random.default_rng(54)
    release = line(rng, curvature, 0.5, rng.normal(0.5, 1.0, (1000, 1)), std=curvature / 5)
    model = trace_model(release, prior="paper", subsampling="none")
    assert_solved(release, model, points=(3000, 2000))


@pytest.mark.parametrize("seed", [31, 32])
def test_a_learned_variance_equals_three_dimensional_quadrature(seed):
    """φ* to 10⁻³ of its sd; curvature to 1 % and variance to 5 % of theirs.

    One trace has the plan's noise alone, which cuts the variance's density; the other has half as much again.
    """
    release = random_trace(seed)
    if seed == 32:
        release = with_plan(release, noise_multiplier=release.plan.noise_multiplier / 1.5)
    model = trace_model(release, subsampling="learned")
    assert_solved(release, model, tolerance=1e-3, points=(500, 700))
    _, curvature, variance = brute_force(release, model, 200, points=(500, 700))
    found = exact.grid(model)
    for values, expected, tolerance in (
        (np.logaddexp(0, found.v), curvature, 0.01),
        (found.variance, variance, 0.05),
    ):
        mean = (found.mass * values).sum()
        assert abs(mean - expected.mean) < tolerance * expected.sd
        assert abs(np.sqrt((found.mass * (values - mean) ** 2).sum()) / expected.sd - 1) < tolerance


def test_a_learned_variance_of_few_steps_is_wide():
    """48 steps, and noise that is 1½ times the plan's: mean and sd of the variance within 3 % of its sd."""
    release = quadratic(np.random.default_rng(33), [[80.0]], [0.5], steps=60, std=12.0, step_size=0.05, block=4)
    model = trace_model(with_plan(release, noise_multiplier=8.0), subsampling="learned")
    _, _, expected = brute_force(release, model, 12, points=(500, 700))
    found = exact.grid(model)
    mean = (found.mass * found.variance).sum()
    assert expected.sd > 0.15 * expected.mean
    assert abs(mean - expected.mean) < 0.03 * expected.sd
    assert abs(np.sqrt((found.mass * (found.variance - mean) ** 2).sum()) / expected.sd - 1) < 0.03


@pytest.mark.parametrize("subsampling", ["none", "learned"])
@pytest.mark.parametrize("speed", [0.1, 1.0, 10.0])
def test_draws_follow_the_quadrature(speed, subsampling):
    """Kolmogorov and Smirnov's test of 20 000 draws of φ*; false alarm 10⁻⁴ for each of the six."""
    release = random_trace(41, speed)
    model = trace_model(release, subsampling=subsampling)
    draws = exact.solve(np.random.default_rng(0), model, 20_000)
    points = np.quantile(draws.optimum[:, 0], np.linspace(0, 1, 301))
    below = [exact.probability_below(model, point[None])[0] for point in points]
    assert stats.kstest(draws.optimum[:, 0], lambda at: np.interp(at, points, below)).pvalue > 1e-4


def test_draws_have_the_mean_and_sd_of_the_quadrature():
    """200 000 draws: mean within 5 standard errors, sd within 1 %, which is 6 of them; false alarm below 10⁻⁶."""
    model = trace_model(random_trace(43), subsampling="none")
    draws = exact.solve(np.random.default_rng(0), model, 200_000).optimum
    mean, sd = exact.moments_of_optimum(model)
    assert abs(draws.mean() - mean) < 5 * sd / np.sqrt(200_000)
    np.testing.assert_allclose(draws.std(0), sd, rtol=0.01)


@pytest.mark.parametrize("speed", [0.1, 10.0])
def test_draws_of_curvature_and_variance_follow_the_grid(speed):
    """Means of 20 000 draws within 5 standard errors and sds within 5 %; false alarm about 10⁻⁶, the grid aside."""
    model = trace_model(random_trace(42, speed), subsampling="learned")
    draws, found = exact.solve(np.random.default_rng(0), model, 20_000), exact.grid(model)
    for drawn, values in ((draws.curvature, np.logaddexp(0, found.v)), (draws.variance, found.variance)):
        mean = (found.mass * values).sum()
        sd = np.sqrt((found.mass * (values - mean) ** 2).sum())
        assert abs(drawn.mean() - mean) < 5 * sd / np.sqrt(20_000)
        assert abs(drawn.std() / sd - 1) < 0.05
    assert (draws.variance >= model.known).all()
    assert (draws.curvature > 0).all()
    assert draws.report == {}


def coverage(std, **options):
    """Share of 300 quadratics whose optimum, drawn from N(0, 1), lies in its 90 % interval."""
    rng, covered = np.random.default_rng(3), 0
    for _ in range(300):
        curvature, optimum = rng.uniform(50, 150), rng.normal()
        model = trace_model(quadratic(rng, [[curvature]], [optimum], steps=600, std=std), **options)
        below = exact.probability_below(model, np.array([optimum]))
        covered += 0.05 < below[0] < 0.95
    return covered / 300


@pytest.mark.parametrize("std", [2.0, 20.0])
def test_the_optimum_is_covered_at_its_level(std):
    """Between 83 % and 96 %; false alarm below 10⁻⁴ (binomial)."""
    assert 0.83 <= coverage(std) <= 0.96


def test_a_public_centre_covers_where_the_papers_prior_does_not():
    """Noise as wide as the prior of φ*: centring that prior at the trace's mean uses the trace twice."""
    assert coverage(200.0) < 0.83 <= coverage(200.0, centre=np.zeros(1)) <= 0.96


def test_much_data_gives_the_regression_estimate():
    release = quadratic(np.random.default_rng(4), [[100.0]], [2.0], steps=20_000, std=1.0, step_size=0.03)
    moments = tail(release)
    slope = moments.xy / moments.xx
    mean, sd = exact.moments_of_optimum(trace_model(release))
    assert abs(mean - (moments.mean_x - moments.mean_y / slope)) < 0.01 * sd
    np.testing.assert_allclose(sd, 1 / (slope * np.sqrt(16_000)), rtol=0.02)


def test_preconditioning_only_changes_units():
    """y/β with noise σC/β is the same information as y with noise σC: the answers agree to rounding."""
    plain = quadratic(np.random.default_rng(5), [[60.0]], [1.0], std=8.0)
    scaled = quadratic(np.random.default_rng(5), [[60.0]], [1.0], std=80.0, beta=np.array([10.0]))
    one, other = (exact.solve(np.random.default_rng(0), trace_model(release), 500) for release in (plain, scaled))
    np.testing.assert_allclose(one.optimum, other.optimum, rtol=1e-6)
    np.testing.assert_allclose(one.curvature, other.curvature, rtol=1e-6)
    np.testing.assert_allclose(100 * one.variance, other.variance, rtol=1e-6)


def test_replicas_are_independent_posteriors():
    rng = np.random.default_rng(6)
    each = [quadratic(rng, np.diag([60.0, 90.0]), [value, 0.0], steps=400) for value in (1.0, -1.0, 0.0)]
    together, alone = trace_model(stacked(each)), [trace_model(release) for release in each]
    draws = exact.solve(rng, together, 50)
    assert draws.optimum.shape == draws.curvature.shape == draws.variance.shape == (3, 50, 2)
    for found, parts in zip(
        exact.moments_of_optimum(together), zip(*map(exact.moments_of_optimum, alone), strict=True), strict=True
    ):
        np.testing.assert_allclose(found, np.stack(parts), rtol=1e-9)
    at = rng.normal(size=(3, 2))
    below = [exact.probability_below(model, point) for model, point in zip(alone, at, strict=True)]
    np.testing.assert_allclose(exact.probability_below(together, at), np.stack(below), rtol=1e-9)


def test_replicas_are_drawn_one_by_one():
    """Means of 2000 draws within 6 standard errors of their own posterior's; false alarm below 10⁻⁸."""
    rng = np.random.default_rng(6)
    model = trace_model(stacked([random_trace(seed) for seed in (1, 2, 3)]))
    mean, sd = exact.moments_of_optimum(model)
    draws = exact.solve(rng, model, 2000).optimum
    assert (np.abs(draws.mean(1) - mean) < 6 * sd / np.sqrt(2000)).all()


def flipped(release):
    """The same trace with answers of the wrong sign: uphill all the way."""
    x, y, scale = release.trace[1:]
    return release_of(release.plan, x, -y, scale, release.last)


@pytest.mark.parametrize("prior", ["H.3", "weak"])
def test_answers_of_the_wrong_sign_are_solved(prior):
    """The curvature is positive all the same, so it is small; a weak prior of it leaves φ* to its own."""
    release = flipped(random_trace(51))
    model = trace_model(release, prior=prior, subsampling="none")
    assert model.moments.xy[0] < 0
    assert_solved(release, model)
    if prior == "weak":
        mean, sd = exact.moments_of_optimum(model)
        assert abs(mean[0] - model.prior.centre[0]) < 0.01 * model.prior.centre_sd[0]
        np.testing.assert_allclose(sd, model.prior.centre_sd, rtol=0.01)


def test_no_curvature_at_all_is_solved():
    """x and y that have nothing to do with one another."""
    rng = np.random.default_rng(52)
    release = line(rng, 0.0, 0.0, rng.normal(size=(1000, 1)), std=8.0)
    model = trace_model(release, subsampling="none")
    assert abs(model.moments.xy[0]) < 3 * 8 * np.sqrt(model.moments.xx[0])
    assert_solved(release, model)


@pytest.mark.parametrize(("curvature", "std", "spread"), [(1e6, 8.0, 2.8), (1e-6, 1e-6, 35.0), (1e-6, 1e-6, 0.35)])
def test_curvatures_of_any_size_are_solved(curvature, std, spread):
    """10⁶ ± 1; 10⁻⁶ ± 10⁻⁸; and 10⁻⁶ ± 10⁻⁶, which is hardly seen."""
    rng = np.random.default_rng(53)
    release = line(rng, curvature, 0.5, rng.normal(0.5, spread, (1000, 1)), std=std)
    assert_solved(release, trace_model(release, subsampling="none"))


def given(v, v_sd, centre, centre_sd):
    return TracePrior(*(np.array([float(part)]) for part in (v, v_sd, centre, centre_sd)))


@pytest.mark.parametrize(
    "prior", [given(10, 1, 0.5, 1), given(30, 8, 0.5, 1), given(300, 5, 0.5, 1), given(100, 8, 0, 0.05)]
)
def test_a_prior_that_disagrees_with_the_trace_is_weighed_against_it(prior):
    """The trace says 105 ± 9 and .55 ± .03."""
    release = quadratic(np.random.default_rng(0), [[100.0]], [0.5], steps=1000, std=8.0, step_size=0.03)
    assert_solved(release, trace_model(release, subsampling="none", prior=prior), points=(3000, 2000))


def test_a_centre_that_the_trace_rules_out_leaves_a_small_curvature():
    """25 sds of its prior away, φ* can be there only if the curvature is a small part of what least squares says.

    The peak is then far from the trace's estimate and from the prior's mean. Direct integration over v gave this.
    """
    release = quadratic(np.random.default_rng(0), [[100.0]], [0.5], steps=1000, std=8.0, step_size=0.03)
    model = trace_model(release, subsampling="none", prior=given(100, 8, 3, 0.1))
    v = np.linspace(-10, 200, 200_001)
    weight = exact.log_density(model, v, model.known) - 0.5 * ((v - 100) / 8) ** 2
    weight = np.exp(weight - weight.max())
    mean, precision = exact.optimum_given(model, np.logaddexp(0, v), model.known)
    expected = (weight * mean).sum() / weight.sum()
    expected_sd = np.sqrt((weight * ((mean - expected) ** 2 + 1 / precision)).sum() / weight.sum())
    found, sd = exact.moments_of_optimum(model)
    assert abs(found - expected) < 1e-3 * expected_sd
    np.testing.assert_allclose(sd, expected_sd, rtol=1e-3)


def test_a_thousand_coordinates_are_solved():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(500, 1000))
    optimum = rng.normal(size=1000)
    model = trace_model(line(rng, rng.uniform(20, 200, 1000), optimum, optimum + x, std=8.0))
    draws = exact.solve(rng, model, 200)
    assert draws.optimum.shape == (200, 1000)
    assert all(np.isfinite(part).all() for part in draws[:3])
    mean, sd = exact.moments_of_optimum(model)
    assert (np.abs(draws.optimum.mean(0) - mean) < 6 * sd / np.sqrt(200)).all()


def test_more_coordinates_do_not_change_the_first():
    rng = np.random.default_rng(8)
    x = rng.normal(size=(500, 3))
    release = line(rng, [20.0, 1e4, 1e-3], np.zeros(3), x, std=8.0)
    alone = release_of(release.plan, *(part[:, :1] for part in release.trace[1:]), release.last[:1])
    for one, other in zip(
        exact.moments_of_optimum(trace_model(release)), exact.moments_of_optimum(trace_model(alone)), strict=True
    ):
        np.testing.assert_allclose(one[:1], other, rtol=1e-9)
