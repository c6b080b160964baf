"""One step: what is asked in each phase, where, in which units, and to which norm answers are clipped."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from discreet.families.exponential import beta_bernoulli
from discreet.mechanism import loop, noise
from discreet.mechanism.rows import store
from discreet.methods import law, onestep, score
from discreet.model import prior_moments
from discreet.plan import Plan
from discreet.release import Release
from discreet.schema import Categorical, Schema
from tests import tiny

STEPS, BINS = 20, 8
COIN, COIN_MODEL = Schema((Categorical("x", ("no", "yes")),)), beta_bernoulli(10.0, 10.0)
ONCE = Plan(tiny.NUM_ROWS, 1, 1.0, 1.0, 4.0)
SAMPLE = {name: column for name, column in tiny.SCHEMA.encode(tiny.table()).items() if name != "ill"}
COLUMNS = tiny.SCHEMA.select(["age", "sex"]).columns
PLANS = (
    replace(ONCE, clip_norm=law.count_norm(COLUMNS)),
    replace(ONCE, clip_norm=law.moment_norm(COLUMNS)),
    replace(ONCE, steps=STEPS, clip_norm=3.0, noise_multiplier=40.0),
    ONCE,
)


def settings_of(model, sample=None, **changes):
    mean, sd = prior_moments(model)
    reference = score.Settings(mean, sd**-2, 0.5, 0.05, 0.5, sample or {}, 0.3, every=1)
    return onestep.Settings(reference, 0 if sample else BINS)._replace(**changes)


def listened(model, schema, plans, settings, rows):
    """What was asked in each phase of a run, and the releases."""
    asked, heard = onestep.phase(model, schema, plans, settings), []

    def listening(told):
        heard.append(asked(told))
        return heard[-1]

    release = loop.run_phases(noise.simulated(3), plans, listening, rows)
    return heard, [*release.before, release]


@pytest.fixture(scope="module")
def bought():
    """All four phases of a small regression."""
    return listened(tiny.MODEL, tiny.SCHEMA, PLANS, settings_of(tiny.MODEL), tiny.rows())


@pytest.fixture(scope="module")
def known():
    """The two phases where a sample of the covariates is public."""
    return listened(tiny.MODEL, tiny.SCHEMA, PLANS[2:], settings_of(tiny.MODEL, SAMPLE), tiny.rows())


def methods(heard):
    return [phase.query.settings["method"] for phase in heard]


# The phases.


def test_a_law_is_bought_by_counts_and_moments_and_then_a_place_is_found_and_asked_at(bought):
    heard, told = bought
    assert methods(heard) == ["law, counts", "law, moments", "score", "one-step"]
    assert [phase.plan for phase in heard[:3]] == list(PLANS[:3])
    assert replace(heard[3].plan, clip_norm=1.0) == PLANS[3]
    assert [one.plan for one in told] == [phase.plan for phase in heard]
    assert [phase.query.columns for phase in heard[:2]] == [("age", "sex")] * 2  # the outcome's law is the model's


def test_a_public_sample_leaves_nothing_to_buy(known):
    heard, _ = known
    assert methods(heard) == ["score", "one-step"]
    for name, column in SAMPLE.items():
        np.testing.assert_array_equal(heard[0].query.settings["sample"][name], column)


def test_without_covariates_there_is_nothing_to_buy():
    rows = store(COIN, {"x": np.repeat([0, 1], 150).astype(np.int32)})
    heard, _ = listened(COIN_MODEL, COIN, PLANS[2:], settings_of(COIN_MODEL), rows)
    assert methods(heard) == ["score", "one-step"]
    assert heard[0].query.settings["sample"] == {}


def test_one_column_of_levels_is_bought_by_counts_alone():
    """It has no pairs: to ask for moments would be refused, with the budget spent."""
    schema = Schema((*COLUMNS[1:], tiny.SCHEMA["ill"]))
    model = tiny.glm("logistic", "ill", ["sex"], schema)
    rows = store(schema, {name: tiny.SCHEMA.encode(tiny.table())[name] for name in ("sex", "ill")})
    plans = (replace(ONCE, clip_norm=1.0), *PLANS[2:])
    heard, told = listened(model, schema, plans, settings_of(model), rows)
    assert methods(heard) == ["law, counts", "score", "one-step"]
    share = np.mean(heard[1].query.settings["sample"]["sex"])
    assert abs(share - told[0].last[1] / told[0].last.sum()) < 0.03


def test_the_place_is_found_with_covariates_of_the_law_that_was_bought(bought):
    heard, told = bought
    sample = heard[2].query.settings["sample"]
    expected = onestep.samples_of(settings_of(tiny.MODEL), COLUMNS, told[:2], 0)[0]
    assert set(sample) == {"age", "sex"}
    for name, column in expected.items():
        np.testing.assert_array_equal(sample[name], column)
    assert heard[2].query.settings["start"] == settings_of(tiny.MODEL).reference.start.tolist()


def test_what_is_asked_is_a_function_of_what_was_told(bought):
    """So that a run that was cut short goes on with the same question; and other answers make another question."""
    heard, told = bought
    asked = onestep.phase(tiny.MODEL, tiny.SCHEMA, PLANS, settings_of(tiny.MODEL))
    for number, phase in enumerate(heard):
        again = asked(told[:number])
        assert (again.plan, again.query.settings) == (phase.plan, phase.query.settings)
    louder = replace(told[2], blocks=told[2].blocks._replace(mean=told[2].blocks.mean + 0.1))
    assert asked([*told[:2], louder]).query.settings["place"] != heard[3].query.settings["place"]


def test_rows_are_asked_at_the_mean_of_the_last_iterates_in_units_of_that_place(known):
    heard, told = known
    described, mean = heard[1].query.settings, np.asarray(told[0].blocks.mean)
    assert mean.shape == (STEPS, 3)
    np.testing.assert_allclose(described["place"], mean[STEPS // 2 :].mean(0))
    precision = settings_of(tiny.MODEL).reference.prior_precision
    whiten, answers = onestep.at_place(tiny.MODEL, np.array(described["place"]), SAMPLE, precision, tiny.NUM_ROWS)
    np.testing.assert_allclose(described["whiten"], whiten)
    assert heard[1].plan.clip_norm == onestep.best_clip(answers, ONCE)


def test_a_clip_norm_that_is_given_is_taken(known):
    _, told = known
    settings = settings_of(tiny.MODEL, SAMPLE, clip_norm=0.37)
    found = onestep.phase(tiny.MODEL, tiny.SCHEMA, PLANS[2:], settings)(told[:1])
    assert found.plan == replace(ONCE, clip_norm=0.37)


@pytest.mark.parametrize(
    ("changes", "message"), [({"clip_norm": -1.0}, "clip_norm=-1.0"), ({"clip_norm": 0.0}, "clip_norm=0.0")]
)
def test_a_clip_norm_that_is_none_is_refused_before_anything_is_asked(changes, message):
    with pytest.raises(ValueError, match=message):
        onestep.phase(tiny.MODEL, tiny.SCHEMA, PLANS, settings_of(tiny.MODEL, **changes))


def test_settings_come_back_from_a_release(bought, known, tmp_path):
    for (_, told), columns, bins in ((bought, COLUMNS, BINS), (known, (), 0)):
        again = Release.load(told[-1].save(tmp_path / str(bins)))
        settings, found = onestep.described(again.settings)
        assert (found, settings.bins) == (columns, bins)
        expected = settings_of(tiny.MODEL, {} if columns else SAMPLE).reference
        for one, other in zip(jax.tree.leaves(settings.reference), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(one, other)


# What rows answer.


def gradients(model, place, columns):
    with jax.enable_x64(True):
        return np.asarray(jax.vmap(lambda row: jax.grad(model.log_likelihood)(place, row))(columns))


def test_without_noise_and_clipping_the_answer_is_the_whitened_gradient_of_the_log_likelihood():
    """Within the mechanism's grid: clip_norm / 2²⁰ a row."""
    place, whiten = np.array([0.3, -0.2, 0.5]), np.array([[2.0, 0.3, 0.0], [0.0, 1.0, -0.4], [0.1, 0.0, 0.5]])
    plan = replace(ONCE, clip_norm=50.0, noise_multiplier=0.0)
    with jax.enable_x64(True):
        query = onestep.query(tiny.MODEL, plan, place, whiten, settings_of(tiny.MODEL, SAMPLE))
    release = loop.run(noise.simulated(1), plan, query, tiny.rows())
    expected = whiten @ gradients(tiny.MODEL, place, tiny.SCHEMA.encode(tiny.table())).sum(0)
    np.testing.assert_allclose(release.blocks.mean_y[0], expected, atol=tiny.NUM_ROWS * 50 / 2**20)
    assert np.abs(expected).min() > 1


def test_each_part_of_the_question_is_asked_where_those_before_it_lead():
    """A part moves the place by its share of W⊤(answer + W∇ log p(z)) / N, at most as far as a reference step."""
    place, whiten = np.array([0.3, -0.2, 0.5]), np.diag([2.0, 1.0, 0.5])
    plan = replace(ONCE, steps=4, clip_norm=50.0, noise_multiplier=0.0)
    settings = settings_of(tiny.MODEL, SAMPLE, closing=0.5)
    with jax.enable_x64(True):
        release = loop.run(
            noise.simulated(1), plan, onestep.query(tiny.MODEL, plan, place, whiten, settings), tiny.rows()
        )
        uphill = jax.grad(tiny.MODEL.log_prior)
        places, answers = np.asarray(release.blocks.mean), np.asarray(release.blocks.mean_y)
        np.testing.assert_allclose(places[0], place)
        for before, answer, after in zip(places, answers, [*places[1:], release.last], strict=True):
            step = 0.5 * (answer + whiten @ np.asarray(uphill(before))) / tiny.NUM_ROWS
            longest = settings.reference.longest
            step *= min(1.0, longest / np.linalg.norm(step))
            np.testing.assert_allclose(after, before + whiten.T @ step, atol=1e-10)
    assert np.linalg.norm(answers[-1]) < 0.6 * np.linalg.norm(answers[0])


def test_where_no_part_moves_the_place_all_are_asked_at_one():
    plan, settings = replace(ONCE, steps=3), settings_of(tiny.MODEL, SAMPLE, closing=0.0)
    with jax.enable_x64(True):
        query = onestep.query(tiny.MODEL, plan, np.zeros(3), np.eye(3), settings)
    release = loop.run(noise.simulated(1), plan, query, tiny.rows())
    np.testing.assert_array_equal(release.blocks.mean, np.zeros((3, 3)))
    np.testing.assert_array_equal(release.last, np.zeros(3))


def test_units_are_those_of_what_rows_and_prior_tell_at_the_place():
    """W(F + P/N)Wᵀ = 1, with F = E p(1 − p)xxᵀ of a logistic regression as it is known; 8192 simulated rows have made
    the units, so entries are within .1 (five standard errors of a fourth moment below 4: false alarm below 10⁻⁵).
    """
    place, precision = np.array([0.4, 1.5, -0.8]), np.array([0.25, 0.3, 0.2])
    whiten, answers = onestep.at_place(tiny.MODEL, place, SAMPLE, precision, tiny.NUM_ROWS)
    x = np.stack([np.ones(300), (SAMPLE["age"] - 40) / 20, SAMPLE["sex"] == 1], axis=1)
    chance = 1 / (1 + np.exp(-x @ place))
    information = (x * (chance * (1 - chance))[:, None]).T @ x / len(x)
    found = whiten @ (information + np.diag(precision) / tiny.NUM_ROWS) @ whiten.T
    np.testing.assert_allclose(found, np.eye(3), atol=0.1)
    own = whiten * precision @ whiten.T / tiny.NUM_ROWS
    np.testing.assert_allclose(answers.T @ answers / len(answers) + own, np.eye(3), atol=0.14)
    np.testing.assert_allclose(own, np.diag(np.diag(own)), atol=1e-9)
    assert answers.shape == (onestep.AT_PLACE // 2, 3)


# The clip norm.


def normal_answers(count=2000, dim=3):
    return np.random.default_rng(5).normal(size=(count, dim))


def best(answers, noise_multiplier, num_rows=1000):
    return onestep.best_clip(answers, Plan(num_rows, 1, 1.0, 1.0, noise_multiplier))


def test_more_noise_asks_for_a_smaller_clip_norm():
    """Noise grows with the clip norm, and what clipping takes does not."""
    heavy = np.random.default_rng(6).standard_t(3, size=(2000, 3))
    for answers in (normal_answers(), heavy):
        found = [best(answers, multiplier) for multiplier in (0.0, 10.0, 100.0, 1000.0)]
        assert found == sorted(found, reverse=True)
        assert found[0] > 1.5 * found[-1] > 0


def test_without_noise_nobody_is_clipped():
    answers = normal_answers()
    assert best(answers, 0.0) >= np.linalg.norm(answers, axis=1).max() * (1 - 1e-3)


def test_a_few_rows_far_out_do_not_set_the_clip_norm():
    answers = normal_answers()
    far = answers.copy()
    far[:4] *= 1e4
    assert best(far, 30.0) < 2 * best(answers, 30.0)


@pytest.mark.parametrize("unit", [1e-3, 40.0])
def test_the_clip_norm_is_in_the_units_of_the_answers(unit):
    """To its four digits."""
    answers = normal_answers()
    assert best(unit * answers, 30.0) == pytest.approx(unit * best(answers, 30.0), rel=1e-3)


def test_rows_of_typical_length_are_not_clipped_where_the_law_was_bought():
    """In whitened units that is √d, however much noise there is; with little of it, the law makes no difference."""
    answers = normal_answers()
    plan = Plan(1000, 1, 1.0, 1.0, 1000.0)
    assert onestep.best_clip(answers, plan) < 3**0.5
    assert onestep.best_clip(answers, plan, bought=True) == pytest.approx(3**0.5, rel=1e-3)
    quiet = replace(plan, noise_multiplier=0.0)
    assert onestep.best_clip(answers, quiet, bought=True) >= np.linalg.norm(answers, axis=1).max() * (1 - 1e-3)
    short = answers / 100
    assert onestep.best_clip(short, plan, bought=True) <= 1.2 * np.linalg.norm(short, axis=1).max()


def test_the_clip_norm_is_that_of_the_least_variance():
    """Of one coordinate, by the formula and a fine grid: Var / slope², with slope E[clip(g) g]."""
    answers = np.random.default_rng(7).standard_t(3, size=(4000, 1))

    def variance(clip_norm):
        clipped = np.clip(answers[:, 0], -clip_norm, clip_norm)
        return (clipped.var() / 1000 + (30 * clip_norm / 1000) ** 2) / (clipped * answers[:, 0]).mean() ** 2

    least = min(variance(clip_norm) for clip_norm in np.geomspace(0.05, 20, 2000))
    assert variance(best(answers, 30.0)) < 1.01 * least


@pytest.mark.parametrize("answers", [np.zeros((50, 2)), np.ones((50, 2)), np.eye(2)[[0] * 50]])
def test_answers_that_say_little_still_have_a_clip_norm(answers):
    """None, the same of all rows, and of one direction alone."""
    assert 0 < best(answers, 30.0) < 10


def test_information_is_the_slope_of_the_mean_clipped_answer():
    """A coin with a chance of .3, clipped so that one side is: E clip(w·g) by z in units of w, by differences."""
    unit, limit = 2.2, 1.0
    chance, rows = 0.3, Plan(1000, 1, 1.0, limit, 7.0)
    sides = unit * np.array([1 - chance, -chance])
    answers = np.repeat(sides, [3, 7])[:, None]
    clipped = np.clip(sides, -limit, limit)

    def mean(z):
        share = 1 / (1 + np.exp(-z))
        return share * clipped[0] + (1 - share) * clipped[1]

    place = np.log(chance / (1 - chance))
    slope = unit * (mean(place + 1e-5) - mean(place - 1e-5)) / 2e-5
    seen, covariance = onestep.information(answers, np.abs(answers[:, 0]), rows)
    assert clipped[0] < sides[0]
    np.testing.assert_allclose(seen, [[1000 * slope]], rtol=1e-6)
    spread = chance * (1 - chance) * (clipped[0] - clipped[1]) ** 2
    np.testing.assert_allclose(covariance, [[1000 * spread + 49 * limit**2]])
