"""The conjugate regression against scipy.stats, against its own log density, and its products against their norms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from discreet.families import conjugate_regression as family

PRIOR = family.Prior(5.0, 2.0, 1.5)
MODEL = family.conjugate_regression("y", ["a", "b"], shape=5.0, rate=2.0, scale=1.5)
RNG = np.random.default_rng(0)
ROW = {"a": 0.3, "b": -1.2, "y": 0.7}


def draws_of_z(count, seed=1):
    with jax.enable_x64(True):
        return np.asarray(jax.jit(jax.vmap(MODEL.sample_prior))(jax.random.split(jax.random.key(seed), count)))


def double(function, *arguments):
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, function(*jax.tree.map(jnp.asarray, arguments)))


def log_prior(z):
    variance = np.logaddexp(0, z[:, -1])
    of_w = stats.norm(scale=1.5 * np.sqrt(variance)[:, None]).logpdf(z[:, :-1]).sum(1)
    return stats.invgamma(5.0, scale=2.0).logpdf(variance) + of_w - np.logaddexp(0, -z[:, -1])


def test_log_prior_is_the_prior_density_with_its_jacobian_up_to_a_constant():
    z = RNG.normal(size=(20, 4))
    ours = double(jax.vmap(MODEL.log_prior), z)
    np.testing.assert_allclose(ours - ours[0], log_prior(z) - log_prior(z)[0], atol=1e-9)


def test_prior_draws_follow_the_prior():
    """Kolmogorov-Smirnov on σ² and on each coefficient over σ. False alarms: 1e-4 an entry."""
    z = draws_of_z(3000)
    variance = np.logaddexp(0, z[:, -1])
    assert stats.kstest(variance, stats.invgamma(5.0, scale=2.0).cdf).pvalue > 1e-4
    for w in (z[:, :-1] / np.sqrt(variance)[:, None]).T:
        assert stats.kstest(w, stats.norm(scale=1.5).cdf).pvalue > 1e-4


def test_likelihood_mean_and_names():
    z = np.array([0.5, -0.4, 2.0, -1.0])
    mean, variance = 0.5 * 0.3 + 0.4 * 1.2 + 2.0, np.logaddexp(0, -1.0)
    assert double(MODEL.mean, z, ROW) == pytest.approx(mean)
    assert double(MODEL.log_likelihood, z, ROW) == pytest.approx(stats.norm(mean, np.sqrt(variance)).logpdf(0.7))
    named = double(MODEL.constrain, z)
    np.testing.assert_allclose(named["coefficients"], z[:3])
    assert named["variance"] == pytest.approx(variance)
    assert MODEL.columns == ("a", "b", "y")
    assert MODEL.labels["coefficients"] == ("a", "b", "Intercept")
    assert MODEL.description["scale"] == 1.5


def test_simulated_outcomes_follow_the_likelihood():
    """Kolmogorov-Smirnov on 3000 outcomes of one row. False alarm: 1e-4."""
    z = np.array([0.5, -0.4, 2.0, -1.0])
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(2), 3000)
        y = np.asarray(jax.jit(jax.vmap(lambda key: MODEL.simulate(key, jnp.asarray(z), ROW)["y"]))(keys))
    law = stats.norm(double(MODEL.mean, z, ROW), np.sqrt(np.logaddexp(0, -1.0)))
    assert stats.kstest(y, law.cdf).pvalue > 1e-4


def test_truths_are_exchangeable_with_exact_draws():
    """Ranks of the truth among exact draws are uniform. Kolmogorov-Smirnov, false alarms: 1e-4 an entry."""
    z = draws_of_z(400, seed=3)
    x = RNG.normal(size=(400, 15, 2))
    variance = np.logaddexp(0, z[:, -1:])
    y = np.einsum("knd,kd->kn", x, z[:, :2]) + z[:, 2:3] + np.sqrt(variance) * RNG.standard_normal((400, 15))
    draws = family.exact_posterior(RNG, x, y, PRIOR, 300)
    assert draws.shape == (400, 300, 4)
    for share in (draws < z[:, None]).mean(1).T:
        assert stats.kstest(share, "uniform").pvalue > 1e-4


def test_exact_draws_have_the_density_of_the_model():
    """At 3000 rows the log density is quadratic: its curvature and mode are the draws' (skewness is below .1 sd)."""
    x = RNG.normal(size=(3000, 2))
    y = x @ np.array([0.5, -0.4]) + 2 + 0.6 * RNG.standard_normal(3000)
    draws = family.exact_posterior(RNG, x, y, PRIOR, 20_000)
    columns = {"a": x[:, 0], "b": x[:, 1], "y": y}

    def loss(z):
        return -MODEL.log_prior(z) - jax.vmap(lambda row: MODEL.log_likelihood(z, row))(columns).sum()

    with jax.enable_x64(True):
        centre = jnp.asarray(draws.mean(0))
        curvature, slope = np.asarray(jax.hessian(loss)(centre)), np.asarray(jax.grad(loss)(centre))
    covariance = np.linalg.inv(curvature)
    sds = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(np.cov(draws.T) / np.outer(sds, sds), covariance / np.outer(sds, sds), atol=0.05)
    assert (np.abs(covariance @ slope) < 0.1 * sds).all()


# Products.


@pytest.mark.parametrize("dim", [1, 2, 4])
def test_norms_of_products_are_what_the_statistic_says(dim):
    x, y = RNG.normal(size=(50, dim)), RNG.normal(size=50)
    answers = double(jax.vmap(lambda x, y: family.products(x, y, 0.3)), x, y)
    pairs = len(family.pairs(dim)[1])
    square = (x**2).sum(1)
    np.testing.assert_allclose((answers[:, :pairs] ** 2).sum(1), (square + 1 + y**2) ** 2 - 1)
    np.testing.assert_allclose((answers[:, pairs:] ** 2).sum(1), 0.09 * square**3 * (square + 4))
    names = tuple(f"x{place}" for place in range(dim))
    assert answers.shape[1] == family.Statistic("y", names, 0.3).size
    assert pairs == family.Statistic("y", names).size == (dim + 2) * (dim + 3) // 2 - 1


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_few_public_rows_exceed_the_clip_norm(share):
    x, y = RNG.normal(size=(4000, 3)), RNG.normal(size=4000)
    clip, factor = family.clip_and_factor(x, y, share=share, prob=0.99)
    norms = np.linalg.norm(double(jax.vmap(lambda x, y: family.products(x, y, factor)), x, y), axis=1)
    assert (norms > clip).mean() == pytest.approx(0.01, abs=0.001)
    assert (factor > 0) == (share > 0)
    corner = family.clip_and_factor(np.full((1, 3), 2.0), np.full(1, 2.0), share=share)
    inside = RNG.uniform(-2, 2, (4000, 4))
    norms = double(jax.vmap(lambda row: jnp.linalg.norm(family.products(row[:3], row[3], corner[1]))), inside)
    assert norms.max() <= corner[0]


def test_design_matrices_are_packed_and_unpacked():
    x = np.column_stack([RNG.normal(size=(30, 3)), np.ones(30)])
    matrix = x.T @ x
    entries = double(family.design_entries, matrix)
    np.testing.assert_allclose(double(family.design_matrix, entries, 30.0), matrix)
    (index, weight) = family.pairs(3)
    whole = np.column_stack([x, RNG.normal(size=30)])
    sums = double(jax.vmap(family.products), x[:, :3], whole[:, 4]).sum(0) / weight
    np.testing.assert_allclose(sums, (whole.T @ whole)[index[:, 0], index[:, 1]])
    np.testing.assert_allclose(sums[: len(entries)], entries)


def test_design_covariance_is_the_covariance_of_the_products():
    """An identity for any set of rows, with their own moments."""
    x = RNG.normal(size=(200, 3)) ** 2
    design = np.column_stack([x, np.ones(200)])
    answers = double(jax.vmap(lambda row: family.products(row, jnp.zeros(()), 1.0)), x)
    size = len(family.pairs(3)[1])
    ours = double(family.design_covariance, answers[:, size:].mean(0), design.T @ design / 200)
    entries = design[:, :, None] * design[:, None, :]
    each = np.stack([double(family.design_entries, one) for one in entries])
    np.testing.assert_allclose(ours, np.cov(each.T, bias=True), atol=1e-9)
    public = family.public_design(x)
    np.testing.assert_allclose(public.mean, each.mean(0))
    np.testing.assert_allclose(public.covariance * 199 / 200, ours, atol=1e-9)


def test_residuals_are_uncorrelated_with_the_design_and_have_the_moments_of_the_central_limit():
    """(u, e) of one row given w and σ², from 40 000 rows with skewed covariates. 5 standard errors each: below 1e-4."""
    w, variance, count = np.array([0.5, -0.8, 0.3]), 0.4, 40_000
    x = RNG.exponential(size=(count, 2))
    design = np.column_stack([x, np.ones(count)])
    y = design @ w + np.sqrt(variance) * RNG.standard_normal(count)
    sums = double(jax.vmap(family.products), x, y) / family.pairs(2)[1]
    maps, constant = double(family.residual_maps, w)
    residual = sums @ maps.T + constant
    np.testing.assert_allclose(residual[:, :-1], design * (y - design @ w)[:, None], atol=1e-9)
    np.testing.assert_allclose(residual[:, -1], (y - design @ w) ** 2, atol=1e-9)
    expected = np.zeros((9, 9))
    expected[5:8, 5:8], expected[8, 8] = variance * design.T @ design / count, 2 * variance**2
    parts = np.column_stack([sums[:, :5] - sums[:, :5].mean(0), residual - np.array([0, 0, 0, variance])])
    products = parts[:, :, None] * parts[:, None, :]
    off = np.abs(products.mean(0) - expected)[5:]
    assert (off < 5 * products.std(0)[5:] / np.sqrt(count)).all()


def test_repair_is_idempotent_symmetric_and_leaves_good_matrices_alone():
    good = np.cov(RNG.normal(size=(4, 50)))
    fixed, raised = double(family.repaired, good)
    np.testing.assert_allclose(fixed, good)
    assert raised == 0
    bad = good - 1.2 * np.diag([0.0, 1.0, 0.0, 1.0])
    once, raised = double(family.repaired, bad)
    assert raised == (np.linalg.eigvalsh(bad) < family.FLOOR * np.linalg.eigvalsh(bad)[-1]).sum() > 0
    values = np.linalg.eigvalsh(once)
    assert values[0] >= family.FLOOR * values[-1] * (1 - 1e-9)
    twice, again = double(family.repaired, once)
    np.testing.assert_allclose(twice, once, atol=1e-12)
    assert again == 0


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("y", ["a", "y"]), {}, "outcome='y' is also a covariate"),
        (("y", ["a", "a"]), {}, "has a name twice"),
        (("y", ["a"]), {"rate": -1.0}, r"rate=-1.0 must be positive and finite"),
    ],
)
def test_bad_arguments_are_named(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        family.conjugate_regression(*arguments, **options)


def test_a_share_of_everything_is_refused():
    with pytest.raises(ValueError, match="share=1 must lie in"):
        family.clip_and_factor(np.ones((2, 1)), np.ones(2), share=1)
