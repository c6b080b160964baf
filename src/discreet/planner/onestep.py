"""The public choices of the one-step run: how the budget is split, how the place is found, what to expect."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from discreet.accounting import calibrate_phases, gaussian_noise
from discreet.methods import law, onestep, score
from discreet.model import Model, covariates_of, prior_moments
from discreet.plan import Plan
from discreet.planner.prior_rows import Choice, check_rows, kept_of, simulate_rows
from discreet.posterior import full
from discreet.schema import Schema

TABLES, ROWS, KEPT = 32, 2**12, 2**13
STEPS, FIRST, LAST, FALLING, LONGEST, REFERENCE_CLIP = 200, 0.5, 0.05, 0.5, 0.3, 1.8
SHARES = {"counts": 0.04, "moments": 0.1, "steps": 0.2}
ASKS = 32
BINS, LOUDEST, QUIET, LOUD = (8, 32), 0.35, 0.05, 0.2


def choose_onestep(
    model: Model,
    schema: Schema,
    num_rows: int,
    epsilon: float,
    delta: float,
    *,
    sample: Mapping[str, np.ndarray] | None = None,
) -> Choice:
    """A share of the budget for 200 steps of all rows that find the place, the rest for the one question there.

    `sample` is a public one of encoded columns whose law the table's covariates are known to follow. Without it, where
    there are covariates, another share buys their law (`shares_for`).
    """
    check_rows(num_rows)
    why = why_not(model, schema, sample)
    if why is not None:
        raise ValueError(f"{why}; choose another method=")
    names = covariates_of(model)
    bought = bool(names) and sample is None
    kept = {} if sample is None else kept_of(sample, names, KEPT)
    columns = schema.select(names).columns if bought else ()
    shares = shares_for(columns, num_rows, epsilon, delta)
    plans = plans_for(model, columns, num_rows, shares, epsilon, delta)
    mean, sd = prior_moments(model)
    reference = score.Settings(mean, sd**-2, FIRST, LAST, FALLING, kept, LONGEST, every=1)
    settings = onestep.Settings(reference, bins_for(plans[0]) if bought else 0)
    expected = expect(model, schema, onestep.at_once(plans[-1]), kept, sd, bought=bought)
    ask = replace(plans[-1], clip_norm=expected.clip_norm)
    prior = full.Prior(mean, sd, num_rows * expected.information + sd**-2)
    reasons = _reasons((*plans[:-1], ask), columns, shares, expected.widths)
    return Choice(ask, settings, prior, reasons, expected.widths, plans[:-1])


def why_not(model: Model, schema: Schema, sample: Mapping[str, np.ndarray] | None) -> str | None:
    """Why the one-step question cannot be asked, or read; None if it can."""
    if schema.unit is not None:
        return f"one step asks rows, and {schema.unit.column!r} may have several"
    if model.dim > full.MOST_PARAMETERS:
        return f"one step is for {full.MOST_PARAMETERS} parameters at most"
    names = covariates_of(model)
    if sample is not None:
        missing = [name for name in names if name not in sample]
        return f"the public sample has no {', '.join(missing)}" if missing else None
    if names and law.size_of_moments(schema.select(names).columns) > law.MOST_PAIRS:
        return f"the covariates have more than {law.MOST_PAIRS} pairs of levels: their law is too much to buy"
    return None


def too_noisy(choice: Choice) -> str | None:
    """Why the law of the covariates would be told with too much noise to be of use; None if it would not."""
    bought = choice.before[:-1]
    worst = max((plan.noise_std / plan.num_rows for plan in bought), default=0.0)
    if worst <= LOUDEST:
        return None
    return f"with this budget the law of {choice.plan.num_rows} rows' covariates is lost in noise (sd {worst:.2g})"


def shares_for(columns: law.Columns, num_rows: int, epsilon: float, delta: float) -> dict[str, float]:
    """The shares of the budget of all phases but the last; `columns` are those whose law is bought.

    They are twice as large where the moments of that law would be lost in noise: a law that is wrong by a fifth moves
    the posterior by a fifth of how far the place is from the truth.
    """
    if not law.size_of_moments(columns):
        return {"moments": 0.0, "counts": SHARES["counts"] if columns else 0.0, "steps": SHARES["steps"]}
    noise = gaussian_noise(epsilon, delta) / SHARES["moments"] ** 0.5 * law.moment_norm(columns) / num_rows
    more = np.clip(np.log(noise / QUIET) / np.log(LOUD / QUIET), 0.0, 1.0)
    return {phase: float((1 + more) * share) for phase, share in SHARES.items()}


def bins_for(counts: Plan) -> int:
    """Into how many bins numbers are counted: fewer where a bin's share of the rows would be lost in noise."""
    return int(np.clip(counts.num_rows / (2 * counts.noise_std), *BINS))


def plans_for(
    model: Model, columns: law.Columns, num_rows: int, shares: Mapping[str, float], epsilon: float, delta: float
) -> tuple[Plan, ...]:
    """One plan for each phase; `columns` are those whose law is bought."""
    whole = Plan(num_rows, 1, 1.0, 1.0, 1.0)
    asked = {"counts": replace(whole, clip_norm=law.count_norm(columns))} if columns else {}
    if shares["moments"]:  # one column of levels has none
        asked["moments"] = replace(whole, clip_norm=law.moment_norm(columns))
    asked["steps"] = replace(whole, steps=STEPS, clip_norm=REFERENCE_CLIP * model.dim**0.5)
    parts = [(plan, shares[phase] / plan.steps) for phase, plan in asked.items()]
    parts.append((replace(whole, steps=ASKS), (1 - sum(shares.values())) / ASKS))
    return calibrate_phases([replace(plan, noise_multiplier=part**-0.5) for plan, part in parts], epsilon, delta)


class Expected(NamedTuple):
    """Of tables drawn from the prior: widths ÷ non-private (d,), a row's information (d,) and the clip norm."""

    widths: np.ndarray
    information: np.ndarray
    clip_norm: float


def expect(
    model: Model,
    schema: Schema,
    plan: Plan,
    sample: Mapping[str, np.ndarray],
    prior_sd: np.ndarray,
    *,
    bought: bool = False,
) -> Expected:
    """What the one question would give if it were asked at the truth, in a typical table."""
    simulated = simulate_rows(model, schema, tables=TABLES, rows=ROWS, sample=sample, bounded=not bought)
    gradients = np.nan_to_num(simulated.gradients, posinf=0, neginf=0)
    if not np.median((gradients**2).mean((1, 2))) > 0:
        raise ValueError("rows simulated from the prior have no finite gradient: check the model, or give choice=")
    precision, widths, clips = np.diag(prior_sd**-2), [], []
    for table in gradients:
        whiten, answers = onestep.in_units(table, prior_sd**-2, plan.num_rows)
        clips.append(onestep.best_clip(answers, plan, bought=bought))
        norms = np.linalg.norm(answers, axis=1)
        seen, noise = onestep.information(answers, norms, replace(plan, clip_norm=clips[-1]))
        prior = whiten @ precision @ whiten.T
        private = whiten.T @ np.linalg.inv(seen.T @ np.linalg.solve(noise, seen) + prior) @ whiten
        without = np.linalg.inv(plan.num_rows * table.T @ table / len(table) + precision)
        widths.append(np.sqrt(np.maximum(np.diag(private) / np.diag(without), 1.0)))
    return Expected(np.median(widths, 0), np.median((gradients**2).mean(1), 0), float(np.median(clips)))


def _reasons(
    plans: tuple[Plan, ...], columns: law.Columns, shares: Mapping[str, float], widths: np.ndarray
) -> tuple[str, ...]:
    law_of = ", ".join(column.name for column in columns)
    bought = shares["counts"] + shares["moments"]
    first = (f"law of {law_of}: {bought:.0%} of the budget buys it, for no public sample was given",) if columns else ()
    return (
        *first,
        f"reference {STEPS} steps of all rows, with {shares['steps']:.0%} of the budget: they find the place to ask at",
        f"noise_multiplier {plans[-1].noise_multiplier:.4g}: the least that meets the budget, {plans[-1].steps} times, "
        "with what is left",
        f"clip_norm about {plans[-1].clip_norm:.4g} whitened units, chosen at the place: the narrowest posterior to "
        f"expect, {widths.mean():.3g} times as wide as without privacy",
    )
