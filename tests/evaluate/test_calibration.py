"""Calibration and scores of predicted probabilities, against scikit-learn and by their laws."""

import numpy as np
import pytest
from sklearn import metrics
from sklearn.calibration import calibration_curve

from discreet.evaluate import calibration

N = 5000


@pytest.fixture(scope="module")
def honest():
    """Predictions that are the probabilities the outcomes were drawn with."""
    rng = np.random.default_rng(0)
    predicted = rng.beta(0.8, 1.5, N)
    return predicted, (rng.random(N) < predicted).astype(int)


def overconfident(predicted):
    return predicted**3 / (predicted**3 + (1 - predicted) ** 3)


def test_scores_are_scikit_learn_s(honest):
    predicted, outcome = honest
    assert calibration.brier(predicted, outcome) == pytest.approx(metrics.brier_score_loss(outcome, predicted))
    assert calibration.log_score(predicted, outcome) == pytest.approx(-metrics.log_loss(outcome, predicted))
    assert calibration.accuracy(predicted, outcome) == metrics.accuracy_score(outcome, predicted > 0.5)
    assert calibration.sharpness(predicted) == pytest.approx(np.var(predicted))


@pytest.mark.parametrize("bins", [1, 10, 25])
def test_the_curve_is_scikit_learn_s_where_nothing_is_tied(honest, bins):
    predicted, outcome = honest
    found = calibration.curve(predicted, outcome, bins)
    observed, mean = calibration_curve(outcome, predicted, n_bins=bins, strategy="quantile")
    np.testing.assert_allclose(found.observed, observed, rtol=1e-12)
    np.testing.assert_allclose(found.predicted, mean, rtol=1e-12)
    assert (found.size == N // bins).all()


@pytest.mark.parametrize("rows", [10, 11, 19, 101])
def test_counts_are_as_equal_as_can_be(rows):
    rng = np.random.default_rng(1)
    size = calibration.curve(rng.random(rows), rng.integers(2, size=rows)).size
    assert size.sum() == rows
    assert len(size) == 10
    assert size.max() - size.min() <= 1


def test_tied_predictions_stay_together_in_any_order():
    """Half of the rows share one prediction, sorted so that their ones come first: a split would see a trend."""
    predicted = np.concatenate([np.linspace(0.01, 0.2, 25), np.full(50, 0.3), np.linspace(0.5, 0.9, 25)])
    outcome = np.concatenate([np.zeros(25), np.repeat([1, 0], [15, 35]), np.ones(25)])
    found = calibration.curve(predicted, outcome)
    (where,) = np.flatnonzero(np.isclose(found.predicted, 0.3))
    assert (found.size[where], found.observed[where]) == (50, 0.3)
    assert found.size.sum() == 100
    assert (np.diff(found.predicted) > 0).all()
    shuffled = np.random.default_rng(2).permutation(100)
    for before, after in zip(found, calibration.curve(predicted[shuffled], outcome[shuffled]), strict=True):
        np.testing.assert_allclose(before, after, rtol=1e-12)


def test_one_prediction_for_all_is_one_bin():
    found = calibration.curve(np.full(30, 0.4), np.repeat([0, 1], [20, 10]))
    assert (found.predicted, found.observed, found.size) == (pytest.approx(0.4), pytest.approx(1 / 3), 30)


def test_the_brier_score_is_calibration_less_resolution_plus_uncertainty():
    """Murphy's decomposition, exact where a bin holds one prediction: the first term is `rmse` squared."""
    rng = np.random.default_rng(3)
    predicted = rng.choice([0.1, 0.35, 0.8], 700, p=[0.5, 0.3, 0.2])
    outcome = (rng.random(700) < predicted**1.5).astype(int)
    _, observed, size = calibration.curve(predicted, outcome, 100)
    base = outcome.mean()
    resolution = np.average((observed - base) ** 2, weights=size)
    parts = calibration.rmse(predicted, outcome, 100) ** 2 - resolution + base * (1 - base)
    assert calibration.brier(predicted, outcome) == pytest.approx(parts, rel=1e-12)


def test_calibration_rmse_is_not_the_root_of_the_brier_score(honest):
    """The base rate for everyone is calibrated and says nothing: its Brier score, log score and sharpness tell."""
    predicted, outcome = honest
    base = np.full(N, outcome.mean())
    assert calibration.rmse(base, outcome) < 1e-12
    assert calibration.brier(base, outcome) == pytest.approx(np.var(outcome))
    assert calibration.brier(base, outcome) > 1.3 * calibration.brier(predicted, outcome)
    assert calibration.log_score(base, outcome) < calibration.log_score(predicted, outcome) - 0.1
    assert calibration.sharpness(base) < 1e-12 < 0.01 < calibration.sharpness(predicted)


def test_honest_predictions_have_the_rmse_of_chance_and_overconfident_ones_more():
    """E rmse² = bins·mean p(1 − p)/n, nearly: 200 worlds, whose rmse² has an sd of about √(2/10) of it. 5 sd: 6e-7."""
    rng, predicted = np.random.default_rng(4), np.random.default_rng(5).random(1000)
    worlds = [(rng.random(1000) < predicted).astype(int) for _ in range(200)]
    chance = 10 * np.mean(predicted * (1 - predicted)) / 1000
    found = np.array([calibration.rmse(predicted, outcome) ** 2 for outcome in worlds])
    assert found.mean() == pytest.approx(chance, rel=5 * np.sqrt(0.2 / 200))
    wrong = overconfident(predicted)
    assert min(calibration.rmse(wrong, outcome) ** 2 for outcome in worlds) > found.max()


@pytest.mark.parametrize("wrong", [overconfident, lambda p: 0.5 + (p - 0.5) / 2, lambda p: p**0.5, lambda p: p[::-1]])
def test_brier_and_log_score_are_proper(honest, wrong):
    """Too sure, too timid, too high, of somebody else: all worse, by 4 standard errors of the difference or more."""
    predicted, outcome = honest
    other = wrong(predicted)
    for score, sign in ((calibration.brier, 1), (calibration.log_score, -1)):
        rows = [sign * (score(other[[i]], outcome[[i]]) - score(predicted[[i]], outcome[[i]])) for i in range(0, N, 2)]
        assert np.mean(rows) > 4 * np.std(rows) / np.sqrt(len(rows))


def test_certainty_is_judged():
    assert calibration.log_score(np.array([0.0, 1.0]), np.array([0, 1])) == 0
    assert calibration.log_score(np.array([0.0, 1.0]), np.array([1, 1])) == -np.inf
    assert calibration.brier(np.array([0.0, 1.0]), np.array([1, 1])) == 0.5
    assert calibration.accuracy(np.array([0.0, 1.0]), np.array([1, 1])) == 0.5


def test_a_coin_is_right_half_of_the_time(honest):
    _, outcome = honest
    assert calibration.accuracy(np.full(N, 0.5), outcome) == 0.5


@pytest.mark.parametrize(
    ("predicted", "outcome", "message"),
    [
        ([0.2, 1.2], [0, 1], r"predicted=1\.2 must lie in \[0, 1\]"),
        ([0.2, -0.1], [0, 1], r"predicted=-0\.1"),
        ([0.2, np.nan], [0, 1], "predicted=nan"),
        ([0.2, 0.3], [0, 2], r"outcome=2\.0 must be 0 or 1"),
        ([0.2, 0.3], [0, np.nan], "outcome=nan"),
        ([0.2, 0.3], [0], "of one length"),
        ([[0.2, 0.3]], [[0, 1]], "one axis"),
        ([], [], "of one length"),
    ],
)
def test_what_is_no_prediction_is_refused(predicted, outcome, message):
    for name in ("curve", "rmse", "brier", "log_score", "accuracy"):
        with pytest.raises(ValueError, match=message):
            getattr(calibration, name)(np.array(predicted), np.array(outcome))


def test_sharpness_and_bins_are_checked_too():
    with pytest.raises(ValueError, match="predicted=3"):
        calibration.sharpness(np.array([0.1, 3]))
    for bins in (0, 4):
        with pytest.raises(ValueError, match=rf"bins={bins} must lie in \[1, 3\]"):
            calibration.curve(np.array([0.1, 0.2, 0.3]), np.array([0, 1, 1]), bins)
