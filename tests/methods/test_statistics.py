"""One question, asked once: the release is the sum of statistics plus the plan's noise, for one table or many."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from discreet.evaluate.study import simulate_fits
from discreet.families.conjugate_regression import Statistic, products
from discreet.families.exponential import beta_bernoulli, conjugate_beta, conjugate_dirichlet, conjugate_gamma
from discreet.mechanism import loop, noise
from discreet.mechanism.rows import store
from discreet.methods import statistics
from discreet.plan import Plan
from discreet.release import Release
from discreet.schema import Categorical, Numeric, Schema

PLAN = Plan(num_rows=400, steps=1, sampling_prob=1.0, clip_norm=1.0, noise_multiplier=0.0)
RNG = np.random.default_rng(0)


def run(query, plan, schema, columns, seed=1, **options):
    return loop.run(noise.simulated(seed), plan, query, store(schema, columns), **options)


def test_without_noise_the_release_is_the_sum():
    """Up to the mechanism's grid: clip_norm/2²⁰ a row."""
    x = RNG.exponential(size=400)
    release = run(
        statistics.of_family(conjugate_gamma(8.0, 2.0, 1.0), PLAN), PLAN, Schema((Numeric("x", 0, 50),)), {"x": x}
    )
    np.testing.assert_allclose(release.last, [np.minimum(x, 1).sum()], atol=400 * 2.0**-19)
    codes = RNG.integers(3, size=400)
    schema = Schema((Categorical("x", ("a", "b", "c")),))
    release = run(statistics.of_family(conjugate_dirichlet((1.0, 1.0, 1.0)), PLAN), PLAN, schema, {"x": codes})
    np.testing.assert_allclose(release.last, np.bincount(codes), atol=400 * 2.0**-19)


def test_the_one_point_holds_the_answer():
    plan = replace(PLAN, noise_multiplier=3.0)
    schema = Schema((Numeric("x", -1, 1),))
    query = statistics.query(lambda row: jnp.stack([row["x"], row["x"] ** 2]) / 2, 2, ["x"], plan, {"of": "powers"})
    release = run(query, plan, schema, {"x": RNG.uniform(-1, 1, 400)}, keep="trace")
    assert release.settings == {"method": "statistics", "size": 2, "of": "powers"}
    assert release.trace.y.shape == (1, 2)
    np.testing.assert_array_equal(release.trace.y[0], release.last)
    np.testing.assert_array_equal(release.trace.scale, np.ones((1, 2)))


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_replicas_have_noise_of_the_plans_scale(kind):
    """1000 tables of ones: mean |noise| within 5 standard errors of its law, false alarms below 1e-6."""
    plan = Plan(20, 1, 1.0, 1.0, 4.0, noise_kind=kind)
    schema = Schema((Categorical("x", ("no", "yes")),))
    query = statistics.of_family(conjugate_beta(1.0, 1.0), plan)
    release = run(query, plan, schema, {"x": np.ones((1000, 20), np.int32)})
    size = np.abs(release.last[:, 0] - 20)
    expected, sd = (np.sqrt(2 / np.pi), np.sqrt(1 - 2 / np.pi)) if kind == "gaussian" else (1.0, 1.0)
    assert release.last.shape == (1000, 1)
    assert abs(size.mean() / 4 - expected) < 5 * sd / np.sqrt(1000)


def test_a_study_runs_it_as_any_query(tmp_path):
    plan = replace(PLAN, noise_multiplier=2.0)
    schema = Schema((Categorical("x", ("no", "yes")),))
    query = statistics.of_family(conjugate_beta(10.0, 10.0), plan)
    study = simulate_fits(3, beta_bernoulli(10.0, 10.0), schema, plan, query, replicas=50)
    off = study.release.last[:, 0] - study.tables["x"].sum(1)
    assert 0 < np.abs(off).max() < 6 * plan.noise_std
    again = Release.load(study.release.save(tmp_path / "release"))
    np.testing.assert_array_equal(again.last, study.release.last)
    assert again.settings == study.release.settings


def test_regression_rows_answer_with_their_products():
    names = ("a", "b")
    x, y = RNG.uniform(-1, 1, (400, 2)), RNG.uniform(-1, 1, 400)
    schema = Schema(tuple(Numeric(name, -1, 1) for name in (*names, "y")))
    statistic, plan = Statistic("y", names, factor=0.3), replace(PLAN, clip_norm=10.0)
    columns = {"a": x[:, 0], "b": x[:, 1], "y": y}
    release = run(statistics.of_regression(statistic, plan), plan, schema, columns)
    expected = sum(np.asarray(products(jnp.asarray(a), jnp.asarray(b), 0.3)) for a, b in zip(x, y, strict=True))
    np.testing.assert_allclose(release.last, expected, atol=1e-2)
    assert release.settings["covariates"] == ["a", "b"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 2}, "steps=2 must be 1"),
        ({"sampling_prob": 0.5}, "sampling_prob=0.5 must be 1"),
        ({"batch_limit": 100}, "batch_limit=100 must be None"),
        ({"clip_norm": 0.5}, r"clip_norm=0.5 must be at least 1.0"),
    ],
)
def test_plans_that_do_not_ask_everybody_once_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        statistics.of_family(conjugate_beta(1.0, 1.0), replace(PLAN, **change))


def test_a_statistic_of_another_size_is_refused():
    query = statistics.query(lambda row: jnp.ones(3), 2, ["x"], PLAN)
    with pytest.raises(ValueError, match=r"row_value gives shape \(3,\); the query's size is 2"):
        run(query, PLAN, Schema((Numeric("x", 0, 1),)), {"x": np.zeros(400)})
    with pytest.raises(ValueError, match="size=0 must be at least 1"):
        statistics.query(lambda row: jnp.ones(0), 0, ["x"], PLAN)
