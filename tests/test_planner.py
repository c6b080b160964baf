"""The default plan: made in public, from the prior and the schema alone."""

import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from discreet import planner
from discreet.accounting import guarantee
from discreet.families.glm import Priors, glm
from discreet.methods import sep
from discreet.model import prior_moments
from discreet.plan import Plan
from discreet.planner import gradients, prior_rows, sites
from discreet.schema import Categorical, Numeric, Schema

COIN = Schema((Categorical("x", ("no", "yes")),))
PRIOR_SD = 0.5
BERNOULLI = glm("logistic", "x", [], COIN, priors=Priors(1.0, PRIOR_SD))  # θ = sigmoid(z), z ~ N(0, ¼)
WIDE = Schema((Numeric("age", 20, 60), Categorical("y", ("no", "yes"))))
LOGISTIC = glm("logistic", "y", ["age"], WIDE)
MULTIPLIER = 5.0
PLAN = Plan(num_rows=200, steps=10_000, sampling_prob=0.1, clip_norm=1.0, noise_multiplier=37.0)


@pytest.fixture
def quick(monkeypatch):
    """No accounting, and prior rows made by NumPy: every plan gets the same noise multiplier."""
    monkeypatch.setattr(prior_rows, "calibrate", lambda plan, *_: replace(plan, noise_multiplier=MULTIPLIER))
    rng = np.random.default_rng(2)
    z = PRIOR_SD * rng.normal(size=(64, 1))
    x = (rng.random((64, 512)) < special.expit(z)).astype(np.int32)
    made = planner.PriorRows(z, {"x": x}, (x - special.expit(z))[..., None])
    monkeypatch.setattr(gradients, "simulate_rows", lambda *_: made)


def choose_coin():
    """The choice for a million coin flips, without accounting."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prior_rows, "calibrate", lambda plan, *_: replace(plan, noise_multiplier=MULTIPLIER))
        return planner.choose(BERNOULLI, COIN, 10**6, 1.0, 1e-5)


@pytest.fixture(scope="module")
def coin():
    return choose_coin()


@pytest.fixture(scope="module")
def regression():
    """The choice for 500 rows of a regression with a continuous covariate, calibrated for few steps."""
    return planner.choose(LOGISTIC, WIDE, 500, 1.0, 1e-5, steps=20)


def width(choice):
    """(mean, sd) of the starting q, by inverting softplus in NumPy."""
    mean, scale = np.split(choice.settings.start, 2)
    return mean, np.logaddexp(0, scale)


def test_a_choice_meets_the_budget(regression):
    assert 0.9 < guarantee(regression.plan, 1e-5).epsilon <= 1.0
    assert regression.plan.steps == 20
    assert regression.plan.num_rows == 500


def test_a_choice_is_a_function_of_public_facts(coin):
    """The same arguments give the same choice, to the last bit."""
    again = choose_coin()
    assert again.plan == coin.plan
    for one, other in zip(again.settings, coin.settings, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_planner_does_not_load_the_package_that_sees_rows():
    code = "import sys, discreet.planner; print([m for m in sys.modules if m.startswith('discreet.mechanism')])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_batches_are_a_tenth_of_the_rows_and_at_most_a_thousand(coin, regression):
    assert coin.plan.sampling_prob * coin.plan.num_rows == pytest.approx(1000)
    assert regression.plan.sampling_prob == 0.1


def test_only_rows_that_are_held_one_by_one_have_a_batch_limit(coin, regression):
    assert COIN.held_as_counts(10**6)
    assert coin.plan.batch_limit is None
    assert not WIDE.held_as_counts(500)
    assert 50 < regression.plan.batch_limit <= 500


def test_a_roomy_limit_is_the_least_that_is_met_once_in_10_to_24_steps(coin, regression):
    plan = planner.roomy(regression).plan
    assert replace(plan, batch_limit=regression.plan.batch_limit) == regression.plan
    odds = [stats.binom.sf(plan.batch_limit - short, 500, 0.1) for short in (0, 1)]
    assert odds[0] <= 1e-24 < odds[1]
    assert guarantee(plan, 1e-5).epsilon <= guarantee(regression.plan, 1e-5).epsilon
    assert planner.roomy(coin) is coin


def test_the_start_is_the_prior_median_with_the_width_that_the_rows_will_leave(coin):
    """sd = 1/√(N·F): the Fisher information of a coin is the median of θ(1 − θ), within what 64 tables tell."""
    mean, sd = width(coin)
    assert mean[0] == pytest.approx(0, abs=5 * 1.2533 * PRIOR_SD / 64)  # 5 standard errors of a median: 6e-7
    theta = special.expit(PRIOR_SD * np.random.default_rng(1).normal(size=10_000))
    assert sd[0] == pytest.approx((10**6 * np.median(theta * (1 - theta))) ** -0.5, rel=0.05)


def test_the_start_is_never_wider_than_the_prior(regression):
    """Its precision is N·F + prior precision, per coordinate, and the posterior is told the same."""
    _, sd = width(regression)
    np.testing.assert_allclose(regression.prior.sd, 2.0, rtol=0.1)
    np.testing.assert_allclose(regression.prior.curvature, sd**-2)
    assert (sd < regression.prior.sd).all()


def test_the_clip_norm_holds_nearly_all_rows_in_four_of_five_tables(coin):
    """A narrow q has |∂ log p(x | z)| = |x − θ|, at most max(θ, 1 − θ): its .8 quantile over the prior.

    An 80 % quantile of 64 tables: the sd of its level is .05, so levels .55 to .97 (false alarms 1e-3, seed fixed).
    """
    low, high = (special.expit(PRIOR_SD * stats.norm.ppf((1 + level) / 2)) for level in (0.55, 0.97))
    assert low < coin.plan.clip_norm < high


def test_the_clip_norm_follows_the_scale_of_the_likelihood(quick):
    """With many rows q is narrow, and ten times the log-likelihood has ten times the gradients."""
    louder = replace(BERNOULLI, log_likelihood=lambda z, row: 10 * BERNOULLI.log_likelihood(z, row))
    plain, loud = (planner.choose(model, COIN, 10**8, 1.0, 1e-5).plan.clip_norm for model in (BERNOULLI, louder))
    assert loud == pytest.approx(10 * plain, rel=2e-3)


def test_the_clip_norm_grows_with_the_number_of_rows():
    """Noise shrinks with N and the bias of clipping does not, so fewer rows may be clipped."""
    values = np.random.default_rng(5).standard_t(3, (64, 512, 2)) + 0.2
    norms = [
        gradients._clip_norm(replace(PLAN, num_rows=num_rows), values, np.ones(2), np.ones(1))
        for num_rows in (200, 20_000, 2_000_000)
    ]
    least = np.quantile(np.quantile(np.linalg.norm(values, axis=-1), 0.99, axis=1), 0.8)
    assert norms[0] == pytest.approx(least, rel=1e-3)
    assert norms[0] <= norms[1] < norms[2]


def test_steps_are_as_large_as_noise_and_curvature_allow(coin, regression):
    """Noise alone wanders at most two prior sds (one unit for scales); a step closes at most `CLOSING` of any distance.

    One of the two is met exactly. What a step closes is an eigenvalue of step × curvature, in the typical table.
    """
    for choice, model, schema in ((coin, BERNOULLI, COIN), (regression, LOGISTIC, WIDE)):
        wander = choice.settings.learning_rate * choice.plan.noise_std * np.sqrt(choice.plan.steps)
        wandered = (wander[: model.dim] / (2 * choice.prior.sd)).max()
        step = (choice.settings.learning_rate * choice.settings.precondition * choice.plan.sampling_prob)[: model.dim]
        closed = []
        for table in planner.simulate_rows(model, schema).gradients:
            information = choice.plan.num_rows * table.T @ table / len(table)
            closed.append(np.linalg.eigvals(step[:, None] * (information + np.diag(choice.prior.sd**-2))).real.max())
        steepest = np.median(closed)
        assert wandered <= 1 + 1e-9
        assert (wander[model.dim :] <= 1 + 1e-9).all()
        assert steepest <= gradients.CLOSING * (1 + 1e-9)
        assert wandered == pytest.approx(1) or steepest == pytest.approx(gradients.CLOSING)


def test_a_prior_too_vague_to_plan_with_is_refused(quick, monkeypatch):
    """Gradients that differ by many orders of magnitude between tables leave no clip norm that fits."""
    rows = gradients.simulate_rows()
    wild = rows.gradients * np.geomspace(1e-8, 1.0, 64)[:, None, None]
    monkeypatch.setattr(gradients, "simulate_rows", lambda *_: rows._replace(gradients=wild))
    with pytest.raises(ValueError, match="too vague"):
        planner.choose(BERNOULLI, COIN, 1000, 1.0, 1e-5)


def test_settings_are_positive_and_the_reasons_say_the_numbers(coin, regression):
    for choice in (coin, regression):
        assert (choice.settings.precondition > 0).all()
        assert choice.settings.precondition[: len(choice.settings.start) // 2].min() == 1
        assert (choice.settings.learning_rate > 0).all()
        for number in (choice.plan.sampling_prob, choice.plan.clip_norm, choice.plan.noise_multiplier):
            assert any(f"{number:.4g}" in reason for reason in choice.reasons)


def test_the_clip_norm_of_sites_holds_nearly_all_of_them_in_four_of_five_tables():
    """Without covariates a row's site is (ν, τ), by brute force: N(z, s)·likelihood on a grid, divided by N(z, s)."""
    found = planner.choose_sites(BERNOULLI, COIN, 5000, 1.0, 1e-5, steps=100)
    assert guarantee(found.plan, 1e-5).epsilon <= 1.0
    simulated, variance = planner.simulate_rows(BERNOULLI, COIN), 1 / found.prior.curvature[0]
    grid = np.linspace(-8, 8, 2001) * np.sqrt(variance)
    lengths = np.empty(simulated.rows["x"].shape)
    for table, z in enumerate(simulated.z[:, 0]):
        for y in (0, 1):
            weight = np.exp(-(grid**2) / (2 * variance)) * special.expit((2 * y - 1) * (z + grid))
            weight /= weight.sum()
            first = weight @ grid
            second = weight @ (grid - first) ** 2
            eta, precision = first / second, 1 / second - 1 / variance  # about z
            lengths[table, simulated.rows["x"][table] == y] = np.hypot(eta, precision)
    shares = (lengths <= found.plan.clip_norm * (1 + 1e-3)).mean(1)
    assert (shares >= sites.SITES_HELD).mean() >= prior_rows.TABLES_HELD - 1 / 64  # quantiles lie between two tables
    assert (lengths <= 0.97 * found.plan.clip_norm).mean() < sites.SITES_HELD
    assert sep.closing(found.plan, found.settings) == pytest.approx(sites.SITE_CLOSING)
    assert found.family == "sites"


def test_a_coordinate_that_says_little_is_weighed_up():
    """β makes location gradients equal in size: β∘√F is constant."""
    information = np.array([4.0, 0.25, 1.0])
    beta = gradients._precondition(information, np.full(3, 1e-3), 10)[:3]
    np.testing.assert_allclose(beta * np.sqrt(information), 2.0)


def test_made_up_columns_stay_within_the_schema():
    rng = np.random.default_rng(0)
    for column in (Numeric("a", -3, 7), Numeric("b", 2, 5, integer=True), Categorical("c", ("x", "y", "z"))):
        values = planner.varied_column(rng, column)
        assert values.shape == (prior_rows.TABLES, prior_rows.ROWS_PER_TABLE)
        low, high = (0, 2) if isinstance(column, Categorical) else (column.low, column.high)
        assert (low <= values).all()
        assert (values <= high).all()
        if column.size is not None:
            assert (values == np.round(values)).all()


def test_prior_moments_of_a_normal_prior_are_its_own():
    """Median and quartile range of 4096 draws: 5 standard errors, false alarms 6e-7 a number."""
    model = replace(BERNOULLI, sample_prior=lambda key: 3 + 2 * jax.random.normal(key, (1,)))
    centre, spread = prior_moments(model)
    assert centre[0] == pytest.approx(3, abs=5 * 1.2533 * 2 / 64)
    assert spread[0] == pytest.approx(2, abs=5 * 1.1664 * 2 / 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sample_prior": lambda key: jnp.ones(1)}, r"parameters \[0\] have a constant prior"),
        ({"sample_prior": lambda key: 1 / jax.random.bernoulli(key, 0.99, (1,))}, "not finite"),
        ({"log_likelihood": lambda z, row: 0 * z[0]}, "no finite gradient"),
    ],
)
def test_a_model_that_cannot_be_planned_for_is_refused(change, message, quick):
    with pytest.raises(ValueError, match=message):
        planner.choose(replace(BERNOULLI, **change), COIN, 1000, 1.0, 1e-5)


def test_a_model_that_cannot_simulate_is_refused():
    with pytest.raises(ValueError, match="cannot simulate its outcome"):
        planner.choose(replace(BERNOULLI, simulate=None), COIN, 1000, 1.0, 1e-5)


def test_a_prior_that_expects_the_impossible_is_refused():
    """Outcomes that mostly fall outside their bounds say that prior and schema do not belong together."""
    column = Numeric("y", -1, 1)
    inside, clamped = np.zeros((8, 10)), np.where(np.arange(80).reshape(8, 10) % 10 < 6, 1.0, 0.3)
    prior_rows._check_outcome(column, inside)
    with pytest.raises(ValueError, match="60% of a typical simulated table has 'y' outside"):
        prior_rows._check_outcome(column, clamped)
    prior_rows._check_outcome(Numeric("y", 0, 9, integer=True), inside)  # zeros are counts, not clamped values
