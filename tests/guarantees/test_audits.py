"""The audits of the mechanism, none sufficient alone, and the seeded faults that each must catch.

A guard that has never failed proves nothing: every audit is a function that is also run on a faulty mechanism.
False-alarm rates are stated beside each statistical threshold; seeds are fixed, so a passing test stays passing.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from discreet import accounting
from discreet.mechanism import clipping, loop, noise, sampling
from discreet.mechanism.rows import Rows, store
from discreet.methods import elbo
from discreet.methods.gaussian import Family
from discreet.plan import NORM_ORDERS, Plan, default_batch_limit, phases
from discreet.query import Point, Query
from discreet.schema import Numeric, Schema
from tests.guarantees.mechanisms import MODELS, PRECONDITIONED, Recipe, every, make, of_elbo, simple_settings

UNITS = clipping.GRID


# 1. Coupled sensitivity, noise off.


def sensitivity(total, query, plan, columns, multiplicity, key):
    """Largest change of the total when one row is zeroed out, in units and in the norm of the plan's clip norm."""

    @jax.jit
    def totals(chance, columns, weights):
        question = query.ask(chance, query.init(key))
        return jax.lax.map(lambda weight: total(query, question, columns, weight, plan), weights)

    with jax.enable_x64(True):
        without = multiplicity[None] - np.eye(len(multiplicity))
        weights = np.concatenate([multiplicity[None], without])
        with_all, *others = np.asarray(totals(query.chance(key), columns, weights))
    return float(np.linalg.norm(others - with_all, plan.norm_order, axis=1).max() / UNITS)


def honest_total(query, question, columns, multiplicity, plan):
    clip_norm = jnp.float64(plan.clip_norm)
    return clipping.bounded_sum(query.row_value, question, columns, multiplicity, clip_norm, plan.norm_order)


def replaced(query, plan, columns, key):
    """How far the answer of one row alone moves at most when another of `columns` stands there, in clip norms."""
    with jax.enable_x64(True):
        question = query.ask(query.chance(key), query.init(key))
        every = {name: jnp.asarray(column)[:, None] for name, column in columns.items()}
        alone = jax.jit(lambda row: honest_total(query, question, row, np.ones(1), plan))
        answers = np.asarray(jax.lax.map(alone, every))
    gaps = np.linalg.norm(answers[:, None] - answers[None], axis=-1) / UNITS
    return gaps.max()


def row_values(query, question, columns):
    return jax.vmap(lambda row: query.row_value(question, row))(columns)


def euclidean(query, question, columns, multiplicity, plan):
    """The norm of Gaussian noise, whatever the noise."""
    return clipping.bounded_sum(query.row_value, question, columns, multiplicity, jnp.float64(plan.clip_norm), 2)


def unclipped(query, question, columns, multiplicity, plan):
    return multiplicity @ jnp.nan_to_num(row_values(query, question, columns)) * UNITS / plan.clip_norm


def clip_after_sum(query, question, columns, multiplicity, plan):
    total = multiplicity @ jnp.nan_to_num(row_values(query, question, columns))
    factor = jnp.minimum(1.0, 5 * plan.clip_norm / jnp.linalg.norm(total))
    return total * factor * UNITS / plan.clip_norm


def unclipped_prior(query, question, columns, multiplicity, plan):
    """Each row carries its share of the prior outside its own clip."""
    clipped = clipping.clip_to_grid(row_values(query, question, columns), plan.clip_norm, plan.norm_order)
    return multiplicity @ (clipped + 3 * UNITS)


def divided_by_batch(query, question, columns, multiplicity, plan):
    total = honest_total(query, question, columns, multiplicity, plan)
    return total / jnp.maximum(multiplicity.sum(), 1) * len(multiplicity)


def counted_padding(query, question, columns, multiplicity, plan):
    values = clipping.clip_to_grid(row_values(query, question, columns), plan.clip_norm, plan.norm_order)
    return (multiplicity > -1).astype(float) @ values * multiplicity.sum()


def wild_columns(columns, rng):
    """The columns with NaN, ±inf, 10³⁰ and 10³⁰⁰ in some numeric entries."""
    wild = {name: np.array(values) for name, values in columns.items()}
    for values in wild.values():
        if values.dtype.kind == "f":
            values[:5] = [np.nan, np.inf, -np.inf, 1e30, 1e300]
            rng.shuffle(values)
    return wild


@every
def test_one_row_moves_the_sum_by_at_most_the_clip_norm(name, recipe, key):
    plan, query, rows = make(name, recipe, num_rows=30, clip_norm=0.7)
    stored = len(next(iter(rows._columns.values())))
    columns = wild_columns(rows._columns, np.random.default_rng(1))
    assert sensitivity(honest_total, query, plan, columns, np.ones(stored), key) <= 1.0


SENSITIVE = [unclipped, clip_after_sum, unclipped_prior, divided_by_batch, counted_padding]
orders = pytest.mark.parametrize("order", NORM_ORDERS.values())


@pytest.mark.parametrize(
    ("fault", "kind"), [*((fault, "gaussian") for fault in SENSITIVE), (unclipped, "laplace"), (euclidean, "laplace")]
)
def test_the_sensitivity_audit_catches(fault, kind, key):
    plan, query, rows = make("logistic", Recipe(noise_kind=kind), num_rows=30, clip_norm=0.1)
    assert sensitivity(fault, query, plan, rows._columns, np.ones(30), key) > 1.0


def inexactness(total, query, plan, columns, key):
    """By how much a total is no whole number, or changes when the same rows come in another order; in grid units."""
    count = len(next(iter(columns.values())))
    orders = [np.random.default_rng(seed).permutation(count) for seed in range(8)]
    with jax.enable_x64(True):
        question = query.ask(query.chance(key), query.init(key))
        summed = jax.jit(lambda rows: total(query, question, rows, jnp.ones(count), plan))
        totals = np.array([summed({name: values[order] for name, values in columns.items()}) for order in orders])
    return float(max(np.abs(totals - np.round(totals)).max(), np.ptp(totals, axis=0).max()))


def float_sum(query, question, columns, multiplicity, plan):
    """Clipped and summed as they are, not on a grid."""
    values = row_values(query, question, columns)
    norms = jnp.linalg.norm(values, axis=1, keepdims=True)
    return multiplicity @ (values * jnp.minimum(1.0, plan.clip_norm / norms)) * UNITS / plan.clip_norm


def single_sum(query, question, columns, multiplicity, plan):
    """On the grid, and summed in single precision."""
    clipped = clipping.clip_to_grid(row_values(query, question, columns), plan.clip_norm, plan.norm_order)
    return (multiplicity[:, None] * clipped).astype(jnp.float32).sum(0).astype(float)


@pytest.mark.parametrize("name", ["logistic", "gaussian"])
def test_sums_are_exact(name, key):
    plan, query, rows = make(name, num_rows=3000, clip_norm=0.1)
    assert inexactness(honest_total, query, plan, rows._columns, key) == 0


@pytest.mark.parametrize("fault", [float_sum, single_sum])
def test_the_exactness_audit_of_sums_catches(fault, key):
    plan, query, rows = make("logistic", num_rows=3000, clip_norm=0.1)
    assert inexactness(fault, query, plan, rows._columns, key) > 1e-6


@orders
def test_grid_norms_never_exceed_the_clip(order):
    """Whole numbers: |x|¹ or |x|² summed without rounding."""
    rng, clip = np.random.default_rng(4), jax.jit(clipping.clip_to_grid, static_argnums=2)
    with jax.enable_x64(True):
        for dim in (1, 2, 17, 400):
            values = rng.normal(size=(2000, dim)) * np.exp(10 * rng.normal(size=(2000, 1)))
            values[:100] = np.sign(values[:100])
            rounded = np.asarray(clip(values, 0.37, order))
            np.testing.assert_array_equal(rounded, np.round(rounded))
            norms = (np.abs(rounded).astype(np.int64) ** order).sum(1)
            assert 0.999 * 2 ** (20 * order) < norms.max() <= 2 ** (20 * order)


@orders
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_a_wild_row_adds_at_most_its_clip(bad, order):
    with jax.enable_x64(True):
        clip = partial(jax.jit(clipping.clip_to_grid, static_argnums=2), clip_norm=2.0, order=order)
        wild, tame = np.asarray(clip(np.array([[bad, 1.0], [0.3, -0.2]])))
        alone = np.asarray(clip(np.array([[0.3, -0.2]])))[0]
    np.testing.assert_array_equal(tame, alone)
    assert np.linalg.norm(wild, order) <= (UNITS if np.isfinite(bad) else 0)


# 2. Noise: scale, shape, independence.


def constant_query(size):
    """Asks rows for nothing; the trace is the noise itself."""

    def update(state, question, answer):
        return state, Point(state, answer, answer, jnp.ones_like(answer))

    return Query(
        init=lambda key: jnp.zeros(size),
        ask=lambda key, state: state,
        row_value=lambda question, row: 0 * question + 0 * row["x"],
        update=update,
        last=lambda state: state,
        size=size,
        columns=("x",),
        settings={},
    )


def one_column(values):
    return store(Schema((Numeric("x", -1e9, 1e9),)), {"x": np.asarray(values, float)})


LAWS = {"gaussian": stats.norm(), "laplace": stats.laplace(scale=0.5**0.5)}  # of sd 1


def noise_z_scores(answers, std, kind="gaussian"):
    """z-scores of sd, mean, lag-one and cross-coordinate correlation, and the KS distance in its own units."""
    scaled, law = answers / std, LAWS[kind]
    count = scaled.size
    lag = (scaled[1:] * scaled[:-1]).sum() / np.sqrt(scaled[1:].size)
    cross = (scaled[:, 0] * scaled[:, -1]).sum() / np.sqrt(len(scaled)) if scaled.shape[1] > 1 else 0.0
    ks = stats.kstest(scaled.ravel(), law.cdf).pvalue
    return [
        (scaled.var() - 1) * np.sqrt(count / (law.stats("k") + 2)),
        scaled.mean() * np.sqrt(count),
        lag,
        cross,
        stats.norm.isf(max(ks, 1e-300) / 2),
    ]


def noise_answers(plan, num_rows=20, seed=11):
    release = loop.run(noise.simulated(seed), plan, constant_query(4), one_column(np.zeros(num_rows)), keep="trace")
    return release.trace.y


@pytest.mark.parametrize(("rate", "limit"), [(0.2, 6), (0.2, 20), (0.2, None), (1.0, None), (0.05, 3)])
def test_noise_std_is_the_plans_for_every_padding(rate, limit):
    """Five z-scores below 4.9: false alarm below 5·10⁻⁶ a case."""
    plan = Plan(20, 8000, rate, 2.0, 3.0, limit)
    assert np.abs(noise_z_scores(noise_answers(plan), plan.noise_std)).max() < 4.9


@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_laplace_noise_has_the_plans_std_and_its_shape(rate):
    """False alarm below 5·10⁻⁶ a case (normal approximation)."""
    plan = Plan(20, 8000, rate, 2.0, 3.0, noise_kind="laplace")
    assert np.abs(noise_z_scores(noise_answers(plan), plan.noise_std, "laplace")).max() < 4.9


def test_the_noise_audit_catches_a_scale_used_as_a_std(monkeypatch):
    plan = Plan(20, 8000, 0.2, 2.0, 3.0, noise_kind="laplace")
    monkeypatch.setattr(Plan, "noise_scale", 6.0 / 2**0.5)
    assert np.abs(noise_z_scores(noise_answers(plan), 2**0.5 * 6.0, "laplace")).max() > 4.9


@pytest.mark.parametrize(("claimed", "drawn"), [("laplace", "gaussian"), ("gaussian", "laplace")])
def test_the_noise_audit_catches_the_other_kind(claimed, drawn):
    """The sd is right, the shape is not."""
    draws, std = noise.simulated(13).draw(drawn, 0, (8000, 4)), {"gaussian": 1.0, "laplace": 2**0.5}[drawn]
    assert np.abs(noise_z_scores(draws, std, drawn)).max() < 4.9
    assert np.abs(noise_z_scores(draws, std, claimed)).max() > 4.9


@pytest.mark.parametrize("factor", [0.5, 0.9, 0.99])
def test_the_noise_audit_catches_less_noise(factor):
    plan = Plan(20, 80_000 if factor == 0.99 else 8000, 0.2, 2.0, 3.0 * factor, 6)
    assert np.abs(noise_z_scores(noise_answers(plan), 6.0)).max() > 4.9


def test_the_noise_audit_catches_reused_noise():
    fresh = noise_answers(Plan(20, 4000, 0.2, 2.0, 3.0, 6))
    assert np.abs(noise_z_scores(np.repeat(fresh, 2, axis=0), 6.0)).max() > 4.9
    assert np.abs(noise_z_scores(np.repeat(fresh[:, :1], 4, axis=1), 6.0)).max() > 4.9


def completed_noise(name, recipe, plan_scale=lambda scale: scale):
    """`noise_of_points` of a mechanism, and its plan."""
    plan, query, _ = make(name, recipe)
    return noise_of_points(plan, query, plan_scale), plan


def noise_of_points(plan, query, plan_scale=lambda scale: scale, steps=4000):
    """(y − its noiseless value) / scale over many answers to one question, when no row is there."""

    @jax.jit
    def completed(chance, draws):
        state = query.init(None)
        question = query.ask(chance, state)

        def complete(draw):
            total = jnp.zeros(query.size)
            answer = clipping.privatize(total, draw, jnp.array(plan.noise_scale), jnp.array(plan.clip_norm))
            return query.update(state, question, answer)[1]

        return complete(jnp.zeros(query.size)), jax.vmap(complete)(draws)

    with jax.enable_x64(True):
        chance = query.chance(jax.random.key(5))
        silent, noisy = completed(chance, noise.simulated(12).draw(plan.noise_kind, 0, (steps, query.size)))
    return np.asarray(noisy.y - silent.y[None]) / plan_scale(np.asarray(noisy.scale))


@every
def test_a_points_scale_times_the_plans_noise_std_is_the_noise_of_y(name, recipe):
    """Also its shape, and independence of steps and coordinates. False alarm below 5·10⁻⁶ a case."""
    answers, plan = completed_noise(name, recipe)
    assert np.abs(noise_z_scores(answers, plan.noise_std, plan.noise_kind)).max() < 4.9


@pytest.mark.parametrize("variant", [variant for variant in elbo.VARIANTS if variant != "vanilla"])
def test_the_noise_audit_catches_a_forgotten_scale(variant):
    """Factors that were not undone, and draws whose noise was added up as if it were one."""
    answers, plan = completed_noise("logistic", Recipe(variant), np.ones_like)
    assert np.abs(noise_z_scores(answers, plan.noise_std)).max() > 4.9


def test_the_noise_audit_catches_the_noise_of_one_draw_for_all():
    """σC where K released gradients were added up: √K too little."""
    for family in (Family(), Family("full-rank")):
        answers, plan = completed_noise("logistic", Recipe("aligned", family), lambda scale: scale / 2)
        assert np.abs(noise_z_scores(answers, plan.noise_std)).max() > 4.9


def test_streams_are_distinct_and_secure_keys_differ():
    stream = noise.simulated(1)
    blocks = [stream.words(purpose, chunk, 64) for purpose in (1, 2, 3, 4, 5) for chunk in (0, 1)]
    assert len({block.tobytes() for block in blocks}) == 10
    assert noise.secure().words(1, 0, 4).tobytes() != noise.secure().words(1, 0, 4).tobytes()
    assert "key" not in repr(noise.secure())


# 3. Inclusion.


def inclusion_z_scores(plan, batches, stored):
    """z-scores of the overall rate, the spread of per-row counts, pair counts and the batch-size variance."""
    steps = len(batches.multiplicity)
    included = np.zeros((steps, stored))
    step = np.repeat(np.arange(steps), batches.multiplicity.shape[1])
    columns = np.tile(np.arange(stored), steps) if batches.indices is None else batches.indices.ravel()
    np.add.at(included, (step, columns), batches.multiplicity.ravel())
    assert included.max() <= 1
    rate, size = plan.sampling_prob, steps * stored
    variance = rate * (1 - rate)
    per_row = ((included.sum(0) - steps * rate) ** 2).sum() / (steps * variance)
    batch = included.sum(1)
    spread = ((batch - stored * rate) ** 2).sum() / (stored * variance)
    pairs = (included[:, ::2][:, : stored // 2] * included[:, 1::2][:, : stored // 2]).sum()
    pair_mean, pair_count = rate**2, steps * (stored // 2)
    return np.array(
        [
            (included.sum() - size * rate) / np.sqrt(size * variance),
            (per_row - stored) / np.sqrt(2 * stored),
            (pairs - pair_count * pair_mean) / np.sqrt(pair_count * pair_mean * (1 - pair_mean)),
            (spread - steps) / np.sqrt(2 * steps),
        ]
    )


@pytest.mark.parametrize(
    ("num_rows", "rate", "steps"),
    [(200, 0.1, 4000), (50, 0.5, 4000), (20_000, 0.01, 400), (60, 1 / 60, 6000)],
)
def test_rows_are_included_independently_at_the_plans_rate(num_rows, rate, steps):
    """Four z-scores below 5: false alarm below 3·10⁻⁶ a case (normal approximation)."""
    plan = Plan(num_rows, steps, rate, 1.0, 1.0, default_batch_limit(num_rows, rate))
    batches = sampling.draw_batches(noise.simulated(5), 0, plan, steps, None)
    assert np.abs(inclusion_z_scores(plan, batches, num_rows)).max() < 5


@every
def test_batches_and_noise_do_not_depend_on_what_is_asked(name, recipe):
    """Whatever the query, the loop hands out the batches that were audited above, and noise of the answer's length."""
    plan, query, rows = make(name, recipe)
    draws = loop._draw(noise.simulated(9), plan, query, rows, 3, 5, jax.random.key(0))
    audited = sampling.draw_batches(noise.simulated(9), 3, plan, 5, rows._counts)
    assert jax.tree.all(jax.tree.map(np.array_equal, draws.batches, audited))
    expected = noise.simulated(9).draw(recipe.noise_kind, 3, (5, query.size))
    np.testing.assert_array_equal(draws.noise, expected)


def test_the_inclusion_audit_catches_forgotten_sampling():
    plan = Plan(200, 400, 0.1, 1.0, 1.0)
    everyone = sampling.Batches(None, np.ones((400, 200)))
    first_rows = sampling.Batches(np.tile(np.arange(20), (400, 1)), np.ones((400, 20)))
    fixed_size = sampling.Batches(
        np.argsort(np.random.default_rng(0).random((400, 200)), 1)[:, :20], np.ones((400, 20))
    )
    for fault in (everyone, first_rows, fixed_size):
        assert np.abs(inclusion_z_scores(plan, fault, 200)).max() > 5


@pytest.mark.parametrize("num_rows", [300, 20_000])
def test_overflow_drops_a_uniformly_random_subset(num_rows):
    """With a tight limit every row is kept equally often; χ² beyond 6 sd has a false-alarm rate below 10⁻⁸."""
    rate, steps = (0.2, 6000) if num_rows == 300 else (0.01, 1500)
    limit = int(num_rows * rate * 0.9)
    plan = Plan(num_rows, steps, rate, 1.0, 1.0, limit)
    batches = sampling.draw_batches(noise.simulated(6), 0, plan, steps, None)
    kept = np.bincount(batches.indices[batches.multiplicity > 0], minlength=num_rows)
    assert batches.multiplicity.sum(1).max() == limit
    expected = kept.mean()
    inclusion = expected / steps
    chi = ((kept - expected) ** 2).sum() / (expected * (1 - inclusion))
    assert abs(chi - num_rows) < 6 * np.sqrt(2 * num_rows)
    halves = kept[: num_rows // 2].sum() - kept[num_rows // 2 :].sum()
    assert abs(halves) < 6 * np.sqrt(num_rows * expected)


def test_counts_are_sampled_as_binomials():
    """KS against the binomial's randomised distribution function; false alarm 10⁻⁶ a cell."""
    counts = np.array([1, 7, 400, 0])
    plan = Plan(408, 20_000, 0.3, 1.0, 1.0)
    draws = sampling.draw_batches(noise.simulated(8), 0, plan, 20_000, counts).multiplicity
    assert (draws[:, 3] == 0).all()
    jitter = np.random.default_rng(0).random(20_000)
    for cell, count in enumerate(counts[:3]):
        law = stats.binom(count, 0.3)
        transformed = law.cdf(draws[:, cell] - 1) + jitter * law.pmf(draws[:, cell])
        assert stats.kstest(transformed, "uniform").pvalue > 1e-6


def test_counts_and_rows_give_the_same_law():
    """Mean and variance of answers agree between the two layouts: z below 5, false alarm below 10⁻⁶."""
    plan, query, rows = make("beta-bernoulli", num_rows=60, steps=3000, noise_multiplier=0.5)
    codes = np.repeat([0, 1], rows._counts.astype(int))
    spread = Rows(rows.schema, {"x": codes.astype(np.int32)})

    def still(state, question, answer):
        return state, Point(state.phi, answer, answer, jnp.ones_like(answer))

    fixed = query._replace(update=still, chance=lambda key: query.chance(jax.random.key(0)))
    first = loop.run(noise.simulated(1), plan, fixed, rows, keep="trace").trace.y
    second = loop.run(noise.simulated(2), plan, fixed, spread, keep="trace").trace.y
    error = np.sqrt((first.var(0) + second.var(0)) / 3000)
    assert (np.abs(first.mean(0) - second.mean(0)) < 5 * error).all()
    assert (np.abs(np.log(first.var(0) / second.var(0))) < 5 * np.sqrt(4 / 3000)).all()


# 4. Exactness: no noise, every row, a clip norm that clips nobody.


@partial(jax.jit, static_argnums=(0, 1))
def gradients(name, family, phi, eta, columns):
    """∂/∂φ of −log p(row | z_k) for each row and draw, and of −log p(z) − log det L, by autodiff.

    Written without the house's families and methods.
    """
    model, dim = MODELS[name], eta.shape[1]
    positive = {"softplus": lambda s: jnp.logaddexp(s, 0.0), "exp": jnp.exp}[family.positive]

    def cholesky(phi):
        factor = jnp.diag(positive(phi[dim : 2 * dim]))
        return factor.at[np.tril_indices(dim, -1)].set(phi[2 * dim :]) if family.name == "full-rank" else factor

    def row_loss(phi, eta, row):
        return -model.log_likelihood(phi[:dim] + cholesky(phi) @ eta, row)

    def public_loss(phi):
        draws = phi[None, :dim] + eta @ cholesky(phi).T
        return -jax.vmap(model.log_prior)(draws).mean() - jnp.log(jnp.diagonal(cholesky(phi))).sum()

    over_draws = jax.vmap(jax.grad(row_loss), in_axes=(None, 0, None))
    return jax.vmap(over_draws, in_axes=(None, None, 0))(phi, eta, columns), jax.grad(public_loss)(phi)


def sd_and_slope(recipe, s):
    """T(s) and T′(s)."""
    return (np.exp(s), np.exp(s)) if recipe.family.positive == "exp" else (np.logaddexp(0, s), 1 / (1 + np.exp(-s)))


def step_factor(recipe, phi, dim):
    """What the step multiplies the gradient by, from the papers' formulas."""
    if recipe.variant in PRECONDITIONED:
        return np.repeat([1.0, 50.0], [dim, len(phi) - dim]) * np.linspace(1, 2, len(phi))
    if "natural" not in recipe.variant:
        return np.ones(len(phi))
    sd, slope = sd_and_slope(recipe, phi[dim:])
    return np.concatenate([sd**2, sd**2 / (2 * slope**2)])


def rounding(recipe, question, num_rows):
    """How far the grid can move each entry of the gradient, in units of the grid.

    Every row is rounded by at most half a unit in each entry of its answer. Rows that answer for φ have their factor
    undone. Location gradients are pulled back through ∂z/∂φ too, where the errors of the draws add up.
    """
    if not recipe.variant.startswith("aligned"):
        return num_rows / 2 / question.factor
    size, dim = np.abs(question.eta).sum(0), question.eta.shape[1]
    error = num_rows / 2 / question.factor[:dim]
    row, column = np.tril_indices(dim, -1) if recipe.family.name == "full-rank" else np.zeros((2, 0), int)
    scale = error * sd_and_slope(recipe, question.phi[dim : 2 * dim])[1] * size
    return np.concatenate([error * recipe.draws, scale, error[row] * size[column]])


def longest_answer(recipe, question, by_draw):
    """Norm of the longest answer of a row, in the norm that is clipped."""
    num_rows, draws, _ = by_draw.shape
    if recipe.variant.startswith("aligned"):
        dim = question.eta.shape[1]
        answers = (by_draw[..., :dim] * question.factor[:dim] / draws).reshape(num_rows, -1)
    else:
        answers = by_draw.mean(1) * question.factor
    return float(np.linalg.norm(answers, NORM_ORDERS[recipe.noise_kind], axis=1).max())


def exactness(name, recipe, fault=lambda query: query):
    """Largest error of one step's gradient, and of the trace, in units of what rounding to the grid explains.

    The gradient of all of φ is read off the step that was taken: SGD moves by −λ·factor·gradient, and Adam's first
    moment is a tenth of factor·gradient. The clip norm is twice the longest answer. 10⁻⁹ is left for float64.
    """
    model = MODELS[name]
    plan, query, rows = make(name, recipe, steps=1, sampling_prob=1.0, noise_multiplier=0.0)
    with jax.enable_x64(True):
        eta = query.chance(jax.random.key(6))
        question = jax.tree.map(np.asarray, query.ask(eta, query.init(None)))
        by_draw, public = map(np.asarray, gradients(name, recipe.family, question.phi, eta, rows._columns))
    counts = np.ones(plan.num_rows) if rows._counts is None else rows._counts
    expected = counts @ by_draw.mean(1) + public
    plan = replace(plan, clip_norm=2 * longest_answer(recipe, question, by_draw))
    seen = {"sgd": lambda state: state.phi, "adam": lambda state: state.optimiser[0].mu}[recipe.optimiser]
    asked = fault(query)._replace(last=seen, chance=lambda key: eta)
    release = loop.run(noise.simulated(1), plan, asked, rows, keep="trace")
    step = (question.phi - release.last) / 1e-4 if recipe.optimiser == "sgd" else release.last / (1 - 0.9)
    limit = rounding(recipe, question, plan.num_rows) * plan.clip_norm / UNITS + 1e-9 * (1 + np.abs(expected))
    answered = release.trace.y.shape[1]
    x = np.concatenate([question.draws.mean(0), question.phi[model.dim :]])[:answered]
    np.testing.assert_allclose(release.trace.x[0], x, rtol=1e-12)
    np.testing.assert_array_equal(release.trace.iterate[0], question.phi)
    errors = step / step_factor(recipe, question.phi, model.dim) - expected, release.trace.y[0] - expected[:answered]
    return max(np.abs(errors[0] / limit).max(), np.abs(errors[1] / limit[:answered]).max())


@of_elbo
def test_without_noise_and_clipping_a_step_takes_the_gradient_of_the_elbo(name, recipe):
    assert exactness(name, recipe) <= 1.0


def misscaled_prior(recipe):
    """Prior and entropy at half the rate of the rows."""
    model = MODELS["logistic"]
    return lambda query: elbo.query(model, Plan(40, 1, 0.5, 1.0, 0.0), simple_settings(model, recipe))


def draws_of_its_own(recipe):
    """Half of the rows are judged at −η: as good in law, but not the η that completes the answer."""

    def fault(query):
        def row_value(question, row):
            mirrored = 2 * question.phi[None, : question.eta.shape[1]] - question.draws
            draws = jnp.where(row["age"] > 40, question.draws, mirrored)
            return query.row_value(question._replace(draws=draws), row)

        return query._replace(row_value=row_value)

    return fault


class WithoutSlope(Family):
    """∂z/∂s is η, not ηT′(s)."""

    def draws(self, phi, eta):
        dim, fixed = self.dim(phi), jax.lax.stop_gradient
        s, moves = phi[dim : 2 * dim], phi.at[dim : 2 * dim].set(fixed(phi[dim : 2 * dim]))
        return Family.draws(self, moves, eta) + (s - fixed(s))[None] * eta


def forgotten_slope(recipe):
    settings = simple_settings(MODELS["logistic"], recipe._replace(family=WithoutSlope(*recipe.family)))
    fresh = replace(MODELS["logistic"])  # this family equals the honest one, whose functions are kept
    return lambda query: elbo.query(fresh, Plan(40, 1, 1.0, 1.0, 0.0), settings)


def one_gradient_for_all_draws(recipe):
    """The sum over draws is completed as if each draw had an equal part in it."""

    def fault(query):
        def update(state, question, answer):
            by_draw = answer.reshape(recipe.draws, -1)
            return query.update(state, question, jnp.tile(by_draw.mean(0), recipe.draws))

        return query._replace(update=update)

    return fault


FAULTS = [
    (misscaled_prior, Recipe()),
    (forgotten_slope, Recipe("aligned")),
    (forgotten_slope, Recipe("aligned", Family("full-rank", "exp"), "adam", 1)),
    (draws_of_its_own, Recipe("aligned")),
    (draws_of_its_own, Recipe("aligned", Family("full-rank", "exp"), "adam", 1)),
    (one_gradient_for_all_draws, Recipe("aligned")),
]


@pytest.mark.parametrize(("fault", "recipe"), FAULTS, ids=lambda part: getattr(part, "__name__", None))
def test_the_exactness_audit_catches(fault, recipe):
    assert exactness("logistic", recipe, fault(recipe)) > 1.0


# 5. The price, from the outside: what an attacker can show of one step, against what accounting charges for it.


def audited_epsilon(plan, direction, delta):
    """A lower bound on ε at `delta`, wrong with probability 2·10⁻⁶: is a huge row along `direction` there, or zero?

    The steps of one run are as many releases of one step. The attacker says yes where an answer went as far as the row
    moves it, or farther: no answers speak more for the row, if noise is Laplace. Bounds of Clopper and Pearson.
    """
    direction = np.asarray(direction, float)
    query = constant_query(len(direction))._replace(row_value=lambda question, row: direction * row["x"])
    with jax.enable_x64(True):
        units = np.asarray(clipping.clip_to_grid(1e6 * direction[None], plan.clip_norm, plan.norm_order))[0]

    def says_yes(first, seed):
        rows = one_column([first, *np.zeros(plan.num_rows - 1)])
        answers = loop.run(noise.simulated(seed), plan, query, rows, keep="trace").trace.y
        return (answers * UNITS / plan.clip_norm >= units)[:, units > 0].all(1).sum()

    yes, wrong = says_yes(1e6, 1), says_yes(0.0, 2)
    least = stats.beta.ppf(1e-6, yes, plan.steps - yes + 1) - delta
    return float(np.log(least / stats.beta.isf(1e-6, wrong + 1, plan.steps - wrong)))


ONE_SHOT = Plan(3, 100_000, 1.0, 2.0, 1.0, noise_kind="laplace")
AUDITED = [
    (ONE_SHOT, (1, 1)),
    (replace(ONE_SHOT, noise_multiplier=0.5), (0, 1)),
    (replace(ONE_SHOT, sampling_prob=0.4), (1, 0)),
]


def claimed_epsilon(plan, delta):
    return accounting.guarantee(replace(plan, steps=1), delta).epsilon


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DISCREET_CACHE", str(tmp_path))


@pytest.mark.parametrize(("plan", "direction"), AUDITED)
def test_no_attack_on_a_laplace_step_shows_more_than_its_price_and_one_shows_nearly_all(plan, direction, cache):
    claimed = claimed_epsilon(plan, 1e-6)
    assert 0.85 * claimed < audited_epsilon(plan, direction, 1e-6) <= claimed


def scale_as_std(plan):
    return plan.noise_multiplier * plan.clip_norm / 2**0.5


@pytest.mark.parametrize(("name", "value"), [("norm_order", 2), ("noise_scale", property(scale_as_std))])
def test_the_audit_of_the_price_catches_a_laplace_step_with(name, value, monkeypatch, cache):
    """Euclidean clipping, and a scale taken for a standard deviation."""
    claimed = claimed_epsilon(ONE_SHOT, 1e-6)
    monkeypatch.setattr(Plan, name, value)
    assert audited_epsilon(ONE_SHOT, (1, 1, 1), 1e-6) > 1.1 * claimed


def test_the_audit_of_the_price_catches_an_event_of_another_clip_norm(monkeypatch, cache):
    """σ in units of 1 where it is in units of C = 2."""
    honest = accounting._priced

    def in_other_units(plan):
        return honest([replace(part, noise_multiplier=part.noise_multiplier * part.clip_norm) for part in phases(plan)])

    monkeypatch.setattr(accounting, "_priced", in_other_units)
    assert audited_epsilon(ONE_SHOT, (0, 1), 1e-6) > 1.5 * claimed_epsilon(ONE_SHOT, 1e-6)


# Edges.


EDGES = [(1, 1.0, None), (40, 1 / 40, 6), (40, 1.0, None), (40, 1e-9, 1)]


@pytest.mark.parametrize(
    ("num_rows", "rate", "limit", "kind"),
    [*((*edge, "gaussian") for edge in EDGES), (1, 1.0, None, "laplace"), (40, 1e-9, None, "laplace")],
)
def test_edges_run(num_rows, rate, limit, kind):
    """One row, one expected row, every row, and batches that are always empty."""
    plan = Plan(num_rows, 30, rate, 1.0, 2.0, limit, kind)
    release = loop.run(noise.simulated(1), plan, constant_query(2), one_column(np.zeros(num_rows)), keep="trace")
    assert np.isfinite(release.trace.y).all()
    assert release.trace.y.shape == (30, 2)
