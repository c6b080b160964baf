"""TARP on posteriors whose coverage is known: perfect, prior, overconfident, biased, nothing covered."""

import numpy as np
import pytest
from scipy import stats

from discreet.evaluate import tarp

K, M, D = 500, 200, 2


def normal_world(seed=0, width=1.0, bias=0.0):
    """Truth θ ~ N(0, I), datum N(θ, I), posterior N(datum/2, ½I) with its sd times `width` and its mean moved."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(K, D))
    centre = (truth + rng.normal(size=(K, D))) / 2
    draws = (centre + bias * 0.5**0.5)[:, None] + width * 0.5**0.5 * rng.normal(size=(K, M, D))
    return draws, truth


def score(draws, truth, seed=1):
    return tarp.rmse(tarp.fractions(np.random.default_rng(seed), draws, truth))


def test_shares_of_a_perfect_posterior_are_uniform():
    """Kolmogorov-Smirnov. False alarms: 1e-4."""
    shares = tarp.fractions(np.random.default_rng(1), *normal_world())
    assert shares.shape == (K,)
    assert stats.kstest(shares, "uniform").pvalue > 1e-4


def test_references_are_uniform_within_four_sds_of_the_posterior_mean():
    """Share by share with loops, from the same stream of references."""
    draws, truth = normal_world()
    unit = np.random.default_rng(7).uniform(-4, 4, (K, D))
    shares = tarp.fractions(np.random.default_rng(7), draws, truth)
    for k in range(0, K, 50):
        reference = [draws[k, :, j].mean() + unit[k, j] * draws[k, :, j].std() for j in range(D)]
        nearer = [np.hypot(*(draw - reference)) < np.hypot(*(truth[k] - reference)) for draw in draws[k]]
        assert shares[k] == pytest.approx(np.mean(nearer), abs=1e-12)


def test_a_perfect_posterior_is_inside_the_null_band_at_the_stated_rate():
    """95 of 100 worlds are inside, give or take: a binomial count. False alarms: 1e-5."""
    bound = tarp.null_band(K)[1]
    inside = sum(score(*normal_world(seed), seed) < bound for seed in range(2, 102))
    assert stats.binomtest(inside, 100, 0.95).pvalue > 1e-5


def test_the_prior_is_covered_perfectly_too():
    """That is why sharpness stands beside coverage. False alarms: 5e-3 (the 99.5 % band), seed fixed."""
    rng = np.random.default_rng(3)
    assert score(rng.normal(size=(K, M, D)), rng.normal(size=(K, D))) < tarp.null_band(K, 0.995)[1]


@pytest.mark.parametrize("wrong", [{"width": 0.5}, {"width": 2.0}, {"bias": 1.0}])
def test_overconfident_timid_and_biased_posteriors_are_outside(wrong):
    """Half or twice the sd, or a mean one sd off: beyond the null's 99.9 %."""
    assert score(*normal_world(**wrong)) > tarp.null_band(K, 0.999)[1]


def test_zero_coverage_scores_the_worst():
    draws, truth = normal_world()
    far = score(draws, truth + 1e6)
    assert far == pytest.approx(0.584, abs=5e-4)
    assert far == pytest.approx(np.sqrt(np.mean(tarp.LEVELS**2)))


def test_shares_do_not_depend_on_units():
    """Location and one common scale of the parameters leave every share alone."""
    draws, truth = normal_world()
    before = tarp.fractions(np.random.default_rng(4), draws, truth)
    after = tarp.fractions(np.random.default_rng(4), 8 * draws + 32, 8 * truth + 32)
    np.testing.assert_allclose(before, after, atol=1.5 / M)  # rounding may swap one draw


def test_coverage_counts_shares_below_each_level():
    shares = np.array([0.0, 0.06, 0.5, 0.9995])
    curve = dict(zip(tarp.LEVELS.round(3).tolist(), tarp.coverage(shares), strict=True))
    assert (curve[0.001], curve[0.1], curve[0.5], curve[0.55], curve[0.999]) == (0.25, 0.5, 0.5, 0.75, 0.75)
    assert (np.diff(tarp.coverage(np.random.default_rng(5).random(50))) >= 0).all()


def test_mean_rmse_is_the_mean_over_fresh_references():
    draws, truth = normal_world()
    rng = np.random.default_rng(6)
    by_hand = np.mean([tarp.rmse(tarp.fractions(rng, draws, truth)) for _ in range(3)])
    assert tarp.mean_rmse(np.random.default_rng(6), draws, truth, 3) == by_hand


def test_null_band_is_the_law_of_uniform_shares_and_shrinks_like_one_over_the_root_of_k():
    mean, bound = tarp.null_band(500)
    assert mean == pytest.approx(0.0165, abs=5e-4)
    assert mean < bound < 0.031
    wider = tarp.null_band(125, simulations=1000)
    assert wider[0] / mean == pytest.approx(2, rel=0.1)
