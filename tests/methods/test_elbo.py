"""The DPVI query piece by piece against finite differences and closed forms, and as a whole against a known optimum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from discreet.families.exponential import beta_bernoulli
from discreet.mechanism import loop, noise
from discreet.mechanism.rows import store
from discreet.methods import elbo, mean_field
from discreet.model import Model
from discreet.plan import Plan
from discreet.schema import Numeric, Schema

PLAN = Plan(num_rows=20, steps=250, sampling_prob=0.25, clip_norm=64.0, noise_multiplier=2.0)
BETA = np.array([2.0, 50.0])
SETTINGS = elbo.Settings(np.array([0.4, -1.0]), BETA, np.array([0.02, 1e-3]), draws=6)
PRIOR_SD = 2.0

NORMAL = Model(
    dim=1,
    log_prior=lambda z: -0.5 * jnp.sum((z / PRIOR_SD) ** 2),
    log_likelihood=lambda z, row: -0.5 * (row["y"] - z[0]) ** 2,
    constrain=lambda z: {"centre": z[0]},
    sample_prior=lambda key: PRIOR_SD * jax.random.normal(key, (1,)),
    columns=("y",),
)


@pytest.fixture(scope="module")
def asked():
    """The query on the normal model, its first state and question."""
    query = elbo.query(NORMAL, PLAN, SETTINGS)
    with jax.enable_x64(True):
        state = query.init(jax.random.key(0))
        return query, state, query.ask(jax.random.key(1), state)


def test_a_row_answers_with_the_preconditioned_gradient_of_its_expected_loss():
    """Central differences of the negative log pmf averaged over the question's own draws."""
    query = elbo.query(beta_bernoulli(2.0, 2.0), PLAN, SETTINGS)
    with jax.enable_x64(True):
        question = query.ask(jax.random.key(2), query.init(jax.random.key(0)))
        answer = np.asarray(query.row_value(question, {"x": 1}))
    eta = np.asarray(question.eta)[:, 0]

    def loss(phi):
        return -np.log(special.expit(phi[0] + np.logaddexp(0, phi[1]) * eta)).mean()

    differences = [(loss(SETTINGS.start + h) - loss(SETTINGS.start - h)) / 2e-6 for h in 1e-6 * np.eye(2)]
    np.testing.assert_allclose(answer, BETA * differences, rtol=1e-6)


def test_the_question_is_public_and_the_same_for_every_row(asked):
    query, state, question = asked
    np.testing.assert_array_equal(question.phi, state.phi)
    assert question.eta.shape == (6, 1)
    with jax.enable_x64(True):
        other = query.ask(jax.random.key(5), state)
    assert not np.array_equal(other.eta, question.eta)


def public_gradient(phi, eta):
    """∇(−E_q[log p(z)] − H(q)) for a normal prior, by hand."""
    (mean, scale), sd = phi, np.logaddexp(0, phi[1])
    slope = special.expit(scale)
    z = mean + sd * eta
    return np.array([z.mean(), slope * (z * eta).mean()]) / PRIOR_SD**2 - np.array([0, slope / sd])


def test_update_completes_the_answer_in_public_and_takes_a_preconditioned_step(asked):
    """y = answer/β + κ·public gradient; φ moves by −learning_rate·β·y; the noise of y has scale 1/β."""
    query, state, question = asked
    answer = np.array([3.0, -7.0])
    with jax.enable_x64(True):
        after, point = query.update(state, question, jnp.asarray(answer))
    y = answer / BETA + 0.25 * public_gradient(SETTINGS.start, np.asarray(question.eta)[:, 0])
    np.testing.assert_array_equal(point.x, SETTINGS.start)
    np.testing.assert_allclose(point.y, y, rtol=1e-12)
    np.testing.assert_allclose(point.scale, 1 / BETA, rtol=1e-15)
    np.testing.assert_allclose(query.last(after), SETTINGS.start - SETTINGS.learning_rate * BETA * y, rtol=1e-12)


def test_the_precondition_cancels_in_the_public_gradient(asked):
    """Rows' unclipped answers, divided by β, do not depend on β."""
    query, _, question = asked
    vanilla = elbo.query(NORMAL, PLAN, SETTINGS._replace(precondition=np.ones(2)))
    with jax.enable_x64(True):
        row = {"y": jnp.asarray(1.5)}
        np.testing.assert_allclose(query.row_value(question, row) / BETA, vanilla.row_value(question, row), rtol=1e-12)


def test_descent_without_noise_reaches_the_conjugate_posterior():
    """Every row in every batch: m goes to the posterior mean, T(s) to the posterior sd.

    The antithetic draws leave no noise in m, so it is exact up to the grid of the clip; s jitters with the second
    moment of ten draws, and its mean over the second half has an error of about 1 % (limit: 10 %).
    """
    schema = Schema((Numeric("y", -5, 5),))
    y = np.random.default_rng(3).normal(1.5, 1.0, 20).clip(-5, 5)
    plan = Plan(num_rows=20, steps=250, sampling_prob=1.0, clip_norm=64.0, noise_multiplier=0.0)
    settings = elbo.Settings(np.array([0.0, 0.0]), np.array([1.0, 3.0]), np.array([0.02, 0.01]), draws=10)
    query = elbo.query(NORMAL, plan, settings)
    release = loop.run(noise.simulated(4), plan, query, store(schema, {"y": y}), keep_trace=True)
    precision = 20 + PRIOR_SD**-2
    assert release.last[0] == pytest.approx(y.sum() / precision, abs=1e-4)
    sd = np.logaddexp(0, release.trace.x[125:, 1]).mean()
    assert sd == pytest.approx(precision**-0.5, rel=0.1)


def test_heuristic_rate_makes_the_noise_of_all_steps_wander_one_unit():
    """λ·σC·√T = √2·λ_c/√d in each coordinate: one unit in Euclidean norm if λ_c = √½, whatever the plan."""
    for plan in (PLAN, Plan(5000, 10_000, 0.1, 2.0, 307.8)):
        for size in (2, 8):
            rate = elbo.heuristic_rate(plan, size, np.sqrt(0.5))
            assert rate * plan.noise_std * np.sqrt(plan.steps * size) == pytest.approx(1)
    assert elbo.heuristic_rate(PLAN, 2, 3.0) == pytest.approx(3 * elbo.heuristic_rate(PLAN, 2))


def test_the_release_can_hold_the_settings_as_plain_values():
    described = elbo.describe(SETTINGS)
    assert (described["method"], described["draws"]) == ("elbo", 6)
    for name in ("start", "precondition", "learning_rate"):
        assert described[name] == getattr(SETTINGS, name).tolist()


@pytest.mark.parametrize("name", ["start", "precondition", "learning_rate"])
def test_vectors_that_do_not_fit_the_model_are_refused(name):
    for value in (np.ones(1), np.ones(4), np.ones((1, 2))):
        with pytest.raises(ValueError, match=f"{name} has shape"):
            elbo.query(NORMAL, PLAN, SETTINGS._replace(**{name: value}))
    for value in (np.array([1.0, np.nan]), np.array([np.inf, 1.0])):
        with pytest.raises(ValueError, match=f"{name} must be finite"):
            elbo.query(NORMAL, PLAN, SETTINGS._replace(**{name: value}))


@pytest.mark.parametrize("name", ["precondition", "learning_rate"])
def test_what_divides_or_multiplies_a_step_is_positive(name):
    for bad in (0.0, -1.0):
        with pytest.raises(ValueError, match=f"{name} must be finite and positive"):
            elbo.query(NORMAL, PLAN, SETTINGS._replace(**{name: np.array([1.0, bad])}))


def test_no_draws_are_refused():
    with pytest.raises(ValueError, match="draws=0 must be at least 1"):
        elbo.query(NORMAL, PLAN, SETTINGS._replace(draws=0))


def test_one_draw_is_enough(asked):
    """An odd number of draws has a public mean that is not zero; nothing else changes."""
    del asked
    query = elbo.query(NORMAL, PLAN, SETTINGS._replace(draws=1))
    with jax.enable_x64(True):
        question = query.ask(jax.random.key(6), query.init(jax.random.key(0)))
        value = np.asarray(query.row_value(question, {"y": jnp.asarray(2.0)}))
        z = np.asarray(mean_field.transform(question.phi[None], question.eta))[0, 0]
    np.testing.assert_allclose(value[0], BETA[0] * (z - 2.0), rtol=1e-12)
