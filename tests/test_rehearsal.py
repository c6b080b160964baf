"""Rehearsals: tables from the model, the share of intervals that hold the truth, widths over the non-private ones."""

import json
import math

import numpy as np
import pytest
from scipy import special, stats

from discreet import planner, rehearsal
from discreet.evaluate.reference import Laplace, non_private
from discreet.families import exponential
from discreet.families.glm import Priors, glm
from discreet.posterior.trace import TraceError
from discreet.posterior.types import Posterior
from discreet.schema import Categorical, Schema, Unit
from tests import tiny

DELTA, NUM_ROWS, STEPS, A, COUNT = 1e-5, 1000, 300, 10.0, 400
COIN = Schema((Categorical("x", ("no", "yes")),))
BERNOULLI = exponential.beta_bernoulli(A, A)


@pytest.fixture(scope="module")
def chosen():
    return planner.choose_score(BERNOULLI, COIN, NUM_ROWS, 1.0, DELTA, steps=STEPS)


def rehearse(chosen, count=COUNT, **options):
    return rehearsal.rehearse(BERNOULLI, COIN, chosen, count, delta=DELTA, **options)


def closed_form(model, table):
    """The coin's Laplace approximation in z = logit θ: precision (2a + N)·θ(1 − θ) at the mode."""
    share = (A + table["x"].sum()) / (2 * A + len(table["x"]))
    return Laplace(special.logit([share]), np.array([[1 / ((2 * A + len(table["x"])) * share * (1 - share))]]))


def drawn(z):
    """A posterior with these draws of z, (draws, d), and nothing else."""
    return Posterior({}, np.asarray(z)[None], None, {})


def exactly(seed=1, widen=1.0, shift=0.0, failing=0, error=ValueError):
    """Instead of a fit: the coin's own posterior, stretched, moved by so many of its sds; the first ones may fail."""
    rng, asked = np.random.default_rng(seed), []

    def fit(model, table, *, draws, **_):
        asked.append(table)
        if len(asked) <= failing:
            raise error("this table cannot be fitted")
        z = exponential.exact_beta(rng, A, A, table["x"].sum(), len(table["x"]), draws)
        return drawn((z.mean() + widen * (z - z.mean()) + shift * z.std())[:, None])

    return fit


@pytest.fixture
def quick(monkeypatch):
    """Makes fits what they are told to be, and the reference a closed form."""
    monkeypatch.setattr(rehearsal.study, "stored", lambda schema, table: table)
    monkeypatch.setattr(rehearsal, "non_private", closed_form)
    return lambda fit: monkeypatch.setattr(rehearsal, "fit", fit)


def test_exact_posteriors_hold_nine_in_ten_truths_and_are_as_wide_as_the_reference(chosen, quick):
    """400 tables: coverage within 4.5 sds of .9 (false alarm 7e-6), with a binomial's error, and widths within 3 % of
    one: the mean of 400 sds of 1000 draws each is known to .1 %, and Laplace's to 1 %.
    """
    quick(exactly())
    found = rehearse(chosen)
    assert abs(found.coverage - 0.9) < 4.5 * math.sqrt(0.9 * 0.1 / COUNT)
    assert found.error == pytest.approx(math.sqrt(found.coverage * (1 - found.coverage) / (COUNT - 1)))
    assert found.widths == pytest.approx([1.0], abs=0.03)


@pytest.mark.parametrize(("widen", "shift"), [(2.0, 0.0), (0.5, 0.0), (1.0, 2.0)])
def test_intervals_that_are_wrong_are_found_out(chosen, quick, widen, shift):
    """Coverage is P(|u − shift| < 1.645·widen), u normal: within 4.5 sds (false alarm 7e-6 each), and .01 for what is
    not quite normal.
    """
    quick(exactly(widen=widen, shift=shift))
    found = rehearse(chosen)
    high = 1.645 * widen
    held = stats.norm.cdf(high - shift) - stats.norm.cdf(-high - shift)
    assert abs(found.coverage - held) < 4.5 * math.sqrt(held * (1 - held) / COUNT) + 0.01
    assert found.widths == pytest.approx([widen], rel=0.03)


@pytest.mark.parametrize("error", [ValueError, TraceError, np.linalg.LinAlgError])
def test_tables_that_cannot_be_fitted_count_as_missed(chosen, quick, error):
    """The last six hold the truth, with intervals fifty times too wide; widths are those of what was fitted."""
    quick(exactly(widen=50.0, failing=4, error=error))
    found = rehearse(chosen, 10)
    assert found.coverage == pytest.approx(0.6)
    assert found.error == pytest.approx(math.sqrt(0.6 * 0.4 / 9))
    assert found.widths == pytest.approx([50.0], rel=0.1)
    assert found.seconds >= 0


def test_a_plan_that_fits_no_table_is_refused(chosen, quick):
    quick(exactly(failing=3))
    with pytest.raises(ValueError, match="none of the made-up tables could be fitted"):
        rehearse(chosen, 3)


def test_units_are_rehearsed_too():
    schema = Schema((Categorical("x", ("no", "yes")),), unit=Unit("who", 3, 2))
    model = glm("logistic", "x", [], schema, priors=Priors(1.0, 0.5))
    found = rehearsal.rehearse(model, schema, planner.choose(model, schema, 300, 1.0, DELTA, steps=200), 2, delta=DELTA)
    assert np.isfinite(found.widths).all()
    assert (
        rehearsal.rehearse(
            model, schema, planner.choose(model, schema, 300, 1.0, DELTA, steps=200), 1, delta=DELTA
        ).error
        is None
    )


def test_a_bug_is_not_counted_as_a_missed_interval(chosen, quick):
    quick(exactly(failing=1, error=RuntimeError))
    with pytest.raises(RuntimeError, match="cannot be fitted"):
        rehearse(chosen, 2)


def test_each_table_is_fitted_once_with_the_choice_and_noise_of_its_own(chosen, quick):
    """Simulated noise is free: ε = ∞. The same seed gives the same tables and noise."""
    calls, places = [], []

    def fit(model, table, **given):
        calls.append((table["x"], given))
        return drawn(np.zeros((4, 1)))

    def progress(every):
        places.extend(every)
        return every

    quick(fit)
    for seed in (3, 3, 4):
        rehearse(chosen, 3, seed=seed, progress=progress)
    assert places == 3 * [0, 1, 2]
    assert len(calls) == 9
    for table, given in calls:
        assert table.shape == (NUM_ROWS,)
        assert given["choice"] is chosen
        assert (given["epsilon"], given["delta"], given["noise"].kind) == (math.inf, DELTA, "simulated")
    tables = np.stack([table for table, _ in calls])
    np.testing.assert_array_equal(tables[:3], tables[3:6])
    assert len(np.unique(tables, axis=0)) == 6
    noises = [given["noise"].normals(0, (2,)).tolist() for _, given in calls]
    assert noises[:3] == noises[3:6]
    assert len({tuple(noise) for noise in noises[:3]}) == 3


@pytest.mark.parametrize("known", [False, True])
def test_covariates_are_those_of_the_public_sample_or_uniform(quick, monkeypatch, known):
    """Uniform on [20, 60]: the mean of 600 ages within 5 sds of 40 (false alarm 6e-7)."""
    seen = []

    def fit(model, table, **_):
        seen.append(table)
        return drawn(np.zeros((4, 3)))

    quick(fit)
    monkeypatch.setattr(rehearsal, "non_private", lambda *_: Laplace(np.zeros(3), np.eye(3)))
    sample = {"age": np.array([33.0, 44.0]), "sex": np.array([0, 1], np.int32)} if known else None
    rehearsal.rehearse(tiny.MODEL, tiny.SCHEMA, tiny.choice(), 2, delta=DELTA, sample=sample)
    age, sex, ill = (np.concatenate([table[name] for table in seen]) for name in ("age", "sex", "ill"))
    assert set(ill) == {0, 1}
    assert set(sex) == {0, 1}
    if known:
        assert set(age) == {33.0, 44.0}
        np.testing.assert_array_equal(age == 44.0, sex == 1)  # rows of the sample stay together
    else:
        assert len(set(age)) == 600
        assert abs(age.mean() - 40) < 5 * 40 / math.sqrt(12 * 600)


def test_facts_are_plain_json():
    found = rehearsal.Rehearsal(0.9, 0.05, np.array([1.0, 2.5]), 0.3)
    facts = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert facts == {"coverage": 0.9, "error": 0.05, "widths": [1.0, 2.5], "seconds": 0.3}


def test_a_few_fits_of_a_coin_hold_truths_and_are_as_wide_as_predicted(chosen):
    """Two fits in full: not both miss (false alarm 1e-2, seed fixed); the mean width is within a quarter of what was
    predicted: the sd of 1000 draws is known to 2 %, the curvature to a few per cent (false alarm below 1e-6).
    """
    found = rehearse(chosen, 2)
    json.dumps(found.to_dict(), allow_nan=False)
    assert found.coverage in (0.5, 1.0)
    assert found.widths == pytest.approx(chosen.predicted, rel=0.25)
    assert found.seconds > 0


def test_the_closed_form_is_the_reference():
    table = {"x": np.repeat(np.array([0, 1], np.int32), (70, 30))}
    found, exact = non_private(BERNOULLI, table), closed_form(BERNOULLI, table)
    np.testing.assert_allclose(found.mean, exact.mean, rtol=1e-6)
    np.testing.assert_allclose(found.covariance, exact.covariance, rtol=1e-6)
