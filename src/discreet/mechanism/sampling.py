"""Poisson sampling with fixed shapes, drawn on the host from the noise stream."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import stats

from discreet.mechanism.noise import OVERFLOW, SAMPLING, Noise, uniforms
from discreet.plan import Plan
from discreet.query import Numbers

FULL_MASK_ROWS = 16384


class Batches(NamedTuple):
    """One batch per step: positions of stored rows, and how many people stand behind each (0: padding).

    `indices` is None where every stored row is looked at.
    """

    indices: Numbers | None
    multiplicity: Numbers


def draw_batches(noise: Noise, chunk: int, plan: Plan, steps: int, counts: np.ndarray | None) -> Batches:
    """`steps` independent batches; each person is in with probability `plan.sampling_prob`.

    Guarantee: inclusions are independent; where more than `plan.batch_limit` people are in, a uniformly random subset
    of that size stays. The shapes depend on the plan alone.
    """
    if counts is not None:
        return Batches(None, _binomial_cells(noise, chunk, plan, steps, counts))
    if plan.sampling_prob == 1 and plan.batch_limit in (None, plan.num_rows):
        return Batches(None, np.ones((steps, plan.num_rows)))
    limit = plan.batch_limit or plan.num_rows
    if plan.num_rows <= FULL_MASK_ROWS or 4 * limit > plan.num_rows:
        return _from_masks(noise, chunk, plan, steps, limit)
    return _from_subsets(noise, chunk, plan, steps, limit)


def _binomial_cells(noise: Noise, chunk: int, plan: Plan, steps: int, counts: np.ndarray) -> np.ndarray:
    draws = uniforms(noise.words(SAMPLING, chunk, steps * counts.size)).reshape(*counts.shape, steps)
    multiplicity = np.empty_like(draws)
    for cell in np.ndindex(counts.shape):
        multiplicity[cell] = _binomial(draws[cell], int(counts[cell]), plan.sampling_prob)
    return np.moveaxis(multiplicity, -1, -2)


def _binomial(uniform: np.ndarray, trials: int, prob: float) -> np.ndarray:
    low, cdf = _binomial_table(trials, prob)
    return np.minimum(low + np.searchsorted(cdf, uniform), trials)


@lru_cache(maxsize=8192)
def _binomial_table(trials: int, prob: float) -> tuple[int, np.ndarray]:
    mean, spread = trials * prob, 12 * np.sqrt(trials * prob * (1 - prob)) + 40
    low, high = max(0, int(mean - spread)), min(trials, int(mean + spread) + 1)
    return low, stats.binom.cdf(np.arange(low, high + 1), trials, prob)


def _from_masks(noise: Noise, chunk: int, plan: Plan, steps: int, limit: int) -> Batches:
    size = steps * plan.num_rows
    coins = noise.words(SAMPLING, chunk, (size + 1) // 2).view(np.uint32)[:size]
    threshold = np.uint64(plan.sampling_prob * 2.0**32)  # rounded down: never more than the plan's rate
    mask = coins.reshape(steps, plan.num_rows) < threshold
    _drop_excess(noise, chunk, mask, limit)
    step, row = np.nonzero(mask)
    taken = np.bincount(step, minlength=steps)
    position = np.arange(len(step)) - np.repeat(np.cumsum(taken) - taken, taken)
    indices = np.zeros((steps, limit), np.int32)
    indices[step, position] = row
    return Batches(indices, _padding(taken, limit))


def _drop_excess(noise: Noise, chunk: int, mask: np.ndarray, limit: int) -> None:
    over = np.flatnonzero(mask.sum(1) > limit)
    priority = noise.words(OVERFLOW, chunk, len(over) * mask.shape[1]).reshape(len(over), mask.shape[1])
    for step, rank in zip(over, priority, strict=True):
        chosen = np.flatnonzero(mask[step])
        mask[step, chosen[np.argsort(rank[chosen])[limit:]]] = False


def _from_subsets(noise: Noise, chunk: int, plan: Plan, steps: int, limit: int) -> Batches:
    """A binomial size, capped, then a uniform subset of that size.

    Repeats are redrawn by position, never by value, so every subset is equally likely.
    """
    spare = steps * limit * (1 + int(4 * limit / plan.num_rows)) + 64 * steps
    words = noise.words(SAMPLING, chunk, steps + steps * limit + spare)
    size = _binomial(uniforms(words[:steps]), plan.num_rows, plan.sampling_prob)
    to_index = lambda block: (uniforms(block) * plan.num_rows).astype(np.int32)  # noqa: E731
    indices = to_index(words[steps : steps + steps * limit]).reshape(steps, limit)
    used = steps + steps * limit
    while (repeats := _repeats(indices)).any():
        count = int(repeats.sum())
        if used + count > len(words):
            raise RuntimeError("the sampler ran out of random words; lower batch_limit or sampling_prob")
        indices[repeats] = to_index(words[used : used + count])
        used += count
    return Batches(indices, _padding(np.minimum(size, limit), limit))


def _repeats(indices: np.ndarray) -> np.ndarray:
    order = np.argsort(indices, axis=1, kind="stable")
    ordered = np.take_along_axis(indices, order, 1)
    repeats = np.zeros(indices.shape, bool)
    np.put_along_axis(repeats, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], 1)
    return repeats


def _padding(taken: np.ndarray, limit: int) -> np.ndarray:
    return (np.arange(limit)[None, :] < taken[:, None]).astype(np.float64)
