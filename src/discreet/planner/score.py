"""The public choices of the score, by simulation from the prior and, if there is one, a public sample of covariates."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from discreet.methods import score
from discreet.model import Model, covariates_of, prior_moments
from discreet.plan import Plan
from discreet.planner.prior_rows import STEPS, Choice, check_rows, kept_of, plan_for, reasons_of, simulate_rows, widths
from discreet.posterior import full
from discreet.posterior.score import ERROR
from discreet.posterior.score import ROWS as SIMULATED
from discreet.schema import Schema

TABLES, ROWS = 64, 2**13
SHORTEST, CANDIDATES, BIAS_WEIGHT, HELD = 0.5, 48, 0.15, 0.98
WANDER, WANDER_EACH, EARLY, LARGEST_LAST, LARGEST_FIRST = 0.2, 0.1, 3.0, 0.005, 0.1
FALLING, ARRIVED, SETTLING, BLOCKS = (0.2, 0.45), 0.01, 1.5, 100
KEPT, FLATTEST = 4096, 0.1
TWO_ERRORS = sum(odds * factor**2 for factor, odds in full.ERRORS)


def choose_score(
    model: Model,
    schema: Schema,
    num_rows: int,
    epsilon: float,
    delta: float,
    *,
    steps: int = STEPS,
    sample: Mapping[str, np.ndarray] | None = None,
) -> Choice:
    """κ = .1 or a batch of 1000, whichever is smaller, and 10⁴ steps; everything else by simulation.

    `sample` is a public one of encoded columns, of any length, whose law the table's covariates are known to follow; a
    model without covariates needs none.

    Rows simulated at prior draws are whitened as they will be. The clip norm is the one with the narrowest posterior to
    expect; what clipping takes is put back when scores are read, and still counts a little, because not every row
    follows the model. The last steps are so short that iterates wander less than a fifth of a unit (in which a row's
    answer is about one in each direction): wandering bends what is read as a line, and inflates variances.
    """
    check_rows(num_rows)
    kept = _kept_of(model, schema, sample)
    simulated = simulate_rows(model, schema, tables=TABLES, rows=ROWS, sample=kept)
    mean, sd = prior_moments(model)
    gradients, others = np.split(np.nan_to_num(simulated.gradients, posinf=0, neginf=0), 2, axis=1)
    information = np.swapaxes(others, 1, 2) @ others / others.shape[1]  # units are of other rows than those in them
    if not np.median(np.trace(information, axis1=1, axis2=2)) > 0:
        raise ValueError("rows simulated from the prior have no finite gradient: check the model, or give choice=")
    whiten = score.whitening(information, sd**-2, num_rows, np)
    answers = gradients @ np.swapaxes(whiten, 1, 2)
    plan = plan_for(schema, num_rows, steps, epsilon, delta)
    by_chance = 1 / min((len(column) for column in kept.values()), default=SIMULATED)
    plan = replace(plan, clip_norm=_clip_norm(plan, answers, by_chance))
    moved = np.linalg.solve(np.swapaxes(whiten, 1, 2), (simulated.z - mean)[..., None])[..., 0]
    first, last, falling = _schedule(plan, answers, np.median(np.abs(moved).max(1)))
    wrong = np.sqrt(1 / num_rows + by_chance + TWO_ERRORS * ERROR**2 / model.dim)
    predicted = _widths(plan, answers, whiten, sd, falling, wrong)
    settings = score.Settings(mean, sd**-2, first, last, falling, kept)
    prior = full.Prior(mean, sd, num_rows * np.diagonal(information, axis1=1, axis2=2).mean(0) + sd**-2)
    reasons = (
        f"clip_norm {plan.clip_norm:.4g} whitened units: the narrowest posterior to expect, "
        f"{predicted.mean():.3g} times as wide as without privacy",
        f"steps close {first:.3g} of a distance at first and {last:.3g} after {falling:.0%}: iterates arrive, and then "
        f"wander less than {WANDER:g} units",
    )
    return Choice(plan, settings, prior, (*reasons_of(plan), *reasons), predicted)


def why_not(model: Model, schema: Schema, sample: Mapping[str, np.ndarray] | None) -> str | None:
    """Why rows cannot be asked for scores; None if they can."""
    unknown = [name for name in covariates_of(model) if name not in (sample or {})]
    if schema.unit is not None:
        return f"scores are of rows, and {schema.unit.column!r} may have several"
    if model.dim > full.MOST_PARAMETERS:
        return f"scores are read with a dense curvature, for {full.MOST_PARAMETERS} parameters at most"
    if unknown:
        return f"the law of {', '.join(unknown)} is not public: no sample of it was given"
    return None


def _kept_of(model: Model, schema: Schema, sample: Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray]:
    """What of the public sample a release keeps: some rows of the covariates; nothing where there are none."""
    why = why_not(model, schema, sample)
    if why is not None:
        raise ValueError(f"{why}; give sample=, a public table with these columns, or choose method='dpvi'")
    return kept_of(sample or {}, covariates_of(model), KEPT)


def _clip_norm(plan: Plan, answers: np.ndarray, by_chance: float) -> float:
    """The clip norm of least variance, in all but the worst fiftieth of the tables.

    Beside it counts what is not known of the bias, because the public sample is finite (`by_chance` is one over its
    rows), and a share of the bias itself, because rows follow the model in part only. Whitened
    answers are alike from table to table, so that holding nearly all of them costs little.
    """
    norms = np.linalg.norm(answers, axis=-1)

    def loss(clip_norm):
        kept = _kept(norms, clip_norm)
        variance, bias = _variance(plan, answers, kept, clip_norm)
        unknown = by_chance * (((1 - kept) * answers) ** 2).mean(1)
        return np.quantile((variance + unknown).mean(1) + BIAS_WEIGHT * (bias**2).sum(1), HELD)

    typical = np.median(np.quantile(norms, SHORTEST, axis=1))
    longest = max(typical, np.quantile(norms.max(1), HELD))
    return float(f"{min(np.geomspace(typical, 1.2 * longest, CANDIDATES), key=loss):.4g}")


def _kept(norms: np.ndarray, clip_norm: float) -> np.ndarray:
    """What the clip leaves of each answer, as a share."""
    return np.minimum(1, clip_norm / np.maximum(norms, 1e-300))[..., None]


def _variance(plan: Plan, answers: np.ndarray, kept: np.ndarray, clip_norm: float) -> tuple[np.ndarray, np.ndarray]:
    """The posterior's variance to expect in each table, and the bias of its mean, in whitened units (tables, d).

    The variance is 1/(N·s) + noise/s², where s is how much of a change clipped answers show. Bias is what clipping
    takes from the mean answer. As many steps as can be are taken to fall.
    """
    seen = (kept * answers**2).mean(1) / np.maximum((answers**2).mean(1), 1e-300)
    noise = plan.noise_multiplier * clip_norm / (plan.sampling_prob * plan.num_rows)
    variance = 1 / (plan.num_rows * seen) + noise**2 / ((1 - FALLING[1]) * plan.steps) / seen**2
    return variance, ((1 - kept) * answers).mean(1) / seen


def _widths(
    plan: Plan, answers: np.ndarray, whiten: np.ndarray, prior_sd: np.ndarray, falling: float, wrong: float
) -> np.ndarray:
    """Widths to expect, with all that directions share; `wrong` is the sd of what is not known of the entries of the
    curvature, which is drawn.
    """
    tables, count, dim = answers.shape
    kept = _kept(np.linalg.norm(answers, axis=-1), plan.clip_norm)
    clipped, whole = (np.swapaxes(part, 1, 2) @ answers / count for part in (kept * answers, answers))
    error = wrong * np.random.default_rng(0).normal(size=(tables, dim, dim)) / np.sqrt(2)
    values, vectors = np.linalg.eigh(clipped + error + np.swapaxes(error, 1, 2))
    shown = vectors * np.maximum(values, FLATTEST)[:, None] @ np.swapaxes(vectors, 1, 2)
    back = np.linalg.inv(whiten)
    across = np.swapaxes(back, 1, 2)
    seen, whole = (plan.num_rows * back @ part @ across + np.diag(prior_sd**-2) for part in (shown, whole))
    noise = (plan.noise_std / plan.sampling_prob) ** 2 / ((1 - falling) * plan.steps) * back @ across
    return widths(seen, whole, noise, prior_sd)


def _schedule(plan: Plan, answers: np.ndarray, distance: float) -> tuple[float, float, float]:
    """Shares of a distance that the first and the last steps close, and the share of the steps that fall.

    `distance` is how far the start may be in whitened units. Shares fall so slowly that iterates keep up with them. The
    share of the steps is one of whole blocks, from which the trace is read.
    """
    dim = answers.shape[2]
    noise = max(plan.noise_std / (plan.sampling_prob * plan.num_rows), 1e-300)
    wander = min(WANDER_EACH, WANDER / np.sqrt(dim))
    last = min(LARGEST_LAST, 2 * (wander / noise) ** 2)
    first = max(last, min(LARGEST_FIRST, 2 * (EARLY * wander / noise) ** 2))
    fall = np.log(first / last)
    closing = (first - last) / fall if fall > 0 else last
    steps = np.log(max(distance / (ARRIVED * wander), 2)) / closing
    needed = max(steps, fall / (SETTLING * last))
    return first, last, float(np.clip(np.ceil(BLOCKS * needed / plan.steps) / BLOCKS, *FALLING))
