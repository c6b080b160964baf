"""Thousands of simulated fits as one computation: the one door through which simulated rows reach the mechanism."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import numpy as np

from discreet.mechanism import loop, noise
from discreet.mechanism.rows import store
from discreet.model import Model
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
    if model.simulate is None:
        raise ValueError("this model cannot simulate its outcome, so there is nothing to study")
    flat = schema.sample(np.random.default_rng(seed), replicas * num_rows)
    covariates = {name: column.reshape(replicas, num_rows) for name, column in flat.items()}

    def one(key, rows):
        first, second = jax.random.split(key)
        z = model.sample_prior(first)
        keys = jax.random.split(second, num_rows)
        return z, jax.vmap(lambda key, row: model.simulate(key, z, row))(keys, rows)

    with jax.enable_x64(True):
        truth, outcome = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(seed), replicas), covariates)
    return np.asarray(truth), covariates | {name: np.asarray(values) for name, values in outcome.items()}
