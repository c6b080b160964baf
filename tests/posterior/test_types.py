import dataclasses
import json

import jax
import numpy as np
import pytest

from discreet.accounting import Guarantee
from discreet.methods.gaussian import Family
from discreet.posterior.types import Posterior, from_draws, through_q
from discreet.schema import Numeric, Schema
from tests import tiny

PROMISE = Guarantee(0.5, 1e-5, "PLD", "dp-accounting 0.6.0", "3 × Gaussian(2.0)", 0.1, 0.02, "secure")


def made(seed=0, draws=400):
    """A posterior of the tiny regression from any numbers: nothing was asked of any rows."""
    z = np.random.default_rng(seed).normal(size=(draws, 3))
    info = {"method": "made up", "plan": {"steps": 3}, "reasons": ["§ – ε"]}
    return from_draws(z, tiny.MODEL, PROMISE, info=info, schema=tiny.SCHEMA)


def test_what_is_saved_is_loaded_to_the_last_bit(tmp_path):
    saved = made()
    loaded = Posterior.load(saved.save(tmp_path / "posterior.nc"))
    assert set(loaded.draws) == set(saved.draws)
    for name, values in saved.draws.items():
        np.testing.assert_array_equal(loaded.draws[name], values, strict=True)
    np.testing.assert_array_equal(loaded.z, saved.z, strict=True)
    assert (loaded.guarantee, loaded.info, loaded.labels) == (saved.guarantee, saved.info, dict(saved.labels))
    assert loaded.summary().equals(saved.summary())


def test_a_parameter_may_be_called_z(tmp_path):
    values = np.arange(6.0).reshape(1, 3, 2)
    saved = Posterior({"z": values[..., 0]}, values, PROMISE, {})
    loaded = Posterior.load(saved.save(tmp_path / "posterior.nc"))
    np.testing.assert_array_equal(loaded.draws["z"], saved.draws["z"])
    np.testing.assert_array_equal(loaded.z, saved.z)


def test_a_scoped_name_survives_a_file(tmp_path):
    """NumPyro's scope writes "arm/effect"; a file would read that as a group, after the budget was spent."""
    model = dataclasses.replace(tiny.MODEL, constrain=lambda z: {"arm/effect": z}, labels={})
    saved = from_draws(np.ones((5, 3)), model, PROMISE, info={"method": "made up"})
    assert list(Posterior.load(saved.save(tmp_path / "posterior.nc")).draws) == ["arm.effect"]


def test_a_file_can_be_replaced_while_it_is_loaded(tmp_path):
    path = made(1).save(tmp_path / "posterior.nc")
    first = Posterior.load(path)
    made(2).save(path)
    np.testing.assert_array_equal(first.z, made(1).z)
    np.testing.assert_array_equal(Posterior.load(path).z, made(2).z)


def test_arviz_sees_the_same_draws_and_the_guarantee():
    group = made().to_arviz().posterior
    assert group["coefficients"].dims == ("chain", "draw", "coefficients_term")
    assert group["coefficients_term"].values.tolist() == ["Intercept", "age", "sex[m]"]
    np.testing.assert_array_equal(group["coefficients"].values, made().draws["coefficients"])
    assert Guarantee.from_dict(json.loads(group.attrs["guarantee"])) == PROMISE


@pytest.mark.parametrize("content", [b"", b"not NetCDF at all", None], ids=["empty", "text", "cut short"])
def test_a_damaged_file_is_refused(tmp_path, content):
    path = made().save(tmp_path / "posterior.nc")
    path.write_bytes(path.read_bytes()[:3000] if content is None else content)
    with pytest.raises(ValueError, match="not a saved discreet posterior"):
        Posterior.load(path)


def test_a_foreign_file_is_refused(tmp_path):
    foreign = made().to_arviz()
    foreign.posterior.attrs.clear()
    foreign.to_netcdf(str(tmp_path / "foreign.nc"), engine="h5netcdf")
    with pytest.raises(ValueError, match="not a saved discreet posterior"):
        Posterior.load(tmp_path / "foreign.nc")
    with pytest.raises(ValueError, match="does not exist"):
        Posterior.load(tmp_path / "nowhere.nc")


@pytest.mark.parametrize("prob", [0.5, 0.9, 0.999])
def test_summary_is_numpy_s(prob):
    found, draws = made().summary(prob), made().draws["coefficients"][0]
    assert found.index.tolist() == ["Intercept", "age", "sex[m]"]
    np.testing.assert_allclose(found["mean"], draws.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found["sd"], draws.std(0), rtol=1e-12)
    edges = np.quantile(draws, [(1 - prob) / 2, (1 + prob) / 2], axis=0)
    np.testing.assert_allclose(found.iloc[:, 2:].to_numpy().T, edges, rtol=1e-12)


def test_summary_names_its_columns_by_their_quantiles():
    assert made().summary().columns.tolist() == ["mean", "sd", "5%", "95%"]
    assert made().summary(0.95).columns.tolist() == ["mean", "sd", "2.5%", "97.5%"]


def test_summary_pools_chains_and_counts_the_places_of_unlabelled_parameters():
    values = np.arange(24.0).reshape(2, 3, 2, 2)
    found = Posterior({"w": values, "s": values[..., 0, 0]}, values[..., 0], PROMISE, {}).summary()
    assert found.index.tolist() == ["w[0,0]", "w[0,1]", "w[1,0]", "w[1,1]", "s"]
    np.testing.assert_allclose(found["mean"], [*values.reshape(6, 4).mean(0), values[..., 0, 0].mean()])


@pytest.mark.parametrize("prob", [0, 1, -0.1, 1.5, float("nan")])
def test_summary_refuses_what_is_no_probability(prob):
    with pytest.raises(ValueError, match="prob="):
        made().summary(prob)


def test_predict_is_the_model_s_mean_in_the_columns_own_units():
    new = {"age": [20.0, 47.5, 60.0], "sex": ["m", "f", "m"]}
    intercept, age, male = made().draws["coefficients"][0].T[:, :, None]
    predictor = intercept + age * (np.array(new["age"]) - 40) + male * np.array([1, 0, 1])
    found = made().predict(new)
    assert found.shape == (400, 3)
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-predictor)), rtol=1e-10)


def test_predict_takes_at_most_a_thousand_draws():
    assert made(draws=2500).predict({"age": [30.0], "sex": ["f"]}).shape == (1000, 1)


def test_predict_after_load_needs_the_model_and_the_schema(tmp_path):
    path, new = made().save(tmp_path / "posterior.nc"), {"age": [30.0], "sex": ["f"]}
    with pytest.raises(ValueError, match="pass model="):
        Posterior.load(path).predict(new)
    found = Posterior.load(path, tiny.MODEL, tiny.SCHEMA).predict(new)
    np.testing.assert_array_equal(found, made().predict(new))


def test_predict_refuses_rows_that_do_not_follow_the_schema():
    with pytest.raises(ValueError, match="no column 'sex'"):
        made().predict({"age": [30.0]})
    with pytest.raises(ValueError, match="undeclared"):
        made().predict({"age": [30.0], "sex": ["x"]})


def test_predict_refuses_a_model_without_covariates():
    bare = dataclasses.replace(tiny.MODEL, columns=("ill",))
    posterior = dataclasses.replace(made(), model=bare, schema=Schema((Numeric("ill", 0, 1),)))
    with pytest.raises(ValueError, match="no covariates"):
        posterior.predict({"ill": [1]})


def test_repr_shows_no_draws():
    assert repr(made()) == f"Posterior(made up: 400 draws of coefficients; {PROMISE})"


@pytest.mark.parametrize("positive", ["softplus", "exp"])
def test_draws_through_q_have_its_moments(positive):
    """Mean and sd of 20 000 draws, each within 5 standard errors: false alarms below 1e-5."""
    family, mean, sd = Family("mean-field", positive), np.array([1.0, -2.0]), np.array([0.5, 3.0])
    phi = np.broadcast_to(np.asarray(family.pack(mean, sd), float), (20_000, 4))
    draws = through_q(np.random.default_rng(0), phi, family)
    assert draws.shape == (20_000, 2)
    np.testing.assert_array_less(np.abs(draws.mean(0) - mean) / sd, 5 / np.sqrt(20_000))
    np.testing.assert_array_less(np.abs(draws.std(0) / sd - 1), 5 / np.sqrt(40_000))


def test_draws_through_a_full_rank_q_have_its_covariance():
    """LLᵀ from 20 000 draws, 5 standard errors of each entry; leading axes are kept, and each φ gets its own draw."""
    factor = np.array([[0.5, 0.0], [1.5, 2.0]])
    with jax.enable_x64(True):
        family = Family("full-rank")
        phi = np.array(family.pack(np.array([1.0, -2.0]), np.diag(factor)))
    phi[4] = factor[1, 0]
    draws = through_q(np.random.default_rng(0), np.broadcast_to(phi, (4, 5000, 5)), family)
    assert draws.shape == (4, 5000, 2)
    expected = factor @ factor.T
    error = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / 20_000)
    assert (np.abs(np.cov(draws.reshape(-1, 2).T) - expected) < 5 * error).all()
