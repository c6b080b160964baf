"""What clipping does to waiting times: with y ~ Exponential(e^z) and u = e^z·y, a row's slope in z is u − 1."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from discreet.evaluate import study
from discreet.methods import elbo, sep
from discreet.methods.sites import linear
from discreet.model import Model
from discreet.plan import Plan
from discreet.posterior.clip_bias import LARGEST, ROWS, TABLES, clip_bias, warnings
from discreet.posterior.sep import last_iterate
from discreet.schema import Numeric, Schema
from tests import tiny

SCHEMA = Schema((Numeric("y", 0, 1000),))
MODEL = Model(
    dim=1,
    log_prior=lambda z: -0.5 * (z**2).sum() / 100,
    log_likelihood=lambda z, row: z[0] - jnp.exp(z[0]) * row["y"],
    constrain=lambda z: {"rate": jnp.exp(z)},
    sample_prior=lambda key: jax.random.normal(key, (1,)),
    columns=("y",),
    outcome=("y",),
    simulate=lambda key, z, row: {"y": jax.random.exponential(key) * jnp.exp(-z[0])},
)
SETTINGS = elbo.Settings(elbo.start_at(MODEL, 1e-3, np.zeros(1)), 1e-4, "aligned", draws=1)


def released(clip_norm, settings=SETTINGS, replicas=3):
    plan = Plan(num_rows=10_000, steps=4, sampling_prob=1.0, clip_norm=clip_norm, noise_multiplier=0.0)
    tables = {"y": np.random.default_rng(1).exponential(size=(replicas, plan.num_rows))}
    return study.fit_tables(1, SCHEMA, plan, elbo.query(MODEL, plan, settings), tables)


def test_the_clip_of_a_skewed_slope_moves_the_optimum_as_theory_says():
    """Clipped at 2, u − 1 loses E[(u − 3)⁺] = e⁻³; the curvature is one for each row. Draws have an sd of .1.

    The simulated rows give the mean of (u − 3)⁺ with sd √(2e⁻³)/√rows; five of these: false alarm 10⁻⁶.
    """
    z = 0.5 + 0.1 * np.random.default_rng(2).standard_normal((3, 400, 1))
    found = clip_bias(MODEL, SCHEMA, released(2.0), z)
    error = 5 * np.sqrt(2 * np.exp(-3)) / np.sqrt(TABLES * ROWS)
    assert found.shape == (3, 1)
    assert np.abs(found * z.std(1) - np.exp(-3)).max() < 1.1 * error
    one = clip_bias(MODEL, SCHEMA, study.chosen(released(2.0), 1), z[1])
    assert np.allclose(one, found[1])


@pytest.mark.parametrize(("variant", "beta"), [("vanilla", None), ("aligned", None), ("preconditioned", 7.0)])
def test_the_factor_of_a_variant_is_undone(variant, beta):
    """The scale of q is so narrow that its own gradient hardly counts for the norm: all variants lose alike.

    Five standard errors are a quarter of the loss: false alarm 10⁻⁶.
    """
    settings = SETTINGS._replace(variant=variant, precondition=beta and np.array([beta, 1.0]))
    z = 0.1 * np.random.default_rng(3).standard_normal((1, 400, 1))
    found = clip_bias(MODEL, SCHEMA, released(2.0 * (beta or 1.0), settings, 1), z) * z.std(1)
    assert found == pytest.approx(np.exp(-3), rel=0.25)


def test_a_clip_norm_that_nobody_reaches_moves_nothing():
    z = np.random.default_rng(4).standard_normal((3, 50, 1))
    assert np.all(clip_bias(MODEL, SCHEMA, released(1e6), z) == 0)


@pytest.mark.parametrize("centred", [False, True])
def test_the_clip_of_sites_moves_the_mean_as_far_as_clipped_sep_ends_from_whole_sep(centred):
    """A logistic regression whose steps see every row: the prediction, from rows of the model, against what happened.

    The table is one of the model's, of 4000 rows: three sds of what such a table's own rows differ by.
    """
    _, tables = study.simulate_tables(11, tiny.MODEL, tiny.SCHEMA, 4000, 1)
    site, ended = linear(tiny.MODEL), {}
    start = np.r_[np.zeros(3), [400, 0, 0, 100, 0, 100]]  # from the prior's precision the first step would go too far
    for clip_norm in (1.0, 50.0):
        plan = Plan(num_rows=4000, steps=60, sampling_prob=1.0, clip_norm=clip_norm, noise_multiplier=0.0)
        query = sep.query(site, plan, sep.Settings(gamma=0.3 * 4000, start=start, centred=centred))
        ended[clip_norm] = study.chosen(study.fit_tables(1, tiny.SCHEMA, plan, query, tables), 0)
    rng = np.random.default_rng(12)
    clipped, whole = (last_iterate(rng, release, 20_000) for release in ended.values())
    found = clip_bias(tiny.MODEL, tiny.SCHEMA, ended[1.0], whole)
    moved = (clipped.mean(0) - whole.mean(0)) / whole.std(0)
    assert np.abs(moved).max() > 0.5
    assert np.abs(found - moved).max() < 0.35 * np.abs(moved).max()
    assert np.abs(clip_bias(tiny.MODEL, tiny.SCHEMA, ended[50.0], whole)).max() == 0


def test_draws_that_are_not_finite_are_warned_of():
    found = clip_bias(MODEL, SCHEMA, released(2.0), np.full((3, 50, 1), np.nan))
    assert np.isnan(found).all()
    assert warnings(found[0], ["rate"])


def test_the_warning_names_the_worst_parameter_and_the_remedy():
    assert warnings(np.array([LARGEST, -LARGEST, 0.0]), ["a", "b", "c"]) == []
    (said,) = warnings(np.array([0.5, -1.25, 0.0]), ["a", "b", "c"])
    assert "clipping moves a, b:" in said
    assert "b is off by -1.2 of its sds" in said
    assert "raise clip_norm" in said


def test_a_model_that_cannot_simulate_is_refused():
    with pytest.raises(ValueError, match="cannot simulate"):
        clip_bias(replace(MODEL, simulate=None), SCHEMA, released(2.0), np.zeros((3, 2, 1)))


def test_settings_come_back_from_a_release():
    rate, beta = np.array([1e-4, 2e-4]), np.array([1.0, 50.0])
    given = SETTINGS._replace(learning_rate=rate, variant="preconditioned", precondition=beta, rest=np.array([0, 0.5]))
    back = elbo.described(json.loads(json.dumps(elbo.describe(given))))
    assert elbo.describe(back) == elbo.describe(given)
    assert elbo.described(elbo.describe(SETTINGS)).precondition is None
