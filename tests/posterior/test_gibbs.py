"""Gibbs draws from one noisy sum: against quadrature, against exact posteriors, and by coverage.

All samplers of a family share one compiled chain: REPLICAS chains of (WARM_UP, DRAWS) sweeps.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from discreet.evaluate import tarp
from discreet.families.exponential import (
    Conjugate,
    RowMoments,
    beta_bernoulli,
    conjugate_beta,
    conjugate_dirichlet,
    conjugate_gamma,
    exact_beta,
)
from discreet.methods import statistics
from discreet.plan import Plan
from discreet.posterior import gibbs
from discreet.release import Blocks, Release

REPLICAS, WARM_UP, DRAWS = 200, 200, 600
BOUND = 0.575  # clamps a tenth of rows at θ = 4, the prior's mean
GAMMA, BETA = conjugate_gamma(8.0, 2.0, BOUND, link="log"), conjugate_beta(10.0, 10.0)
DIRICHLET = conjugate_dirichlet((5.0, 5.0, 5.0))
KINDS = ["gaussian", "laplace"]
HIGHEST = tarp.null_band(REPLICAS, 0.999)[1]


def sample(side, noisy, num_rows, scale, kind, seed=0):
    return gibbs.sample(jax.random.key(seed), side, noisy, num_rows, scale, kind, DRAWS, warm_up=WARM_UP)


def add_noise(rng, sums, scale, kind):
    return sums + scale * (rng.laplace(size=sums.shape) if kind == "laplace" else rng.standard_normal(sums.shape))


def simulated(rng, name, num_rows):
    """(truths, released sums) of REPLICAS data sets from the prior."""
    if name == "gamma":
        theta = rng.gamma(8.0, size=REPLICAS) / 2
        rows = rng.exponential(size=(REPLICAS, num_rows)) / theta[:, None]
        return np.log(theta)[:, None], np.minimum(rows, BOUND).sum(1, keepdims=True)
    if name == "beta":
        theta = rng.beta(10, 10, REPLICAS)
        return special.logit(theta)[:, None], rng.binomial(num_rows, theta)[:, None].astype(float)
    theta = rng.dirichlet([5, 5, 5], REPLICAS)
    return np.log(theta[:, :2] / theta[:, 2:]), rng.multinomial(num_rows, theta).astype(float)


SIDES = {"gamma": GAMMA, "beta": BETA, "dirichlet": DIRICHLET}


# 1. The pieces.


@pytest.mark.parametrize("size", [0.0, 1e-12, 0.01, 1.0, 40.0])
def test_the_mixing_variance_has_its_inverse_gaussian_law(size):
    """1/τ against scipy (τ ~ scale²·χ²₁ at 0), Kolmogorov-Smirnov on 20 000 draws. False alarms: 1e-5 a case."""
    rng, scale = np.random.default_rng(1), 3.0
    with jax.enable_x64(True):
        normal, uniform = jnp.asarray(rng.standard_normal(20_000)), jnp.asarray(rng.random(20_000))
        tau = np.asarray(gibbs.mixing_variance(normal, uniform, jnp.full(20_000, size * scale), jnp.asarray(scale)))
    assert (tau > 0).all()
    law = stats.chi2(1).cdf if size < 1e-6 else lambda t: stats.invgauss(1 / size).sf(1 / t)
    assert stats.kstest(tau / scale**2, law).pvalue > 1e-5


def test_a_normal_with_mixed_variance_is_laplace():
    """One Gibbs step from Laplace noise gives Laplace noise again: Kolmogorov-Smirnov, false alarm 1e-5."""
    rng = np.random.default_rng(2)
    noise = rng.laplace(size=20_000)
    with jax.enable_x64(True):
        parts = (jnp.asarray(part) for part in (rng.standard_normal(20_000), rng.random(20_000), noise))
        tau = np.asarray(gibbs.mixing_variance(*parts, jnp.asarray(1.0)))
    assert stats.kstest(np.sqrt(tau) * rng.standard_normal(20_000), "laplace").pvalue > 1e-5


def test_sums_given_everything_have_the_conditional_normals_moments():
    """Against the textbook formula with a covariance of full rank; 5 standard errors, false alarms below 1e-4."""
    num_rows, variance = 50.0, np.array([9.0])
    with jax.enable_x64(True):
        told = gibbs.Told(*map(jnp.asarray, (np.array([14.0]), num_rows, 3.0, False)))
        row = GAMMA.moments(jnp.log(jnp.array([3.0])))
        normal = jnp.asarray(np.random.default_rng(3).standard_normal((20_000, 3)))
        total, noise = jax.vmap(lambda normal: gibbs.sums_given(normal, row, told, jnp.asarray(variance)))(normal)
        row, total, noise = jax.tree.map(np.asarray, (row, total, noise))
    root = np.concatenate([row.root, row.released_root])
    joint = num_rows * root @ root.T
    gain = joint[:, 1] / (joint[1, 1] + 9)
    missed = 14 - num_rows * row.released_mean[0]
    sd = np.sqrt(joint[0, 0] - gain[0] * joint[0, 1])
    error = 5 / np.sqrt(20_000)
    assert abs(total.mean() - num_rows * row.mean[0] - gain[0] * missed) < error * sd
    assert abs(total.std() / sd - 1) < error
    assert abs(noise.mean() - (1 - gain[1]) * missed) < error * 3
    np.testing.assert_allclose(np.var(noise), 9 * gain[1], rtol=error * 1.5)


def sweeps(side, z, total, noise, noisy, num_rows, scale, count=2000):
    """One sweep from the same place, many times, with Laplace noise."""
    with jax.enable_x64(True):
        told = gibbs.Told(*map(jnp.asarray, (np.array(noisy), num_rows, scale, True)))
        at = gibbs.Sweep(*(jnp.asarray(np.array(part)) for part in (z, total, noise)))
        keys = jax.random.split(jax.random.key(11), count)
        return jax.tree.map(np.asarray, jax.jit(jax.vmap(lambda key: gibbs._sweep(key, side, told, at)))(keys))


def test_impossible_sums_are_refused_and_others_not():
    """20 rows at θ = .05: about a sixth of the normal's draws of the number of ones are negative."""
    after = sweeps(BETA, [-3.0], [2.0], [0.0], [1.0], 20.0, 30.0)
    stayed = after.total[:, 0] == 2.0
    assert 0.1 < stayed.mean() < 0.25
    assert (after.total >= 0).all()
    assert (after.noise[stayed] == 0).all()


def test_each_coordinate_has_its_own_mixing_variance():
    """Two independent sums of which rows say nothing: large noise may stay large, small noise stays small."""
    moments = RowMoments(jnp.zeros(2), jnp.eye(2), jnp.zeros(2), jnp.eye(2))
    toy = Conjugate(jnp.ones, 2, 1.0, lambda z: moments, lambda total, n: True, lambda key, total, n: total, ("x",), {})
    after = sweeps(toy, [0.0, 0.0], [0.0, 0.0], [0.0, 1e4], [0.0, 0.0], 1e12, 10.0)
    small, large = after.noise.std(0)
    assert 8 < small < 12
    assert 250 < large < 400


def test_an_elliptical_step_leaves_a_cut_normal_invariant():
    """N(1, 1) above 0, started from its own law: Kolmogorov-Smirnov on 5000 steps, false alarm 1e-5."""
    law = stats.truncnorm(-1.0, np.inf, loc=1.0)
    at = law.rvs(5000, random_state=4)[:, None]
    rng = np.random.default_rng(4)

    def step(chance, away, at):
        return gibbs.elliptical(chance, lambda x: jnp.where(x[0] > 0, 0.0, -jnp.inf), jnp.ones(1), away, at)

    with jax.enable_x64(True):
        parts = (rng.random((5000, gibbs.TRIES + 2)), rng.standard_normal((5000, 1)), at)
        after = np.asarray(jax.jit(jax.vmap(step))(*map(jnp.asarray, parts)))
    assert (after != at).mean() > 0.99
    assert stats.kstest(after[:, 0], law.cdf).pvalue > 1e-5


# 2. Against what is known.


def test_with_little_noise_it_is_the_exact_posterior():
    """Means and sds of 200 replicas of one data set against Beta(10 + 300, 10 + 700), 120 000 draws.

    Draws are nearly independent here: five standard errors, false alarms below 1e-5.
    """
    z = sample(BETA, np.full((REPLICAS, 1), 300.0), 1000, 1e-3, "gaussian")
    exact = exact_beta(np.random.default_rng(5), 10, 10, 300, 1000, 400_000)
    error = 5 * exact.std() / np.sqrt(z.size)
    assert abs(z.mean() - exact.mean()) < 1.2 * error
    assert abs(z.std() - exact.std()) < error


def by_quadrature(noisy, num_rows, scale, kind, wide):
    """Mean and sd of logit θ under Beta(10, 10) × density of a normal sum of N rows plus noise, on a grid of θ."""
    z = np.linspace(-wide, wide, 2001)
    theta = special.expit(z)
    mean, sd = num_rows * theta, np.sqrt(num_rows * theta * (1 - theta))
    if kind == "gaussian":
        log_density = stats.norm.logpdf(noisy, mean, np.hypot(sd, scale))
    else:  # a normal plus Laplace noise, written with log Φ
        x, rate = noisy - mean, 1 / scale
        left = rate * x + special.log_ndtr(-x / sd - rate * sd)
        right = -rate * x + special.log_ndtr(x / sd - rate * sd)
        log_density = np.logaddexp(left, right) + (rate * sd) ** 2 / 2
    weight = stats.beta.logpdf(theta, 10, 10) + np.log(theta * (1 - theta)) + log_density
    weight = np.exp(weight - weight.max())
    mean = np.average(z, weights=weight)
    return mean, np.sqrt(np.average((z - mean) ** 2, weights=weight))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("noisy", [2000.0, 5400.0])
def test_one_coordinate_agrees_with_quadrature(kind, noisy):
    """N = 10⁴ at a noise as wide as the sampling spread, 200 chains whose means are independent.

    The mean of chain means within 4 of their standard errors, sds within 2 %: false alarms below 1e-4. The second sum
    is far from neither prior nor data; the first is 5 prior sds out, where Laplace tails matter.
    """
    z = sample(BETA, np.full((REPLICAS, 1), noisy), 10_000, 50.0, kind, seed=6)[..., 0]
    mean, sd = by_quadrature(noisy, 10_000, 50.0, kind, wide=2.0)
    means = z.mean(1)
    assert abs(means.mean() - mean) < 4 * means.std() / np.sqrt(REPLICAS)
    assert abs(z.std() / sd - 1) < 0.02


def test_sums_stay_where_rows_can_put_them():
    """20 rows, noise of 30 and a release of −40 ones: every draw is finite, and the prior hardly moves."""
    z = sample(BETA, np.full((REPLICAS, 1), -40.0), 20, 30.0, "laplace", seed=7)
    assert np.isfinite(z).all()
    prior = exact_beta(np.random.default_rng(7), 10, 10, 0, 0, 10_000)
    assert -0.5 < (z.mean() - prior.mean()) / prior.std() < 0


# 3. Coverage.


def score(rng, z, truth):
    return tarp.rmse(tarp.fractions(rng, z, truth))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SIDES)
def test_posteriors_cover_as_they_say(name, kind):
    """TARP over 200 data sets of 1000 rows, noise as wide as the sampling spread or wider, below the null's 99.9 %.

    A tenth of the gamma family's rows are clamped on average. Widths exceed what the data alone would give.
    """
    rng = np.random.default_rng(8)
    truth, sums = simulated(rng, name, 1000)
    scale = SIDES[name].bound * (20.0 if kind == "gaussian" else 14.0)
    z = sample(SIDES[name], add_noise(rng, sums, scale, kind), 1000, scale, kind, seed=9)
    assert score(rng, z, truth) < HIGHEST
    without = sample(SIDES[name], sums, 1000, 1e-3, kind, seed=9)
    assert (z.std(1).mean(0) > 1.2 * without.std(1).mean(0)).all()


def test_coverage_fails_a_sampler_that_ignores_noise_or_clamping():
    """Seeded faults: noise believed to be a hundredth of what it is, and clamped sums read as if they were whole."""
    rng = np.random.default_rng(10)
    truth, sums = simulated(rng, "beta", 1000)
    naive = sample(BETA, add_noise(rng, sums, 40.0, "gaussian"), 1000, 0.4, "gaussian")
    assert score(rng, naive, truth) > 1.5 * HIGHEST
    truth, sums = simulated(rng, "gamma", 1000)
    noisy = add_noise(rng, sums, 5.0, "gaussian")
    theta = rng.gamma(8.0 + 1000, size=(REPLICAS, DRAWS)) / (2.0 + noisy)
    assert score(rng, np.log(theta)[..., None], truth) > 1.5 * HIGHEST
    honest = sample(GAMMA, noisy, 1000, 5.0, "gaussian")
    assert score(rng, honest, truth) < HIGHEST


# 4. The door.


def release_of(side, plan, last):
    query = statistics.of_family(side, plan)
    blocks = Blocks(*np.zeros((10, 1, 1)))
    return Release(plan, "simulated", query.settings, blocks, last)


@pytest.mark.parametrize("kind", KINDS)
def test_a_release_is_read_with_its_own_noise(kind):
    plan = Plan(1000, 1, 1.0, 1.0, 20.0, noise_kind=kind)
    noisy = np.full((REPLICAS, 1), 450.0)
    read = gibbs.from_release(jax.random.key(3), BETA, release_of(BETA, plan, noisy), DRAWS, warm_up=WARM_UP)
    np.testing.assert_array_equal(read, sample(BETA, noisy, 1000, 20.0, kind, seed=3))


def test_a_release_of_something_else_is_refused():
    plan = Plan(1000, 1, 1.0, 1.0, 20.0)
    with pytest.raises(ValueError, match=r"not of .*'statistic': 'counts'"):
        gibbs.from_release(jax.random.key(0), DIRICHLET, release_of(BETA, plan, np.ones(1)), 10)


def test_one_table_needs_no_axis_of_replicas():
    z = gibbs.sample(jax.random.key(0), BETA, np.array([450.0]), 1000, 20.0, "laplace", 7, warm_up=3, thin=2)
    assert z.shape == (7, beta_bernoulli(1.0, 1.0).dim)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noisy": np.ones(2)}, r"noisy has shape \(2,\); this family needs \(…, 1\)"),
        ({"kind": "cauchy"}, "kind='cauchy' must be one of gaussian, laplace"),
        ({"noise_scale": 0.0}, "noise_scale=0.0 must be above 0"),
        ({"draws": 0}, "draws=0 must be at least 1"),
        ({"thin": 0}, "thin=0 must be at least 1"),
    ],
)
def test_bad_arguments_are_named(change, message):
    good = {"noisy": np.ones(1), "num_rows": 10, "noise_scale": 1.0, "kind": "gaussian", "draws": 5}
    with pytest.raises(ValueError, match=message):
        gibbs.sample(jax.random.key(0), BETA, **(good | change))
