"""Networks under the checks of all mechanisms: DP-SEP's sites by back-propagation, and collapsed variational inference.

Sensitivity with wild rows and wherever a run may get to, taint, and noise; each audit also sees a fault.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from discreet.families.network import layers
from discreet.mechanism import loop, noise
from discreet.mechanism.rows import store
from discreet.methods import collapsed, pbp, sep
from discreet.plan import SAMPLINGS, Plan, default_batch_limit
from tests.guarantees import test_taint as taint
from tests.guarantees.mechanisms import SCHEMAS
from tests.guarantees.taint import LeakError, assert_public
from tests.guarantees.test_audits import (
    UNITS,
    euclidean,
    honest_total,
    inexactness,
    noise_of_points,
    noise_z_scores,
    replaced,
    unclipped,
    unclipped_prior,
    wild_columns,
)
from tests.guarantees.test_taint import assert_releases_are_public

SCHEMA = SCHEMAS["network"]
LAYERS = layers("y", ["age", "sex"], SCHEMA, 3)
SITE = pbp.sites(LAYERS, seed=2)
NAMES = ("sites", "sites, centred", "collapsed", "collapsed, laplace")
names = pytest.mark.parametrize("name", NAMES)
gaussian = pytest.mark.parametrize("name", NAMES[:3])
ROWS = 30


def make(name, sampling="poisson", **changes):
    """(plan, query, rows) of one mechanism; a site's prior is refined every other step."""
    kind, alone = "laplace" if "laplace" in name else "gaussian", sampling == "one row"
    limit = None if alone or kind == "laplace" else default_batch_limit(ROWS, 0.25)
    usual = {"sampling_prob": 1 / ROWS if alone else 0.25, "batch_limit": limit, "clip_norm": 0.7}
    plan = Plan(ROWS, 6, noise_multiplier=3.0, noise_kind=kind, sampling=sampling, **usual | changes)
    rows = store(SCHEMA, SCHEMA.sample(np.random.default_rng(3), ROWS))
    with jax.enable_x64(True):
        if name.startswith("sites"):
            settings = sep.Settings(gamma=20.0, least=0.5, centred="centred" in name, refine=2)
            return plan, sep.query(SITE, plan, settings), rows
        return plan, collapsed.query(LAYERS, plan, collapsed.Settings(0.05, 5.0, draws=4)), rows


def reach(total, query, plan, columns, keys):
    """How far one row moves a total at most, in clip norms, for every key and (start, densities, anywhere): where a
    question is asked from, the start of a run, numbers that belong to densities, or any.
    """

    def question_from(key, place):
        state, (first, second, third) = query.init(key), jax.random.split(key, 3)
        anywhere = 2 * jax.random.normal(first, state.phi.shape) * jnp.exp(jax.random.normal(third))
        sizes = jnp.exp(3 * jax.random.normal(second, state.phi.shape))
        of_mean = jnp.arange(len(anywhere)) < LAYERS.weights
        densities = jnp.where(of_mean, anywhere, sizes) if isinstance(state, sep.State) else anywhere
        phi = jnp.stack([state.phi, densities, 3 * anywhere])[place]
        return query.ask(query.chance(key), state._replace(phi=phi))

    @jax.jit
    def totals(keys, columns, weights):
        def at(key_and_place):
            question = question_from(*key_and_place)
            return jax.lax.map(lambda weight: total(query, question, columns, weight, plan), weights)

        return jax.lax.map(at, (jnp.repeat(keys, 3), jnp.tile(jnp.arange(3), len(keys))))

    with jax.enable_x64(True):
        weights = np.concatenate([np.ones((1, ROWS)), 1 - np.eye(ROWS)])
        found = np.asarray(totals(keys, columns, weights))
    moved = np.linalg.norm(found[:, 1:] - found[:, :1], plan.norm_order, axis=2).max(1)
    return moved.reshape(len(keys), 3) / UNITS


# One row moves a sum by so much.


@names
def test_one_row_moves_the_sum_by_at_most_the_clip_norm(name, key):
    """Of wild rows. Clipped answers are whole numbers, so that rounding has no part in it; and rows do answer."""
    plan, query, rows = make(name)
    columns = wild_columns(rows._columns, np.random.default_rng(1))
    moved = reach(honest_total, query, plan, columns, jax.random.split(key, 6))
    assert moved.max() <= 1.0
    assert moved.max(0).min() > 0.9
    assert moved[:, :2].min() > 0


def added_after_the_clip(query, question, columns, multiplicity, plan):
    """A term of a row's own, once the sum was made."""
    return sum(total(query, question, columns, multiplicity, plan) for total in (honest_total, unclipped))


FAULTS = [
    ("sites", added_after_the_clip),
    ("sites, centred", unclipped_prior),
    ("collapsed", added_after_the_clip),
    ("collapsed, laplace", euclidean),
]


@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_the_sensitivity_audit_catches(name, fault, key):
    """Whatever the question."""
    plan, query, rows = make(name, clip_norm=1e-3)
    assert reach(fault, query, plan, rows._columns, key[None])[:, :2].min() > 1.0


@gaussian
def test_a_replaced_row_moves_the_answer_of_one_row_by_at_most_twice_the_clip_norm(name, key):
    """Whatever stands in the row that is drawn."""
    plan, query, rows = make(name, sampling="one row")
    assert 1.0 < replaced(query, plan, wild_columns(rows._columns, np.random.default_rng(2)), key) <= 2.0


@pytest.mark.parametrize("name", ["sites, centred", "collapsed"])
def test_sums_are_exact(name, key):
    """Whole numbers, in whatever order rows come."""
    plan, query, _ = make(name)
    assert inexactness(honest_total, query, plan, SCHEMA.sample(np.random.default_rng(5), 1000), key) == 0


# Nothing else leaves.


@pytest.mark.parametrize(
    ("name", "sampling"),
    [(name, sampling) for name in NAMES for sampling in SAMPLINGS if (name, sampling) != (NAMES[3], "one row")],
)
def test_its_release_is_public(name, sampling):
    assert_releases_are_public(*make(name, sampling))


def planted(step, name):
    """The loop of one mechanism with its step replaced; returns (mechanism, arguments, levels)."""
    plan, query, rows = make(name)

    def mechanism(scales, state, columns, draws):
        scales = taint.Scales(*scales, plan.norm_order)
        return jax.lax.scan(lambda state, draw: step(query, scales, state, columns, draw), state, draws)

    return mechanism, *taint.arguments(plan, query, rows)


def forgotten_noise(query, scales, state, columns, draw):
    question, _, total = taint.asked(query, scales, state, columns, draw)
    return query.update(state, question, total * scales.clip_norm / UNITS)


def asked_about_rows(query, scales, state, columns, draw):
    """The cavity, or the draws of the hidden layer, know of them."""
    honest = query.ask

    def ask(chance, state):
        return jax.tree.map(lambda part: part + columns["age"].mean(), honest(chance, state))

    return taint.honest(query._replace(ask=ask), scales, state, columns, draw)


def refined_before_the_noise(query, scales, state, columns, draw):
    """What comes after the answer, the prior or Adam's memory, is made of a sum without noise."""
    question, _, total = taint.asked(query, scales, state, columns, draw)
    new, point = query.update(state, question, taint.answered(query, scales, draw, total))
    other, _ = query.update(state, question, total)
    return type(new)(*new[:-1], other[-1]), point


LEAKS = {
    taint.no_noise: "plan's scales",
    forgotten_noise: "outputs|question",
    taint.unclipped_sum: "bounded total",
    taint.other_clip: "clip norm",
    taint.returned_loss: "outputs",
    asked_about_rows: "question",
    refined_before_the_noise: "outputs|question",
}


@gaussian
def test_the_honest_step_passes(name):
    with jax.enable_x64(True):
        assert_public(*planted(taint.honest, name), taint.STEPS)


@gaussian
@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.__name__)
def test_planted_leaks_are_caught(name, leak):
    with jax.enable_x64(True), pytest.raises(LeakError, match=LEAKS[leak]):
        assert_public(*planted(leak, name), taint.STEPS)


# There is noise.


@names
def test_the_noise_of_y_is_the_plans(name):
    """False alarm below 5·10⁻⁶ a case."""
    plan, query, _ = make(name)
    assert np.abs(noise_z_scores(noise_of_points(plan, query), plan.noise_std, plan.noise_kind)).max() < 4.9


def noise_of_a_run(name):
    """What noise made of the answers of a run that stays where it is, and the plan: 3000 answers of every row."""
    plan, query, rows = make(name, sampling_prob=1.0, batch_limit=None)
    update, chance = query.update, query.chance
    still = query._replace(
        update=lambda state, question, answer: (state, update(state, question, answer)[1]),
        chance=lambda key: chance(jax.random.key(7)),
    )
    loud, quiet = replace(plan, steps=3000), replace(plan, steps=3000, noise_multiplier=0.0)
    answers, silent = (loop.run(noise.simulated(8), each, still, rows, keep="trace").trace.y for each in (loud, quiet))
    assert np.ptp(silent, axis=0).max() < 1e-9
    return answers - silent, plan


@names
def test_the_noise_of_a_run_is_the_plans(name):
    """False alarm below 5·10⁻⁶ a case."""
    answers, plan = noise_of_a_run(name)
    assert np.abs(noise_z_scores(answers, plan.noise_std, plan.noise_kind)).max() < 4.9


@pytest.mark.parametrize("share", [0.0, 0.97])
@pytest.mark.parametrize("name", ["sites, centred", "collapsed"])
def test_the_noise_audit_catches_a_run_with_less(name, share, monkeypatch):
    """Of sums of 3000 answers, 3 % are twelve sds; and none at all."""
    scales = loop.Scales
    monkeypatch.setattr(loop, "Scales", lambda clip_norm, noise_scale: scales(clip_norm, share * noise_scale))
    answers, plan = noise_of_a_run(name)
    assert np.abs(noise_z_scores(answers, plan.noise_std, plan.noise_kind)[0]) > 4.9
