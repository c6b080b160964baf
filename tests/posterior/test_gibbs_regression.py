"""Noise-aware regression from one noisy sum of products: the normal proposal, known limits, and coverage.

Chains of one statistic share one compilation: REPLICAS chains of (WARM_UP, DRAWS) sweeps.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from discreet.evaluate import tarp
from discreet.families import conjugate_regression as family
from discreet.methods import statistics
from discreet.model import softplus_inverse
from discreet.plan import Plan
from discreet.posterior import gibbs_regression as regression
from discreet.release import Blocks, Release

REPLICAS, WARM_UP, DRAWS, NUM_ROWS = 100, 300, 500, 2000
PRIOR = family.Prior(20.0, 0.5, 2.0)
PAIRS = family.Statistic("y", ("a", "b"))
FOURS = family.Statistic("y", ("a", "b"), factor=0.03)


def sample(statistic, noisy, noise_std, seed=0):
    return regression.sample(
        jax.random.key(seed), statistic, PRIOR, noisy, NUM_ROWS, noise_std, DRAWS, warm_up=WARM_UP, at_once=REPLICAS
    )


def tables(rng, replicas=REPLICAS):
    """Truths z from the prior, covariates and outcomes."""
    variance = PRIOR.rate / rng.gamma(PRIOR.shape, size=replicas)
    w = PRIOR.scale * np.sqrt(variance)[:, None] * rng.standard_normal((replicas, 3))
    x = rng.standard_normal((replicas, NUM_ROWS, 2))
    noise = np.sqrt(variance)[:, None] * rng.standard_normal((replicas, NUM_ROWS))
    truth = np.column_stack([w, softplus_inverse(variance)])
    return truth, x, np.einsum("knd,kd->kn", x, w[:, :2]) + w[:, 2:] + noise


def sums_of(x, y, factor):
    with jax.enable_x64(True):
        each = jax.vmap(jax.vmap(lambda x, y: family.products(x, y, factor)))
        return np.asarray(each(jnp.asarray(x), jnp.asarray(y)).sum(1))


def told_by(statistic, noisy, noise_std, design=None):
    with jax.enable_x64(True):
        told = regression.setting(statistic, jnp.asarray(noisy), jnp.asarray(float(NUM_ROWS)), noise_std, design)
        return jax.tree.map(np.asarray, told)


# 1. The proposal.


def central_limit(w, variance, design):
    """Mean and covariance of one row's products, by the definition: s = (design, design·w + u, …) with (u, e) apart."""
    size, p = len(design.mean), len(w)
    maps, constant = regression.residual_maps(jnp.asarray(w))
    whole = np.vstack([np.eye(size, size + p + 1), np.asarray(maps)])
    second = np.asarray(family.design_matrix(jnp.asarray(design.mean), 1.0))
    apart = np.zeros((size + p + 1, size + p + 1))
    apart[:size, :size] = design.covariance
    apart[size:-1, size:-1], apart[-1, -1] = variance * second, 2 * variance**2
    back = np.linalg.inv(whole)
    mean = back @ np.concatenate([design.mean, np.append(np.zeros(p), variance) - np.asarray(constant)])
    return mean, back @ apart @ back.T


def test_the_proposal_is_the_central_limits_normal_given_the_release():
    """An identity: the draw is linear in its normals, and Matheron's rule gives the textbook conditional."""
    rng = np.random.default_rng(1)
    design = family.public_design(rng.exponential(size=(500, 2)))
    w, variance, noise_std = np.array([0.4, -0.3, 0.2]), 0.05, 30.0
    with jax.enable_x64(True):
        mean, covariance = central_limit(w, variance, design)
        weight = family.pairs(2)[1]
        noisy = weight * (NUM_ROWS * mean + 40 * rng.standard_normal(9))
        told = told_by(PAIRS, noisy, noise_std, design)

        def away(normal):
            chance = regression.Chance(normal[:9], normal[9:], *[jnp.zeros(())] * 4)
            return regression.proposal(chance, told, jnp.asarray(w), jnp.asarray(variance))

        centre, root = jax.vmap(away)(jnp.eye(13))
        centre, root = np.asarray(centre[0]), np.asarray(root)
    total = NUM_ROWS * covariance + np.diag((noise_std / weight) ** 2)
    gain = NUM_ROWS * covariance @ np.linalg.inv(total)
    expected = NUM_ROWS * mean + gain @ (noisy / weight - NUM_ROWS * mean)
    np.testing.assert_allclose(centre, expected, rtol=1e-6)
    spread = NUM_ROWS * (covariance - gain @ covariance)
    np.testing.assert_allclose(root.T @ root, spread, atol=1e-6 * np.abs(spread).max())


def test_the_correction_is_the_exact_density_over_the_normal_one():
    """Up to a constant, against scipy: u ~ N(0, σ²XᵀX), e − uᵀ(XᵀX)⁻¹u ~ σ²χ²(N − p), for a few dozen rows."""
    rng, w, variance, num_rows = np.random.default_rng(10), np.array([0.4, -0.3, 0.2]), 0.05, 40
    ours, theirs = [], []
    told = told_by(PAIRS, sums_of(rng.normal(size=(1, 40, 2)), rng.normal(size=(1, 40)), 0.0)[0], 5.0)
    told = told._replace(num_rows=np.array(40.0), second=np.eye(3) + 0.1 * np.tri(3))
    for _ in range(5):
        x = np.column_stack([rng.normal(size=(num_rows, 2)), np.ones(num_rows)])
        residual = 0.2 * rng.standard_normal(num_rows)
        y = x @ w + residual
        sums = sums_of(x[None, :, :2], y[None], 0.0)[0] / family.pairs(2)[1]
        with jax.enable_x64(True):
            ours.append(float(regression._correction(told, jnp.asarray(w), jnp.asarray(variance), jnp.asarray(sums))))
        u, e, square = x.T @ residual, residual @ residual, x.T @ x
        exact = stats.multivariate_normal(cov=variance * square).logpdf(u)
        exact += stats.chi2(num_rows - 3).logpdf((e - u @ np.linalg.solve(square, u)) / variance)
        normal = stats.multivariate_normal(cov=num_rows * variance * told.second @ told.second.T).logpdf(u)
        theirs.append(exact - normal - stats.norm(num_rows * variance, np.sqrt(2 * num_rows) * variance).logpdf(e))
    np.testing.assert_allclose(np.diff(ours), np.diff(theirs), rtol=1e-8)
    with jax.enable_x64(True):
        impossible = jnp.asarray(sums).at[-1].set(0.0)
        assert regression._correction(told, jnp.asarray(w), jnp.asarray(variance), impossible) == -np.inf


def test_without_belief_the_design_is_what_was_released():
    noisy = sums_of(*tables(np.random.default_rng(2), 1)[1:], 0.0)[0]
    told = told_by(PAIRS, noisy, 25.0)
    np.testing.assert_allclose(told.mean, noisy / family.pairs(2)[1])
    np.testing.assert_allclose(told.covariance, np.diag((25.0 / family.pairs(2)[1]) ** 2))


def test_released_moments_narrow_the_design_as_public_ones_do():
    """Without noise in them, fourth moments say what the rows themselves would."""
    rng = np.random.default_rng(3)
    _, x, y = tables(rng, 1)
    noisy = sums_of(x, y, FOURS.factor)[0]
    released = told_by(FOURS, noisy, 25.0)
    public = told_by(PAIRS, noisy[: PAIRS.size], 25.0, family.public_design(x[0]))
    np.testing.assert_allclose(released.covariance, public.covariance, rtol=2e-3, atol=1e-3)
    np.testing.assert_allclose(released.mean, public.mean, rtol=1e-6, atol=1e-6)
    assert regression.repairs(FOURS, noisy, NUM_ROWS, 25.0) == (0, 0)


def test_repairs_are_counted_where_noise_exceeds_the_moments():
    rng = np.random.default_rng(4)
    noisy = sums_of(*tables(rng, 1)[1:], FOURS.factor)[0]
    second, fourth = regression.repairs(FOURS, noisy + 4000 * rng.standard_normal(noisy.shape), NUM_ROWS, 4000.0)
    assert second > 0
    assert fourth > 0
    told = told_by(FOURS, noisy + 4000 * rng.standard_normal(noisy.shape), 4000.0)
    assert all(np.isfinite(part).all() for part in jax.tree.leaves(told))
    assert (told.second @ told.second.T)[-1, -1] == pytest.approx(1.0)


# 2. Chains.


def scores(z, truth):
    """TARP RMSE of each coordinate: σ² is so wide that it alone would decide joint distances."""
    rng = np.random.default_rng(7)
    return np.array([tarp.rmse(tarp.fractions(rng, z[..., [one]], truth[:, [one]])) for one in range(z.shape[-1])])


def test_with_negligible_noise_it_is_the_exact_posterior():
    """100 chains of one data set against 40 000 exact draws: means within .05 sd, sds within 4 %.

    The least effective coordinate has above 10⁴ effective draws, standard error .01 sd: false alarms below 1e-5.
    """
    rng = np.random.default_rng(5)
    _, x, y = tables(rng, 1)
    z = sample(PAIRS, np.repeat(sums_of(x, y, 0.0), REPLICAS, 0), 1e-3)
    exact = family.exact_posterior(rng, x[0], y[0], PRIOR, 40_000)
    assert (np.abs(z.mean((0, 1)) - exact.mean(0)) < 0.05 * exact.std(0)).all()
    np.testing.assert_allclose(z.std((0, 1)) / exact.std(0), 1, atol=0.04)


@pytest.fixture(scope="module")
def moderate():
    """Data sets with noise 30, which is as wide as √N times a row's spread, and their truths."""
    rng = np.random.default_rng(6)
    truth, x, y = tables(rng)
    sums = sums_of(x, y, FOURS.factor)
    return truth, sums + 30 * rng.standard_normal(sums.shape), family.exact_posterior(rng, x, y, PRIOR, DRAWS)


@pytest.mark.parametrize("statistic", [PAIRS, FOURS])
def test_posteriors_cover_as_they_say(statistic, moderate):
    """TARP over 100 data sets below the null's 99.9 % for each coordinate, at more than twice the non-private width."""
    truth, noisy, exact = moderate
    z = sample(statistic, noisy[:, : statistic.size], 30.0)
    assert (scores(z, truth) < tarp.null_band(REPLICAS, 0.999)[1]).all()
    assert ((z.std(1) / exact.std(1)).mean(0) > 2).all()


def test_coverage_fails_a_reading_that_ignores_the_noise(moderate):
    """A seeded fault: the same release with its noise believed to be a tenth."""
    truth, noisy, _ = moderate
    z = sample(PAIRS, noisy[:, : PAIRS.size], 3.0)
    assert (scores(z, truth)[:3] > tarp.null_band(REPLICAS, 0.999)[1]).all()


def test_noise_larger_than_the_moments_leaves_finite_draws_no_wider_than_the_prior():
    """Where it breaks it says nothing, rather than something wrong: sds below 1.3 times the prior's, and not narrow."""
    rng = np.random.default_rng(8)
    _, x, y = tables(rng)
    sums = sums_of(x, y, 0.0)
    z = sample(PAIRS, sums + 4000 * rng.standard_normal(sums.shape), 4000.0)
    prior_sd = PRIOR.scale * np.sqrt(PRIOR.rate / (PRIOR.shape - 1))
    assert np.isfinite(z).all()
    assert (z[..., :3].std((0, 1)) < 1.3 * prior_sd).all()
    assert (z[..., :3].std((0, 1)) > 0.5 * prior_sd).all()


# 3. The door.


def test_a_release_is_read_with_its_own_noise():
    plan = Plan(NUM_ROWS, 1, 1.0, 20.0, 1.5)
    noisy = np.repeat(sums_of(*tables(np.random.default_rng(9), 1)[1:], 0.0), REPLICAS, 0)
    settings = statistics.of_regression(PAIRS, plan).settings
    release = Release(plan, "simulated", settings, Blocks(*np.zeros((10, 1, 1))), noisy)
    options = {"warm_up": WARM_UP, "at_once": REPLICAS}
    read = regression.from_release(jax.random.key(0), PAIRS, PRIOR, release, DRAWS, **options)
    np.testing.assert_array_equal(read, sample(PAIRS, noisy, 30.0))
    with pytest.raises(ValueError, match=r"not of .*'factor': 0.03"):
        regression.from_release(jax.random.key(0), FOURS, PRIOR, release, DRAWS)
    laplace = Release(Plan(NUM_ROWS, 1, 1.0, 20.0, 1.5, noise_kind="laplace"), "simulated", settings, *release_parts())
    with pytest.raises(ValueError, match="noise_kind=laplace must be gaussian"):
        regression.from_release(jax.random.key(0), PAIRS, PRIOR, laplace, DRAWS)


def release_parts():
    return Blocks(*np.zeros((10, 1, 1))), np.ones(PAIRS.size)


def test_bad_arguments_are_named():
    key = jax.random.key(0)
    with pytest.raises(ValueError, match=r"noisy has shape \(3,\); this statistic needs \(…, 9\)"):
        regression.sample(key, PAIRS, PRIOR, np.ones(3), NUM_ROWS, 1.0, 5)
    with pytest.raises(ValueError, match=r"noise_std=0.0 must be above 0"):
        regression.sample(key, PAIRS, PRIOR, np.ones(9), NUM_ROWS, 0.0, 5)
    design = family.public_design(np.random.default_rng(0).normal(size=(20, 2)))
    with pytest.raises(ValueError, match=r"factor=0.03 asks for the same in private"):
        regression.sample(key, FOURS, PRIOR, np.ones(FOURS.size), NUM_ROWS, 1.0, 5, design=design)
