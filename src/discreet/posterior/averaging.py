"""Iterate averaging (DPVIm §3.2): the converged tail of the trace, its mean, and the noise that privacy left in it.

Everything is read from block moments, so a window starts where a block does. Coordinates are judged one by one.
"""

from typing import Literal, NamedTuple

import numpy as np

from discreet.methods.elbo import described_family
from discreet.posterior.trace import FEWEST_STEPS, TraceError
from discreet.release import Blocks, Release

SLOPE, SHORTEST, LARGEST_R_HAT, HUGE = 0.05, 0.1, 1.1, 1e100


class Average(NamedTuple):
    """What the converged window of each coordinate says; arrays of shape (…, |φ|).

    mean       mean of the iterates in the window; NaN where no window has converged
    sd         spread of one iterate around it
    mean_sd    sd of the mean itself, which the iterates' memory keeps above sd/√steps
    steps      length of the window; 0 where none has converged
    slope      of a line through the window, over its whole length; through the shortest window where none has
    r_hat      split-R̂ of the same window: above 1.1 its halves disagree, whatever the slope's units
    """

    mean: np.ndarray
    sd: np.ndarray
    mean_sd: np.ndarray
    steps: np.ndarray
    slope: np.ndarray
    r_hat: np.ndarray

    @property
    def converged(self) -> np.ndarray:
        """Which coordinates have a converged window."""
        return self.steps > 0


class _Tails(NamedTuple):
    """Moments of the tails that start at each block, (…, blocks, |φ|); iterates are measured from the last block's."""

    steps: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    slope: np.ndarray


def average(release: Release, slope: float = SLOPE, shortest: float = SHORTEST) -> Average:
    """The mean of each coordinate's longest tail whose fitted line rises or falls by less than `slope`.

    A tail shorter than the share `shortest` of the run is no candidate: over few enough steps any trace is flat.
    `slope` is in units of φ, as in the paper, where .05 was chosen; split-R̂ is the second opinion without units.
    """
    if not 0 < shortest <= 1:
        raise ValueError(f"shortest={shortest} must lie in (0, 1]")
    blocks = _blocks(release)
    tails = _tails(blocks)
    long_enough = tails.steps >= np.maximum(FEWEST_STEPS, shortest * tails.steps[..., :1, :])
    long_enough[..., -1, :] = False  # one block has no halves to compare
    flat = long_enough & (np.abs(tails.slope) < slope)
    converged = np.asarray(flat.any(-2))
    last = np.broadcast_to(long_enough.sum(-2) - 1, converged.shape)
    return _average(blocks, tails, np.where(converged, flat.argmax(-2), last), converged)


def tail_average(release: Release, burn_in: float = 0.2) -> Average:
    """The same over the steps after the first share `burn_in`, converged or not."""
    blocks = _blocks(release)
    first = round(burn_in * blocks.mean.shape[-2])
    if first > blocks.mean.shape[-2] - 2:
        raise TraceError(f"burn_in={burn_in} leaves fewer than two blocks to average over")
    shape = (*blocks.mean.shape[:-2], blocks.mean.shape[-1])
    return _average(blocks, _tails(blocks), np.full(shape, first), np.full(shape, True))


def _average(blocks: Blocks, tails: "_Tails", first: np.ndarray, converged: np.ndarray) -> Average:
    """What the tails from each coordinate's `first` block say; NaN where they have not converged."""
    chosen, origin = _Tails(*(_pick(field, first) for field in tails)), np.asarray(blocks.mean)[..., -1, :]
    where = np.where(converged, 1.0, np.nan)
    return Average(
        mean=where * (origin + chosen.mean),
        sd=where * np.sqrt(chosen.variance),
        mean_sd=where * _mean_sd(blocks, origin, first),
        steps=np.where(converged, chosen.steps, 0).astype(int),
        slope=chosen.slope,
        r_hat=_split_r_hat(tails, first),
    )


def inside(release: Release, dim: int | None = None) -> np.ndarray:
    """Which blocks lie in the window of each of the first `dim` coordinates, shape (…, blocks, dim).

    Without `dim`: of each coordinate that rows answered.
    """
    steps, dim = np.asarray(release.blocks.steps), dim or release.blocks.mean_x.shape[-1]
    window = Average(*(part[..., :dim] for part in average(release)))
    if not window.converged.all():
        raise TraceError(not_converged(window) + "; or leave out a fixed share with burn_in=0.2")
    left = np.flip(np.cumsum(np.flip(steps, -2), -2), -2)
    return left <= window.steps[..., None, :]


def noise_aware(
    rng: np.random.Generator,
    release: Release,
    draws: int = 4000,
    *,
    spread: Literal["mean", "iterate"] = "mean",
    window: Average | None = None,
) -> np.ndarray:
    """Draws of φ*, shape (…, draws, |φ|): averaged scales, and locations with the noise that privacy left in them.

    `spread` says which noise: that of the window's mean, which is what is reported, or that of one iterate (the paper's
    words fit both; the latter is wider by √ of the effective number of steps). It is the Ornstein-Uhlenbeck argument:
    it needs a constant step size, so it holds for Adam once its scaling has settled. The average is unbiased for the
    optimum only where the loss is quadratic and clipping is rare; unlike the trace solvers this cannot tell. `window`
    is the average of the release, where it is already known.
    """
    if spread not in ("mean", "iterate"):
        raise ValueError(f"spread={spread!r} must be mean or iterate")
    window = window or average(release)
    if not window.converged.all():
        raise TraceError(not_converged(window))
    dim = described_family(release.settings).dim(window.mean)
    phi = np.repeat(window.mean[..., None, :], draws, axis=-2)
    sd = (window.mean_sd if spread == "mean" else window.sd)[..., None, :dim]
    phi[..., :dim] += sd * rng.standard_normal((*phi.shape[:-1], dim))
    return phi


def not_converged(window: Average) -> str:
    """Which coordinates have not converged, and what to do about it."""
    places = np.unique(np.argwhere(~window.converged)[:, -1])
    worst = np.abs(window.slope[~window.converged]).max()
    named = ", ".join(map(str, places[:10])) + (", …" if len(places) > 10 else "")
    return (
        f"not converged: {len(places)} of {window.mean.shape[-1]} coordinates of φ ({named}) still move by up to "
        f"{worst:.3g} over the last tenth of the run; plan more steps, or a learning rate that is larger where they "
        "crawl and smaller where they swing"
    )


def unsettled(window: Average) -> list[str]:
    """Warnings: windows whose halves disagree (split-R̂), and windows that noise may have chosen.

    A line through a settled window has a slope of sd √12·mean_sd. Where that reaches `SLOPE`, the rule picks windows
    that are flat by chance, and `mean_sd` is too small: 90 % intervals held .80 where it was .3 (see the tests).
    """
    disagree = np.unique(np.argwhere(window.r_hat > LARGEST_R_HAT)[:, -1])
    by_chance = np.unique(np.argwhere(np.sqrt(12) * window.mean_sd > SLOPE)[:, -1])
    size, warnings = window.mean.shape[-1], []
    if len(disagree):
        warnings.append(
            f"split-R̂ exceeds {LARGEST_R_HAT} for {len(disagree)} of {size} coordinates of φ (largest "
            f"{window.r_hat.max():.2f}): the halves of their windows disagree, so their averages may not have settled"
        )
    if len(by_chance):
        warnings.append(
            f"{len(by_chance)} of {size} coordinates of φ are so noisy that their windows may be flat by chance: "
            "their averages are less certain than stated"
        )
    return warnings


def _blocks(release: Release) -> Blocks:
    blocks: Blocks = Blocks(*(np.asarray(field, np.float64) for field in release.blocks))
    steps = blocks.steps.sum(-2).min()
    if steps < FEWEST_STEPS or blocks.mean.shape[-2] < 2:
        raise TraceError(
            f"{int(steps)} steps in {blocks.mean.shape[-2]} blocks are too few to average: at least {FEWEST_STEPS} "
            "steps in two blocks are needed"
        )
    bad = np.unique(np.argwhere(~(np.abs(blocks.mean) < HUGE) | ~np.isfinite(blocks.square))[:, -1])
    if len(bad):
        raise TraceError(
            f"the iterates of coordinates {bad[:10].tolist()} exploded, beyond {HUGE:g} or all numbers; lower the "
            "learning rate, or start from a smaller sd"
        )
    return blocks


def _tails(blocks: Blocks) -> _Tails:
    count, moved = blocks.steps, blocks.mean - blocks.mean[..., -1:, :]
    time = np.cumsum(count, -2) - count / 2  # the middle of each block; lines do not care about the origin

    def total(values):
        return np.flip(np.cumsum(np.flip(values, -2), -2), -2)

    steps, sum_x, sum_t = total(count), total(count * moved), total(count * time)
    variance = (total(blocks.square + count * moved**2) - sum_x**2 / steps) / steps
    with_time = total(blocks.drift + count * time * moved) - sum_t * sum_x / steps
    time_square = total(count * (count**2 - 1) / 12 + count * time**2) - sum_t**2 / steps
    slope = with_time / np.maximum(time_square, 1e-300) * (steps - 1)
    return _Tails(steps, sum_x / steps, np.maximum(variance, 0), slope)


def _pick(values: np.ndarray, place: np.ndarray) -> np.ndarray:
    """`values` (…, blocks, 1 or |φ|) at a block for each coordinate."""
    values = np.broadcast_to(values, (*values.shape[:-1], place.shape[-1]))
    return np.take_along_axis(values, place[..., None, :], -2)[..., 0, :]


def _split_r_hat(tails: _Tails, first: np.ndarray) -> np.ndarray:
    """√(pooled variance ÷ mean variance within the halves) of the window from each coordinate's first block."""
    middle = (first + tails.mean.shape[-2]) // 2
    whole, second = (_Tails(*(_pick(field, place) for field in tails)) for place in (first, middle))
    early = whole.steps - second.steps
    mean = (whole.steps * whole.mean - second.steps * second.mean) / early
    between = early * second.steps / whole.steps * (mean - second.mean) ** 2
    within = np.maximum(whole.steps * whole.variance - between, 0) / (whole.steps - 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        r_hat = np.sqrt((whole.steps - 2) / whole.steps + 2 * between / (whole.steps * within))
    return np.where(between + within == 0, 1.0, r_hat)


def _mean_sd(blocks: Blocks, origin: np.ndarray, first: np.ndarray) -> np.ndarray:
    """sd of the window's mean from the scatter of its block means and their lag-one correlation.

    Blocks shorter than the iterates' memory are correlated: ρ between neighbours multiplies the variance of the mean
    by (1 + ρ)/(1 − ρ), as in a first-order autoregression. Means over blocks are not quite one: the sd is too large,
    by up to √1.5 for a memory of many blocks, which makes up for the few independent blocks there are then.
    """
    place = np.arange(blocks.mean.shape[-2])[:, None]
    inside = place >= first[..., None, :]
    weight = np.where(inside, blocks.steps, 0.0)
    moved = blocks.mean - origin[..., None, :]
    total = weight.sum(-2, keepdims=True)
    gap = np.where(inside, moved - (weight * moved).sum(-2, keepdims=True) / total, 0.0)
    count, square = inside.sum(-2), (weight * gap**2).sum(-2)
    lagged = (np.sqrt(weight[..., 1:, :] * weight[..., :-1, :]) * gap[..., 1:, :] * gap[..., :-1, :]).sum(-2)
    # the window's own mean was taken out, which biases ρ down by about 1/count
    rho = np.clip(lagged / np.maximum(square, 1e-300) + 1 / count, 0.0, 0.98)
    return np.sqrt(square / total[..., 0, :] / (count - 1) * (1 + rho) / (1 - rho))
