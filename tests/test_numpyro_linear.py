from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers

from discreet import numpyro_model
from discreet.methods import sites
from discreet.model import Linear, ModelError, from_numpyro
from discreet.numpyro_linear import NotLinearError, obstacle, of_product
from discreet.schema import Categorical, Numeric, Schema

SCHEMA = Schema(
    (
        Numeric("a", -2, 2),
        Numeric("b", 0, 3),
        Numeric("c", -1, 1),
        Categorical("group", ("n", "s", "w")),
        Categorical("label", ("no", "yes")),
        Numeric("count", 0, 9, integer=True),
        Numeric("y", -4, 4),
    )
)
FEATURES = {"X": ("a", "b", "c")}
WHOLE = {"X": ("group", "label", "count")}
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@pytest.fixture(scope="module", autouse=True)
def _quick_checks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numpyro_model, "_quick_jit", jit)
        yield


# The structural test by itself

W = np.array([0.3, -0.7, 1.1])
CONTRACTIONS = {
    "X @ w": lambda X, w: X @ w,
    "w @ X.T": lambda X, w: w @ X.T,
    "jnp.dot": jnp.dot,
    "jnp.inner": jnp.inner,
    "jnp.vecdot": jnp.vecdot,
    "einsum": lambda X, w: jnp.einsum("nk,k->n", X, w),
    "einsum, w first": lambda X, w: jnp.einsum("k,nk->n", w, X),
    "sum of products": lambda X, w: (X * w).sum(-1),
    "mean of products": lambda X, w: jnp.mean(w * X, axis=1),
    "as a column": lambda X, w: (X @ w[:, None])[:, 0],
    "reshaped": lambda X, w: jnp.squeeze(X @ w.reshape(-1, 1), -1),
    "row by row": lambda X, w: jax.vmap(lambda x: jnp.dot(x, w))(X),
    "within jit": lambda X, w: jax.jit(lambda X, w: jax.jit(jnp.dot)(X, w) + 1)(X, w),
    "picked by index": lambda X, w: X[jnp.arange(X.shape[0])] @ w,
    "whole slices": lambda X, w: X[:, :3] @ w[0:],
    "twice": lambda X, w: X @ w + jnp.exp((X * w).sum(-1)),
    "wider floats": lambda X, w: X.astype(jnp.float64) @ w.astype(jnp.float64),
    "a use that nobody sees": lambda X, w: (jnp.exp(w), X**2, X @ w)[2],
}
OTHER_USES = {
    "w twice": (lambda X, w: X @ w - (w**2).sum(), "integer_pow"),
    "w in the scale": (lambda X, w: X @ w / jnp.exp(w[0]), "slice"),
    "X in the scale": (lambda X, w: X @ w / X[:, 0], "slice"),
    "X transformed": (lambda X, w: X**2 @ w, "integer_pow"),
    "w transformed": (lambda X, w: X @ jnp.exp(w), "exp"),
    "w scaled": (lambda X, w: X @ (2 * w), "mul"),
    "X shifted": (lambda X, w: (X - 1.0) @ w, "sub"),
    "conditional": (lambda X, w: jnp.where(X[:, 0] > 0, X @ w, 0.0), "slice"),
    "masked w": (lambda X, w: X @ jnp.where(jnp.arange(3) > 0, w, 0.0), "select_n"),
    "part of them": (lambda X, w: X[:, :2] @ w[:2], "slice"),
    "reversed": (lambda X, w: X @ w[::-1], "rev"),
    "permuted": (lambda X, w: X @ w[jnp.array([2, 0, 1])], "gather"),
    "sorted": (lambda X, w: X @ jnp.sort(w), "sort"),
    "rounded": (lambda X, w: X.astype(int) @ w, "convert_element_type"),
    "narrowed": (lambda X, w: X.astype(jnp.bfloat16) @ w, "convert_element_type"),
    "no gradient": (lambda X, w: X @ jax.lax.stop_gradient(w), "stop_gradient"),
    "outer product": (lambda X, w: (X[0][:, None] * w[None]).sum(1)[:1], "mul"),
    "pairwise": (lambda X, w: jnp.tensordot(X, w, 0).sum((0, 1, 2))[None], "dot_general"),
    "no sum": (lambda X, w: (X * w).max(-1), "reduce_max"),
    "as an index": (lambda X, w: w[jnp.clip(X[:, 0].astype(int), 0, 2)], "slice"),
    "X alone": (lambda X, w: X.sum(-1), "reduce_sum"),
    "neither": (lambda X, w: jnp.ones(1), "no use"),
    "a custom derivative": (lambda X, w: X @ jax.nn.relu(w), "custom_jvp_call"),
    "a loop": (lambda X, w: jax.lax.fori_loop(0, 2, lambda _, u: u + X @ w, jnp.zeros(1)), "scan"),
    "a branch": (lambda X, w: jax.lax.cond(w[0] > 0, lambda: X @ w, lambda: -(X @ w)), "slice"),
    "a print": (lambda X, w: (jax.debug.print("{}", w), X @ w)[1], "side effect"),
}


def density(form, w, X):
    """A row's term, with operations on what is known around the predictor."""
    with jax.numpy_rank_promotion("allow"):
        u = form(X, w)[0]
    steps, _ = jax.lax.scan(lambda total, x: (total + x, None), 0.0, jnp.arange(3.0))
    return steps * jax.nn.softplus(u) + jax.nn.relu(steps) - 0.1 * u**2


@pytest.mark.parametrize("name", CONTRACTIONS)
@pytest.mark.parametrize("X", [np.array([[0.5, -1.5, 2.0]]), np.array([[1, 0, 4]])], ids=["floats", "integers"])
def test_a_contraction_is_seen_and_what_follows_is_a_function_of_the_predictor(name, X):
    with jax.enable_x64(True):
        term = partial(density, CONTRACTIONS[name])
        assert obstacle(term, W, X) is None
        value, slope = jax.value_and_grad(partial(of_product, term, W, X))(X[0] @ W)
        expected, gradient = jax.value_and_grad(term)(W, jnp.asarray(X))
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(np.asarray(slope) * X[0], gradient, rtol=1e-12)


@pytest.mark.parametrize("name", OTHER_USES)
def test_any_other_use_is_seen_and_named(name):
    form, operation = OTHER_USES[name]
    X = np.array([[0.5, -1.5, 2.0]])
    assert operation in obstacle(partial(density, form), W, X)
    if operation != "no use":
        with pytest.raises(NotLinearError, match=operation):
            of_product(partial(density, form), W, X, 1.0)


def test_values_are_not_looked_at():
    """w = 0 and X = 0 hide a second use from numbers, not from the structure."""
    zeros = np.zeros((1, 3))
    assert obstacle(lambda w, X: (X @ w)[0] + (w**2).sum(), zeros[0], zeros) is not None
    assert obstacle(lambda w, X: (X @ w)[0], zeros[0], zeros) is None


def test_one_column_is_a_predictor_too():
    w, X = np.array([0.4]), np.array([[2.0]])
    for form in (lambda X, w: X @ w, lambda X, w: (X * w)[:, 0], lambda X, w: X[:, 0] * w[0]):
        assert obstacle(partial(density, form), w, X) is None
    assert obstacle(partial(density, lambda X, w: X[:, 0] * w[0] + w[0]), w, X) is not None


# Models


def rows(y, mean, noise=1.0):
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("obs", dist.Normal(mean, noise), obs=y)


def in_event(X, y):
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    w = numpyro.sample("w", dist.Normal(jnp.zeros(3), 1).to_event(1))
    rows(y, X @ w, noise)


def in_plate(X, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("features", X.shape[1]):
        w = numpyro.sample("w", dist.StudentT(4.0, 0.0, 1.0))
    rows(y, jnp.dot(X, w) + b)


def hierarchical(X, label):
    """Between two other latents, its prior of another's making, with a predictor that is recorded."""
    centre = numpyro.sample("centre", dist.Normal(0, 1).expand([2]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfCauchy(1))
    w = numpyro.sample("w", dist.Normal(centre[0], spread).expand([X.shape[1]]).to_event(1))
    bias = numpyro.sample("bias", dist.Cauchy(0, 1))
    logits = numpyro.deterministic("logits", (X * w).sum(-1) + bias)
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("label", dist.Bernoulli(logits=logits), obs=label)


def two_pairs(X, V, y):
    """The longer counts; a column of it is also elsewhere in the row."""
    v = numpyro.sample("v", dist.Normal(0, 1).expand([2]).to_event(1))
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    rows(y, X @ w, jnp.exp(V @ v))


def column_matrix(X, count):
    w = numpyro.sample("w", dist.Normal(jnp.zeros((3, 1)), 1).to_event(2))
    with numpyro.plate("rows", X.shape[0]) as index, handlers.scale(scale=0.5):
        rate = jnp.exp(0.1 * (X[index] @ w)[..., 0])
        numpyro.sample("obs", dist.Poisson(rate), obs=count)


MODELS = {
    "in an event": (in_event, FEATURES, 1),
    "in a plate": (in_plate, FEATURES, 1),
    "hierarchical": (hierarchical, FEATURES, 3),
    "two pairs": (two_pairs, FEATURES | {"V": ("a", "group")}, 2),
    "whole columns": (in_event, WHOLE, 1),
    "a matrix of one column": (column_matrix, FEATURES, 0),
}
"""A function, its arguments, and how many entries of z stand before w in order of appearance."""


@pytest.fixture(scope="module")
def models():
    return {
        name: (
            from_numpyro(fn, SCHEMA, arguments),
            from_numpyro(fn, SCHEMA, arguments, linear_predictor=False),
        )
        for name, (fn, arguments, _) in MODELS.items()
    }


def appearance(name, z):
    """z in order of appearance: w moves behind what stands before it in the function."""
    before = MODELS[name][2]
    return jnp.concatenate([z[3 : 3 + before], z[:3], z[3 + before :]])


@pytest.mark.parametrize("name", MODELS)
def test_the_predictor_gives_the_value_and_gradient_of_the_model_without_it(name, models, key):
    linear, plain = models[name]
    assert isinstance(linear.log_likelihood, Linear)
    assert not isinstance(plain.log_likelihood, Linear)
    table = SCHEMA.sample(np.random.default_rng(7), 5)

    @jit
    def compare(z, rows):
        def each(model, reorder):
            return jax.vmap(lambda row: jax.value_and_grad(lambda z: model.log_likelihood(reorder(z), row))(z))(rows)

        return each(linear, lambda z: z), each(plain, partial(appearance, name))

    with jax.enable_x64(True):
        z = 0.5 * jax.random.normal(key, (linear.dim,), jnp.float64)
        ours, theirs = compare(z, {column: jnp.asarray(table[column]) for column in linear.columns})
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-6, atol=1e-9)
    assert np.abs(ours[1]).max() > 0


@pytest.mark.parametrize("name", ["hierarchical", "two pairs"])
def test_all_that_is_about_z_follows_its_order(name, models, key):
    linear, plain = models[name]
    row = {column: values[0] for column, values in SCHEMA.sample(np.random.default_rng(7), 1).items()}

    @jit
    def everything(key):
        z = linear.sample_prior(key)
        first = linear.log_prior(z), linear.constrain(z), linear.mean(z, row), linear.simulate(key, z, row)
        z = appearance(name, z)
        second = plain.log_prior(z), plain.constrain(z), plain.mean(z, row), plain.simulate(key, z, row)
        return first, second, (z, plain.sample_prior(key))

    first, second, drawn = everything(key)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), first, second)
    np.testing.assert_allclose(*drawn, rtol=1e-6)


def test_features_are_the_arguments_columns_as_floats(models):
    row = {"group": 2, "label": 1, "count": 7, "y": 0.5, "a": 1.0, "b": 2.0, "c": 0.5}
    whole = models["whole columns"][0].log_likelihood.features(row)
    assert whole.tolist() == [2, 1, 7]
    assert jnp.issubdtype(whole.dtype, jnp.floating)
    assert models["two pairs"][0].log_likelihood.features(row).tolist() == [1, 2, 0.5]


def test_the_predictor_stands_for_the_arguments_columns(models):
    """A row that has lost them can be asked, unless another argument has them."""
    of_predictor = models["in an event"][0].log_likelihood.of_predictor
    expected = dist.Normal(0.3, np.exp(0.2)).log_prob(1.0)
    np.testing.assert_allclose(of_predictor(jnp.array(0.3), jnp.array([0.2]), {"y": 1.0}), expected, rtol=1e-6)


def test_compiled_as_it_is(models, key):
    model = models["in an event"][0]
    row = {"a": 1.0, "b": 2.0, "c": 0.5, "y": 0.5}
    z = model.sample_prior(key)
    np.testing.assert_allclose(jit(model.log_likelihood)(z, row), model.log_likelihood(z, row), rtol=1e-5)


def penalised(X, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("obs", dist.Normal(X @ w, 1.0), obs=y)
        numpyro.factor("penalty", -0.1 * (w**2).sum() * jnp.ones(y.shape[0]))


def scaled_by_a_feature(X, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    rows(y, X @ w, jnp.exp(X[:, 0]))


def squared(X, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    rows(y, X**2 @ w)


def positive(X, y):
    w = numpyro.sample("w", dist.HalfNormal(1).expand([3]).to_event(1))
    rows(y, X @ w)


def bounded(X, y):
    w = numpyro.sample("w", dist.Uniform(-1, 1).expand([3]).to_event(1))
    rows(y, X @ w)


def several_outputs(X, y):
    W = numpyro.sample("w", dist.Normal(0, 1).expand([3, 2]).to_event(2))
    rows(y, (X @ W).sum(-1))


def by_level(X, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    rows(y, w[X[:, 0].astype(int) % 3])


def conditional(X, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    rows(y, jnp.where(X[:, 0] > 0, X @ w, 0.0))


def not_centred(X, y):
    spread = numpyro.sample("spread", dist.HalfNormal(1).expand([3]).to_event(1))
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    rows(y, X @ (spread * w))


NOT_LINEAR = [
    (penalised, FEATURES, "'integer_pow'"),
    (scaled_by_a_feature, FEATURES, "'slice'"),
    (squared, FEATURES, "'integer_pow'"),
    (positive, FEATURES, "'exp'"),
    (bounded, FEATURES, "'.*' on one of them"),
    (by_level, WHOLE, "'slice'"),
    (conditional, FEATURES, "'slice'"),
    (not_centred, FEATURES, "'mul'"),
]


@pytest.mark.parametrize(("fn", "arguments", "operation"), NOT_LINEAR, ids=lambda x: getattr(x, "__name__", ""))
def test_what_is_declared_and_not_so_is_refused_and_otherwise_not_claimed(fn, arguments, operation):
    message = (
        rf"\('w', 'X'\): rows must see 'w' and 'X' .* {operation}.*; use X @ w and .* or leave linear_predictor out"
    )
    with pytest.raises(ModelError, match=message):
        from_numpyro(fn, SCHEMA, arguments, linear_predictor=("w", "X"))
    assert not isinstance(from_numpyro(fn, SCHEMA, arguments).log_likelihood, Linear)


def test_a_matrix_of_weights_is_no_vector():
    assert not isinstance(from_numpyro(several_outputs, SCHEMA, FEATURES).log_likelihood, Linear)
    with pytest.raises(ModelError, match=r"\('w', 'X'\) must name a latent vector .* the model has no such pair"):
        from_numpyro(several_outputs, SCHEMA, FEATURES, linear_predictor=("w", "X"))


def test_the_declared_pair_is_taken(models):
    shorter = from_numpyro(two_pairs, SCHEMA, MODELS["two pairs"][1], linear_predictor=["v", "V"])
    row = {"a": 1.0, "b": 2.0, "c": 0.5, "group": 2, "y": 0.5}
    assert shorter.log_likelihood.features(row).tolist() == [1, 2]
    named = shorter.constrain(jnp.arange(5.0))
    assert named["v"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (("bias", "X"), r"\('bias', 'X'\) must name a latent vector .* the model has \[\('w', 'X'\)\]"),
        (("w", "y"), r"\('w', 'y'\) must name .* mapped with arguments=\{'y': \[...\]\}"),
        ("w", "linear_predictor='w' must be True, False or a pair .* a constant of the model needs another name"),
        (3.0, "linear_predictor=3.0 must be True, False or a pair"),
        (None, "linear_predictor=None must be True, False or a pair"),
    ],
)
def test_a_choice_that_is_none_is_refused(chosen, message):
    with pytest.raises(ModelError, match=message):
        from_numpyro(in_event, SCHEMA, FEATURES, linear_predictor=chosen)


def test_a_parameter_of_this_name_is_told_apart():
    def required(X, y, linear_predictor):
        in_event(X, y)

    def optional(X, y, linear_predictor=False):
        assert linear_predictor is False
        in_event(X, y)

    for fn, chosen in ((required, True), (required, False), (optional, False)):
        with pytest.raises(
            ModelError, match=rf"linear_predictor={chosen} belongs to from_numpyro .*; rename the model's"
        ):
            from_numpyro(fn, SCHEMA, FEATURES, linear_predictor=chosen)
    assert isinstance(from_numpyro(optional, SCHEMA, FEATURES).log_likelihood, Linear)


# Expectation propagation takes such models where its own conditions hold


def gaussian_prior(X, label, prior=None):
    w = numpyro.sample("w", (prior or dist.Normal(0.5, 2.0)).expand([3]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("label", dist.Bernoulli(logits=X @ w), obs=label)


def compiled(model):
    """The same, for functions that ask it step by step."""
    return replace(model, log_prior=jax.jit(model.log_prior), sample_prior=jax.jit(model.sample_prior))


def test_sites_of_a_model_with_a_gaussian_prior_and_of_no_other(models):
    site = sites.linear(compiled(from_numpyro(gaussian_prior, SCHEMA, FEATURES)))
    sites.check(site, SCHEMA)
    mean, covariance = (part[0] for part in sites.cavity(site.shape, site.prior)[1:])
    np.testing.assert_allclose(mean, 0.5 * np.ones(3), rtol=1e-5)
    np.testing.assert_allclose(covariance, 4 * np.eye(3), rtol=1e-5, atol=1e-6)
    heavy = from_numpyro(gaussian_prior, SCHEMA, FEATURES, prior=dist.StudentT(4.0, 0.0, 1.0))
    with pytest.raises(sites.SiteError, match="not Gaussian in z"):
        sites.linear(compiled(heavy))
    with pytest.raises(sites.SiteError, match="1 of 4 parameters are not coefficients"):
        sites.linear(models["in an event"][0])
