"""TARP: expected coverage of credible balls around random references (Lemos et al. 2023), as NA-DPVI uses it."""

from functools import lru_cache

import numpy as np

LEVELS = np.concatenate([[0.001], np.arange(1, 20) / 20, [0.999]])


def fractions(rng: np.random.Generator, draws: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Share of each posterior's draws that lie nearer to a reference than the truth does, shape (K,).

    `draws` has shape (K, M, d) and `truth` (K, d), both unconstrained. The reference of a posterior is its mean plus
    Uniform(±4) of its sds. Under a perfect posterior the shares are uniform on (0, 1).
    """
    centre, spread = draws.mean(1), draws.std(1)
    reference = centre + spread * rng.uniform(-4, 4, centre.shape)
    radius = np.linalg.norm(truth - reference, axis=-1)
    return (np.linalg.norm(draws - reference[:, None], axis=-1) < radius[:, None]).mean(1)


def coverage(shares: np.ndarray) -> np.ndarray:
    """Observed coverage at each of `LEVELS`."""
    return (shares[:, None] < LEVELS).mean(0)


def rmse(shares: np.ndarray) -> float:
    """Root mean square distance of the coverage curve from the diagonal: 0 is perfect, .584 is no coverage.

    >>> round(rmse(np.ones(100)), 3)
    0.584
    """
    return float(np.sqrt(np.mean((coverage(shares) - LEVELS) ** 2)))


def mean_rmse(rng: np.random.Generator, draws: np.ndarray, truth: np.ndarray, repetitions: int = 20) -> float:
    """RMSE averaged over fresh references, the paper's summary."""
    return float(np.mean([rmse(fractions(rng, draws, truth)) for _ in range(repetitions)]))


@lru_cache
def null_band(replicas: int, prob: float = 0.95, simulations: int = 4000) -> tuple[float, float]:
    """(mean, `prob` quantile) of the RMSE of a perfect posterior over `replicas` data sets, one set of references.

    >>> mean, bound = null_band(500)
    >>> round(mean, 3), bound < 0.031
    (0.017, True)
    """
    rng = np.random.default_rng(0)
    null = [rmse(rng.random(replicas)) for _ in range(simulations)]
    return float(np.mean(null)), float(np.quantile(null, prob))
