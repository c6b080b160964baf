"""Row gradients by a linear predictor are the gradients without it; and β before the clip of aligned rows."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from scipy import stats

from discreet.mechanism import loop, noise
from discreet.mechanism.clipping import GRID
from discreet.methods import elbo
from discreet.methods.gaussian import POSITIVE, Family
from discreet.model import Linear
from discreet.plan import Plan
from tests.guarantees.mechanisms import MODELS, SCHEMAS, Recipe, make, simple_settings
from tests.methods.oracles import LINE

GLMS = ("gaussian", "logistic", "poisson")
ROWS = 12
PLAN = Plan(ROWS, 1, 1.0, 1.0, 1.0)


def columns_of(name):
    return SCHEMAS[name].sample(np.random.default_rng(7), ROWS)


def answers(model, recipe):
    """A function of columns: what each row answers to one question, (rows, size)."""
    query = elbo.query(model, PLAN, simple_settings(model, recipe))
    eta = np.random.default_rng(8).normal(size=(recipe.draws, model.dim))

    def answer(columns):
        question = query.ask(eta, query.init(None))
        return jax.vmap(lambda row: query.row_value(question, row))(columns)

    return answer


class ByPredictor(Linear):
    """A likelihood that can be asked through its linear predictor alone."""

    def __call__(self, z, row):
        raise AssertionError("asked at z")


def by_way(name, recipes, kind=Linear):
    """Answers for each recipe (by the linear predictor, and without it), in one compilation."""
    model, columns = MODELS[name], columns_of(name)
    likelihood = model.log_likelihood
    assert isinstance(likelihood, Linear)
    ways = (
        replace(model, log_likelihood=kind(likelihood.features, likelihood.of_predictor)),
        replace(model, log_likelihood=lambda z, row: likelihood(z, row)),
    )
    asked = [[answers(way, recipe) for way in ways] for recipe in recipes]
    with jax.enable_x64(True):
        found = jax.jit(lambda columns: jax.tree.map(lambda answer: answer(columns), asked))(columns)
        return jax.tree.map(np.asarray, found)


@pytest.mark.parametrize("positive", POSITIVE)
@pytest.mark.parametrize("name", GLMS)
def test_mean_field_rows_answer_by_their_linear_predictor_as_without_it(name, positive):
    """To 10⁻¹² of a row's largest entry, for every variant; and it is the predictor that they use."""
    variants = [variant for variant, parts in elbo.VARIANTS.items() if not parts.aligned]
    recipes = [Recipe(variant, Family(positive=positive), draws=5) for variant in variants]
    assert len(recipes) == 4
    for linear, plain in by_way(name, recipes, ByPredictor):
        size = np.abs(plain).max(1, keepdims=True)
        assert (size > 0).all()
        assert (np.abs(linear - plain) <= 1e-12 * size).all()


@pytest.mark.parametrize("name", GLMS)
def test_full_rank_and_aligned_rows_do_without_a_linear_predictor(name):
    recipes = [Recipe("vanilla", Family("full-rank")), Recipe("aligned"), Recipe("aligned preconditioned")]
    for linear, plain in by_way(name, recipes):
        np.testing.assert_array_equal(linear, plain)
        assert np.abs(plain).max() > 0


def log_density(name, z, features, y):
    """By scipy; the Gaussian family's z ends with softplus⁻¹(1/σ), and its outcome is scaled to [−1, 1]."""
    u = features @ z[: len(features)]
    if name == "logistic":
        return stats.bernoulli.logpmf(y, 1 / (1 + np.exp(-u)))
    if name == "poisson":
        return stats.poisson.logpmf(y, np.exp(u))
    sigma = 1 / np.logaddexp(0, z[-1])
    return stats.norm.logpdf(y / 5, u * sigma, sigma) + 0.5 * np.log(2 * np.pi)


@pytest.mark.parametrize("name", GLMS)
def test_the_log_likelihood_of_a_row_is_that_of_its_linear_predictor(name):
    model, columns = MODELS[name], columns_of(name)
    z = np.random.default_rng(9).normal(size=model.dim)
    sex = np.eye(3)[columns["sex"]]
    design = np.stack([np.ones(ROWS), (columns["age"] - 40) / 20, sex[:, 1], sex[:, 2]], 1)
    rows = [{column: values[i] for column, values in columns.items()} for i in range(ROWS)]
    with jax.enable_x64(True):
        features = np.array([model.log_likelihood.features(row) for row in rows])
        whole = jax.vmap(lambda row: model.log_likelihood(z, row))(columns)
    np.testing.assert_allclose(features, design, rtol=1e-12)
    expected = [log_density(name, z, line, y) for line, y in zip(design, columns["y"], strict=True)]
    np.testing.assert_allclose(whole, expected, rtol=1e-9, atol=1e-9)


# Aligned preconditioned: β before the clip, undone after the noise, and kept by the step


@pytest.mark.parametrize("family", [Family(), Family("full-rank", "exp")], ids="-".join)
def test_an_aligned_preconditioned_row_answers_with_beta_times_its_location_gradient(family):
    """y is then what it is without β, and its noise is smaller by β: the scale says so. The step is β times as long."""
    rng, row = np.random.default_rng(1), {"x": 0.7, "y": -1.2}
    phi, eta, beta = rng.normal(size=family.size(2)), rng.normal(size=(3, 2)), np.exp(rng.normal(size=family.size(2)))

    def one_step(variant, precondition):
        settings = elbo.Settings(phi, 1.0, variant, precondition, family, draws=3)
        query = elbo.query(LINE, PLAN, settings)

        @jax.jit
        def step(row):
            state = query.init(None)
            question = query.ask(eta, state)
            answer = query.row_value(question, row)
            after, point = query.update(state, question, answer)
            return answer, phi - after.phi, point

        return jax.tree.map(np.asarray, step(row))

    with jax.enable_x64(True):
        plain, step, point = one_step("aligned", None)
        scaled, longer, other = one_step("aligned preconditioned", beta)
    np.testing.assert_allclose(scaled, np.tile(beta[:2], 3) * plain, rtol=1e-12)
    np.testing.assert_allclose(longer, beta * step, rtol=1e-9)
    np.testing.assert_allclose(other.y, point.y, rtol=1e-12)
    np.testing.assert_allclose(other.x, point.x, rtol=1e-12)
    np.testing.assert_allclose(other.scale, point.scale / beta[:2], rtol=1e-12)


def test_without_noise_and_clipping_beta_and_a_step_size_over_beta_cancel():
    """Twenty steps on the same batches with the same draws; no row reaches a clip norm of 16.

    Rounding moves a gradient by half a unit per row of the batch, times at most Σ_k max(1, |η_k|) < 5K, and β ≥ 1 makes
    it smaller. Twenty steps add this up; what was added before grows by less than a tenth.
    """
    steps, clip_norm, rate, model, found = 20, 16.0, 1e-4, MODELS["logistic"], []
    for variant in ("aligned", "aligned preconditioned"):
        recipe = Recipe(variant)
        plan, _, rows = make("logistic", recipe, steps=steps, clip_norm=clip_norm, noise_multiplier=0.0)
        settings = simple_settings(model, recipe)
        beta = 1.0 if settings.precondition is None else settings.precondition
        query = elbo.query(model, plan, settings._replace(learning_rate=rate / beta))
        found.append(loop.run(noise.simulated(7), plan, query, rows, keep="trace"))
    plain, scaled = found
    assert (beta >= 1).all()
    assert beta.max() > 50
    limit = 1.1 * steps * rate * plan.batch_limit * (clip_norm / GRID) / 2 * (1 + 5 * 4)
    assert (np.abs(plain.trace.iterate - scaled.trace.iterate).max(0) <= 2 * limit).all()
    assert np.ptp(plain.trace.iterate, axis=0).max() > 20 * limit
    np.testing.assert_allclose(scaled.trace.y, plain.trace.y, atol=2 * limit / rate)


@pytest.mark.parametrize(
    ("variant", "beta"), [("aligned preconditioned", None), ("aligned", np.ones(4)), ("natural", np.ones(4))]
)
def test_beta_is_for_the_preconditioned_variants_alone(variant, beta):
    with pytest.raises(ValueError, match="precondition"):
        elbo.check(LINE, elbo.Settings(np.zeros(4), 1.0, variant, beta))
