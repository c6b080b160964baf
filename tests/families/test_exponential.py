"""The conjugate models against scipy.stats: densities with their Jacobians, prior draws, likelihoods."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from discreet.families.exponential import beta_bernoulli, dirichlet_categorical, exact_beta, gamma_exponential

GAMMA, BETA, DIRICHLET = gamma_exponential(3.0, 2.0), beta_bernoulli(2.0, 5.0), dirichlet_categorical((1.0, 2.0, 4.0))
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
    for x in (0, 1):
        ours = each(lambda z, x=x: BETA.log_likelihood(z, {"x": x}), Z[:, None])
        np.testing.assert_allclose(ours, stats.bernoulli(special.expit(Z)).logpmf(x), rtol=1e-9)
    for x in (0, 1, 2):
        ours = each(lambda z, x=x: DIRICHLET.log_likelihood(z, {"x": x}), PAIRS)
        shares = special.softmax(np.column_stack([PAIRS, np.zeros(5)]), axis=1)
        np.testing.assert_allclose(ours, np.log(shares[:, x]), rtol=1e-12)


@pytest.mark.parametrize(("model", "z"), [(GAMMA, [0.5]), (BETA, [0.5]), (DIRICHLET, [0.5, -1.0])])
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
