"""Releases of sites under the same checks as gradients: sensitivity with wild rows, taint, and the noise of y."""

import jax
import numpy as np
import pytest

from discreet.families.gaussian_mixture import Mixture
from discreet.mechanism.rows import store
from discreet.methods import sep
from discreet.methods.sites import linear, mixture
from discreet.plan import SAMPLINGS, Plan, default_batch_limit
from discreet.schema import Numeric, Schema
from tests.guarantees.mechanisms import MODELS, SCHEMAS
from tests.guarantees.test_audits import (
    honest_total,
    noise_of_points,
    noise_z_scores,
    replaced,
    sensitivity,
    wild_columns,
)
from tests.guarantees.test_taint import assert_releases_are_public

PLANE = Schema((Numeric("a", -2, 2), Numeric("b", -2, 2)))
MIXTURE = Mixture(("a", "b"), np.array([0.4, 0.6]), 0.5, np.array([[-1.0, 0.0], [1.0, 0.5]]), 1.0)
NAMES = ("logistic", "poisson", "mixture", "logistic, centred", "mixture, centred")
names = pytest.mark.parametrize("name", NAMES)


def make(name, num_rows=30, sampling="poisson"):
    name, _, centred = name.partition(", ")
    schema = PLANE if name == "mixture" else SCHEMAS[name]
    site = mixture(MIXTURE) if name == "mixture" else linear(MODELS[name])
    rows = store(schema, schema.sample(np.random.default_rng(3), num_rows))
    alone = sampling == "one row"
    limit = None if alone or rows._counts is not None else default_batch_limit(num_rows, 0.25)
    plan = Plan(num_rows, 6, 1 / num_rows if alone else 0.25, 0.7, 3.0, limit, sampling=sampling)
    with jax.enable_x64(True):
        return plan, sep.query(site, plan, sep.Settings(gamma=20.0, least=0.5, centred=bool(centred))), rows


@names
def test_one_row_moves_the_sum_of_sites_by_at_most_the_clip_norm(name, key):
    plan, query, rows = make(name)
    stored = len(next(iter(rows._columns.values())))
    columns = wild_columns(rows._columns, np.random.default_rng(1))
    moved = sensitivity(honest_total, query, plan, columns, np.ones(stored), key)
    assert 0 < moved <= 1.0


@names
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_release_of_sites_is_public(name, sampling):
    assert_releases_are_public(*make(name, sampling=sampling))


@names
def test_a_replaced_row_moves_the_answer_of_one_row_by_at_most_twice_the_clip_norm(name, key):
    """Whatever stands in the row that is drawn."""
    plan, query, rows = make(name, sampling="one row")
    assert 1.0 < replaced(query, plan, wild_columns(rows._columns, np.random.default_rng(2)), key) <= 2.0


@names
def test_the_noise_of_y_is_the_plans(name):
    """False alarm below 5·10⁻⁶ a case."""
    plan, query, _ = make(name)
    assert np.abs(noise_z_scores(noise_of_points(plan, query), plan.noise_std, plan.noise_kind)).max() < 4.9
