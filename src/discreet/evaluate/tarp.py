"""TARP: expected coverage of credible balls around random references (Lemos et al. 2023), as NA-DPVI uses it."""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

import numpy as np
from scipy.special import chndtr

from discreet.atomic import cache_folder, new_file
from discreet.evaluate.sharpness import Moments, checked, moments

LEVELS = np.concatenate([[0.001], np.arange(1, 20) / 20, [0.999]])
_CELLS = len(LEVELS) + 1
_POOL = 200


def fractions(
    rng: np.random.Generator, draws: np.ndarray, truth: np.ndarray, references: str | np.ndarray = "around"
) -> np.ndarray:
    """Share of each posterior's draws that lie nearer to a reference than the truth does, shape (K,).

    `draws` has shape (K, M, d) and `truth` (K, d), both unconstrained; nearer is strictly nearer in L2, so the
    coordinates of the largest scale decide. Under a perfect posterior the shares are uniform on (0, 1). `references`:

    - "around": each posterior's mean plus Uniform(±4) of its sds, per coordinate. They know the data only through the
      posterior, so a prior is covered. A draw has a part in its own reference: keep M in the hundreds or more.
    - "random": uniform over the box that the truths span, whatever the data, as in the original.
    - an array of shape (K, d). References at the data, such as non-private estimates, refute even a prior.
    """
    draws, truth = checked(draws, truth)
    return _nearer(_squared, draws, truth, _place(rng, draws, truth, references))


def marginal_fractions(
    rng: np.random.Generator, draws: np.ndarray, truth: np.ndarray, references: str | np.ndarray = "around"
) -> np.ndarray:
    """`fractions` of each coordinate alone, shape (K, d)."""
    draws, truth = checked(draws, truth)
    return _nearer(np.abs, draws, truth, _place(rng, draws, truth, references))


def _squared(gap: np.ndarray) -> np.ndarray:
    return np.einsum("md,md->m", gap, gap)


def _nearer(
    distance: Callable[[np.ndarray], np.ndarray], draws: np.ndarray, truth: np.ndarray, references: np.ndarray
) -> np.ndarray:
    """One posterior at a time: the differences of all of them would be as large as the draws."""
    shares = []
    for posterior, theta, reference in zip(draws, truth, references, strict=True):
        # the truth is a row among the draws, so that a draw equal to it is rounded alike and not nearer
        far = distance(np.vstack([theta, posterior]) - reference)
        shares.append((far[1:] < far[0]).mean(0))
    return np.array(shares)


def _around(rng: np.random.Generator, found: Moments) -> np.ndarray:
    return found.mean + found.sd * rng.uniform(-4, 4, found.mean.shape)


def _place(rng: np.random.Generator, draws: np.ndarray, truth: np.ndarray, references: str | np.ndarray) -> np.ndarray:
    if isinstance(references, str) and references == "around":
        return _around(rng, moments(draws))
    if isinstance(references, str) and references == "random":
        low, high = truth.min(0), truth.max(0)
        if (low == high).all():
            raise ValueError('references="random" needs truths that differ: all of them are the same; use "around"')
        return rng.uniform(low, high, truth.shape)
    if isinstance(references, str):
        raise ValueError(f'references={references!r} must be "around", "random" or an array of shape {truth.shape}')
    references = np.asarray(references, np.float64)
    if references.shape != truth.shape or not np.isfinite(references).all():
        raise ValueError(
            f"references of shape {references.shape} must be finite and of the truths' shape {truth.shape}"
        )
    return references


def coverage(shares: np.ndarray) -> np.ndarray:
    """Observed coverage at each of `LEVELS`: `shares` (K, …) in, (levels, …) out.

    >>> coverage(np.array([0.02, 0.3, 0.6, 0.98]))[[0, 1, 10, 20]]
    array([0.  , 0.25, 0.5 , 1.  ])
    """
    shares = _shares(shares)
    return np.array([(shares < level).mean(0) for level in LEVELS])


def rmse(shares: np.ndarray) -> float | np.ndarray:
    """Root mean square distance of each coverage curve from the diagonal: 0 is perfect, .584 is no coverage.

    Data sets are on axis 0. Shares of shape (K,) have one curve and give a float; (K, …) gives an array of shape (…).

    >>> round(rmse(np.ones(100)), 3)
    0.584
    """
    curves = coverage(shares)
    diagonal = LEVELS.reshape(-1, *[1] * (curves.ndim - 1))
    found = np.sqrt(((curves - diagonal) ** 2).mean(0))
    return float(found) if found.ndim == 0 else found


def repeated_fractions(
    rng: np.random.Generator, draws: np.ndarray, truth: np.ndarray, repetitions: int = 20, *, marginal: bool = False
) -> np.ndarray:
    """`fractions` (K, R), or `marginal_fractions` (K, R, d), for R fresh sets of references around the posteriors."""
    draws, truth = checked(draws, truth)
    found, distance = moments(draws), np.abs if marginal else _squared
    return np.stack([_nearer(distance, draws, truth, _around(rng, found)) for _ in range(repetitions)], 1)


def mean_rmse(rng: np.random.Generator, draws: np.ndarray, truth: np.ndarray, repetitions: int = 20) -> float:
    """RMSE averaged over fresh references around the same posteriors, the paper's summary."""
    return float(np.mean(rmse(repeated_fractions(rng, draws, truth, repetitions))))


def null_band(
    replicas: int, prob: float = 0.95, *, dim: int = 1, repetitions: int = 1, simulations: int = 20_000
) -> tuple[float, float]:
    """(mean, `prob` quantile) of `mean_rmse` over `repetitions` for a perfect posterior on `replicas` data sets.

    One repetition has independent uniform shares whatever the posterior and its dimension: exact. In several, shares
    of one truth around different references are dependent, and the law is that of normal posteriors in `dim`
    coordinates of equal sd (where one sd dwarfs the others, take dim=1, the wider band); they are simulated once and
    kept on disk. 20 000 simulations leave 20 beyond the .999 quantile, which is then known to about 2 %; fewer than 10
    beyond a quantile are refused.

    >>> mean, bound = null_band(500)
    >>> round(mean, 4), round(bound, 2)
    (0.0165, 0.03)
    """
    for name, value in {"replicas": replicas, "dim": dim, "repetitions": repetitions}.items():
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    if not 0 < prob < 1:
        raise ValueError(f"prob={prob} must lie in (0, 1)")
    if simulations * (1 - prob) < 9.999:
        raise ValueError(f"prob={prob} needs simulations={int(np.ceil(10 / (1 - prob)))} or more, not {simulations}")
    null = _null(replicas, dim, repetitions, simulations)
    return float(null.mean()), float(np.quantile(null, prob))


def bootstrap(
    rng: np.random.Generator, shares: np.ndarray, prob: float = 0.9, resamples: int = 2000
) -> tuple[float, float]:
    """(low, high): central `prob` interval of the RMSE when data sets are resampled.

    Shares (K, R) of R repetitions are resampled by rows and their RMSEs averaged. An RMSE is never negative and is
    biased upwards at small K, a resampled one more so: compare it with `null_band`, not with zero.
    """
    if not 0 < prob < 1:
        raise ValueError(f"prob={prob} must lie in (0, 1)")
    found = _resampled(rng, _shares(shares), len(shares), resamples)
    low, high = np.quantile(found, [(1 - prob) / 2, (1 + prob) / 2])
    return float(low), float(high)


def _shares(shares: np.ndarray) -> np.ndarray:
    shares = np.asarray(shares)
    if shares.ndim == 0 or not len(shares) or not ((shares >= 0) & (shares <= 1)).all():
        raise ValueError(f"shares of shape {shares.shape} must have a data set per row and lie in [0, 1]")
    return shares


def _resampled(rng: np.random.Generator, shares: np.ndarray, size: int, count: int) -> np.ndarray:
    """RMSE, averaged over columns, of `count` samples of `size` rows with replacement."""
    shares = shares.reshape(len(shares), -1)
    columns = shares.shape[1]
    cells = np.searchsorted(LEVELS, shares, side="right") + _CELLS * np.arange(columns)
    found = np.empty(count)
    for i in range(count):
        sample = cells[rng.integers(len(cells), size=size)]
        counts = np.bincount(sample.ravel(), minlength=_CELLS * columns).reshape(columns, _CELLS)
        found[i] = _rmse_of_counts(counts, size).mean()
    return found


def _rmse_of_counts(counts: np.ndarray, size: int) -> np.ndarray:
    """RMSE from how many of `size` shares lie between neighbouring levels, on the last axis."""
    return np.sqrt(((counts.cumsum(-1)[..., :-1] / size - LEVELS) ** 2).mean(-1))


@lru_cache
def _null(replicas: int, dim: int, repetitions: int, simulations: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    if repetitions == 1:
        cells = np.diff(LEVELS, prepend=0, append=1)
        return np.sort(_rmse_of_counts(rng.multinomial(replicas, cells, simulations), replicas))

    def simulate() -> np.ndarray:
        shares = _perfect_shares(rng, _POOL * replicas, dim, repetitions)
        return np.sort(_resampled(rng, shares, replicas, simulations))

    return _remembered((replicas, dim, repetitions, simulations), simulations, simulate)


def _perfect_shares(rng: np.random.Generator, rows: int, dim: int, repetitions: int) -> np.ndarray:
    """Exact shares of `rows` truths from N(0, I), each against `repetitions` references from Uniform(±4).

    Given reference r, |Z − r|² is noncentral chi-square with noncentrality |r|². `_POOL` times as many as a simulation
    takes: that the simulations share them adds 1/(2·`_POOL`) to the RMSE, a quarter of a percent.
    """
    shares = np.empty((rows, repetitions))
    block = max(1, 1_000_000 // (dim * repetitions))
    for start in range(0, rows, block):
        part = shares[start : start + block]
        truth = rng.standard_normal((len(part), 1, dim))
        reference = rng.uniform(-4, 4, (len(part), repetitions, dim))
        part[:] = chndtr(((truth - reference) ** 2).sum(-1), dim, (reference**2).sum(-1))
    return np.clip(shares, 0, 1)


def _remembered(key: tuple, length: int, compute: Callable[[], np.ndarray]) -> np.ndarray:
    """What was simulated under this key, from disk if it is there and whole."""
    name = hashlib.sha256(repr(("tarp null, format 1", *key)).encode()).hexdigest()
    path = cache_folder() / f"{name}.json"
    with suppress(OSError, ValueError, TypeError):
        found = np.array(json.loads(path.read_text()), np.float64)
        if found.shape == (length,) and found[0] >= 0 and (np.diff(found) >= 0).all() and found[-1] < 1:
            return found
    found = compute()
    with suppress(OSError), new_file(path) as scratch:
        scratch.write_text(json.dumps(found.tolist()))
    return found
