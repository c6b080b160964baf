"""Sums for a dense curvature: from the trace, from products of blocks, and by direct sums over the steps."""

from dataclasses import replace

import numpy as np
import pytest

from discreet.posterior import averaging
from discreet.posterior.sums import Sums, fewest_steps, in_units, location_sums, residual_variance
from discreet.posterior.trace import TraceError
from tests.posterior.traces import quadratic, release_of, stacked, with_products

CURVATURE = np.array([[60.0, 30.0, 0.0], [30.0, 40.0, -10.0], [0.0, -10.0, 50.0]])
BETA = np.array([1.0, 7.0, 0.3])


def trace(scale=None, beta=BETA, steps=1000, **options):
    """Three correlated coordinates far from zero."""
    rng = np.random.default_rng(0)
    options = {"std": 8.0, "step_size": 0.02, "beta": beta, "scale": scale} | options
    return quadratic(rng, CURVATURE, [1e4, -3.0, 0.0], steps=steps, **options)


def varying(steps=1000):
    """Scales that grow along the trace, each coordinate's in its own way."""
    rng = np.random.default_rng(1)
    return np.geomspace([0.5, 1.0, 2.0], [4.0, 1.5, 0.2], steps) * rng.uniform(0.8, 1.2, (steps, 3))


def meaning(sums):
    """What the sums say whatever the unit of weight is: everything per variance of y, one plane for each row of A."""
    dim, known = len(sums.mean_y), sums.known
    return (
        np.full(dim, sums.steps),
        sums.weight / known,
        np.broadcast_to(sums.mean_x, (dim, dim)),
        sums.mean_y,
        np.broadcast_to(sums.xx, (dim, dim, dim)) / known[:, None, None],
        sums.yx / known[:, None],
        sums.yy / known,
    )


def directly(release, dim, first, known):
    """The same by loops over rows of A and steps."""
    x, y, scale = (np.asarray(part)[first:, :dim] for part in release.trace[1:])
    known = np.broadcast_to(known, dim)
    parts = [[] for _ in range(6)]
    for row in range(dim):
        precision = 1 / (scale[:, row] ** 2 * known[row])
        mean_x, mean_y = np.average(x, 0, precision), np.average(y[:, row], 0, precision)
        xx, yx, yy = np.zeros((dim, dim)), np.zeros(dim), 0.0
        for at, answer, each in zip(x - mean_x, y[:, row] - mean_y, precision, strict=True):
            xx, yx, yy = xx + each * np.outer(at, at), yx + each * answer * at, yy + each * answer**2
        for part, value in zip(parts, (precision.sum(), mean_x, mean_y, xx, yx, yy), strict=True):
            part.append(value)
    return (np.full(dim, float(len(x))), *(np.array(part) for part in parts))


def assert_same(one, other, rtol=1e-8):
    for index, (left, right) in enumerate(zip(one, other, strict=True)):
        scale = np.abs(right).max()
        np.testing.assert_allclose(left, right, rtol=rtol, atol=rtol * scale, err_msg=str(index))


@pytest.mark.parametrize("burn_in", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("known", [64.0, np.array([64.0, 100.0, 1.0])], ids=["one", "each"])
def test_a_constant_scale_gives_the_sums_of_all_steps(burn_in, dim, known):
    release, known = trace(), known if np.ndim(known) == 0 else known[:dim]
    found = location_sums(release, dim, burn_in, known)
    assert found.xx.shape == (1, dim, dim)
    assert found.mean_x.shape == (1, dim)
    assert_same(meaning(found), directly(release, dim, int(1000 * burn_in), known))


@pytest.mark.parametrize("burn_in", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("dim", [1, 3])
def test_noise_that_changes_along_the_trace_weighs_each_row_of_the_curvature_by_itself(burn_in, dim):
    release = trace(varying())
    found = location_sums(release, dim, burn_in, 64.0)
    assert found.xx.shape == (dim, dim, dim)
    assert_same(meaning(found), directly(release, dim, int(1000 * burn_in), 64.0))


@pytest.mark.parametrize("burn_in", [0.0, 0.2, 0.5])
@pytest.mark.parametrize(("dim", "block", "steps"), [(3, 50, 1000), (2, 50, 1000), (3, 30, 1010)])
def test_products_say_what_the_trace_says(burn_in, dim, block, steps):
    """Field by field, also with a last block that is shorter, and ten thousand units away from zero."""
    release = trace(steps=steps, block=block)
    known = np.array([64.0, 100.0, 1.0])[:dim]
    whole, products = (location_sums(kept, dim, burn_in, known) for kept in (release, with_products(release, block)))
    assert isinstance(products, Sums)
    for name in Sums._fields:
        one, other = np.asarray(getattr(products, name)), np.asarray(getattr(whole, name))
        assert one.shape == other.shape, name
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-9 * np.abs(other).max(), err_msg=name)


@pytest.mark.parametrize("changing", [False, True])
def test_units_are_those_of_parameters_measured_from_their_prior(changing):
    """x in units of sd from the mean, y and its noise in units of 1/sd, as if the trace had been so."""
    release = trace(varying() if changing else None)
    mean, sd = np.array([9990.0, 1.0, -2.0]), np.array([10.0, 0.5, 3.0])
    x, y, scale = release.trace[1:]
    scaled = release_of(release.plan, (x - mean) / sd, y * sd, scale * sd, release.last)
    found = in_units(location_sums(release, 3, 0.2, 64.0), mean, sd)
    assert_same(meaning(found), meaning(location_sums(scaled, 3, 0.2, 64.0)), rtol=1e-7)


@pytest.mark.parametrize("changing", [False, True])
def test_residual_variance_is_that_of_least_squares(changing):
    """Around planes fitted to the weighed trace, row by row; the plan's share of it is not known here."""
    release = trace(varying() if changing else None)
    sums = location_sums(release, 3, 0.2, 1e-6)
    x, y, scale = (part[200:] for part in release.trace[1:])
    expected = []
    for row in range(3):
        design = np.hstack([np.ones((800, 1)), x - x.mean(0)]) / scale[:, row : row + 1]
        answer = y[:, row] / scale[:, row]
        left = answer - design @ np.linalg.lstsq(design, answer, rcond=None)[0]
        expected.append((left**2).sum() / (800 - 4))
    np.testing.assert_allclose(residual_variance(sums) / sums.known * 1e-6, expected, rtol=1e-6)
    np.testing.assert_allclose(expected, 64.0, rtol=0.2)


def test_residual_variance_is_at_least_what_the_plan_added():
    sums = location_sums(trace(), 3, 0.2, 1e4)
    np.testing.assert_array_equal(residual_variance(sums), sums.known)


def test_the_converged_window_is_what_all_locations_share():
    """A coordinate that came down late cuts the window of the others; one beyond the locations does not."""
    rng = np.random.default_rng(2)
    release = quadratic(
        rng, np.diag([50.0, 50.0, 50.0]), np.zeros(3), steps=2000, std=0.5, step_size=2e-3, start=[0.0, 0.5, 5.0]
    )
    steps = averaging.average(release).steps
    assert steps[0] == 2000 > steps[1] > steps[2] > 0
    assert location_sums(release, 2, "converged", 0.25).steps == steps[1]
    found = location_sums(release, 3, "converged", 0.25)
    assert_same(meaning(found), directly(release, 3, 2000 - steps[2], 0.25))
    assert_same(meaning(found), meaning(location_sums(with_products(release), 3, "converged", 0.25)))


def test_what_has_not_converged_is_refused_where_convergence_was_asked_for():
    release = quadratic(
        np.random.default_rng(3), np.diag([50.0, 0.5]), np.zeros(2), steps=1000, std=0.5, step_size=2e-3, start=[0.0, 9]
    )
    with pytest.raises(TraceError, match="not converged"):
        location_sums(release, 2, "converged", 0.25)
    assert location_sums(release, 1, "converged", 0.25).steps == 1000


def spoiled(change):
    """A release whose trace, and with it its blocks, was changed in place."""
    release = trace()
    x, y, scale = (np.array(part) for part in release.trace[1:])
    change(x, y, scale)
    return release_of(release.plan, x, y, scale, release.last)


def diverge(x, y, scale):
    x[900, 1] = np.nan


def overflow(x, y, scale):
    y[900, 2] = np.inf


def stand_still(x, y, scale):
    x[:, 2] = 1.0


@pytest.mark.parametrize("products", [False, True])
@pytest.mark.parametrize(
    ("change", "message"), [(diverge, "diverged"), (overflow, "diverged"), (stand_still, r"\[2\] never moved")]
)
def test_a_trace_that_says_nothing_is_named(change, message, products):
    release = spoiled(change)
    with np.errstate(invalid="ignore"):
        release = with_products(release) if products else release
    with pytest.raises(TraceError, match=message):
        location_sums(release, 3, 0.2, 64.0)


def test_only_the_locations_are_looked_at():
    found = location_sums(spoiled(stand_still), 2, 0.2, 64.0)
    assert_same(meaning(found), meaning(location_sums(trace(), 2, 0.2, 64.0)))


def test_replicas_are_refused():
    with pytest.raises(TraceError, match="one release at a time"):
        location_sums(stacked([trace(), trace()]), 3, 0.2, 64.0)


def test_too_few_steps_are_refused():
    short = trace(steps=16, block=2)
    with pytest.raises(TraceError, match="8 retained steps are too few for a dense curvature of 3"):
        location_sums(short, 3, 0.5, 64.0)
    assert location_sums(short, 3, 0.25, 64.0).steps == 12


@pytest.mark.parametrize(("dim", "steps"), [(1, 10), (5, 10), (6, 12), (100, 200)])
def test_two_steps_are_needed_for_each_parameter(dim, steps):
    assert fewest_steps(dim) == steps


def test_blocks_alone_are_not_enough():
    with pytest.raises(TraceError, match=r"keep='cross' or keep='trace'"):
        location_sums(replace(trace(), trace=None), 3, 0.2, 64.0)


def test_products_of_noise_that_changes_are_refused():
    """They were summed with equal weights; the trace can still be weighed."""
    release = trace(varying())
    with pytest.raises(TraceError, match=r"noise changes along the trace.*keep='trace'"):
        location_sums(with_products(release), 3, 0.2, 64.0)


def test_noise_that_changed_before_the_retained_steps_does_not_matter():
    scale = np.ones((1000, 3))
    scale[:100] = 3.0
    release = trace(scale)
    whole, products = (location_sums(kept, 3, 0.2, 64.0) for kept in (release, with_products(release)))
    assert_same(meaning(whole), meaning(products))
    with pytest.raises(TraceError, match="noise changes"):
        location_sums(with_products(release), 3, 0.0, 64.0)


def test_a_release_of_another_method_is_refused():
    with pytest.raises(TraceError, match="method 'statistics'"):
        location_sums(replace(trace(), settings={"method": "statistics"}), 3, 0.2, 64.0)
