"""What one answer at one place means: the table's own posterior where nothing is in the way, and honest where it is."""

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import jax
import numpy as np
import pytest
from scipy import stats

from discreet import planner
from discreet.evaluate import study
from discreet.evaluate.reference import non_private
from discreet.families.exponential import beta_bernoulli
from discreet.families.glm import glm
from discreet.mechanism import loop, noise
from discreet.mechanism.rows import store
from discreet.methods import onestep, score
from discreet.model import prior_moments
from discreet.plan import Plan
from discreet.posterior import onestep as meaning
from discreet.release import Release
from discreet.schema import Categorical, Numeric, Schema
from tests import tiny

DELTA, ROWS = 1e-5, 5000
COVARIATES = (Numeric("a", -4, 4), Categorical("s", ("f", "m")))
SCHEMAS = {
    "logistic": Schema((*COVARIATES, Categorical("y", ("no", "yes")))),
    "gaussian": Schema((*COVARIATES, Numeric("y", -10, 10))),
}
MODELS = {family: glm(family, "y", ["a", "s"], schema) for family, schema in SCHEMAS.items()}
families = pytest.mark.parametrize("family", MODELS)
COIN, COIN_MODEL, FLIPS, TABLES = Schema((Categorical("x", ("no", "yes")),)), beta_bernoulli(4.0, 4.0), 200, 40


def covariates(rng, count):
    return {"a": np.clip(rng.normal(size=count), -4, 4), "s": (rng.random(count) < 0.4).astype(np.int32)}


@cache
def table_of(family, seed=0, num_rows=ROWS):
    rng = np.random.default_rng(seed)
    rows = covariates(rng, num_rows)
    mean = 0.3 + 0.8 * rows["a"] - 0.7 * rows["s"]
    chance = 1 / (1 + np.exp(-mean))
    binary, real = (rng.random(num_rows) < chance).astype(np.int32), mean + 1.2 * rng.normal(size=num_rows)
    return rows | {"y": binary if family == "logistic" else np.clip(real, -10, 10)}


@cache
def exact_of(family):
    return non_private(MODELS[family], table_of(family))


def asked_at(family, table, place, sample, clip_norm, noise_multiplier=0.0, seed=1, steps=1):
    """The release of one question at this place, in so many parts."""
    model, num_rows = MODELS[family], len(table["a"])
    mean, sd = prior_moments(model)
    settings = onestep.Settings(score.Settings(mean, sd**-2, 0.5, 0.05, 0.5, sample))
    whiten, _ = onestep.at_place(model, place, sample, sd**-2, num_rows)
    plan = Plan(num_rows, steps, 1.0, clip_norm, noise_multiplier * steps**0.5)
    with jax.enable_x64(True):
        query = onestep.query(model, plan, place, whiten, settings)
    return loop.run(noise.simulated(seed), plan, query, store(SCHEMAS[family], table))


def near(exact, sds=1.0):
    """A place so many sds off, this way and that."""
    sd = np.sqrt(np.diag(exact.covariance))
    return exact.mean + sds * np.resize([1.0, -1.0], len(sd)) * sd


def public(table):
    return {name: table[name] for name in ("a", "s")}


def solve(release, family, draws=2000, seed=3, **options):
    return meaning.solve(np.random.default_rng(seed), release, MODELS[family], draws, **options)


@families
def test_without_noise_and_clipping_it_is_the_posterior_of_the_table(family):
    """One sd away from the mode: mean within .15 sds and sds within a tenth. Rows that are simulated leave that open;
    to stay at the place would be off by one sd.
    """
    exact = exact_of(family)
    release = asked_at(family, table_of(family), near(exact), public(table_of(family)), 1000.0)
    found = solve(release, family)
    sd = np.sqrt(np.diag(exact.covariance))
    np.testing.assert_allclose((found.z.mean(0) - exact.mean) / sd, 0, atol=0.15)
    np.testing.assert_allclose(found.z.std(0) / sd, 1, atol=0.1)
    together = np.corrcoef(found.z.T) - exact.covariance / np.outer(sd, sd)
    np.testing.assert_allclose(together, 0, atol=0.1)
    assert found.report["far"] == pytest.approx(1.0, abs=0.15)


@families
def test_the_place_hardly_matters(family):
    """Two places, four sds apart; the means agree within a seventh of that."""
    exact = exact_of(family)
    one, other = (
        solve(asked_at(family, table_of(family), near(exact, sds), public(table_of(family)), 3.0), family).z
        for sds in (-2.0, 2.0)
    )
    sd = np.sqrt(np.diag(exact.covariance))
    np.testing.assert_allclose((one.mean(0) - other.mean(0)) / sd, 0, atol=0.6)
    np.testing.assert_allclose(one.std(0) / other.std(0), 1, atol=0.1)


@families
def test_parts_say_together_what_the_whole_says_and_come_closer(family):
    """Four sds away, noise of a third of an sd: in 16 parts the posterior has the exact mean within 4.5 of the sd that
    noise adds (false alarm below 10⁻⁵ for each parameter), is as wide as that of one question within a tenth, and the
    places that were asked are, on average, nearer.
    """
    exact, table = exact_of(family), table_of(family)
    sd, found = np.sqrt(np.diag(exact.covariance)), {}
    for steps in (1, 16):
        release = asked_at(family, table, near(exact, 4.0), public(table), 4.0, 5.0, steps=steps)
        found[steps] = solve(release, family)
        more = np.sqrt(np.maximum(found[steps].z.var(0) - sd**2, 0.05 * sd**2))
        assert (np.abs(found[steps].z.mean(0) - exact.mean) < 4.5 * more).all()
    np.testing.assert_allclose(found[16].z.std(0) / found[1].z.std(0), 1, atol=0.1)
    assert found[16].report["far"] < 0.5 * found[1].report["far"]


@families
def test_where_nearly_all_rows_are_clipped_nothing_is_biased(family):
    """A clip norm of .8, below three of four answers, and no noise: the mean is off the exact one by what the wider sd
    says, in each parameter below 4.5 of it (false alarm below 10⁻⁵ each); as if rows were not clipped it would be off
    by far.
    """
    exact, table = exact_of(family), table_of(family)
    release = asked_at(family, table, near(exact), public(table), 0.8)
    place, whiten = (np.asarray(release.settings[name]) for name in ("place", "whiten"))
    gradients = jax.vmap(lambda row: jax.grad(MODELS[family].log_likelihood)(place, row))(table)
    assert (np.linalg.norm(np.asarray(gradients) @ whiten.T, axis=1) > 0.8).mean() > 0.75
    found, sd = solve(release, family), np.sqrt(np.diag(exact.covariance))
    more = np.sqrt(found.z.var(0) - sd**2)
    assert (np.abs(found.z.mean(0) - exact.mean) < 4.5 * more).all()
    assert (found.z.std(0) < 2 * sd).all()
    unaware = place + release.blocks.mean_y[0] @ whiten / ROWS
    assert np.abs((unaware - exact.mean) / sd).max() > 5


def test_what_simulated_rows_leave_open_is_in_the_width():
    """Of very many rows, nearly all clipped, without noise, the chance of those that are simulated is what is left:
    six readings of one release differ by their sds at most, χ² of 15 (false alarm 10⁻⁵).
    """
    table, exact = table_of("logistic", 1, 100_000), exact_of("logistic")
    release = asked_at("logistic", table, exact.mean, public(table), 0.3)
    drawn = np.stack([solve(release, "logistic", 400, seed).z for seed in range(6)])
    means = drawn.mean(1)
    assert (((means - means.mean(0)) / drawn.std(1)) ** 2).sum() < stats.chi2.isf(1e-5, 15)


def test_clipped_answers_of_many_tables_are_unbiased():
    """Sixteen Gaussian tables with a known truth, most rows clipped, no noise: errors in sds have mean zero within 4.5
    standard errors in each of four parameters (false alarm 3·10⁻⁵), and their squares add up to χ² of 64 (10⁻⁵).
    """
    model, sample = MODELS["gaussian"], covariates(np.random.default_rng(9), 8000)
    residual = 1.2 / 10
    tau = 1 / residual
    slopes = np.array([0.03, 0.32, -0.07]) * tau  # of the outcome ÷ 10, a ÷ 4, in residual sds
    truth = np.array([*slopes, np.log(np.expm1(tau))])
    place, errors = truth + 0.02, []
    for seed in range(16):
        table = table_of("gaussian", seed + 20, 1000)
        z = solve(asked_at("gaussian", table, place, sample, 0.8), "gaussian", 1000, seed).z
        errors.append((z.mean(0) - truth) / z.std(0))
    assert model.dim == 4
    assert np.abs(np.mean(errors, 0)).max() < 4.5 / 4
    low, high = stats.chi2.ppf([5e-6, 1 - 5e-6], 64)
    assert low < np.square(errors).sum() < high


@families
def test_noise_is_in_the_width_and_left_out_on_request(family):
    exact, table = exact_of(family), table_of(family)
    release = asked_at(family, table, near(exact), public(table), 3.0, 20.0)
    aware, unaware = solve(release, family), solve(release, family, noisy=False)
    assert (unaware.z.std(0) < 0.8 * aware.z.std(0)).all()
    expected = np.sqrt(1 + 60**2 / ROWS)  # in whitened units rows have covariance N, about, and noise 60²
    assert (aware.z.std(0) / unaware.z.std(0)).mean() == pytest.approx(expected, rel=0.15)
    for found in (aware, unaware):
        assert 0 < found.report["efficiency"] <= 1
        assert np.isfinite(found.report["far"])


def test_draws_are_as_many_as_asked_for_and_repeat_with_the_seed():
    release = asked_at("logistic", table_of("logistic"), near(exact_of("logistic")), public(table_of("logistic")), 3.0)
    for draws in (1, 7, 100):
        assert solve(release, "logistic", draws).z.shape == (draws, 3)
    one, other, another = (solve(release, "logistic", 50, seed).z for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, other)
    assert not np.array_equal(one, another)


def test_a_model_that_cannot_simulate_is_refused():
    release = asked_at("logistic", table_of("logistic"), near(exact_of("logistic")), public(table_of("logistic")), 3.0)
    mute = replace(MODELS["logistic"], simulate=None)
    with pytest.raises(ValueError, match="cannot simulate its outcome"):
        meaning.solve(np.random.default_rng(1), release, mute, 10)


# Whole runs.


class Coins(NamedTuple):
    choice: planner.Choice
    truth: np.ndarray
    yes: np.ndarray
    drawn: np.ndarray
    unaware: np.ndarray


@pytest.fixture(scope="module")
def coins():
    """Forty tables of 200 flips, truths from the prior, planned for ε = .2: noise is as loud as the flips."""
    choice = planner.choose_onestep(COIN_MODEL, COIN, FLIPS, 0.2, DELTA)
    truth, tables = study.simulate_tables(5, COIN_MODEL, COIN, FLIPS, TABLES)
    asked = onestep.phase(COIN_MODEL, COIN, choice.plans, choice.settings)
    releases = [
        loop.run_phases(noise.simulated(100 + k), choice.plans, asked, store(COIN, {"x": tables["x"][k]}))
        for k in range(TABLES)
    ]
    drawn, unaware = (
        np.stack(
            [
                meaning.solve(np.random.default_rng(k), release, COIN_MODEL, 400, noisy=noisy).z[:, 0]
                for k, release in enumerate(releases)
            ]
        )
        for noisy in (True, False)
    )
    return Coins(choice, truth[:, 0], tables["x"].sum(1), drawn, unaware)


def test_intervals_of_whole_runs_cover_and_without_the_noise_they_do_not(coins):
    """Errors in sds, squared, add up to χ² of 40 (false alarm 2·10⁻⁵), and 90 % intervals miss in 12 tables at most
    (4·10⁻⁴); read as if there were no noise the same releases fail both.
    """
    truth = coins.truth
    low, high = stats.chi2.ppf([1e-5, 1 - 1e-5], TABLES)

    def judged(drawn):
        errors = (truth - drawn.mean(1)) / drawn.std(1)
        missed = (np.abs((drawn < truth[:, None]).mean(1) - 0.5) > 0.45).sum()
        return np.square(errors).sum(), missed

    total, missed = judged(coins.drawn)
    assert low < total < high
    assert missed <= 12
    total, missed = judged(coins.unaware)
    assert total > high
    assert missed > 12


def test_widths_of_whole_runs_are_those_that_were_predicted(coins):
    """Against the exact posterior Beta(4 + yes, 4 + no), on average over tables, within 15 %."""
    yes = coins.yes[:, None]
    share = np.random.default_rng(1).beta(4 + yes, 4 + FLIPS - yes, (TABLES, 4000))
    exact = np.log(share / (1 - share)).std(1)
    ratio = coins.drawn.std(1) / exact
    assert ratio.mean() == pytest.approx(coins.choice.width, rel=0.15)
    assert (ratio > 1).mean() > 0.9


@pytest.fixture(scope="module")
def regression():
    """A regression whose covariates' law was bought."""
    choice = planner.choose_onestep(tiny.MODEL, tiny.SCHEMA, tiny.NUM_ROWS, 2.0, tiny.DELTA)
    asked = onestep.phase(tiny.MODEL, tiny.SCHEMA, choice.plans, choice.settings)
    return loop.run_phases(noise.simulated(4), choice.plans, asked, tiny.rows())


def test_a_law_that_was_bought_is_read_from_the_phases_before(regression, tmp_path):
    """The exact mean is within 4.5 sds in each of three parameters (false alarm below 3·10⁻⁵), and sds are larger."""
    assert len(regression.before) == 3
    again = Release.load(regression.save(tmp_path / "release"))
    one, other = (
        meaning.solve(np.random.default_rng(2), release, tiny.MODEL, 2000).z for release in (regression, again)
    )
    np.testing.assert_array_equal(one, other)
    exact = tiny.laplace()
    assert (np.abs(one.mean(0) - exact.mean) < 4.5 * one.std(0)).all()
    assert (one.std(0) > 0.9 * np.sqrt(np.diag(exact.covariance))).all()


def test_fewer_draws_than_laws_are_no_trouble(regression):
    assert onestep.LAWS > 3
    found = meaning.solve(np.random.default_rng(2), regression, tiny.MODEL, 3)
    assert found.z.shape == (3, 3)
    assert 0 < found.report["efficiency"] <= 1
