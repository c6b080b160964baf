"""Public choices from the model's prior and the schema alone: they cost no privacy and never see rows."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace

from scipy import stats

from discreet.model import Model
from discreet.planner.gradients import choose
from discreet.planner.prior_rows import Choice, PriorRows, simulate_rows, varied_column
from discreet.planner.score import choose_score
from discreet.planner.sites import choose_sites
from discreet.schema import Schema

SELDOM = 1e-24
METHODS: dict[str, Callable[..., Choice]] = {"dpvi": choose, "sep": choose_sites, "score": choose_score}
"""By the name of a method, what makes its public choices."""

__all__ = [
    "METHODS",
    "Choice",
    "PriorRows",
    "choose",
    "choose_score",
    "choose_sites",
    "of_method",
    "roomy",
    "simulate_rows",
    "varied_column",
]


def of_method(name: str) -> Callable[[Model, Schema, int, float, float], Choice]:
    """What makes the public choices of the method of this name."""
    if name not in METHODS:
        raise ValueError(f"method={name!r} must be one of {', '.join(METHODS)}")
    return METHODS[name]


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
