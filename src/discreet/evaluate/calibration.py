"""Predicted probabilities of a binary outcome: are they honest (calibration), and do they say anything (sharpness)?

Everywhere `predicted` holds probabilities of a one and `outcome` zeros and ones, both of shape (n,).
"""

from typing import NamedTuple

import numpy as np
from scipy.special import xlog1py, xlogy


class Curve(NamedTuple):
    """Mean prediction, observed share of ones and number of rows of each bin, by rising prediction."""

    predicted: np.ndarray
    observed: np.ndarray
    size: np.ndarray


def curve(predicted: np.ndarray, outcome: np.ndarray, bins: int = 10) -> Curve:
    """Observed against predicted in `bins` of equal count.

    Rows of one prediction stay together, in the bin that their middle rank falls into, so the order of rows does not
    matter. Ties therefore make counts unequal, and a bin that is left without rows is left out.

    >>> curve(np.array([0.1, 0.3, 0.8, 0.8]), np.array([0, 0, 1, 1]), bins=2)
    Curve(predicted=array([0.2, 0.8]), observed=array([0., 1.]), size=array([2, 2]))
    """
    predicted, outcome = _checked(predicted, outcome)
    if not 1 <= bins <= len(predicted):
        raise ValueError(f"bins={bins} must lie in [1, {len(predicted)}], the number of rows")
    _, group, tied = np.unique(predicted, return_inverse=True, return_counts=True)
    twice_middle = 2 * tied.cumsum() - tied
    where = (twice_middle * bins // (2 * len(predicted)))[group]
    size = np.bincount(where, minlength=bins)
    kept = size > 0
    size = size[kept]
    return Curve(np.bincount(where, predicted, bins)[kept] / size, np.bincount(where, outcome, bins)[kept] / size, size)


def rmse(predicted: np.ndarray, outcome: np.ndarray, bins: int = 10) -> float:
    """Root mean square of observed − predicted over the bins of `curve`, each weighted by its rows; 0 is calibrated.

    Equal counts have equal weights. Not the root of the Brier score: the base rate, predicted for everyone, has 0
    here and a Brier score of base·(1 − base). Chance alone leaves about √(bins·mean of p(1 − p)/n) to perfect ones.

    >>> base, outcome = np.full(4, 0.25), np.array([0, 0, 0, 1])
    >>> rmse(base, outcome, bins=2), brier(base, outcome)
    (0.0, 0.1875)
    """
    found = curve(predicted, outcome, bins)
    return float(np.sqrt(np.average((found.observed - found.predicted) ** 2, weights=found.size)))


def brier(predicted: np.ndarray, outcome: np.ndarray) -> float:
    """Mean squared distance of prediction and outcome; lower is better, proper."""
    predicted, outcome = _checked(predicted, outcome)
    return float(np.mean((predicted - outcome) ** 2))


def log_score(predicted: np.ndarray, outcome: np.ndarray) -> float:
    """Mean log likelihood of the outcomes; higher is better, proper. −∞ where the impossible happened.

    >>> round(log_score(np.array([0.5, 0.5]), np.array([0, 1])), 3)
    -0.693
    """
    predicted, outcome = _checked(predicted, outcome)
    return float(np.mean(xlogy(outcome, predicted) + xlog1py(1 - outcome, -predicted)))


def accuracy(predicted: np.ndarray, outcome: np.ndarray) -> float:
    """Share of outcomes on the predicted side of ½; a prediction of exactly ½ is right by half.

    >>> accuracy(np.array([0.9, 0.2, 0.5, 0.7]), np.array([1, 0, 1, 0]))
    0.625
    """
    predicted, outcome = _checked(predicted, outcome)
    return float(np.mean(np.where(predicted == 0.5, 0.5, (predicted > 0.5) == (outcome == 1))))


def sharpness(predicted: np.ndarray) -> float:
    """Variance of the predictions: 0 says the same of everyone; base·(1 − base) is the most of calibrated ones."""
    predicted, _ = _checked(predicted, np.zeros(np.shape(predicted)))
    return float(np.var(predicted))


def _checked(predicted: np.ndarray, outcome: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    predicted, outcome = np.asarray(predicted, np.float64), np.asarray(outcome, np.float64)
    if predicted.ndim != 1 or predicted.shape != outcome.shape or not len(predicted):
        raise ValueError(
            f"predicted of shape {predicted.shape} and outcome of shape {outcome.shape} must be of one length, one axis"
        )
    wrong = predicted[~((predicted >= 0) & (predicted <= 1))]
    if len(wrong):
        raise ValueError(f"predicted={wrong[0]} must lie in [0, 1]: give probabilities, not log odds or classes")
    wrong = outcome[(outcome != 0) & (outcome != 1)]
    if len(wrong):
        raise ValueError(f"outcome={wrong[0]} must be 0 or 1")
    return predicted, outcome
