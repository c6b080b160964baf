"""The questions of one step under the checks of all mechanisms: counts and moments of a law, and scores at a place."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from discreet import audit as module
from discreet.accounting import guarantee
from discreet.audit import audit, audit_phases
from discreet.mechanism import loop, noise
from discreet.mechanism.rows import store
from discreet.methods import law, onestep, statistics
from discreet.plan import NORM_ORDERS, Plan
from discreet.planner import choose_onestep
from discreet.query import Phase
from discreet.rehearsal import rehearsed_phases
from discreet.schema import Numeric, Schema
from tests import tiny
from tests.guarantees.mechanisms import COVARIATES, MODELS, SCHEMAS, simple_scores
from tests.guarantees.test_audits import (
    euclidean,
    honest_total,
    inexactness,
    noise_of_points,
    noise_z_scores,
    sensitivity,
    unclipped,
    unclipped_prior,
    wild_columns,
)
from tests.guarantees.test_taint import assert_releases_are_public

BINS, DELTA = 8, 1e-5
COUNTED = Schema((Numeric("age", 20, 24, integer=True), *SCHEMAS["logistic"].columns[1:]))
NAMES = ("counts", "moments", "score of logistic", "score of gaussian", "score of poisson", "score of beta-bernoulli")
names = pytest.mark.parametrize("name", NAMES)
kinds = pytest.mark.parametrize("kind", NORM_ORDERS)


def make(name, kind="gaussian", num_rows=30, clip_norm=None, schema=None):
    """(plan, query, rows) of one question; without a clip norm it is one that clips nobody, or few."""
    family = name.removeprefix("score of ") if name.startswith("score") else "logistic"
    schema = schema or SCHEMAS[family]
    rows = store(schema, schema.sample(np.random.default_rng(3), num_rows))
    columns = schema.columns[:2]
    norm = {"counts": law.count_norm(columns), "moments": law.moment_norm(columns)}.get(name, 1.5)
    plan = Plan(num_rows, 1, 1.0, clip_norm or norm, 3.0, noise_kind=kind)
    with jax.enable_x64(True):
        return plan, ask(name, plan, family, columns, rows), rows


def ask(name, plan, family, columns, rows):
    if name == "counts":
        return law.ask_counts(columns, BINS, plan)
    if name == "moments":
        told = np.random.default_rng(4).uniform(0, 9, sum(law.cells(column, BINS) for column in columns))
        return law.ask_moments(columns, BINS, (told, 2.0), plan)
    model = MODELS[family]
    place, whiten = np.linspace(-0.2, 0.3, model.dim), 0.5 * np.eye(model.dim) + 0.2
    return onestep.query(model, plan, place, whiten, onestep.Settings(simple_scores(model, rows)))


@names
@kinds
@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_one_row_moves_the_sum_by_at_most_the_clip_norm(name, kind, clip_norm, key):
    """Of wild rows, with a clip norm that hardly clips, and with one that clips all."""
    plan, query, rows = make(name, kind, clip_norm=clip_norm)
    stored = len(next(iter(rows._columns.values())))
    columns = wild_columns(rows._columns, np.random.default_rng(1))
    moved = sensitivity(honest_total, query, plan, columns, np.ones(stored), key)
    assert (0.99 if clip_norm else 0.2) < moved <= 1.0


@pytest.mark.parametrize("fault", [unclipped, unclipped_prior])
@pytest.mark.parametrize("name", ["counts", "moments", "score of logistic"])
def test_the_sensitivity_audit_catches(name, fault, key):
    plan, query, rows = make(name, clip_norm=0.1)
    assert sensitivity(fault, query, plan, rows._columns, np.ones(30), key) > 1.0


@pytest.mark.parametrize("name", ["counts", "moments", "score of logistic"])
def test_the_sensitivity_audit_catches_the_norm_of_other_noise(name, key):
    plan, query, rows = make(name, "laplace", clip_norm=0.1)
    assert sensitivity(euclidean, query, plan, rows._columns, np.ones(30), key) > 1.0


@names
@kinds
def test_its_release_is_public(name, kind):
    assert_releases_are_public(*make(name, kind))


@pytest.mark.parametrize("name", ["counts", "moments", "score of logistic"])
def test_the_release_of_rows_that_are_held_as_counts_is_public(name):
    plan, query, rows = make(name, schema=COUNTED)
    assert rows._counts is not None
    assert_releases_are_public(plan, query, rows)


@names
def test_sums_are_exact(name, key):
    plan, query, rows = make(name, num_rows=2000, clip_norm=0.1)
    assert inexactness(honest_total, query, plan, rows._columns, key) == 0


@names
@kinds
def test_the_noise_of_what_is_told_is_the_plans(name, kind):
    """False alarm below 5·10⁻⁶ a case."""
    plan, query, _ = make(name, kind)
    assert np.abs(noise_z_scores(noise_of_points(plan, query), plan.noise_std, kind)).max() < 4.9


@pytest.mark.parametrize("name", ["counts", "moments", "score of logistic"])
def test_rows_that_are_held_as_counts_tell_the_same(name):
    """To the last bit: the same rows, counted, and one by one."""
    plan, query, counted = make(name, schema=COUNTED)
    there = {column: np.repeat(values, counted._counts.astype(int)) for column, values in counted._columns.items()}
    apart = type(counted)(COUNTED, there)
    one, other = (loop.run(noise.simulated(2), plan, query, rows).last for rows in (counted, apart))
    np.testing.assert_array_equal(one, other)


# The audit that users have.


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(module, "DRAWS", 10**5)
    monkeypatch.setattr(module, "ROUNDS", 2000)


@pytest.mark.parametrize("name", ["counts", "moments", "score of logistic"])
def test_each_question_shows_nearly_all_of_its_price_and_never_more(name, quick):
    """False alarm below 10⁻⁴ a case: a dozen checks at 10⁻⁵ each."""
    plan, query, _ = make(name, num_rows=300)
    found = audit(query, plan, SCHEMAS["logistic"], DELTA)
    assert found.holds, found
    assert 0.9 * found.claimed <= found.lower <= found.claimed


@pytest.fixture(scope="module")
def phases():
    """What rows of a small regression are asked, whose law is bought."""
    choice = choose_onestep(tiny.MODEL, tiny.SCHEMA, tiny.NUM_ROWS, 1.0, tiny.DELTA)
    return choice, rehearsed_phases(tiny.MODEL, tiny.SCHEMA, choice)


def test_a_rehearsal_asks_what_a_run_would(phases):
    """In plans that differ from those that were paid for in the last clip norm alone."""
    choice, asked = phases
    methods = [phase.query.settings["method"] for phase in asked]
    assert methods == ["law, counts", "law, moments", "score", "one-step"]
    assert [phase.plan for phase in asked[:3]] == list(choice.before)
    assert replace(asked[3].plan, clip_norm=choice.plan.clip_norm) == choice.plan


def test_all_phases_of_a_run_hold_their_claim_together(phases, quick):
    """False alarm below 10⁻³: four dozen checks at 10⁻⁵ each."""
    choice, asked = phases
    found = audit_phases(asked, tiny.SCHEMA, tiny.DELTA, model=tiny.MODEL)
    assert found.holds, [check for check in found.checks if not check.holds]
    assert found.claimed == guarantee(choice.plans, tiny.DELTA).epsilon
    assert 0.5 * found.claimed < found.lower < found.claimed  # the last phase has two thirds of the budget
    for number in range(1, 5):
        assert sum(check.name.startswith(f"phase {number}: ") for check in found.checks) >= 10


def test_less_noise_in_any_phase_is_caught(monkeypatch, quick):
    """The second phase has half of its noise."""
    plan, query, _ = make("counts", num_rows=300)
    other = replace(plan, noise_multiplier=6.0)
    scales = loop.Scales

    def quieter(clip_norm, noise_scale):
        return scales(clip_norm, noise_scale / 2 if noise_scale == other.noise_scale else noise_scale)

    asked = [Phase(plan, query), Phase(other, query)]
    assert audit_phases(asked, SCHEMAS["logistic"], DELTA).holds
    monkeypatch.setattr(loop, "Scales", quieter)
    found = audit_phases(asked, SCHEMAS["logistic"], DELTA)
    wrong = [check.name for check in found.checks if not check.holds]
    assert any(name.startswith("phase 2: noise: variance") for name in wrong)
    assert not any(name.startswith("phase 1: ") for name in wrong)


def test_a_question_that_is_asked_more_than_once_is_none():
    for change in ({"steps": 2}, {"sampling_prob": 0.5}, {"batch_limit": 10}, {"unit": "person"}):
        plan = replace(make("counts")[0], **change)
        with pytest.raises(ValueError, match=next(iter(change))):
            law.ask_counts(COVARIATES, BINS, plan)
        with pytest.raises(ValueError, match=next(iter(change))):
            statistics.once(lambda question, row: row["age"][None], (), 1, ["age"], plan, {})
