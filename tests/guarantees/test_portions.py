"""Sums of so many rows, or so long answers, that they are made portion by portion: the same whole numbers."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from discreet.mechanism import clipping, loop, noise
from discreet.mechanism.rows import store
from tests.guarantees import test_one_step as one_step
from tests.guarantees.mechanisms import MODELS, SCHEMAS, VANILLA, make
from tests.guarantees.test_audits import honest_total, sensitivity, wild_columns
from tests.guarantees.test_taint import assert_releases_are_public

MOST = (1, 3, 40, 97, 300)
"""Entries at once: less than a row has, a row, some rows, and nearly all of 37 × 3 or more."""


def answer(question, row):
    return question * jnp.stack([row["x"], row["x"] * row["y"], jnp.exp(row["y"])])


def columns(count, last=0.8):
    """Some rows are wild; the last one is what fills the last portion."""
    rng = np.random.default_rng(0)
    found = {"x": rng.normal(size=count), "y": 3 * rng.normal(size=count)}
    found["x"][: count // 4] = np.resize([np.nan, 1e300, -np.inf], count // 4)
    found["x"][-1] = last
    return found


def total(rows, multiplicity, order=2, clip_norm=0.7):
    with jax.enable_x64(True):
        rows, question = jax.tree.map(jnp.asarray, rows), jnp.array([1.0, -2.0, 0.5])
        return np.asarray(
            clipping.bounded_sum(answer, question, rows, jnp.asarray(multiplicity), jnp.array(clip_norm), order)
        )


@pytest.fixture
def at_once(monkeypatch):
    """How many rows were clipped at once, each time that was compiled."""
    seen, clip = [], clipping.clip_to_grid

    def watched(values, *given):
        seen.append(len(values))
        return clip(values, *given)

    monkeypatch.setattr(clipping, "clip_to_grid", watched)
    return seen


@pytest.mark.parametrize("most", MOST)
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(("count", "last"), [(1, 0.8), (2, 0.8), (37, 0.8), (37, np.nan)])
def test_sums_in_portions_are_those_in_one(monkeypatch, at_once, most, order, count, last):
    """To the last bit, with rows that are absent, there several times, or wild; no portion is larger than allowed."""
    rows, multiplicity = columns(count, last), np.random.default_rng(1).integers(0, 4, count).astype(float)
    multiplicity[-1] = 2.0
    whole = total(rows, multiplicity, order)
    assert at_once == [count]
    monkeypatch.setattr(clipping, "MOST_ENTRIES", most)
    np.testing.assert_array_equal(total(rows, multiplicity, order), whole)
    assert at_once[-1] <= max(1, most // 3)
    assert (at_once[-1] == count) == (3 * count <= most or count == 1)


def test_portions_cover_every_row_once(monkeypatch):
    """Rows answer with powers of four: a sum tells who was in it, and how often."""
    monkeypatch.setattr(clipping, "MOST_ENTRIES", 4)
    powers = {"x": 4.0 ** np.arange(9)}
    with jax.enable_x64(True):
        found = clipping.bounded_sum(
            lambda question, row: row["x"][None],
            jnp.zeros(()),
            jax.tree.map(jnp.asarray, powers),
            jnp.ones(9),
            jnp.array(2.0**20),
        )
    assert float(found[0]) == powers["x"].sum()


def test_one_row_moves_a_sum_in_portions_by_at_most_the_clip_norm(monkeypatch, key):
    monkeypatch.setattr(clipping, "MOST_ENTRIES", 40)
    for name in ("counts", "moments", "score of gaussian"):
        plan, query, rows = one_step.make(name, clip_norm=0.5)
        wild = wild_columns(rows._columns, np.random.default_rng(1))
        assert 0.9 < sensitivity(honest_total, query, plan, wild, np.ones(30), key) <= 1.0


def test_what_is_summed_in_portions_is_public(monkeypatch):
    monkeypatch.setattr(clipping, "MOST_ENTRIES", 40)
    assert_releases_are_public(*one_step.make("moments"))


@pytest.fixture
def compiled_anew():
    """Programs that were compiled for portions of one size are no others'."""
    loop._compiled.cache_clear()
    yield loop._compiled.cache_clear
    loop._compiled.cache_clear()


@pytest.mark.parametrize("name", ["counts", "moments", "score of poisson"])
def test_a_run_in_portions_tells_the_same(monkeypatch, compiled_anew, at_once, name):
    plan, query, rows = one_step.make(name, num_rows=101)

    def told():
        compiled_anew()
        return loop.run(noise.simulated(3), plan, query, rows).last

    whole = told()
    assert at_once[-1] == 101
    monkeypatch.setattr(clipping, "MOST_ENTRIES", 20 * query.size)
    np.testing.assert_array_equal(told(), whole)
    assert at_once[-1] == 17  # six portions


def test_steps_over_batches_in_portions_tell_the_same(monkeypatch, compiled_anew, at_once):
    plan, query, rows = make("poisson", VANILLA, num_rows=90, sampling_prob=0.5)
    query = query._replace(products=None)  # else sums are matrix products

    def told():
        compiled_anew()
        return loop.run(noise.simulated(3), plan, query, rows, keep="trace").trace.y

    whole = told()
    monkeypatch.setattr(clipping, "MOST_ENTRIES", 10 * query.size)
    np.testing.assert_array_equal(told(), whole)
    assert at_once[-1] <= 10


def test_several_tables_at_once_are_summed_in_portions_too(monkeypatch, compiled_anew):
    """As studies do: rows of each table by themselves."""
    plan, query, _ = one_step.make("score of gaussian", num_rows=50)
    schema = SCHEMAS["gaussian"]
    tables = {name: column.reshape(3, 50) for name, column in schema.sample(np.random.default_rng(2), 150).items()}
    quiet = replace(plan, noise_multiplier=0.0)

    def told(rows):
        compiled_anew()
        return loop.run(noise.simulated(3), quiet, query, store(schema, rows)).last

    whole = told(tables)
    monkeypatch.setattr(clipping, "MOST_ENTRIES", 16 * query.size)
    found = told(tables)
    np.testing.assert_array_equal(found, whole)
    assert found.shape == (3, MODELS["gaussian"].dim)
    for number in range(3):
        np.testing.assert_array_equal(told({name: column[number] for name, column in tables.items()}), whole[number])
