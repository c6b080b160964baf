"""A plan tried on made-up tables before it meets the real one: do its intervals hold, how wide are they, how long?

Truths come from the prior and rows from the model: it says what the plan does if the model is right.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from discreet.evaluate import study
from discreet.evaluate.reference import non_private
from discreet.fitting import fit, phase_of, run_phases, simulated
from discreet.methods.score import resampled
from discreet.model import Model
from discreet.planner import Choice
from discreet.query import Phase
from discreet.schema import Schema

PROB = 0.9


class Rehearsal(NamedTuple):
    """Of K tables: the share of 90 % intervals that held the truth, its standard error (None for one table), widths ÷
    non-private (d,), and the seconds that a fit took.
    """

    coverage: float
    error: float | None
    widths: np.ndarray
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**self._asdict(), "widths": self.widths.tolist()}


def rehearse(
    model: Model,
    schema: Schema,
    choice: Choice,
    count: int,
    *,
    delta: float,
    sample: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
    progress: Callable[[range], Iterable[int]] = iter,
) -> Rehearsal:
    """Fit `count` tables drawn from the model with simulated noise, with this choice.

    Covariates are those of the public `sample`, or uniform on what the schema declares. Tables that cannot be fitted
    count as missed.
    """

    def covariates(rng, rows):
        return schema.sample(rng, rows) | resampled(rng, sample or {}, rows)

    truth, tables = study.simulate_tables(seed, model, schema, choice.plan.num_rows, count, covariates)
    held, widths, seconds = np.zeros((count, model.dim)), np.full((count, model.dim), np.nan), np.full(count, np.nan)
    for place in progress(range(count)):
        table = study.one_table(schema, tables, place)
        began = time.perf_counter()
        try:
            found = fit(
                model,
                study.stored(schema, table),
                epsilon=np.inf,
                delta=delta,
                choice=choice,
                noise=simulated(seed + place),
                draws=1000,
            )
            exact = non_private(model, {name: table[name] for name in schema.names}).covariance
        except ValueError:  # stays missed
            continue
        finally:
            seconds[place] = time.perf_counter() - began
        z = found.z.reshape(-1, model.dim)
        low, high = np.quantile(z, [(1 - PROB) / 2, (1 + PROB) / 2], axis=0)
        held[place] = (low <= truth[place]) & (truth[place] <= high)
        widths[place] = z.std(0) / np.sqrt(np.diag(exact))
    each = held.mean(1)
    if np.isnan(widths).all():
        raise ValueError("none of the made-up tables could be fitted: check the model's prior, or plan by hand")
    error = float(each.std(ddof=1) / np.sqrt(count)) if count > 1 else None
    return Rehearsal(float(each.mean()), error, np.nanmean(widths, 0), float(np.median(seconds)))


def rehearsed_phases(model: Model, schema: Schema, choice: Choice, seed: int = 0) -> list[Phase]:
    """What rows are asked in each phase of this choice: of a made-up table, where later questions depend on answers."""
    asked = phase_of(model, schema, choice)
    if not choice.before:
        return [asked(())]
    heard: list[Phase] = []

    def listening(told):
        heard.append(asked(told))
        return heard[-1]

    _, tables = study.simulate_tables(seed, model, schema, choice.plan.num_rows, 1)
    run_phases(simulated(seed), choice.plans, listening, study.stored(schema, study.one_table(schema, tables, 0)))
    return heard
