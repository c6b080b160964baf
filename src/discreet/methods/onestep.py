"""The one-step question: rows answer at a good place, with most of the budget.

Before that a share of the budget finds the place (`score`, with all rows in every step), and where the law of the
covariates is not public another share buys that (`law`). What is asked in each phase is a public function of what the
phases before it told. The place is the mean of the last iterates; there, rows are simulated, which give the units of
the answers and the clip norm with the narrowest posterior to expect. Asked in several parts, in the same units, the
question costs the same and tells as much; and each part is asked where those before it lead.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from discreet.methods import law, score
from discreet.model import Model, covariates_of
from discreet.plan import Plan, require
from discreet.query import Phase, Point, Query
from discreet.release import Release, tail_mean
from discreet.schema import Schema

SEED, LAWS, AT_PLACE, CANDIDATES, CLOSING = 23, 8, 2**14, 32, 0.25
Sample = Mapping[str, np.ndarray]


class Settings(NamedTuple):
    """The public choices of a run.

    `reference` are those of the steps that find the place; its sample is a public one of the covariates. Without one,
    their law is bought, with so many `bins` for numbers. A `clip_norm` of the last question that is given is taken;
    else it is chosen at the place. Each of its parts but the last moves the place by the share `closing` of what it
    says is left.
    """

    reference: score.Settings
    bins: int = 0
    clip_norm: float | None = None
    closing: float = CLOSING


class State(NamedTuple):
    """Where rows are asked next, in which units, and how far their answers may move the place."""

    z: Array
    whiten: Array
    closing: Array
    num_rows: Array
    longest: Array


def phase(model: Model, schema: Schema, plans: Sequence[Plan], settings: Settings) -> Callable[..., Phase]:
    """What is asked in each phase, given the releases of those before: counts, moments, the steps, and the one step."""
    check(model, plans, settings)

    def asked(told: Sequence[Release]) -> Phase:
        plan, bought = plans[len(told)], len(plans) - 2
        columns = schema.select(covariates_of(model)).columns if bought else ()
        if len(told) < bought:
            if not told:
                return Phase(plan, law.ask_counts(columns, settings.bins, plan))
            return Phase(plan, law.ask_moments(columns, settings.bins, law.heard(told[0]), plan))
        sample = samples_of(settings, columns, told[:bought], 0)[0]
        if len(told) == bought:
            return Phase(plan, score.query(model, plan, settings.reference._replace(sample=sample)))
        place = tail_mean(told[-1], settings.reference.falling)
        whiten, answers = at_place(model, place, sample, settings.reference.prior_precision, plan.num_rows)
        clip_norm = settings.clip_norm
        if clip_norm is None:
            clip_norm = best_clip(answers, at_once(plan), bought=bought > 0)
        plan = replace(plan, clip_norm=clip_norm)
        return Phase(plan, query(model, plan, place, whiten, settings, columns))

    return asked


def check(model: Model, plans: Sequence[Plan], settings: Settings) -> None:
    """Refuse settings that some phase could not use, while no row was asked."""
    score.check(model, settings.reference)
    if len(plans) > 2:
        require(settings.bins >= 1, "bins", settings.bins, "be at least 1: the law of the covariates is bought")
    require(0 <= settings.closing < 1, "closing", settings.closing, "lie in [0, 1): the share of a distance")
    if settings.clip_norm is not None:
        replace(plans[-1], clip_norm=settings.clip_norm)  # a plan refuses what is no clip norm


def query(
    model: Model, plan: Plan, place: np.ndarray, whiten: np.ndarray, settings: Settings, columns: law.Columns = ()
) -> Query:
    """Whitened gradients of log p(row | z), asked of every row at this place, and then where their answers lead.

    Guarantee: one row moves the sum by at most the plan's clip norm.
    """
    described = {
        "method": "one-step",
        "place": np.asarray(place).tolist(),
        "whiten": np.asarray(whiten).tolist(),
        "bins": settings.bins,
        "closing": settings.closing,
        "bought": Schema(columns).to_dict() if columns else {},
        "reference": score.describe(settings.reference),
    }

    def init(key):
        del key
        numbers = (settings.closing, plan.num_rows, settings.reference.longest)
        start = jnp.asarray(place, float)
        return State(start, jnp.asarray(whiten, float), *(jnp.asarray(number, float) for number in numbers))

    return _functions(model)._replace(init=init, settings=described)


@lru_cache(maxsize=64)
def _functions(model: Model) -> Query:
    def row_value(question, row):
        return question.whiten @ jax.grad(model.log_likelihood)(question.z, row)

    def update(state, question, answer):
        uphill = answer + question.whiten @ jax.grad(model.log_prior)(state.z)
        step = state.closing * uphill / state.num_rows
        short = jnp.minimum(1.0, state.longest / jnp.maximum(jnp.linalg.norm(step), 1e-300))
        moved = state.z + question.whiten.T @ step * short
        point = Point(state.z, state.z, answer, jnp.ones_like(answer))
        return state._replace(z=moved), point

    return Query(
        init=lambda key: None,
        ask=lambda chance, state: score.Question(state.z, state.whiten),
        row_value=row_value,
        update=update,
        last=lambda state: state.z,
        size=model.dim,
        columns=model.columns,
        settings={},
        chance=lambda key: jnp.zeros(()),
    )


def samples_of(
    settings: Settings, columns: law.Columns, told: Sequence[Release], laws: int = LAWS
) -> list[dict[str, np.ndarray]]:
    """Covariates of the public sample; or of the law that was bought, and of so many others that the answers allow.

    The same answers always give the same ones.
    """
    if not told:
        return [dict(settings.reference.sample)]
    rng = np.random.default_rng(SEED)
    counts, moments = law.heard(told[0]), law.heard(told[1]) if len(told) > 1 else (np.zeros(0), 0.0)
    return law.learn(rng, columns, settings.bins, counts, moments, told[0].plan.num_rows, laws)


def at_place(
    model: Model, place: np.ndarray, sample: Sample, prior_precision: np.ndarray, num_rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """The units of answers at a place, and what rows simulated there answer in them: other rows than made the units."""
    with jax.enable_x64(True):
        gradients = np.asarray(_simulated(model)(jnp.asarray(place), dict(sample)))
    return in_units(gradients, np.asarray(prior_precision), num_rows)


def in_units(gradients: np.ndarray, prior_precision: np.ndarray, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The units that every other row gives, and the gradients of the rest in them."""
    first, second = gradients[::2], gradients[1::2]
    whiten = score.whitening(first.T @ first / len(first), prior_precision, num_rows, np)
    return whiten, second @ whiten.T


@lru_cache(maxsize=64)
def _simulated(model: Model) -> Callable:
    return jax.jit(lambda z, sample: score.gradients_at(model, z, *score.simulated_rows(sample, AT_PLACE)))


def at_once(plan: Plan) -> Plan:
    """One question with the noise that the mean of all of this plan's answers has."""
    return replace(plan, steps=1, noise_multiplier=plan.noise_multiplier / plan.steps**0.5)


def best_clip(answers: np.ndarray, plan: Plan, *, bought: bool = False) -> float:
    """The clip norm of the narrowest posterior to expect, from what rows answer (rows, d) where they will be asked.

    Clipping takes information and no more: what it does to the mean answer is known when that is read. It is known as
    well as the law of the covariates: where that is `bought`, rows of typical length, √d, are not clipped.
    """
    norms = np.linalg.norm(answers, axis=1)
    least, most = np.quantile(norms[norms > 0], [0.2, 1.0]) if (norms > 0).any() else (1.0, 1.0)
    least = min(most, max(least, answers.shape[1] ** 0.5)) if bought else least

    def spread(clip_norm):
        seen, noise = information(answers, norms, replace(plan, clip_norm=clip_norm))
        return np.trace(np.linalg.inv(seen.T @ np.linalg.solve(noise, seen) + np.eye(len(seen)) * 1e-9 * len(answers)))

    return float(f"{min(np.geomspace(least, 1.2 * most, CANDIDATES), key=spread):.4g}")


def information(answers: np.ndarray, norms: np.ndarray, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """How the sum of clipped answers changes as the truth moves, and its covariance, noise included."""
    kept = np.minimum(1, plan.clip_norm / np.maximum(norms, 1e-300))[:, None] * answers
    seen, square, mean = kept.T @ answers / len(answers), kept.T @ kept / len(answers), kept.mean(0)
    covariance = plan.num_rows * (square - np.outer(mean, mean)) + plan.noise_std**2 * np.eye(len(seen))
    return plan.num_rows * seen, covariance


def described(settings: Mapping[str, Any]) -> tuple[Settings, law.Columns]:
    """The settings that a release has, and the columns whose law was bought."""
    columns = Schema.from_dict(settings["bought"]).columns if settings["bought"] else ()
    reference = score.described(settings["reference"])
    return Settings(reference, settings["bins"], closing=settings["closing"]), columns
