"""The one-shot statistics under the same checks as gradients: sensitivity with wild rows, and taint."""

import numpy as np
import pytest

from discreet.families.conjugate_regression import Statistic
from discreet.families.exponential import conjugate_beta, conjugate_dirichlet, conjugate_gamma
from discreet.mechanism.rows import store
from discreet.methods import statistics
from discreet.plan import Plan
from discreet.schema import Numeric, Schema
from tests.guarantees.mechanisms import SCHEMAS
from tests.guarantees.test_audits import honest_total, sensitivity, wild_columns
from tests.guarantees.test_taint import assert_releases_are_public

KINDS = ("gaussian", "laplace")
PLANE = Schema((Numeric("a", -2, 2), Numeric("b", -2, 2), Numeric("y", -5, 5)))
FAMILIES = {
    "gamma-exponential": conjugate_gamma(8.0, 2.0, bound=2.0),
    "beta-bernoulli": conjugate_beta(10.0, 10.0),
    "dirichlet-categorical": conjugate_dirichlet((5.0, 5.0, 5.0)),
}


def make(name, kind, num_rows=30):
    schema = PLANE if name == "regression" else SCHEMAS[name]
    clip_norm = 3.0 if name == "regression" else FAMILIES[name].bound
    plan = Plan(num_rows, 1, 1.0, clip_norm, 3.0, noise_kind=kind)
    if name == "regression":
        query = statistics.of_regression(Statistic("y", ("a", "b"), 0.5), plan)
    else:
        query = statistics.of_family(FAMILIES[name], plan)
    return plan, query, store(schema, schema.sample(np.random.default_rng(3), num_rows))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*FAMILIES, "regression"])
def test_one_row_moves_the_statistics_by_at_most_the_clip_norm(name, kind, key):
    plan, query, rows = make(name, kind)
    stored = len(next(iter(rows._columns.values())))
    columns = wild_columns(rows._columns, np.random.default_rng(1))
    moved = sensitivity(honest_total, query, plan, columns, np.ones(stored), key)
    assert 0 < moved <= 1.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*FAMILIES, "regression"])
def test_the_release_of_statistics_is_public(name, kind):
    assert_releases_are_public(*make(name, kind))
