"""The four audits of the mechanism, none sufficient alone, and the seeded faults that each must catch.

A guard that has never failed proves nothing: every audit is a function that is also run on a faulty mechanism.
False-alarm rates are stated beside each statistical threshold; seeds are fixed, so a passing test stays passing.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from discreet.mechanism import clipping, loop, noise, sampling
from discreet.mechanism.rows import Rows, store
from discreet.plan import Plan, default_batch_limit
from discreet.query import Point, Query
from discreet.schema import Numeric, Schema
from tests.guarantees.mechanisms import EVERY, MODELS, make

UNITS = clipping.GRID


# 1. Coupled sensitivity, noise off.


def sensitivity(total, query, plan, columns, multiplicity, key):
    """Largest change of the total when one row is zeroed out, in units of the clip norm."""
    with jax.enable_x64(True):
        question = query.ask(key, query.init(key))
        columns = jax.tree.map(jnp.asarray, columns)
        without = jnp.asarray(multiplicity[None] - np.eye(len(multiplicity)))
        answer = jax.jit(lambda weights: total(query, question, columns, weights, plan.clip_norm))
        changes = jax.lax.map(answer, without) - answer(jnp.asarray(multiplicity))[None]
        return float(jnp.linalg.norm(changes, axis=1).max() / UNITS)


def honest_total(query, question, columns, multiplicity, clip_norm):
    return clipping.bounded_sum(query.row_value, question, columns, multiplicity, jnp.float64(clip_norm))


def row_values(query, question, columns):
    return jax.vmap(lambda row: query.row_value(question, row))(columns)


def unclipped(query, question, columns, multiplicity, clip_norm):
    return multiplicity @ jnp.nan_to_num(row_values(query, question, columns)) * UNITS / clip_norm


def clip_after_sum(query, question, columns, multiplicity, clip_norm):
    total = multiplicity @ jnp.nan_to_num(row_values(query, question, columns))
    factor = jnp.minimum(1.0, 5 * clip_norm / jnp.linalg.norm(total))
    return total * factor * UNITS / clip_norm


def unclipped_prior(query, question, columns, multiplicity, clip_norm):
    """Each row carries its share of the prior outside its own clip."""
    clipped = clipping.clip_to_grid(row_values(query, question, columns), jnp.float64(clip_norm))
    return multiplicity @ (clipped + 3 * UNITS)


def divided_by_batch(query, question, columns, multiplicity, clip_norm):
    total = honest_total(query, question, columns, multiplicity, clip_norm)
    return total / jnp.maximum(multiplicity.sum(), 1) * len(multiplicity)


def counted_padding(query, question, columns, multiplicity, clip_norm):
    values = clipping.clip_to_grid(row_values(query, question, columns), jnp.float64(clip_norm))
    return (multiplicity > -1).astype(float) @ values * multiplicity.sum()


def wild_columns(columns, rng):
    """The columns with NaN, ±inf, 10³⁰ and 10³⁰⁰ in some numeric entries."""
    wild = {name: np.array(values) for name, values in columns.items()}
    for values in wild.values():
        if values.dtype.kind == "f":
            values[:5] = [np.nan, np.inf, -np.inf, 1e30, 1e300]
            rng.shuffle(values)
    return wild


@pytest.mark.parametrize(("name", "beta"), EVERY)
def test_one_row_moves_the_sum_by_at_most_the_clip_norm(name, beta, key):
    plan, query, rows = make(name, num_rows=30, clip_norm=0.7, beta=beta)
    stored = len(next(iter(rows._columns.values())))
    columns = wild_columns(rows._columns, np.random.default_rng(1))
    assert sensitivity(honest_total, query, plan, columns, np.ones(stored), key) <= 1.0


@pytest.mark.parametrize("fault", [unclipped, clip_after_sum, unclipped_prior, divided_by_batch, counted_padding])
def test_the_sensitivity_audit_catches(fault, key):
    plan, query, rows = make("logistic", num_rows=30, clip_norm=0.1)
    assert sensitivity(fault, query, plan, rows._columns, np.ones(30), key) > 1.0


def test_grid_norms_never_exceed_the_clip(key):
    with jax.enable_x64(True):
        for dim in (1, 2, 17, 400):
            values = jax.random.normal(key, (2000, dim)) * jnp.exp(10 * jax.random.normal(key, (2000, 1)))
            rounded = clipping.clip_to_grid(values, jnp.float64(0.37))
            assert (rounded == jnp.round(rounded)).all()
            assert int((rounded.astype(jnp.int64) ** 2).sum(1).max()) <= 2**40


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_a_wild_row_adds_at_most_its_clip(bad):
    with jax.enable_x64(True):
        values = jnp.array([[bad, 1.0], [0.3, -0.2]])
        alone = clipping.clip_to_grid(values[1:], jnp.float64(2.0)).sum(0)
        both = clipping.clip_to_grid(values, jnp.float64(2.0)).sum(0)
        assert jnp.linalg.norm(both - alone) <= (UNITS if np.isfinite(bad) else 0)


# 2. Noise: scale, shape, independence.


def constant_query(size):
    """Asks rows for nothing; the trace is the noise itself."""

    def update(state, question, answer):
        return state, Point(answer, answer, jnp.ones_like(answer))

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


def noise_z_scores(answers, std):
    """z-scores of sd, mean, lag-one and cross-coordinate correlation, and the KS distance in its own units."""
    scaled = answers / std
    count = scaled.size
    lag = (scaled[1:] * scaled[:-1]).sum() / np.sqrt(scaled[1:].size)
    cross = (scaled[:, 0] * scaled[:, 1]).sum() / np.sqrt(len(scaled))
    ks = stats.kstest(scaled.ravel(), "norm").pvalue
    return [
        (scaled.var() - 1) * np.sqrt(count / 2),
        scaled.mean() * np.sqrt(count),
        lag,
        cross,
        stats.norm.isf(max(ks, 1e-300) / 2),
    ]


def noise_answers(plan, num_rows=20, seed=11):
    release = loop.run(noise.simulated(seed), plan, constant_query(4), one_column(np.zeros(num_rows)), keep_trace=True)
    return release.trace.y


@pytest.mark.parametrize(("rate", "limit"), [(0.2, 6), (0.2, 20), (0.2, None), (1.0, None), (0.05, 3)])
def test_noise_std_is_the_plans_for_every_padding(rate, limit):
    """Five z-scores below 4.9: false alarm below 5·10⁻⁶ a case."""
    plan = Plan(20, 8000, rate, 2.0, 3.0, limit)
    assert np.abs(noise_z_scores(noise_answers(plan), plan.noise_std)).max() < 4.9


@pytest.mark.parametrize("factor", [0.5, 0.9, 0.99])
def test_the_noise_audit_catches_less_noise(factor):
    plan = Plan(20, 80_000 if factor == 0.99 else 8000, 0.2, 2.0, 3.0 * factor, 6)
    assert np.abs(noise_z_scores(noise_answers(plan), 6.0)).max() > 4.9


def test_the_noise_audit_catches_reused_noise():
    fresh = noise_answers(Plan(20, 4000, 0.2, 2.0, 3.0, 6))
    assert np.abs(noise_z_scores(np.repeat(fresh, 2, axis=0), 6.0)).max() > 4.9
    assert np.abs(noise_z_scores(np.repeat(fresh[:, :1], 4, axis=1), 6.0)).max() > 4.9


def test_streams_are_distinct_and_secure_keys_differ():
    stream = noise.simulated(1)
    blocks = [stream.words(purpose, chunk, 64) for purpose in (1, 2, 3, 4) for chunk in (0, 1)]
    assert len({block.tobytes() for block in blocks}) == 8
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
    frozen = query._replace(
        update=lambda state, question, answer: (state, Point(answer, answer, jnp.ones_like(answer)))
    )
    fixed = frozen._replace(ask=lambda key, state: query.ask(jax.random.key(0), state))
    first = loop.run(noise.simulated(1), plan, fixed, rows, keep_trace=True).trace.y
    second = loop.run(noise.simulated(2), plan, fixed, spread, keep_trace=True).trace.y
    error = np.sqrt((first.var(0) + second.var(0)) / 3000)
    assert (np.abs(first.mean(0) - second.mean(0)) < 5 * error).all()
    assert (np.abs(np.log(first.var(0) / second.var(0))) < 5 * np.sqrt(4 / 3000)).all()


# 4. Exactness: no noise, every row, a clip norm that clips nobody.


@pytest.mark.parametrize("name", list(MODELS))
def test_without_noise_and_clipping_the_trace_is_the_gradient_of_the_elbo(name):
    model = MODELS[name]
    plan, query, rows = make(name, num_rows=40, steps=1, sampling_prob=1.0, clip_norm=400.0, noise_multiplier=0.0)
    release = loop.run(noise.simulated(1), plan, query, rows, keep_trace=True)
    key = noise.simulated(1).public_key()
    with jax.enable_x64(True):
        steps = jax.random.split(key)[1]
        eta = query.ask(jax.random.split(jax.random.fold_in(steps, 0), 1)[0], query.init(key)).eta
        phi = jnp.asarray(release.trace.x[0])
        counts = jnp.ones(40) if rows._counts is None else jnp.asarray(rows._counts)
        columns = jax.tree.map(jnp.asarray, rows._columns)

        def negative_elbo(phi):
            mean, sd = phi[: model.dim], jax.nn.softplus(phi[model.dim :])

            def log_joint(z):
                return model.log_prior(z) + counts @ jax.vmap(lambda row: model.log_likelihood(z, row))(columns)

            return -jnp.mean(jax.vmap(log_joint)(mean[None] + sd[None] * eta)) - jnp.log(sd).sum()

        expected = np.asarray(jax.grad(negative_elbo)(phi))
    assert np.abs(release.trace.y[0] - expected).max() < 40 * 400 / 2**20


def test_the_exactness_audit_catches_a_misscaled_prior():
    plan, query, rows = make("logistic", num_rows=40, steps=1, sampling_prob=1.0, clip_norm=400.0, noise_multiplier=0.0)
    honest = loop.run(noise.simulated(1), plan, query, rows, keep_trace=True).trace.y[0]
    half = Plan(40, 1, 0.5, 400.0, 0.0)
    from discreet.methods import elbo
    from tests.guarantees.mechanisms import simple_settings

    wrong = elbo.query(MODELS["logistic"], half, simple_settings(MODELS["logistic"]))
    faulty = loop.run(noise.simulated(1), plan, wrong, rows, keep_trace=True).trace.y[0]
    assert np.abs(honest - faulty).max() > 40 * 400 / 2**20


# Edges.


@pytest.mark.parametrize(
    ("num_rows", "rate", "limit"), [(1, 1.0, None), (40, 1 / 40, 6), (40, 1.0, None), (40, 1e-9, 1)]
)
def test_edges_run(num_rows, rate, limit):
    """One row, one expected row, every row, and batches that are always empty."""
    plan = Plan(num_rows, 30, rate, 1.0, 2.0, limit)
    release = loop.run(noise.simulated(1), plan, constant_query(2), one_column(np.zeros(num_rows)), keep_trace=True)
    assert np.isfinite(release.trace.y).all()
    assert release.trace.y.shape == (30, 2)
