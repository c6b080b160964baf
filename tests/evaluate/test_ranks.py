"""Ranks of truths among draws: uniform under a perfect posterior, in any number of bins, and not under a wrong one."""

import numpy as np
import pytest
from scipy import stats

from discreet.evaluate.ranks import expected, histogram, ranks, uniformity

K, M = 1000, 99


def normal_world(seed=0, width=1.0, bias=0.0, draws=M):
    """Truth N(0, 1), datum N(truth, 1); the first coordinate's posterior is exact, the second's is changed."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(K, 2))
    centre = (truth + rng.normal(size=(K, 2))) / 2
    sd = np.sqrt(0.5) * np.array([1, width])
    return (centre + sd * [0, bias])[:, None] + sd * rng.normal(size=(K, draws, 2)), truth


def test_a_rank_counts_the_draws_below_the_truth():
    draws, truth = normal_world()
    found = ranks(draws, truth)
    assert found.shape == (K, 2)
    for k, j in ((0, 0), (7, 1), (K - 1, 0)):
        assert found[k, j] == sum(z < truth[k, j] for z in draws[k, :, j])
    assert not ranks(np.repeat(truth[:, None], 3, 1), truth).any()  # a draw at the truth is not below it


@pytest.mark.parametrize(("draws", "bins"), [(99, 20), (99, 7), (10, 11), (1000, 64), (3, 3)])
def test_bins_share_the_ranks_out_in_order_and_as_evenly_as_can_be(draws, bins):
    all_ranks = np.arange(draws + 1)[:, None]
    counts = histogram(all_ranks, draws, bins)
    assert counts.sum() == draws + 1
    assert counts.max() - counts.min() == (1 if (draws + 1) % bins else 0)
    np.testing.assert_array_equal(counts[:, 0], expected(draws + 1, draws, bins))
    np.testing.assert_array_equal(histogram(all_ranks[: counts[0, 0]], draws, bins)[0], counts[0])


def test_histograms_are_per_coordinate():
    found = ranks(*normal_world(bias=3.0))
    both = histogram(found, M)
    assert both.shape == (20, 2)
    np.testing.assert_array_equal(both[:, [1]], histogram(found[:, [1]], M))
    assert (both.sum(0) == K).all()


@pytest.mark.parametrize("bins", [20, 7])
def test_p_values_are_those_of_pearson_s_test(bins):
    found = ranks(*normal_world(width=1.1))
    shares = np.histogram(np.arange(M + 1), np.ceil(np.arange(bins + 1) * (M + 1) / bins) - 0.5)[0] / (M + 1)
    by_scipy = [stats.chisquare(counts, K * shares).pvalue for counts in histogram(found, M, bins).T]
    np.testing.assert_allclose(uniformity(found, M, bins), by_scipy, rtol=1e-9)


def test_p_values_are_uniform_under_a_perfect_posterior_also_where_bins_do_not_divide():
    """7 ranks in 4 bins of 2, 2, 2, 1: even bins would be refuted in every world. KS over 300: false alarms 1e-4."""
    rng = np.random.default_rng(1)
    pvalues = uniformity(rng.integers(7, size=(K, 300)), 6, 4)
    assert stats.kstest(pvalues, "uniform").pvalue > 1e-4


def test_an_exact_posterior_passes_and_a_wrong_one_does_not():
    """False alarms: 1e-4 for each exact coordinate. The wrong ones are refuted at 1e-6."""
    for wrong in ({"width": 0.7}, {"width": 1.5}, {"bias": 0.4}):
        exact, changed = uniformity(ranks(*normal_world(**wrong)), M)
        assert exact > 1e-4
        assert changed < 1e-6


def test_the_shape_of_the_histogram_tells_what_is_wrong():
    narrow, wide, right = (
        histogram(ranks(*normal_world(**wrong)), M, 4)[:, 1] for wrong in ({"width": 0.5}, {"width": 2}, {"bias": 1})
    )
    assert min(narrow[[0, 3]]) > max(narrow[[1, 2]])
    assert max(wide[[0, 3]]) < min(wide[[1, 2]])
    assert (np.diff(right) < 0).all()


def test_what_has_no_ranks_is_refused():
    found = ranks(*normal_world())
    with pytest.raises(ValueError, match=r"bins=101 must lie in \[2, 100\]"):
        histogram(found, M, 101)
    with pytest.raises(ValueError, match="bins=1 must"):
        expected(K, M, 1)
    with pytest.raises(ValueError, match=r"must lie in 0, …, draws=50"):
        histogram(found, 50)
    with pytest.raises(ValueError, match="whole numbers"):
        histogram(found / M, M)
    with pytest.raises(ValueError, match=r"leave 4\.5 expected ranks in a bin"):
        uniformity(found[:90], M)
    with pytest.raises(ValueError, match=r"truth of shape \(1000,\)"):
        ranks(normal_world()[0], np.zeros(K))
