"""Public choices from the model's prior and the schema alone: they cost no privacy and never see rows."""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from discreet.model import Model, covariates_of
from discreet.planner.gradients import choose
from discreet.planner.onestep import choose_onestep, too_noisy, why_not
from discreet.planner.prior_rows import Choice, PriorRows, changed, simulate_rows, varied_column
from discreet.planner.score import choose_score
from discreet.planner.sites import choose_sites
from discreet.posterior import full
from discreet.posterior.reading import of_mixture
from discreet.schema import Schema

SELDOM = 1e-24
METHODS: dict[str, Callable[..., Choice]] = {
    "one-step": choose_onestep,
    "dpvi": choose,
    "sep": choose_sites,
    "score": choose_score,
}
"""By the name of a method, what makes its public choices."""
OF_A_SAMPLE = ("one-step", "score")
"""Methods that a public sample of the covariates serves."""

__all__ = [
    "METHODS",
    "Choice",
    "PriorRows",
    "changed",
    "choose",
    "choose_best",
    "choose_onestep",
    "choose_score",
    "choose_sites",
    "of_method",
    "public_sample",
    "roomy",
    "simulate_rows",
    "varied_column",
]


def choose_best(
    model: Model,
    schema: Schema,
    num_rows: int,
    epsilon: float,
    delta: float,
    *,
    sample: Mapping[str, np.ndarray] | None = None,
) -> Choice:
    """The public choices of the sharpest method that stays calibrated with what is known: one step, or else DPVI.

    One step needs the law of the covariates: there are none, or a public `sample` of encoded columns has it, or the
    budget suffices to buy it.
    """
    why = why_not(model, schema, sample)
    if why is None:
        choice = METHODS["one-step"](model, schema, num_rows, epsilon, delta, sample=sample)
        why = too_noisy(choice)
        if why is None:
            reason = "method one-step: most of the budget for one question at a good place tells the most"
            return choice._replace(reasons=(reason, *choice.reasons))
    choice = METHODS["dpvi"](model, schema, num_rows, epsilon, delta)
    warned = of_mixture(model) if model.dim > full.MOST_PARAMETERS else []
    return choice._replace(reasons=(f"method dpvi: {why}", *warned, *choice.reasons))


def of_method(name: str | None, sample: Mapping[str, np.ndarray] | None = None) -> Callable[..., Choice]:
    """What makes the public choices of the method of this name, or of the best one: (model, schema, num_rows, ε, δ)."""
    if name is None:
        return partial(choose_best, sample=sample)
    if name not in METHODS:
        raise ValueError(f"method={name!r} must be one of {', '.join(METHODS)}")
    if name in OF_A_SAMPLE:
        return partial(METHODS[name], sample=sample)
    if sample is not None:
        known = " or ".join(repr(one) for one in OF_A_SAMPLE)
        raise ValueError(f"method={name!r} has no use for a public sample: leave it out, or choose method={known}")
    return METHODS[name]


def public_sample(model: Model, schema: Schema, table: Any) -> dict[str, np.ndarray]:
    """The covariates of a public table, encoded: any table that `Schema.encode` reads."""
    wanted = covariates_of(model)
    if not wanted:
        raise ValueError("this model has no covariates, so that there is nothing to sample: leave the public table out")
    return replace(schema.select(wanted), unit=None).encode(table)


def roomy(choice: Choice) -> Choice:
    """The choice with a batch limit that is met once in 10²⁴ steps, for accounts whose Rényi filter must pay for it.

    That is ten sds above the mean where the default is five, and costs no more: fewer batches are truncated.
    """
    plan = choice.plan
    if plan.batch_limit is None:
        return choice

    def seldom(limit: int) -> bool:
        return bool(stats.binom.sf(limit, plan.num_rows, plan.sampling_prob) <= SELDOM)

    limit = max(plan.batch_limit, bisect_left(range(plan.num_rows), True, key=seldom))
    return choice._replace(plan=replace(plan, batch_limit=limit))
