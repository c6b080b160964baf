"""The plan of one step: what each phase may spend, when it is none, and what to expect of it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from discreet.accounting import guarantee
from discreet.families.exponential import beta_bernoulli
from discreet.families.glm import glm
from discreet.methods import law
from discreet.methods import onestep as methods
from discreet.model import covariates_of, prior_moments
from discreet.plan import Plan
from discreet.planner import onestep
from discreet.posterior import full
from discreet.schema import Categorical, Schema, Unit
from tests import tiny

EPSILON, DELTA, ROWS = 1.0, 1e-5, 2000
COIN, COIN_MODEL = Schema((Categorical("x", ("no", "yes")),)), beta_bernoulli(10.0, 10.0)
COLUMNS = tiny.SCHEMA.select(["age", "sex"]).columns
SAMPLE = {name: column for name, column in tiny.SCHEMA.encode(tiny.table()).items() if name != "ill"}
KNOWN = {"coin": (COIN_MODEL, COIN, None), "sample": (tiny.MODEL, tiny.SCHEMA, SAMPLE)}
HOW = {**KNOWN, "bought": (tiny.MODEL, tiny.SCHEMA, None)}
hows = pytest.mark.parametrize("how", HOW)


def choose(how, num_rows=ROWS, epsilon=EPSILON, delta=DELTA):
    model, schema, sample = HOW[how]
    return onestep.choose_onestep(model, schema, num_rows, epsilon, delta, sample=sample)


@pytest.fixture(scope="module")
def choices():
    return {how: choose(how) for how in HOW}


def leaves(choice):
    return jax.tree.leaves((choice.settings, choice.prior, choice.predicted))


# What is spent.


@pytest.mark.parametrize("columns", [(), COLUMNS, COLUMNS[1:]], ids=["known", "bought", "one column of levels"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_phases_together_meet_the_budget_and_nearly_use_it_up(columns, epsilon):
    shares = onestep.shares_for(columns, ROWS, epsilon, DELTA)
    plans = onestep.plans_for(tiny.MODEL, columns, ROWS, shares, epsilon, DELTA)
    assert 0.99 * epsilon < guarantee(plans, DELTA).epsilon <= epsilon


@hows
def test_a_choice_has_the_phases_that_were_paid_for(choices, how):
    """The clip norm, which noise grows with, costs nothing."""
    choice = choices[how]
    assert guarantee(choice.plans, DELTA).epsilon <= EPSILON
    assert len(choice.plans) == (4 if how == "bought" else 2)
    for plan in choice.plans:
        assert (plan.num_rows, plan.sampling_prob, plan.batch_limit) == (ROWS, 1.0, None)
    assert [plan.steps for plan in choice.plans[-2:]] == [onestep.STEPS, onestep.ASKS]


def spent(plans):
    """Shares of the budget: Gaussian answers of all rows add up as steps ÷ noise_multiplier²."""
    parts = np.array([plan.steps / plan.noise_multiplier**2 for plan in plans])
    return parts / parts.sum()


def test_shares_of_the_budget_are_those_that_are_said(choices):
    np.testing.assert_allclose(spent(choices["sample"].plans), [0.2, 0.8])
    np.testing.assert_allclose(spent(choices["bought"].plans), [0.04, 0.1, 0.2, 0.66])
    said = "\n".join(choices["bought"].reasons)
    assert "law of age, sex: 14% of the budget" in said
    assert "200 steps of all rows, with 20% of the budget" in said
    assert "law" not in choices["sample"].reasons[0]


def test_phases_before_the_last_get_up_to_twice_as_much_where_the_law_would_be_lost_in_noise():
    quiet, loud = ({"counts": 0.04 * times, "moments": 0.1 * times, "steps": 0.2 * times} for times in (1, 2))
    of_rows = [onestep.shares_for(COLUMNS, rows, EPSILON, DELTA) for rows in (100, 400, 500, 100_000)]
    assert of_rows[0] == pytest.approx(loud)
    assert of_rows[-1] == pytest.approx(quiet)
    assert loud["steps"] > of_rows[1]["steps"] > of_rows[2]["steps"] > quiet["steps"]
    assert onestep.shares_for((), 100, EPSILON, DELTA) == {"counts": 0.0, "moments": 0.0, "steps": 0.2}


def test_bins_are_fewer_where_their_counts_would_be_lost_in_noise():
    """At most 32, at least 8; in between a bin of even shares has two noise sds of rows."""
    counts = Plan(1000, 1, 1.0, 1.0, 25.0)
    assert onestep.bins_for(counts) == 20
    assert onestep.bins_for(replace(counts, noise_multiplier=250.0)) == 8
    assert onestep.bins_for(replace(counts, noise_multiplier=2.5)) == 32


def test_parts_of_a_question_cost_what_the_whole_does():
    plan = Plan(ROWS, 32, 1.0, 1.0, 20.0)
    whole = methods.at_once(plan)
    assert (whole.steps, whole.noise_std) == (1, pytest.approx(20.0 / 32**0.5))
    assert guarantee(whole, DELTA).epsilon == pytest.approx(guarantee(plan, DELTA).epsilon, rel=1e-3)


def test_one_column_of_levels_has_no_pairs_to_pay_for():
    schema = tiny.SCHEMA.select(["sex", "ill"])
    choice = onestep.choose_onestep(glm("logistic", "ill", ["sex"], schema), schema, ROWS, EPSILON, DELTA)
    np.testing.assert_allclose(spent(choice.plans), [0.04, 0.2, 0.76])
    assert choice.reasons[0].startswith("law of sex: 4% of the budget")
    assert onestep.too_noisy(choice) is None


def test_clip_norms_are_the_lengths_of_answers(choices):
    """So that no row is clipped while the law is bought."""
    counts, moments, steps, last = choices["bought"].plans
    assert (counts.clip_norm, moments.clip_norm) == (law.count_norm(COLUMNS), law.moment_norm(COLUMNS))
    assert steps.clip_norm == pytest.approx(1.8 * 3**0.5)
    assert 0.1 < last.clip_norm < 10  # in whitened units, where three parameters have answers of length √3


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, DELTA), (np.inf, DELTA), (1.0, 0.0), (1.0, 1.0)])
def test_budgets_that_are_none_are_refused(epsilon, delta):
    with pytest.raises(ValueError, match=r"epsilon|delta"):
        choose("coin", epsilon=epsilon, delta=delta)


# When there is none.


@hows
def test_nothing_is_in_the_way_of_small_models(how):
    model, schema, sample = HOW[how]
    assert onestep.why_not(model, schema, sample) is None


def reason(schema=tiny.SCHEMA, sample=None):
    return onestep.why_not(tiny.MODEL, schema, sample)


def test_rows_of_people_with_several_are_not_asked():
    persons = replace(tiny.SCHEMA, unit=Unit("person", 3, 2))
    assert reason(persons) == "one step asks rows, and 'person' may have several"
    with pytest.raises(ValueError, match="'person' may have several; choose another method="):
        onestep.choose_onestep(tiny.MODEL, persons, ROWS, EPSILON, DELTA)


def test_models_with_many_parameters_are_not_asked(monkeypatch):
    monkeypatch.setattr(full, "MOST_PARAMETERS", 2)
    assert reason() == "one step is for 2 parameters at most"


def test_a_sample_without_a_covariate_is_named():
    assert reason(sample={"age": SAMPLE["age"]}) == "the public sample has no sex"
    assert reason(sample={}) == "the public sample has no age, sex"


def test_a_law_of_very_many_pairs_is_not_bought_but_may_be_public(monkeypatch):
    monkeypatch.setattr(law, "MOST_PAIRS", law.size_of_moments(COLUMNS))
    assert reason() is None
    monkeypatch.setattr(law, "MOST_PAIRS", law.size_of_moments(COLUMNS) - 1)
    assert "their law is too much to buy" in reason()
    assert reason(sample=SAMPLE) is None


def test_an_empty_sample_is_refused_by_name():
    empty = {name: column[:0] for name, column in SAMPLE.items()}
    with pytest.raises(ValueError, match="the public sample has no rows: give some, or leave it out"):
        onestep.choose_onestep(tiny.MODEL, tiny.SCHEMA, ROWS, EPSILON, DELTA, sample=empty)


def test_a_table_without_rows_is_refused():
    with pytest.raises(ValueError, match="num_rows=0"):
        choose("coin", num_rows=0)


def test_a_model_whose_rows_say_nothing_is_refused():
    mute = replace(COIN_MODEL, log_likelihood=lambda z, row: jnp.zeros(()))
    with pytest.raises(ValueError, match="no finite gradient"):
        onestep.choose_onestep(mute, COIN, ROWS, EPSILON, DELTA)


def test_a_law_that_would_be_lost_in_noise_is_said_to_be(choices):
    """Noise on the mean of rows goes by 1 ÷ (rows × ε), about."""
    few = onestep.too_noisy(choose("bought", 50, 0.1))
    assert few.startswith("with this budget the law of 50 rows' covariates is lost in noise (sd ")
    assert float(few.split("(sd ")[1].rstrip(")")) > onestep.LOUDEST
    assert onestep.too_noisy(choices["bought"]) is None
    for how in KNOWN:
        assert onestep.too_noisy(choose(how, 50, 0.1)) is None


# What is expected.


@hows
@pytest.mark.parametrize(("num_rows", "epsilon"), [(50, 0.1), (ROWS, EPSILON), (10**6, 5.0)])
def test_widths_to_expect_are_finite_and_no_narrower_than_without_privacy(how, num_rows, epsilon):
    choice = choose(how, num_rows, epsilon)
    assert choice.predicted.shape == (HOW[how][0].dim,)
    assert np.isfinite(choice.predicted).all()
    assert (choice.predicted >= 1).all()
    assert f"{choice.width:.3g} times as wide" in choice.reasons[-1]
    if num_rows == 10**6:
        assert choice.width < 1.1


@hows
def test_a_larger_budget_and_more_rows_are_expected_to_give_narrower_intervals(choices, how):
    less, more = choose(how, epsilon=0.2), choose(how, num_rows=20 * ROWS)
    assert less.width > 1.05 * choices[how].width
    assert more.width < choices[how].width
    assert less.plan.clip_norm <= choices[how].plan.clip_norm <= more.plan.clip_norm


def test_no_interval_is_expected_to_be_wider_than_the_prior():
    """Ten rows and hardly any budget tell nothing: Beta(10, 10) is to remain, which flips would narrow by √(30/20)."""
    choice = choose("coin", 10, 0.01)
    assert choice.width == pytest.approx((30 / 20) ** 0.5, rel=0.1)


def test_steps_start_at_the_prior_and_know_the_sample_of_the_covariates_alone(choices):
    for how, choice in choices.items():
        model = HOW[how][0]
        mean, sd = prior_moments(model)
        reference = choice.settings.reference
        np.testing.assert_array_equal(reference.start, mean)
        np.testing.assert_array_equal(reference.prior_precision, sd**-2)
        assert set(reference.sample) == set(covariates_of(model) if how == "sample" else ())
        assert (choice.settings.bins, choice.settings.clip_norm) == (
            onestep.bins_for(choice.plans[0]) if how == "bought" else 0,
            None,
        )
        assert (choice.prior.mean == mean).all()


def test_of_a_long_sample_the_first_rows_are_kept(monkeypatch):
    monkeypatch.setattr(onestep, "KEPT", 100)
    given = SAMPLE | {"ill": np.zeros(300, np.int32)}
    choice = onestep.choose_onestep(tiny.MODEL, tiny.SCHEMA, ROWS, EPSILON, DELTA, sample=given)
    assert set(choice.settings.reference.sample) == {"age", "sex"}
    for name, column in choice.settings.reference.sample.items():
        np.testing.assert_array_equal(column, SAMPLE[name][:100])


@hows
def test_the_same_arguments_give_the_same_choice_also_after_another_was_made(choices, how):
    """To the last bit."""
    choose("coin" if how != "coin" else "sample")
    again = choose(how)
    assert (again.plans, again.reasons) == (choices[how].plans, choices[how].reasons)
    for one, other in zip(leaves(again), leaves(choices[how]), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
