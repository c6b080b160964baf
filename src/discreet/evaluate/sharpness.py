"""Sharpness: a prior is calibrated too, so width and scores stand beside coverage.

Everywhere `draws` has shape (K, M, d): M draws for each of K data sets; `truth` has shape (K, d).
"""

from typing import NamedTuple

import numpy as np


class Moments(NamedTuple):
    """Mean and sd of each posterior, both (K, d)."""

    mean: np.ndarray
    sd: np.ndarray


def moments(draws: np.ndarray) -> Moments:
    """Mean and sd over the draws, one posterior at a time: `draws.std(1)` would need the memory of all of them."""
    mean = [np.mean(posterior, 0, dtype=np.float64) for posterior in draws]
    sd = [np.std(posterior, 0, dtype=np.float64) for posterior in draws]
    return Moments(np.array(mean), np.array(sd))


def checked(draws: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as arrays; refused unless draws (K, M, d) and truth (K, d) are finite and of one K and d."""
    draws, truth = np.asarray(draws), np.asarray(truth)
    if draws.ndim != 3 or 0 in draws.shape or truth.shape != (draws.shape[0], draws.shape[2]):
        raise ValueError(f"draws of shape {draws.shape} must be (K, M, d), and truth of shape {truth.shape} (K, d)")
    broken = [k for k in range(len(draws)) if not (np.isfinite(draws[k]).all() and np.isfinite(truth[k]).all())]
    if broken:
        raise ValueError(f"data sets {broken[:5]} ({len(broken)} in all) have draws or truths that are not finite")
    return draws, truth


def sd_ratio(draws: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Mean over data sets of posterior sd ÷ reference sd, per coordinate; the numbers of draws may differ."""
    return (moments(draws).sd / moments(reference).sd).mean(0)


def log_scores(draws: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Log density of each truth under a normal with its posterior's moments, shape (K, d); higher is better.

    Each coordinate alone. Proper among normal posteriors: no other mean and sd score better on average.

    >>> log_scores(np.array([[[-1.0], [1.0]]]), np.zeros((1, 1))).round(3)
    array([[-0.919]])
    """
    draws, truth = checked(draws, truth)
    centre, spread = moments(draws)
    points = np.flatnonzero((spread == 0).any(1))
    if len(points):
        raise ValueError(f"data sets {points[:5].tolist()} have draws without spread: a point has no density")
    return -0.5 * ((truth - centre) / spread) ** 2 - np.log(spread) - 0.5 * np.log(2 * np.pi)


def normal_log_score(draws: np.ndarray, truth: np.ndarray) -> float:
    """Mean of `log_scores` over data sets and coordinates (higher is better)."""
    return float(log_scores(draws, truth).mean())


def energy_scores(rng: np.random.Generator, draws: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """E|Z − t| − ½E|Z − Z′| of each posterior and its truth t, in L2, shape (K,); lower is better.

    Proper for any posterior, jointly over coordinates; in one dimension it is the CRPS. Z and Z′ are neighbours on a
    random circle of the draws: M of the M(M − 1)/2 pairs of distinct draws, so the estimate is unbiased and costs
    O(Md) for each data set.
    """
    draws, truth = checked(draws, truth)
    if draws.shape[1] < 2:
        raise ValueError("an energy score needs two draws or more for each data set")
    scores = []
    for posterior, theta in zip(draws, truth, strict=True):
        circle = rng.permutation(posterior)
        to_truth = np.linalg.norm(circle - theta, axis=-1).mean()
        among_draws = np.linalg.norm(circle - np.roll(circle, 1, 0), axis=-1).mean()
        scores.append(to_truth - among_draws / 2)
    return np.array(scores)


def energy_score(rng: np.random.Generator, draws: np.ndarray, truth: np.ndarray) -> float:
    """Mean of `energy_scores` over data sets (lower is better)."""
    return float(energy_scores(rng, draws, truth).mean())
