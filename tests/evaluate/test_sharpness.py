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


def test_log_scores_are_per_data_set_and_coordinate(world):
    truth, draws, *_ = world
    found = sharpness.log_scores(draws, truth)
    np.testing.assert_allclose(found, stats.norm(draws.mean(1), draws.std(1)).logpdf(truth), rtol=1e-12)
    assert found.mean() == sharpness.normal_log_score(draws, truth)


def test_moments_are_float64_whatever_the_draws(world):
    _, draws, *_ = world
    single = (draws + 1000).astype(np.float32)
    mean, sd = sharpness.moments(single)
    np.testing.assert_allclose(mean, single.astype(np.float64).mean(1), rtol=1e-12)
    np.testing.assert_allclose(sd, single.astype(np.float64).std(1), rtol=1e-9)


@pytest.mark.parametrize("gap", [-3.0, -0.5, 0.0, 1.0])
@pytest.mark.parametrize("sd", [0.3, 2.0])
def test_the_energy_score_of_a_normal_is_its_crps(gap, sd):
    """σ(z(2Φ(z) − 1) + 2φ(z) − 1/√π). 200 sets of 4000 draws; 5 standard errors of their mean: 8 times 6e-7."""
    rng = np.random.default_rng(1)
    truth = np.full((200, 1), 5 + gap * sd)
    found = sharpness.energy_scores(rng, 5 + sd * rng.normal(size=(200, 4000, 1)), truth)
    crps = sd * (gap * (2 * stats.norm.cdf(gap) - 1) + 2 * stats.norm.pdf(gap) - 1 / np.sqrt(np.pi))
    assert found.shape == (200,)
    assert abs(found.mean() - crps) < 5 * found.std() / np.sqrt(200)
    assert found.std() < 0.02 * sd


def test_the_energy_score_is_unbiased_over_pairs_of_distinct_draws():
    """3 draws: all 6 circles are equally likely, and the mean over them is that of all pairs. 5 standard errors."""
    rng = np.random.default_rng(2)
    three, theta = np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]), np.array([0.0, 2.0])
    pairs = [np.linalg.norm(three[i] - three[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
    exact = np.linalg.norm(three - theta, axis=1).mean() - np.mean(pairs) / 2
    assert sharpness.energy_score(rng, three[None], theta[None]) == pytest.approx(exact)
    four = np.vstack([three, [[-7.0, 2.0]]])
    pairs = [np.linalg.norm(four[i] - four[j]) for i in range(4) for j in range(i)]
    exact = np.linalg.norm(four - theta, axis=1).mean() - np.mean(pairs) / 2
    found = sharpness.energy_scores(rng, np.repeat(four[None], 2000, 0), np.repeat(theta[None], 2000, 0))
    assert found.std() > 0
    assert abs(found.mean() - exact) < 5 * found.std() / np.sqrt(2000)


@pytest.mark.parametrize("change", [lambda x: x + 0.5, lambda x: 0.4 * x, lambda x: 2.5 * x])
def test_the_energy_score_is_proper_jointly(world, change):
    """Moved, too narrow, too wide: worse by more than 4 standard errors of the difference, data set by data set."""
    truth, draws, *_ = world
    centre = draws.mean(1, keepdims=True)
    exact, wrong = (
        sharpness.energy_scores(np.random.default_rng(3), z, truth) for z in (draws, centre + change(draws - centre))
    )
    assert (wrong - exact).mean() > 4 * (wrong - exact).std() / np.sqrt(len(truth))


def test_the_energy_score_sees_a_correlation_that_marginal_scores_do_not():
    """Truths with correlation .95; draws with it and without. Marginally the two posteriors are the same law."""
    rng, root = np.random.default_rng(4), np.linalg.cholesky([[1, 0.95], [0.95, 1]])
    truth, normal = rng.normal(size=(2000, 2)) @ root.T, rng.normal(size=(2000, 300, 2))
    exact, wrong = (sharpness.energy_scores(np.random.default_rng(5), z, truth) for z in (normal @ root.T, normal))
    assert (wrong - exact).mean() > 4 * (wrong - exact).std() / np.sqrt(2000)
    scores = [sharpness.normal_log_score(z, truth) for z in (normal @ root.T, normal)]
    assert scores[0] == pytest.approx(scores[1], abs=0.02)


def test_scores_move_with_the_units_as_they_should(world):
    truth, draws, *_ = world
    energy = sharpness.energy_score(np.random.default_rng(6), draws, truth)
    moved = sharpness.energy_score(np.random.default_rng(6), 3 * draws + 7, 3 * truth + 7)
    assert moved == pytest.approx(3 * energy)
    log = sharpness.normal_log_score(draws, truth) - sharpness.normal_log_score(3 * draws + 7, 3 * truth + 7)
    assert log == pytest.approx(np.log(3))


def test_what_has_no_score_is_refused(world):
    truth, draws, *_ = world
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"data sets \[0, 1, 2, 3, 4\] have draws without spread"):
        sharpness.log_scores(np.ones((300, 5, 2)), truth)
    with pytest.raises(ValueError, match="two draws or more"):
        sharpness.energy_score(rng, draws[:, :1], truth)
    with pytest.raises(ValueError, match=r"truth of shape \(2, 300\)"):
        sharpness.energy_score(rng, draws, truth.T)
    with pytest.raises(ValueError, match=r"data sets \[1\] \(1 in all\)"):
        sharpness.log_scores(np.where(np.arange(300)[:, None, None] == 1, np.nan, draws), truth)
