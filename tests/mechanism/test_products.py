"""Sums by matrix products are the sums row by row, and keep the same promise."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from discreet.mechanism import loop, noise, products
from discreet.mechanism.clipping import GRID, bounded_sum
from discreet.mechanism.rows import store
from discreet.methods import elbo
from discreet.methods.gaussian import Family
from discreet.plan import Plan
from tests.guarantees.mechanisms import MODELS, RECIPES, SCHEMAS, Recipe, make, simple_settings, title

CASES = [("logistic", recipe) for recipe in RECIPES] + [
    (name, Recipe(variant, family, draws=draws))
    for name in ("gaussian", "poisson")
    for variant, family, draws in (
        ("vanilla", Family(), 5),
        ("aligned", Family(), 3),
        ("vanilla", Family("full-rank"), 4),
        ("aligned", Family("full-rank"), 2),
    )
]
CASES += [
    ("network", recipe) for recipe in RECIPES if recipe.family.name == "mean-field" or "aligned" in recipe.variant
]
CASES += [("network", Recipe(draws=draws)) for draws in (3, 14)]
CASES += [("mixture", recipe) for recipe in RECIPES if "aligned" in recipe.variant]
CASES += [("mixture", Recipe("aligned", draws=draws)) for draws in (3, 14)]
CASES += [
    ("mixture", recipe)
    for recipe in RECIPES
    if "aligned" not in recipe.variant and (recipe.family.name, recipe.draws) == ("mean-field", 1)
]
every_linear = pytest.mark.parametrize(("name", "recipe"), CASES, ids=[title(*case) for case in CASES])


def asked(name, recipe, num_rows=50, columns=None):
    """A query, its columns and one question."""
    _, query, rows = make(name, recipe, num_rows=num_rows)
    with jax.enable_x64(True):
        columns = jax.tree.map(jnp.asarray, rows._columns if columns is None else columns)
        return query, columns, jax.jit(lambda key: query.ask(query.chance(key), query.init(key)))(jax.random.key(4))


def typical_norm(query, columns, question):
    values = jax.vmap(lambda row: query.row_value(question, row))(columns)
    return jnp.nanmedian(jnp.linalg.norm(values, axis=1))


def both_ways(name, recipe, shares, multiplicity, columns=None):
    """The sum by matrix products and the one row by row, in grid units; clipped to each share of a typical norm."""
    query, columns, question = asked(name, recipe, columns=columns)

    @jax.jit
    def sums(columns, question, weights, share):
        clip = share * typical_norm(query, columns, question)
        features = products.with_features(query.products, columns)
        fast = products.linear_sum(query.products, question, features, weights, clip)
        return fast, bounded_sum(query.row_value, question, columns, weights, clip)

    with jax.enable_x64(True):
        return [
            tuple(map(np.asarray, sums(columns, question, np.asarray(multiplicity, float), np.float64(share))))
            for share in shares
        ]


@every_linear
def test_sums_are_those_of_the_rows_one_by_one(name, recipe):
    """Rows by themselves are rounded one by one (by .29 units, as an sd, each coordinate), clipped to a little more."""
    multiplicity = np.random.default_rng(2).integers(0, 3, 50)
    (fast, slow), clipped = both_ways(name, recipe, (1000.0, 0.8), multiplicity)  # nobody is clipped, and many are
    np.testing.assert_allclose(fast, slow, atol=0.5 * multiplicity.sum() + 1)
    np.testing.assert_array_equal(fast, np.round(fast))
    assert np.abs(slow).max() > 10 * multiplicity.sum()
    fast, slow = clipped
    np.testing.assert_allclose(fast, slow, atol=multiplicity.sum() * np.sqrt(len(slow)))
    one_by_one = 0.5 * np.sqrt((multiplicity > 0).sum() * len(slow))
    assert np.linalg.norm(fast - slow) < 1e-5 * np.linalg.norm(slow) + one_by_one
    assert np.linalg.norm(slow) > GRID


@every_linear
def test_one_row_moves_the_sum_by_at_most_the_clip_norm(name, recipe):
    query, columns, question = asked(name, recipe, num_rows=20)

    @jax.jit
    def sums(columns, question):
        clip = 0.8 * typical_norm(query, columns, question)
        features = products.with_features(query.products, columns)
        weights = jnp.concatenate([jnp.ones((1, 20)), 1 - jnp.eye(20)])
        return jax.vmap(lambda weight: products.linear_sum(query.products, question, features, weight, clip))(weights)

    with jax.enable_x64(True):
        totals = np.asarray(sums(columns, question))
    moved = np.linalg.norm(totals[1:] - totals[:1], axis=1)
    assert 0.99 * GRID < moved.max() <= GRID


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e200])
@pytest.mark.parametrize("column", ["age", "y"])
def test_a_wild_row_moves_no_other(bad, column):
    """Rows that have no finite answer add nothing, in features as in outcomes; others add what they did."""
    _, _, rows = make("gaussian", num_rows=50)
    wild = {name: np.array(values) for name, values in rows._columns.items()}
    wild[column][7] = bad
    here, gone = np.ones(50), np.arange(50) != 7
    ((fast, slow),) = both_ways("gaussian", Recipe(), (0.8,), here, wild)
    ((without, _),) = both_ways("gaussian", Recipe(), (0.8,), gone, wild)
    assert np.linalg.norm(fast - without) <= GRID
    if not np.isfinite(bad):
        np.testing.assert_array_equal(fast, without)
    assert np.abs(slow - fast).max() < 50 * np.sqrt(len(fast))


def spread_of(rng, kind, draws, dim, scale=1.0):
    size = 2 * dim + (dim * (dim - 1) // 2 if kind == "full-rank" else 0)
    arms = (draws + 1) // 2
    return products.Spread(
        rng.normal(size=dim),
        scale * rng.normal(size=(arms, dim)),
        scale * rng.normal(size=(arms, dim)),
        rng.uniform(0.5, 2, dim),
        rng.uniform(0.5, 2, size),
    )


def test_terms_that_cancel_are_kept_short_enough_for_the_proof():
    """Arms whose slopes cancel: terms are shortened before floating point could hide more than the slack, and a length
    that is all rounding counts as what it may be.
    """
    rng = np.random.default_rng(5)
    count, dim = 40, 3
    spread = spread_of(rng, "mean-field", 4, dim)._replace(eta=np.full((2, dim), 1e9))
    x, slopes = rng.normal(size=(count, dim)), np.tile([0.0, 1.0, -1.0 + 1e-13], (count, 1))
    with jax.enable_x64(True):
        given = map(jnp.asarray, (x**2, slopes.T[:, None], np.zeros((3, 0, count))))
        length, term = map(np.asarray, products._lengths("mean-field", spread, *given))
    scale = spread.factor[dim : 2 * dim] * spread.slope
    exact = np.abs(slopes[:, 1:].sum(1)) * 1e9 * np.linalg.norm(x * scale, axis=1)
    each = (np.abs(slopes[:, 1:]).sum(1)[:, None] * 1e9 * np.abs(x * scale)).max(1)
    assert (term >= each).all()
    assert (length >= exact).all()
    assert (length < 1e-5 * each).all()


@pytest.mark.parametrize("draws", [1, 2, 3, 4, 14])
@pytest.mark.parametrize(
    ("kind", "predictors"),
    [("aligned", 1), ("mean-field", 1), ("full-rank", 1), ("aligned", 3), ("mean-field", 3)],
)
def test_lengths_and_the_map_are_those_of_the_answers_themselves(kind, predictors, draws):
    """Row by row in NumPy, with parameters beside the linear predictors."""
    rng, (count, features, rest) = np.random.default_rng(6), (9, 3, 2)
    dim = predictors * features + rest
    x, slopes = rng.normal(size=(count, features)), rng.normal(size=(count, draws, predictors))
    others = rng.normal(size=(count, draws, rest))
    spread = spread_of(rng, kind, draws, dim)
    eta = np.concatenate([spread.eta, -spread.eta])[:draws]

    def by_row(slopes, others):
        outer = np.einsum("ikh,ij->ikhj", slopes, x)
        return np.concatenate([outer.reshape(count, -1, predictors * features), others], axis=2)

    with jax.enable_x64(True):
        rows_last = (jnp.asarray(np.moveaxis(part, 0, -1)) for part in (slopes, others))
        joined = [products._join(kind, part, len(spread.eta)) for part in rows_last]
        length, term = products._lengths(kind, spread, jnp.asarray(x**2), *joined)
        rows_first = (np.moveaxis(part, -1, 0) for part in joined)
        answers = [np.asarray(products._answer(kind, spread, jnp.asarray(one))) for one in by_row(*rows_first)]
    answers, by_draw = np.stack(answers), by_row(slopes, others)
    lower = [(j, k) for j in range(dim) for k in range(j)]
    for answer, one in zip(answers, by_draw, strict=True):
        if kind == "aligned":
            expected = np.concatenate([spread.factor[:dim] * part for part in one])
        else:
            parts = [one.sum(0), spread.slope * (eta * one).sum(0)]
            below = [sum(one[i, j] * eta[i, k] for i in range(draws)) for j, k in lower]
            expected = spread.factor * np.concatenate([*parts, below] if kind == "full-rank" else parts)
        np.testing.assert_allclose(answer, expected, rtol=1e-10)
    np.testing.assert_allclose(length, np.linalg.norm(answers, axis=1))
    assert (np.asarray(term) >= np.abs(answers).max(1) * (1 - 1e-12)).all()


@pytest.mark.parametrize(("kind", "draws"), [("aligned", 1), ("aligned", 2), ("aligned", 4), ("mean-field", 1)])
def test_lengths_about_means_are_those_of_the_answers_themselves(kind, draws):
    """Row by row in NumPy; features that are the means up to 10⁻⁹ are no shorter than that, and terms are longer."""
    rng, (count, features, predictors, rest) = np.random.default_rng(7), (9, 3, 2, 2)
    dim = predictors * features + rest
    means = rng.normal(size=(draws, dim))
    x = np.concatenate([rng.normal(size=(count - 1, features)), means[:1, :features] + 1e-9])
    slopes, others = rng.normal(size=(draws, predictors, count)), rng.normal(size=(draws, rest, count))
    others[..., -1], slopes[:, 1, -1], slopes[1:, 0, -1] = 0, 0, 0
    spread = spread_of(rng, kind, draws, dim)._replace(means=means)
    about = x[None, None] - means[:, : predictors * features].reshape(draws, predictors, 1, features)
    answers = np.moveaxis(slopes[..., None] * about, 2, 0).reshape(count, draws, -1)
    answers = np.concatenate([answers, np.moveaxis(others, 2, 0)], 2)
    if kind == "mean-field":
        answers = np.concatenate([answers, spread.slope * spread.eta[0] * answers], 2) * spread.factor
    else:
        answers = answers * spread.factor[:dim]
    with jax.enable_x64(True):
        given = map(jnp.asarray, (x, slopes, others))
        length, term = map(np.asarray, products._lengths_about_means(kind, jax.tree.map(jnp.asarray, spread), *given))
    exact = np.linalg.norm(answers.reshape(count, -1), axis=1)
    np.testing.assert_allclose(length[:-1], exact[:-1])
    assert exact[-1] <= length[-1] < 1e-6 * term[-1]
    assert (term >= np.abs(answers).reshape(count, -1).max(1)).all()


def test_only_the_columns_that_slopes_look_at_are_kept():
    _, query, rows = make("logistic")
    with jax.enable_x64(True):
        kept = products.with_features(query.products, jax.tree.map(jnp.asarray, rows._columns))
    assert set(kept) == {products.FEATURES, products.FINITE, "y"}
    assert kept[products.FEATURES].shape == (40, 1 + 1 + 2)


@pytest.mark.parametrize(
    ("changes", "fused"),
    [({}, True), ({"noise_kind": "laplace", "batch_limit": None}, False), ({"batch_limit": None}, True)],
)
def test_the_way_is_chosen_by_public_values(changes, fused):
    plan, query, rows = make("logistic")
    assert (loop._by_layout(replace(plan, **changes), query, rows).products is not None) == fused


def test_several_predictors_of_a_full_rank_family_are_summed_row_by_row():
    assert make("network", Recipe(family=Family("full-rank")))[1].products is None
    assert make("network", Recipe("aligned", Family("full-rank")))[1].products is not None


@pytest.mark.parametrize("variant", ["vanilla", "natural"])
def test_several_answers_about_scales_are_summed_row_by_row_where_predictors_have_a_log_partition(variant):
    assert make("mixture", Recipe(variant, draws=2))[1].products is None
    assert make("mixture", Recipe(variant, draws=1))[1].products is not None
    assert make("mixture", Recipe("aligned", draws=2))[1].products is not None


def test_products_are_of_one_row_function():
    """A query whose rows answer otherwise is summed row by row, whoever forgot to take the products away."""
    plan, query, rows = make("logistic")
    silent = query._replace(row_value=lambda question, row: 0 * query.row_value(question, row))
    assert loop._by_layout(plan, silent, rows).products is None
    without = loop.run(noise.simulated(1), plan, silent, rows, keep="trace").trace.y
    assert np.abs(without - loop.run(noise.simulated(1), plan, query, rows, keep="trace").trace.y).max() > 0.1


def test_features_are_made_in_the_step_where_they_would_not_fit(monkeypatch):
    plan, query, rows = make("logistic")
    once = loop.run(noise.simulated(1), plan, query, rows)
    monkeypatch.setattr(loop, "MOST_FEATURES", 10)
    np.testing.assert_array_equal(loop.run(noise.simulated(1), plan, query, rows).last, once.last)


def test_a_fit_is_the_same_both_ways():
    """The same noise and batches; iterates differ by the rounding of sums."""
    model, schema = MODELS["poisson"], SCHEMAS["poisson"]
    rows = store(schema, schema.sample(np.random.default_rng(3), 200))
    plan = Plan(200, 50, 0.2, 2.0, 1.0, 90)
    query = elbo.query(model, plan, simple_settings(model))
    fast, slow = (
        loop.run(noise.simulated(1), plan, asked, rows, keep="trace")
        for asked in (query, query._replace(products=None))
    )
    np.testing.assert_allclose(fast.trace.y, slow.trace.y, rtol=1e-5, atol=90 * 4 * 2 / GRID)
    np.testing.assert_allclose(fast.last, slow.last, rtol=1e-5, atol=1e-6)
