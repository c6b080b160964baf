"""DP-SEP on the mechanism: without noise it is clipped SEP, and what it needs is asked for before rows are."""

import jax
import numpy as np
import pytest

from discreet.evaluate import ep
from discreet.families.gaussian_mixture import Mixture
from discreet.fitting import encode, run, simulated
from discreet.methods import sep
from discreet.methods.sites import SiteError, cavity, linear, mixture
from discreet.plan import Plan
from tests import tiny

SITE = linear(tiny.MODEL)
ROWS = 60


def plan(**changes):
    usual = {"num_rows": ROWS, "steps": 30, "sampling_prob": 1.0, "clip_norm": 0.4, "noise_multiplier": 0.0}
    return Plan(**usual | changes)


def released(given, settings, seed=1, table=None):
    rows = encode(table or tiny.table(ROWS), tiny.SCHEMA)
    return run(simulated(seed), given, sep.query(SITE, given, settings), rows, keep="trace")


def by_hand(columns, given, settings):
    """Clipped SEP with whole tables, in the paper's own terms: θ_f moves γ/N of the way to the mean clipped site."""
    shape, count = SITE.shape, given.num_rows
    site_f = np.zeros(shape.size)
    with jax.enable_x64(True):
        values = jax.jit(lambda c: jax.vmap(lambda row: SITE.of_row(c, row))(columns))
        for _ in range(given.steps):
            q = SITE.prior + count * site_f
            found = np.asarray(values(cavity(shape, q - site_f)))
            norm = np.linalg.norm(found, axis=1, keepdims=True)
            clipped = found * np.minimum(1, given.clip_norm / norm)
            site_f = site_f + settings.gamma / count * (clipped.mean(0) - site_f)
            site_f *= min(1, given.clip_norm / np.linalg.norm(site_f))
    return count * site_f


def test_without_noise_it_is_clipped_sep():
    """Sums of 60 rows are rounded to whole units: each of 30 steps may be off by 60 halves of one."""
    given, settings = plan(), sep.Settings(gamma=0.3 * ROWS)
    found = released(given, settings).last
    expected = by_hand(tiny.SCHEMA.encode(tiny.table(ROWS)), given, settings)
    assert np.abs(found - expected).max() < 30 * ROWS * given.clip_norm / 2**20
    unclipped = by_hand(tiny.SCHEMA.encode(tiny.table(ROWS)), plan(clip_norm=1e6), settings)
    assert np.abs(found - unclipped).max() > 1  # the clip was felt


def test_its_fixed_point_is_sep_s():
    """Whole tables at SEP's own speed, against one row at a time whose steps have become small."""
    given = plan(steps=200, clip_norm=50.0)
    found = released(given, sep.Settings(gamma=0.5 * ROWS)).last
    columns = tiny.SCHEMA.encode(tiny.table(ROWS))
    rough = ep.sep(SITE, columns, sep.Settings(gamma=ROWS), passes=200)
    fine = ep.sep(SITE, columns, sep.Settings(gamma=0.02 * ROWS, start=rough.theta - SITE.prior), passes=400)
    with jax.enable_x64(True):
        mean, cov = map(np.asarray, SITE.shape.moments(SITE.prior + found))
    sd = np.sqrt(np.diagonal(cov, axis1=-2, axis2=-1))
    assert np.abs((fine.mean - mean) / sd).max() < 0.02
    assert np.abs(np.sqrt(np.diagonal(fine.cov, axis1=-2, axis2=-1)) / sd - 1).max() < 0.01


def test_the_trace_is_what_the_answers_said():
    """y = κφ − answer, and φ moves by −γ/N of it."""
    given, settings = plan(clip_norm=50.0, noise_multiplier=0.001, sampling_prob=0.5), sep.Settings(gamma=0.3 * ROWS)
    trace = released(given, settings).trace
    step = np.diff(np.asarray(trace.iterate), axis=0)
    np.testing.assert_allclose(step, -settings.gamma / ROWS * np.asarray(trace.y)[:-1], atol=1e-9)
    assert np.all(np.asarray(trace.scale) == 1)


def test_rows_that_answer_about_the_mean_end_where_the_others_do():
    """Without noise or clip the origin is of no consequence, and slower steps end there, too."""
    given = plan(steps=200, clip_norm=50.0)
    plain = released(given, sep.Settings(gamma=0.3 * ROWS)).last
    for settings in (sep.Settings(0.3 * ROWS, centred=True), sep.Settings(0.3 * ROWS, centred=True, slowing=0.02)):
        np.testing.assert_allclose(released(given, settings).last, plain, atol=1e-2)


def test_the_trace_about_the_mean_is_that_of_a_gradient():
    """y = κΛ(m − m*) of the whole posterior, to the second order in m − m*; the rest of it as about zero."""
    given = plan(num_rows=2000, steps=150, clip_norm=50.0)
    start = np.r_[np.zeros(3), [200, 0, 0, 70, 0, 50]]
    table = tiny.table(2000)
    found = released(given, sep.Settings(gamma=200.0, start=start, centred=True), table=table)
    with jax.enable_x64(True):
        mean, cov = map(np.asarray, SITE.shape.moments(SITE.prior + found.last))
    x, y = np.asarray(found.trace.x), np.asarray(found.trace.y)
    late = slice(40, 60)
    pull = (x[late, :3] - mean) @ np.linalg.inv(cov[0])
    assert np.abs(pull).max() > 0.1
    np.testing.assert_allclose(y[late, :3], pull, atol=0.05 * np.abs(pull).max())
    np.testing.assert_array_equal(x[:, 3:], np.asarray(found.trace.iterate)[:, 3:])


def test_steps_grow_shorter_like_one_over_their_number():
    """With everything closed at first and a slowing of one, φ is the plain average of the answers."""
    given = plan(steps=8, clip_norm=50.0, noise_multiplier=0.5)
    trace = released(given, sep.Settings(gamma=ROWS, slowing=1.0, least=1e-9)).trace
    answers = np.asarray(trace.x) - np.asarray(trace.y)
    free = np.asarray(trace.iterate)[:, :3]  # η is not lifted
    np.testing.assert_allclose(free[1:], (np.cumsum(answers, 0) / np.arange(1, 9)[:, None])[:-1, :3], rtol=1e-6)


def test_iterates_stay_within_what_rows_can_say_and_positive_definite():
    """Noise a hundred times the clip norm: θ_f is no longer than C, and the precision no less than the prior's."""
    given = plan(noise_multiplier=100.0, steps=50)
    iterates = np.asarray(released(given, sep.Settings(gamma=ROWS)).trace.iterate)
    with jax.enable_x64(True):
        smallest = np.asarray(SITE.shape.smallest(SITE.prior + iterates, SITE.prior))
    assert smallest.min() > 1 - 1e-9
    assert (np.abs(smallest - 1) < 1e-9).sum() > 10  # it was needed
    eta = np.linalg.norm(iterates[:, :3], axis=1)
    assert eta.max() <= ROWS * given.clip_norm * (1 + 1e-9)


@pytest.mark.parametrize(
    ("settings", "changes", "problem"),
    [
        (sep.Settings(gamma=0.0), {}, "gamma=0.0"),
        (sep.Settings(gamma=2.0 * ROWS), {}, r"stay below 2N/κ = 120, where steps diverge"),
        (sep.Settings(gamma=4.0 * ROWS), {"sampling_prob": 0.5}, "2N/κ = 240"),
        (sep.Settings(gamma=1.0, least=0.0), {}, "least=0.0"),
        (sep.Settings(gamma=0.3 * ROWS, slowing=0.31), {}, "slowing=0.31"),
        (sep.Settings(gamma=1.0, slowing=-0.1), {}, "slowing=-0.1"),
        (sep.Settings(gamma=1.0), {"noise_kind": "laplace"}, "noise_kind=laplace"),
        (sep.Settings(gamma=1.0, start=np.zeros(4)), {}, "start has shape"),
        (sep.Settings(gamma=1.0, start=np.full(9, np.nan)), {}, "finite"),
        (
            sep.Settings(gamma=1.0, start=np.r_[0, 0, 0, -1, np.zeros(5)]),
            {},
            "cavity at start is not positive definite",
        ),
    ],
)
def test_what_cannot_run_is_refused_by_name(settings, changes, problem):
    with pytest.raises(ValueError, match=problem):
        sep.query(SITE, plan(**changes), settings)


def test_steps_that_overshoot_converge_too():
    """Half again the distance, in each step."""
    found = released(plan(steps=300, clip_norm=50.0), sep.Settings(gamma=1.5 * ROWS)).last
    slow = released(plan(steps=300, clip_norm=50.0), sep.Settings(gamma=0.2 * ROWS)).last
    np.testing.assert_allclose(found, slow, atol=1e-3)


def test_a_release_says_how_it_was_made():
    settings = released(plan(), sep.Settings(gamma=3.0)).settings
    assert settings["method"] == "sep"
    assert settings["sites"] == "linear"
    assert (settings["blocks"], settings["dim"], settings["gamma"]) == (1, 3, 3.0)
    assert settings["prior_theta"] == SITE.prior.tolist()


def test_components_that_start_alike_stay_alike_and_others_find_their_places():
    """Two clusters at ±2; EP from a start that tells the components apart puts one mean at each."""
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.normal(-2, 0.5, 40), rng.normal(2, 0.5, 40)])
    site = mixture(Mixture(("x",), np.array([0.5, 0.5]), 0.5, np.zeros((2, 1)), 3.0))
    start = np.array([-1.0, 1.0, 0.0, 0.0])
    alike, apart = (ep.sep(site, {"x": x}, sep.Settings(80.0, 0.1, s), passes=20).mean for s in (None, start))
    assert abs(alike[0, 0] - alike[1, 0]) < 1e-6
    assert apart[:, 0] == pytest.approx([-2, 2], abs=0.3)


def test_a_start_may_not_be_longer_than_the_sites():
    with pytest.raises(SiteError, match="shape"):
        sep.check(SITE, plan(), sep.Settings(1.0, start=np.zeros(3)))
