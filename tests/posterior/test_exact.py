import numpy as np
import pytest
from scipy import stats

from discreet.posterior import exact
from discreet.posterior.trace import tail
from tests.posterior.traces import quadratic


def brute_force(release, prior, variance, centre, points=1500):
    """Distribution function of φ* on the grid `centre`, by quadrature over (v, φ*) on the raw trace."""
    first = round(0.2 * len(release.trace.x))
    x, y = release.trace.x[first:, 0], release.trace.y[first:, 0]
    mean, sd = prior.curvature_mean[0], prior.curvature_sd[0]
    v = np.linspace(mean - 8 * sd, mean + 8 * sd, points)
    a, f = release.plan.sampling_prob * np.logaddexp(0, v)[:, None], centre[None, :]
    squares = (y**2).sum() - 2 * a * ((x * y).sum() - f * y.sum())
    squares = squares + a**2 * ((x**2).sum() - 2 * f * x.sum() + len(x) * f**2)
    log = -squares / (2 * variance[0]) + stats.norm.logpdf(v, mean, sd)[:, None]
    log += stats.norm.logpdf(centre, prior.centre[0], prior.centre_sd[0])[None]
    density = np.exp(log - log.max()).sum(0)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(centre))])
    return mass / mass[-1]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("paper_prior", [False, True])
def test_draws_follow_two_dimensional_quadrature(seed, paper_prior):
    """Quantiles of 400 000 draws have their probability within .005: six standard errors and more."""
    rng = np.random.default_rng(seed)
    release = quadratic(rng, [[rng.uniform(20, 200)]], [rng.normal()], steps=1000, std=rng.uniform(2, 20))
    moments, plan = tail(release), release.plan
    variance = exact.noise_variance(moments, plan.noise_std**2, False)
    prior = exact.trace_prior(moments, plan.sampling_prob, variance, 1.0, paper_prior)
    draws = exact.noise_aware(rng, release, 400_000, extra_noise=False, paper_prior=paper_prior)[:, 0]
    core, probs = np.quantile(draws, [5e-4, 1 - 5e-4]), np.array([0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99])
    grid = np.unique(np.concatenate([np.linspace(-6, 6, 1000) + prior.centre[0], np.linspace(*core, 3000)]))
    found = np.interp(np.quantile(draws, probs), grid, brute_force(release, prior, variance, grid))
    np.testing.assert_allclose(found, probs, atol=0.005)


def coverage(std, **options):
    """Share of 300 quadratics whose optimum, drawn from N(0, 1), lies in its 90 % interval."""
    rng, covered = np.random.default_rng(3), 0
    for _ in range(300):
        curvature, optimum = rng.uniform(50, 150), rng.normal()
        release = quadratic(rng, [[curvature]], [optimum], steps=600, std=std)
        low, high = np.quantile(exact.noise_aware(rng, release, 1000, **options)[:, 0], [0.05, 0.95])
        covered += low < optimum < high
    return covered / 300


@pytest.mark.parametrize("std", [2.0, 20.0])
def test_the_optimum_is_covered_at_its_level(std):
    """Between 83 % and 96 %; false alarm below 10⁻⁴ (binomial)."""
    assert 0.83 <= coverage(std) <= 0.96


def test_a_public_centre_covers_where_the_papers_prior_does_not():
    """Noise as wide as the prior of φ*: centring that prior at the trace's mean uses the trace twice."""
    assert coverage(200.0) < 0.83 <= coverage(200.0, centre=np.zeros(1)) <= 0.96


def test_much_data_gives_the_regression_estimate():
    rng = np.random.default_rng(4)
    release = quadratic(rng, [[100.0]], [2.0], steps=20_000, std=1.0)
    moments = tail(release)
    slope = moments.xy / moments.xx
    estimate = moments.mean_x - moments.mean_y / slope
    draws = exact.noise_aware(rng, release, 4000)
    assert abs(draws.mean(0) - estimate) < 5 * draws.std(0) / np.sqrt(4000)


def test_preconditioning_only_changes_units():
    """y/β with noise σC/β is the same information as y with noise σC: the answers agree to rounding."""
    plain = quadratic(np.random.default_rng(5), [[60.0]], [1.0], std=8.0)
    scaled = quadratic(np.random.default_rng(5), [[60.0]], [1.0], std=80.0, beta=np.array([10.0]))
    one = exact.noise_aware(np.random.default_rng(0), plain, 500)
    other = exact.noise_aware(np.random.default_rng(0), scaled, 500)
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_replicas_are_independent_posteriors():
    rng = np.random.default_rng(6)
    first, second = (quadratic(rng, [[60.0]], [value], steps=400) for value in (1.0, -1.0))
    both = first.__class__(
        first.plan,
        "simulated",
        {},
        first.blocks._make(np.stack(pair) for pair in zip(first.blocks, second.blocks, strict=True)),
        first.last,
    )
    draws = exact.noise_aware(rng, both, 2000)
    assert draws.shape == (2, 2000, 1)
    single = exact.noise_aware(rng, first, 2000)
    assert abs(draws[0].mean() - single.mean()) < 6 * single.std() / np.sqrt(1000)


def test_extra_noise_is_taken_from_the_residuals():
    rng = np.random.default_rng(7)
    release = quadratic(rng, [[60.0]], [1.0], std=10.0)
    doubled = release.__class__(
        release.plan, "simulated", {}, release.blocks._replace(yy=4 * release.blocks.yy), release.last
    )
    moments = tail(doubled)
    assert exact.noise_variance(moments, 100.0, True)[0] > 300
    assert exact.noise_variance(moments, 100.0, False)[0] == 100


def test_softplus_inverse():
    a = np.array([1e-12, 1e-3, 1.0, 50.0])
    np.testing.assert_allclose(np.logaddexp(0, exact.softplus_inverse(a)), a, rtol=1e-9)
