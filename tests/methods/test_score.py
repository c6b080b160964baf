"""Scores: what a row answers, where a step goes, and what of the information is known in public."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from discreet.evaluate import study
from discreet.mechanism import loop, noise
from discreet.methods import score
from tests.guarantees.mechanisms import MODELS, SCORE, Recipe, make, simple_scores


def joint_gradient(name, rows, z, counts):
    """∇(−log p(z, rows)) by automatic differentiation of the model's own densities."""
    model = MODELS[name]
    with jax.enable_x64(True):
        by_row = jax.vmap(lambda row: jax.grad(model.log_likelihood)(z, row))(rows._columns)
        return -np.asarray(counts @ by_row + jax.grad(model.log_prior)(z))


@pytest.mark.parametrize("name", ["gaussian", "poisson", "beta-bernoulli", "network"])
def test_without_noise_and_clipping_a_step_takes_the_gradient_of_the_log_joint(name):
    """The trace says the gradient, and the step is `first` of a natural one: −share·factor²·gradient/N."""
    settings = simple_scores(MODELS[name])._replace(longest=1e9, reach=1e9)
    plan, _, rows = make(name, Recipe(SCORE, draws=1), steps=1, sampling_prob=1.0, noise_multiplier=0.0)
    plan = replace(plan, clip_norm=1e4)
    release = loop.run(noise.simulated(1), plan, score.query(MODELS[name], plan, settings), rows, keep="trace")
    counts = np.ones(plan.num_rows) if rows._counts is None else rows._counts
    expected = joint_gradient(name, rows, settings.start, counts)
    factor = (settings.information.at(settings.start, np) + settings.prior_precision / plan.num_rows) ** -0.5
    np.testing.assert_allclose(release.trace.x[0], settings.start)
    np.testing.assert_allclose(release.trace.scale[0], 1 / factor)
    np.testing.assert_allclose(release.trace.y[0], expected, atol=1e-3 * plan.num_rows)
    moved = settings.start - settings.first * factor**2 * expected / plan.num_rows
    np.testing.assert_allclose(release.last, moved, atol=1e-3)


def test_steps_are_bounded_in_length_and_place():
    plan, _, rows = make("gaussian", Recipe(SCORE, draws=1), steps=40, noise_multiplier=1e4)
    settings = simple_scores(MODELS["gaussian"])._replace(longest=0.3, reach=0.5, first=1.0, last=1.0)
    release = loop.run(noise.simulated(1), plan, score.query(MODELS["gaussian"], plan, settings), rows, keep="trace")
    path, box = np.asarray(release.trace.x), 0.5 / np.sqrt(settings.prior_precision)
    assert (np.abs(path - settings.start) <= box * (1 + 1e-9)).all()
    factor = 1 / np.asarray(release.trace.scale)[:-1]
    assert np.linalg.norm(np.diff(path, axis=0) / factor, axis=1).max() <= 0.3 * (1 + 1e-9)
    assert np.abs(path - settings.start).max() > 0.9 * box.min()


def test_shares_fall_geometrically_and_then_stay():
    with jax.enable_x64(True):
        _, query, _ = make("gaussian", Recipe(SCORE, draws=1), steps=100)
        constants = query.init(None).constants
        shares = [float(score._share(constants, step)) for step in (0, 25, 50, 100)]
    np.testing.assert_allclose(shares, [0.1, np.sqrt(0.1 * 0.01), 0.01, 0.01])


def test_information_is_found_where_its_logarithm_is_a_quadratic():
    rng = np.random.default_rng(1)
    z = rng.normal(size=(400, 2))
    log = np.stack([0.5 + z[:, 0], -1 + 0.3 * z[:, 0] ** 2 - z[:, 1]], axis=1)
    known = score.fit_information(z, np.exp(log + 0.01 * rng.normal(size=log.shape)), np.zeros(2), np.ones(2))
    for place in ([0.0, 0.0], [1.0, -1.0], [-0.5, 1.5]):
        expected = np.exp([0.5 + place[0], -1 + 0.3 * place[0] ** 2 - place[1]])
        np.testing.assert_allclose(known.at(np.array(place), np), expected, rtol=0.03)
    far = known.at(np.array([50.0, -50.0]), np)
    assert (far <= np.exp(log).max(0)).all()


def test_rows_without_gradients_have_no_information():
    with pytest.raises(ValueError, match="no finite gradient"):
        score.fit_information(np.zeros((4, 1)), np.zeros((4, 1)), np.zeros(1), np.ones(1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": np.zeros(1)}, "start has shape"),
        ({"prior_precision": np.full(5, np.nan)}, "prior_precision has shape"),
        ({"first": 0.001}, "0 < last ≤ first"),
        ({"falling": 0.0}, "falling=0.0"),
        ({"longest": 0.0}, "longest=0.0"),
        ({"information": simple_scores(MODELS["beta-bernoulli"]).information}, "of another model"),
    ],
)
def test_settings_that_do_not_fit_are_refused(change, message):
    settings = simple_scores(MODELS["gaussian"])
    with pytest.raises(ValueError, match=message):
        score.check(MODELS["gaussian"], settings._replace(**change))


def test_what_a_release_says_of_its_settings_is_plain_and_comes_back():
    settings = simple_scores(MODELS["gaussian"])._replace(sample={"age": np.arange(3.0)})
    told = score.describe(settings)
    assert told["sample"] == {"age": [0.0, 1.0, 2.0]}
    again = score.described(told)
    for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(settings), strict=True):
        np.testing.assert_array_equal(one, other)


def test_several_tables_answer_as_they_do_one_by_one():
    plan, query, rows = make("gaussian", Recipe(SCORE, draws=1), steps=3, sampling_prob=1.0, noise_multiplier=0.0)
    both = {name: np.stack([column, column]) for name, column in rows._columns.items()}
    one = loop.run(noise.simulated(1), plan, query, rows)
    two = study.fit_tables(1, rows.schema, plan, query, both)
    np.testing.assert_allclose(two.last, np.stack([one.last, one.last]), rtol=1e-9)
