"""Thousands of simulated fits as one computation: the one door through which simulated rows reach the mechanism."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from discreet.mechanism import loop, noise
from discreet.mechanism.rows import store
from discreet.model import Model, simulate_table
from discreet.plan import Plan
from discreet.query import Query
from discreet.release import Release
from discreet.schema import Schema


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
) -> Study:
    """Draw `replicas` truths from the prior and a table from each, and run `plan` on all of them at once."""
    truth, tables = simulate_tables(seed, model, schema, plan.num_rows, replicas)
    rows = store(schema, tables)
    return Study(truth, tables, loop.run(noise.simulated(seed), plan, query, rows, progress=progress))


def simulate_tables(
    seed: int, model: Model, schema: Schema, num_rows: int, replicas: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Truths from the prior (replicas, dim) and encoded tables (replicas, num_rows) from the model at each truth.

    Covariates are uniform on what the schema declares.
    """
    flat = schema.sample(np.random.default_rng(seed), replicas * num_rows)
    covariates = {name: column.reshape(replicas, num_rows) for name, column in flat.items()}

    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(seed), replicas)
        truth, tables = jax.jit(jax.vmap(partial(simulate_table, model)))(keys, covariates)
    return np.asarray(truth), {name: np.asarray(values) for name, values in tables.items()}
