"""Laplace's approximation against the exact solver: equal where much is seen, and by how much not where little is."""

from functools import cache

import numpy as np
import pytest

from discreet.posterior import exact, laplace
from discreet.posterior.trace import TraceError
from discreet.posterior.trace_model import estimate, trace_model
from tests.posterior.traces import quadratic, release_of, stacked, with_plan

CURVATURES = np.array([50.0, 80.0, 100.0, 150.0, 1.0])
DRAWS = 40_000


@cache
def traces(steps, speed):
    """Five coordinates whose curvatures are seen to about √(15·speed·steps/1000) sds, under noise of sd 8."""
    rng = np.random.default_rng(3)
    optima, each = rng.normal(size=5), []
    for curvature, optimum in zip(CURVATURES, optima, strict=True):
        step_size = speed * 0.3 / curvature
        each.append(quadratic(rng, [[curvature]], [optimum], steps=steps, std=8.0, step_size=step_size))
    x, y, scale = (np.hstack([release.trace[part] for release in each]) for part in (1, 2, 3))
    return release_of(each[0].plan, x, y, scale, x[-1])


def compared(steps, speed, subsampling, noise_std=8.0):
    """The model; gaps of means in sds and ratios of sds to the exact solver's, for φ*, a and w, each (5,)."""
    model = trace_model(with_plan(traces(steps, speed), noise_multiplier=noise_std), subsampling=subsampling)
    draws, grid = laplace.solve(np.random.default_rng(0), model, DRAWS), exact.grid(model)
    expected = [exact.moments_of_optimum(model)]
    for values in (np.logaddexp(0, grid.v), grid.variance):
        mean = (grid.mass * values).sum((0, 1))
        expected.append((mean, np.sqrt((grid.mass * (values - mean) ** 2).sum((0, 1)))))
    parts = draws[:3] if model.learned else draws[:2]
    return model, [
        ((part.mean(0) - mean) / sd, part.std(0) / sd) for part, (mean, sd) in zip(parts, expected, strict=False)
    ]


def seen_to(model):
    found, sd = estimate(model.moments, model.rate, model.variance)
    return found / sd


@pytest.mark.parametrize(("subsampling", "noise_std"), [("none", 8.0), ("learned", 5.0)])
def test_much_data_makes_it_exact(subsampling, noise_std):
    """Curvatures seen to 50 sds, and a variance that is 2½ times what the plan added: all unknowns agree.

    Means within .04 sds and sds within 3 %: 8 standard errors of 40 000 draws; false alarm below 10⁻¹⁰. The exact
    solver's 12 cells of variance are what keeps it from less.
    """
    model, found = compared(20_000, 10.0, subsampling, noise_std)
    assert (seen_to(model) > 50).all()
    assert len(found) == (3 if model.learned else 2)
    for gap, ratio in found:
        assert (np.abs(gap) < 0.04).all()
        np.testing.assert_allclose(ratio, 1, atol=0.03)


@pytest.mark.parametrize("subsampling", ["none", "learned"])
def test_four_sds_of_curvature_are_enough_for_the_optimum(subsampling):
    """As a fit's own step sizes give. Means within .1 sds; sds of φ* measured between .95 and 1.02 of the exact ones.

    What is missing is the tail: where the curvature is almost nothing, φ* is anywhere.
    """
    model, (optimum, curvature, *_) = compared(1000, 1.0, subsampling)
    assert ((seen_to(model) > 3) & (seen_to(model) < 5)).all()
    for gap, ratio in (optimum, curvature):
        assert (np.abs(gap) < 0.1).all()
        assert ((ratio > 0.9) & (ratio < 1.06)).all()


def test_where_the_curvature_is_hardly_seen_it_is_far_too_narrow():
    """Seen to one to two sds: the mode has a curvature, the mass has next to none.

    The sd of φ* was .19 of the exact one at worst, and the 90 % interval 1 % of its width: use the exact solver there.
    """
    model, (optimum, *_) = compared(1000, 0.1, "none")
    assert (seen_to(model) < 3).all()
    assert optimum[1].min() < 0.4
    assert (optimum[1] < 1.05).all()


def test_a_variance_at_its_bound_is_not_gaussian_however_much_is_seen():
    """With the plan's noise alone the density of w is cut where it is highest; Laplace's has its mode above that.

    Its mean was .8 sds too high and its sd 1.4 to 2 times too wide at 50 sds; φ* hardly feels it.
    """
    _, (optimum, curvature, variance) = compared(20_000, 10.0, "learned")
    assert ((variance[0] > 0.3) & (variance[0] < 1.2)).all()
    assert ((variance[1] > 1.1) & (variance[1] < 2.5)).all()
    for gap, ratio in (optimum, curvature):
        assert (np.abs(gap) < 0.04).all()
        np.testing.assert_allclose(ratio, 1, atol=0.03)


@pytest.mark.parametrize("subsampling", ["none", "learned"])
def test_replicas_are_solved_one_by_one(subsampling):
    """Means of 2000 draws of each within 6 standard errors of its own; false alarm below 10⁻⁷."""
    rng = np.random.default_rng(5)
    each = [
        quadratic(rng, np.diag([80.0, 120.0]), optimum, std=8.0, step_size=0.03) for optimum in rng.normal(size=(3, 2))
    ]
    model = trace_model(stacked(each), subsampling=subsampling)
    draws = laplace.solve(rng, model, 2000)
    assert draws.optimum.shape == draws.curvature.shape == draws.variance.shape == (3, 2000, 2)
    mean, sd = exact.moments_of_optimum(model)
    assert (np.abs(draws.optimum.mean(1) - mean) < 6 * sd / np.sqrt(2000)).all()
    assert (draws.variance >= model.known[:, None]).all()
    assert (draws.curvature > 0).all()
    assert draws.report == {}


@pytest.mark.parametrize("spoilt", [-1.0, np.nan])
def test_a_coordinate_without_a_mode_is_named(monkeypatch, spoilt):
    """A covariance that is none: negative along an axis, or no number."""

    def gaussian(model):
        covariance = np.tile(np.eye(2), (5, 1, 1))
        covariance[3, 0, 0] = spoilt
        return np.zeros((5, 2)), covariance

    monkeypatch.setattr(laplace, "_gaussian", gaussian)
    model = trace_model(traces(1000, 1.0), subsampling="none")
    with pytest.raises(TraceError, match=r"coordinates \[3\] have no mode.*use solver='exact'"):
        laplace.solve(np.random.default_rng(0), model)
