"""DP-EM: without noise it is EM, and its steps never lower the posterior; its release passes the house's checks."""

import jax
import numpy as np
import pytest
from scipy import stats

from discreet.families.gaussian_mixture import Mixture
from discreet.fitting import encode, run, simulated
from discreet.mechanism.rows import store
from discreet.methods import em
from discreet.plan import Plan, default_batch_limit
from discreet.schema import Numeric, Schema
from tests.guarantees.test_audits import honest_total, noise_of_points, noise_z_scores, sensitivity, wild_columns
from tests.guarantees.test_taint import assert_releases_are_public

SCHEMA = Schema((Numeric("a", -5, 5), Numeric("b", -5, 5)))
CENTRES = np.array([[-2.0, 0.0], [2.0, 1.0]])
MIXTURE = Mixture(("a", "b"), np.array([0.4, 0.6]), 0.7, np.zeros((2, 2)), 3.0)
START = np.array([[-0.5, 0.0], [0.5, 0.0]])


def table(count=200):
    rng = np.random.default_rng(1)
    which = rng.random(count) < 0.6
    x = CENTRES[which.astype(int)] + 0.7 * rng.standard_normal((count, 2))
    return {"a": x[:, 0], "b": x[:, 1]}


def log_posterior(means, x):
    parts = [w * stats.multivariate_normal(m, 0.49 * np.eye(2)).pdf(x) for w, m in zip((0.4, 0.6), means, strict=True)]
    return np.log(sum(parts)).sum() - (means**2).sum() / 18


def test_without_noise_each_step_raises_the_posterior_until_its_mode():
    plan = Plan(num_rows=200, steps=40, sampling_prob=1.0, clip_norm=10.0, noise_multiplier=0.0)
    release = run(simulated(1), plan, em.query(MIXTURE, plan, START), encode(table(), SCHEMA), keep="trace")
    found, x = em.estimate(MIXTURE, release.last), np.column_stack(list(table().values()))
    heights = [log_posterior(means.reshape(2, 2), x) for means in np.asarray(release.trace.iterate)]
    assert (np.diff(heights) > -1e-4).all()  # answers are rounded to 2⁻²⁰ clip norms
    assert np.abs(found.mean - CENTRES).max() < 0.3
    for direction in np.random.default_rng(2).standard_normal((20, 2, 2)):
        assert log_posterior(found.mean + 0.01 * direction, x) < heights[-1]
    assert found.variance == pytest.approx(1 / (np.array([80, 120]) / 0.49 + 1 / 9), rel=0.2)


def test_counts_below_zero_are_none():
    found = em.estimate(MIXTURE, np.array([1.0, 2.0, 3.0, 4.0, -5.0, 10.0]))
    assert found.mean.tolist() == [[1, 2], [3, 4]]
    assert found.variance[0] == pytest.approx(9)


def make():
    plan = Plan(30, 6, 0.25, 2.0, 3.0, default_batch_limit(30, 0.25))
    return plan, em.query(MIXTURE, plan, START), store(SCHEMA, SCHEMA.sample(np.random.default_rng(3), 30))


def test_one_row_moves_the_statistics_by_at_most_the_clip_norm(key):
    plan, query, rows = make()
    columns = wild_columns(rows._columns, np.random.default_rng(1))
    assert 0 < sensitivity(honest_total, query, plan, columns, np.ones(30), key) <= 1.0


def test_the_release_is_public():
    assert_releases_are_public(*make())


def test_the_noise_of_the_statistics_is_the_plans():
    """False alarm below 5·10⁻⁶."""
    plan, query, _ = make()
    assert np.abs(noise_z_scores(noise_of_points(plan, query), plan.noise_std, plan.noise_kind)).max() < 4.9


def test_means_of_another_shape_are_refused():
    plan = make()[0]
    with pytest.raises(ValueError, match=r"start=.* must have shape"):
        em.query(MIXTURE, plan, np.zeros((3, 2)))
    with pytest.raises(ValueError, match="mean has shape"):
        em.query(MIXTURE._replace(mean=np.zeros((2, 3))), plan, START)


def test_a_release_says_how_it_was_made():
    settings = em.describe(MIXTURE, START)
    assert settings["method"] == "em"
    assert settings["start"] == START.tolist()
    with jax.enable_x64(True):
        assert np.asarray(em.responsibilities(MIXTURE, START, np.array([0.5, 0.0]))).sum() == pytest.approx(1)
