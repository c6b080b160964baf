import numpy as np
import pytest

from discreet.posterior.trace import TraceError, tail, tail_mean
from discreet.query import Point
from discreet.release import Release
from tests.posterior.traces import blocks_of, quadratic, release_of


@pytest.fixture(scope="module")
def release():
    return quadratic(
        np.random.default_rng(0), np.diag([30.0, 80.0]), [1e6, -3.0], steps=1000, beta=np.array([1.0, 7.0])
    )


@pytest.mark.parametrize("burn_in", [0.0, 0.2, 0.5])
def test_joined_moments_equal_the_moments_of_the_whole_tail(release, burn_in):
    """Also a million units away from zero, where uncentred sums would have cancelled."""
    first = int(burn_in * 1000)
    x, y, weight = release.trace.x[first:], release.trace.y[first:], release.trace.scale[first:] ** -2
    moments = tail(release, burn_in)
    dx, dy = x - x.mean(0), y - y.mean(0)
    for found, expected in [
        (moments.mean_x, x.mean(0)),
        (moments.mean_y, y.mean(0)),
        (moments.xx, (weight * dx * dx).sum(0)),
        (moments.xy, (weight * dx * dy).sum(0)),
        (moments.yy, (weight * dy * dy).sum(0)),
        (moments.weight, weight.sum(0)),
        (moments.steps, np.full(1, 1000 - first)),
    ]:
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
    moments = tail(release_of(plan, x, y, scale, x[-1], block=40), 0.0)
    weight = scale**-2
    centre = (weight * x).sum() / weight.sum()
    np.testing.assert_allclose(moments.mean_x, centre)
    np.testing.assert_allclose(moments.xx, (weight * (x - centre) ** 2).sum())


def spoiled(release, change):
    x, y, scale = (np.array(part) for part in release.trace[1:])
    change(x, y)
    return release_of(release.plan, x, y, scale, release.last)


def test_a_trace_that_diverged_is_named(release):
    with pytest.raises(TraceError, match="diverged"):
        tail(spoiled(release, lambda x, y: x.__setitem__((900, 0), np.inf)))


def test_a_coordinate_that_never_moved_is_named(release):
    with pytest.raises(TraceError, match=r"\[1\] never moved"):
        tail(spoiled(release, lambda x, y: x.__setitem__((slice(None), 1), 2.0)))


def test_too_few_steps_are_named(release):
    short = release_of(release.plan, *(part[:8] for part in release.trace[1:]), release.last, block=4)
    with pytest.raises(TraceError, match="too few"):
        tail(short, 0.0)


@pytest.mark.parametrize("burn_in", [-0.1, 1.0, 2.0])
def test_burn_in_is_a_share(release, burn_in):
    with pytest.raises(ValueError, match="burn_in"):
        tail(release, burn_in)
