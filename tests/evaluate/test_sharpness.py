"""Sharpness tells a prior from a posterior where coverage cannot."""

import numpy as np
import pytest
from scipy import stats

from discreet.evaluate import sharpness


@pytest.fixture(scope="module")
def world():
    """Truths from N(0, 1) in two coordinates, data with noise sd ½ and 1, exact posterior and prior draws."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(300, 2))
    noise_sd = np.array([0.5, 1.0])
    weight = 1 / (1 + noise_sd**2)
    centre = weight * (truth + noise_sd * rng.normal(size=(300, 2)))
    sd = np.sqrt(1 - weight)
    draws = centre[:, None] + sd * rng.normal(size=(300, 2000, 2))
    return truth, draws, rng.normal(size=(300, 2000, 2)), sd


def test_sd_ratio_is_the_ratio_of_the_known_sds(world):
    """Prior sd 1 over posterior sd, per coordinate. An sd of 2000 draws is off by 1.6 %, the mean of 300 by .1 %."""
    _, draws, prior, sd = world
    np.testing.assert_allclose(sharpness.sd_ratio(prior, draws), 1 / sd, rtol=0.01)
    np.testing.assert_allclose(sharpness.sd_ratio(draws, draws), 1)


def test_sd_ratio_scales_with_the_draws_and_ignores_their_place(world):
    _, draws, prior, _ = world
    before = sharpness.sd_ratio(draws, prior)
    np.testing.assert_allclose(sharpness.sd_ratio(3 * draws + 7, prior), 3 * before)


def test_log_score_is_the_mean_normal_log_density(world):
    truth, draws, *_ = world
    expected = stats.norm(draws.mean(1), draws.std(1)).logpdf(truth).mean()
    assert sharpness.normal_log_score(draws, truth) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("change", [lambda x: x + 0.5, lambda x: 0.5 * x, lambda x: 2 * x])
def test_the_exact_posterior_scores_better_than_a_moved_or_rescaled_one(world, change):
    """A proper score. The expected loss is above .1 here, its sd over 600 truths about .03."""
    truth, draws, *_ = world
    centre = draws.mean(1, keepdims=True)
    wrong = centre + change(draws - centre)
    assert sharpness.normal_log_score(wrong, truth) < sharpness.normal_log_score(draws, truth)


def test_the_posterior_scores_better_than_the_prior(world):
    """The expected gain is the mutual information: ½·log(1 + 1/noise²), averaged over the coordinates."""
    truth, draws, prior, sd = world
    gain = sharpness.normal_log_score(draws, truth) - sharpness.normal_log_score(prior, truth)
    assert gain == pytest.approx(-np.log(sd).mean(), abs=0.15)
