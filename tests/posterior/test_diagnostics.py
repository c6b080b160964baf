"""Diagnostics against theory on quadratics, where they must keep quiet, and on other losses, where they must not.

Coordinates are simulated side by side and are independent, so that one release gives as many p-values as it has.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

from discreet.plan import Plan
from discreet.posterior.diagnostics import FALSE_ALARM, FEWEST_PIECES, Diagnosis, diagnose, records, warnings
from discreet.posterior.trace import TraceError
from discreet.query import Point
from discreet.release import Blocks, Release
from tests.posterior.traces import quadratic, release_of

RATE, CURVATURE, STD, STEPS, COUNT = 0.1, 50.0, 20.0, 2000, 1000
KEPT = ["trace", "blocks"]


def walk(rng, gradient, start, *, pull=None, step=None, std=STD, steps=STEPS, block=20, noise=None):
    """SGD on noisy answers, one independent coordinate for each `start`.

    `pull` is λκa, by which a quadratic of curvature `CURVATURE` shrinks in a step. The plan's noise is `std`, the true
    one `noise`.
    """
    step, noise = step or pull / (RATE * CURVATURE), noise or std
    plan = Plan(num_rows=1000, steps=steps, sampling_prob=RATE, clip_norm=1.0, noise_multiplier=std)
    phi, x, y = np.array(start, float), np.empty((steps, len(start))), np.empty((steps, len(start)))
    for time in range(steps):
        x[time] = phi
        y[time] = gradient(phi) + noise * rng.standard_normal(len(phi))
        phi = phi - step * y[time]
    return release_of(plan, x, y, np.ones_like(x), phi, block)


def parabola(phi):
    return RATE * CURVATURE * (phi - 1.0)


def settled(relaxations, count=COUNT):
    """Quadratics that start at their stationary law and last for so many memories 1/λκa."""
    rng, pull = np.random.default_rng(relaxations), relaxations / STEPS
    sd = stationary_sd(pull)
    return walk(rng, parabola, 1 + sd * rng.standard_normal(count), pull=pull)


def stationary_sd(pull, std=STD):
    return std / (RATE * CURVATURE) * np.sqrt(pull / (2 - pull))


def as_kept(release, kept):
    return release if kept == "trace" else replace(release, trace=None)


def share(p_values, level):
    return float(np.mean(np.asarray(p_values) < level))


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("relaxations", [10, 30, 100, 600])
def test_a_straight_line_is_seldom_called_bent(relaxations, kept):
    """1000 quadratics, blocks from a tenth of a memory to six of them.

    At the 5 % level .04 to .09 of them were (sd .007 to .009): most in the trace of 10 memories, whose regressors are
    almost random walks. At the warnings' level of 10⁻³ it was .000 to .005 (sd .002). The limits are 4.5 sds from these
    rates: 3e-6 each.
    """
    found = diagnose(as_kept(settled(relaxations), kept))
    for p_values in (found.bend, found.approach):
        assert 0.01 < share(p_values, 0.05) < 0.13
        assert share(p_values, FALSE_ALARM) < 0.015


@pytest.mark.parametrize("relaxations", [30, 100, 600, 1200])
def test_memory_and_independent_steps_are_those_of_an_autoregression(relaxations):
    """independent = n(1 − ρ)/(1 + ρ) with ρ = 1 − λκa: nλκa/2 for short steps; the memory is half of n over that.

    The median of 1000 is known to 3 %. Blocks shorter than the memory understate independence by up to 1.5 (see
    `averaging._mean_sd`).
    """
    pull, retained = relaxations / STEPS, 0.8 * STEPS
    found = diagnose(settled(relaxations))
    theory = retained * pull / (2 - pull)
    assert 0.63 < np.median(found.independent) / theory < 1.1
    assert 0.9 < np.median(found.time_constant) * (2 * theory) / retained < 1.6
    if pull < 0.1:
        assert 0.63 < np.median(found.independent) / (retained * pull / 2) < 1.1
        assert 0.9 < np.median(found.time_constant) * pull < 1.6


def test_the_curvature_is_that_of_the_loss():
    """Least squares is off by its own sd, and by up to 4/n in λκa: autoregressions look stronger than they are.

    1000 coordinates: the mean is known to 1/√1000 of an sd, and the limits are 5 of that (6e-7).
    """
    relaxations = 600
    found = diagnose(settled(relaxations))
    bias = 4 / (0.8 * STEPS) / (relaxations / STEPS) * CURVATURE
    scores = (found.curvature - CURVATURE) / found.curvature_sd
    assert -0.16 < scores.mean() < 0.16 + np.max(bias / found.curvature_sd)
    assert 0.88 < scores.std() < 1.12


def test_extra_noise_is_one_or_what_was_added():
    """A variance of 1600 answers has a relative sd of √(2/1600) = .035; 5 of them for each of 20 coordinates: 1e-5."""
    start, limit = np.ones(20), 5 * np.sqrt(2 / (0.8 * STEPS))
    for ratio in (1.0, 2.0, 5.0):
        rng = np.random.default_rng(3)
        found = diagnose(walk(rng, parabola, start, pull=0.05, noise=STD * np.sqrt(ratio)))
        assert (found.extra_noise >= 1).all()
        assert np.abs(found.extra_noise / ratio - 1).max() < limit


def test_without_noise_of_the_plan_all_noise_is_extra():
    release = settled(100, 2)
    found = diagnose(replace(release, plan=replace(release.plan, noise_multiplier=0.0)))
    assert (found.extra_noise == np.inf).all()
    assert [record["extra_noise"] for record in records(found, ["a", "b"])] == [None, None]


def test_a_drowned_trace_does_not_identify_its_curvature():
    """No curvature at all: the estimate ÷ its sd is a Dickey-Fuller statistic, below 2 in 72 % of 1000 traces.

    The limits are 5 sds of 1.4 %. Few independent steps are found in 92 % (sd .9 %). Of a curvature that is seen at 15
    sds, nothing is said.
    """
    rng = np.random.default_rng(4)
    drowned = diagnose(walk(rng, np.zeros_like, np.zeros(COUNT), pull=1e-3))
    assert 0.65 < np.mean(drowned.curvature < 2 * drowned.curvature_sd) < 0.79
    assert np.mean(drowned.independent < 5) > 0.87
    worst = np.argmin(drowned.curvature / drowned.curvature_sd)
    said = warnings(Diagnosis(*(part[[worst]] for part in drowned)), ["height"])
    assert any("curvature not identified" in text and "height" in text for text in said)
    seen = diagnose(settled(600))
    assert not np.any(seen.curvature < 2 * seen.curvature_sd)


def test_few_independent_steps_are_said():
    """3 memories: a handful of independent steps at most; 600 memories have 200 and nothing to say."""
    slow, fast = (diagnose(settled(relaxations)) for relaxations in (3, 600))
    few = np.argmin(slow.independent)
    assert np.mean(slow.independent < 5) > 0.8
    said = warnings(Diagnosis(*(part[[few]] for part in slow)), ["age"])
    assert any("few independent steps" in text and "age" in text for text in said)
    assert not any("independent" in text for text in warnings(fast, [str(i) for i in range(COUNT)]))


SPREAD, CLIP, NUM_ROWS, TABLES = 10.0, 1.0, 1000, 8


def clipped(rng, steps, std, step, start):
    """SGD on sampled rows' gradients clip(φ − x_i, ±C) of tables whose spread is 10 C: most rows are clipped."""
    table = SPREAD * rng.standard_normal((NUM_ROWS, TABLES))

    def gradient(phi):
        taken = rng.random(table.shape) < RATE
        return np.where(taken, np.clip(phi - table, -CLIP, CLIP), 0.0).sum(0)

    return walk(rng, gradient, np.full(TABLES, start), step=step, std=std, steps=steps, block=steps // 100)


PULL_OF_CLIPPED = RATE * NUM_ROWS * CLIP * np.sqrt(2 / np.pi) / SPREAD
"""Slope of the summed gradient at the optimum: rows within C of it, each of slope one."""


@pytest.mark.parametrize("kept", KEPT)
def test_clipping_shows_on_the_approach(kept):
    """From 4 spreads away all rows are clipped, and the answers do not depend on the iterate.

    The largest of 8 p-values was 10⁻⁷³ in the trace and 10⁻⁵⁰ in blocks, over 12 runs. Around the optimum the clipped
    loss is a parabola: `bend`, whose retained iterates stay within a fiftieth of the spread, sees none (8 tests at
    10⁻³: 1 in 100).
    """
    rng = np.random.default_rng(5)
    found = diagnose(as_kept(clipped(rng, STEPS, STD, 0.0013, 4 * SPREAD), kept))
    assert found.approach.max() < 1e-12
    assert found.bend.min() > FALSE_ALARM
    same = walk(rng, lambda phi: PULL_OF_CLIPPED * phi, np.full(TABLES, 4 * SPREAD), step=0.0013)
    straight = diagnose(as_kept(same, kept))
    assert straight.approach.min() > FALSE_ALARM


def test_clipping_shows_where_the_retained_steps_wander_over_it():
    """Noise and learning rate so large that iterates are spread like the rows.

    The largest of 8 p-values was 3·10⁻⁶ over 12 runs. The parabola of the same noise and step is reported once in 1000.
    """
    rng = np.random.default_rng(6)
    step = 0.5 / PULL_OF_CLIPPED
    release = clipped(rng, 6000, 150.0, step, 0.0)
    assert release.trace.x.std(0).min() > 0.8 * SPREAD
    names = [f"table {place}" for place in range(TABLES)]
    found = diagnose(release)
    assert found.bend.max() < FALSE_ALARM / TABLES
    said = [text for text in warnings(found, names) if "not a straight line" in text]
    assert len(said) == 1
    assert "table 0, table 1" in said[0]
    same = walk(rng, lambda phi: PULL_OF_CLIPPED * phi, np.zeros(TABLES), step=step, std=150.0, steps=6000, block=60)
    assert not any("straight" in text for text in warnings(diagnose(same), names))


@pytest.mark.parametrize("kept", KEPT)
def test_a_loss_that_is_not_quadratic_is_reported_by_name(kept):
    """Gradient e^φ − 1 over a stationary sd of .8 beside parabolas of the same noise and step.

    The largest of 20 p-values was 10⁻²⁵ in the trace over 6 runs. Blocks, here of two fifths of a memory, see less: the
    median was 10⁻¹¹ or smaller, the largest 10⁻⁵. Parabolas are reported once in 1000 runs.
    """
    rng, pull, bent = np.random.default_rng(8), 0.2, 20
    std = 0.8 * RATE * CURVATURE * np.sqrt(2 / pull)

    def gradient(phi):
        return RATE * CURVATURE * np.where(np.arange(2 * bent) < bent, np.expm1(phi), phi)

    release = as_kept(walk(rng, gradient, np.zeros(2 * bent), pull=pull, std=std, steps=8000, block=2), kept)
    names = [f"{'bent' if place < bent else 'straight'} {place}" for place in range(2 * bent)]
    found = diagnose(release)
    assert found.bend[:bent].max() < (1e-12 if kept == "trace" else FALSE_ALARM)
    assert np.median(found.bend[:bent]) < 1e-7
    assert found.bend[bent:].min() > FALSE_ALARM / (2 * bent)
    (said,) = (text for text in warnings(found, names) if "not a straight line" in text)
    assert "bent" in said.split("bend with")[0]
    assert "straight 2" not in said


CORRELATED = CURVATURE * np.array([[1.0, 0.95, 0.5], [0.95, 1.0, 0.4], [0.5, 0.4, 1.0]])


def replicas(rng, count, steps=STEPS):
    """`count` quadratics with a correlated curvature, as one release with a leading axis."""
    step, optimum = 60 / (steps * RATE * CURVATURE), np.zeros(3)
    each = {"steps": steps, "std": STD, "rate": RATE, "step_size": step}
    return stack([quadratic(rng, CORRELATED, optimum, **each) for _ in range(count)])


def stack(runs):
    blocks = Blocks(*(np.stack(field) for field in zip(*(run.blocks for run in runs), strict=True)))
    trace = Point(*(np.stack(field) for field in zip(*(run.trace for run in runs), strict=True)))
    return Release(runs[0].plan, "simulated", {}, blocks, np.stack([run.last for run in runs]), trace)


def test_correlated_parameters_are_not_called_bent():
    """What the other coordinates do to an answer is taken out, for it is autocorrelated and would look like a bend.

    Of 180 p-values .06 to .07 were below .05 over 4 runs (sd .02); left in, .11 to .19. The limit is 5 sds away: 3e-7.
    """
    release = replicas(np.random.default_rng(9), 60)
    taken_out, left_in = diagnose(release, among=3), diagnose(release)
    assert share(taken_out.bend, 0.05) < 0.18
    assert share(taken_out.bend, FALSE_ALARM) < 0.04
    assert share(left_in.bend, 0.05) > share(taken_out.bend, 0.05)


def test_replicas_are_diagnosed_one_by_one():
    rng = np.random.default_rng(10)
    together = replicas(rng, 3, steps=400)
    for kept in KEPT:
        found = diagnose(as_kept(together, kept), among=3)
        assert all(part.shape == (3, 3) for part in found)
        for place in range(3):
            alone = diagnose(as_kept(single(together, place), kept), among=3)
            for part, same in zip(found, alone, strict=True):
                np.testing.assert_allclose(part[place], same, rtol=1e-6)


def single(release, place):
    blocks = Blocks(*(part[place] for part in release.blocks))
    return replace(release, blocks=blocks, trace=Point(*(part[place] for part in release.trace)))


def test_words_are_for_one_release_at_a_time():
    found = diagnose(replicas(np.random.default_rng(11), 2, steps=400))
    for put in (records, warnings):
        with pytest.raises(TraceError, match="replicas"):
            put(found, ["a", "b", "c"])


@pytest.mark.parametrize("kept", KEPT)
def test_too_few_pieces_tell_nothing(kept):
    """Blocks alone: fewer than a dozen. The trace of as few steps has them all."""
    rng = np.random.default_rng(12)
    release = as_kept(walk(rng, np.expm1, np.zeros(4), pull=0.2, steps=200, block=20), kept)
    found = diagnose(release)
    assert len(release.blocks.weight) < FEWEST_PIECES
    assert (found.bend == 1).all() == (kept == "blocks")


def test_a_trace_without_any_noise_is_straight():
    """Rounding is no bend, and an iterate that takes few values has no cubic."""
    found = diagnose(walk(np.random.default_rng(13), parabola, [3.0], pull=0.002, std=1e-30))
    assert found.approach[0] > FALSE_ALARM
    x = np.repeat([0.0, 1.0], 50)[:, None]
    plan = settled(100).plan
    assert np.isfinite(diagnose(release_of(plan, x, 2 * x, np.ones_like(x), x[-1], 5), burn_in=0.0).bend).all()


def test_records_and_warnings_are_plain_values():
    found = diagnose(settled(3, 20))
    names = [f"p{place}" for place in range(20)]
    rows, said = records(found, names), warnings(found, names)
    assert json.loads(json.dumps([rows, said], allow_nan=False)) == [rows, said]
    assert all(set(row) == {"parameter", *Diagnosis._fields} for row in rows)
    assert said
    assert all(type(text) is str for text in said)
    assert rows[3]["curvature"] == found.curvature[3]


def test_only_named_coordinates_are_spoken_of():
    """Scales have no name: they are diagnosed, not reported, and do not raise the bar for those that have one."""
    found = diagnose(settled(100, 3))._replace(bend=np.array([FALSE_ALARM / 1.5, 0.5, 0.0]))
    assert len(records(found, ["a"])) == 1
    (said,) = warnings(found, ["a"])
    assert "answers about a bend" in said
    assert warnings(found, ["a", "b"]) == []
    assert warnings(found, []) == records(found, []) == []


def test_many_names_are_cut_short():
    found = diagnose(settled(100, 8))._replace(bend=np.zeros(8))
    (said,) = warnings(found, list("abcdefgh"))
    assert "a, b, c, d, e and 3 more" in said
