"""Gaussian families: coordinates, draws, entropy and Fisher information against formulas written out in NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from discreet.methods.gaussian import NAMES, POSITIVE, Family, antithetic, strictly_lower
from tests.methods.oracles import TRANSFORMS, cholesky, fisher_information

FAMILIES = [Family(name, positive) for name in NAMES for positive in POSITIVE]
SEEDS = st.integers(0, 2**32 - 1)
families = pytest.mark.parametrize("family", FAMILIES, ids="-".join)
positives = pytest.mark.parametrize("positive", list(POSITIVE))


def some_phi(family, seed, dim=3, *lead):
    """φ of unequal, correlated widths from e⁻⁵ to e²."""
    rng = np.random.default_rng(seed)
    phi = rng.normal(size=(*lead, family.size(dim)))
    phi[..., dim : 2 * dim] = rng.uniform(-5, 2, (*lead, dim))
    return phi


# φ and its parts


@families
def test_the_length_of_phi_gives_the_number_of_parameters_back(family):
    """n means, n scales, and n(n − 1)/2 entries below the diagonal in full rank."""
    for dim in range(1, 31):
        entries = dim * (dim - 1) // 2 if family.name == "full-rank" else 0
        assert family.size(dim) == 2 * dim + entries
        assert family.dim(np.zeros(family.size(dim))) == dim
        assert family.dim(np.zeros((2, 5, family.size(dim)))) == dim


@families
@settings(max_examples=50, deadline=None)
@given(pairs=st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-30, 6)), min_size=1, max_size=3))
def test_mean_and_sd_of_a_packed_phi_are_what_was_packed(family, pairs):
    """For sds from 1e-13 to 400: T is undone without loss."""
    mean, sd = np.array(pairs).T
    sd = np.exp(sd)
    with jax.enable_x64(True):
        phi = family.pack(mean, sd)
        back = family.mean(phi), family.sd(phi)
    assert phi.shape == (family.size(len(mean)),)
    np.testing.assert_array_equal(back[0], mean)
    np.testing.assert_allclose(back[1], sd, rtol=1e-12)


@positives
def test_each_transform_undoes_its_inverse(positive):
    forward, inverse = POSITIVE[positive]
    sd = np.geomspace(1e-13, 400, 200)
    with jax.enable_x64(True):
        np.testing.assert_allclose(forward(inverse(jnp.asarray(sd))), sd, rtol=1e-12)
        s = np.linspace(-30, 6, 200)
        np.testing.assert_allclose(inverse(forward(jnp.asarray(s))), s, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(forward(jnp.asarray(s)), TRANSFORMS[positive][0](s), rtol=1e-13)


@positives
def test_the_slope_is_the_derivative_of_the_transform(positive):
    phi = some_phi(Family(positive=positive), 1)
    with jax.enable_x64(True):
        np.testing.assert_allclose(
            Family(positive=positive).slope(jnp.asarray(phi)), TRANSFORMS[positive][1](phi[3:]), rtol=1e-13
        )


@families
def test_parts_can_be_read_along_leading_axes(family):
    phi = some_phi(family, 2, 3, 4, 5)
    eta = np.random.default_rng(3).normal(size=(4, 5, 7, 3))
    with jax.enable_x64(True):
        whole = family.mean(phi), family.sd(phi), family.entropy(phi), family.draws(phi, eta)
        one = (
            family.mean(phi[1, 2]),
            family.sd(phi[1, 2]),
            family.entropy(phi[1, 2]),
            family.draws(phi[1, 2], eta[1, 2]),
        )
    for together, alone in zip(whole, one, strict=True):
        np.testing.assert_allclose(np.asarray(together)[1, 2], alone, rtol=1e-13)


# Draws


@families
@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_draws_are_mean_plus_cholesky_times_eta(family, seed):
    phi, eta = some_phi(family, seed), np.random.default_rng(seed).normal(size=(5, 3))
    with jax.enable_x64(True):
        z = np.asarray(family.draws(phi, eta))
    np.testing.assert_allclose(z, phi[:3] + eta @ cholesky(family, phi).T, rtol=1e-12, atol=1e-12)


@families
def test_sd_is_the_sd_of_draws(family):
    """Over η = ±√n·e_i, which have mean zero and covariance one, there is no sampling error."""
    phi = some_phi(family, 4, 5)
    eta = np.sqrt(5) * np.concatenate([np.eye(5), -np.eye(5)])
    with jax.enable_x64(True):
        z, sd = np.asarray(family.draws(phi, eta)), np.asarray(family.sd(phi))
    np.testing.assert_allclose(z.std(0), sd, rtol=1e-12)
    np.testing.assert_allclose(np.cov(z.T, bias=True), cholesky(family, phi) @ cholesky(family, phi).T, atol=1e-12)


@families
def test_random_draws_have_the_mean_and_covariance_of_q(family):
    """Whitened draws of 20 000: 9 entries of the second moment and 3 means below 5 se. False alarms: 7e-6."""
    phi, eta = some_phi(family, 5), np.random.default_rng(6).normal(size=(20_000, 3))
    with jax.enable_x64(True):
        z = np.asarray(family.draws(phi, eta))
    white = np.linalg.solve(cholesky(family, phi), (z - phi[:3]).T)
    assert (np.abs(white.mean(1)) < 5 / np.sqrt(20_000)).all()
    spread = np.where(np.eye(3), np.sqrt(2), 1) / np.sqrt(20_000)
    assert (np.abs(white @ white.T / 20_000 - np.eye(3)) < 5 * spread).all()


@pytest.mark.parametrize("draws", [1, 2, 7, 10])
def test_antithetic_draws_come_in_pairs(draws, key):
    eta = np.asarray(antithetic(key, draws, 3))
    half = (draws + 1) // 2
    assert eta.shape == (draws, 3)
    np.testing.assert_array_equal(eta[half:], -eta[: draws - half])
    if draws % 2 == 0:
        np.testing.assert_array_equal(eta[:half].sum(0) + eta[half:].sum(0), 0)


def test_antithetic_draws_are_standard_normal():
    """Kolmogorov-Smirnov on the independent half. False alarms: 1e-4."""
    eta = np.asarray(antithetic(jax.random.key(2), 4000, 1))[:2000, 0]
    assert stats.kstest(eta, "norm").pvalue > 1e-4


# Entropy and Fisher information


@families
@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_entropy_is_that_of_the_gaussian_up_to_a_constant(family, seed):
    phi = some_phi(family, seed)
    with jax.enable_x64(True):
        ours = float(family.entropy(phi))
    factor = cholesky(family, phi)
    theirs = 0.5 * np.linalg.slogdet(2 * np.pi * np.e * factor @ factor.T)[1]
    assert ours == pytest.approx(theirs - 1.5 * np.log(2 * np.pi * np.e), abs=1e-6)


@families
def test_the_gradient_of_the_entropy_is_slope_over_sd_and_nothing_else(family):
    phi = some_phi(family, 7)
    with jax.enable_x64(True):
        gradient = np.asarray(jax.grad(family.entropy)(jnp.asarray(phi)))
    transform, slope = TRANSFORMS[family.positive]
    np.testing.assert_allclose(gradient[3:6], slope(phi[3:6]) / transform(phi[3:6]), rtol=1e-12)
    np.testing.assert_array_equal(np.delete(gradient, [3, 4, 5]), 0)


@positives
@settings(max_examples=50, deadline=None)
@given(seed=SEEDS)
def test_the_inverse_fisher_information_inverts_the_hessian_of_the_kl_divergence(positive, seed):
    """The product is the identity: the information of a mean-field Gaussian has no entries off its diagonal."""
    phi = some_phi(Family(positive=positive), seed)
    with jax.enable_x64(True):
        information = np.asarray(fisher_information(positive, phi))
        inverse = np.asarray(Family(positive=positive).inverse_fisher(jnp.asarray(phi)))
    np.testing.assert_allclose(inverse[:, None] * information, np.eye(6), atol=1e-9)


# Full rank holds the mean-field family


@positives
@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_full_rank_with_a_diagonal_cholesky_is_mean_field(positive, seed):
    """Draws, sds, entropy, and the gradient of any loss with respect to means and scales."""
    narrow, wide = Family("mean-field", positive), Family("full-rank", positive)
    rng, phi = np.random.default_rng(seed), some_phi(Family("mean-field", positive), seed)
    longer, eta, weights = np.concatenate([phi, np.zeros(3)]), rng.normal(size=(4, 3)), rng.normal(size=3)
    with jax.enable_x64(True):
        for part in (lambda f, phi: f.draws(phi, eta), Family.sd, Family.entropy):
            np.testing.assert_allclose(part(wide, longer), part(narrow, phi), rtol=1e-13, atol=1e-13)
        ours, theirs = (np.asarray(gradient_of_a_loss(f, p, eta, weights)) for f, p in ((wide, longer), (narrow, phi)))
    np.testing.assert_allclose(ours[:6], theirs, rtol=1e-12, atol=1e-12)


@partial(jax.jit, static_argnums=0)
def gradient_of_a_loss(family, phi, eta, weights):
    """Of one that is neither linear nor separable in z, minus the entropy."""
    return jax.grad(lambda phi: jnp.tanh(family.draws(phi, eta) @ weights).sum() - family.entropy(phi))(phi)


@pytest.mark.parametrize("positive", list(POSITIVE))
def test_the_gradient_below_the_diagonal_is_the_outer_product_with_eta(positive):
    """∂/∂l_ij of loss(z) is Σ_k ∂loss/∂z_ki η_kj."""
    family = Family("full-rank", positive)
    phi, rng = some_phi(family, 8), np.random.default_rng(9)
    eta, weights = rng.normal(size=(4, 3)), rng.normal(size=3)
    with jax.enable_x64(True):
        gradient = np.asarray(gradient_of_a_loss(family, phi, eta, weights))
        z = np.asarray(family.draws(phi, eta))
    slopes = (1 - np.tanh(z @ weights) ** 2)[:, None] * weights
    outer = slopes.T @ eta
    np.testing.assert_allclose(gradient[6:], [outer[1, 0], outer[2, 0], outer[2, 1]], rtol=1e-12)


# The triangle


def scattered(entries, dim):
    """`strictly_lower` entry by entry, differentiable by JAX's own rules."""
    return jnp.zeros((dim, dim)).at[np.tril_indices(dim, -1)].set(entries, unique_indices=True)


@pytest.mark.parametrize("dim", [1, 2, 3, 7, 30])
def test_the_triangle_and_its_derivative_are_those_of_a_plain_scatter(dim):
    """A linear map, so its derivative is its transpose: against JAX's, and as ⟨Ax, B⟩ = ⟨x, Aᵀ B⟩."""
    rng = np.random.default_rng(dim)
    entries, cotangent = rng.normal(size=dim * (dim - 1) // 2), rng.normal(size=(dim, dim))
    with jax.enable_x64(True):
        value, pull = jax.vjp(lambda entries: strictly_lower(entries, dim), entries)
        naive = scattered(entries, dim)
        (transposed,) = jax.linear_transpose(partial(scattered, dim=dim), entries)(cotangent)
        (pulled,) = pull(jnp.asarray(cotangent))
    np.testing.assert_array_equal(value, naive)
    np.testing.assert_array_equal(pulled, transposed)
    np.testing.assert_allclose(
        np.vdot(np.asarray(value), cotangent), np.vdot(entries, np.asarray(pulled)), rtol=1e-12, atol=1e-12
    )


def test_the_triangles_derivative_agrees_with_central_differences():
    """Of a loss with curvature, whose third derivatives are below 10: an error below 2·10⁻¹¹ plus rounding of 10⁻¹⁰."""
    entries = np.random.default_rng(10).normal(size=6)
    weights = np.random.default_rng(11).normal(size=(4, 4))

    def loss(entries):
        return jnp.sum(jnp.sin(strictly_lower(entries, 4)) * weights)

    with jax.enable_x64(True):
        gradient = np.asarray(jax.grad(loss)(jnp.asarray(entries)))
        steps = 1e-6 * np.eye(6)
        differences = [(float(loss(entries + h)) - float(loss(entries - h))) / 2e-6 for h in steps]
    np.testing.assert_allclose(gradient, differences, atol=1e-8)


def test_the_triangle_takes_leading_axes_and_maps():
    """As many matrices as there are vectors, by axes or by vmap, and so are their derivatives."""
    entries = np.random.default_rng(12).normal(size=(2, 5, 6))
    weights = np.random.default_rng(13).normal(size=(2, 5, 4, 4))
    with jax.enable_x64(True):
        together, pull = jax.vjp(lambda entries: strictly_lower(entries, 4), entries)
        one_by_one = jax.vmap(jax.vmap(lambda entries: scattered(entries, 4)))(entries)
        (pulled,) = pull(jnp.asarray(weights))
        mapped = jax.vmap(jax.vmap(jax.grad(lambda e, w: jnp.sum(strictly_lower(e, 4) * w))))(entries, weights)
    np.testing.assert_array_equal(together, one_by_one)
    np.testing.assert_array_equal(pulled, mapped)
