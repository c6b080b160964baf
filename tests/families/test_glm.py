"""Regressions in the columns' own units: scipy.stats and statsmodels are the oracles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import statsmodels.api as sm
from scipy import special, stats

from discreet.datasets import ADULT
from discreet.evaluate.reference import non_private
from discreet.families.glm import PRIORS, Priors, glm, softplus
from discreet.schema import Categorical, Numeric, Schema, SchemaError

AGE, SEX = Numeric("age", 20, 60), Categorical("sex", ("f", "m", "x"))
OUTCOMES = {
    "gaussian": Numeric("y", -10, 50),
    "logistic": Categorical("y", ("no", "yes")),
    "probit": Categorical("y", ("no", "yes")),
    "poisson": Numeric("y", 0, 200, integer=True),
}
SCHEMAS = {family: Schema((AGE, SEX, outcome)) for family, outcome in OUTCOMES.items()}
MODELS = {family: glm(family, "y", ["age", "sex"], schema) for family, schema in SCHEMAS.items()}
FAMILIES = list(MODELS)
FLAT = Priors(1e4, 1e4, (0.0, 1e4))

Z = {
    "gaussian": np.array([0.8, -1.1, 0.4, 0.7, 5.0]),
    "logistic": np.array([0.3, -1.2, 0.5, 0.9]),
    "probit": np.array([0.3, -0.7, 0.4, -0.9]),
    "poisson": np.array([1.1, -0.6, 0.4, 0.2]),
}
VALUES = {"gaussian": [-10.0, 21.3, 50.0], "logistic": [0, 1, 1], "probit": [0, 1, 1], "poisson": [0.0, 3.0, 17.0]}
INVERSE_LINKS = {
    "gaussian": lambda u: u,
    "logistic": special.expit,
    "probit": stats.norm.cdf,
    "poisson": np.exp,
}


def rows_of(family):
    """Three rows that visit both bounds of the number and every level, and the outcomes 0 and 1."""
    y = np.array(VALUES[family], np.int32 if isinstance(OUTCOMES[family], Categorical) else float)
    return {"age": np.array([20.0, 33.5, 60.0]), "sex": np.array([0, 1, 2], np.int32), "y": y}


def by_hand(coefficients, rows):
    """The linear predictor from raw columns: the intercept is at mid-bounds and first levels."""
    intercept, age, m, x = np.asarray(coefficients, float)
    return intercept + age * (rows["age"] - 40) + m * (rows["sex"] == 1) + x * (rows["sex"] == 2)


def log_density(family, parameters, rows):
    """scipy's log density of the outcome in its own units, up to the constant that the model leaves out."""
    predictor = by_hand(parameters["coefficients"], rows)
    if family == "gaussian":
        left_out = np.log(30) + 0.5 * np.log(2 * np.pi)
        return stats.norm.logpdf(rows["y"], predictor, float(parameters["sigma"])) + left_out
    law = stats.poisson if family == "poisson" else stats.bernoulli
    return law.logpmf(rows["y"], INVERSE_LINKS[family](predictor))


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_likelihood_and_parameters_are_those_of_the_raw_columns(family, x64):
    model, rows = MODELS[family], rows_of(family)
    with jax.enable_x64(x64):
        z = jnp.asarray(Z[family])
        ours = np.asarray(jax.vmap(lambda row: model.log_likelihood(z, row))(rows))
        parameters = model.constrain(z)
    assert ours.dtype == (np.float64 if x64 else np.float32)
    np.testing.assert_allclose(ours, log_density(family, parameters, rows), rtol=1e-12 if x64 else 1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_mean_is_the_inverse_link_of_the_predictor(family):
    model, rows = MODELS[family], rows_of(family)
    with jax.enable_x64(True):
        z = jnp.asarray(Z[family])
        mean = np.asarray(jax.vmap(lambda row: model.mean(z, row))(rows))
        predictor = by_hand(model.constrain(z)["coefficients"], rows)
    np.testing.assert_allclose(mean, INVERSE_LINKS[family](predictor), rtol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_mean_is_the_average_of_simulated_outcomes(family):
    """False alarms: 1e-5 for each of three rows; bounds are too far to matter."""
    model, rows = MODELS[family], rows_of(family)
    with jax.enable_x64(True):
        z, keys = jnp.asarray(Z[family]), jax.random.split(jax.random.key(1), (3, 4000))
        draw = jax.vmap(jax.vmap(lambda key, row: model.simulate(key, z, row)["y"], in_axes=(0, None)))
        outcomes = np.asarray(jax.jit(draw)(keys, rows))
        mean = np.asarray(jax.vmap(lambda row: model.mean(z, row))(rows))
    error = outcomes.std(1) / np.sqrt(4000)
    assert (np.abs(outcomes.mean(1) - mean) < stats.norm.isf(1e-5 / 2) * error).all()


@pytest.mark.parametrize(("family", "integer"), [("gaussian", False), ("gaussian", True), ("poisson", True)])
def test_simulated_outcomes_are_rows_that_the_schema_declares(family, integer):
    outcome = Numeric("y", 0, 3, integer=integer)
    model = glm(family, "y", [], Schema((outcome,)))
    z = np.ones((300, model.dim))
    z[:10, 0] = 100.0  # exp of it overflows: still a declared row
    draw = jax.jit(jax.vmap(lambda key, z: model.simulate(key, z, {})["y"]))
    draws = np.asarray(draw(jax.random.split(jax.random.key(2), 300), z))
    assert draws.min() == 0
    assert draws.max() == 3
    assert (draws[:10] == 3).all()
    assert not integer or (draws == np.round(draws)).all()
    assert np.issubdtype(draws.dtype, np.floating)


@pytest.mark.parametrize(
    ("outcome", "dtype"), [(Categorical("y", (False, True)), np.int32), (Numeric("y", 0, 1, integer=True), np.float32)]
)
def test_a_binary_outcome_may_be_levels_or_an_integer(outcome, dtype):
    model = glm("logistic", "y", [], Schema((outcome,)))
    keys = jax.random.split(jax.random.key(3), 100)
    draws = np.asarray(jax.vmap(lambda key: model.simulate(key, jnp.zeros(1), {})["y"])(keys))
    assert draws.dtype == dtype
    assert set(draws.tolist()) == {0, 1}


@pytest.fixture(scope="module", params=FAMILIES)
def fitted(request):
    """A simulated table, our mode under a nearly flat prior, and statsmodels' maximum likelihood fit."""
    family = request.param
    model = glm(family, "y", ["age", "sex"], SCHEMAS[family], priors=FLAT)
    rng = np.random.default_rng(4)
    table = SCHEMAS[family].sample(rng, 120)
    predictor = by_hand([0.3, -0.04, 0.5, 0.9], table)
    if family == "gaussian":
        table["y"] = np.clip(predictor + 3 * rng.normal(size=120), -10, 50)
    else:
        mean = INVERSE_LINKS[family](predictor)
        table["y"] = rng.poisson(mean) if family == "poisson" else rng.binomial(1, mean)
    mode = non_private(model, table)
    with jax.enable_x64(True):
        jacobian = np.asarray(jax.jacobian(lambda z: model.constrain(z)["coefficients"])(jnp.asarray(mode.mean)))
        parameters = jax.tree.map(np.asarray, model.constrain(jnp.asarray(mode.mean)))
    design = np.stack([np.ones(120), table["age"], table["sex"] == 1, table["sex"] == 2], 1).astype(float)
    links = {"gaussian": sm.families.Gaussian, "logistic": sm.families.Binomial, "poisson": sm.families.Poisson}
    y = table["y"].astype(float)
    if family == "probit":  # as a GLM its covariance would be of the expected information, not of the observed
        theirs = sm.Probit(y, design).fit(disp=0, tol=1e-12)
    else:
        theirs = sm.GLM(y, design, links[family]()).fit(tol=1e-12)
    return family, parameters, jacobian @ mode.covariance @ jacobian.T, theirs


def at_mid_bounds(values):
    """statsmodels' intercept is at age 0; ours is at age 40."""
    shift = np.eye(4)
    shift[0, 1] = 40
    return shift @ values if values.ndim == 1 else shift @ values @ shift.T


def test_flat_prior_mode_is_the_maximum_likelihood_fit(fitted):
    family, parameters, _, theirs = fitted
    np.testing.assert_allclose(parameters["coefficients"], at_mid_bounds(theirs.params), rtol=1e-5, atol=1e-7)
    if family == "gaussian":
        np.testing.assert_allclose(parameters["sigma"], np.sqrt(np.mean(theirs.resid_response**2)), rtol=1e-6)


def test_flat_prior_covariance_is_that_of_maximum_likelihood(fitted):
    family, _, covariance, theirs = fitted
    scale = 116 / 120 if family == "gaussian" else 1.0  # statsmodels divides the residuals by N − 4
    np.testing.assert_allclose(covariance, scale * at_mid_bounds(theirs.cov_params()), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_prior_density_and_prior_draws_are_the_same_normal(family):
    """The log density is quadratic, and standardised draws pass Kolmogorov-Smirnov. False alarms: 1e-4."""
    model, priors = MODELS[family], PRIORS[family]
    sd = np.array([priors.intercept_sd] + [priors.slope_sd] * 3)
    mean = np.array([np.log(200) / 3 if family == "poisson" else 0.0, 0, 0, 0])
    if family == "gaussian":
        mean, sd = np.append(mean, priors.inverse_sigma[0]), np.append(sd, priors.inverse_sigma[1])
    with jax.enable_x64(True):
        both = jax.jit(jax.vmap(lambda key: (z := model.sample_prior(key), model.log_prior(z))))
        draws, log_prior = (np.asarray(part) for part in both(jax.random.split(jax.random.key(6), 1000)))
    expected = stats.norm.logpdf(draws, mean, sd).sum(1)
    np.testing.assert_allclose(np.diff(log_prior), np.diff(expected), atol=1e-9)
    assert stats.kstest(((draws - mean) / sd).ravel(), "norm").pvalue > 1e-4


def test_labels_and_columns_name_every_coefficient_but_the_first_level():
    model = MODELS["logistic"]
    assert model.labels["coefficients"] == ("Intercept", "age", "sex[m]", "sex[x]")
    assert (model.dim, model.columns, model.outcome) == (4, ("age", "sex", "y"), ("y",))
    assert MODELS["gaussian"].dim == 5


@pytest.mark.parametrize("family", FAMILIES)
def test_every_level_is_the_reference_coding_with_the_first_level_in_the_intercept(family):
    """(b₀, age, f, m, x) of every level is (b₀ + f, age, m − f, x − f) against f, in z and in parameters."""
    every, rows = glm(family, "y", ["age", "sex"], SCHEMAS[family], coding="every level"), rows_of(family)
    against_f = np.array([[1, 0, 1, 0, 0], [0, 1, 0, 0, 0], [0, 0, -1, 1, 0], [0, 0, -1, 0, 1]], float)
    with jax.enable_x64(True):
        own = jnp.array([0.3, -1.2, 0.7, 0.5, -0.4])
        rest = jnp.asarray(Z[family][4:])  # of the Gaussian family: 1/σ
        z, reference = jnp.append(own, rest), jnp.append(against_f @ own, rest)
        for ours, theirs in (
            (every.log_likelihood, MODELS[family].log_likelihood),
            (every.mean, MODELS[family].mean),
        ):
            np.testing.assert_allclose(
                jax.vmap(lambda row, f=ours: f(z, row))(rows), jax.vmap(lambda row, f=theirs: f(reference, row))(rows)
            )
        np.testing.assert_allclose(
            against_f @ every.constrain(z)["coefficients"], MODELS[family].constrain(reference)["coefficients"]
        )


def test_every_level_has_a_label_and_a_prior_of_its_own():
    model = glm("logistic", "y", ["sex", "age"], SCHEMAS["logistic"], coding="every level")
    assert model.labels["coefficients"] == ("Intercept", "sex[f]", "sex[m]", "sex[x]", "age")
    assert model.dim == 5
    curvature = -np.asarray(jax.hessian(model.log_prior)(jnp.zeros(5)))
    np.testing.assert_allclose(curvature, np.eye(5) / 4)  # sds of 2: identified although the levels add up to 1


def test_adult_has_98_indicators_5_numbers_and_an_intercept():
    covariates = [name for name in ADULT.names if name != "income"]
    assert glm("logistic", "income", covariates, ADULT, coding="every level").dim == 104
    assert glm("logistic", "income", covariates, ADULT).dim == 104 - 8


@pytest.mark.parametrize("family", FAMILIES)
def test_units_scale_the_prior_and_leave_coefficients_in_the_columns_own(family):
    """By hand at age 33.5 and level m with units (35, 10): b₀ − .15 z_age + z_m, in residual sds if Gaussian."""
    model, z = glm(family, "y", ["age", "sex"], SCHEMAS[family], units={"age": (35, 10)}), Z[family]
    rows = rows_of(family)
    with jax.enable_x64(True):
        parameters = jax.tree.map(np.asarray, model.constrain(jnp.asarray(z)))
        mean = float(model.mean(jnp.asarray(z), {name: jnp.asarray(values[1]) for name, values in rows.items()}))
    predictor = z[0] - 0.15 * z[1] + z[2]
    by_family = INVERSE_LINKS | {"gaussian": lambda u: 20 + 30 * u / np.logaddexp(0, z[-1])}
    assert mean == pytest.approx(by_family[family](predictor), rel=1e-12)
    sigma = parameters.get("sigma", 1.0)
    np.testing.assert_allclose(parameters["coefficients"][1:], sigma * z[1:4] / [10, 1, 1], rtol=1e-12)
    in_own_units = parameters["coefficients"] @ [1, 33.5 - 35, 1, 0]
    assert mean == pytest.approx(in_own_units if family == "gaussian" else by_family[family](in_own_units), rel=1e-12)


def test_declared_units_are_the_default():
    given = glm("logistic", "y", ["age", "sex"], SCHEMAS["logistic"], units={"age": (40, 20)})
    rows, z = rows_of("logistic"), jnp.asarray(Z["logistic"])
    ours, default = (jax.vmap(lambda row, m=m: m.log_likelihood(z, row))(rows) for m in (given, MODELS["logistic"]))
    np.testing.assert_array_equal(ours, default)


def test_the_description_names_options_that_are_not_the_default():
    default = {"family": "logistic", "outcome": "y", "covariates": ["age", "sex"]}
    assert MODELS["logistic"].description == default
    for options in ({"coding": "every level"}, {"units": {"age": [35.0, 10.0]}}):
        assert glm("logistic", "y", ["age", "sex"], SCHEMAS["logistic"], **options).description == default | options
    plain = glm("logistic", "y", ["age", "sex"], SCHEMAS["logistic"], coding="reference", units={})
    assert plain.description == default


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coding": "dummy"}, r"coding='dummy' must be one of \['reference', 'every level'\]"),
        ({"units": {"weight": (0, 1)}}, r"units names 'weight', but the numeric covariates are \['age'\]: remove it"),
        ({"units": {"sex": (0, 1)}}, r"units names 'sex', but the numeric covariates are \['age'\]: remove it"),
        ({"units": {"y": (0, 1)}}, "units names 'y'"),
        *(
            ({"units": {"age": pair}}, r"units\['age'\]=.* must be \(centre, scale\): finite numbers, scale above 0")
            for pair in ((40, 0), (40, -1), (40, np.inf), (40, np.nan), (np.inf, 1), (np.nan, 1), (40,), 40, ("a", 1))
        ),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        glm("gaussian", "y", ["age", "sex"], SCHEMAS["gaussian"], **options)


def test_labels_of_two_parameters_are_refused_under_the_coding_that_has_them():
    schema = Schema((Categorical("sex", ("f", "m")), Numeric("sex[f]", 0, 1), Numeric("y", 0, 1)))
    assert glm("gaussian", "y", ["sex", "sex[f]"], schema).dim == 4
    with pytest.raises(ValueError, match=r"\['sex\[f\]'\] would name two parameters each"):
        glm("gaussian", "y", ["sex", "sex[f]"], schema, coding="every level")


@pytest.mark.parametrize(
    ("family", "outcome", "covariates", "message"),
    [
        ("cauchit", "yes", ["age"], "family='cauchit' must be one of"),
        ("logistic", "yes", ["yes"], "outcome='yes' is also a covariate"),
        ("logistic", "yes", ["age", "age"], "has a name twice"),
        ("logistic", "three", ["age"], "two levels"),
        ("logistic", "count", ["age"], "bounds 0 and 1"),
        ("logistic", "share", ["age"], "bounds 0 and 1"),
        ("probit", "three", ["age"], "two levels"),
        ("poisson", "age", ["count"], "integer column"),
        ("poisson", "below", ["age"], "bounds ≥ 0"),
        ("poisson", "yes", ["age"], "integer column"),
        ("gaussian", "yes", ["age"], "numeric column"),
        ("gaussian", "age", ["nowhere"], "no column 'nowhere'"),
    ],
)
def test_what_is_no_regression_is_refused(family, outcome, covariates, message):
    schema = Schema(
        (
            Numeric("age", 20, 60),
            Numeric("share", 0, 1),
            Numeric("count", 0, 9, integer=True),
            Numeric("below", -1, 9, integer=True),
            Categorical("yes", ("no", "yes")),
            Categorical("three", ("a", "b", "c")),
        )
    )
    with pytest.raises((ValueError, SchemaError), match=message):
        glm(family, outcome, covariates, schema)


def test_softplus_has_the_derivatives_of_softplus():
    u = np.linspace(-40, 40, 81)
    with jax.enable_x64(True):
        for order in range(3):
            ours, theirs = softplus, jax.nn.softplus
            for _ in range(order):
                ours, theirs = jax.grad(ours), jax.grad(theirs)
            np.testing.assert_allclose(jax.vmap(ours)(u), jax.vmap(theirs)(u), rtol=1e-12, atol=1e-14)
