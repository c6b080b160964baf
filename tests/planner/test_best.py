"""Which method is planned and why, what may be changed of a plan, and that none of it needs a row."""

import subprocess
import sys
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest

from discreet import planner
from discreet.accounting import guarantee
from discreet.families.glm import Priors, glm
from discreet.methods import elbo, law, onestep, score
from discreet.plan import default_batch_limit
from discreet.planner import prior_rows
from discreet.posterior import full
from discreet.posterior.reading import of_mixture
from discreet.schema import Categorical, Numeric, Schema, SchemaError, Unit
from tests import tiny

EPSILON, DELTA, ROWS, STEPS = 1.0, 1e-5, 2000, 200
BUDGET = (EPSILON, DELTA)
COIN = Schema((Categorical("x", ("no", "yes")),))
PEOPLE = Unit("person", most=3, typical=2)


def coin():
    """θ = sigmoid(z), z ~ N(0, ¼); a new model each time, with the same law."""
    return glm("logistic", "x", [], COIN, priors=Priors(1.0, 0.5))


BERNOULLI = coin()


def encoded(num_rows=500):
    return planner.public_sample(tiny.MODEL, tiny.SCHEMA, tiny.table(num_rows))


def best(model=tiny.MODEL, schema=tiny.SCHEMA, **options):
    return planner.choose_best(model, schema, ROWS, *BUDGET, **options)


@pytest.fixture(scope="module")
def scores():
    """Of a coin, in few steps; its rows are held as counts."""
    return planner.choose_score(BERNOULLI, COIN, ROWS, *BUDGET, steps=STEPS)


@pytest.fixture(scope="module")
def one_step():
    """Of a regression whose covariates' law is bought: four phases."""
    return planner.choose_onestep(tiny.MODEL, tiny.SCHEMA, ROWS, *BUDGET)


@pytest.fixture(scope="module")
def gradients():
    """DPVI of a regression, in few steps; its rows are held one by one."""
    return planner.choose(tiny.MODEL, tiny.SCHEMA, ROWS, *BUDGET, steps=STEPS)


def assert_equal(one, other):
    """To the last bit, settings and their sample included."""
    assert (one.plans, one.reasons, one.family) == (other.plans, other.reasons, other.family)
    assert jax.tree.structure(one.settings) == jax.tree.structure(other.settings)
    parts = zip(*(jax.tree.leaves((c.settings, c.prior, c.predicted)) for c in (one, other)), strict=True)
    for left, right in parts:
        np.testing.assert_array_equal(left, right, strict=True)


def test_one_step_is_chosen_where_there_are_no_covariates():
    found = best(BERNOULLI, COIN)
    assert found.family == "one step"
    assert found.reasons[0].startswith("method one-step: most of the budget for one question")
    assert (found.settings.reference.sample, len(found.before)) == ({}, 1)
    assert found.predicted.shape == (1,)


def test_one_step_keeps_the_covariates_of_a_public_sample_as_they_are():
    """Their law is known, so that none is bought."""
    sample = encoded()
    found = best(sample=sample | {"ill": np.zeros(500, np.int32)})
    assert found.family == "one step"
    assert found.reasons[0].startswith("method one-step: ")
    assert not any(reason.startswith("law") for reason in found.reasons)
    assert len(found.before) == 1
    assert set(found.settings.reference.sample) == {"age", "sex"}
    for name, column in found.settings.reference.sample.items():
        np.testing.assert_array_equal(column, sample[name])
    assert found.predicted.shape == (3,)


def test_one_step_buys_the_law_of_covariates_that_is_not_public():
    found = best()
    assert found.family == "one step"
    assert found.reasons[0].startswith("method one-step: ")
    assert found.reasons[1] == "law of age, sex: 14% of the budget buys it, for no public sample was given"
    assert (found.settings.reference.sample, len(found.before)) == ({}, 3)


@pytest.mark.parametrize("known", [False, True])
def test_all_phases_together_meet_the_budget_and_nearly_use_it_up(known):
    found = best(sample=encoded() if known else None)
    assert 0.98 * EPSILON < guarantee(found.plans, DELTA).epsilon <= EPSILON
    assert found.plans == (*found.before, found.plan)


@pytest.mark.parametrize("known", [False, True])
def test_the_best_is_the_method_itself_and_a_reason(known):
    sample = encoded() if known else None
    found = best(sample=sample)
    alone = planner.choose_onestep(tiny.MODEL, tiny.SCHEMA, ROWS, *BUDGET, sample=sample)
    assert_equal(found._replace(reasons=found.reasons[1:]), alone)
    persons = replace(tiny.SCHEMA, unit=PEOPLE)
    found = best(schema=persons, sample=sample)
    assert_equal(found._replace(reasons=found.reasons[1:]), planner.choose(tiny.MODEL, persons, ROWS, *BUDGET))


@pytest.mark.parametrize(("sample", "unknown"), [({}, "age, sex"), ({"age": np.full(9, 30.0)}, "sex")])
def test_dpvi_is_chosen_where_a_public_sample_lacks_covariates(sample, unknown):
    found = best(sample=sample)
    assert found.family == "mean-field"
    assert found.reasons[0] == f"method dpvi: the public sample has no {unknown}"


@pytest.mark.parametrize("known", [False, True])
def test_dpvi_is_chosen_where_a_person_has_several_rows(known):
    """With a sample or without covariates, too."""
    model, schema = (tiny.MODEL, tiny.SCHEMA) if known else (BERNOULLI, COIN)
    found = best(model, replace(schema, unit=PEOPLE), sample=encoded() if known else None)
    assert found.family == "mean-field"
    assert found.reasons[0] == "method dpvi: one step asks rows, and 'person' may have several"
    assert (found.plan.unit, found.before) == ("person", ())


def test_dpvi_is_chosen_where_parameters_are_too_many(monkeypatch):
    monkeypatch.setattr(full, "MOST_PARAMETERS", 2)
    found = best(sample=encoded()).reasons
    assert found[0] == "method dpvi: one step is for 2 parameters at most"
    mixed = replace(tiny.MODEL, description={"family": "mixture"})
    assert best(mixed, sample=encoded()).reasons == (found[0], *of_mixture(mixed), *found[1:])


def test_dpvi_is_chosen_where_covariates_have_too_many_pairs_of_levels_to_buy_their_law(monkeypatch):
    """A public sample has it."""
    monkeypatch.setattr(law, "MOST_PAIRS", 1)
    assert (
        best().reasons[0].startswith("method dpvi: the covariates have more than 1 pairs of levels: their law is too")
    )
    assert best(sample=encoded()).family == "one step"


def test_dpvi_is_chosen_where_the_law_of_the_covariates_would_be_lost_in_noise():
    """A public sample has none."""
    few = partial(planner.choose_best, tiny.MODEL, tiny.SCHEMA, 50, 0.1, DELTA)
    found = few()
    assert (found.family, found.before) == ("mean-field", ())
    assert found.reasons[0].startswith("method dpvi: with this budget the law of 50 rows' covariates is lost in noise")
    assert few(sample=encoded()).family == "one step"


def test_of_method_names_the_methods_that_there_are():
    with pytest.raises(ValueError, match="method='vi' must be one of one-step, dpvi, sep, score"):
        planner.of_method("vi")
    assert planner.of_method("dpvi") is planner.choose
    assert planner.of_method("sep") is planner.choose_sites


@pytest.mark.parametrize("name", ["dpvi", "sep"])
def test_of_method_refuses_a_sample_that_would_not_be_used(name):
    with pytest.raises(ValueError, match=f"method='{name}' has no use for a public sample: leave it out"):
        planner.of_method(name, encoded())


def test_of_method_hands_the_sample_on(monkeypatch):
    def named(name):
        return lambda *given, sample: (name, given, sample)

    monkeypatch.setattr(planner, "choose_best", named("best"))
    for name in planner.OF_A_SAMPLE:
        monkeypatch.setitem(planner.METHODS, name, named(name))
    sample = encoded()
    for method, name in ((None, "best"), ("one-step", "one-step"), ("score", "score")):
        assert planner.of_method(method, sample)(1, 2) == (name, (1, 2), sample)
        assert planner.of_method(method)(1, 2) == (name, (1, 2), None)


def test_scores_that_were_asked_for_by_name_are_not_replaced():
    with pytest.raises(ValueError, match=r"the law of age, sex is not public.*give sample=.*or choose method='dpvi'"):
        planner.of_method("score")(tiny.MODEL, tiny.SCHEMA, ROWS, *BUDGET)


def test_one_step_that_was_asked_for_by_name_is_not_replaced():
    choose = planner.of_method("one-step")
    with pytest.raises(ValueError, match="one step asks rows, and 'person' may have several; choose another method="):
        choose(tiny.MODEL, replace(tiny.SCHEMA, unit=PEOPLE), ROWS, *BUDGET)
    assert choose(tiny.MODEL, tiny.SCHEMA, 50, 0.1, DELTA).family == "one step"


def test_a_public_sample_is_the_raw_table_encoded_without_the_outcome():
    """Levels become their index and numbers are clamped; other columns are never read."""
    table = {"age": [10, 45.5, 99], "sex": ["m", "f", "m"], "ill": ["?", None, "no"], "note": ["a", "b", "c"]}
    found = planner.public_sample(tiny.MODEL, tiny.SCHEMA, table)
    assert list(found) == ["age", "sex"]
    np.testing.assert_array_equal(found["age"], [20, 45.5, 60])
    np.testing.assert_array_equal(found["sex"], np.array([1, 0, 1], np.int32), strict=True)


def test_a_public_sample_may_be_a_file_and_needs_no_unit(tmp_path):
    (tmp_path / "public.csv").write_text("sex,age\nf,30\nm,40\n")
    found = planner.public_sample(tiny.MODEL, replace(tiny.SCHEMA, unit=PEOPLE), tmp_path / "public.csv")
    assert {name: column.tolist() for name, column in found.items()} == {"age": [30.0, 40.0], "sex": [0, 1]}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"age": [30.0]}, "sex"),
        ({"age": [30.0], "sex": ["x"]}, "sex.*undeclared levels"),
        ({"age": [None], "sex": ["f"]}, "age.*missing values"),
        ({"age": [], "sex": []}, "no rows"),
    ],
)
def test_a_public_sample_that_the_schema_does_not_know_is_refused(table, message):
    with pytest.raises(SchemaError, match=message):
        planner.public_sample(tiny.MODEL, tiny.SCHEMA, table)


def test_a_model_without_covariates_has_nothing_to_sample():
    with pytest.raises(ValueError, match=r"no covariates.*leave the public table out"):
        planner.public_sample(BERNOULLI, COIN, {"x": ["no", "yes"]})


def test_another_clip_norm_keeps_the_noise_multiplier(scores, gradients):
    """Noise is in units of the clip norm, so that the price stays."""
    for choice in (scores, gradients):
        found = planner.changed(choice, *BUDGET, {"clip_norm": 0.5})
        assert found.plan == replace(choice.plan, clip_norm=0.5)
        assert found.plan.noise_std == pytest.approx(0.5 * choice.plan.noise_multiplier)
        assert all(one is other for one, other in zip(found.settings, choice.settings, strict=True))
        assert found.prior is choice.prior


def test_another_clip_norm_of_one_step_is_that_of_its_last_question(one_step):
    """No phase is planned anew, and what was said of the noise stays true."""
    found = planner.changed(one_step, *BUDGET, {"clip_norm": 0.5})
    assert found.plans == one_step.plans
    assert found.settings == one_step.settings._replace(clip_norm=0.5)
    assert (found.predicted, found.reasons[-1]) == (None, "clip_norm 0.5: given")
    kept = [reason for reason in one_step.reasons if not reason.startswith("clip_norm")]
    assert list(found.reasons[:-1]) == kept
    assert len(kept) == len(one_step.reasons) - 1


@pytest.mark.parametrize("values", [{"steps": 50}, {"sampling_prob": 0.3}, {"steps": 400, "sampling_prob": 0.02}])
def test_other_steps_and_other_sampling_meet_the_budget_again(scores, gradients, values):
    """And nearly use it up; noise grows with κ√T, about."""
    for choice in (scores, gradients):
        found = planner.changed(choice, *BUDGET, values).plan
        assert {name: getattr(found, name) for name in values} == values
        assert 0.95 * EPSILON < guarantee(found, DELTA).epsilon <= EPSILON
        assert found.clip_norm == choice.plan.clip_norm
        root = np.sqrt(found.steps / choice.plan.steps) * found.sampling_prob / choice.plan.sampling_prob
        assert (found.noise_multiplier > choice.plan.noise_multiplier) == (root > 1)


def test_other_sampling_has_its_own_batch_limit(scores, gradients):
    assert gradients.plan.batch_limit == default_batch_limit(ROWS, 0.1)
    found = planner.changed(gradients, *BUDGET, {"sampling_prob": 0.3}).plan
    assert found.batch_limit == default_batch_limit(ROWS, 0.3)
    assert planner.changed(gradients, *BUDGET, {"steps": 50}).plan.batch_limit == gradients.plan.batch_limit
    assert planner.changed(scores, *BUDGET, {"sampling_prob": 0.3}).plan.batch_limit is None


def test_settings_are_changed_by_name(scores, gradients):
    found = planner.changed(scores, *BUDGET, {"last": 0.001, "longest": 0.1})
    assert found.settings == scores.settings._replace(last=0.001, longest=0.1)
    assert found.plan == scores.plan
    found = planner.changed(gradients, *BUDGET, {"learning_rate": 1e-3, "draws": 2, "clip_norm": 3.0})
    assert (found.settings.learning_rate, found.settings.draws, found.plan.clip_norm) == (1e-3, 2, 3.0)
    assert found.settings.start is gradients.settings.start


@pytest.mark.parametrize(
    "values", [{"clip_norm": 2.0}, {"steps": 50}, {"draws": 4}, {"clip_norm": 2.0, "decay": 0.5, "draws": 4}]
)
def test_what_was_changed_is_said_to_be_given_and_nothing_is_predicted_of_it(gradients, values):
    found = planner.changed(gradients, *BUDGET, values)
    assert gradients.predicted is not None
    assert (found.predicted, found.width) == (None, None)
    assert found.reasons[-len(values) :] == tuple(f"{name} {value}: given" for name, value in values.items())


def test_nothing_changed_is_the_same_choice(scores):
    assert planner.changed(scores, *BUDGET, {}) is scores


@pytest.mark.parametrize("name", ["clip", "noise_multiplier", "batch_limit", "num_rows", "unit", "predicted", "first"])
def test_values_that_a_choice_does_not_have_are_refused_by_name(gradients, name):
    """Of the plan, what is public law, what the budget decides, and what another method has."""
    with pytest.raises(ValueError, match=rf"values=\['{name}'\] are none of this choice's: it has clip_norm, .*steps"):
        planner.changed(gradients, *BUDGET, {name: 1, "clip_norm": 2.0})


@pytest.mark.parametrize("name", ["steps", "sampling_prob", "noise_multiplier", "first", "learning_rate"])
def test_values_that_one_step_does_not_have_are_refused_by_name(one_step, name):
    with pytest.raises(
        ValueError, match=rf"values=\['{name}'\] are none .*: it has bins, clip_norm, closing, reference$"
    ):
        planner.changed(one_step, *BUDGET, {name: 1, "clip_norm": 2.0})


def test_every_setting_of_a_method_can_be_given(scores, gradients, one_step):
    for choice, kind in ((scores, score.Settings), (gradients, elbo.Settings), (one_step, onestep.Settings)):
        for name in kind._fields:
            assert planner.changed(choice, *BUDGET, {name: None}).settings._asdict()[name] is None


@pytest.mark.parametrize(
    ("values", "message"),
    [({"steps": 0}, "steps=0"), ({"sampling_prob": 2.0}, "sampling"), ({"clip_norm": -1}, "clip")],
)
def test_values_that_no_plan_can_have_are_refused(gradients, values, message):
    with pytest.raises(ValueError, match=message):
        planner.changed(gradients, *BUDGET, values)


@pytest.mark.parametrize("known", [False, True])
def test_the_same_arguments_give_the_same_choice_also_after_another_model_was_planned(known):
    """To the last bit: simulated rows are kept, for one model at a time, and made again they are the same."""
    sample = encoded() if known else None
    one = best(sample=sample)
    made = prior_rows._simulated.cache_info().misses
    assert_equal(best(sample=sample), one)
    assert prior_rows._simulated.cache_info().misses == made
    best(BERNOULLI, COIN)
    assert_equal(best(sample=sample), one)
    assert prior_rows._simulated.cache_info().misses == made + 2


def test_a_model_that_was_made_again_is_planned_the_same():
    assert_equal(best(coin(), COIN), best(coin(), COIN))


@pytest.mark.parametrize("known", [False, True])
def test_a_model_that_cannot_simulate_is_refused(known):
    with pytest.raises(ValueError, match=r"cannot simulate its outcome: give it a simulate function"):
        best(replace(tiny.MODEL, simulate=None), sample=encoded() if known else None)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_prior_whose_draws_are_not_finite_is_refused(known, bad):
    """One draw in a hundred is enough: such a prior is improper."""

    def improper(key):
        z = tiny.MODEL.sample_prior(key)
        return jax.numpy.where(jax.random.bernoulli(key, 0.01), bad, z)

    with pytest.raises(ValueError, match="the prior has draws that are not finite: give it a proper, bounded scale"):
        best(replace(tiny.MODEL, sample_prior=improper), sample=encoded() if known else None)


@pytest.mark.parametrize("bounds", [(None, None), (-np.inf, np.inf), (0, np.inf), (np.nan, 1)])
def test_a_number_without_bounds_is_refused_before_anything_is_planned(bounds):
    """Made-up covariates and clamping need them."""
    with pytest.raises(SchemaError, match=r"column 'age': bounds=.* must be two finite numbers, low < high"):
        Numeric("age", *bounds)


@pytest.mark.parametrize(
    ("declared", "message"),
    [({"integer": True}, "must have either bounds = \\[low, high\\] or levels"), ({"bounds": [1]}, "be two numbers")],
)
def test_a_file_that_declares_no_bounds_is_refused(declared, message):
    with pytest.raises(SchemaError, match=f"column 'age'.*{message}"):
        Schema.from_dict({"columns": {"age": declared}})


def test_planning_never_loads_the_package_that_sees_rows():
    """One step that buys a law, with a public sample, and scores: planned, changed, and looked at for other budgets."""
    code = """
import sys
import numpy as np
from discreet import planner
from discreet.families.glm import glm
from discreet.planner import outlook
from discreet.schema import Categorical, Numeric, Schema

schema = Schema((Numeric("age", 20, 60), Categorical("ill", ("no", "yes"))))
model = glm("logistic", "ill", ["age"], schema)
sample = planner.public_sample(model, schema, {"age": np.linspace(20, 60, 64)})
for method, public, family in ((None, None, "one step"), (None, sample, "one step"), ("score", sample, "scores")):
    choice = planner.of_method(method, public)(model, schema, 300, 1.0, 1e-5)
    assert choice.family == family, choice.reasons
    planner.changed(choice, 1.0, 1e-5, {"clip_norm": 1.0})
    outlook.warnings(lambda *_: choice, choice, 1.0, ["Intercept", "age"])
print([name for name in sys.modules if name.startswith("discreet.mechanism")])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.strip() == "[]"
