"""The network: its densities against numpy and scipy, its prior against its own draws, and what is no network."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import special, stats

from discreet.families.described import described
from discreet.families.network import MOST_WEIGHTS, Priors, layers, network
from discreet.mechanism import loop, products
from discreet.mechanism.clipping import bounded_sum
from discreet.mechanism.rows import store
from discreet.methods import elbo
from discreet.model import Linear
from discreet.plan import Plan
from discreet.schema import Categorical, Numeric, Schema, SchemaError
from tests.guarantees.mechanisms import Recipe, simple_settings

SCHEMA = Schema((Numeric("age", 20, 60), Categorical("sex", ("f", "m", "x")), Numeric("y", -10, 30)))
COVARIATES = ("age", "sex")
HIDDEN, INPUTS = 3, 4
PRIORS = {
    "usual": Priors(),
    "laplace": Priors(hidden=dist.Laplace(0.1, 0.7), outer=dist.StudentT(5.0, 0.0, 2.0)),
    "shared": Priors(shared=dist.Gamma(3.0, 2.0), precision=dist.LogNormal(0.5, 0.4)),
}
SCIPY = {
    "usual": (stats.norm(), stats.norm(), stats.gamma(6, scale=1 / 6), None),
    "laplace": (stats.laplace(0.1, 0.7), stats.t(5, 0, 2), stats.gamma(6, scale=1 / 6), None),
    "shared": (stats.norm(), stats.norm(), stats.lognorm(0.4, scale=np.exp(0.5)), stats.gamma(3, scale=1 / 2)),
}
MODELS = {name: network("y", COVARIATES, SCHEMA, HIDDEN, priors) for name, priors in PRIORS.items()}
FROZEN = network("y", COVARIATES, SCHEMA, HIDDEN, frozen=4)
every_prior = pytest.mark.parametrize("name", PRIORS)
every_model = pytest.mark.parametrize("model", [*MODELS.values(), FROZEN], ids=[*MODELS, "frozen"])


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def rows_of(count, seed=1):
    return SCHEMA.sample(np.random.default_rng(seed), count)


def features_of(rows, centre=40.0, scale=20.0):
    """What a hidden unit gets, by hand."""
    parts = [np.ones(len(rows["age"])), (rows["age"] - centre) / scale, rows["sex"] == 1, rows["sex"] == 2]
    return np.stack(parts, 1) / np.sqrt(INPUTS)


def output_of(hidden, outer, rows):
    above = np.maximum(features_of(rows) @ np.asarray(hidden).T, 0)
    return np.column_stack([above, np.ones(len(above))]) @ np.asarray(outer) / np.sqrt(HIDDEN + 1)


def over(function, *columns):
    """The function of every row, in one program."""
    return np.asarray(jax.jit(jax.vmap(function))(*columns))


def points(dim, count=4, seed=2):
    return np.random.default_rng(seed).normal(size=(count, dim))


# Densities.


@every_prior
def test_the_likelihood_is_that_of_the_formula(name):
    """A normal density about the network's output, up to the constant −½ log 2π, in units of half the range."""
    model, rows = MODELS[name], rows_of(20)
    for z in points(model.dim):
        told = model.constrain(jnp.asarray(z))
        ours = jax.vmap(lambda row, z=z: model.log_likelihood(jnp.asarray(z), row))(rows)
        sd = float(told["sigma"]) / 20
        expected = stats.norm.logpdf((rows["y"] - 10) / 20, output_of(told["hidden"], told["outer"], rows), sd)
        np.testing.assert_allclose(ours, expected + 0.5 * np.log(2 * np.pi), rtol=1e-10)


@every_prior
def test_the_prior_is_that_of_the_parameters_times_the_jacobian(name):
    """Of the map that people see, z → (weights, precision of the noise, λ), differentiated as a whole."""
    model, (hidden, outer, noise, shared) = MODELS[name], SCIPY[name]

    def seen(z):
        told = model.constrain(z)
        precision = (20 / told["sigma"]) ** 2
        parts = [told["hidden"].ravel(), told["outer"], precision[None]]
        return jnp.concatenate(parts if shared is None else [*parts, told["precision"][None]])

    cut, last = HIDDEN * INPUTS, HIDDEN * INPUTS + HIDDEN + 1
    for z in map(jnp.asarray, points(model.dim)):
        told = np.asarray(seen(z))
        scale = 1.0 if shared is None else np.sqrt(told[-1])
        expected = (hidden.logpdf(told[:cut] * scale) + np.log(scale)).sum()
        expected += (outer.logpdf(told[cut:last] * scale) + np.log(scale)).sum() + noise.logpdf(told[last])
        expected += 0.0 if shared is None else shared.logpdf(told[-1])
        expected += np.linalg.slogdet(np.asarray(jax.jacfwd(seen)(z)))[1]
        assert float(model.log_prior(z)) == pytest.approx(expected, rel=1e-10)


def test_the_prior_of_a_frozen_network_is_that_of_the_parameters_times_the_jacobian():
    for z in map(jnp.asarray, points(FROZEN.dim)):
        tau = np.logaddexp(0, float(z[-1]))
        expected = stats.norm.logpdf(np.asarray(z[:-1]) / tau).sum() - (HIDDEN + 1) * np.log(tau)
        expected += stats.gamma.logpdf(tau**2, 6, scale=1 / 6) + np.log(2 * tau * special.expit(float(z[-1])))
        assert float(FROZEN.log_prior(z)) == pytest.approx(expected, rel=1e-10)


@every_prior
def test_draws_from_the_prior_have_the_priors_law(name):
    """Kolmogorov-Smirnov for each kind of parameter, one entry a draw. False alarms: 4·10⁻⁵ a prior."""
    model, laws = MODELS[name], SCIPY[name]
    draws = jax.jit(jax.vmap(lambda key: model.constrain(model.sample_prior(key))))(
        jax.random.split(jax.random.key(3), 4000)
    )
    told = {part: np.asarray(values) for part, values in draws.items()}
    scale = 1.0 if laws[3] is None else np.sqrt(told["precision"])
    found = (told["hidden"][:, 1, 2] * scale, told["outer"][:, 0] * scale, (20 / told["sigma"]) ** 2)
    for values, law in zip((*found, told.get("precision")), laws, strict=True):
        if law is not None:
            assert stats.kstest(values, law.cdf).pvalue > 1e-5


@pytest.mark.parametrize("name", ["usual", "shared"])
def test_weights_are_independent_with_unit_variances_given_their_precision(name):
    """Means, variances and products of all pairs of 16 weights over 4000 draws, z below 5.5: false alarm 10⁻⁵ each."""
    model = MODELS[name]
    told = jax.jit(jax.vmap(lambda key: model.constrain(model.sample_prior(key))))(
        jax.random.split(jax.random.key(5), 4000)
    )
    weights = np.column_stack([np.asarray(told["hidden"]).reshape(4000, -1), told["outer"]])
    if name == "shared":
        weights = weights * np.sqrt(np.asarray(told["precision"]))[:, None]
    assert np.abs(weights.mean(0)).max() < 5.5 / np.sqrt(4000)
    away = weights.T @ weights / 4000 - np.eye(16)
    assert (np.abs(away) < 5.5 * np.sqrt((1 + np.eye(16)) / 4000)).all()


# What it makes, and in whose units.


@every_model
def test_the_mean_is_in_the_outcomes_own_units(model):
    rows, z = rows_of(9), jnp.asarray(points(model.dim)[0])
    told = model.constrain(z)
    hidden = told.get("hidden")
    if hidden is None:
        hidden = np.asarray(dist.Normal(0.0, 1.0).sample(jax.random.key(4), (HIDDEN, INPUTS)))
    found = over(lambda row: model.mean(z, row), rows)
    np.testing.assert_allclose(found, 10 + 20 * output_of(hidden, told["outer"], rows), rtol=1e-10)


@every_model
def test_outcomes_are_made_about_the_mean_with_the_noises_sd(model):
    """Standardised outcomes are normal by Kolmogorov-Smirnov, where bounds cut nothing off. False alarm 10⁻⁵."""
    wide = Schema((*SCHEMA.columns[:2], Numeric("y", -1e4, 1e4)))
    frozen = model.description.get("frozen")
    name = next((name for name, one in MODELS.items() if one is model), "usual")
    model = network("y", COVARIATES, wide, HIDDEN, PRIORS[name], frozen=frozen, units={"y": (3, 2)})
    z, rows = jnp.asarray(points(model.dim)[1]), rows_of(3000)
    keys = jax.random.split(jax.random.key(6), 3000)
    made = jax.vmap(lambda key, row: model.simulate(key, z, row))(keys, rows)["y"]
    mean = over(lambda row: model.mean(z, row), rows)
    assert np.abs(made).max() < 1e4
    scaled = np.asarray(made - mean) / float(model.constrain(z)["sigma"])
    assert stats.kstest(scaled, "norm").pvalue > 1e-5


def test_what_is_made_lies_within_bounds_and_is_whole_where_the_column_is():
    schema = Schema((Numeric("age", 20, 60), Numeric("y", 0, 3, integer=True)))
    model = network("y", ["age"], schema, 2)
    rows = {"age": np.linspace(20, 60, 500)}
    z = jnp.asarray(points(model.dim)[2]).at[-1].set(-1.0)
    made = np.asarray(
        jax.vmap(lambda key, row: model.simulate(key, z, row))(jax.random.split(jax.random.key(7), 500), rows)["y"]
    )
    assert set(made) == {0, 1, 2, 3}


def test_units_replace_mid_bounds_and_half_the_range():
    """By hand, for a covariate and for the outcome."""
    units = {"age": (35, 10), "y": (2, 5)}
    model, rows = network("y", COVARIATES, SCHEMA, HIDDEN, units=units), rows_of(9)
    z = jnp.asarray(points(model.dim)[0])
    told = model.constrain(z)
    above = np.maximum(features_of(rows, 35, 10) @ np.asarray(told["hidden"]).T, 0)
    output = np.column_stack([above, np.ones(9)]) @ np.asarray(told["outer"]) / 2
    np.testing.assert_allclose(over(lambda row: model.mean(z, row), rows), 2 + 5 * output, rtol=1e-10)
    expected = stats.norm.logpdf((rows["y"] - 2) / 5, output, float(told["sigma"]) / 5) + 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(over(lambda row: model.log_likelihood(z, row), rows), expected, rtol=1e-10)


def test_the_same_units_as_declared_are_the_default():
    given = network("y", COVARIATES, SCHEMA, HIDDEN, units={"age": (40, 20), "y": (10, 20)})
    z, rows = jnp.asarray(points(given.dim)[0]), rows_of(9)
    ours, default = (jax.vmap(lambda row, m=m: m.log_likelihood(z, row))(rows) for m in (given, MODELS["usual"]))
    np.testing.assert_array_equal(ours, default)


def test_every_level_has_an_input_of_its_own():
    made = layers("y", COVARIATES, SCHEMA, HIDDEN, coding="every level")
    assert made.labels == ("Intercept", "age", "sex[f]", "sex[m]", "sex[x]")
    assert (made.inputs, made.weights) == (5, 3 * 5 + 4)
    row = {"age": jnp.array(50.0), "sex": jnp.array(0)}
    np.testing.assert_allclose(made.features(row), np.array([1, 0.5, 1, 0, 0]) / np.sqrt(5))
    assert layers("y", COVARIATES, SCHEMA, HIDDEN).labels == ("Intercept", "age", "sex[m]", "sex[x]")


def test_the_weights_are_the_hidden_ones_unit_by_unit_and_then_the_outer_ones():
    made = layers("y", COVARIATES, SCHEMA, HIDDEN)
    hidden, outer = made.split(np.arange(made.weights))
    np.testing.assert_array_equal(hidden, np.arange(12).reshape(3, 4))
    np.testing.assert_array_equal(outer, [12, 13, 14, 15])


def test_random_weights_are_as_large_as_what_a_layer_gets_allows():
    """Sds of 1/√4 and 1/√2001, by the 8000 and 2001 weights of a wide layer; z below 5, false alarm 10⁻⁶."""
    made = layers("y", COVARIATES, SCHEMA, 2000)
    weights = made.random_weights(1)
    for part, sd in zip((weights[:8000], weights[8000:]), (0.5, 2001**-0.5), strict=True):
        assert abs((part.std() / sd - 1) * np.sqrt(2 * len(part))) < 5
    np.testing.assert_array_equal(weights, made.random_weights(1))
    assert not np.isclose(weights, made.random_weights(2)).any()


# Linear, frozen and described.


@every_model
def test_gradients_by_linear_predictors_are_those_of_the_plain_function(model):
    likelihood = model.log_likelihood
    assert isinstance(likelihood, Linear)
    row = {name: jnp.asarray(values[0]) for name, values in rows_of(1).items()}
    x = likelihood.features(row)
    width = likelihood.predictors * len(x)
    for z in map(jnp.asarray, points(model.dim)):
        u = z[:width].reshape(-1, len(x)) @ x
        by_u, by_rest = jax.grad(lambda u, rest: likelihood.at(u, rest, row), (0, 1))(u, z[width:])
        chained = jnp.concatenate([jnp.outer(by_u, x).ravel(), by_rest])
        np.testing.assert_allclose(chained, jax.grad(likelihood)(z, row), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("hidden", "recipe", "frozen"),
    [(1, Recipe(), None), (3, Recipe("aligned", draws=2), None), (3, Recipe(), 4)],
    ids=["one unit", "aligned", "frozen"],
)
def test_its_answers_are_summed_by_products(hidden, recipe, frozen):
    """Nobody is clipped, or many are. The sum row by row rounds each of 30 rows to whole units, and the clip of the
    products is a little less. A row without an outcome adds nothing.
    """
    model = network("y", COVARIATES, SCHEMA, hidden, frozen=frozen)
    columns = rows_of(30, seed=5)
    plan = Plan(30, 5, 0.5, 2.0, 1.0, 25)
    query = elbo.query(model, plan, simple_settings(model, recipe))
    assert loop._by_layout(plan, query, store(SCHEMA, columns)).products is query.products is not None
    columns["y"][3] = np.nan

    @jax.jit
    def sums(columns, share):
        question = query.ask(query.chance(jax.random.key(4)), query.init(jax.random.key(5)))
        values = jax.vmap(lambda row: query.row_value(question, row))(columns)
        clip = share * jnp.nanmedian(jnp.linalg.norm(values, axis=1))
        features = products.with_features(query.products, columns)
        fast = products.linear_sum(query.products, question, features, jnp.ones(30), clip)
        return fast, bounded_sum(query.row_value, question, columns, jnp.ones(30), clip)

    for share in (0.8, 1000.0):
        fast, slow = sums(columns, share)
        assert np.abs(fast - slow).max() < 30 * np.sqrt(len(slow))
        assert np.abs(slow).max() > 300 * np.sqrt(len(slow))


def test_a_frozen_network_has_outer_weights_and_the_noise_alone():
    assert FROZEN.dim == HIDDEN + 2
    assert FROZEN.log_likelihood.predictors == 1
    assert set(FROZEN.constrain(jnp.zeros(FROZEN.dim))) == {"outer", "sigma"}
    row = {name: jnp.asarray(values[0]) for name, values in rows_of(1).items()}
    z = jnp.asarray(points(FROZEN.dim)[0])
    bend = jax.hessian(lambda outer: FROZEN.log_likelihood(jnp.append(outer, z[-1]), row))
    np.testing.assert_allclose(bend(z[:-1]), bend(3 * z[:-1]), atol=1e-12)  # quadratic: the output is linear


def test_a_frozen_layer_is_its_seeds():
    row = {name: jnp.asarray(values[0]) for name, values in rows_of(1).items()}
    first, again, other = (
        network("y", COVARIATES, SCHEMA, HIDDEN, frozen=seed).log_likelihood.features(row) for seed in (4, 4, 5)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"coding": "every level", "units": {"age": (35.0, 10.0), "y": (2.0, 5.0)}},
        {"priors": PRIORS["laplace"]},
        {"priors": PRIORS["shared"]},
        {"frozen": 4},
    ],
    ids=["usual", "options", "laplace", "shared", "frozen"],
)
def test_a_network_is_made_again_from_what_it_says_of_itself(options):
    model = network("y", COVARIATES, SCHEMA, HIDDEN, **options)
    again = described(json.loads(json.dumps(model.description)), SCHEMA)
    assert again.description == model.description
    assert (again.dim, again.columns, again.outcome) == (model.dim, ("age", "sex", "y"), ("y",))
    z, rows = jnp.asarray(points(model.dim)[0]), rows_of(5)
    np.testing.assert_array_equal(again.log_prior(z), model.log_prior(z))
    ours, theirs = (jax.vmap(lambda row, m=m: m.log_likelihood(z, row))(rows) for m in (model, again))
    np.testing.assert_array_equal(ours, theirs)


def test_a_description_that_was_changed_is_refused():
    facts = dict(MODELS["usual"].description)
    with pytest.raises(ValueError, match="it was changed"):
        described({**facts, "depth": 3}, SCHEMA)
    with pytest.raises(ValueError, match="it was changed"):
        described({**facts, "priors": {"hidden": ["Normale", {}]}}, SCHEMA)


# What is no network.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": 0}, "hidden=0 must be a whole number of units, at least 1"),
        ({"hidden": 2.0}, "hidden=2.0 must be a whole number"),
        ({"hidden": True}, "hidden=True must be a whole number"),
        ({"hidden": 20_000}, f"more than {MOST_WEIGHTS}"),
        ({"outcome": "sex", "covariates": ["age"]}, "outcome='sex' must be a numeric column"),
        ({"outcome": "age"}, "outcome='age' is also a covariate"),
        ({"outcome": "nowhere"}, "no column 'nowhere'"),
        ({"covariates": ["nowhere"]}, "no column 'nowhere'"),
        ({"covariates": []}, "at least one, and none twice"),
        ({"covariates": ["age", "age"]}, "at least one, and none twice"),
        ({"coding": "dummy"}, "coding='dummy' must be one of"),
        ({"units": {"sex": (0, 1)}}, "units names 'sex'"),
        ({"units": {"weight": (0, 1)}}, "units names 'weight'"),
        *(({"units": {name: (1, 0)}}, rf"units\['{name}'\]=\(1, 0\) must be") for name in ("age", "y")),
        ({"units": {"y": (np.nan, 1)}}, r"units\['y'\]=.* finite numbers, scale above 0"),
        ({"priors": Priors(hidden=dist.Gamma(2.0, 2.0))}, "priors.hidden=Gamma must have the real numbers"),
        ({"priors": Priors(outer=dist.HalfNormal(1.0))}, "priors.outer=HalfNormal must have the real numbers"),
        ({"priors": Priors(precision=dist.Normal(0.0, 1.0))}, "priors.precision=Normal must have the positive"),
        ({"priors": Priors(shared=dist.Uniform(1.0, 2.0))}, "priors.shared=Uniform must have the positive"),
        ({"priors": Priors(hidden=dist.Normal(np.zeros(2), 1.0))}, "priors.hidden=.* of one number"),
        ({"priors": Priors(precision=dist.Poisson(1.0))}, "priors.precision=.* continuous"),
        ({"priors": Priors(hidden=1.0)}, "priors.hidden=1.0 must be a continuous NumPyro distribution"),
        ({"priors": PRIORS["shared"], "frozen": 1}, "leave priors.shared out"),
    ],
)
def test_what_is_no_network_is_refused(changes, message):
    given = {"outcome": "y", "covariates": ["age", "sex"], "schema": SCHEMA, "hidden": HIDDEN} | changes
    with pytest.raises((ValueError, SchemaError), match=message):
        network(**given)


def test_labels_of_two_inputs_are_refused():
    schema = Schema((Categorical("sex", ("f", "m")), Numeric("sex[m]", 0, 1), Numeric("y", 0, 1)))
    with pytest.raises(ValueError, match=r"\['sex\[m\]'\] would name two parameters each"):
        network("y", ["sex", "sex[m]"], schema)


def test_the_outer_weights_are_those_of_the_products_rest():
    """A likelihood that is asked at z, and one by predictors and the rest alone, agree; else products were of another
    model.
    """
    model, row = MODELS["shared"], {name: jnp.asarray(values[0]) for name, values in rows_of(1).items()}
    plain = replace(model, log_likelihood=lambda z, row: model.log_likelihood(z, row))
    plan = Plan(30, 5, 0.5, 2.0, 1.0, 25)
    values = []
    for one in (model, plain):
        query = elbo.query(one, plan, simple_settings(one))
        question = query.ask(query.chance(jax.random.key(4)), query.init(jax.random.key(5)))
        values.append(np.asarray(query.row_value(question, row)))
    np.testing.assert_allclose(*values, rtol=1e-8, atol=1e-12)
