"""Thousands of simulated fits: the one door through which simulated rows reach the mechanism.

A study is cut into parts. Within a part all fits are one vectorised computation (`simulate_fits`); parts are kept on
disk as they are finished and may run in several processes or on a Dask cluster (`run`).
"""

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from discreet.atomic import cache_folder, new_file
from discreet.mechanism import loop, noise
from discreet.mechanism.rows import Rows, store
from discreet.model import Model, simulate_table
from discreet.plan import Plan
from discreet.query import Query
from discreet.release import Release
from discreet.schema import Covariates, Schema

Part = dict[str, np.ndarray]
ONE_THREAD = {
    "NPROC": "1",  # XLA's
    "OPENBLAS_NUM_THREADS": "1",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",
}


class Study(NamedTuple):
    """K simulated data sets: the unconstrained truths (K, dim), the tables, and the release of all their fits."""

    truth: np.ndarray
    tables: dict[str, np.ndarray]
    release: Release


def simulate_fits(
    seed: int,
    model: Model,
    schema: Schema,
    plan: Plan,
    query: Query,
    replicas: int,
    progress: Callable[[range], Iterable[int]] = iter,
    *,
    covariates: Covariates | None = None,
    keep: str = "blocks",
) -> Study:
    """Draw `replicas` truths from the prior and a table from each, and run `plan` on all of them at once.

    `model` makes the tables; what is fitted is the query's own affair, so that a likelihood can be wrong.
    """
    truth, tables = simulate_tables(seed, model, schema, plan.num_rows, replicas, covariates)
    return Study(truth, tables, fit_tables(seed, schema, plan, query, tables, progress, keep=keep))


def fit_tables(
    seed: int,
    schema: Schema,
    plan: Plan,
    query: Query,
    tables: dict[str, np.ndarray],
    progress: Callable[[range], Iterable[int]] = iter,
    *,
    keep: str = "blocks",
) -> Release:
    """One release of all the encoded tables (replicas, num_rows), with simulated noise."""
    return loop.run(noise.simulated(seed), plan, query, store(schema, tables), keep=keep, progress=progress)


def simulate_tables(
    seed: int, model: Model, schema: Schema, num_rows: int, replicas: int, covariates: Covariates | None = None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Truths from the prior (replicas, dim) and encoded tables (replicas, num_rows) from the model at each truth.

    `covariates` draws that many rows of encoded columns; without it they are uniform on what the schema declares.
    Where the schema has a unit, `num_rows` counts units, whose sizes are the same in all tables.
    """
    rng, units = np.random.default_rng(seed), {}
    if schema.unit is not None:
        units = {schema.unit.column: np.repeat(np.arange(num_rows), schema.unit.sizes(rng, num_rows))}
        num_rows = len(units[schema.unit.column])
    flat = (covariates or schema.sample)(rng, replicas * num_rows)
    shaped = {name: column.reshape(replicas, num_rows) for name, column in flat.items()}

    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(seed), replicas)
        truth, tables = jax.jit(jax.vmap(partial(simulate_table, model)))(keys, shaped)
    return np.asarray(truth), {**{name: np.asarray(values) for name, values in tables.items()}, **units}


def one_table(schema: Schema, tables: Mapping[str, np.ndarray], place: int) -> dict[str, np.ndarray]:
    """The columns of one of several encoded tables (replicas, num_rows), whose units are the same."""
    shared = None if schema.unit is None else schema.unit.column
    return {name: column if name == shared else column[place] for name, column in tables.items()}


def stored(schema: Schema, table: dict[str, np.ndarray]) -> Rows:
    """The rows of an encoded table that is simulated, or public."""
    return store(schema, table)


def chosen(release: Release, which: np.ndarray | int) -> Release:
    """The release of some replicas (a mask or positions), or of one of them by its number, without replicas."""

    def part(fields):
        return None if fields is None else type(fields)(*(np.asarray(field)[which] for field in fields))

    blocks, trace, cross = part(release.blocks), part(release.trace), part(release.cross)
    return replace(release, blocks=blocks, last=release.last[which], trace=trace, cross=cross)


def diverged(release: Release) -> np.ndarray:
    """Which replicas have steps that are not finite, shape (replicas,)."""
    moments = (np.asarray(field) for field in release.blocks)
    return ~np.all([np.isfinite(field).all((-2, -1)) for field in moments], axis=0)


def run(
    job: Callable[[int], Part],
    count: int,
    folder: str | Path,
    facts: Mapping[str, Any],
    *,
    workers: int = 1,
    dask: str | None = None,
    progress: Callable[[range], Iterable[int]] = iter,
) -> list[Part]:
    """[job(0), …, job(count − 1)], each kept in `folder` when it is done, so that a study goes on after a kill.

    `facts` are plain values that say which study this is: a folder with other facts is refused. `workers` is the
    number of local processes (1: this one); `dask` the address of a scheduler, whose workers must be able to import
    what the job imports. A job that raises ends the study; the parts that were done stay.
    """
    folder = Path(folder)
    _claim(folder, facts)
    parts = {index: part for index in range(count) if (part := _read(folder, index)) is not None}
    missing = [index for index in range(count) if index not in parts]
    with _finished(job, missing, workers, dask) as finished:
        for _, (index, part) in zip(progress(range(len(missing))), finished, strict=True):
            _write(folder, index, part)
            parts[index] = part
    return [parts[index] for index in range(count)]


def joined(parts: list[Part]) -> Part:
    """All replicas of all parts, under the same names."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@contextmanager
def _finished(job, missing: list[int], workers: int, dask: str | None) -> Iterator[Iterable[tuple[int, Part]]]:
    """(index, result) of each job in the order in which they end."""
    if not missing or (workers == 1 and dask is None):
        yield ((index, job(index)) for index in missing)
        return
    with _executor(min(workers, len(missing)), dask) as executor:
        futures = {executor.submit(job, index): index for index in missing}
        try:
            yield ((futures[future], future.result()) for future in as_completed(futures))
        finally:
            for future in futures:
                future.cancel()


@contextmanager
def _executor(workers: int, dask: str | None) -> Iterator[Executor]:
    if dask is None:
        compiled = {"JAX_COMPILATION_CACHE_DIR": str(cache_folder() / "compiled")}
        with _environment(ONE_THREAD | compiled), ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            yield pool
        return
    try:
        from distributed import Client
    except ImportError:
        raise ValueError("a Dask cluster needs the package distributed: pip install 'discreet[cluster]'") from None
    try:
        client: AbstractContextManager[Any] = Client(dask, timeout=10)
    except OSError as error:
        raise ValueError(f"no Dask scheduler answers at {dask!r} ({error}): start one with dask scheduler") from None
    with client as connected:
        yield connected.get_executor(pure=False)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables that processes started inside will see; what was set before wins."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _claim(folder: Path, facts: Mapping[str, Any]) -> None:
    text = json.dumps(dict(facts), sort_keys=True, indent=1) + "\n"
    path = folder / "study.json"
    if path.is_file():
        if path.read_text() != text:
            raise ValueError(f"{folder} holds parts of another study (see study.json): remove it, or name another")
        return
    folder.mkdir(parents=True, exist_ok=True)
    with new_file(path) as scratch:
        scratch.write_text(text)


def _write(folder: Path, index: int, part: Part) -> None:
    """The part's arrays after their checksum, all or nothing."""
    arrays = io.BytesIO()
    np.savez(arrays, **part)  # pyright: ignore[reportArgumentType]
    with new_file(folder / f"part-{index}") as scratch:
        scratch.write_bytes(hashlib.sha256(arrays.getvalue()).digest() + arrays.getvalue())


def _read(folder: Path, index: int) -> Part | None:
    """A part that was finished; None if it was not, or if its file is damaged."""
    path = folder / f"part-{index}"
    content = path.read_bytes() if path.is_file() else b""
    if len(content) < 32 or hashlib.sha256(content[32:]).digest() != content[:32]:
        return None
    with np.load(io.BytesIO(content[32:]), allow_pickle=False) as file:
        return dict(file)


__all__ = [
    "Part",
    "Study",
    "chosen",
    "diverged",
    "fit_tables",
    "joined",
    "one_table",
    "run",
    "simulate_fits",
    "simulate_tables",
    "stored",
]
