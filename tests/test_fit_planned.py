"""A fit whose method and plan are the planner's: a public sample, given values, and readings that decide."""

from functools import partial

import numpy as np
import pytest

from discreet import planner
from discreet.evaluate.reference import non_private
from discreet.families.glm import Priors, glm
from discreet.fitting import encode, fit, simulated
from discreet.mechanism import loop
from discreet.posterior.reading import Options
from discreet.schema import Categorical, Schema, SchemaError
from tests import tiny

NUM_ROWS, STEPS = 500, 300
BUDGET = {"epsilon": 1.0, "delta": 1e-5}
SAMPLE = {name: values for name, values in tiny.table(400).items() if name != "ill"}
COIN = Schema((Categorical("x", ("no", "yes")),))
BERNOULLI = glm("logistic", "x", [], COIN, priors=Priors(1.0, 0.5))
GIVEN = {"clip_norm": 4.0, "longest": 0.1}


@pytest.fixture(scope="module", autouse=True)
def few_steps():
    """The planner's own methods, with few steps."""
    with pytest.MonkeyPatch.context() as patch:
        for name, method in {"choose": "dpvi", "choose_score": "score"}.items():
            fewer = partial(getattr(planner, name), steps=STEPS)
            patch.setattr(planner, name, fewer)
            patch.setitem(planner.METHODS, method, fewer)
        yield


def fitted(**options):
    return fit(tiny.MODEL, tiny.rows(NUM_ROWS), **BUDGET, noise=simulated(3), **options)


@pytest.fixture(scope="module")
def scored():
    return fitted(sample=SAMPLE, values=GIVEN)


@pytest.fixture(scope="module")
def sampled():
    """The choice with the sample, without values."""
    sample = planner.public_sample(tiny.MODEL, tiny.SCHEMA, SAMPLE)
    return planner.choose_best(tiny.MODEL, tiny.SCHEMA, NUM_ROWS, 1.0, 1e-5, sample=sample)


@pytest.fixture
def planned(monkeypatch):
    """What a fit with these options would run: the plan and the settings, before any row is asked."""

    class Stop(Exception):
        pass

    def plan(how=fitted, **options):
        seen = []

        def run(noise, plan, query, rows, **_):
            seen.extend((plan, query.settings))
            raise Stop

        monkeypatch.setattr(loop, "run", run)
        with pytest.raises(Stop):
            how(**options)
        return seen

    return plan


@pytest.fixture
def no_row_is_asked(monkeypatch):
    monkeypatch.setattr(loop, "run", lambda *_, **__: pytest.fail("the rows were asked"))


def test_a_public_sample_makes_a_fit_of_scores_that_says_why(scored, sampled):
    assert scored.info["method"] == "score, noise-aware"
    assert scored.info["reasons"][0].startswith("method score: the law of rows is public")
    planned = [reason for reason in sampled.reasons if not reason.startswith("clip_norm")]
    assert set(planned) < set(scored.info["reasons"])
    assert scored.release.settings["method"] == "score"
    assert scored.release.settings["reasons"] == scored.info["reasons"]
    assert scored.release.settings["sample"]["sex"] == tiny.SCHEMA.select(["sex"]).encode(SAMPLE)["sex"].tolist()


def test_values_override_what_was_planned_and_the_release_has_them(scored, sampled):
    assert sampled.plan.clip_norm != 4.0
    assert scored.release.plan.clip_norm == scored.info["plan"]["clip_norm"] == 4.0
    assert scored.release.plan.noise_multiplier == sampled.plan.noise_multiplier
    assert scored.release.settings["longest"] == 0.1
    assert scored.info["reasons"][-2:] == ["clip_norm 4.0: given", "longest 0.1: given"]
    assert scored.release.settings["predicted"] is None
    assert scored.guarantee.epsilon <= 1.0


def test_a_fit_of_scores_is_around_the_non_private_posterior(scored):
    """Means are within 5 sds of the mode (false alarm 2e-6, seed fixed); sds are between its own and the prior's."""
    exact = non_private(tiny.MODEL, tiny.SCHEMA.encode(tiny.table(NUM_ROWS)))
    z, sd = scored.z.reshape(-1, 3), np.sqrt(np.diag(exact.covariance))
    assert (np.abs(z.mean(0) - exact.mean) < 5 * z.std(0)).all()
    assert (sd < z.std(0)).all()
    assert (z.std(0) < 2.0).all()  # the prior's


def test_without_values_the_fit_runs_the_planners_own_plan(planned, sampled):
    plan, settings = planned(sample=SAMPLE)
    assert plan == sampled.plan
    assert settings["predicted"] == sampled.predicted.tolist()
    assert settings["reasons"] == list(sampled.reasons)


def test_a_public_sample_may_be_a_file(planned, sampled, tmp_path):
    rows = zip(SAMPLE["age"], SAMPLE["sex"], strict=True)
    (tmp_path / "public.csv").write_text("age,sex\n" + "".join(f"{age},{sex}\n" for age, sex in rows))
    assert planned(sample=tmp_path / "public.csv")[0] == sampled.plan


def test_steps_that_are_given_are_paid_for(planned):
    """Recalibrated: twice the steps need more noise each."""
    plain, longer = (planned(values=values)[0] for values in (None, {"steps": 2 * STEPS}))
    assert (plain.steps, longer.steps) == (STEPS, 2 * STEPS)
    assert longer.noise_multiplier > plain.noise_multiplier


def test_without_a_sample_the_fit_is_dpvi_and_says_why(planned):
    settings = planned()[1]
    assert settings["method"] != "score"
    assert settings["reasons"][0] == "method dpvi: the law of age, sex is not public: no sample of it was given"


def test_a_model_without_covariates_needs_no_sample(planned):
    rows = encode({"x": ["no", "yes"] * 50}, COIN)
    settings = planned(partial(fit, BERNOULLI, rows, **BUDGET, noise=simulated(1)))[1]
    assert (settings["method"], settings["sample"]) == ("score", {})


@pytest.mark.usefixtures("no_row_is_asked")
def test_a_model_without_covariates_refuses_a_sample():
    with pytest.raises(ValueError, match=r"no covariates.*leave the public table out"):
        fit(BERNOULLI, encode({"x": ["no", "yes"] * 50}, COIN), **BUDGET, sample={"x": ["no"]})


def test_the_last_iterate_is_one_of_dpvi():
    """Scores have no such reading."""
    found = fitted(reading="last iterate")
    assert found.info["method"] == "last iterate"
    assert found.release.settings["method"] != "score"
    assert found.release.plan == planner.choose(tiny.MODEL, tiny.SCHEMA, NUM_ROWS, 1.0, 1e-5).plan


@pytest.mark.parametrize(
    "asked",
    [
        {"reading": "last iterate"},
        {"reading": "iterate average"},
        {"options": Options(solver="exact")},
        {"options": Options(prior="weak")},
        {"options": Options(burn_in="converged")},
    ],
)
def test_readings_that_scores_do_not_have_are_of_dpvi(planned, asked):
    """Of a coin, too, which would be scores otherwise."""
    rows = encode({"x": ["no", "yes"] * 50}, COIN)
    settings = planned(partial(fit, BERNOULLI, rows, **BUDGET, noise=simulated(1)), **asked)[1]
    assert settings["method"] != "score"


@pytest.mark.usefixtures("no_row_is_asked")
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"method": "score"}, "the law of age, sex is not public"),
        ({"method": "score", "sample": SAMPLE, "reading": "last iterate"}, "scores are read noise-aware"),
        ({"method": "dpvi", "sample": SAMPLE}, "method='dpvi' has no use for a public sample"),
        ({"values": {"noise_multiplier": 0.1}}, r"values=\['noise_multiplier'\] are none of this choice's"),
        ({"values": {"first": 0.1}}, r"values=\['first'\] are none"),
        ({"values": {"clip_norm": 0.0}}, "clip_norm=0.0 must be positive"),
        ({"sample": SAMPLE, "values": {"last": 2.0}}, "last=2.0 must be shares"),
        ({"values": {"steps": 2}}, "steps=2 are too few"),
    ],
)
def test_what_cannot_be_planned_is_refused_before_any_row_is_asked(asked, message):
    with pytest.raises(ValueError, match=message):
        fitted(**asked)


@pytest.mark.usefixtures("no_row_is_asked")
def test_a_public_sample_that_lacks_a_covariate_is_refused():
    with pytest.raises(SchemaError, match="sex"):
        fitted(sample={"age": SAMPLE["age"]})


@pytest.mark.usefixtures("no_row_is_asked")
@pytest.mark.parametrize("asked", [{"sample": SAMPLE}, {"values": {"clip_norm": 1.0}}, {"values": {}}])
def test_a_choice_that_is_given_takes_neither_sample_nor_values(sampled, asked):
    with pytest.raises(ValueError, match="a choice has its own method, sample and values"):
        fitted(choice=sampled, **asked)
