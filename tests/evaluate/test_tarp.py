"""TARP on posteriors whose coverage is known: perfect, prior, overconfident, biased, nothing covered."""

import tracemalloc

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
    """38 of 40 worlds are inside, give or take: a binomial count. False alarms: 1e-5."""
    bound = tarp.null_band(K)[1]
    inside = sum(score(*normal_world(seed), seed) < bound for seed in range(2, 42))
    assert stats.binomtest(inside, 40, 0.95).pvalue > 1e-5


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


def test_random_references_are_uniform_over_the_box_of_the_truths():
    draws, truth = (x + np.array([10.0, 0.0]) for x in normal_world())
    references = np.random.default_rng(8).uniform([truth[:, 0].min(), truth[:, 1].min()], truth.max(0), (K, D))
    found = tarp.fractions(np.random.default_rng(8), draws, truth, "random")
    np.testing.assert_array_equal(found, tarp.fractions(np.random.default_rng(9), draws, truth, references))
    assert stats.kstest(found, "uniform").pvalue > 1e-4  # false alarms 1e-4


def test_marginal_shares_are_those_of_each_coordinate_alone():
    (draws, truth), rng = normal_world(), np.random.default_rng(11)
    references = rng.normal(size=(K, D))
    found = tarp.marginal_fractions(rng, draws, truth, references)
    assert found.shape == (K, D)
    for j in range(D):
        alone = tarp.fractions(rng, draws[..., [j]], truth[:, [j]], references[:, [j]])
        np.testing.assert_array_equal(found[:, j], alone)
    around = tarp.marginal_fractions(rng, draws, truth)
    assert all(stats.kstest(column, "uniform").pvalue > 1e-4 for column in around.T)  # false alarms 2e-4


def test_a_draw_at_the_truth_is_not_nearer():
    rng = np.random.default_rng(12)
    truth = rng.normal(size=(200, 5))
    for shares in (tarp.fractions, tarp.marginal_fractions):
        assert not shares(rng, np.repeat(truth[:, None], 7, 1), truth, "random").any()


def test_memory_is_that_of_one_posterior_not_of_all():
    """50 posteriors of 5000 × 4 float32 draws, 4 MB. One of them in float64 is .16 MB; a few copies are allowed."""
    rng = np.random.default_rng(13)
    draws, truth = rng.normal(size=(50, 5000, 4)).astype(np.float32), rng.normal(size=(50, 4))
    for shares in (tarp.fractions, tarp.marginal_fractions, tarp.mean_rmse):
        tracemalloc.start()
        shares(rng, draws, truth)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1e6


def test_the_coverage_curve_is_that_of_the_tarp_package(monkeypatch):
    """On the same draws and references, at every inner edge of the package's own histogram."""
    import tarp as package

    rng = np.random.default_rng(14)
    for wrong in ({}, {"width": 0.5}, {"bias": 1.0}):
        draws, truth = normal_world(**wrong)
        references = rng.uniform(-3, 3, (K, D))
        theirs, edges = package.get_tarp_coverage(draws.swapaxes(0, 1), truth, references=references, norm=False)
        monkeypatch.setattr(tarp, "LEVELS", edges[1:-1])
        ours = tarp.coverage(tarp.fractions(rng, draws, truth, references))
        assert len(ours) == K // 10 - 1
        np.testing.assert_allclose(ours, theirs[1:-1], atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"references": "nearby"}, "references='nearby' must be"),
        ({"references": np.zeros((K, D + 1))}, "of the truths' shape"),
        ({"references": np.full((K, D), np.nan)}, "must be finite"),
        ({"truth": np.zeros((K, 1))}, r"truth of shape \(500, 1\)"),
        ({"truth": np.zeros((K, D)), "references": "random"}, "truths that differ"),
        ({"truth": np.full((K, D), np.inf)}, "not finite"),
        ({"draws": np.zeros((K, D))}, r"must be \(K, M, d\)"),
        ({"draws": np.full((K, 3, D), np.nan)}, r"data sets \[0, 1, 2, 3, 4\] \(500 in all\)"),
    ],
)
def test_what_has_no_shares_is_refused(change, message):
    draws, truth = normal_world()
    for shares in (tarp.fractions, tarp.marginal_fractions):
        with pytest.raises(ValueError, match=message):
            shares(np.random.default_rng(0), **{"draws": draws, "truth": truth} | change)


def test_trailing_axes_have_a_curve_and_an_rmse_each():
    shares = np.random.default_rng(15).random((40, 3, 2)) ** [1.0, 2.0]
    curves, found = tarp.coverage(shares), tarp.rmse(shares)
    assert (curves.shape, found.shape) == ((len(tarp.LEVELS), 3, 2), (3, 2))
    for i, j in np.ndindex(3, 2):
        np.testing.assert_array_equal(curves[:, i, j], tarp.coverage(shares[:, i, j]))
        assert found[i, j] == pytest.approx(tarp.rmse(shares[:, i, j]), rel=1e-12)
    assert isinstance(tarp.rmse(shares[:, 0, 0]), float)
    for bad in ([0.5, 1.01], [0.5, np.nan], [], 0.5):
        with pytest.raises(ValueError, match="a data set per row"):
            tarp.rmse(np.array(bad))


def test_null_band_is_the_law_of_uniform_shares_and_shrinks_like_one_over_the_root_of_k():
    """2000 worlds of uniform shares: each quantile holds its share of them; 4 comparisons, false alarms 4e-5."""
    mean, bound = tarp.null_band(500)
    assert mean == pytest.approx(0.0165, abs=5e-4)
    assert mean < bound < 0.031
    assert tarp.null_band(125, simulations=1000)[0] / mean == pytest.approx(2, rel=0.1)
    scores = tarp.rmse(np.random.default_rng(16).random((60, 2000)))
    for prob in (0.1, 0.5, 0.95, 0.99):
        inside = int((scores <= tarp.null_band(60, prob)[1]).sum())
        assert stats.binomtest(inside, 2000, prob).pvalue > 1e-5


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache on disk and nothing in memory, before and after."""
    monkeypatch.setenv("DISCREET_CACHE", str(tmp_path / "cache"))
    tarp._null.cache_clear()
    yield tmp_path / "cache"
    tarp._null.cache_clear()


def drawn_null(seed, dim, replicas, repetitions, worlds=200, draws=300):
    """Mean RMSE over references around perfect posteriors that are drawn, not known."""
    rng, scores = np.random.default_rng(seed), []
    for _ in range(worlds):
        truth, z = rng.normal(size=(replicas, 1, dim)), rng.normal(size=(replicas, draws, dim))
        unit = rng.uniform(-4, 4, (replicas, repetitions, dim))
        reference = (z.mean(1, keepdims=True) + unit * z.std(1, keepdims=True)).swapaxes(1, 2)
        far, radius = ((x**2).sum(-1)[..., None] - 2 * x @ reference for x in (z, truth))
        scores.append(tarp.rmse((far < radius).mean(1)).mean())
    return np.array(scores)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("dim", [1, 3])
def test_the_null_of_repeated_references_is_that_of_drawn_posteriors(dim):
    """200 worlds: binomial counts below three quantiles. False alarms: 3e-5."""
    scores = drawn_null(17, dim, 60, 20)
    for prob in (0.1, 0.5, 0.9):
        bound = tarp.null_band(60, prob, dim=dim, repetitions=20, simulations=4000)[1]
        assert stats.binomtest(int((scores < bound).sum()), len(scores), prob).pvalue > 1e-5


@pytest.mark.usefixtures("cache")
def test_repetitions_narrow_the_null_and_dimensions_leave_more_to_narrow():
    """References of one truth agree most in one dimension. The mean is the same for all."""
    cases = (9, 1), (1, 20), (3, 20)
    one, line, space = (tarp.null_band(60, dim=d, repetitions=n, simulations=4000) for d, n in cases)
    assert one[1] > 1.2 * line[1] > 1.2 * space[1]
    np.testing.assert_allclose([line[0], space[0]], one[0], rtol=0.03)
    assert tarp.null_band(60, dim=9) == tarp.null_band(60, dim=2)


def small(replicas=10, prob=0.5, **change):
    tarp._null.cache_clear()
    return tarp.null_band(replicas, prob, **{"dim": 2, "repetitions": 2, "simulations": 20} | change)


def test_a_null_is_simulated_once_whatever_the_quantile(cache, monkeypatch):
    first = small()
    monkeypatch.setattr(tarp, "_perfect_shares", lambda *_: pytest.fail("simulated again"))
    assert (small(), small(prob=0.25)[0], len(list(cache.iterdir()))) == (first, first[0], 1)


def test_every_argument_has_its_own_entry(cache):
    found = {small(), small(11), small(dim=3), small(repetitions=3), small(simulations=21)}
    assert len(found) == len(list(cache.iterdir())) == 5


TWENTY = "[{}, " + 18 * "0.1, " + "{}]"
WRONG = [TWENTY.format(*ends) for ends in ((0.1, "NaN"), ("NaN", 0.1), (-0.1, 0.1), (0.1, 7), (0.1, 0))]


@pytest.mark.parametrize("text", ["", "[0.1, 0.2", "{}", "null", "[0.1]", "\x00PK", *WRONG])
def test_a_broken_entry_is_simulated_again_and_mended(cache, text):
    first = small()
    (entry,) = cache.iterdir()
    whole = entry.read_text()
    entry.write_text(text)
    assert (small(), entry.read_text()) == (first, whole)


def test_a_cache_that_cannot_be_written_is_done_without(cache, monkeypatch):
    first = small()
    monkeypatch.setenv("DISCREET_CACHE", str(next(cache.iterdir())))
    assert small() == first


def test_a_band_that_cannot_be_known_is_refused():
    for name in ("replicas", "dim", "repetitions"):
        with pytest.raises(ValueError, match=f"{name}=0 must be at least 1"):
            tarp.null_band(**{"replicas": 10} | {name: 0})
    with pytest.raises(ValueError, match=r"prob=1\.0 must lie in"):
        tarp.null_band(10, 1.0)
    with pytest.raises(ValueError, match="needs simulations=10000 or more, not 9000"):
        tarp.null_band(10, 0.999, simulations=9000)


def test_bootstrap_intervals_cover_the_rmse_of_a_wrong_posterior():
    """Shares U² have coverage √level. 80 to 99 of 100 intervals of 90 % hold the RMSE; false alarms 1e-3."""
    rng, known = np.random.default_rng(18), np.sqrt(np.mean((np.sqrt(tarp.LEVELS) - tarp.LEVELS) ** 2))
    intervals = [tarp.bootstrap(rng, rng.random(300) ** 2, resamples=200) for _ in range(100)]
    assert 0.8 <= np.mean([low < known < high for low, high in intervals]) < 1


def test_bootstrap_keeps_the_repetitions_of_a_data_set_together():
    alone = np.random.default_rng(19).random(200)
    sets = alone, np.stack([alone, alone], 1), np.stack([alone, np.roll(alone, 1)], 1)
    one, twice, apart = (tarp.bootstrap(np.random.default_rng(20), shares) for shares in sets)
    np.testing.assert_allclose(one, twice, rtol=1e-12)
    assert apart[1] - apart[0] < 0.9 * (one[1] - one[0])


def test_bootstrap_by_hand():
    """The same resamples through `rmse`, of shares that stand on the levels as those of few draws do."""
    shares, rng = np.random.default_rng(21).integers(21, size=(30, 2)) / 20, np.random.default_rng(22)
    by_hand = [tarp.rmse(shares[rng.integers(30, size=30)]).mean() for _ in range(50)]
    found = tarp.bootstrap(np.random.default_rng(22), shares, 0.8, 50)
    np.testing.assert_allclose(found, np.quantile(by_hand, [0.1, 0.9]), rtol=1e-12)
    with pytest.raises(ValueError, match="prob=90 must lie in"):
        tarp.bootstrap(rng, shares, 90)
