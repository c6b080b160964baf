import inspect
import subprocess
import sys
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.distributions import biject_to, constraints
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import potential_energy

from discreet import numpyro_model
from discreet.model import ModelError, from_numpyro
from discreet.schema import Categorical, Numeric, Schema

SCHEMA = Schema(
    (
        Numeric("a", -2, 2),
        Numeric("b", 0, 3),
        Categorical("group", ("n", "s", "w")),
        Categorical("label", ("no", "yes")),
        Numeric("count", 0, 9, integer=True),
        Numeric("y", -4, 4),
    )
)
FEATURES = {"X": ("a", "b")}
QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
jit = partial(jax.jit, compiler_options=QUICK)  # nearly all of a test is compiling


@pytest.fixture(scope="module", autouse=True)
def _quick_checks():
    """The checks compile as quickly as the tests: the library itself uses only options that every XLA has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numpyro_model, "_quick_jit", jit)
        yield


class Case(NamedTuple):
    fn: object
    arguments: dict
    constants: dict
    outcome: tuple


def linear(X, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    bias = numpyro.sample("bias", dist.Cauchy(0.0, 2.0))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("obs", dist.Normal(X @ w + bias, noise), obs=y)


def hierarchical(X, group, label, num_groups):
    centre = numpyro.sample("centre", dist.Normal(0, 1))
    spread = numpyro.sample("spread", dist.HalfCauchy(1))
    with numpyro.plate("groups", num_groups):
        level = numpyro.sample("level", dist.Normal(centre, spread))
        slope = numpyro.sample("slope", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        logits = level[group] + jnp.sum(X * slope[group], axis=-1)
        numpyro.sample("label", dist.Bernoulli(logits=logits), obs=label)


def correlated(Y):
    scales = numpyro.sample("scales", dist.LogNormal(0, 0.5).expand([2]).to_event(1))
    factor = numpyro.sample("factor", dist.LKJCholesky(2, 2.0))
    shift = numpyro.sample("shift", dist.Normal(0, 1).expand([2, 1]).to_event(2))
    with numpyro.plate("rows", Y.shape[0]):
        covariance = scales[:, None] * factor
        numpyro.sample("Y", dist.MultivariateNormal(shift[:, 0], scale_tril=covariance), obs=Y)


def simplex(group, label):
    share = numpyro.sample("share", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    with numpyro.plate("levels", 3):
        rate = numpyro.sample("rate", dist.Uniform(0, 1))
    with numpyro.plate("rows", group.shape[0]):
        g = numpyro.sample("group", dist.Categorical(probs=share), obs=group)
        numpyro.sample("label", dist.Bernoulli(probs=rate[g]), obs=label)


def dynamic_support(y):
    upper = numpyro.sample("upper", dist.LogNormal(0.0, 0.5))
    value = numpyro.sample("value", dist.Uniform(0.0, upper))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("obs", dist.Normal(value, 1.0), obs=y)


def derived(a, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    precision = numpyro.sample("precision", dist.Exponential(2.0))
    noise = numpyro.deterministic("noise", precision**-0.5)
    numpyro.deterministic("centre", jnp.mean(a) * w)
    mu = numpyro.deterministic("mu", w * a)
    with numpyro.plate("rows", len(y)):
        numpyro.deterministic("inside", w)
        numpyro.sample("obs", dist.Normal(mu, noise), obs=y)


def poisson(X, count, prior_scale=1.0):
    w = numpyro.sample("w", dist.Normal(0, prior_scale).expand([2]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("count", dist.Poisson(jnp.exp(X @ w)), obs=count)


def indexed(data, labels=None):
    """In the way of a large classification: the plate hands out indices."""
    num_features = data.shape[-1]
    coefs = numpyro.sample("coefs", dist.Normal(jnp.zeros(num_features), jnp.ones(num_features)).to_event(1))
    with numpyro.plate("N", data.shape[0], subsample_size=data.shape[0]) as idx:
        batch = data[idx]
        batch_labels = labels[idx] if labels is not None else None
        numpyro.sample("obs", dist.Bernoulli(logits=batch @ coefs), obs=batch_labels)


def weighted(a, b, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("rows", a.shape[0]), handlers.scale(scale=0.5), handlers.mask(mask=b > 1.0):
        numpyro.sample("obs", dist.Normal(w * a, 1.0), obs=y)


@handlers.reparam(config={"w": LocScaleReparam(0)})
def uncentred(a, y):
    spread = numpyro.sample("spread", dist.HalfNormal(1))
    w = numpyro.sample("w", dist.Normal(0, spread))
    with numpyro.plate("rows", a.shape[0]):
        numpyro.sample("obs", dist.Normal(w * a, 1.0), obs=y)


CASES = {
    "linear": Case(linear, FEATURES, {}, ("y",)),
    "hierarchical": Case(hierarchical, FEATURES, {"num_groups": 3}, ("label",)),
    "correlated": Case(correlated, {"Y": ["y", "a"]}, {}, ("y", "a")),
    "simplex": Case(simplex, {}, {}, ("group", "label")),
    "dynamic_support": Case(dynamic_support, {}, {}, ("y",)),
    "derived": Case(derived, {}, {}, ("y",)),
    "poisson": Case(poisson, FEATURES, {"prior_scale": 0.5}, ("count",)),
    "indexed": Case(indexed, {"data": ("a", "b"), "labels": "label"}, {}, ("label",)),
    "weighted": Case(weighted, {}, {}, ("y",)),
    "uncentred": Case(uncentred, {}, {}, ("y",)),
}
PARAMETERS = {c.fn: inspect.signature(getattr(c.fn, "fn", c.fn)).parameters for c in CASES.values()}


@pytest.fixture(scope="module")
def models():
    return {name: from_numpyro(c.fn, SCHEMA, c.arguments, **c.constants) for name, c in CASES.items()}


def rows_of(columns, num_rows=5, seed=7):
    table = SCHEMA.sample(np.random.default_rng(seed), num_rows)
    return {name: jnp.asarray(table[name]) for name in columns}


def one_row(columns):
    return {name: values[0] for name, values in rows_of(columns).items()}


def whole_call(case, rows):
    """The arguments of `fn` for a whole table, written down by hand."""
    stacked = {
        name: rows[c] if isinstance(c, str) else jnp.stack([rows[k].astype(float) for k in c], axis=1)
        for name, c in case.arguments.items()
    }
    return {
        **{n: v for n, v in rows.items() if n in PARAMETERS[case.fn]},
        **stacked,
        **case.constants,
    }


def values_of(fn, call):
    return {name: site["value"] for name, site in handlers.trace(fn).get_trace(**call).items()}


def free_parameters(fn, call, z):
    """z cut at NumPyro's own latent sites, in order of appearance."""
    parts, start = {}, 0
    for name, site in handlers.trace(handlers.seed(fn, 0)).get_trace(**call).items():
        if site["type"] == "sample" and not site["is_observed"]:
            shape = jnp.shape(biject_to(site["fn"].support).inv(site["value"]))
            size = int(np.prod(shape))
            parts[name], start = z[start : start + size].reshape(shape), start + size
    assert start == len(z)
    return parts


def oracle(case, rows, z):
    """NumPyro's log joint density of the whole table, on the unconstrained scale."""
    call = whole_call(case, rows)
    fn = case.fn
    return -potential_energy(fn, (), call, free_parameters(fn, call, z))


def total(model, rows, z):
    return model.log_prior(z) + jnp.sum(jax.vmap(model.log_likelihood, (None, 0))(z, rows))


def both(case, model, rows, gradient):
    """Our log joint density and NumPyro's, as one function of z."""
    ours, theirs = partial(total, model, rows), partial(oracle, case, rows)

    def compare(z):
        result = gradient(ours)(z)
        with jax.numpy_rank_promotion("allow"):
            return result, gradient(theirs)(z)

    return jit(compare)


@pytest.mark.parametrize("name", CASES)
def test_prior_plus_rows_is_the_joint_density_and_so_is_the_gradient(name, models, key):
    case, model = CASES[name], models[name]
    z = 0.5 * jax.random.normal(key, (model.dim,))
    ours, theirs = both(case, model, rows_of(model.columns), jax.value_and_grad)(z)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["linear", "correlated"])
def test_double_precision_is_the_callers_choice(name, models, key):
    case, model = CASES[name], models[name]
    with jax.enable_x64(True):
        z = 0.5 * jax.random.normal(key, (model.dim,), jnp.float64)
        ours, theirs = both(case, model, rows_of(model.columns), lambda function: function)(z)
        assert ours.dtype == jnp.float64
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
        single, row = z.astype(jnp.float32), one_row(model.columns)
        assert jax.eval_shape(model.sample_prior, key).dtype == jnp.float64
        assert jax.eval_shape(model.log_prior, single).dtype == jnp.float32
        assert jax.eval_shape(model.log_likelihood, single, row).dtype == jnp.float32


@pytest.mark.parametrize("name", CASES)
def test_every_function_is_pure_under_jit_and_vmap(name, models, key):
    """And simulate needs the covariates alone."""
    model = models[name]
    row = one_row(model.columns)
    covariates = {column: value for column, value in row.items() if column not in CASES[name].outcome}

    def everything(key):
        z = model.sample_prior(key)
        densities = model.log_prior(z), model.log_likelihood(z, row)
        drawn = model.simulate(key, z, covariates)
        return z, densities, model.constrain(z), drawn

    zs, densities, named, drawn = jit(jax.vmap(everything))(jax.random.split(key, 4))
    assert zs.shape == (4, model.dim)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((zs, densities, named)))
    assert model.outcome == CASES[name].outcome
    assert set(drawn) == set(model.outcome)
    for column, values in drawn.items():
        assert values.shape == (4,)
        assert values.dtype == (jnp.int32 if isinstance(SCHEMA[column], Categorical) else jnp.float32)


def test_nothing_changes_outside_jit(models, key):
    model = models["derived"]
    z, row = jax.random.normal(key, (model.dim,)), one_row(model.columns)

    def everything(z):
        return model.log_prior(z), model.log_likelihood(z, row), model.constrain(z)

    for ours, jitted in zip(jax.tree.leaves(everything(z)), jax.tree.leaves(jit(everything)(z)), strict=True):
        np.testing.assert_allclose(ours, jitted, rtol=1e-5)


def test_z_is_the_latents_in_order_and_constrain_inverts_sample_prior(models, key):
    case, model = CASES["correlated"], models["correlated"]
    call = whole_call(case, rows_of(model.columns))

    def ours_and_theirs(key):
        named = model.constrain(model.sample_prior(key))
        with jax.numpy_rank_promotion("allow"):
            return named, values_of(handlers.seed(case.fn, key), call)

    named, sites = jit(ours_and_theirs)(key)
    assert model.dim == 2 + 1 + 2
    assert {name: value.shape for name, value in named.items()} == {
        "scales": (2,),
        "factor": (2, 2),
        "shift": (2, 1),
    }
    np.testing.assert_allclose(jnp.sum(named["factor"] ** 2, axis=1), 1, rtol=1e-5)
    for name, value in named.items():
        np.testing.assert_allclose(value, sites[name], rtol=1e-4, atol=1e-5)


def test_sample_prior_follows_log_prior(models):
    """Mean and spread of 20 000 draws of (value / upper): uniform; false alarm about 1e-6 (5 sd)."""
    model = models["dynamic_support"]
    keys = jax.random.split(jax.random.key(1), 20_000)
    named = jit(jax.vmap(lambda key: model.constrain(model.sample_prior(key))))(keys)
    share = named["value"] / named["upper"]
    assert abs(share.mean() - 0.5) < 5 * np.sqrt(1 / 12 / 20_000)
    assert abs(jnp.log(named["upper"]).mean()) < 5 * 0.5 / np.sqrt(20_000)


def test_prior_draws_at_the_edge_of_the_support_stay_finite(key):
    def edgy(y):
        logistic = dist.TransformedDistribution(dist.Normal(0, 100), dist.transforms.SigmoidTransform())
        p = numpyro.sample("p", logistic)
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("obs", dist.Normal(p, 1.0), obs=y)

    model = from_numpyro(edgy, SCHEMA)

    def draw(key):
        z = model.sample_prior(key)
        return z, model.log_prior(z), model.constrain(z)["p"]

    zs, densities, shares = jit(jax.vmap(draw))(jax.random.split(key, 200))
    assert np.isfinite(zs).all()
    assert np.isfinite(densities).all()
    assert shares.min() < 1e-6
    assert shares.max() > 1 - 1e-6


def test_deterministic_sites_about_rows_are_dropped(models):
    named = jit(models["derived"].constrain)(jnp.array([0.3, jnp.log(4.0)]))
    assert set(named) == {"w", "precision", "noise", "inside"}
    np.testing.assert_allclose(named["noise"], 0.5, rtol=1e-6)
    shapes = jax.eval_shape(models["uncentred"].constrain, jnp.zeros(2))
    assert set(shapes) == {"spread", "w_decentered", "w"}


def test_mean_is_the_expected_outcome(models, key):
    row = {"a": 0.5, "b": 2.0}

    @jit
    def means(z):
        shift = models["correlated"].constrain(jnp.arange(5.0))["shift"]
        ours = [models["indexed"].mean(z, row), models["poisson"].mean(z, row)]
        return ours, models["correlated"].mean(jnp.arange(5.0), {}), shift

    z = jax.random.normal(key, (2,))
    logits = row["a"] * z[0] + row["b"] * z[1]
    (indexed, poisson), correlated, shift = means(z)
    np.testing.assert_allclose(indexed, jax.nn.sigmoid(logits), rtol=1e-5)
    np.testing.assert_allclose(poisson, jnp.exp(logits), rtol=1e-5)
    np.testing.assert_allclose(correlated, shift[:, 0])
    assert models["simplex"].mean is None


def test_simulate_agrees_with_mean(models):
    """Average of 20 000 simulated counts within 5 sd of the mean."""
    z, row = jnp.array([0.4, 0.2]), {"a": 1.0, "b": 2.0}
    model = models["poisson"]

    @jit
    def draw(keys):
        counts = jax.vmap(lambda key: model.simulate(key, z, row)["count"])(keys)
        return counts, model.simulate(keys[0], z, row | {"count": 9.0}), model.mean(z, row | {"count": 9.0})

    counts, first, mean = draw(jax.random.split(jax.random.key(4), 20_000))
    assert first["count"] == counts[0]
    assert abs(counts.mean() - mean) < 5 * jnp.sqrt(mean / 20_000)
    np.testing.assert_array_equal(counts, jnp.round(counts))


def test_a_site_may_depend_on_the_column_of_another(key):
    def chain(b, a, y):
        w = numpyro.sample("w", dist.Normal(3, 0.1))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("second", dist.Normal(w * a, 0.001), obs=b)
            numpyro.sample("first", dist.Normal(0, 1.0), obs=a)
            numpyro.sample("third", dist.Normal(w * b, 0.001), obs=y)

    model = from_numpyro(chain, SCHEMA)
    drawn = jit(lambda key: model.simulate(key, jnp.array([3.0]), {}))(key)
    np.testing.assert_allclose(drawn["b"], 3 * drawn["a"], atol=0.01)
    np.testing.assert_allclose(drawn["y"], 3 * drawn["b"], atol=0.01)


@pytest.mark.parametrize("double", [False, True])
def test_whole_columns_arrive_as_integers(double):
    """As from a table of integers: to index, to count trials. Not if their squares could overflow."""
    seen = {}

    def look(group, count, income, y, codes, mixed):
        seen.update(group=group, count=count, income=income, y=y, codes=codes, mixed=mixed)

    schema = Schema((*SCHEMA.columns, Numeric("income", 0, 1e6, integer=True)))
    with jax.enable_x64(double), pytest.raises(ModelError, match="no plate over rows"):
        from_numpyro(look, schema, {"codes": ("group", "count"), "mixed": ("group", "a")})
    width = 64 if double else 32
    assert {name: str(value.dtype) for name, value in seen.items()} == {
        **dict.fromkeys(("group", "count", "codes"), f"int{width}"),
        **dict.fromkeys(("income", "y", "mixed"), f"float{width}"),
    }


def test_a_transformed_outcome_cannot_be_simulated():
    def logged(b):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("rows", b.shape[0]):
            numpyro.sample("obs", dist.Normal(mu, 1.0), obs=jnp.log(b))

    def truncated(b):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("rows", b.shape[0]):
            numpyro.sample("obs", dist.Poisson(jnp.exp(mu)), obs=b.astype(int))

    def factored(b):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("rows", b.shape[0]):
            numpyro.factor("obs", -((b - mu) ** 2))

    def circular(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("obs", dist.Normal(mu * y, 1.0), obs=y)

    def circular_and_binary(label):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("rows", label.shape[0]):
            numpyro.sample("obs", dist.Bernoulli(logits=mu * label), obs=label)

    for fn in (logged, truncated, factored, circular, circular_and_binary):
        model = from_numpyro(fn, SCHEMA)
        assert (model.simulate, model.mean, model.outcome) == (None, None, ()), fn


def test_a_distribution_without_mean_has_none():
    def heavy(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("obs", dist.Cauchy(mu, 1.0), obs=y)

    model = from_numpyro(heavy, SCHEMA)
    assert model.outcome == ("y",)
    assert model.mean is None


def test_description_names_the_function(models):
    assert models["linear"].description == {"numpyro": "linear"}
    assert models["uncentred"].description == {"numpyro": "uncentred"}
    assert models["hierarchical"].columns == ("group", "label", "a", "b")


def test_numpyro_is_imported_only_when_used():
    code = "import sys, discreet.model; sys.exit('numpyro' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def gaussian(mean, y, noise=1.0):
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("obs", dist.Normal(mean, noise), obs=y)


def weight(prior=None, name="w"):
    return numpyro.sample(name, dist.Normal(0, 1) if prior is None else prior)


def local_latent(y):
    w = weight()
    with numpyro.plate("rows", y.shape[0]):
        hidden = numpyro.sample("hidden", dist.Normal(w, 1.0))
        numpyro.sample("obs", dist.Normal(hidden, 1.0), obs=y)


def growing_latent(y):
    hidden = numpyro.sample("hidden", dist.Normal(0, 1).expand([y.shape[0]]).to_event(1))
    gaussian(hidden, y)


def discrete_latent(y):
    switch = numpyro.sample("switch", dist.Bernoulli(0.5))
    gaussian(weight() * switch, y)


def forgotten_outcome(a, z=None):
    w = weight()
    with numpyro.plate("rows", a.shape[0]):
        numpyro.sample("obs", dist.Bernoulli(logits=w * a), obs=z)


def no_plate(y):
    numpyro.sample("obs", dist.Normal(weight(), 1.0), obs=y)


def only_constant_plate(a, y):
    with numpyro.plate("three", 3):
        w = weight()
    numpyro.sample("obs", dist.Normal(w[0] * a, 1.0), obs=y)


def two_plates(a, y):
    w = weight()
    with numpyro.plate("first", y.shape[0]):
        numpyro.sample("a", dist.Normal(w, 1.0), obs=a)
    with numpyro.plate("second", y.shape[0]):
        numpyro.sample("y", dist.Normal(w, 1.0), obs=y)


def lagged(y):
    w = weight()
    with numpyro.plate("pairs", max(y.shape[0] - 1, 1)):
        numpyro.sample("obs", dist.Normal(w * y[:-1], 1.0), obs=y[1:])


def outside(y):
    w = weight()
    numpyro.sample("total", dist.Normal(w, 1.0), obs=jnp.sum(y))
    gaussian(w, y)


def factor_outside(y):
    w = weight()
    numpyro.factor("penalty", -(w**2))
    gaussian(w, y)


def with_param(y):
    gaussian(weight() + numpyro.param("shift", jnp.zeros(())), y)


def improper(y):
    gaussian(weight(dist.ImproperUniform(constraints.real, (), ())), y)


def improper_in_plate(y):
    with numpyro.plate("two", 2):
        w = weight(dist.ImproperUniform(constraints.positive, (), ()))
    gaussian(w[0], y)


def point_mass(y):
    gaussian(weight(dist.Delta(0.5)), y)


def scaled_prior(y):
    with handlers.scale(scale=0.1):
        w = weight()
    gaussian(w, y)


def enumerated(y):
    with numpyro.plate("rows", y.shape[0]), handlers.mask(mask=y > 0):
        side = numpyro.sample("side", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        numpyro.sample("obs", dist.Normal(side, 1.0), obs=y)


def masked_prior(y):
    with handlers.mask(mask=False):
        w = weight()
    gaussian(w, y)


def prior_from_rows(a, y):
    gaussian(weight(dist.Normal(0, 1 + jnp.std(a))) * a, y)


def support_from_rows(a, y):
    gaussian(weight(dist.Uniform(-1.0, 1.0 + jnp.max(jnp.abs(a)))), y)


def prior_from_count(y):
    gaussian(weight(dist.Normal(0, 1 / jnp.sqrt(y.shape[0]))), y)


def standardised(a, y):
    gaussian(weight() * (a - jnp.mean(a)), y)


def neighbour(a, y):
    gaussian(weight() * jnp.roll(a, 1), y)


def by_position(y, offsets):
    w = weight()
    with numpyro.plate("rows", y.shape[0]) as index:
        numpyro.sample("obs", dist.Normal(w + offsets[index], 1.0), obs=y)


def averaged(y):
    w = weight()
    with handlers.scale(scale=1 / y.shape[0]):
        gaussian(w, y)


def outer(y):
    gaussian(weight(), y[:, None])


def subsampled(y):
    w = weight()
    with numpyro.plate("rows", y.shape[0], subsample_size=1) as index:
        numpyro.sample("obs", dist.Normal(w, 1.0), obs=y[index])


def sized_by_values(group, y):
    level = numpyro.sample("level", dist.Normal(0, 1).expand([int(group.max()) + 1]).to_event(1))
    gaussian(level[group], y)


def scanned(y):
    def step(state, _):
        state = numpyro.sample("state", dist.Normal(state, 1.0))
        return state, state

    _, path = scan(step, 0.0, jnp.arange(4))
    gaussian(path[-1], y)


def impossible(y):
    w = weight()
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("obs", dist.Uniform(10.0 + jnp.exp(w), 100.0), obs=y)


def nothing_latent(y):
    gaussian(0.0, y)


def nothing_observed(y):
    weight()
    with numpyro.plate("rows", y.shape[0]):
        numpyro.deterministic("obs", y)


REFUSALS = [
    (local_latent, "'hidden' is latent and there is one of it per row; integrate"),
    (growing_latent, "'hidden' is latent and there is one of it per row; integrate"),
    (discrete_latent, "'switch' is a discrete latent; sum it out"),
    (enumerated, "'side' is a discrete latent; sum it out"),
    (forgotten_outcome, "'obs' is a discrete latent; .* map its argument to a column"),
    (no_plate, r"no plate over rows among \[\]; observe under numpyro.plate"),
    (only_constant_plate, r"no plate over rows among \['three'\]; observe under numpyro.plate"),
    (two_plates, r"several plates over rows, \['first', 'second'\]; observe every column under one"),
    (lagged, "'pairs' is a plate of 2 for 3 rows; give it one place per row"),
    (outside, "'total' is observed outside the plate 'rows'; move it inside"),
    (factor_outside, "'penalty' is observed outside the plate 'rows'; move it inside, or into a prior"),
    (with_param, "'shift' is a numpyro.param, which has no prior; give it one"),
    (improper, "'w' has an improper prior, so it cannot be drawn; give it a proper one"),
    (improper_in_plate, "'w' has an improper prior"),
    (point_mass, "'w' is a point mass; use numpyro.deterministic"),
    (scaled_prior, "'w' is latent under scale or mask"),
    (masked_prior, "'w' is latent under scale or mask"),
    (prior_from_rows, "'w' has a prior that depends on the rows; write it with public constants"),
    (support_from_rows, "'w' has a prior that depends on the rows"),
    (prior_from_count, "'w' has a prior that depends on the rows"),
    (standardised, "'obs' gives a row another density beside other rows than alone; use nothing that mixes"),
    (neighbour, "'obs' gives a row another density beside other rows"),
    (partial(by_position, offsets=jnp.arange(100.0)), "'obs' gives a row another density beside other rows"),
    (averaged, "'obs' gives a row another density beside other rows"),
    (outer, "'obs' gives a row another density beside other rows .* one log density per row"),
    (subsampled, "'rows' is a plate with subsample_size; .* discreet does the sampling"),
    (sized_by_values, r"looks at the values of its columns .*, 'level = .*int\(group.max.* pass sizes as const"),
    (scanned, "'state' is sampled inside scan or cond; write the sequence as one vector site"),
    (impossible, "'obs' has no finite density on rows within the schema's bounds"),
    (nothing_latent, "the model has no latent site; sample a parameter"),
    (nothing_observed, "the model has no observed site; pass obs= a column"),
]


@pytest.mark.parametrize(("fn", "message"), REFUSALS, ids=lambda x: getattr(x, "__name__", ""))
def test_refusal_names_the_site_and_the_remedy(fn, message):
    with pytest.raises(ModelError, match=message):
        from_numpyro(fn, SCHEMA)


@pytest.mark.parametrize(
    ("arguments", "constants", "message"),
    [
        (
            {},
            {},
            r"parameter 'X' has no value; map it .* arguments=\{'X': ...\} or pass it as a constant, X=...",
        ),
        ({"X": ("a", "height")}, {}, r"arguments\['X'\]=\('a', 'height'\) must name columns of the schema"),
        ({"X": "height"}, {}, r"arguments\['X'\]='height' must name columns"),
        ({"X": ()}, {}, r"arguments\['X'\]=\(\) must name columns"),
        ({"X": ("a", "b"), "Z": "a"}, {}, r"'Z' is not a parameter of the model; it has \['X', 'y'\]"),
        ({"X": ("a", "b")}, {"scale": 1.0}, "'scale' is not a parameter of the model"),
        ({"X": ("a", "b")}, {"X": 1.0}, "'X' is given as column and as constant; give it once"),
        ({}, {"X": 1.0, "y": 1.0}, "no parameter of the model is a column; map one of"),
    ],
)
def test_arguments_are_checked_at_the_door(arguments, constants, message):
    with pytest.raises(ValueError, match=message):
        from_numpyro(linear, SCHEMA, arguments, **constants)
