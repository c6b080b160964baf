"""The adaptive loop: ask, sum, add noise, update; a scan inside, Python outside."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from discreet.mechanism.checkpoint import Checkpoint, CheckpointError
from discreet.mechanism.clipping import bounded_sum, of_unit, privatize
from discreet.mechanism.noise import Noise
from discreet.mechanism.products import FEATURES, MOST_ROWS, linear_sum, with_features
from discreet.mechanism.rows import Packed, Rows, encoded_kind, packed, read_batches, unpacked
from discreet.mechanism.sampling import Batches, draw_batches
from discreet.plan import Plan
from discreet.query import Numbers, Phase, Point, Products, Program, Query
from discreet.release import Blocks, Cross, Release, multiply, summarize

BLOCKS = 100
KEEP = {
    "blocks": lambda points, blocks: None,
    "cross": lambda points, blocks: jax.vmap(multiply)(blocks),
    "trace": lambda points, blocks: points,
}
CHUNK_ENTRIES = 2**25
CHUNK_WORK = 2**25
MOST_FEATURES = 2**27
PRECISIONS = ("double", "single")


class Draws(NamedTuple):
    """What a chunk of steps consumes: public keys, secret batches, secret noise, and the rows of the batches where
    these are read from files.
    """

    keys: Array
    batches: Batches
    noise: Numbers
    rows: Packed | None = None


class Scales(NamedTuple):
    """The two numbers of the plan that decide the guarantee of a step."""

    clip_norm: Numbers
    noise_scale: Numbers


class Chunk(NamedTuple):
    """How many blocks are made at once, and how many steps each has."""

    blocks: int
    steps: int


def run(
    noise: Noise,
    plan: Plan,
    query: Query,
    rows: Rows,
    *,
    keep: str = "blocks",
    precision: str = "double",
    progress: Callable[[range], Iterable[int]] = iter,
    checkpoint: Checkpoint | None = None,
) -> Release:
    """The release of `plan.steps` answers to `query`: block moments, and on request products (`keep` = "cross") or
    every point ("trace").

    Guarantee: with secure noise this is `accounting.event(plan)` under `plan.relation`, also if it was cut short and
    went on from its `checkpoint`, which is charged when all was checked and before the first row is asked. `progress`
    wraps the range of chunks and sees their number only. `precision` = "single" is for simulated comparisons.
    """
    only = Phase(plan, query, keep)
    return run_phases(
        noise, (plan,), lambda told: only, rows, precision=precision, progress=progress, checkpoint=checkpoint
    )


def run_phases(
    noise: Noise,
    plans: Sequence[Plan],
    phase: Callable[[Sequence[Release]], Phase],
    rows: Rows,
    *,
    precision: str = "double",
    progress: Callable[[range], Iterable[int]] = iter,
    checkpoint: Checkpoint | None = None,
) -> Release:
    """The release of the last of several phases; those before it are its `before`.

    `phase(told)` says what is asked next, given the releases so far: it is public, and may choose the question and the
    clip norm, but nothing else of the plan that was made for this phase, and charged.

    Guarantee: with secure noise this is `accounting.event(plans)`; for the rest as `run`.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} must be one of {', '.join(PRECISIONS)}")
    if precision == "single" and noise.kind == "secure":
        raise ValueError("precision='single': its sums are not exact, so no guarantee holds; use simulated noise")
    for plan in plans:
        _check(noise, plan, rows)
    with jax.enable_x64(precision == "double"):
        keys = _public_keys(noise, rows.replicas)
        asked = _ready(keys[0], plans[0], phase(()), rows)
        noise.claim()
        done, leaves, told = 0, [], []
        if checkpoint is not None:
            planned, settings = [plan.to_dict() for plan in plans], dict(asked.query.settings)
            facts = {"plans": planned, "settings": settings, "keep": asked.keep, "chunks": asked.chunks}
            done, leaves, told = checkpoint.restore(noise, {**facts, "schema": rows.schema.to_toml()}, rows)
            checkpoint.save(noise, done, asked.resumed(leaves) if done <= len(asked.chunks) else leaves)
            checkpoint.charge(plans[0] if len(plans) == 1 else tuple(plans))
        releases: list[Release] = []
        first = 0
        for plan in plans:
            if releases:
                asked = _ready(keys[0], plan, phase(releases), rows)
            last = first + len(asked.chunks)
            state = asked.resumed(leaves) if first < done <= last else asked.state
            outputs: list[Any] = [_output(asked.keep, parts) for parts in told[first:last]]
            shown = progress if len(asked.chunks) > 1 or len(plans) == 1 else iter
            for index in shown(range(max(done, first), last)):
                shape = asked.chunks[index - first]
                draws = _draw(noise, asked.plan, asked.query, rows, index, shape.blocks * shape.steps, keys[1])
                jax.block_until_ready(state)  # this chunk's noise was made while the last one ran; go no further ahead
                order, several = asked.plan.norm_order, rows.replicas is not None
                compiled = _compiled(asked.query.program, asked.keep, order, shape, several)
                state, block, kept = compiled(asked.scales, state, asked.stored, draws)
                outputs.append((block, kept, asked.query.last(state)))
                if checkpoint is not None:
                    checkpoint.save(noise, index + 1, state, outputs[-1])
            releases.append(_collect(noise, asked, outputs, 0 if rows.replicas is None else 1))
            first = last
        return replace(releases[-1], before=tuple(releases[:-1]))


class _Ready(NamedTuple):
    """A phase that was checked, and what its chunks are given."""

    plan: Plan
    query: Query
    keep: str
    state: Any
    chunks: list[Chunk]
    stored: Any
    scales: Scales

    def resumed(self, leaves: Sequence[np.ndarray]) -> Any:
        """The state of a run that was cut short, from its parts; that of a new one, if there are none."""
        if not len(leaves):
            return self.state
        tree = jax.tree.structure(self.state)
        if len(leaves) != tree.num_leaves:
            raise CheckpointError("the checkpoint is of another query: give another folder")
        return jax.tree.unflatten(tree, leaves)


def _ready(start: Array, planned: Plan, phase: Phase, rows: Rows) -> _Ready:
    plan, query, keep = phase
    if keep not in KEEP:
        raise ValueError(f"keep={keep!r} must be one of {', '.join(KEEP)}")
    if replace(plan, clip_norm=planned.clip_norm) != planned:
        raise ValueError(f"this phase asks under {plan}, but {planned} was planned and charged: keep to it")
    missing = set(query.columns) - set(rows.schema.names)
    if missing:
        raise ValueError(f"the query needs columns {sorted(missing)}; the table has {list(rows.schema.names)}")
    query = _by_layout(plan, query, rows)
    state = query.init(start) if rows.replicas is None else jax.vmap(query.init)(start)
    chunks = chunks_of(plan, rows, _check_shapes(query, rows), query.size)
    scales = Scales(np.array(plan.clip_norm), np.array(plan.noise_scale))
    return _Ready(plan, query, keep, state, chunks, prepared(query, rows), scales)


@lru_cache(maxsize=64)
def _compiled(program: Program, keep: str, order: int, shape: Chunk, several: bool) -> Callable:
    """A chunk of this shape; runs of one shape share it."""
    one = partial(chunk, program, keep, order, shape)
    return jax.jit(jax.vmap(one, in_axes=(None, 0, 0, 0)) if several else one, compiler_options=_compiler_options())


def chunk(program: Program, keep: str, order: int, shape: Chunk, scales: Scales, state, stored, draws: Draws):
    """Several blocks of steps; returns the state, the moments of the blocks and what else is to be kept of points."""

    def step(state, inputs):
        chance, draw = inputs
        question = program.ask(chance, state)
        rows = _picked(stored, draw)
        multiplicity, clip_norm = draw.batches.multiplicity, scales.clip_norm
        if program.products is None:
            total = bounded_sum(program.row_value, question, rows, multiplicity, clip_norm, order)
        else:
            rows = rows if FEATURES in rows else with_features(program.products, rows)
            total = linear_sum(program.products, question, rows, multiplicity, clip_norm)
        answer = privatize(total, draw.noise, scales.noise_scale, clip_norm)
        return program.update(state, question, answer)

    state, points = jax.lax.scan(step, state, (jax.vmap(program.chance)(draws.keys), draws))
    blocks = jax.tree.map(lambda part: part.reshape(shape.blocks, shape.steps, *part.shape[1:]), points)
    return state, jax.vmap(summarize)(blocks), KEEP[keep](points, blocks)


def _picked(stored: Any, draw: Draws) -> dict[str, Array]:
    """The rows of a step's batch, by column."""
    parts: Any = stored if draw.rows is None else draw.rows
    indices = draw.batches.indices
    if draw.rows is None and indices is not None:
        parts = {names: part.at[indices].get(mode="promise_in_bounds") for names, part in stored.items()}
    return parts if FEATURES in parts else unpacked(parts)


def _by_layout(plan: Plan, query: Query, rows: Rows) -> Query:
    """The query as these rows are asked: by unit, and by matrix products where that is known to be right.

    Which of them depends on public values alone.
    """
    if rows.schema.unit is not None:
        return query._replace(row_value=of_unit(query.row_value, rows.unit), products=None)
    small, plain = (plan.batch_limit or plan.num_rows) <= MOST_ROWS, rows._counts is None and plan.norm_order == 2
    same = query.products is not None and query.products.row_value is query.row_value
    return query if small and plain and same else query._replace(products=None)


def prepared(query: Query, rows: Rows) -> Packed | dict[str, Array]:
    """What chunks are given of the rows: columns side by side, or with features that are made once, by name.

    Features are left out where they would take too much memory.
    """
    if rows._files is not None:
        return {}
    columns = jax.tree.map(jax.numpy.asarray, rows._columns)
    if query.products is not None and (rows.replicas or 1) * rows.num_rows * query.products.dim <= MOST_FEATURES:
        return _featured(query.products, rows.replicas is not None)(columns)
    return packed(columns)


@lru_cache(maxsize=64)
def _featured(products: Products, several: bool) -> Callable:
    make = partial(with_features, products)
    return jax.jit(jax.vmap(make) if several else make)


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


def chunks_of(plan: Plan, rows: Rows, entries: int, size: int) -> list[Chunk]:
    """About a hundred blocks of equal length, and what is left. Several short ones make a chunk, as fit in memory.

    `entries` are those of a point, `size` those of a row's answer. Chunks are equal but for the last: each shape is
    compiled.
    """
    stored = rows.num_rows if rows._counts is None else rows._counts.shape[-1]
    batch = (rows.replicas or 1) * min(stored, plan.batch_limit or stored)
    width = batch if rows._files is None else batch * len(rows.schema.names)
    most = max(1, CHUNK_ENTRIES // max((rows.replicas or 1) * entries, width))
    steps = min(-(-plan.steps // BLOCKS), most)
    blocks, rest = divmod(plan.steps, steps)
    together = max(1, min(blocks, most // steps, CHUNK_WORK // (steps * batch * size)))
    together -= next(less for less in range(together) if blocks % (together - less) == 0)
    return [Chunk(together, steps)] * (blocks // together) + [Chunk(1, rest)] * (rest > 0)


def _draw(noise: Noise, plan: Plan, query: Query, rows: Rows, index: int, steps: int, keys: Array) -> Draws:
    batches = draw_batches(noise, index, plan, steps, rows._counts, rows.replicas)
    if rows.replicas is not None:
        split = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, index), steps))(keys)
        return Draws(split, batches, noise.draw(plan.noise_kind, index, (rows.replicas, steps, query.size)))
    split = jax.random.split(jax.random.fold_in(keys, index), steps)
    answers = noise.draw(plan.noise_kind, index, (steps, query.size))
    return Draws(split, batches, answers, read_batches(rows, batches.indices))


def _public_keys(noise: Noise, replicas: int | None) -> tuple[Array, Array]:
    start, steps = jax.random.split(noise.public_key())
    if replicas is None:
        return start, steps
    return jax.random.split(start, replicas), jax.random.split(steps, replicas)


def _output(keep: str, leaves):
    """What a chunk told, from its parts: moments, what else was kept of points, and the last iterate."""
    moments = len(Blocks._fields)
    others = {"blocks": lambda *_: None, "cross": Cross, "trace": Point}
    return Blocks(*leaves[:moments]), others[keep](*leaves[moments:-1]), leaves[-1]


def _collect(noise: Noise, asked: _Ready, outputs, axis: int) -> Release:
    blocks, kept, last = zip(*outputs, strict=True)

    def joined(parts):
        return type(parts[0])(*(np.concatenate(field, axis) for field in zip(*parts, strict=True)))

    trace = joined(kept) if isinstance(kept[0], Point) else None
    cross = joined(kept) if isinstance(kept[0], Cross) else None
    return Release(asked.plan, noise.kind, asked.query.settings, joined(blocks), np.asarray(last[-1]), trace, cross)


def _check(noise: Noise, plan: Plan, rows: Rows) -> None:
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
    if rows._files is not None and plan.sampling == "poisson" and plan.batch_limit in (None, plan.num_rows):
        raise ValueError(
            f"batch_limit={plan.batch_limit}: rows on disk are read by batches; give a limit below {plan.num_rows}, or "
            "encode a table this small without a folder"
        )


def _check_shapes(query: Query, rows: Rows) -> int:
    """The number of entries of a point, and its randomness, once the query was found to answer as it says."""
    axes = 1 if rows.replicas is None else 2
    kinds = {name: column.dtype for name, column in rows._columns.items()}
    if rows._files is not None:
        kinds = {name: np.dtype(encoded_kind(rows.schema[name])) for name in kinds}
    row = {name: jax.ShapeDtypeStruct(rows._columns[name].shape[axes:], kind) for name, kind in kinds.items()}
    state, tree = jax.tree.flatten(jax.eval_shape(query.init, jax.random.key(0)))
    return _entries(query.program, query.size, tuple(row.items()), tuple(state), tree, str(jax.numpy.zeros(()).dtype))


@lru_cache(maxsize=64)
def _entries(program: Program, size: int, columns: tuple, leaves: tuple, tree: Any, floats: str) -> int:
    row, state, key = dict(columns), jax.tree.unflatten(tree, leaves), jax.random.key(0)
    chance = jax.eval_shape(program.chance, key)
    question = jax.eval_shape(program.ask, chance, state)
    answer = jax.eval_shape(program.row_value, question, row)
    one = {name: jax.ShapeDtypeStruct((1, *value.shape), value.dtype) for name, value in row.items()}
    jax.eval_shape(partial(bounded_sum, program.row_value), question, one, np.ones(1), np.ones(()))
    if answer.shape != (size,):
        raise ValueError(f"row_value gives shape {answer.shape}; the query's size is {size}")
    if str(answer.dtype) != floats:
        raise ValueError(f"row_value gives {answer.dtype}: let rows answer with floats of full precision")
    after, point = jax.eval_shape(program.update, state, question, answer)
    alike = jax.tree.structure(after) == tree and all(
        (one.shape, one.dtype) == (other.shape, other.dtype)
        for one, other in zip(jax.tree.leaves(after), leaves, strict=True)
    )
    if not alike:
        raise ValueError("update gives a state of another shape or type than init: a step must be like the one before")
    return sum(part.size for part in jax.tree.leaves((chance, point)))
