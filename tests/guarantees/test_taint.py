"""No output of any mechanism depends on rows except through clip and noise; planted leaks are caught."""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from discreet.mechanism import clipping, loop, noise
from discreet.mechanism.clipping import bounded_sum, privatize
from discreet.mechanism.rows import encode, store
from discreet.plan import NORM_ORDERS
from discreet.schema import Unit
from tests.guarantees.mechanisms import SCHEMAS, VANILLA, Recipe, every, make
from tests.guarantees.taint import BOUNDED, CLIPS, PUBLIC, RAW, SAMPLED, SCALE, SECRET, LeakError, assert_public

STEPS = 4


def arguments(plan, query, rows, stored=None):
    """What one chunk is given, and the level of each part."""
    columns = jax.tree.map(jnp.asarray, rows._columns) if stored is None else stored
    draws = loop._draw(noise.simulated(1), plan, query, rows, 0, STEPS, jax.random.key(0))
    state = query.init(jax.random.key(1))
    scales = loop.Scales(np.float64(plan.clip_norm), np.float64(plan.noise_scale))
    batches = loop.Batches(None if draws.batches.indices is None else RAW, SAMPLED)
    levels = (
        loop.Scales(CLIPS[plan.norm_order], SCALE),
        jax.tree.map(lambda _: PUBLIC, state),
        jax.tree.map(lambda _: RAW, columns),
        loop.Draws(PUBLIC, batches, SECRET, jax.tree.map(lambda _: RAW, draws.rows)),
    )
    return (scales, state, columns, draws), levels


@every
def test_every_mechanism_is_public(name, recipe):
    assert_releases_are_public(*make(name, recipe))


def assert_releases_are_public(plan, query, rows):
    """Whatever is kept of a chunk."""
    with jax.enable_x64(True):
        asked = loop._by_layout(plan, query, rows)
        args, levels = arguments(plan, asked, rows, loop.prepared(asked, rows))
        for keep in loop.KEEP:
            shape = loop.Chunk(2, STEPS // 2)
            assert_public(partial(loop.chunk, asked.program, keep, plan.norm_order, shape), args, levels, STEPS)


def test_rows_that_are_summed_by_unit_are_public():
    plan, query, _ = make("logistic")
    schema = replace(SCHEMAS["logistic"], unit=Unit("person", 3, 2))
    people = {"person": np.arange(90) // 3 % plan.num_rows}
    rows = store(schema, schema.sample(np.random.default_rng(3), 90) | people)
    assert rows.num_rows == 30
    assert_releases_are_public(replace(plan, num_rows=30, unit="person", batch_limit=None), query, rows)


@pytest.mark.parametrize("fused", [True, False])
def test_rows_that_are_read_from_files_are_public(tmp_path, fused):
    plan, query, _ = make("logistic")
    schema = SCHEMAS["logistic"]
    table = schema.decode(schema.sample(np.random.default_rng(3), plan.num_rows))
    rows = encode(table, schema, tmp_path / "rows")
    assert_releases_are_public(plan, query if fused else query._replace(products=None), rows)


def test_sums_by_matrix_products_are_what_the_taint_check_saw():
    plan, query, rows = make("logistic")
    with jax.enable_x64(True):
        args, _ = arguments(plan, query, rows, loop.prepared(query, rows))
        traced = str(jax.make_jaxpr(partial(loop.chunk, query.program, "blocks", 2, loop.Chunk(1, STEPS)))(*args))
    assert "linear_sum" in traced
    assert "bounded_sum" not in traced


class Scales(NamedTuple):
    """The loop's scales, and the order of the norm that is clipped."""

    clip_norm: Any
    noise_scale: Any
    order: int


def planted(step, recipe=VANILLA):
    """The loop with its step replaced by a faulty one; returns (mechanism, arguments, levels)."""
    plan, query, rows = make("logistic", recipe)

    def mechanism(scales, state, columns, draws):
        scales = Scales(*scales, plan.norm_order)
        return jax.lax.scan(lambda state, draw: step(query, scales, state, columns, draw), state, draws)

    return mechanism, *arguments(plan, query, rows)


def gathered(columns, draw):
    indices = draw.batches.indices
    return columns if indices is None else {name: column[indices] for name, column in columns.items()}


def asked(query, scales, state, columns, draw, multiplicity=None, clip=None):
    question = query.ask(query.chance(draw.keys), state)
    batch = gathered(columns, draw)
    weights = draw.batches.multiplicity if multiplicity is None else multiplicity
    clip = scales.clip_norm if clip is None else clip
    return question, batch, bounded_sum(query.row_value, question, batch, weights, clip, scales.order)


def answered(query, scales, draw, total):
    return privatize(total, draw.noise, scales.noise_scale, scales.clip_norm)


def honest(query, scales, state, columns, draw):
    question, _, total = asked(query, scales, state, columns, draw)
    return query.update(state, question, answered(query, scales, draw, total))


def returned_loss(query, scales, state, columns, draw):
    question, batch, total = asked(query, scales, state, columns, draw)
    loss = jax.vmap(lambda row: query.row_value(question, row).sum())(batch).sum()
    return query.update(state, question, answered(query, scales, draw, total))[0], loss


def row_norms(query, scales, state, columns, draw):
    question, batch, total = asked(query, scales, state, columns, draw)
    norms = jnp.linalg.norm(jax.vmap(lambda row: query.row_value(question, row))(batch), axis=1)
    return query.update(state, question, answered(query, scales, draw, total))[0], norms


def batch_size(query, scales, state, columns, draw):
    question, _, total = asked(query, scales, state, columns, draw)
    new, _ = query.update(state, question, answered(query, scales, draw, total))
    return new, draw.batches.multiplicity.sum()


def rescaled_before_noise(query, scales, state, columns, draw):
    question, _, total = asked(query, scales, state, columns, draw)
    return query.update(state, question, answered(query, scales, draw, total * 2.0))


def unclipped_sum(query, scales, state, columns, draw):
    question = query.ask(query.chance(draw.keys), state)
    batch = gathered(columns, draw)
    total = jax.vmap(lambda row: query.row_value(question, row))(batch).sum(0)
    return query.update(state, question, answered(query, scales, draw, total))


def data_dependent_clip(query, scales, state, columns, draw):
    clip = jnp.abs(columns["age"]).max()
    question, _, total = asked(query, scales, state, columns, draw, clip=clip)
    return query.update(state, question, answered(query, scales, draw, total))


def other_clip(query, scales, state, columns, draw):
    question, _, total = asked(query, scales, state, columns, draw, clip=2.0 * scales.clip_norm)
    return query.update(state, question, answered(query, scales, draw, total))


def other_norm(query, scales, state, columns, draw):
    """Euclidean under Laplace noise, and the other way round."""
    return honest(query, scales._replace(order=3 - scales.order), state, columns, draw)


def returned_noise(query, scales, state, columns, draw):
    question, _, total = asked(query, scales, state, columns, draw)
    new, _ = query.update(state, question, answered(query, scales, draw, total))
    return new, draw.noise


def no_noise(query, scales, state, columns, draw):
    question, _, total = asked(query, scales, state, columns, draw)
    return query.update(state, question, privatize(total, draw.noise, jnp.zeros(()), scales.clip_norm))


def noise_used_twice(query, scales, state, columns, draw):
    question, _, total = asked(query, scales, state, columns, draw)
    first = answered(query, scales, draw, total)
    second = answered(query, scales, draw, asked(query, scales, state, columns, draw)[2])
    return query.update(state, question, 0.5 * (first + second))


def doubled_rows(query, scales, state, columns, draw):
    question, _, total = asked(query, scales, state, columns, draw, multiplicity=2.0 * draw.batches.multiplicity)
    return query.update(state, question, answered(query, scales, draw, total))


def row_in_question(query, scales, state, columns, draw):
    question = query.ask(query.chance(draw.keys), state)
    question = question._replace(phi=question.phi + columns["age"].mean())
    batch = gathered(columns, draw)
    total = bounded_sum(query.row_value, question, batch, draw.batches.multiplicity, scales.clip_norm, scales.order)
    return query.update(state, question, answered(query, scales, draw, total))


def unpaid_scale_gradient(query, scales, state, columns, draw):
    """The location is paid for; the scale is read off the rows at the same draws."""
    question, batch, total = asked(query, scales, state, columns, draw)
    new, point = query.update(state, question, answered(query, scales, draw, total))
    gradient = jax.vmap(lambda row: query.row_value(question, row))(batch).sum(0)
    location = len(new.phi) // 2
    return new._replace(phi=new.phi.at[location:].set(state.phi[location:] - gradient[location:])), point


def printed_row(query, scales, state, columns, draw):
    def row_value(question, row):
        jax.debug.print("{}", row["age"])
        return query.row_value(question, row)

    return honest(query._replace(row_value=row_value), scales, state, columns, draw)


def closed_over_rows(query, scales, state, columns, draw):
    def row_value(question, row):
        return query.row_value(question, row) + columns["age"].mean()

    return honest(query._replace(row_value=row_value), scales, state, columns, draw)


LEAKS = {
    returned_loss: "outputs",
    row_norms: "outputs",
    batch_size: "outputs",
    rescaled_before_noise: "bounded total",
    unclipped_sum: "bounded total",
    data_dependent_clip: "clip norm",
    returned_noise: "used twice",
    no_noise: "plan's scales",
    noise_used_twice: "used twice",
    other_clip: "clip norm",
    other_norm: "another norm",
    doubled_rows: "multiplicities",
    row_in_question: "question",
    unpaid_scale_gradient: "question",
    printed_row: "debug",
    closed_over_rows: "question",
}


kinds = pytest.mark.parametrize("kind", NORM_ORDERS)


@kinds
def test_the_honest_step_passes(kind):
    with jax.enable_x64(True):
        assert_public(*planted(honest, Recipe(noise_kind=kind)), STEPS)


@kinds
@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.__name__)
def test_planted_leaks_are_caught(leak, kind, monkeypatch):
    monkeypatch.setattr(clipping, "refuse_side_effects", lambda jaxpr: None)  # the mechanism's own guard
    with jax.enable_x64(True), pytest.raises(LeakError, match=LEAKS[leak]):
        assert_public(*planted(leak, Recipe(noise_kind=kind)), STEPS)


def test_returning_nothing_but_noise_is_a_leak():
    with jax.enable_x64(True):
        mechanism, args, levels = planted(lambda q, s, state, c, draw: (state, draw.noise))
        with pytest.raises(LeakError, match=r"SECRET|used twice"):
            assert_public(mechanism, args, levels, 0)


def test_noise_shared_by_all_steps_is_a_leak():
    plan, query, rows = make("logistic")
    with jax.enable_x64(True):
        args, levels = arguments(plan, query, rows)

        def mechanism(scales, state, columns, draws):
            same, scales = draws.noise[0], Scales(*scales, plan.norm_order)
            return jax.lax.scan(
                lambda state, draw: honest(query, scales, state, columns, draw._replace(noise=same)),
                state,
                draws,
            )

        with pytest.raises(LeakError):
            assert_public(mechanism, args, levels, STEPS)


def test_more_answers_than_priced_is_a_leak():
    with jax.enable_x64(True), pytest.raises(LeakError, match="prices"):
        assert_public(*planted(honest), STEPS - 1)


def test_a_lookalike_by_name_is_not_trusted():
    @jax.jit
    def privatize(total, noise, noise_scale, clip_norm):
        return total + 0 * noise

    def impostor(query, scales, state, columns, draw):
        question, _, total = asked(query, scales, state, columns, draw)
        return query.update(state, question, privatize(total, draw.noise, scales.noise_scale, scales.clip_norm))

    with jax.enable_x64(True), pytest.raises(LeakError):
        assert_public(*planted(impostor), STEPS)


def test_bounded_alone_is_not_public():
    with jax.enable_x64(True):
        mechanism, args, levels = planted(lambda q, s, state, c, d: (state, asked(q, s, state, c, d)[2]))
        with pytest.raises(LeakError, match=BOUNDED.name):
            assert_public(mechanism, args, levels, 0)
