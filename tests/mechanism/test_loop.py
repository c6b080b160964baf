import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from discreet.mechanism import loop, noise
from discreet.mechanism.rows import Rows
from discreet.query import Point
from tests.guarantees.mechanisms import make


@pytest.fixture(scope="module")
def setting():
    return make("logistic", num_rows=60, steps=230)


def test_the_same_seed_gives_the_same_release(setting):
    first, again = (loop.run(noise.simulated(4), *setting) for _ in range(2))
    for one, other in zip(first.blocks, again.blocks, strict=True):
        np.testing.assert_array_equal(one, other)


def test_blocks_summarise_the_trace(setting):
    release = loop.run(noise.simulated(4), *setting, keep_trace=True)
    assert release.blocks.steps[:, 0].sum() == len(release.trace.x) == 230
    weights = release.blocks.weight / release.blocks.weight.sum(0)
    np.testing.assert_allclose((weights * release.blocks.mean_y).sum(0), release.trace.y.mean(0), rtol=1e-9)
    np.testing.assert_allclose(
        release.blocks.xx[3], ((release.trace.x[9:12] - release.trace.x[9:12].mean(0)) ** 2).sum(0)
    )


def test_the_trace_obeys_the_update(setting):
    """φ_{t+1} = φ_t − λβ∘y_t, and the last iterate is one step beyond the trace."""
    plan, query, rows = setting
    release = loop.run(noise.simulated(5), plan, query, rows, keep_trace=True)
    rate = np.asarray(query.settings["learning_rate"]) * np.asarray(query.settings["precondition"])
    np.testing.assert_allclose(np.diff(release.trace.x, axis=0), -rate * release.trace.y[:-1], atol=1e-12)
    np.testing.assert_allclose(release.last, release.trace.x[-1] - rate * release.trace.y[-1], atol=1e-12)


def test_a_trace_is_kept_only_on_request(setting):
    assert loop.run(noise.simulated(4), *setting).trace is None


def test_progress_sees_the_number_of_blocks_only(setting):
    seen = []
    loop.run(noise.simulated(4), *setting, progress=lambda blocks: seen.append(blocks) or blocks)
    assert seen == [range(len(loop.block_lengths(setting[0], setting[2])))]


@pytest.mark.parametrize("steps", [1, 7, 99, 100, 101, 1234])
def test_block_lengths_add_up(setting, steps):
    plan, _, rows = setting
    lengths = loop.block_lengths(dataclasses.replace(plan, steps=steps), rows)
    assert sum(lengths) == steps
    assert len(set(lengths)) <= 2


def test_everything_released_is_float64(setting):
    release = loop.run(noise.simulated(4), *setting)
    assert {field.dtype for field in release.blocks} == {np.dtype("float64")}
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
    plan, query, rows = setting
    columns = {name: np.array(column) for name, column in rows._columns.items()}
    columns["age"][7] = np.nan
    poisoned = Rows(rows.schema, columns)

    def silent(question, row):
        return jnp.where(row["age"] == rows._columns["age"][7], 0.0, query.row_value(question, row))

    one = loop.run(noise.simulated(9), plan, query, poisoned)
    other = loop.run(noise.simulated(9), plan, query._replace(row_value=silent), rows)
    np.testing.assert_allclose(one.last, other.last, rtol=1e-12)


def test_points_carry_their_own_scale():
    plan, query, rows = make("logistic", num_rows=60, steps=20, beta=50.0)
    release = loop.run(noise.simulated(2), plan, query, rows, keep_trace=True)
    beta = np.asarray(query.settings["precondition"])
    np.testing.assert_allclose(release.trace.scale, np.broadcast_to(1 / beta, release.trace.scale.shape))
    assert isinstance(release.trace, Point)
