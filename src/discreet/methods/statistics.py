"""One question, asked once of every row: a vector of bounded statistics. What leaves is their sum plus noise.

Bernstein and Sheldon (2018, 2019) read a posterior from such a sum; the readings are `posterior.gibbs` and
`posterior.gibbs_regression`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from discreet.families.conjugate_regression import Statistic
from discreet.families.exponential import Conjugate
from discreet.model import Row
from discreet.plan import Plan, require
from discreet.query import Point, Query


def query(
    statistic: Callable[[Row], Array],
    size: int,
    columns: Sequence[str],
    plan: Plan,
    description: Mapping[str, Any] | None = None,
) -> Query:
    """Ask every row once for `statistic(row)`, a vector of `size` entries.

    The noisy sum is the release's `last`, and the y of its one point. `description` (plain public values) goes into
    the release's settings.

    Guarantee: one row moves the sum by at most the plan's clip norm, whatever `statistic` does. Rows whose statistic
    is longer are shortened, and the sum is then of something else: declare a clip norm that fits.

    >>> plan = Plan(num_rows=50, steps=1, sampling_prob=1.0, clip_norm=2.0, noise_multiplier=4.0)
    >>> query(lambda row: jnp.stack([row["x"], row["x"] ** 2]), 2, ["x"], plan).settings
    {'method': 'statistics', 'size': 2}
    """
    described = {"method": "statistics", "size": size, **(description or {})}
    return once(lambda question, row: statistic(row), (), size, columns, plan, described)


def once(
    row_value: Callable[[Any, Row], Array],
    question: Any,
    size: int,
    columns: Sequence[str],
    plan: Plan,
    settings: Mapping[str, Any],
) -> Query:
    """Ask every row once for row_value(question, row), a vector of `size`; `question` is public.

    Queries with the same row function share a compiled step. Guarantee: as of `query`.
    """
    require(plan.steps == 1, "steps", plan.steps, "be 1: the statistics are asked for once")
    require(plan.sampling_prob == 1, "sampling_prob", plan.sampling_prob, "be 1: every row takes part in the sum")
    whole = plan.batch_limit in (None, plan.num_rows)
    require(whole, "batch_limit", plan.batch_limit, "be None: every row takes part in the sum")
    require(plan.unit == "row", "unit", plan.unit, "be row: the number of rows, which the posterior needs, is secret")
    require(size >= 1, "size", size, "be at least 1")
    return Query(
        init=lambda key: (question, jnp.zeros(size)),
        ask=_ask,
        row_value=row_value,
        update=_update,
        last=_last,
        size=size,
        columns=tuple(columns),
        settings=settings,
    )


def _ask(chance, state):
    del chance
    return state[0]


def _update(state, question, answer):
    return (question, answer), Point(state[1], state[1], answer, jnp.ones_like(answer))


def _last(state):
    return state[1]


def of_family(conjugate: Conjugate, plan: Plan) -> Query:
    """Ask every row once for the family's statistic.

    The plan's clip norm is at least the family's bound, so that no row is shortened; noise is least where it is equal.
    """
    require(
        plan.clip_norm >= conjugate.bound,
        "clip_norm",
        plan.clip_norm,
        f"be at least {conjugate.bound}, the most that one row's statistic can be",
    )
    return query(conjugate.statistic, conjugate.size, conjugate.columns, plan, conjugate.settings)


def of_regression(statistic: Statistic, plan: Plan) -> Query:
    """Ask every row once for products of its covariates and outcome.

    `conjugate_regression.clip_and_factor` gives a public clip norm for the plan. One clip covers pairs and fours.
    """
    return query(statistic.of_row, statistic.size, statistic.columns, plan, statistic.settings)
