"""A search over settings on the private rows, with its cost: a random number of trials, of which the best is told.

Settings that simulations can choose cost nothing (`planner`). This is for those they cannot. Every trial is a fit of a
candidate drawn at random, and a score; only the best one's posterior, name and score ever leave. The price of all that
is `accounting.guarantee(Search)`, and it is known, stated and charged before the first row is asked.
"""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from discreet.accounting import Guarantee, calibrate_search, guarantee
from discreet.fitting import Checkpoint, Rows, check, fit, question, run, secure, simulated
from discreet.ledger import Account
from discreet.methods import statistics
from discreet.model import Model
from discreet.plan import Plan, Search
from discreet.planner import Choice, roomy
from discreet.posterior.trace import TraceError
from discreet.posterior.types import Posterior

Score = Callable[[Posterior], float]
SCORE_SHARE, SCORE_BOUND = 0.25, 4.0


class Tuning(NamedTuple):
    """A search that is ready to run: candidates with the noise that their trials need, and what all of it costs."""

    model: Model
    candidates: Mapping[str, Choice]
    search: Search
    guarantee: Guarantee

    def __str__(self) -> str:
        names = ", ".join(self.candidates)
        trials = f"{self.search.mean_trials:g} trials on average, of {len(self.candidates)} candidates ({names})"
        return f"{trials}; in all {self.guarantee}"


def prepare(
    model: Model,
    candidates: Mapping[str, Choice],
    *,
    epsilon: float,
    delta: float,
    trials: float = 10.0,
    law: str = "logarithmic",
    score_bound: float | None = SCORE_BOUND,
) -> Tuning:
    """What a search over `candidates` costs, with as much noise in each trial as (epsilon, delta) in all asks for.

    Candidates differ in what has no price: clip norms, steps sizes, variants, starts. Their number of steps, sampling
    and noise are one; the noise that they were planned with does not matter. With a `score_bound` a trial also pays,
    with a quarter of its budget, for a private score: the sum over rows of log p(row | posterior mean), each within
    ± the bound. Without one the score must be a function of the posterior, which costs nothing.
    """
    if len(candidates) < 2:
        raise ValueError(f"candidates={list(candidates)}: a search needs two or more to choose from")
    several = [name for name, choice in candidates.items() if choice.before]
    if several:
        raise ValueError(
            f"candidates {several} ask in several phases, and choose in public what there is: search others"
        )
    plans = {name: roomy(choice).plan for name, choice in candidates.items()}
    first, plan = next(iter(plans.items()))
    for name, other in plans.items():
        if replace(other, clip_norm=plan.clip_norm, noise_multiplier=plan.noise_multiplier) != plan:
            raise ValueError(
                f"candidates {first!r} and {name!r} differ in steps, sampling, rows or kind of noise, and so in price: "
                "a search needs trials of one price; search over one of them at a time"
            )
    loud = max(1.0, plan.noise_multiplier)
    trial = (replace(plan, noise_multiplier=loud), *_score_plans(plan, score_bound, loud))
    search = calibrate_search(Search(trial, trials, law), epsilon, delta)
    loud = search.trial[0].noise_multiplier
    ready = {name: candidates[name]._replace(plan=replace(plans[name], noise_multiplier=loud)) for name in candidates}
    return Tuning(model, ready, search, guarantee(search, delta))


def tune(
    tuning: Tuning,
    rows: Rows,
    score: Score | None = None,
    *,
    seed: int | None = None,
    account: Account | None = None,
    checkpoint: Checkpoint | None = None,
    draws: int = 4000,
) -> Posterior:
    """The posterior of the best trial, with the guarantee of the whole search.

    `score` is a public function of a posterior, the larger the better; without it rows are asked, as `prepare` planned.
    A trial that cannot be read, or whose score is no number, is the worst. How many trials there were is not told, and
    whoever can measure how long this takes must not be among those that the guarantee is for. A `seed` is for
    rehearsals, which are not private.

    An `account` is charged before the first row is asked, and committed after the last. A `checkpoint` without a folder
    has an account of its own, and commits it when its block ends: save the posterior inside. A search cannot go on: one
    that is cut short stays charged.
    """
    paid = len(tuning.search.trial) > 1
    if paid == (score is not None):
        wanted = "no score=, or prepare(score_bound=None)" if paid else "a score=, or prepare with a score_bound"
        raise ValueError(f"this search was prepared {'with' if paid else 'without'} a private score: give {wanted}")
    if account is not None and checkpoint is not None:
        raise ValueError("give the account to the checkpoint: it is charged once for a search")
    if checkpoint is not None and checkpoint.folder is not None:
        raise ValueError(f"{checkpoint}: a search cannot go on if it is cut short: give a Checkpoint without a folder")
    kept = checkpoint or Checkpoint(None, account, f"search over {', '.join(tuning.candidates)}")
    if seed is not None and kept.account is not None:
        raise ValueError("simulated noise protects nobody, so no budget pays for it: leave the account out")
    search = tuning.search
    if (rows.num_rows, rows.unit) != (search.num_rows, search.unit):
        there, planned = f"{rows.num_rows} {rows.unit}s", f"{search.num_rows} {search.unit}s"
        raise ValueError(f"the table has {there} and this search was prepared for {planned}: prepare it anew")
    for choice in tuning.candidates.values():
        check(tuning.model, choice)
        question(tuning.model, rows.schema, choice)
    kept.begin()
    kept.charge(search)
    chance = random.SystemRandom() if seed is None else random.Random(seed)
    best = None
    for number in range(_how_many(search, chance.random())):
        name = chance.choice(list(tuning.candidates))
        found = _trial(tuning, name, rows, score, None if seed is None else 1000 * seed + 2 * number, draws)
        if found is not None and (best is None or found[1] > best[1]):
            best = found
    if checkpoint is None:
        kept.finish()
    if best is None:
        raise TraceError("no trial of this search could be read and scored, and its budget is spent: choose others")
    return _told(tuning, *best, "secure" if seed is None else "simulated")


def _trial(
    tuning: Tuning, name: str, rows: Rows, score: Score | None, seed: int | None, draws: int
) -> tuple[Posterior, float, str] | None:
    choice, model = tuning.candidates[name], tuning.model
    try:
        noise = None if seed is None else simulated(seed)
        delta = tuning.guarantee.delta
        posterior = fit(model, rows, epsilon=math.inf, delta=delta, choice=choice, noise=noise, draws=draws)
        if score is not None:
            found = float(score(posterior))
        else:
            query = _score_query(model, posterior, tuning.search.trial[1])
            stream = secure() if seed is None else simulated(seed + 1)
            try:
                found = float(run(stream, tuning.search.trial[1], query, rows).last[0])
            finally:
                stream.forget()
    except (TraceError, ArithmeticError):
        return None
    return (posterior, found, name) if math.isfinite(found) else None


def _told(tuning: Tuning, posterior: Posterior, score: float, name: str, noise: str) -> Posterior:
    """What leaves of the best trial: everything in it says that it was chosen."""
    search, release = tuning.search, posterior.release
    facts = {"chosen": name, "of": list(tuning.candidates), "score": score, **search.to_dict()}
    assert release is not None
    return replace(
        posterior,
        guarantee=replace(tuning.guarantee, noise=noise),
        info={**posterior.info, "search": facts},
        release=replace(release, settings={**release.settings, "search": facts}),
    )


def _score_plans(plan: Plan, bound: float | None, loud: float) -> tuple[Plan, ...]:
    """One sum over all rows, with noise that takes `SCORE_SHARE` of what a trial may tell: of Σ 1/σ² over its steps."""
    if bound is None:
        return ()
    if not 0 < bound < math.inf:
        raise ValueError(f"score_bound={bound} must be positive and finite, or None for a score of the posterior alone")
    whole = loud / (plan.sampling_prob * math.sqrt(plan.steps))
    multiplier = whole * math.sqrt((1 - SCORE_SHARE) / SCORE_SHARE)
    return (Plan(plan.num_rows, 1, 1.0, bound, multiplier, unit=plan.unit),)


def _score_query(model: Model, posterior: Posterior, plan: Plan):
    """Ask every row once for its log density at the posterior's mean."""
    z = posterior.z.reshape(-1, model.dim).mean(0)
    return statistics.query(
        lambda row: model.log_likelihood(z, row)[None], 1, model.columns, replace(plan, unit="row"), {"what": "score"}
    )


def _how_many(search: Search, uniform: float) -> int:
    """A draw of the number of trials, by the inverse of its distribution function."""
    shrink, odds, number = _shrink(search), 0.0, 0
    total = -math.log1p(-shrink) if search.law == "logarithmic" else shrink / (1 - shrink)
    while odds <= uniform:
        number += 1
        height = shrink**number / (number if search.law == "logarithmic" else 1) / total
        odds += height
        if height < 1e-18:  # rounding may keep the sum below a uniform that is next to 1
            break
    return number


def _shrink(search: Search) -> float:
    """q of the law with the search's mean: q/(1−q)/−log(1−q) for the logarithmic, 1/(1−q) for the geometric."""
    from scipy.optimize import brentq

    if search.law == "geometric":
        return 1 - 1 / search.mean_trials

    def excess(left):
        return math.expm1(left) / left - search.mean_trials

    left: Any = brentq(excess, 1e-9, 700)  # −log(1 − q)
    return -math.expm1(-left)
