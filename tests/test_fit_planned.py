"""A fit whose method and plan are the planner's: a public sample, given values, and readings that decide."""

import math
from functools import partial

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from discreet import fitting, planner
from discreet.accounting import guarantee
from discreet.evaluate.reference import non_private
from discreet.families.glm import Priors, glm
from discreet.fitting import encode, fit, simulated
from discreet.model import from_numpyro
from discreet.posterior.reading import Options
from discreet.schema import Categorical, Numeric, Schema, SchemaError
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
    return fitted(method="score", sample=SAMPLE, values=GIVEN)


@pytest.fixture(scope="module")
def stepped():
    """By the default method."""
    return fitted(sample=SAMPLE, values={"clip_norm": 4.0}, draws=500)


def choice(method=None):
    """What the planner chooses with the sample, without values."""
    sample = planner.public_sample(tiny.MODEL, tiny.SCHEMA, SAMPLE)
    return planner.of_method(method, sample)(tiny.MODEL, tiny.SCHEMA, NUM_ROWS, 1.0, 1e-5)


@pytest.fixture(scope="module")
def sampled():
    return choice()


@pytest.fixture
def planned(monkeypatch):
    """What a fit with these options would run: the plans, and the settings of the first phase; no row is asked."""

    class Stop(Exception):
        pass

    def plan(how=fitted, **options):
        seen = []

        def run(noise, plans, phase, rows, **_):
            seen.extend((plans, phase(()).query.settings))
            raise Stop

        monkeypatch.setattr(fitting, "run_phases", run)
        with pytest.raises(Stop):
            how(**options)
        return seen

    return plan


@pytest.fixture
def no_row_is_asked(monkeypatch):
    monkeypatch.setattr(fitting, "run_phases", lambda *_, **__: pytest.fail("the rows were asked"))


def test_scores_are_fitted_where_they_are_asked_for_and_say_why(scored):
    assert scored.info["method"] == "score, noise-aware"
    why = [reason for reason in choice("score").reasons if not reason.startswith("clip_norm")]
    assert set(why) < set(scored.info["reasons"])
    assert scored.release.settings["method"] == "score"
    assert scored.release.settings["reasons"] == scored.info["reasons"]
    assert scored.release.settings["sample"]["sex"] == tiny.SCHEMA.select(["sex"]).encode(SAMPLE)["sex"].tolist()


def test_values_override_what_was_planned_and_the_release_has_them(scored):
    plan = choice("score").plan
    assert plan.clip_norm != 4.0
    assert scored.release.plan.clip_norm == scored.info["plan"]["clip_norm"] == 4.0
    assert scored.release.plan.noise_multiplier == plan.noise_multiplier
    assert scored.release.settings["longest"] == 0.1
    assert scored.info["reasons"][-2:] == ["clip_norm 4.0: given", "longest 0.1: given"]
    assert scored.release.settings["predicted"] is None
    assert scored.guarantee.epsilon <= 1.0


def test_the_default_is_one_step_that_says_why_and_pays_for_all_phases(stepped):
    assert stepped.info["method"] == "one step, noise-aware"
    assert stepped.info["reasons"][0].startswith("method one-step: most of the budget for one question")
    assert stepped.release.settings["method"] == "one-step"
    assert stepped.release.settings["reasons"] == stepped.info["reasons"]
    assert stepped.info["before"] == [phase.plan.to_dict() for phase in stepped.release.before]
    assert stepped.guarantee.epsilon == guarantee(stepped.release.plans, 1e-5).epsilon
    assert guarantee(stepped.release.plan, 1e-5).epsilon < stepped.guarantee.epsilon <= 1.0


def test_a_clip_norm_that_is_given_is_that_of_the_last_question(stepped, sampled):
    assert sampled.plan.clip_norm != 4.0
    assert stepped.release.plan.clip_norm == stepped.info["plan"]["clip_norm"] == 4.0
    assert tuple(phase.plan for phase in stepped.release.before) == sampled.before
    assert stepped.release.plan.noise_multiplier == sampled.plan.noise_multiplier
    assert stepped.info["reasons"][-1] == "clip_norm 4.0: given"
    assert stepped.release.settings["predicted"] is None


@pytest.mark.parametrize("method", ["scored", "stepped"])
def test_a_fit_is_around_the_non_private_posterior(method, request):
    """Means are within 5 sds of the mode (false alarm 2e-6, seed fixed); sds are between its own and the prior's."""
    exact = non_private(tiny.MODEL, tiny.SCHEMA.encode(tiny.table(NUM_ROWS)))
    z, sd = request.getfixturevalue(method).z.reshape(-1, 3), np.sqrt(np.diag(exact.covariance))
    assert (np.abs(z.mean(0) - exact.mean) < 5 * z.std(0)).all()
    assert (sd < z.std(0)).all()
    assert (z.std(0) < 2.0).all()  # the prior's


def test_without_values_the_fit_runs_the_planners_own_plan(planned, sampled):
    plans, settings = planned(sample=SAMPLE)
    assert plans == sampled.plans
    assert settings["predicted"] == sampled.predicted.tolist()
    assert settings["reasons"] == list(sampled.reasons)


def test_a_public_sample_may_be_a_file(planned, sampled, tmp_path):
    rows = zip(SAMPLE["age"], SAMPLE["sex"], strict=True)
    (tmp_path / "public.csv").write_text("age,sex\n" + "".join(f"{age},{sex}\n" for age, sex in rows))
    assert planned(sample=tmp_path / "public.csv")[0] == sampled.plans


def test_steps_that_are_given_are_paid_for(planned):
    """Recalibrated: twice the steps need more noise each."""
    found = [planned(method="dpvi", values=values)[0] for values in (None, {"steps": 2 * STEPS})]
    (plain,), (longer,) = found
    assert (plain.steps, longer.steps) == (STEPS, 2 * STEPS)
    assert longer.noise_multiplier > plain.noise_multiplier


def test_without_a_sample_the_law_of_the_covariates_is_bought_first(planned):
    plans, settings = planned()
    assert len(plans) == 4
    assert settings["method"] == "law, counts"
    assert settings["reasons"][0].startswith("method one-step: ")
    assert settings["reasons"][1].startswith("law of age, sex: 19% of the budget buys it")


def test_a_model_without_covariates_needs_no_sample(planned):
    rows = encode({"x": ["no", "yes"] * 50}, COIN)
    plans, settings = planned(partial(fit, BERNOULLI, rows, **BUDGET, noise=simulated(1)))
    assert (len(plans), settings["method"], settings["sample"]) == (2, "score", {})


@pytest.mark.usefixtures("no_row_is_asked")
def test_a_model_without_covariates_refuses_a_sample():
    with pytest.raises(ValueError, match=r"no covariates.*leave the public table out"):
        fit(BERNOULLI, encode({"x": ["no", "yes"] * 50}, COIN), **BUDGET, sample={"x": ["no"]})


def test_rows_on_disk_are_asked_by_dpvi(planned, tmp_path):
    """One step asks all rows at once, which need not fit into memory."""
    rows = encode(tiny.table(NUM_ROWS), tiny.SCHEMA, tmp_path / "rows")
    (plan,), _ = planned(partial(fit, tiny.MODEL, rows, **BUDGET, noise=simulated(1)))
    assert plan == planner.choose(tiny.MODEL, tiny.SCHEMA, NUM_ROWS, 1.0, 1e-5).plan


def test_the_last_iterate_is_one_of_dpvi():
    found = fitted(method="dpvi", reading="last iterate")
    assert found.info["method"] == "last iterate"
    assert found.release.plan == planner.choose(tiny.MODEL, tiny.SCHEMA, NUM_ROWS, 1.0, 1e-5).plan


def test_the_last_iterate_of_one_step_is_read_as_if_it_had_no_noise(stepped):
    """The same seed, so that the release is the same; intervals are narrower."""
    found = fitted(sample=SAMPLE, values={"clip_norm": 4.0}, reading="last iterate", draws=500)
    assert found.info["method"] == "one step, last iterate"
    np.testing.assert_array_equal(found.release.last, stepped.release.last)
    assert (found.z.std((0, 1)) < stepped.z.std((0, 1))).all()


@pytest.mark.parametrize(
    "asked",
    [
        {"reading": "iterate average"},
        {"options": Options(solver="exact")},
        {"options": Options(solver="full")},
        {"options": Options(prior="weak")},
        {"options": Options(burn_in="converged")},
    ],
)
def test_readings_that_one_step_does_not_have_are_of_dpvi(planned, asked):
    """Of a coin, which would be asked in one step otherwise."""
    rows = encode({"x": ["no", "yes"] * 50}, COIN)
    (plan,), settings = planned(partial(fit, BERNOULLI, rows, **BUDGET, noise=simulated(1)), **asked)
    assert plan == planner.choose(BERNOULLI, COIN, 100, 1.0, 1e-5).plan
    assert settings["method"] not in ("score", "one-step")


@pytest.mark.usefixtures("no_row_is_asked")
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"method": "score"}, "the law of age, sex is not public"),
        ({"method": "score", "sample": SAMPLE, "reading": "last iterate"}, "scores are read noise-aware"),
        ({"method": "dpvi", "sample": SAMPLE}, "method='dpvi' has no use for a public sample"),
        ({"values": {"noise_multiplier": 0.1}}, r"values=\['noise_multiplier'\] are none of this choice's"),
        ({"values": {"first": 0.1}}, r"values=\['first'\] are none"),
        (
            {"values": {"steps": 400}},
            r"values=\['steps'\] are none of this choice's: it has bins, clip_norm, closing, reference",
        ),
        ({"values": {"clip_norm": 0.0}}, "clip_norm=0.0 must be positive"),
        ({"sample": SAMPLE, "values": {"clip_norm": math.nan}}, "clip_norm=nan must be positive"),
        ({"values": {"bins": 0}}, "bins=0 must be at least 1"),
        ({"values": {"closing": 1.0}}, r"closing=1.0 must lie in \[0, 1\)"),
        ({"method": "dpvi", "values": {"clip_norm": 0.0}}, "clip_norm=0.0 must be positive"),
        ({"method": "score", "sample": SAMPLE, "values": {"last": 2.0}}, "last=2.0 must be shares"),
        ({"method": "dpvi", "values": {"steps": 2}}, "steps=2 are too few"),
        ({"method": "one-step", "reading": "iterate average"}, "one step is read noise-aware"),
    ],
)
def test_what_cannot_be_planned_is_refused_before_any_row_is_asked(asked, message):
    with pytest.raises(ValueError, match=message):
        fitted(**asked)


@pytest.mark.usefixtures("no_row_is_asked")
def test_steps_to_the_place_that_cannot_be_taken_are_refused_before_the_law_is_bought(sampled):
    wrong = sampled.settings.reference._replace(last=2.0, sample={})
    with pytest.raises(ValueError, match=r"last=2\.0 must be shares"):
        fitted(values={"reference": wrong})


@pytest.mark.usefixtures("no_row_is_asked")
def test_a_public_sample_that_lacks_a_covariate_is_refused():
    with pytest.raises(SchemaError, match="sex"):
        fitted(sample={"age": SAMPLE["age"]})


@pytest.mark.usefixtures("no_row_is_asked")
@pytest.mark.parametrize("asked", [{"sample": SAMPLE}, {"values": {"clip_norm": 1.0}}, {"values": {}}])
def test_a_choice_that_is_given_takes_neither_sample_nor_values(sampled, asked):
    with pytest.raises(ValueError, match="a choice has its own method, sample and values"):
        fitted(choice=sampled, **asked)


def waiting_times(X, y):
    """Gamma regression, as somebody would write it: none of the ready families."""
    weight = numpyro.sample("weight", dist.Normal(0, 1).expand([2]).to_event(1))
    shape = numpyro.sample("shape", dist.LogNormal(1.0, 0.5))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Gamma(shape, shape / jnp.exp(X @ weight)), obs=y)


def test_a_model_written_in_numpyro_is_asked_once_by_default():
    """At ε = 8 the law of two covariates is bought, and the mean is within 4.5 of the posterior's own sds of the
    non-private one (false alarm below 10⁻⁴ if noise is all that is between them), whose intervals are nearly as wide.
    """
    rng, count = np.random.default_rng(6), 2000
    x = np.clip(rng.normal(size=(count, 2)), -4, 4)
    y = np.clip(rng.gamma(3.0, np.exp(x @ [0.6, -0.4]) / 3.0), 0.01, 100)
    schema = Schema((Numeric("a", -4, 4), Numeric("b", -4, 4), Numeric("y", 0.01, 100)))
    model = from_numpyro(waiting_times, schema, arguments={"X": ["a", "b"]})
    table = {"a": x[:, 0], "b": x[:, 1], "y": y}
    found = fit(model, encode(table, schema), epsilon=8.0, delta=1e-5, noise=simulated(2), draws=1000)
    exact = non_private(model, table)
    z, sd = found.z[0], np.sqrt(np.diag(exact.covariance))
    assert found.info["method"] == "one step, noise-aware"
    assert len(found.release.plans) == 4
    assert (np.abs(z.mean(0) - exact.mean) < 4.5 * z.std(0)).all()
    assert (z.std(0) < 1.5 * sd).all()
    assert set(found.draws) == {"weight", "shape"}
