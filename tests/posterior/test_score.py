"""What a release of scores means, and what the planner makes of a model that is asked for them."""

import numpy as np
import pytest

from discreet import planner
from discreet.evaluate import study
from discreet.evaluate.reference import non_private
from discreet.families import exponential
from discreet.families.glm import Priors, glm
from discreet.fitting import encode, fit, simulated
from discreet.methods import score
from discreet.posterior import score as meaning
from discreet.posterior.reading import SCORES, Options, check_reading
from discreet.schema import Categorical, Numeric, Schema

DELTA, ROWS = 1e-5, 2000
COIN = Schema((Categorical("x", ("no", "yes")),))
BERNOULLI = exponential.beta_bernoulli(10.0, 10.0)
COUNTS = Schema((Numeric("a", -4, 4), Numeric("b", -4, 4), Numeric("y", 0, 200, integer=True)))
POISSON = glm("poisson", "y", ["a", "b"], COUNTS, Priors(0.3, 0.5), units={"a": (0.0, 1.0), "b": (0.0, 1.0)})


def covariates(rng, count):
    return {name: np.clip(rng.normal(size=count), -4, 4) for name in ("a", "b")} | {"y": np.zeros(count)}


def poisson_choice(epsilon=1.0, **options):
    return planner.choose_score(
        POISSON, COUNTS, ROWS, epsilon, DELTA, covariates=covariates(np.random.default_rng(5), 3000), **options
    )


def test_scores_are_one_more_method_of_the_same_fit():
    """A coin at ε = 1: the exact posterior's width and, within what noise leaves open, its mean."""
    rng = np.random.default_rng(2)
    flips = rng.random(ROWS) < 0.4
    rows = encode({"x": np.where(flips, "yes", "no")}, COIN)
    found = fit(BERNOULLI, rows, epsilon=1.0, delta=DELTA, method="score", noise=simulated(3))
    share = rng.beta(10 + flips.sum(), 10 + (~flips).sum(), 8000)
    exact = np.log(share / (1 - share))
    z = found.z.reshape(-1)
    assert found.info["method"] == "score, noise-aware"
    assert abs(z.mean() - exact.mean()) < 4 * exact.std()
    assert 1 < z.std() / exact.std() < 1.4
    assert np.abs(found.info["clip_bias"]).max() < 0.1
    assert found.info["warnings"] == []
    assert found.info["reasons"]


def test_intervals_cover_and_are_as_wide_as_predicted():
    """30 Poisson tables at ε = 1, 90 % intervals of 3 parameters within 4.5 sds of .9 (false alarm below 10⁻⁵; the sd
    allows for full correlation within a table); mean width within 20 % of the prediction.
    """
    chosen = poisson_choice()
    truth, tables = study.simulate_tables(8, POISSON, COUNTS, ROWS, 30, covariates)
    query = score.query(POISSON, chosen.plan, chosen.settings)
    release = study.fit_tables(9, COUNTS, chosen.plan, query, tables, keep="trace")
    rng = np.random.default_rng(1)
    drawn = np.stack(
        [meaning.solve(rng, study.chosen(release, place), POISSON, chosen.prior, 1000).z for place in range(30)]
    )
    below = (drawn < truth[:, None]).mean(1)
    assert abs((np.abs(below - 0.5) < 0.45).mean() - 0.9) < 4.5 * np.sqrt(0.9 * 0.1 / 30)
    each = [{name: column[place] for name, column in tables.items()} for place in range(30)]
    exact = np.stack([np.sqrt(np.diag(non_private(POISSON, table).covariance)) for table in each])
    assert (drawn.std(1) / exact).mean() == pytest.approx(chosen.predicted, rel=0.2)


def test_more_noise_is_predicted_to_cost_width_and_asks_for_shorter_steps():
    low, high = poisson_choice(0.1), poisson_choice(3.0)
    assert low.predicted > 1.5 * high.predicted > 1.5
    assert low.settings.last < high.settings.last
    assert low.plan.clip_norm < high.plan.clip_norm


def test_the_law_of_covariates_must_be_known():
    with pytest.raises(ValueError, match=r"law of the covariates \['a', 'b'\]"):
        planner.choose_score(POISSON, COUNTS, ROWS, 1.0, DELTA)
    with pytest.raises(ValueError, match=r"lacks \['b'\]"):
        planner.choose_score(POISSON, COUNTS, ROWS, 1.0, DELTA, covariates={"a": np.zeros(10)})


def test_covariates_that_tell_hardly_anything_in_some_direction_are_refused():
    a = np.random.default_rng(1).normal(size=1000)
    with pytest.raises(ValueError, match="in some direction rows tell"):
        planner.choose_score(POISSON, COUNTS, ROWS, 1.0, DELTA, covariates={"a": a, "b": a})


@pytest.mark.parametrize(
    ("how", "options"),
    [
        ("last iterate", Options()),
        ("iterate average", Options()),
        ("noise-aware", Options(solver="exact")),
        ("noise-aware", Options(prior="weak")),
        ("noise-aware", Options(burn_in="converged")),
    ],
)
def test_readings_that_scores_have_no_use_for_are_refused(how, options):
    with pytest.raises(ValueError, match="scores are read"):
        check_reading(how, options, SCORES)
