"""The trace model: what it takes from a release, and its density against sums over the raw trace."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from scipy import stats

from discreet.posterior import averaging, exact
from discreet.posterior.trace import TraceError, tail
from discreet.posterior.trace_model import (
    PRIORS,
    WEAK,
    TracePrior,
    coordinates,
    estimate,
    flattened,
    log_joint,
    optimum_given,
    place,
    potential,
    residual_variance,
    softplus_inverse,
    trace_model,
)
from tests.posterior.traces import brute_force, line, quadratic, release_of, stacked, with_plan

STEPS = 1000


@pytest.fixture(scope="module")
def release():
    """Two coordinates whose curvatures, 100 and 40, are seen to 12 and 8 sds."""
    return quadratic(
        np.random.default_rng(0), np.diag([100.0, 40.0]), [0.5, -1.0], steps=STEPS, std=8.0, step_size=0.03
    )


def changed(release, change):
    """The same release with x and y changed in place."""
    x, y, scale = (np.array(part) for part in release.trace[1:])
    change(x, y)
    return release_of(release.plan, x, y, scale, release.last)


def test_the_papers_prior_is_centred_at_the_estimate(release):
    seen = tail(release)
    model = trace_model(release, prior="paper", subsampling="none")
    np.testing.assert_allclose(model.prior.curvature_mean, np.abs(seen.xy / (0.1 * seen.xx)))
    np.testing.assert_allclose(model.prior.curvature_sd, 8 / (0.1 * np.sqrt(seen.xx)))
    np.testing.assert_allclose(model.prior.centre, seen.mean_x)
    np.testing.assert_array_equal(model.prior.centre_sd, 1.0)


@pytest.mark.parametrize("curvature", [0.05, 1.0, 100.0])
def test_prior_h3_has_its_median_curvature_and_slope_at_the_estimate(curvature):
    """v sits where softplus is the estimate, and one sd of v is one sd of a there, by the delta method."""
    rng = np.random.default_rng(1)
    release = line(rng, curvature, 0.0, rng.normal(size=(500, 1)), std=curvature / 5)
    model = trace_model(release, prior="H.3", subsampling="none")
    found, sd = estimate(model.moments, model.rate, model.variance)
    v, width = model.prior.curvature_mean, model.prior.curvature_sd
    np.testing.assert_allclose(np.logaddexp(0, v), found)
    slope = (np.logaddexp(0, v + 1e-5) - np.logaddexp(0, v - 1e-5)) / 2e-5
    np.testing.assert_allclose(slope * width, sd, rtol=1e-6)


def test_prior_h3_survives_an_estimate_of_zero_and_of_the_wrong_sign(release):
    def wrong(x, y):
        y[:, 0], y[:, 1] = -y[:, 0], 0.0

    prior = trace_model(changed(release, wrong), prior="H.3", subsampling="none").prior
    assert np.isfinite(prior).all()
    np.testing.assert_allclose(prior.curvature_mean[0], trace_model(release).prior.curvature_mean[0])


def test_the_weak_prior_takes_orders_of_magnitude_only(release):
    model = trace_model(release, prior="weak", subsampling="none")
    found, sd = estimate(model.moments, model.rate, model.variance)
    np.testing.assert_array_equal(model.prior.curvature_mean, 0.0)
    np.testing.assert_allclose(model.prior.curvature_sd, WEAK * (found + sd))
    np.testing.assert_array_equal(model.prior.centre_sd, WEAK)
    tight = trace_model(release, prior="H.3", subsampling="none")
    assert (model.prior.curvature_sd > 50 * tight.prior.curvature_sd).all()


def test_cross_fitted_priors_do_not_see_the_second_half(release):
    """Steps 200 to 600 make the prior, 600 to 1000 the likelihood, also where the variance is learned."""

    def late(x, y):
        y[600:] = 3 * y[600:] + 1

    before = trace_model(release, prior="cross-fitted")
    after = trace_model(changed(release, late), prior="cross-fitted")
    np.testing.assert_array_equal(before.prior, after.prior)
    assert (before.moments.yy != after.moments.yy).all()
    assert (after.variance > 4 * before.variance).all()


def test_cross_fitted_likelihoods_do_not_see_the_first_half(release):
    def early(x, y):
        x[200:600] = 2 * x[200:600]
        y[200:600] = 3 * y[200:600] + 1

    before = trace_model(release, prior="cross-fitted")
    after = trace_model(changed(release, early), prior="cross-fitted")
    for name in before.moments._fields:
        np.testing.assert_array_equal(getattr(before.moments, name), getattr(after.moments, name), err_msg=name)
    np.testing.assert_array_equal(before.variance, after.variance)
    assert all((one != other).all() for one, other in zip(before.prior[:3], after.prior[:3], strict=True))


def test_cross_fitting_uses_what_the_halves_say(release):
    first, second = (
        trace_model(replace(release, blocks=release.blocks._make(part[places] for part in release.blocks)), burn_in=0.0)
        for places in (slice(4, 12), slice(12, 20))
    )
    model = trace_model(release, prior="cross-fitted")
    np.testing.assert_allclose(model.prior, first.prior)
    for one, other in zip(model.moments, second.moments, strict=True):
        np.testing.assert_allclose(one, other)


def test_other_priors_use_the_whole_tail_twice(release):
    for prior in ("H.3", "paper", "weak"):
        for one, other in zip(trace_model(release, prior=prior).moments, tail(release), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_public_centre_replaces_the_prior_of_the_optimum_alone(release):
    plain = trace_model(release)
    known = trace_model(release, centre=np.array([1.0, 2.0]), centre_sd=np.array([0.3, 4.0]))
    np.testing.assert_array_equal(known.prior.centre, [1.0, 2.0])
    np.testing.assert_array_equal(known.prior.centre_sd, [0.3, 4.0])
    np.testing.assert_array_equal(known.prior[:2], plain.prior[:2])
    np.testing.assert_array_equal(trace_model(release, centre_sd=7.0).prior.centre_sd, [7.0, 7.0])
    np.testing.assert_array_equal(trace_model(release, centre_sd=7.0).prior.centre, plain.prior.centre)


def test_a_prior_may_be_given(release):
    given = TracePrior(*(np.array([value]) for value in (3.0, 2.0, 0.5, 0.1)))
    model = trace_model(release, prior=given, centre=np.zeros(2))
    np.testing.assert_array_equal(model.prior, [[3.0, 3.0], [2.0, 2.0], [0.0, 0.0], [0.1, 0.1]])


@pytest.mark.parametrize("name", ["h3", "exact", ""])
def test_an_unknown_prior_is_refused(release, name):
    with pytest.raises(ValueError, match=f"prior='{name}' must be one of {', '.join(PRIORS)}"):
        trace_model(release, prior=name)


@pytest.mark.parametrize("options", [{"centre_sd": 0.0}, {"centre_sd": -1.0}, {"centre": np.array([0.0, np.nan])}])
def test_a_prior_that_is_none_is_refused(release, options):
    with pytest.raises(ValueError, match=r"the prior's centre.*must be finite, and positive if an sd"):
        trace_model(release, **options)


def test_without_subsampling_the_variance_is_the_plans(release):
    model = trace_model(release, subsampling="none")
    assert not model.learned
    np.testing.assert_array_equal(model.known, [64.0, 64.0])
    np.testing.assert_array_equal(model.variance, [64.0, 64.0])


@pytest.mark.parametrize("sd", [6.0, np.array([6.0, 0.0])])
def test_a_known_subsampling_sd_adds_to_the_plans(release, sd):
    model = trace_model(release, subsampling=sd)
    assert not model.learned
    np.testing.assert_allclose(model.known, [100.0, 100.0] if np.ndim(sd) == 0 else [100.0, 64.0])
    np.testing.assert_array_equal(model.variance, model.known)


def test_a_learned_variance_is_that_around_the_line(release):
    """With half the noise in the plan, three quarters of the variance are left to be learned."""
    release = with_plan(release, noise_multiplier=4.0)
    model = trace_model(release, subsampling="learned")
    assert model.learned
    np.testing.assert_array_equal(model.known, [16.0, 16.0])
    for coordinate in range(2):
        x, y = (part[200:, coordinate] for part in release.trace[1:3])
        residual = y - np.polyval(np.polyfit(x, y, 1), x)
        np.testing.assert_allclose(model.variance[coordinate], (residual**2).sum() / 798)


def test_a_learned_variance_is_never_less_than_what_is_known(release):
    release = with_plan(release, noise_multiplier=20.0)
    np.testing.assert_array_equal(trace_model(release).variance, [400.0, 400.0])
    np.testing.assert_array_equal(residual_variance(tail(release), 400.0), [400.0, 400.0])
    assert (residual_variance(tail(release), 0.0) < 100).all()


@pytest.mark.parametrize("bad", ["known", "", -1.0, np.nan, np.inf, np.array([1.0, -1.0])])
def test_a_subsampling_that_is_none_is_refused(release, bad):
    with pytest.raises(ValueError, match="subsampling="):
        trace_model(release, subsampling=bad)


@pytest.mark.parametrize("nothing", ["none", 0.0, np.array([1.0, 0.0])])
def test_without_noise_some_variance_must_be_learned_or_known(release, nothing):
    quiet = with_plan(release, noise_multiplier=0.0)
    with pytest.raises(ValueError, match="without noise"):
        trace_model(quiet, subsampling=nothing)


@pytest.mark.parametrize("subsampling", ["learned", 8.0])
def test_without_noise_the_variance_of_sampling_is_enough(release, subsampling):
    """The same answer as if the plan had added that noise, up to how well its variance is learned."""
    quiet = with_plan(release, noise_multiplier=0.0)
    model = trace_model(quiet, subsampling=subsampling)
    np.testing.assert_allclose(model.variance, 64.0, rtol=0.2)
    mean, sd = exact.moments_of_optimum(model)
    known, known_sd = exact.moments_of_optimum(trace_model(release, subsampling="none"))
    assert (np.abs(mean - known) < 0.1 * known_sd).all()
    np.testing.assert_allclose(sd, known_sd, rtol=0.1)


def test_each_coordinate_has_its_converged_window():
    """One coordinate starts at its optimum, the other far away: it is left out until it has come down."""
    rng = np.random.default_rng(2)
    release = quadratic(rng, np.diag([50.0, 50.0]), np.zeros(2), steps=2000, std=0.5, step_size=2e-3, start=[0.0, 3.0])
    window = averaging.average(release)
    assert window.steps[1] < window.steps[0] == 2000
    model = trace_model(release, burn_in="converged")
    np.testing.assert_array_equal(model.moments.steps, window.steps)
    for coordinate, steps in enumerate(window.steps):
        x = release.trace.x[-steps:, coordinate]
        np.testing.assert_allclose(model.moments.mean_x[coordinate], x.mean(), atol=1e-12)
        np.testing.assert_allclose(model.moments.xx[coordinate], ((x - x.mean()) ** 2).sum())


def test_what_has_not_converged_is_refused_where_convergence_was_asked_for():
    release = quadratic(
        np.random.default_rng(3), np.diag([50.0, 0.5]), np.zeros(2), steps=1000, std=0.5, step_size=2e-3, start=[0.0, 9]
    )
    with pytest.raises(TraceError, match=r"1 of 2 coordinates of φ \(1\).*burn_in=0\.2"):
        trace_model(release, burn_in="converged")
    assert trace_model(release, burn_in=0.2).moments.steps.tolist() == [800]


@pytest.mark.parametrize("prior", ["H.3", "cross-fitted", "weak"])
def test_noise_that_changes_along_the_trace_is_weighed_step_by_step(prior):
    """Scales between ½ and 4, growing: mean, sd and probabilities as by brute force on the raw trace, to 10⁻⁴."""
    rng = np.random.default_rng(4)
    scale = np.geomspace(0.5, 4, STEPS)[:, None] * rng.uniform(0.8, 1.2, (STEPS, 1))
    release = quadratic(rng, [[80.0]], [0.7], steps=STEPS, std=5.0, step_size=0.03, scale=scale)
    model = trace_model(release, prior=prior, subsampling="none")
    expected, _, _ = brute_force(release, model, 600 if prior == "cross-fitted" else 200)
    mean, sd = exact.moments_of_optimum(model)
    assert abs(mean[0] - expected.mean) < 1e-4 * expected.sd
    np.testing.assert_allclose(sd[0], expected.sd, rtol=1e-4)
    points, below = expected.quantile_points([0.05, 0.5, 0.95])
    np.testing.assert_allclose([exact.probability_below(model, at[None])[0] for at in points], below, atol=1e-4)
    constant = release_of(release.plan, *release.trace[1:3], np.ones_like(scale), release.last)
    unweighed = exact.moments_of_optimum(trace_model(constant, prior=prior, subsampling="none"))
    assert abs(unweighed[1][0] / sd[0] - 1) > 0.05


def weighted(seed=5):
    """Two coordinates with noise that changes along the trace, and more of it than the plan added."""
    rng = np.random.default_rng(seed)
    scale = np.geomspace(0.5, 2, STEPS)[:, None] * np.array([1.0, 0.3])
    curvature = np.diag([80.0, 30.0])
    release = quadratic(rng, curvature, [0.7, -0.3], steps=STEPS, std=6.0, step_size=0.02, scale=scale)
    return with_plan(release, noise_multiplier=5.0)


@pytest.mark.parametrize("prior", ["H.3", "weak"])
def test_the_density_is_that_of_the_raw_trace(prior):
    """log p(v, φ*, trace | w) less a direct sum of normal log densities does not depend on v, φ* or w."""
    release = weighted()
    model = trace_model(release, prior=prior)
    x, y, scale = (part[200:] for part in release.trace[1:])
    rng = np.random.default_rng(6)
    gaps = []
    for _ in range(20):
        v, phi = rng.normal(50, 30, 2), rng.normal(0, 2, 2)
        variance = rng.uniform(10, 90, 2)
        means = 0.1 * np.logaddexp(0, v) * (x - phi)
        direct = stats.norm.logpdf(y, means, scale * np.sqrt(variance)).sum(0)
        direct += stats.norm.logpdf(v, model.prior.curvature_mean, model.prior.curvature_sd)
        direct += stats.norm.logpdf(phi, model.prior.centre, model.prior.centre_sd)
        with jax.enable_x64(True):
            gaps.append(np.asarray(log_joint(model, v, phi, variance)) - direct)
    np.testing.assert_allclose(gaps, np.broadcast_to(gaps[0], np.shape(gaps)), rtol=1e-9, atol=1e-6)


def test_the_optimum_given_the_rest_is_where_the_density_says():
    """Its mean and precision against a parabola through three values of the log density."""
    model, v, variance, away = trace_model(weighted()), np.array([70.0, 25.0]), np.array([30.0, 40.0]), 0.1
    mean, precision = optimum_given(model, np.logaddexp(0, v), variance)
    with jax.enable_x64(True):
        low, middle, high = (np.asarray(log_joint(model, v, mean + shift, variance)) for shift in (-away, 0.0, away))
    np.testing.assert_allclose(low, high, atol=1e-6)
    np.testing.assert_allclose((2 * middle - low - high) / away**2, precision, rtol=1e-6)


def lone(model, coordinate=0):
    """The model of one coordinate."""
    kept = slice(coordinate, coordinate + 1)

    def only(part):
        return np.broadcast_to(part, model.known.shape)[kept]

    return model._replace(
        moments=type(model.moments)(*map(only, model.moments)),
        known=only(model.known),
        variance=only(model.variance),
        prior=TracePrior(*map(only, model.prior)),
    )


def integral(log_density, axes):
    """log ∫ of a density of (1,)-vectors over a box, by Gauss and Legendre's rule along each axis."""
    points, steps = zip(*(np.polynomial.legendre.leggauss(count) for *_, count in axes), strict=True)
    points = [low + (high - low) * (1 + at) / 2 for (low, high, _), at in zip(axes, points, strict=True)]
    steps = [(high - low) / 2 * step for (low, high, _), step in zip(axes, steps, strict=True)]
    grid = np.stack([part.ravel() for part in np.meshgrid(*points, indexing="ij")], 1)
    weight = np.prod(np.stack([part.ravel() for part in np.meshgrid(*steps, indexing="ij")], 1), 1)
    with jax.enable_x64(True):
        values = np.asarray(jax.jit(jax.vmap(lambda at: log_density(at[:, None])))(grid))
    return np.log(weight @ np.exp(values - values.max())) + values.max()


@pytest.mark.parametrize("subsampling", ["none", "learned"])
@pytest.mark.parametrize(("seed", "coordinate"), [(5, 0), (5, 1), (7, 0)])
def test_the_potential_has_the_jacobian_of_its_coordinates(seed, coordinate, subsampling):
    """∫ p(trace, v, φ*, w) is one number, in (v, φ*, log w) and in (v, shift, excess): both to 10⁻⁴."""
    model = lone(trace_model(weighted(seed), subsampling=subsampling), coordinate)
    learned = model.learned
    around = (model.prior.curvature_mean[0], model.prior.curvature_sd[0])
    of_v = (around[0] - 8 * around[1], around[0] + 8 * around[1], 60)
    phi, sd = (part[0] for part in exact.moments_of_optimum(model))

    def in_coordinates(at):
        return -potential(model, dict(zip(coordinates(model), at, strict=True)))

    def directly(at):
        if not learned:
            return log_joint(model, at[0], at[1], model.known)[0]
        return log_joint(model, at[0], at[1], jax.numpy.exp(at[2]))[0]  # the density ∝ 1/w is flat in log w

    guess, known, spread = np.log(model.variance[0]), np.log(model.known[0]), np.sqrt(2 / 800)
    third = [(-16.0, 4.0, 120)] if learned else []
    in_w = [(max(known, guess - 8 * spread), guess + 8 * spread, 40)] if learned else []
    found = integral(in_coordinates, [of_v, (-8.0, 8.0, 40), *third])
    expected = integral(directly, [of_v, (phi - 15 * sd, phi + 15 * sd, 120), *in_w])
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("subsampling", ["none", "learned"])
def test_places_are_where_the_coordinates_say(subsampling):
    model = trace_model(weighted(), subsampling=subsampling)
    rng = np.random.default_rng(8)
    at = {name: start + rng.normal(size=2) for name, start in coordinates(model).items()}
    assert set(at) == {"v", "shift"} | ({"excess"} if model.learned else set())
    with jax.enable_x64(True):
        phi, a, variance, log_jacobian = (np.asarray(part) for part in place(model, at))
    np.testing.assert_allclose(a, np.logaddexp(0, at["v"]))
    expected = model.known + (model.variance * np.exp(at["excess"]) if model.learned else 0.0)
    np.testing.assert_allclose(variance, expected)
    mean, precision = optimum_given(model, a, variance)
    np.testing.assert_allclose(phi, mean + at["shift"] / np.sqrt(precision))
    jacobian = -0.5 * np.log(precision) + (np.log(variance - model.known) if model.learned else 0.0)
    np.testing.assert_allclose(log_jacobian, jacobian)


def test_the_potential_is_a_sum_over_coordinates():
    model = trace_model(weighted())
    at = {name: start + 0.3 for name, start in coordinates(model).items()}
    with jax.enable_x64(True):
        each = [
            potential(lone(model, one), {name: part[one : one + 1] for name, part in at.items()}) for one in range(2)
        ]
        np.testing.assert_allclose(potential(model, at), sum(each), rtol=1e-12)


def test_a_flattened_model_has_one_axis_and_the_same_solution(release):
    other = quadratic(np.random.default_rng(9), np.diag([70.0, 20.0]), [0.0, 1.0], steps=STEPS, std=8.0)
    model = trace_model(stacked([release, other]), centre=np.array([0.0, 3.0]))
    flat = flattened(model)
    for part in (*flat.moments, *flat.prior, flat.known, flat.variance):
        assert part.shape == (4,)
    assert (flat.rate, flat.learned) == (model.rate, model.learned)
    for one, other in zip(exact.moments_of_optimum(flat), exact.moments_of_optimum(model), strict=True):
        np.testing.assert_allclose(one.reshape(2, 2), other, rtol=1e-12)


@pytest.mark.parametrize("a", [1e-300, 1e-12, 1e-3, 1.0, 50.0, 1e6])
def test_softplus_inverse(a):
    np.testing.assert_allclose(np.logaddexp(0, softplus_inverse(np.array([a]))), a, rtol=1e-9)
