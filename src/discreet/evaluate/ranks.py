"""Simulation-based calibration (Talts et al. 2018): where each truth stands among its draws, coordinate by coordinate.

A second opinion beside TARP. Under a perfect posterior with independent draws each rank is uniform on 0, …, M; a hump
is a posterior too wide, a valley one too narrow, a slope one that is off to a side. Correlated draws (MCMC) have to be
thinned first.
"""

import numpy as np
from scipy import stats

from discreet.evaluate.sharpness import checked


def ranks(draws: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Number of draws strictly below the truth, shape (K, d), from draws (K, M, d) and truth (K, d).

    >>> ranks(np.array([[[1.0], [2.0], [3.0]]]), np.array([[2.5]]))
    array([[2]])
    """
    draws, truth = checked(draws, truth)
    return np.array([(posterior < theta).sum(0) for posterior, theta in zip(draws, truth, strict=True)])


def histogram(ranks: np.ndarray, draws: int, bins: int = 20) -> np.ndarray:
    """Ranks per bin, shape (bins, d), from ranks (K, d) among that many `draws`.

    Rank r is in bin ⌊r·bins/(draws + 1)⌋. Where bins do not divide draws + 1 some hold one rank more: see `expected`.

    >>> histogram(np.array([[0], [1], [3], [4]]), draws=4, bins=2).ravel()
    array([2, 2])
    """
    ranks = np.asarray(ranks)
    _check(draws, bins)
    if ranks.ndim != 2 or not len(ranks) or not np.issubdtype(ranks.dtype, np.integer):
        raise ValueError(f"ranks of shape {ranks.shape} and type {ranks.dtype} must be whole numbers (K, d)")
    if ranks.min() < 0 or ranks.max() > draws:
        raise ValueError(f"ranks from {ranks.min()} to {ranks.max()} must lie in 0, …, draws={draws}")
    return np.stack([np.bincount(_bin(column, draws, bins), minlength=bins) for column in ranks.T], 1)


def expected(replicas: int, draws: int, bins: int = 20) -> np.ndarray:
    """Expected `histogram` of a coordinate under a perfect posterior: `replicas` times each bin's share of the ranks.

    >>> expected(5, draws=4, bins=2)
    array([3., 2.])
    """
    _check(draws, bins)
    return replicas * np.bincount(_bin(np.arange(draws + 1), draws, bins), minlength=bins) / (draws + 1)


def uniformity(ranks: np.ndarray, draws: int, bins: int = 20) -> np.ndarray:
    """p-value of each coordinate's ranks under uniformity, shape (d,): Pearson's chi-square over the bins.

    Refused below five expected ranks per bin, where the chi-square law does not hold.
    """
    counts = histogram(ranks, draws, bins)
    null = expected(len(ranks), draws, bins)
    if null.min() < 5:
        raise ValueError(f"bins={bins} leave {null.min():.3g} expected ranks in a bin: choose fewer, so that 5 remain")
    statistic = ((counts - null[:, None]) ** 2 / null[:, None]).sum(0)
    return stats.chi2.sf(statistic, bins - 1)


def _bin(ranks: np.ndarray, draws: int, bins: int) -> np.ndarray:
    return ranks.astype(np.int64) * bins // (draws + 1)


def _check(draws: int, bins: int) -> None:
    if not 2 <= bins <= draws + 1:
        raise ValueError(f"bins={bins} must lie in [2, {draws + 1}]: draws={draws} have {draws + 1} ranks")
