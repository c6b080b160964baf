"""Poisson sampling with fixed shapes, drawn on the host from the noise stream."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import stats

from discreet.mechanism.noise import OVERFLOW, SAMPLING, Noise, uniforms
from discreet.plan import Plan
from discreet.query import Numbers

IN_CACHE = 2**16


class Batches(NamedTuple):
    """One batch per step: positions of stored rows, and how many people stand behind each (0: padding).

    `indices` is None where every stored row is looked at.
    """

    indices: Numbers | None
    multiplicity: Numbers


def draw_batches(
    noise: Noise, chunk: int, plan: Plan, steps: int, counts: np.ndarray | None, replicas: int | None = None
) -> Batches:
    """`steps` independent batches, for each of `replicas` tables; each person is in with `plan.sampling_prob`.

    Guarantee: steps are independent. Inclusions in a Poisson batch are, too; where more than `plan.batch_limit` people
    are in, a uniformly random subset of that size stays. "One row" is each row with the same probability, to 2⁻⁵². The
    shapes depend on the plan alone.
    """
    if counts is not None:
        return Batches(None, _binomial_cells(noise, chunk, plan, steps, counts))
    shape = (steps,) if replicas is None else (replicas, steps)
    if plan.sampling == "one row":
        place = np.floor(uniforms(noise.words(SAMPLING, chunk, int(np.prod(shape)))) * plan.num_rows)
        return Batches(place.astype(np.int32).reshape(*shape, 1), np.ones((*shape, 1), np.int8))
    limit = plan.batch_limit or plan.num_rows
    if plan.sampling_prob == 1 and limit == plan.num_rows:
        return Batches(None, np.ones((*shape, limit), np.int8))
    indices, multiplicity = _walk(noise, chunk, plan, int(np.prod(shape)), limit)
    return Batches(indices.reshape(*shape, limit), multiplicity.reshape(*shape, limit))


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


def _walk(noise: Noise, chunk: int, plan: Plan, count: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` batches, each by walking from member to member: gaps between independent inclusions are geometric."""
    words = noise.words(SAMPLING, chunk, count * limit).reshape(count, limit)
    place, multiplicity = np.empty((count, limit), np.int32), np.empty((count, limit), np.int8)
    group = max(1, IN_CACHE // limit)
    for some in (slice(first, first + group) for first in range(0, count, group)):
        place[some] = _places(words[some], plan)
        np.less(place[some], plan.num_rows, out=multiplicity[some], casting="unsafe")
        np.minimum(place[some], plan.num_rows - 1, out=place[some])
    for part, batch in enumerate(np.flatnonzero(multiplicity[:, -1])):
        _walk_on(noise, chunk, part, plan, place[batch])
    return place, multiplicity


def _places(words: np.ndarray, plan: Plan) -> np.ndarray:
    """Positions of the members of each batch in the order of the table; num_rows stands for all beyond its end.

    Skipping k rows has probability κ(1 − κ)^k.
    """
    gap = uniforms(words)
    np.log(gap, out=gap)
    gap *= -1 / _steepness(plan.sampling_prob)
    np.minimum(gap, plan.num_rows, out=gap)
    np.floor(gap, out=gap)
    gap += 1
    place = np.cumsum(gap, axis=-1, out=gap)  # whole numbers far below 2⁵³
    place -= 1
    return np.minimum(place, plan.num_rows, out=place)


def _steepness(prob: float) -> float:
    return np.inf if prob == 1 else -np.log1p(-prob)


def _walk_on(noise: Noise, chunk: int, part: int, plan: Plan, place: np.ndarray) -> None:
    """A batch that is full goes on to the end of the table; if more rows are in, a random subset stays in `place`."""
    left = plan.num_rows - 1 - int(place[-1])
    mean = left * plan.sampling_prob
    more, limit = int(mean + 12 * np.sqrt(mean)) + 60, len(place)
    words = noise.words(OVERFLOW | part << 8, chunk, more + limit + more)
    further = place[-1] + 1 + _places(words[:more], plan)
    if further[-1] < plan.num_rows:
        raise RuntimeError("a batch was larger than twelve standard deviations allow: the random stream is broken")
    members = np.concatenate([place, further[further < plan.num_rows].astype(np.int32)])
    priority = words[more : more + len(members)]
    place[:] = members[np.argsort(priority, kind="stable")[:limit]]
