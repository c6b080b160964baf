from dataclasses import replace

import numpy as np
import pytest

from discreet.posterior.trace import Moments, TraceError, after, check_release, halves, moments, tail
from discreet.query import Point
from discreet.release import Blocks, Release, tail_mean
from tests.posterior.traces import blocks_of, quadratic, release_of, stacked


@pytest.fixture(scope="module")
def release():
    return quadratic(
        np.random.default_rng(0), np.diag([30.0, 80.0]), [1e6, -3.0], steps=1000, beta=np.array([1.0, 7.0])
    )


def directly(release, first, last=1000):
    """Weighted moments of the raw steps from `first` to `last`."""
    x, y, scale = (part[first:last] for part in release.trace[1:])
    weight = scale**-2
    mean_x, mean_y = np.average(x, axis=0, weights=weight), np.average(y, axis=0, weights=weight)
    dx, dy = x - mean_x, y - mean_y
    sums = ((weight * product).sum(0) for product in (dx * dx, dx * dy, dy * dy))
    return Moments(np.full(1, last - first), weight.sum(0), mean_x, mean_y, *sums)


@pytest.mark.parametrize("burn_in", [0.0, 0.2, 0.5])
def test_joined_moments_equal_the_moments_of_the_whole_tail(release, burn_in):
    """Also a million units away from zero, where uncentred sums would have cancelled."""
    for found, expected in zip(tail(release, burn_in), directly(release, int(burn_in * 1000)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_moments_do_not_depend_on_the_blocks(release):
    again = release_of(release.plan, *release.trace[1:], release.last, block=125)
    for one, other in zip(tail(release, 0.5), tail(again, 0.5), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


@pytest.mark.parametrize("burn_in", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("block", [50, 30])
def test_the_tail_mean_is_that_of_the_iterates(release, burn_in, block):
    """All of φ, each step counted once, whatever x and the weights are; the tail starts at the nearest block."""
    rng = np.random.default_rng(8)
    points = Point(rng.normal(1e6, 1.0, (1000, 3)), *rng.normal(size=(2, 1000, 1)), rng.uniform(0.5, 2, (1000, 1)))
    short = Release(release.plan, "simulated", {}, blocks_of(points, block), points.iterate[-1])
    first = block * round(burn_in * len(short.blocks.mean))
    np.testing.assert_allclose(tail_mean(short, burn_in), points.iterate[first:].mean(0), rtol=1e-13)
    assert tail(short, burn_in).mean_x.shape == (1,)


def test_weights_may_change_along_the_trace():
    rng = np.random.default_rng(1)
    x, y, scale = rng.normal(size=(200, 1)), rng.normal(size=(200, 1)), rng.uniform(0.5, 2, (200, 1))
    plan = quadratic(rng, [[1.0]], [0.0], steps=20).plan
    found = tail(release_of(plan, x, y, scale, x[-1], block=40), 0.0)
    weight = scale**-2
    centre = (weight * x).sum() / weight.sum()
    np.testing.assert_allclose(found.mean_x, centre)
    np.testing.assert_allclose(found.xx, (weight * (x - centre) ** 2).sum())


def test_each_coordinate_may_have_a_window_of_its_own(release):
    """Blocks of 50 steps: the first coordinate from step 600 on, the second between 200 and 700."""
    block = np.arange(20)[:, None]
    found = moments(release.blocks, np.hstack([block >= 12, (block >= 4) & (block < 14)]))
    first, second = directly(release, 600), directly(release, 200, 700)
    assert found.steps.tolist() == [400, 500]
    for value, one, other in zip(found[1:], first[1:], second[1:], strict=True):
        np.testing.assert_allclose(value, [one[0], other[1]], rtol=1e-7)


def test_replicas_have_moments_of_their_own(release):
    other = quadratic(np.random.default_rng(3), np.diag([30.0, 80.0]), [0.0, 1.0], steps=1000)
    together = moments(stacked([release, other]).blocks, after(release.blocks, 0.2))
    for found, one, two in zip(together, tail(release), tail(other), strict=True):
        np.testing.assert_allclose(found, np.stack([one, two]), rtol=1e-12)


def test_replicas_may_have_windows_of_their_own(release):
    both = stacked([release, release])
    place = np.arange(20)[:, None]
    found = moments(both.blocks, np.stack([place >= 4, place >= 10]))
    for value, one, two in zip(found, tail(release, 0.2), tail(release, 0.5), strict=True):
        np.testing.assert_allclose(value, np.stack([one, two]), rtol=1e-12)


@pytest.mark.parametrize(("burn_in", "left_out"), [(0.0, 0), (0.2, 4), (0.22, 4), (0.24, 5), (0.99, 20)])
def test_the_tail_starts_at_the_nearest_block(release, burn_in, left_out):
    chosen = after(release.blocks, burn_in)
    assert chosen.shape == (20, 1)
    assert chosen[:, 0].tolist() == [False] * left_out + [True] * (20 - left_out)


@pytest.mark.parametrize("first", [0, 3, 4])
def test_halves_part_the_blocks_inside_in_time(release, first):
    inside = np.arange(20)[:, None] >= first
    early, late = halves(release.blocks, inside)
    np.testing.assert_array_equal(early | late, inside)
    assert not (early & late).any()
    assert np.flatnonzero(early).max() < np.flatnonzero(late).min()
    assert abs(early.sum() - late.sum()) <= 1


def test_halves_count_steps_and_not_blocks(release):
    """Blocks of 300, 300, 300 and 100 steps: half of the steps are over only within the second."""
    blocks = blocks_of(release.trace, 300)
    early, late = halves(blocks, np.full((4, 1), True))
    assert early[:, 0].tolist() == [True, False, False, False]
    assert late[:, 0].tolist() == [False, True, True, True]


def test_each_coordinate_has_halves_of_its_own(release):
    place = np.arange(20)[:, None]
    early, late = halves(release.blocks, np.hstack([place >= 0, place >= 12]))
    assert [np.flatnonzero(part[:, 0]).tolist() for part in (early, late)] == [[*range(10)], [*range(10, 20)]]
    assert [np.flatnonzero(part[:, 1]).tolist() for part in (early, late)] == [[*range(12, 16)], [*range(16, 20)]]


def spoiled(release, change):
    x, y, scale = (np.array(part) for part in release.trace[1:])
    change(x, y)
    return release_of(release.plan, x, y, scale, release.last)


def test_a_trace_that_diverged_is_named(release):
    with pytest.raises(TraceError, match="diverged"):
        tail(spoiled(release, lambda x, y: x.__setitem__((900, 0), np.inf)))


@pytest.mark.parametrize("place", [0.0, 2.0, 0.1, -1e5 / 3])
def test_a_coordinate_that_never_moved_is_named(release, place):
    """Wherever it stands: the means of its blocks are off by the last bit."""
    with pytest.raises(TraceError, match=r"\[1\] never moved"):
        tail(spoiled(release, lambda x, y: x.__setitem__((slice(None), 1), place)))


def test_too_few_steps_are_named(release):
    short = release_of(release.plan, *(part[:8] for part in release.trace[1:]), release.last, block=4)
    with pytest.raises(TraceError, match="8 retained steps are too few: at least 10"):
        tail(short, 0.0)
    enough = release_of(release.plan, *(part[:10] for part in release.trace[1:]), release.last, block=5)
    assert tail(enough, 0.0).steps.tolist() == [10]


def test_too_few_steps_of_one_coordinate_are_named(release):
    place = np.arange(20)[:, None]
    with pytest.raises(TraceError, match="0 retained steps are too few"):
        moments(release.blocks, np.hstack([place >= 4, place >= 20]))


@pytest.mark.parametrize("method", [None, "elbo"])
def test_a_release_of_gradients_is_accepted(release, method):
    check_release(replace(release, settings={} if method is None else {"method": method}))


def test_a_release_of_another_method_is_refused(release):
    """Answers to anything but gradients do not lie on a line."""
    foreign = replace(release, settings={"method": "statistics"})
    with pytest.raises(TraceError, match=r"method 'statistics'.*gradients, scores and sites"):
        tail(foreign)


@pytest.mark.parametrize("other", [None, "a folder", {"blocks": 1}])
def test_what_is_no_release_is_refused(other):
    with pytest.raises(TraceError, match=f"a {type(other).__name__} is not a release: load one"):
        check_release(other)


def test_a_release_without_answers_is_refused(release):
    empty = replace(release, blocks=Blocks(*(np.asarray(part)[:0] for part in release.blocks)))
    with pytest.raises(TraceError, match="no answers"):
        tail(empty)


def test_a_trace_error_carries_no_release_of_its_own():
    """A fit that was paid for sets it; whoever reads a release has it already."""
    assert TraceError("no").release is None
    assert issubclass(TraceError, ValueError)


@pytest.mark.parametrize("burn_in", [-0.1, 1.0, 2.0])
def test_burn_in_is_a_share(release, burn_in):
    with pytest.raises(ValueError, match="burn_in"):
        tail(release, burn_in)
