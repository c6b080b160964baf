"""Iterate averaging: against theory on Ornstein-Uhlenbeck traces, against direct sums on any trace."""

import dataclasses
from functools import cache

import numpy as np
import pytest

from discreet.posterior.averaging import Average, average, noise_aware, unsettled
from discreet.posterior.trace import TraceError
from discreet.posterior.types import _arviz
from discreet.release import Blocks
from tests.posterior.traces import autoregression, of_iterates

STEPS, BLOCK, COUNT, SD, OPTIMUM = 5000, 50, 2000, 1e-3, 3.0
MEMORIES = [0.1, 0.5, 1.0, 2.0, 4.0]
"""Correlation times in blocks: from a tenth of a block to a 25th of the trace."""


@cache
def windows(memory: float, sd: float = SD) -> Average:
    """The averages of `COUNT` independent traces around `OPTIMUM`."""
    rng = np.random.default_rng(round(1000 * memory))
    return average(of_iterates(OPTIMUM + autoregression(rng, STEPS, COUNT, memory * BLOCK, sd), BLOCK))


def sd_of_mean(memory, sd=SD):
    """sd of the mean of `STEPS` steps of a first-order autoregression."""
    rho, n = np.exp(-1 / (memory * BLOCK)), STEPS
    return sd * np.sqrt(((1 + rho) / (1 - rho) - 2 * rho * (1 - rho**n) / (n * (1 - rho) ** 2)) / n)


def coverage(window):
    """Share of 90 % intervals, of those that converged, that hold the optimum."""
    return (np.abs(window.mean - OPTIMUM) < 1.6449 * window.mean_sd)[window.converged].mean()


@pytest.mark.parametrize("memory", MEMORIES)
def test_sd_is_the_stationary_one(memory):
    """E sd² = s² − var(mean). A trace gives s² to √(2(1 + ρ²)/((1 − ρ²)·steps)); 5 of its standard errors: 6e-7."""
    rho = np.exp(-1 / (memory * BLOCK))
    error = np.sqrt(2 * (1 + rho**2) / (1 - rho**2) / STEPS / COUNT)
    expected = 1 - (sd_of_mean(memory) / SD) ** 2
    assert abs(np.mean(windows(memory).sd ** 2) / SD**2 / expected - 1) < 5 * error


@pytest.mark.parametrize("memory", MEMORIES)
def test_mean_sd_is_the_spread_of_means_over_replicas(memory):
    """The sd of 2000 means is known to 1/√4000, so 8 % is 5 standard errors (6e-7).

    `mean_sd` takes block means for a first-order autoregression. They are one for short memories; for long ones its
    variance is too large by up to 1.5, which is their limit, (3/x) ÷ (2/x) for blocks of x ≪ 1 correlation times.
    """
    found = windows(memory)
    assert (found.steps == STEPS).all()
    assert abs(found.mean.std() / sd_of_mean(memory) - 1) < 0.08
    typical = np.sqrt(np.mean(found.mean_sd**2))
    assert 0.92 < typical / found.mean.std() < 1.08 * np.sqrt(1.5)


@pytest.mark.parametrize("memory", MEMORIES)
def test_intervals_of_the_mean_cover_the_optimum(memory):
    """2000 intervals at 90 %, sd .7 %: outside 86 % to 94 % once in 10⁸ were they exact, in 10³ were they 92 %."""
    assert 0.86 < coverage(windows(memory)) < 0.94


@pytest.mark.parametrize("memory", MEMORIES)
def test_the_noise_of_a_single_step_would_not_do(memory):
    """sd/√steps, as if iterates had no memory, covers far less than 90 % even at a tenth of a block."""
    found = windows(memory)
    forgetful = found._replace(mean_sd=found.sd / np.sqrt(found.steps))
    assert coverage(forgetful) < 0.6


def test_windows_that_noise_chose_cover_less():
    """Where the slope's own sd, √12·mean_sd, exceeds its limit, flat windows are found by chance, and undercover.

    The paper's limit is in units of φ; 80 % of 2000 intervals at 90 % were measured here (sd .9 %).
    """
    found = windows(1.0, 0.3)
    assert np.sqrt(12) * sd_of_mean(1.0, 0.3) > 0.05
    assert found.converged.mean() > 0.9
    assert 0.75 < coverage(found) < 0.87


def mixed(steps=1030, seed=0):
    """Seven traces: white, slow, relaxing from above and below, drifting up, falling, and far from zero."""
    rng, time = np.random.default_rng(seed), np.arange(steps)
    slow = autoregression(rng, steps, 1, 30, 0.01)[:, 0]
    relaxing = np.exp(-time / 60)
    noise = 0.01 * rng.standard_normal((steps, 7))
    return noise + np.stack(
        [0 * time, slow, 2 * relaxing, -1 - relaxing, time / 500, 3 - time / 300, 1e4 + slow + 0.2 * relaxing], 1
    )


def directly(trace, block, slope=0.05, shortest=0.1):
    """(mean, sd, steps, slope, R̂) of one coordinate from all of its iterates, by the paper's rule."""
    candidates = [
        start for start in range(0, len(trace), block) if len(trace) - start >= max(10, shortest * len(trace))
    ]
    lines = {start: np.polyfit(np.linspace(0, 1, len(trace) - start), trace[start:], 1)[0] for start in candidates}
    start = next((start for start in candidates if abs(lines[start]) < slope), None)
    first = candidates[-1] if start is None else start
    window = trace[first:]
    middle = (first // block + -(-len(trace) // block)) // 2 * block - first
    halves = window[:middle], window[middle:]
    within = sum(((half - half.mean()) ** 2).sum() for half in halves) / (len(window) - 2)
    between = sum(len(half) * (half.mean() - window.mean()) ** 2 for half in halves)
    r_hat = np.sqrt((len(window) - 2) / len(window) + 2 * between / within / len(window))
    if start is None:
        return np.nan, np.nan, 0, lines[first], r_hat
    return window.mean(), window.std(), len(window), lines[first], r_hat


@pytest.mark.parametrize(("steps", "block"), [(1000, 50), (1030, 50), (1030, 7), (200, 1)])
@pytest.mark.parametrize(("slope", "shortest"), [(0.05, 0.1), (0.5, 0.3), (0.002, 0.1)])
def test_block_moments_say_what_the_whole_trace_says(steps, block, slope, shortest):
    trace = mixed(steps)
    found = average(of_iterates(trace, block), slope, shortest)
    expected = [directly(column, block, slope, shortest) for column in trace.T]
    for name, values in zip(("mean", "sd", "steps", "slope", "r_hat"), zip(*expected, strict=True), strict=True):
        np.testing.assert_allclose(getattr(found, name), values, rtol=1e-7, atol=1e-9, err_msg=name)


def test_split_r_hat_is_arviz_s():
    """ArviZ splits no single chain, so it gets the halves as two: R̂ without ranks."""
    trace = mixed(1000)
    found = average(of_iterates(trace), slope=np.inf, shortest=1)
    expected = [_arviz().rhat(column.reshape(2, -1), method="identity") for column in trace.T]
    assert (found.steps == 1000).all()
    np.testing.assert_allclose(found.r_hat, expected, rtol=1e-9)


def test_r_hat_has_no_units():
    trace = 1e-3 * mixed(1000)
    small, large = average(of_iterates(trace)), average(of_iterates(1000 * trace), slope=50.0)
    np.testing.assert_array_equal(small.steps, large.steps)
    np.testing.assert_allclose(small.r_hat, large.r_hat, rtol=1e-9)


def test_the_window_leaves_the_relaxation_out():
    """From 5 down to 0 with a time constant of 100 steps: what is left of it at the start of the window is small.

    A decay a·exp(−t/τ) within n ≫ τ steps has slope −6aτ/n and moves the mean by aτ/n: at most a sixth of the limit.
    """
    rng = np.random.default_rng(1)
    relaxing = 5 * np.exp(-np.arange(4000) / 100)
    found = average(of_iterates((relaxing + 1e-3 * rng.standard_normal(4000))[:, None]))
    start = 4000 - found.steps[0]
    assert found.converged.all()
    assert relaxing[start] < 0.05 * found.steps[0] / (6 * 100) < relaxing[max(0, start - 100)]
    assert abs(found.mean[0]) < 0.05 / 6 + 5 * found.mean_sd[0]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_trace_that_drifts_has_not_converged_whichever_way(sign):
    drift = sign * np.linspace(0, 5, 2000)[:, None] + 1e-3 * np.random.default_rng(2).standard_normal((2000, 1))
    found = average(of_iterates(drift))
    assert np.isnan([found.mean, found.sd, found.mean_sd]).all()
    assert (found.steps, found.converged) == (0, False)
    assert sign * found.slope[0] == pytest.approx(0.5, rel=0.05)  # a tenth of the way, the shortest window
    assert found.r_hat[0] > 1.1


def test_one_coordinate_that_drifts_leaves_the_others_alone():
    trace = mixed(1000)[:, :4]
    alone, together = average(of_iterates(trace)), average(of_iterates(np.c_[trace, np.arange(1000) / 100]))
    assert together.converged.tolist() == [True] * 4 + [False]
    for each, all_of_it in zip(alone, together, strict=True):
        np.testing.assert_array_equal(all_of_it[:4], each)


def test_what_has_not_converged_is_named_with_its_slope_and_a_remedy():
    trace = np.c_[mixed(1000)[:, :1], np.linspace(0, 5, 1000), mixed(1000)[:, 1:2], np.linspace(0, -50, 1000)]
    with pytest.raises(TraceError) as refusal:
        noise_aware(np.random.default_rng(0), of_iterates(trace))
    for words in ("2 of 4 coordinates of φ (1, 3)", "by up to 4.95", "over the last tenth", "plan more steps"):
        assert words in str(refusal.value)


def test_a_long_list_of_coordinates_is_cut():
    with pytest.raises(TraceError, match=r"12 of 12 .*\(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …\)"):
        noise_aware(np.random.default_rng(0), of_iterates(np.linspace(np.zeros(12), 5, 1000)))


def test_the_shortest_window_has_two_blocks():
    drift = np.linspace(0, 100, 1000)[:, None] + 0.01 * np.random.default_rng(3).standard_normal((1000, 1))
    found = average(of_iterates(drift), shortest=0.01)
    assert not found.converged.any()
    assert found.slope[0] == pytest.approx(9.9, rel=0.01)


@pytest.mark.parametrize("steps", [1, 9])
def test_few_steps_are_refused(steps):
    with pytest.raises(TraceError, match=f"{steps} steps in {steps} blocks are too few to average: at least 10"):
        average(of_iterates(np.zeros((steps, 2)), 1))
    assert average(of_iterates(np.zeros((10, 2)), 1)).converged.all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_iterates_that_are_not_finite_are_refused_by_name(bad):
    trace = mixed(1000)
    trace[700:, 2] = trace[999, 5] = bad
    with pytest.raises(TraceError, match=r"coordinates \[2, 5\] exploded.*lower the learning rate"):
        average(of_iterates(trace))


@pytest.mark.parametrize("growth", [1.01, 1.5, 2.0])
def test_iterates_that_explode_are_refused_by_name(growth):
    """Whether they stay below 1e308 (1.01), or only their squares do not (1.5, 2)."""
    trace = np.c_[mixed(1000)[:, 0], (-growth) ** np.arange(1000), mixed(1000)[:, :2]]
    with pytest.raises(TraceError, match=r"\[1\] exploded|coordinates of φ \(1\)"):
        noise_aware(np.random.default_rng(0), of_iterates(trace))


@pytest.mark.parametrize("shortest", [0, -0.1, 1.1, np.nan])
def test_a_share_that_is_none_is_refused(shortest):
    with pytest.raises(ValueError, match=r"shortest=.* must lie in \(0, 1\]"):
        average(of_iterates(mixed(1000)), shortest=shortest)


def test_a_constant_coordinate_has_converged_without_noise():
    found = average(of_iterates(np.full((1030, 3), [0.0, 0.5, -8.0])))
    np.testing.assert_array_equal(found.mean, [0.0, 0.5, -8.0])
    assert (found.steps == 1030).all()
    assert (found.r_hat == 1).all()
    assert not np.any([found.sd, found.mean_sd, found.slope])
    rounded = average(of_iterates(np.full((1030, 3), [0.1, 1 / 3, -1e5 / 3])))  # means are off by the last bit
    assert (rounded.mean_sd < 1e-15 * np.abs(rounded.mean)).all()
    assert (rounded.r_hat < 1.1).all()


def stacked(releases):
    blocks = Blocks(*(np.stack(field) for field in zip(*(release.blocks for release in releases), strict=True)))
    return dataclasses.replace(releases[0], blocks=blocks, last=np.stack([release.last for release in releases]))


def test_replicas_are_averaged_one_by_one():
    releases = [of_iterates(mixed(seed=seed)) for seed in range(3)]
    together, each = average(stacked(releases)), [average(release) for release in releases]
    for name in Average._fields:
        np.testing.assert_array_equal(getattr(together, name), np.stack([getattr(one, name) for one in each]), name)


def test_replicas_are_drawn_one_by_one():
    releases = [of_iterates(mixed(seed=seed)[:, :4]) for seed in range(3)]
    draws = noise_aware(np.random.default_rng(0), stacked(releases), 50)
    assert draws.shape == (3, 50, 4)
    for drawn, release in zip(draws, releases, strict=True):
        window = average(release)
        np.testing.assert_array_equal(drawn[:, 2:], np.tile(window.mean[2:], (50, 1)))
        assert (np.abs(drawn.mean(0) - window.mean)[:2] < 6 * window.mean_sd[:2] / np.sqrt(50)).all()


@pytest.mark.parametrize(("spread", "field"), [("mean", "mean_sd"), ("iterate", "sd")])
def test_draws_have_the_noise_that_was_asked_for_and_averaged_scales(spread, field):
    """40 000 draws of two locations: mean to 1/√n sd and sd to 1/√(2n), each within 5 of these; 2e-6."""
    release, count = of_iterates(mixed(1000)[:, :4]), 40_000
    window = average(release)
    draws = noise_aware(np.random.default_rng(0), release, count, spread=spread)
    sd = getattr(window, field)[:2]
    assert (np.abs(draws.mean(0) - window.mean)[:2] < 5 * sd / np.sqrt(count)).all()
    assert (np.abs(draws.std(0)[:2] / sd - 1) < 5 / np.sqrt(2 * count)).all()
    np.testing.assert_array_equal(draws[:, 2:], np.broadcast_to(window.mean[2:], (count, 2)))


def test_locations_are_counted_by_the_family():
    """A full-rank φ of 9 entries has three locations, a mean-field φ of 8 has four."""
    rng = np.random.default_rng(0)
    for family, size, dim in (("full-rank", 9, 3), ("mean-field", 8, 4)):
        release = of_iterates(1e-3 * rng.standard_normal((500, size)))
        release = dataclasses.replace(release, settings={"family": family})
        varied = np.ptp(noise_aware(rng, release, 20), axis=0) > 0
        assert varied.tolist() == [True] * dim + [False] * (size - dim)


def test_an_unknown_spread_is_refused():
    with pytest.raises(ValueError, match="spread='window' must be mean or iterate"):
        noise_aware(np.random.default_rng(0), of_iterates(mixed(1000)), spread="window")


def test_halves_that_disagree_are_a_warning():
    """A jump of 100 sds that is too small for the slope's limit: converged in φ's units, not in its own."""
    trace = 1e-4 * np.random.default_rng(4).standard_normal((1000, 3))
    assert unsettled(average(of_iterates(trace))) == []
    trace[500:, 1] += 0.01
    window = average(of_iterates(trace))
    assert window.converged.all()
    (warning,) = unsettled(window)
    assert warning.startswith("split-R̂ exceeds 1.1 for 1 of 3 coordinates of φ (largest ")
    assert f"{window.r_hat[1]:.2f}" in warning


def test_windows_that_noise_may_have_chosen_are_a_warning():
    """The slope through 1000 independent steps of sd 1 has sd √12/√1000 = .11, twice the limit of .05."""
    trace = np.random.default_rng(5).standard_normal((1000, 40)) * np.r_[1.0, np.full(39, 1e-3)]
    window = average(of_iterates(trace))
    assert window.converged.all()
    assert np.sqrt(12) * window.mean_sd[0] > 0.05
    (warning,) = (text for text in unsettled(window) if "by chance" in text)
    assert warning.startswith("1 of 40 coordinates of φ")
