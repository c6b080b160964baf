"""Many simulated fits at once: tables with the model's law, and replicas that behave like single fits."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from discreet.evaluate import study
from discreet.families.exponential import gamma_exponential
from discreet.families.glm import glm
from discreet.mechanism import loop, noise
from discreet.mechanism.rows import store
from discreet.methods import elbo
from discreet.model import Model
from discreet.plan import Plan
from discreet.schema import Categorical, Numeric, Schema

K, N, T = 8, 200, 200
CLIP, MULTIPLIER = 8.0, 3.0
COIN = Schema((Categorical("x", ("no", "yes")),))
COUNTS = glm("logistic", "x", [], COIN), COIN  # a Bernoulli with a normal prior: quick to compile
ROWS = gamma_exponential(8.0, 2.0), Schema((Numeric("x", 0, 20),))


def still(model, plan):
    """A query that hardly moves from z ≈ 0 and has almost no width, so that every step asks the same."""
    settings = elbo.Settings(np.array([0.0, -20.0]), 1e-12, draws=2)
    return elbo.query(model, plan, settings)


def location_gradient(name, x):
    """Σ −∂ log p(x_i | z)/∂z at z = 0, over the last axis of the tables, and Σ of its squares."""
    each = 0.5 - x if name == "counts" else 0.5 * (x - 1 / np.log(2))
    return each.sum(-1), (each**2).sum(-1)


@pytest.fixture(scope="module", params=["counts", "rows"])
def studied(request):
    """K fits of one model at κ = ½, their tables, and one of the tables fitted alone."""
    model, schema = COUNTS if request.param == "counts" else ROWS
    limit = None if request.param == "counts" else N
    plan = Plan(N, T, 0.5, CLIP, MULTIPLIER, limit)
    query = still(model, plan)
    result = study.simulate_fits(5, model, schema, plan, query, K)
    alone = loop.run(noise.simulated(6), plan, query, store(schema, {"x": result.tables["x"][0]}))
    return request.param, result, alone


def test_every_array_has_a_leading_axis_of_replicas(studied):
    _, result, alone = studied
    assert result.truth.shape == (K, 1)
    assert result.tables["x"].shape == (K, N)
    assert result.release.last.shape == (K, 2)
    assert alone.last.shape == (2,)
    for together, one in zip(result.release.blocks, alone.blocks, strict=True):
        assert together.shape == (K, *one.shape)
    assert (result.release.blocks.steps.sum(1) == T).all()


def test_a_simulated_release_says_so(studied):
    _, result, _ = studied
    assert result.release.noise == "simulated"


def test_replicas_have_noise_of_their_own(studied):
    """Step means of two replicas would agree exactly if they shared their noise and differ by tables only."""
    name, result, _ = studied
    total, _ = location_gradient(name, result.tables["x"])
    residual = result.release.blocks.mean_y[..., 0] - 0.5 * total[:, None]
    correlation = np.corrcoef(residual)[np.triu_indices(K, 1)]
    limit = np.tanh(stats.norm.isf(1e-6) / np.sqrt(residual.shape[1] - 3))  # false alarms: 6e-5 in all
    assert (np.abs(correlation) < limit).all()


def test_answers_of_replicas_and_of_a_single_table_have_the_mean_and_noise_of_the_plan(studied):
    """y_t = κ·total + public gradient + noise of variance (σC)² + κ(1 − κ)·Σ squares; the same for one table.

    False alarms: 2e-6 for each of 9 means and 9 sums of squares. Nothing reaches the clip norm.
    """
    name, result, alone = studied
    tables = np.concatenate([result.tables["x"], result.tables["x"][:1]])
    total, squares = location_gradient(name, tables)
    public = {"counts": 0.0, "rows": -(7 / np.log(2) - 2 + 1) / 2}[name]
    mean, variance = 0.5 * (total + public), (CLIP * MULTIPLIER) ** 2 + 0.25 * squares
    y = np.concatenate([result.release.blocks.mean_y[..., 0], alone.blocks.mean_y[None, :, 0]])
    within = np.concatenate([result.release.blocks.yy[..., 0].sum(1), [alone.blocks.yy[:, 0].sum()]])
    error = np.sqrt(variance / T)
    np.testing.assert_array_less(np.abs(y.mean(1) - mean) / error, stats.norm.isf(1e-6))
    blocks = y.shape[1]
    total_square = within / variance  # χ² with T − blocks degrees of freedom
    low, high = stats.chi2(T - blocks).ppf([1e-6, 1 - 1e-6])
    assert ((low < total_square) & (total_square < high)).all()


def test_a_seed_repeats_its_tables_and_every_table_has_its_own_truth(studied):
    name, result, _ = studied
    if name == "counts":
        truth, tables = study.simulate_tables(5, *COUNTS, N, K)
        np.testing.assert_array_equal(result.truth, truth)
        np.testing.assert_array_equal(result.tables["x"], tables["x"])
    assert len(np.unique(result.truth)) == K


def test_outcomes_follow_the_truth_of_their_table(studied):
    """Σ of squared standardised sums is χ² (nearly normal sums of 200). False alarms: 2e-4."""
    name, result, _ = studied
    z, total = result.truth[:, 0], result.tables["x"].sum(1)
    if name == "counts":
        theta = special.expit(z)
        score = (total - N * theta) / np.sqrt(N * theta * (1 - theta))
    else:
        score = (total * np.logaddexp(0, z) - N) / np.sqrt(N)
    assert 1e-4 < stats.chi2(K).cdf((score**2).sum()) < 1 - 1e-4
    assert result.tables["x"].dtype == (np.int32 if name == "counts" else np.float64)


def test_covariates_are_what_the_schema_declares():
    schema = Schema((Numeric("age", 20, 60), Categorical("y", ("no", "yes"))))
    truth, tables = study.simulate_tables(4, glm("logistic", "y", ["age"], schema), schema, 30, 5)
    assert truth.shape == (5, 2)
    assert {name: values.shape for name, values in tables.items()} == {"age": (5, 30), "y": (5, 30)}
    assert ((tables["age"] >= 20) & (tables["age"] <= 60)).all()


def test_a_model_that_cannot_simulate_is_refused():
    mute = Model(
        dim=1,
        log_prior=lambda z: -jnp.sum(z**2),
        log_likelihood=lambda z, row: z[0],
        constrain=lambda z: {"z": z},
        sample_prior=lambda key: jnp.zeros(1),
        columns=("x",),
    )
    with pytest.raises(ValueError, match="cannot simulate"):
        study.simulate_tables(0, mute, COIN, 10, 2)
