"""The conjugate models against scipy.stats: densities with their Jacobians, prior draws, likelihoods."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from discreet.families.exponential import (
    beta_bernoulli,
    conjugate_beta,
    conjugate_dirichlet,
    conjugate_gamma,
    dirichlet_categorical,
    exact_beta,
    exact_dirichlet,
    exact_gamma,
    gamma_exponential,
)

GAMMA, BETA, DIRICHLET = gamma_exponential(3.0, 2.0), beta_bernoulli(2.0, 5.0), dirichlet_categorical((1.0, 2.0, 4.0))
LOG_GAMMA = gamma_exponential(3.0, 2.0, link="log")
Z = np.array([-3.0, -0.4, 0.0, 1.7, 5.0])
PAIRS = np.stack([Z, Z[::-1] / 2], 1)


def each(function, *arguments):
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, jax.vmap(function)(*map(jnp.asarray, arguments)))


def prior_draws(model, count=2000):
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(7), count)
        z = jax.jit(jax.vmap(model.sample_prior))(keys)
        return np.asarray(jax.vmap(model.constrain)(z)["theta"])


def softmax_density(z):
    """Dirichlet density of softmax(z, 0) times the determinant of a numerical Jacobian."""
    theta = lambda z: special.softmax(np.append(z, 0.0))  # noqa: E731
    jacobian = np.stack([(theta(z + h) - theta(z - h))[:2] / 2e-5 for h in 1e-5 * np.eye(2)], 1)
    return stats.dirichlet.logpdf(theta(z), [1.0, 2.0, 4.0]) + np.log(abs(np.linalg.det(jacobian)))


ORACLES = {
    "gamma": (
        GAMMA,
        Z[:, None],
        stats.gamma(3.0, scale=1 / 2).logpdf(np.logaddexp(0, Z)) + np.log(special.expit(Z)),
    ),
    "gamma, log link": (LOG_GAMMA, Z[:, None], stats.gamma(3.0, scale=1 / 2).logpdf(np.exp(Z)) + Z),
    "beta": (
        BETA,
        Z[:, None],
        stats.beta(2.0, 5.0).logpdf(special.expit(Z)) + np.log(special.expit(Z) * special.expit(-Z)),
    ),
    "dirichlet": (DIRICHLET, PAIRS, np.array([softmax_density(z) for z in PAIRS])),
}


@pytest.mark.parametrize("name", ORACLES)
def test_log_prior_is_the_prior_density_with_its_jacobian_up_to_a_constant(name):
    model, z, expected = ORACLES[name]
    ours = each(model.log_prior, z)
    np.testing.assert_allclose(ours - ours[0], expected - expected[0], atol=1e-7)


@pytest.mark.parametrize(
    ("model", "law"),
    [
        (GAMMA, stats.gamma(3.0, scale=1 / 2)),
        (LOG_GAMMA, stats.gamma(3.0, scale=1 / 2)),
        (BETA, stats.beta(2.0, 5.0)),
        (DIRICHLET, [stats.beta(1.0, 6.0), stats.beta(2.0, 5.0), stats.beta(4.0, 3.0)]),
    ],
)
def test_prior_draws_follow_the_prior(model, law):
    """Kolmogorov-Smirnov on 2000 draws of each entry. False alarms: 1e-4 an entry."""
    theta = prior_draws(model)
    entries, laws = (theta.T, law) if theta.ndim == 2 else ([theta], [law])
    for entry, one in zip(entries, laws, strict=True):
        assert stats.kstest(entry, one.cdf).pvalue > 1e-4


def test_likelihoods_are_those_of_scipy():
    theta = np.logaddexp(0, Z)
    for x in (0.0, 0.3, 4.0):
        ours = each(lambda z, x=x: GAMMA.log_likelihood(z, {"x": x}), Z[:, None])
        np.testing.assert_allclose(ours, stats.expon(scale=1 / theta).logpdf(x), rtol=1e-12)
        ours = each(lambda z, x=x: LOG_GAMMA.log_likelihood(z, {"x": x}), Z[:, None])
        np.testing.assert_allclose(ours, stats.expon(scale=np.exp(-Z)).logpdf(x), rtol=1e-12)
    for x in (0, 1):
        ours = each(lambda z, x=x: BETA.log_likelihood(z, {"x": x}), Z[:, None])
        np.testing.assert_allclose(ours, stats.bernoulli(special.expit(Z)).logpmf(x), rtol=1e-9)
    for x in (0, 1, 2):
        ours = each(lambda z, x=x: DIRICHLET.log_likelihood(z, {"x": x}), PAIRS)
        shares = special.softmax(np.column_stack([PAIRS, np.zeros(5)]), axis=1)
        np.testing.assert_allclose(ours, np.log(shares[:, x]), rtol=1e-12)


@pytest.mark.parametrize(("model", "z"), [(GAMMA, [0.5]), (LOG_GAMMA, [0.5]), (BETA, [0.5]), (DIRICHLET, [0.5, -1.0])])
def test_simulated_rows_follow_the_likelihood(model, z):
    """Their mean score is zero: E ∇ log p(x | z) = 0 at the truth. False alarms: 1e-5 a coordinate."""

    def score(key):
        at = jnp.asarray(z)
        return jax.grad(model.log_likelihood)(at, model.simulate(key, at, {}))

    with jax.enable_x64(True):
        scores = np.asarray(jax.jit(jax.vmap(score))(jax.random.split(jax.random.key(8), 4000)))
    assert (scores.std(0) > 0).all()
    assert (np.abs(scores.mean(0)) < stats.norm.isf(5e-6) * scores.std(0) / np.sqrt(4000)).all()


def test_mean_is_the_expected_outcome():
    np.testing.assert_allclose(each(lambda z: GAMMA.mean(z, {}), Z[:, None]), 1 / np.logaddexp(0, Z), rtol=1e-12)
    np.testing.assert_allclose(each(lambda z: BETA.mean(z, {}), Z[:, None]), special.expit(Z), rtol=1e-12)


def test_models_read_the_column_they_are_told():
    model = beta_bernoulli(1.0, 1.0, column="ill")
    assert (model.columns, model.outcome) == (("ill",), ("ill",))
    assert model.log_likelihood(jnp.zeros(1), {"ill": 1}) == pytest.approx(-np.log(2), rel=1e-6)


def test_exact_beta_has_the_moments_of_a_logit_beta():
    """logit θ has mean ψ(a) − ψ(b) and variance ψ′(a) + ψ′(b). False alarms: 1e-5 a mean, 1e-5 a variance."""
    ones = np.array([[3, 40], [60, 100]])
    draws = exact_beta(np.random.default_rng(9), 10.0, 12.0, ones, 100, 20_000)
    assert draws.shape == (2, 2, 20_000)
    a, b = 10 + ones, 12 + 100 - ones
    variance = special.polygamma(1, a) + special.polygamma(1, b)
    fourth = special.polygamma(3, a) + special.polygamma(3, b) + 2 * variance**2
    limit = stats.norm.isf(5e-6) / np.sqrt(20_000)
    assert (np.abs(draws.mean(-1) - special.digamma(a) + special.digamma(b)) < limit * np.sqrt(variance)).all()
    assert (np.abs(draws.var(-1) - variance) < limit * np.sqrt(fourth)).all()


def test_links_are_named_in_the_description_and_unknown_ones_refused():
    assert (GAMMA.description["link"], LOG_GAMMA.description["link"]) == ("softplus", "log")
    with pytest.raises(ValueError, match="link='exp' must be one of softplus, log"):
        gamma_exponential(3.0, 2.0, link="exp")


# The conjugate sides.

SIDES = {
    "gamma": (conjugate_gamma(3.0, 2.0, bound=1.5), GAMMA, [0.5]),
    "gamma, much clamped": (conjugate_gamma(3.0, 2.0, bound=0.2, link="log"), LOG_GAMMA, [0.3]),
    "beta": (conjugate_beta(2.0, 5.0), BETA, [-0.7]),
    "dirichlet": (conjugate_dirichlet((1.0, 2.0, 4.0)), DIRICHLET, [0.5, -1.0]),
}


def simulated_statistics(side, model, z, count=40_000):
    """(sufficient, released) statistics of simulated rows, side by side."""

    def one(key):
        row = model.simulate(key, jnp.asarray(z), {})
        released = side.statistic(row)
        sufficient = jnp.reshape(row["x"], (1,)) if "gamma" in model.description["family"] else released
        return jnp.concatenate([sufficient, released])

    with jax.enable_x64(True):
        return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(10), count)))


@pytest.mark.parametrize("name", SIDES)
def test_row_moments_are_those_of_simulated_rows(name):
    """Each mean and each mean product within 5 standard errors: false alarms below 3e-5 a family."""
    side, model, z = SIDES[name]
    with jax.enable_x64(True):
        row = side.moments(jnp.asarray(z))
        mean = np.concatenate([row.mean, row.released_mean])
        root = np.concatenate([row.root, row.released_root])
    seen = simulated_statistics(side, model, z)
    products = (seen - mean)[:, :, None] * (seen - mean)[:, None, :]
    error = 5 / np.sqrt(len(seen))
    assert (np.abs(seen.mean(0) - mean) <= error * seen.std(0)).all()
    assert (np.abs(products.mean(0) - root @ root.T) <= error * products.std(0) + 1e-12).all()


@pytest.mark.parametrize("name", SIDES)
def test_no_row_answers_more_than_the_bound(name):
    side, model, z = SIDES[name]
    released = simulated_statistics(side, model, z)[:, -side.size :]
    assert np.abs(released).sum(1).max() <= side.bound
    assert np.abs(released).sum(1).max() > 0.9 * side.bound


@pytest.mark.parametrize(
    ("side", "total", "exact"),
    [
        (conjugate_gamma(3.0, 2.0, 1.0), [30.0], lambda rng, n: exact_gamma(rng, 3.0, 2.0, 30.0, 50, n)[:, None]),
        (conjugate_beta(2.0, 5.0), [20.0], lambda rng, n: exact_beta(rng, 2.0, 5.0, 20, 50, n)[:, None]),
        (
            conjugate_dirichlet((1.0, 2.0, 4.0)),
            [10.0, 0.0, 40.0],
            lambda rng, n: exact_dirichlet(rng, (1.0, 2.0, 4.0), [10, 0, 40], n),
        ),
    ],
)
def test_draws_given_the_sum_are_the_exact_posterior(side, total, exact):
    """Two-sample Kolmogorov-Smirnov on 4000 draws of each entry. False alarms: 1e-4 an entry."""
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(11), 4000)
        draws = np.asarray(jax.jit(jax.vmap(lambda key: side.draw(key, jnp.asarray(total), 50.0)))(keys))
    reference = exact(np.random.default_rng(11), 4000)
    assert draws.shape == reference.shape
    for ours, theirs in zip(draws.T, reference.T, strict=True):
        assert stats.ks_2samp(ours, theirs).pvalue > 1e-4


def test_exact_gamma_and_dirichlet_have_the_moments_of_log_gammas():
    """log Gamma(k) has mean ψ(k) and variance ψ′(k). Means within 5 standard errors: false alarms below 1e-5."""
    rng, total = np.random.default_rng(12), np.array([[30.0, 300.0]])
    draws = exact_gamma(rng, 3.0, 2.0, total, 50, 20_000, link="log")
    assert draws.shape == (1, 2, 20_000)
    error = 5 * np.sqrt(special.polygamma(1, 53) / 20_000)
    np.testing.assert_allclose(draws.mean(-1), special.digamma(53) - np.log(2 + total), atol=error)
    plus = exact_gamma(np.random.default_rng(1), 3.0, 2.0, total, 50, 10)
    log = exact_gamma(np.random.default_rng(1), 3.0, 2.0, total, 50, 10, link="log")
    np.testing.assert_allclose(np.logaddexp(0, plus), np.exp(log))
    counts = np.array([[3, 40, 7], [0, 2, 48]])
    draws = exact_dirichlet(rng, (1.0, 2.0, 4.0), counts, 20_000)
    assert draws.shape == (2, 20_000, 2)
    shapes = counts + np.array([1.0, 2.0, 4.0])
    expected = special.digamma(shapes[:, :2]) - special.digamma(shapes[:, 2:])
    error = 5 * np.sqrt((special.polygamma(1, shapes[:, :2]) + special.polygamma(1, shapes[:, 2:])) / 20_000)
    assert (np.abs(draws.mean(1) - expected) < error).all()


@pytest.mark.parametrize("bound", [0.0, -1.0, np.inf, np.nan])
def test_a_bound_that_bounds_nothing_is_refused(bound):
    with pytest.raises(ValueError, match=f"bound={bound} must be positive and finite"):
        conjugate_gamma(3.0, 2.0, bound)
