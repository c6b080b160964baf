"""What a release of scores means, and what the planner makes of a model that is asked for them."""

from dataclasses import replace

import numpy as np
import pytest

from discreet import planner
from discreet.evaluate import study
from discreet.evaluate.reference import non_private
from discreet.families import exponential
from discreet.families.glm import Priors, glm
from discreet.fitting import encode, fit, run, simulated
from discreet.mechanism.rows import store
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


def read(rng, release, chosen):
    return meaning.solve(rng, release, POISSON, chosen.prior, 1000).z


def poisson_choice(epsilon=1.0, **options):
    return planner.choose_score(
        POISSON, COUNTS, ROWS, epsilon, DELTA, sample=covariates(np.random.default_rng(5), 3000), **options
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
    assert found.info["warnings"] == []
    assert found.info["reasons"]


def test_intervals_cover_and_are_as_wide_as_predicted():
    """30 Poisson tables at ε = 1, 90 % intervals of 3 parameters within 4.5 sds of .9 (false alarm below 10⁻⁵; the sd
    allows for full correlation within a table); mean width within 15 % of the prediction.
    """
    chosen = poisson_choice()
    truth, tables = study.simulate_tables(8, POISSON, COUNTS, ROWS, 30, covariates)
    query = score.query(POISSON, chosen.plan, chosen.settings)
    each = [{name: column[place] for name, column in tables.items()} for place in range(30)]
    rng = np.random.default_rng(1)
    drawn = np.stack(
        [
            read(rng, run(simulated(9 + k), chosen.plan, query, store(COUNTS, table), keep="trace"), chosen)
            for k, table in enumerate(each)
        ]
    )
    below = (drawn < truth[:, None]).mean(1)
    assert abs((np.abs(below - 0.5) < 0.45).mean() - 0.9) < 4.5 * np.sqrt(0.9 * 0.1 / 30)
    exact = np.stack([np.sqrt(np.diag(non_private(POISSON, table).covariance)) for table in each])
    assert (drawn.std(1) / exact).mean() == pytest.approx(chosen.width, rel=0.15)


def test_more_noise_is_predicted_to_cost_width_and_asks_for_shorter_steps():
    low, high = poisson_choice(0.1), poisson_choice(3.0)
    assert low.width > 1.5 * high.width > 1.5
    assert low.settings.last < high.settings.last
    assert low.plan.clip_norm < high.plan.clip_norm


def test_the_law_of_covariates_must_be_known():
    with pytest.raises(ValueError, match="the law of a, b is not public"):
        planner.choose_score(POISSON, COUNTS, ROWS, 1.0, DELTA)
    with pytest.raises(ValueError, match="the law of b is not public"):
        planner.choose_score(POISSON, COUNTS, ROWS, 1.0, DELTA, sample={"a": np.zeros(10)})


def test_covariates_that_tell_hardly_anything_in_some_direction_are_left_to_the_prior():
    """b = a: of their difference rows say nothing, and its posterior is the prior; of their sum they say much."""
    rng = np.random.default_rng(1)
    a = rng.normal(size=3000)
    chosen = planner.choose_score(POISSON, COUNTS, ROWS, 1.0, DELTA, sample={"a": a, "b": a})
    x = rng.normal(size=ROWS)
    table = {"a": x, "b": x, "y": rng.poisson(np.exp(0.4 * x)).astype(float)}
    query = score.query(POISSON, chosen.plan, chosen.settings)
    z = read(rng, run(simulated(4), chosen.plan, query, store(COUNTS, table), keep="trace"), chosen)
    names = list(POISSON.labels["coefficients"])
    one, other = z[:, names.index("a")], z[:, names.index("b")]
    assert (one - other).std() == pytest.approx(0.3 * 2**0.5, rel=0.15)
    assert abs((one + other).mean() - 0.4) < 5 * (one + other).std() < 0.5


def test_scores_are_not_read_from_steps_whose_units_changed():
    chosen = planner.choose_score(BERNOULLI, COIN, ROWS, 1.0, DELTA)
    flips = {"x": (np.random.default_rng(2).random(ROWS) < 0.4).astype(np.int32)}
    query = score.query(BERNOULLI, chosen.plan, chosen.settings)
    rows = store(COIN, flips)
    release = run(simulated(4), chosen.plan, query, rows, keep="trace")
    with pytest.raises(ValueError, match="read from where their steps have fallen"):
        meaning.solve(np.random.default_rng(1), release, BERNOULLI, chosen.prior, 10, burn_in=0.1)
    blocks = run(simulated(4), chosen.plan, query, rows)
    with pytest.raises(ValueError, match="every point of their trace"):
        meaning.solve(np.random.default_rng(1), blocks, BERNOULLI, chosen.prior, 10)


def test_what_clipping_takes_is_put_back():
    """Poisson counts with a clip norm that half of the rows exceed: where iterates stay is many sds of the exact
    posterior off, and its mean a third of that at most; draws allow for what the sample leaves open.
    """
    rng = np.random.default_rng(7)
    sample = covariates(rng, 4000)
    chosen = planner.choose_score(POISSON, COUNTS, 20_000, 1.0, DELTA, sample=sample)
    plan = replace(chosen.plan, clip_norm=1.5, noise_multiplier=0.05)
    table = covariates(rng, 20_000)
    table["y"] = rng.poisson(np.exp(0.3 + 0.3 * table["a"] - 0.2 * table["b"])).astype(float)
    query = score.query(POISSON, plan, chosen.settings)
    release = run(simulated(4), plan, query, store(COUNTS, table), keep="trace")
    exact = non_private(POISSON, table)
    sd = np.sqrt(np.diag(exact.covariance))
    z = meaning.solve(rng, release, POISSON, chosen.prior, 2000).z
    stayed = meaning.tail_mean(release, chosen.settings.falling)
    before, after = (np.abs(mean - exact.mean) / sd for mean in (stayed, z.mean(0)))
    assert before.max() > 5
    assert after.max() < before.max() / 3
    assert (np.abs(z.mean(0) - exact.mean) < 3.5 * z.std(0)).all()


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
