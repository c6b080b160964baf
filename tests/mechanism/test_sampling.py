"""Poisson batches by geometric gaps: the whole law of small tables, and what large ones may not cost.

Every χ² test has a false-alarm rate of 10⁻⁶. `tests/guarantees/test_audits.py` audits the same draws as a mechanism's.
"""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from discreet.mechanism import noise, sampling
from discreet.plan import Plan, default_batch_limit


def plan_of(num_rows, rate, limit=None):
    return Plan(num_rows, 10, rate, 1.0, 1.0, limit)


def drawn(plan, steps, replicas=None, *, seed=1, chunk=0):
    return sampling.draw_batches(noise.simulated(seed), chunk, plan, steps, None, replicas)


def members(batches, num_rows):
    """Who is in each batch, (…, num_rows); nobody twice, nobody who does not exist."""
    assert ((batches.indices >= 0) & (batches.indices < num_rows)).all()
    assert np.isin(batches.multiplicity, (0, 1)).all()
    limit = batches.indices.shape[-1]
    here = np.zeros((batches.indices.size // limit, num_rows), int)
    places = np.arange(len(here)).repeat(limit), batches.indices.ravel()
    np.add.at(here, places, batches.multiplicity.ravel().astype(int))
    assert here.max(initial=0) <= 1
    return here.reshape(*batches.indices.shape[:-1], num_rows)


def sets_of(included):
    """Each batch as a number whose binary digits are its members."""
    return included @ (1 << np.arange(included.shape[-1]))


def law_of_sets(num_rows, rate, limit):
    """P(batch) by number, from all 2^N inclusions; above the limit each subset of that size keeps its share."""
    law = np.zeros(2**num_rows)
    for size in range(num_rows + 1):
        for chosen in combinations(range(num_rows), size):
            prob = rate**size * (1 - rate) ** (num_rows - size)
            kept = list(combinations(chosen, min(size, limit)))
            for subset in kept:
                law[sum(1 << row for row in subset)] += prob / len(kept)
    return law


def assert_law(numbers, law):
    """χ² of counted outcomes, those of probability zero never; false alarm 10⁻⁶."""
    seen = np.bincount(numbers, minlength=len(law))
    assert (seen[law == 0] == 0).all()
    expected = len(numbers) * law[law > 0]
    assert expected.min() > 5
    assert ((seen[law > 0] - expected) ** 2 / expected).sum() < stats.chi2.isf(1e-6, len(expected) - 1)


SMALL = [
    (1, 0.3, 1),
    (2, 0.05, 2),
    (3, 0.3, 3),
    (3, 0.3, 2),
    (3, 0.6, 1),
    (4, 0.7, 2),
    (5, 0.4, 4),
    (4, 1.0, 2),
    (6, 1.0, 3),
    (5, 1.0, 1),
]


@pytest.mark.parametrize(("num_rows", "rate", "limit"), SMALL)
def test_every_possible_batch_has_its_probability(num_rows, rate, limit):
    """The empty one too, the one that just reaches its limit, and every subset of those that exceed it."""
    included = members(drawn(plan_of(num_rows, rate, limit), 8000), num_rows)
    assert_law(sets_of(included), law_of_sets(num_rows, rate, limit))


@pytest.mark.parametrize(("rate", "limit"), [(0.4, 2), (0.5, 1), (1.0, 1)])
@pytest.mark.parametrize("along", ["steps", "replicas", "chunks"])
def test_batches_of_other_steps_replicas_and_chunks_are_independent(along, rate, limit):
    """Pairs of batches have the product of their laws, overflowing ones too."""
    plan, law = plan_of(2, rate, limit), law_of_sets(2, rate, limit)
    batch = sets_of(members(drawn(plan, 80, 60), 2))
    if along == "steps":
        first, second = batch[:, ::2], batch[:, 1::2]
    elif along == "replicas":
        first, second = batch[::2], batch[1::2]
    else:
        first, second = batch, sets_of(members(drawn(plan, 80, 60, chunk=1), 2))
    assert_law((len(law) * first + second).ravel(), np.outer(law, law).ravel())


@pytest.mark.parametrize("replicas", [None, 3])
@pytest.mark.parametrize(
    ("num_rows", "rate", "limit", "width"),
    [(50, 0.1, 15, 15), (50, 0.1, 2, 2), (50, 0.1, None, 50), (50, 1.0, 20, 20), (50, 1e-9, 7, 7)],
)
def test_shapes_and_types_are_the_plans_whatever_was_drawn(num_rows, rate, limit, width, replicas):
    shape = (4, width) if replicas is None else (replicas, 4, width)
    for seed in range(3):
        batches = drawn(plan_of(num_rows, rate, limit), 4, replicas, seed=seed)
        assert (batches.indices.shape, batches.multiplicity.shape) == (shape, shape)
        assert (batches.indices.dtype, batches.multiplicity.dtype) == (np.int32, np.int8)
        size = members(batches, num_rows).sum(-1)
        np.testing.assert_array_equal(size, batches.multiplicity.sum(-1))
        if rate == 1:
            assert (size == width).all()


def test_where_everybody_is_in_nobody_is_looked_up():
    for limit in (None, 5):
        batches = drawn(plan_of(5, 1.0, limit), 3, 2)
        assert batches.indices is None
        np.testing.assert_array_equal(batches.multiplicity, np.ones((2, 3, 5)))


def test_at_a_tight_limit_sizes_are_truncated_binomials_and_who_stays_is_uniform():
    """Sizes by χ². Of full batches, places by χ² (their counts have covariance B·m(N − m)/(N(N − 1)) off the mean),
    and neighbours by a z-score below 5: false alarm 6e-7.
    """
    num_rows, rate, limit, count = 60, 0.3, 18, 8000
    included = members(drawn(plan_of(num_rows, rate, limit), count), num_rows)
    sizes = np.maximum(included.sum(1), 8) - 8
    binomial = stats.binom(num_rows, rate)
    law = np.array([binomial.cdf(8), *binomial.pmf(np.arange(9, limit)), binomial.sf(limit - 1)])
    assert_law(sizes, law)
    full = included[included.sum(1) == limit]
    mean = len(full) * limit / num_rows
    variance = mean * (num_rows - limit) / (num_rows - 1)
    low, high = stats.chi2(num_rows - 1).ppf([5e-7, 1 - 5e-7])
    assert low < ((full.sum(0) - mean) ** 2).sum() / variance < high
    neighbours = (full[:, 1:] * full[:, :-1]).sum(1)
    z = (neighbours.mean() - limit * (limit - 1) / num_rows) / (neighbours.std() / np.sqrt(len(full)))
    assert abs(z) < 5


class Counted(noise.Noise):
    """A simulated stream that counts the words that it was asked for."""

    asked = 0

    def words(self, purpose, chunk, count):
        self.asked += count
        return super().words(purpose, chunk, count)


def test_ten_million_rows_cost_what_their_batches_hold():
    """Places are uniform (Kolmogorov and Smirnov, false alarm 10⁻⁶) sizes binomial; 4·10¹⁰ inclusions, 10⁵ words."""
    num_rows, rate, steps = 10**7, 1e-6, 4000
    limit = default_batch_limit(num_rows, rate)
    stream = Counted(bytes(32), "simulated")
    batches = sampling.draw_batches(stream, 0, plan_of(num_rows, rate, limit), steps, None)
    assert stream.asked < 1.01 * steps * limit
    there = batches.multiplicity > 0
    places = batches.indices[there]
    assert ((places >= 0) & (places < num_rows)).all()
    assert stats.kstest(places / num_rows, "uniform").pvalue > 1e-6
    sizes, law = np.clip(there.sum(1), 2, 20) - 2, stats.binom(num_rows, rate)
    assert_law(sizes, np.array([law.cdf(2), *law.pmf(np.arange(3, 20)), law.sf(19)]))
    ordered = np.sort(np.where(there, batches.indices, -1 - np.arange(limit)), axis=1)
    assert (np.diff(ordered) > 0).all(), "nobody twice"


def test_a_stream_and_a_chunk_always_give_the_same_batches(monkeypatch):
    """In however many groups they are made."""
    plan = plan_of(30, 0.4, 12)
    one, again, other = drawn(plan, 50, 2, chunk=3), drawn(plan, 50, 2, chunk=3), drawn(plan, 50, 2, chunk=4)
    monkeypatch.setattr(sampling, "IN_CACHE", 1)
    split = drawn(plan, 50, 2, chunk=3)
    for batches in (again, split):
        np.testing.assert_array_equal(one.indices, batches.indices)
        np.testing.assert_array_equal(one.multiplicity, batches.multiplicity)
    for batches in (other, drawn(plan, 50, 2, chunk=3, seed=2)):
        assert (members(one, 30) != members(batches, 30)).any(-1).mean() > 0.99


class Told:
    """A stream that says at κ = ½ how many rows are skipped: first in the batch, then once that is full."""

    def __init__(self, gaps, further=(), priorities=()):
        self.told = {False: (gaps, ()), True: (further, priorities)}

    def words(self, purpose, chunk, count):
        gaps, priorities = self.told[purpose & 0xFF == noise.OVERFLOW]
        spoken = (0.75 * 2.0 ** (64 - np.array([*gaps, *[50] * (count - len(gaps))]))).astype(np.uint64)
        spoken[len(spoken) - len(priorities) :] = priorities
        return spoken


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ((0, 0, 2), {0, 1, 4}),
        ((5,), {5}),
        ((6,), set()),
        ((3, 2), {3}),
        ((3, 1), {3, 5}),
        ((0, 0, 0, 0), {0, 1, 2, 3}),
        ((), set()),
    ],
)
def test_a_gap_is_the_number_of_rows_that_are_skipped(gaps, expected):
    """Six rows, of which four may stay; four that are in are not too many."""
    batches = sampling.draw_batches(Told(gaps), 0, plan_of(6, 0.5, 4), 1, None)
    np.testing.assert_array_equal(np.flatnonzero(members(batches, 6)[0]), sorted(expected))


def test_a_full_batch_walks_on_from_its_last_member():
    """Rows 0, 1 fill the batch; 2 and 5 are in as well, and 5 is the last row there is."""
    found = set()
    for seed in range(40):
        order = np.random.default_rng(seed).permutation(200).astype(np.uint64)
        stream = Told((0, 0), (0, 2), order[:100])
        batches = sampling.draw_batches(stream, 0, plan_of(6, 0.5, 2), 1, None)
        found.add(tuple(np.flatnonzero(members(batches, 6)[0]).tolist()))
    assert found == set(combinations((0, 1, 2, 5), 2))


def test_a_stream_that_is_not_random_is_refused():
    class Stuck:
        def words(self, purpose, chunk, count):
            return np.full(count, 2**64 - 1, np.uint64)

    with pytest.raises(RuntimeError, match="stream is broken"):
        sampling.draw_batches(Stuck(), 0, plan_of(1000, 0.01, 5), 1, None)
