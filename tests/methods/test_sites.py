"""Sites against brute force: tilted moments on a fine grid, by enumeration, and where the answer is known."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from discreet.families.gaussian_mixture import Mixture
from discreet.families.glm import glm
from discreet.methods import sites
from discreet.methods.sites import SiteError, cavity, check, gaussian_prior, linear, mixture, tilted
from discreet.model import Linear
from discreet.schema import Categorical, Numeric, Schema

SCHEMA = Schema((Numeric("age", 20, 60), Categorical("sex", ("f", "m")), Categorical("ill", ("no", "yes"))))
MODEL = glm("logistic", "ill", ["age", "sex"], SCHEMA)
LIKELIHOODS = {
    "logistic": (lambda u: -jax.nn.softplus(-u), lambda u: -np.logaddexp(0, -u)),
    "probit": (jax.scipy.stats.norm.logcdf, special.log_ndtr),
    "poisson": (lambda u: 3 * u - jnp.exp(u), lambda u: 3 * u - np.exp(u)),
    "gaussian": (lambda u: -0.5 * ((u - 2) / 0.1) ** 2, lambda u: -0.5 * ((u - 2) / 0.1) ** 2),
}


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def on_a_grid(log_likelihood, mean, variance):
    """Over what lies within e⁻⁶⁰ of the peak."""

    def log_density(u):
        return log_likelihood(u) - (u - mean) ** 2 / (2 * variance)

    coarse = mean + np.sqrt(variance) * np.linspace(-80, 80, 20_001)
    high = coarse[log_density(coarse) > log_density(coarse).max() - 60]
    grid = np.linspace(high[0], high[-1], 200_001)
    height = log_density(grid)
    weight = np.exp(height - height.max())
    weight /= weight.sum()
    first = weight @ grid
    return first, weight @ (grid - first) ** 2


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("variance", [0.01, 0.3, 2.0])
@pytest.mark.parametrize("mean", [-4.0, 0.3, 2.5])
def test_tilted_moments_are_those_of_a_fine_grid(name, variance, mean):
    ours, reference = LIKELIHOODS[name]
    first, second = on_a_grid(reference, mean, variance)
    shift, precision = map(float, tilted(ours, jnp.array(mean), jnp.array(variance)))
    found = 1 / (1 / variance + precision)
    assert found == pytest.approx(second, rel=1e-4)
    assert found * (mean / variance + shift) == pytest.approx(first, abs=1e-4 * np.sqrt(second))


def test_a_probit_site_is_the_textbook_s():
    """Moments of N(μ, s)·Φ(u): μ + s·r/√(1 + s) and s − s²r(h + r)/(1 + s), h = μ/√(1 + s), r = N(h)/Φ(h)."""
    mean, variance = -0.7, 1.3
    h = mean / np.sqrt(1 + variance)
    r = stats.norm.pdf(h) / stats.norm.cdf(h)
    first = mean + variance * r / np.sqrt(1 + variance)
    second = variance - variance**2 * r * (h + r) / (1 + variance)
    shift, precision = tilted(LIKELIHOODS["probit"][0], jnp.array(mean), jnp.array(variance))
    assert 1 / (1 / variance + precision) == pytest.approx(second, rel=1e-8)
    assert second * (mean / variance + shift) == pytest.approx(first, rel=1e-8)


@pytest.mark.parametrize("ill", [0, 1])
def test_the_site_of_a_probit_regression_is_the_textbook_s(ill):
    site = linear(glm("probit", "ill", ["age", "sex"], SCHEMA))
    mean, cov, x = np.array([0.3, -0.5, 0.8]), np.diag([0.2, 0.4, 0.3]), np.array([1.0, 0.75, 1.0])
    theta = site.shape.of_moments(mean[None], cov[None])
    found = site.of_row(cavity(site.shape, theta), {"age": 55.0, "sex": 1, "ill": ill})
    sign, u, s = 2 * ill - 1, x @ mean, x @ cov @ x
    h = sign * u / np.sqrt(1 + s)
    r = stats.norm.pdf(h) / stats.norm.cdf(h)
    first, second = u + sign * s * r / np.sqrt(1 + s), s - s**2 * r * (h + r) / (1 + s)
    precision = 1 / second - 1 / s
    expected = [(first / second - u / s) * x, precision * np.outer(x, x)[np.triu_indices(3)]]
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-6)


def test_a_linear_site_gives_the_tilted_moments_of_all_parameters():
    """By importance weights on a million draws from the cavity; five standard errors, false alarm 10⁻⁵."""
    site, rng = linear(MODEL), np.random.default_rng(1)
    root = 0.5 * rng.standard_normal((3, 3))
    mean, cov = np.array([0.3, -0.5, 0.8]), root @ root.T + 0.1 * np.eye(3)
    theta = site.shape.of_moments(mean[None], cov[None])
    row = {"age": jnp.array(55.0), "sex": jnp.array(1), "ill": jnp.array(1)}
    found, spread = site.shape.moments(theta + site.of_row(cavity(site.shape, theta), row))
    z = rng.multivariate_normal(mean, cov, 1_000_000)
    weight = np.exp(np.asarray(jax.vmap(lambda one: MODEL.log_likelihood(one, row))(z)))
    weight /= weight.sum()
    expected = weight @ z
    error = np.sqrt((weight**2) @ (z - expected) ** 2)
    assert (np.abs(found[0] - expected) < 5 * error).all()
    centred = z - expected
    np.testing.assert_allclose(spread[0], (centred * weight[:, None]).T @ centred, rtol=0.02, atol=5e-4)


def test_a_mixture_site_gives_the_tilted_moments_of_every_component():
    """In one dimension and two components, by a grid over both means."""
    site = mixture(Mixture(("x",), np.array([0.3, 0.7]), 0.5, np.array([[-1.0], [1.0]]), 1.5))
    theta = site.shape.of_moments(np.array([[-0.8], [0.9]]), np.array([[[0.4]], [[0.6]]]))
    found, spread = site.shape.moments(theta + site.of_row(cavity(site.shape, theta), {"x": jnp.array(0.2)}))
    first, second = np.linspace(-6, 5, 1500)[:, None], np.linspace(-6, 7, 1500)[None]
    density = stats.norm.pdf(first, -0.8, np.sqrt(0.4)) * stats.norm.pdf(second, 0.9, np.sqrt(0.6))
    density = density * (0.3 * stats.norm.pdf(0.2, first, 0.5) + 0.7 * stats.norm.pdf(0.2, second, 0.5))
    density /= density.sum()
    for place, grid in enumerate((first, second)):
        mean = (density * grid).sum()
        assert found[place, 0] == pytest.approx(mean, abs=1e-6)
        assert spread[place, 0, 0] == pytest.approx((density * (grid - mean) ** 2).sum(), rel=1e-5)


def test_the_prior_of_a_glm_is_gaussian():
    theta = gaussian_prior(MODEL)
    mean, cov = linear(MODEL).shape.moments(theta)
    np.testing.assert_allclose(mean[0], np.zeros(3), atol=1e-12)
    np.testing.assert_allclose(cov[0], 4 * np.eye(3))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"log_likelihood": lambda z, row: -(z**2).sum()}, "linear predictor"),
        ({"dim": 4}, "1 of 4 parameters are not coefficients"),
        ({"log_prior": lambda z: -jnp.abs(z).sum()}, "not Gaussian"),
        ({"log_prior": lambda z: 0.0 * z.sum()}, "not positive definite"),
    ],
)
def test_models_without_sites_are_refused(changes, problem):
    with pytest.raises(SiteError, match=problem):
        linear(replace(MODEL, **changes))


def test_what_is_no_mixture_is_refused():
    good = Mixture(("x",), np.array([0.5, 0.5]), 1.0, np.zeros((2, 1)), 1.0)
    wrong = {"mean": np.zeros((2, 3)), "weights": np.array([0.5, 0.6]), "sd": -1.0, "prior_sd": np.inf}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=name):
            mixture(good._replace(**{name: value}))


def test_a_site_without_moments_is_named_before_rows_are_asked():
    """exp(u²) grows faster than any Gaussian falls."""
    explosive = Linear(MODEL.log_likelihood.features, lambda u, rest, row: u**2 + jnp.where(row["ill"] > 0, u**4, 0))
    site = linear(replace(MODEL, log_likelihood=explosive))
    with pytest.raises(SiteError, match=r"moments of .* rows do not exist"):
        check(site, SCHEMA)
    check(linear(MODEL), SCHEMA)


def test_a_cavity_that_is_none_is_named():
    site = linear(MODEL)
    with pytest.raises(SiteError, match="not positive definite"):
        check(site, SCHEMA, -site.prior)
    with pytest.raises(SiteError, match="columns"):
        check(site, SCHEMA.select(["age", "ill"]))


def test_the_measured_accuracy_holds():
    """What the docstring of `tilted` says, over means from −8 to 8."""
    ours, reference = LIKELIHOODS["logistic"]
    for variance, limit in ((1.0, 1e-9), (5.0, 2e-5), (20.0, 0.02)):
        for mean in np.linspace(-8, 8, 9):
            _, second = on_a_grid(reference, mean, variance)
            precision = float(tilted(ours, jnp.array(mean), jnp.array(variance))[1])
            assert 1 / (1 / variance + precision) == pytest.approx(second, rel=2 * limit), (variance, mean)
    assert sites.NODES == 20
