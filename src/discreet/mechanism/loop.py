"""The adaptive loop: ask, sum, add noise, update; a scan inside, Python outside."""

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from discreet.mechanism.checkpoint import Checkpoint
from discreet.mechanism.clipping import bounded_sum, of_unit, privatize
from discreet.mechanism.noise import Noise
from discreet.mechanism.rows import Rows
from discreet.mechanism.sampling import Batches, draw_batches
from discreet.plan import Plan
from discreet.query import Numbers, Point, Query
from discreet.release import Blocks, Cross, Release, multiply, summarize

BLOCKS = 100
KEEP = {"blocks": None, "cross": multiply, "trace": lambda points: points}
CHUNK_ENTRIES = 2**25


class Draws(NamedTuple):
    """What a chunk of steps consumes: public keys, secret batches and secret noise."""

    keys: Array
    batches: Batches
    noise: Numbers


class Scales(NamedTuple):
    """The two numbers of the plan that decide the guarantee of a step."""

    clip_norm: Numbers
    noise_scale: Numbers


def run(
    noise: Noise,
    plan: Plan,
    query: Query,
    rows: Rows,
    *,
    keep: str = "blocks",
    progress: Callable[[range], Iterable[int]] = iter,
    checkpoint: Checkpoint | None = None,
) -> Release:
    """The release of `plan.steps` answers to `query`: block moments, and on request products (`keep` = "cross") or
    every point ("trace").

    Guarantee: with secure noise this is `accounting.event(plan)` under `plan.relation`, also if it was cut short and
    went on from its `checkpoint`, which is charged when all was checked and before the first row is asked. `progress`
    wraps the range of blocks and sees their number only.
    """
    if keep not in KEEP:
        raise ValueError(f"keep={keep!r} must be one of {', '.join(KEEP)}")
    _check(noise, plan, query, rows)
    if rows.schema.unit is not None:
        query = query._replace(row_value=of_unit(query.row_value, rows.unit))
    with jax.enable_x64(True):
        one_chunk = partial(chunk, query, keep, plan.norm_order)
        entries = _check_shapes(query, rows)
        every = one_chunk if rows.replicas is None else jax.vmap(one_chunk, in_axes=(None, 0, 0, 0))
        compiled = jax.jit(every, compiler_options=_compiler_options())
        scales = Scales(np.array(plan.clip_norm), np.array(plan.noise_scale))
        columns = jax.tree.map(jax.numpy.asarray, rows._columns)
        start, keys = _public_keys(noise, rows.replicas)
        state = query.init(start) if rows.replicas is None else jax.vmap(query.init)(start)
        noise.claim()
        outputs, done = [], 0
        lengths = block_lengths(plan, rows, entries)
        if checkpoint is not None:
            facts = {"plan": plan.to_dict(), "settings": dict(query.settings), "keep": keep, "lengths": lengths}
            done, state, told = checkpoint.restore(noise, {**facts, "schema": rows.schema.to_toml()}, rows, state)
            outputs = [_output(keep, leaves) for leaves in told]
            checkpoint.save(noise, done, state)
            checkpoint.charge(plan)
        for index in progress(range(done, len(lengths))):
            draws = _draw(noise, plan, query, rows, index, lengths[index], keys)
            jax.block_until_ready(state)  # noise for this block was made while the last one ran; go no further ahead
            state, block, kept = compiled(scales, state, columns, draws)
            outputs.append((block, kept))
            if checkpoint is not None:
                checkpoint.save(noise, index + 1, state, (block, kept))
        return _collect(noise, plan, query, state, outputs, 0 if rows.replicas is None else 1)


def chunk(query: Query, keep: str, order: int, scales: Scales, state, columns: dict[str, Array], draws: Draws):
    """Several steps; returns the state, the block's moments and what else is to be kept of its points."""

    packed = _packed(columns)

    def step(state, inputs):
        chance, draw = inputs
        question = query.ask(chance, state)
        batch = columns if draw.batches.indices is None else _picked(packed, draw.batches.indices)
        total = bounded_sum(query.row_value, question, batch, draw.batches.multiplicity, scales.clip_norm, order)
        answer = privatize(total, draw.noise, scales.noise_scale, scales.clip_norm)
        return query.update(state, question, answer)

    state, points = jax.lax.scan(step, state, (jax.vmap(query.chance)(draws.keys), draws))
    return state, summarize(points), KEEP[keep](points) if KEEP[keep] else None


@cache
def _compiler_options() -> dict[str, str]:
    """Sums over a row's few numbers by XLA's own loops: jaxlib 0.10 hands them to a library that is four times slower.

    The option is young: a jaxlib that does not know it goes without.
    """
    options = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
    try:
        jax.jit(lambda x: x + 1, compiler_options=options)(0)
    except jax.errors.JaxRuntimeError:
        return {}
    return options


def _packed(columns: dict[str, Array]) -> dict[tuple[str, ...], Array]:
    """Columns of one type side by side under all their names: picking rows of one array is quicker than of many."""
    kinds = {column.dtype for column in columns.values()}
    alike = [tuple(name for name, column in columns.items() if column.dtype == kind) for kind in kinds]
    return {names: jax.numpy.stack([columns[name] for name in names], axis=-1) for names in sorted(alike)}


def _picked(packed: dict[tuple[str, ...], Array], indices: Array) -> dict[str, Array]:
    rows = {names: columns[indices] for names, columns in packed.items()}
    return {name: rows[names][..., place] for names in rows for place, name in enumerate(names)}


def block_lengths(plan: Plan, rows: Rows, entries: int) -> list[int]:
    """Steps per block: about a hundred blocks, more where batches or points (of `entries`) would not fit in memory."""
    stored = rows.num_rows if rows._counts is None else rows._counts.shape[-1]
    width = (rows.replicas or 1) * max(entries, min(stored, plan.batch_limit or stored))
    length = max(1, min(-(-plan.steps // BLOCKS), CHUNK_ENTRIES // width))
    full, rest = divmod(plan.steps, length)
    return [length] * full + [rest] * (rest > 0)


def _draw(noise: Noise, plan: Plan, query: Query, rows: Rows, index: int, steps: int, keys: Array) -> Draws:
    batches = draw_batches(noise, index, plan, steps, rows._counts, rows.replicas)
    if rows.replicas is None:
        split = jax.random.split(jax.random.fold_in(keys, index), steps)
        return Draws(split, batches, noise.draw(plan.noise_kind, index, (steps, query.size)))
    split = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, index), steps))(keys)
    return Draws(split, batches, noise.draw(plan.noise_kind, index, (rows.replicas, steps, query.size)))


def _public_keys(noise: Noise, replicas: int | None) -> tuple[Array, Array]:
    start, steps = jax.random.split(noise.public_key())
    if replicas is None:
        return start, steps
    return jax.random.split(start, replicas), jax.random.split(steps, replicas)


def _output(keep: str, leaves):
    """What a block told, from its parts."""
    moments = len(Blocks._fields)
    others = {"blocks": lambda *_: None, "cross": Cross, "trace": Point}
    return Blocks(*leaves[:moments]), others[keep](*leaves[moments:])


def _collect(noise: Noise, plan: Plan, query: Query, state, outputs, axis: int) -> Release:
    blocks, kept = zip(*outputs, strict=True)
    stacked = Blocks(*(np.stack(field, axis) for field in zip(*blocks, strict=True)))
    trace = cross = None
    if isinstance(kept[0], Point):
        trace = Point(*(np.concatenate(field, axis) for field in zip(*kept, strict=True)))
    elif isinstance(kept[0], Cross):
        cross = Cross(*(np.stack(field, axis) for field in zip(*kept, strict=True)))
    return Release(plan, noise.kind, query.settings, stacked, np.asarray(query.last(state)), trace, cross)


def _check(noise: Noise, plan: Plan, query: Query, rows: Rows) -> None:
    if rows.num_rows != plan.num_rows:
        there = f"{rows.num_rows} {rows.unit}s"
        raise ValueError(f"plan.num_rows={plan.num_rows} but the table has {there}: make a new plan")
    if rows.unit != plan.unit:
        raise ValueError(f"plan.unit={plan.unit!r} but the schema protects each {rows.unit!r}: make a new plan")
    if noise.kind == "secure" and plan.noise_multiplier == 0:
        raise ValueError("noise_multiplier=0 adds no noise: calibrate the plan, or use simulated noise for a study")
    if noise.kind == "secure" and rows.replicas is not None:
        raise ValueError("replicas are for simulated studies: a private release is of one table")
    if rows._counts is not None and plan.sampling != "poisson":
        raise ValueError(f"sampling={plan.sampling!r}: these rows are held as counts and need Poisson sampling")
    if rows._counts is not None and plan.batch_limit not in (None, plan.num_rows):
        raise ValueError(f"batch_limit={plan.batch_limit}: these rows are held as counts and need batch_limit=None")
    missing = set(query.columns) - set(rows.schema.names)
    if missing:
        raise ValueError(f"the query needs columns {sorted(missing)}; the table has {list(rows.schema.names)}")


def _check_shapes(query: Query, rows: Rows) -> int:
    """The number of entries of a point, and its randomness, once the query was found to answer as it says."""
    axes = 1 if rows.replicas is None else 2
    row = {name: jax.ShapeDtypeStruct(column.shape[axes:], column.dtype) for name, column in rows._columns.items()}
    key = jax.random.key(0)
    state = jax.eval_shape(query.init, key)
    chance = jax.eval_shape(query.chance, key)
    question = jax.eval_shape(query.ask, chance, state)
    answer = jax.eval_shape(query.row_value, question, row)
    one = {name: jax.ShapeDtypeStruct((1, *value.shape), value.dtype) for name, value in row.items()}
    jax.eval_shape(partial(bounded_sum, query.row_value), question, one, np.ones(1), np.ones(()))
    if answer.shape != (query.size,):
        raise ValueError(f"row_value gives shape {answer.shape}; the query's size is {query.size}")
    _, point = jax.eval_shape(query.update, state, question, answer)
    return sum(part.size for part in jax.tree.leaves((chance, point)))
