"""The DP-SEP paper's two divergences against Gaussian KL divergences, exact and simulated."""

import numpy as np
import pytest

from discreet.posterior.sep_theory import clipping_kl, noise_kl_bound


def gaussian(rng, dim=3, size=4.0):
    root = rng.standard_normal((dim, dim + 3))
    return rng.standard_normal(dim), size * root @ root.T / dim


def divergence(q, p):
    """KL(q ‖ p) of Gaussians by natural parameters."""
    (eta, precision), (other_eta, other) = q, p
    cov = np.linalg.inv(precision)
    gap = np.linalg.solve(other, other_eta) - cov @ eta
    log_det = np.linalg.slogdet(precision)[1] - np.linalg.slogdet(other)[1]
    return 0.5 * (np.trace(other @ cov) + gap @ other @ gap - len(eta) + log_det)


def noised(rng, q, eta_sd, precision_sd, least):
    eta, precision = q
    upper = np.triu(precision_sd * rng.standard_normal(precision.shape))
    moved = precision + upper + np.triu(upper, 1).T
    lift = least - np.linalg.eigvalsh(moved)[0] if precision_sd else 0.0
    return eta + eta_sd * rng.standard_normal(len(eta)), moved + lift * np.eye(len(eta))


@pytest.mark.parametrize("clip_norm", [0.1, 1.0, 3.0, 5.0, 100.0])
def test_what_clipping_costs_is_the_divergence_of_the_clipped(clip_norm):
    for seed in range(5):
        eta, precision = gaussian(np.random.default_rng(seed))
        shorter = (
            eta / max(1, np.linalg.norm(eta) / clip_norm),
            precision / max(1, np.linalg.norm(precision) / clip_norm),
        )
        expected = divergence((eta, precision), shorter)
        assert clipping_kl(eta, precision, clip_norm) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_the_printed_form_is_wrong():
    """With d·c for d/c, as appendix A has it, more than twice the divergence comes out."""
    eta, precision = gaussian(np.random.default_rng(1))
    c = np.linalg.norm(precision) / 1.0
    printed = clipping_kl(eta, precision, 1.0) + 0.5 * len(eta) * (c - 1 / c)
    assert printed > 2 * clipping_kl(eta, precision, 1.0)


@pytest.mark.parametrize("size", [0.0, 0.001, 0.01])
def test_the_bound_holds_where_it_says_anything(size):
    """The mean divergence of 2000 noisy posteriors, plus three standard errors, is below it; false alarm 2·10⁻³."""
    rng = np.random.default_rng(2)
    eta, precision = gaussian(rng)
    least, most = np.linalg.eigvalsh(precision)[0], 4 * size * np.sqrt(3)
    bound = noise_kl_bound(eta, precision, size, size, most, least)
    found = [divergence((eta, precision), noised(rng, (eta, precision), size, size, least)) for _ in range(2000)]
    assert np.mean(found) - 3 * np.std(found) / np.sqrt(2000) <= bound.kl + 1e-12
    assert bound.kl < np.inf
    assert bound.probability > 0.99


def test_it_vanishes_with_the_noise_and_grows_with_it():
    eta, precision = gaussian(np.random.default_rng(3))
    least = np.linalg.eigvalsh(precision)[0]
    bounds = [noise_kl_bound(eta, precision, s, s, 4 * s, least).kl for s in (0.0, 1e-4, 1e-3, 1e-2)]
    assert bounds[0] == pytest.approx(0, abs=1e-12)
    assert (np.diff(bounds) > 0).all()


def test_it_says_nothing_where_h_is_not_positive_and_may_say_it_with_no_probability():
    eta, precision = gaussian(np.random.default_rng(4))
    assert noise_kl_bound(eta, precision, 0.1, 0.1, 5.0, 1e-6).kl == np.inf
    assert noise_kl_bound(eta, precision, 1.0, 1.0, 0.1, 10.0).probability == 0
