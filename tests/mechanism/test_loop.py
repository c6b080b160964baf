import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from discreet.mechanism import loop, noise
from discreet.mechanism.rows import Rows, store
from discreet.methods import elbo
from discreet.plan import Plan
from discreet.query import Point
from tests.guarantees.mechanisms import MODELS, SCHEMAS, Recipe, make, simple_settings


@pytest.fixture(scope="module")
def setting():
    return make("logistic", Recipe("preconditioned"), num_rows=60, steps=230)


@pytest.fixture(scope="module")
def release(setting):
    return loop.run(noise.simulated(4), *setting, keep="trace")


def test_blocks_summarise_the_trace(release):
    """In blocks of three steps, and two at the end."""
    assert release.blocks.steps.shape == (77, 1)
    assert release.blocks.steps.sum() == len(release.trace.x) == 230
    weights = release.blocks.weight / release.blocks.weight.sum(0)
    np.testing.assert_allclose((weights * release.blocks.mean_y).sum(0), release.trace.y.mean(0), rtol=1e-9)
    for block, steps in ((3, slice(9, 12)), (76, slice(228, 230))):
        x, y, iterate, scale = (getattr(release.trace, part)[steps] for part in ("x", "y", "iterate", "scale"))
        dx, dy, moved = x - x.mean(0), y - y.mean(0), iterate - iterate.mean(0)
        for found, expected in [
            (release.blocks.mean, iterate.mean(0)),
            (release.blocks.square, (moved**2).sum(0)),
            (release.blocks.mean_x, x.mean(0)),
            (release.blocks.xx, (dx * dx / scale**2).sum(0)),
            (release.blocks.xy, (dx * dy / scale**2).sum(0)),
            (release.blocks.yy, (dy * dy / scale**2).sum(0)),
        ]:
            np.testing.assert_allclose(found[block], expected, rtol=1e-9)


def test_the_trace_obeys_the_update(setting, release):
    """φ_{t+1} = φ_t − λβ∘y_t, and the last iterate is one step beyond the trace; x is φ where draws have mean zero."""
    settings = setting[1].settings
    rate = np.asarray(settings["learning_rate"]) * np.asarray(settings["precondition"])
    trace = release.trace
    np.testing.assert_allclose(np.diff(trace.iterate, axis=0), -rate * trace.y[:-1], atol=1e-12)
    np.testing.assert_allclose(release.last, trace.iterate[-1] - rate * trace.y[-1], atol=1e-12)
    np.testing.assert_allclose(trace.x, trace.iterate, atol=1e-12)


def test_points_carry_their_own_scale(setting, release):
    beta = np.asarray(setting[1].settings["precondition"])
    np.testing.assert_allclose(release.trace.scale, np.broadcast_to(1 / beta, release.trace.scale.shape))
    assert isinstance(release.trace, Point)


def pair(key):
    return jax.random.normal(key, (2,))


def walk(steps, chance=pair, ask=lambda chance, state: chance):
    """A query that asks nothing of rows and reports its public randomness as x and the noise as y."""
    plan, query, rows = make("logistic", num_rows=60, steps=steps)
    silent = query._replace(
        init=lambda key: jnp.zeros(2),
        chance=chance,
        ask=ask,
        row_value=lambda question, row: 0 * question,
        update=lambda state, question, answer: (state, Point(state, question, answer, jnp.ones(2))),
        last=lambda state: state,
        size=2,
    )
    return plan, silent, rows


def test_every_step_has_public_randomness_of_its_own():
    """400 steps in blocks of four: standard normals, no two alike, none of them the noise. False alarms: 2e-6."""
    plan, query, rows = walk(400)
    release = loop.run(noise.simulated(3), plan, query, rows, keep="trace")
    eta, secret = release.trace.x, release.trace.y / plan.noise_std
    assert len(np.unique(eta)) == eta.size
    assert stats.kstest(eta.ravel(), "norm").pvalue > 1e-6
    assert abs((eta * secret).sum()) < 4.9 * np.sqrt(eta.size)


def test_randomness_made_ahead_is_what_the_step_would_have_made():
    """`chance` moves work out of the loop and changes no bit."""
    ahead = loop.run(noise.simulated(3), *walk(20), keep="trace")
    inside = loop.run(noise.simulated(3), *walk(20, lambda key: key, lambda key, state: pair(key)), keep="trace")
    np.testing.assert_array_equal(ahead.trace.x, inside.trace.x)


def test_the_same_seed_gives_the_same_release_and_a_trace_only_on_request():
    traced, untraced = (loop.run(noise.simulated(4), *walk(20), keep=keep) for keep in ("trace", "blocks"))
    assert untraced.trace is None
    assert traced.trace.x.shape == (20, 2)
    for one, other in zip((*traced.blocks, traced.last), (*untraced.blocks, untraced.last), strict=True):
        np.testing.assert_array_equal(one, other)


def test_progress_sees_the_number_of_chunks_only():
    seen = []
    loop.run(noise.simulated(4), *walk(201), progress=lambda blocks: seen.append(blocks) or blocks)
    assert seen == [range(1)]


@pytest.mark.parametrize("steps", [1, 7, 99, 100, 101, 1234, 10_000, 400_000])
@pytest.mark.parametrize("entries", [4, 10**6])
def test_chunks_add_up(setting, steps, entries):
    """About a hundred blocks, in chunks of two shapes at most, and never more entries at once than `CHUNK_ENTRIES`."""
    plan, _, rows = setting
    chunks = loop.chunks_of(dataclasses.replace(plan, steps=steps), rows, entries, 8)
    assert sum(chunk.blocks * chunk.steps for chunk in chunks) == steps
    assert len(set(chunks)) <= 2
    assert max(chunk.steps for chunk in chunks) <= -(-steps // loop.BLOCKS)
    assert max(chunk.blocks * chunk.steps for chunk in chunks) * entries <= loop.CHUNK_ENTRIES
    assert sum(chunk.blocks for chunk in chunks) >= min(steps, loop.BLOCKS // 2)


def test_a_step_that_fills_the_memory_is_a_chunk_of_its_own(setting):
    plan, _, rows = setting
    assert loop.chunks_of(plan, rows, 10 * loop.CHUNK_ENTRIES, 8) == [loop.Chunk(1, 1)] * plan.steps


def test_a_step_is_traced_once_for_runs_of_one_shape(monkeypatch):
    """Other noise, rows, clip norm, rate and number of steps in a chunk of the same shape: nothing is traced again."""
    schema, seen = SCHEMAS["poisson"], []
    likelihood = MODELS["poisson"].log_likelihood

    def counted(u, rest, row):
        seen.append(1)
        return likelihood.of_predictor(u, rest, row)

    model = dataclasses.replace(MODELS["poisson"], log_likelihood=dataclasses.replace(likelihood, of_predictor=counted))
    settings = simple_settings(model)
    plan = Plan(200, 300, 0.2, 2.0, 1.0, 90)
    traced = []
    for seed, factor in ((1, 1.0), (2, 1.5)):
        rows = store(schema, schema.sample(np.random.default_rng(seed), 200))
        now = dataclasses.replace(plan, clip_norm=factor * plan.clip_norm, noise_multiplier=factor)
        query = elbo.query(model, now, settings._replace(learning_rate=factor * 1e-4, start=factor * settings.start))
        loop.run(noise.simulated(seed), now, query, rows)
        traced.append(len(seen))
    assert traced[0] == traced[1] > 0


def test_single_precision_is_for_simulations(setting):
    plan, query, rows = setting
    with pytest.raises(ValueError, match="precision='single'"):
        loop.run(noise.secure(), plan, query, rows, precision="single")
    with pytest.raises(ValueError, match="precision='half' must be one of"):
        loop.run(noise.simulated(1), plan, query, rows, precision="half")


def test_everything_released_is_float64(release):
    arrays = (*release.blocks, *release.trace, release.last)
    assert {np.asarray(field).dtype for field in arrays} == {np.dtype("float64")}
    assert jnp.zeros(1).dtype == jnp.float32, "the 64-bit switch is local"


def test_refusals(setting):
    plan, query, rows = setting
    replicas = Rows(rows.schema, {name: np.stack([column] * 2) for name, column in rows._columns.items()})
    counted = make("beta-bernoulli", num_rows=60)
    for stream, changed, asked, given, message in [
        (noise.simulated(1), dataclasses.replace(plan, num_rows=61), query, rows, "num_rows=61"),
        (noise.secure(), dataclasses.replace(plan, noise_multiplier=0.0), query, rows, "adds no noise"),
        (noise.secure(), plan, query, replicas, "replicas"),
        (noise.simulated(1), dataclasses.replace(counted[0], batch_limit=30), counted[1], counted[2], "counts"),
        (noise.simulated(1), plan, query._replace(columns=("height",)), rows, "height"),
    ]:
        with pytest.raises(ValueError, match=message):
            loop.run(stream, changed, asked, given)


def test_a_row_value_of_the_wrong_length_is_refused(setting):
    plan, query, rows = setting
    with pytest.raises(ValueError, match="size"):
        loop.run(noise.simulated(1), plan, query._replace(row_value=lambda question, row: jnp.zeros(3)), rows)


def test_a_row_that_poisons_its_gradient_adds_nothing(setting):
    """With one NaN row the release equals that of a table where the row's value is zero."""
    _, _, rows = setting
    plan, query, _ = make("logistic", num_rows=60, steps=60)
    query = query._replace(products=None)  # `test_products` has the other way
    columns = {name: np.array(column) for name, column in rows._columns.items()}
    columns["age"][7] = np.nan
    poisoned = Rows(rows.schema, columns)

    def silent(question, row):
        return jnp.where(row["age"] == rows._columns["age"][7], 0.0, query.row_value(question, row))

    one = loop.run(noise.simulated(9), plan, query, poisoned)
    other = loop.run(noise.simulated(9), plan, query._replace(row_value=silent), rows)
    np.testing.assert_allclose(one.last, other.last, rtol=1e-12)
