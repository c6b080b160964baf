"""Scores: what a row answers, in which units, and where a step goes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from discreet.evaluate import study
from discreet.mechanism import loop, noise
from discreet.methods import score
from tests.guarantees.mechanisms import MODELS, SCORE, Recipe, make, simple_scores

PLAIN = Recipe(SCORE, draws=1)


def joint_gradient(name, rows, z, counts):
    """∇(−log p(z, rows)) by automatic differentiation of the model's own densities."""
    model = MODELS[name]
    with jax.enable_x64(True):
        by_row = jax.vmap(lambda row: jax.grad(model.log_likelihood)(z, row))(rows._columns)
        return -np.asarray(counts @ by_row + jax.grad(model.log_prior)(z))


def ended(release, dim):
    """The iterate and the units that a release ended with."""
    return release.last[:dim], release.last[dim:].reshape(dim, dim)


@pytest.mark.parametrize("name", ["gaussian", "poisson", "beta-bernoulli", "logistic"])
def test_without_noise_and_clipping_a_step_takes_the_gradient_of_the_log_joint(name):
    """The trace says the whitened gradient, against whitened z, and the step is `first` of a natural one."""
    plan, _, rows = make(name, PLAIN, steps=1, sampling_prob=1.0, noise_multiplier=0.0)
    settings = simple_scores(MODELS[name], rows)._replace(longest=1e9, reach=1e9)
    plan = replace(plan, clip_norm=1e3)
    query = score.query(MODELS[name], plan, settings)
    release = loop.run(noise.simulated(1), plan, query, rows, keep="trace")
    with jax.enable_x64(True):
        whiten = np.asarray(query.init(None).whiten)
    counts = np.ones(plan.num_rows) if rows._counts is None else rows._counts
    expected = whiten @ joint_gradient(name, rows, settings.start, counts)
    np.testing.assert_allclose(release.trace.iterate[0], settings.start)
    np.testing.assert_allclose(whiten.T @ release.trace.x[0], settings.start, atol=1e-9)
    np.testing.assert_allclose(release.trace.scale[0], 1.0)
    np.testing.assert_allclose(release.trace.y[0], expected, atol=1e-3 * plan.num_rows)
    moved = settings.start - settings.first * whiten.T @ expected / plan.num_rows
    np.testing.assert_allclose(ended(release, MODELS[name].dim)[0], moved, atol=1e-3 * np.abs(whiten).max())


def test_the_state_is_plain_numbers_that_a_checkpoint_can_keep():
    plan, _, rows = make("logistic", PLAIN, steps=1)
    state = score.query(MODELS["logistic"], plan, simple_scores(MODELS["logistic"], rows)).init(None)
    assert {np.asarray(leaf).dtype.kind for leaf in jax.tree.leaves(state)} <= set("fiu")


def test_in_its_units_what_rows_and_prior_tell_is_one_and_the_prior_is_independent():
    rng = np.random.default_rng(1)
    factor, precision, num_rows = rng.normal(size=(4, 4)), np.array([0.1, 1.0, 3.0, 10.0]), 50
    information = factor @ factor.T
    whiten = score.whitening(information, precision, num_rows, np)
    np.testing.assert_allclose(whiten @ (information + np.diag(precision) / num_rows) @ whiten.T, np.eye(4), atol=1e-9)
    prior = whiten * precision @ whiten.T
    np.testing.assert_allclose(prior, np.diag(np.diag(prior)), atol=1e-9)


def test_a_direction_that_rows_say_nothing_of_has_the_prior_as_its_unit():
    whiten = score.whitening(np.diag([4.0, 0.0]), np.array([1.0, 1.0]), 100, np)
    sizes = np.sort(np.abs(whiten).max(1))
    np.testing.assert_allclose(sizes, [4.01**-0.5, 10.0])


def test_information_is_that_of_rows_simulated_at_the_place():
    """A coin: F = θ(1 − θ); 4096 flips, five standard errors of their variance (false alarm below 10⁻⁶)."""
    model = MODELS["beta-bernoulli"]
    with jax.enable_x64(True):
        found = score.gradients_at(model, jnp.array([0.8]), *score.simulated_rows({}, 4096))
    theta = 1 / (1 + np.exp(-0.8))
    expected = theta * (1 - theta)
    fourth = theta * (1 - theta) * ((1 - theta) ** 3 + theta**3)
    assert abs((np.asarray(found) ** 2).mean() - expected) < 5 * np.sqrt((fourth - expected**2) / 4096)


def test_units_follow_the_iterate_while_steps_fall_and_then_stay():
    plan, _, rows = make("poisson", PLAIN, steps=40, noise_multiplier=0.0)
    model = MODELS["poisson"]
    settings = simple_scores(model, rows)
    release = loop.run(noise.simulated(1), plan, score.query(model, plan, settings), rows, keep="trace")
    z, x = (np.asarray(part) for part in (release.trace.iterate, release.trace.x))
    units = ended(release, model.dim)[1]
    held = np.abs(x @ units - z).max(1) < 1e-9
    assert held[20:].all()
    assert not held[:20].any()


def test_steps_are_bounded_in_length_and_place():
    plan, _, rows = make("gaussian", PLAIN, steps=40, noise_multiplier=1e4)
    model = MODELS["gaussian"]
    wild = {"longest": 0.3, "reach": 0.5, "first": 1.0, "last": 1.0, "falling": 0.1}
    settings = simple_scores(model, rows)._replace(**wild)
    release = loop.run(noise.simulated(1), plan, score.query(model, plan, settings), rows, keep="trace")
    path, box = np.asarray(release.trace.iterate), 0.5 / np.sqrt(settings.prior_precision)
    assert (np.abs(path - settings.start) <= box * (1 + 1e-9)).all()
    steps = np.linalg.solve(ended(release, model.dim)[1].T, np.diff(path, axis=0)[5:].T)
    inside = (np.abs(path - settings.start) < box * (1 - 1e-9)).all(1)
    whole = inside[5:-1] & inside[6:]
    assert np.linalg.norm(steps, axis=0)[whole].max(initial=0.0) <= 0.3 * (1 + 1e-9)
    assert np.abs(path - settings.start).max() > 0.9 * box.min()


def test_shares_fall_geometrically_and_then_stay():
    with jax.enable_x64(True):
        _, query, _ = make("gaussian", PLAIN, steps=100)
        constants = query.init(None).constants
        shares = [float(score._share(constants, step)) for step in (0, 25, 50, 100)]
    np.testing.assert_allclose(shares, [0.1, np.sqrt(0.1 * 0.01), 0.01, 0.01])


def test_a_model_that_cannot_simulate_is_refused():
    plan, _, rows = make("gaussian", PLAIN, steps=2)
    mute = replace(MODELS["gaussian"], simulate=None)
    with pytest.raises(ValueError, match="cannot simulate its outcome"):
        loop.run(noise.simulated(1), plan, score.query(mute, plan, simple_scores(mute, rows)), rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": np.zeros(1)}, "start has shape"),
        ({"prior_precision": np.full(5, np.nan)}, "prior_precision has shape"),
        ({"first": 0.001}, "0 < last ≤ first"),
        ({"falling": 0.0}, "falling=0.0"),
        ({"longest": 0.0}, "longest=0.0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(change, message):
    _, _, rows = make("gaussian", PLAIN, steps=2)
    settings = simple_scores(MODELS["gaussian"], rows)
    with pytest.raises(ValueError, match=message):
        score.check(MODELS["gaussian"], settings._replace(**change))


def test_what_a_release_says_of_its_settings_is_plain_and_comes_back():
    _, _, rows = make("gaussian", PLAIN, steps=2)
    settings = simple_scores(MODELS["gaussian"], rows)._replace(sample={"age": np.arange(3.0)})
    told = score.describe(settings)
    assert told["sample"] == {"age": [0.0, 1.0, 2.0]}
    again = score.described(told)
    for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(settings), strict=True):
        np.testing.assert_array_equal(one, other)


def test_several_tables_answer_as_they_do_one_by_one():
    plan, query, rows = make("gaussian", PLAIN, steps=3, sampling_prob=1.0, noise_multiplier=0.0)
    both = {name: np.stack([column, column]) for name, column in rows._columns.items()}
    one = loop.run(noise.simulated(1), plan, query, rows)
    two = study.fit_tables(1, rows.schema, plan, query, both)
    np.testing.assert_allclose(two.last, np.stack([one.last, one.last]), rtol=1e-9)
