"""What answers at one place mean: the posterior of the parameters given a noisy sum of clipped scores.

By the central limit theorem the sum of what N rows answer is normal, with mean N·G(z) and covariance N·V, where G and V
are the mean and covariance of a clipped answer at the place for rows drawn from the model at z. Rows are simulated at
the place, and weighed by p(row | z) / p(row | place) they speak for any z near it: a single row hardly tells two such z
apart, so that weights are even. So nothing is linear but the sum, and clipping has no bias: it is part of G. Where rows
were asked in several parts, at places close to each other, all of this is said of the mean of their answers.

Where the law of the covariates was bought, draws come in equal parts from several laws that its answers allow.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from discreet.methods import onestep
from discreet.methods.score import gradients_at, simulated_rows
from discreet.model import Model
from discreet.release import Release

CENTRED, WEIGHED, AT_ONCE = 2**16, 2**13, 2**12
NEWTON, LONGEST, ENOUGH, LEAST_CURVATURE = 60, 0.3, 1e-5, 1e-3
KEPT, WARM_UP, WIDER, ACCEPTED = 10, 15, 1.1, 0.6


class Draws(NamedTuple):
    """Draws of z, and a report: `efficiency` of the chains that drew them (the least of all laws), and how `far` the
    place was from where the posterior is, in its sds.
    """

    z: np.ndarray
    report: Mapping[str, Any]


class Expected(NamedTuple):
    """What rows drawn from the model at the place answer there.

    lost     (d,)     what clipping adds to an answer, on average
    unsure   (d, d)   covariance of that average: rows are finitely many, and so are covariates
    square   (d, d)   covariance of a clipped answer
    """

    lost: np.ndarray
    unsure: np.ndarray
    square: np.ndarray


def solve(rng: np.random.Generator, release: Release, model: Model, draws: int = 4000, *, noisy: bool = True) -> Draws:
    """Draws of z from the release of a one-step run; without `noisy`, as if its answer had no noise."""
    settings, columns = onestep.described(release.settings)
    samples = onestep.samples_of(settings, columns, release.before[:-1] if columns else ())
    samples = (samples[1:] or samples)[:draws]  # the first is the law in the middle of the others
    parts = np.array_split(np.arange(draws), len(samples))
    noise = release.plan.noise_std / release.plan.steps**0.5 if noisy else 0.0
    found = [_given(rng, release, model, one, len(part), noise) for one, part in zip(samples, parts, strict=True)]
    z = rng.permutation(np.concatenate([one.z for one in found]))
    place, sd = _places(release).mean(0), np.maximum(z.std(0), 1e-100)
    report = {
        "efficiency": min(one.report["efficiency"] for one in found),
        "far": float(np.sqrt((((z.mean(0) - place) / sd) ** 2).mean())),
    }
    return Draws(z, report)


def _places(release: Release) -> np.ndarray:
    """Where rows were asked, one place a step, (steps, d)."""
    return np.repeat(release.blocks.mean, np.asarray(release.blocks.steps)[:, 0].astype(int), axis=0)


def _given(
    rng: np.random.Generator,
    release: Release,
    model: Model,
    sample: Mapping[str, np.ndarray],
    draws: int,
    noise: float,
) -> Draws:
    """Draws of z where covariates follow the law of this sample, and entries of the answer have noise of this sd."""
    plan, whiten = release.plan, np.asarray(release.settings["whiten"])
    steps, places = np.asarray(release.blocks.steps), _places(release)
    told = (steps * release.blocks.mean_y).sum(0) / plan.steps
    place = places.mean(0)
    count, dim = float(plan.num_rows), len(place)
    keys = jax.random.split(jax.random.key(int(rng.integers(2**31))), 2)
    do = _functions(model)
    with jax.enable_x64(True):
        expected = expect(model, plan.clip_norm, sample, whiten, place, keys[0])
        rows, apart = do.simulate(place, places, whiten, plan.clip_norm, dict(sample), keys[1])
        expected = expected._replace(lost=expected.lost + np.asarray(apart))
        own = noise**2 * np.eye(dim) + count**2 * expected.unsure

        def climbed(z, square):
            inverse = np.linalg.inv(count * np.asarray(square) + own)
            known = (rows, expected.lost, count, told, inverse)
            return known, do.climb(z, whiten, *known)

        _, (z, _, square) = climbed(place, expected.square)
        known, (z, curvature, _) = climbed(z, square)  # the covariance of answers is that at the mode
        values, vectors = np.linalg.eigh(np.asarray(curvature + curvature.T) / 2)
        factor = vectors / np.sqrt(np.maximum(values, LEAST_CURVATURE * values.max()))

        def height(at):
            return np.asarray(do.heights(np.asarray(z) + at @ whiten, *known))

        found, efficiency = _chains(rng, height, factor, draws)
    return Draws(np.asarray(z) + found @ whiten, {"efficiency": efficiency})


def _chains(rng: np.random.Generator, height: Callable, factor: np.ndarray, draws: int) -> tuple[np.ndarray, float]:
    """Draws from exp(height), which is about the normal density of this factor around zero, by short chains.

    A proposal mixes the present place with a new draw of that normal, so that it is judged by what is not normal alone,
    whatever the dimension; how much is new adapts while chains warm up. The efficiency is the share of proposals that
    were accepted, times how new they were.
    """
    count = -(-draws // KEPT)
    factor = WIDER * factor
    inside = rng.standard_normal((count, factor.shape[1]))
    level, new, kept, accepted = _against(height, factor, inside), 1.0, [], []
    for step in range(WARM_UP + -(-draws // count)):
        moved = np.sqrt(1 - new**2) * inside + new * rng.standard_normal(inside.shape)
        there = _against(height, factor, moved)
        good = np.log(rng.random(count)) < there - level
        inside, level = np.where(good[:, None], moved, inside), np.where(good, there, level)
        if step < WARM_UP:
            new = float(np.clip(new * (1.4 if good.mean() > ACCEPTED else 0.7), 0.01, 1.0))
        else:
            kept.append(inside @ factor.T)
            accepted.append(good.mean())
    return rng.permutation(np.concatenate(kept))[:draws], float(np.mean(accepted) * new**2)


def _against(height: Callable, factor: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """How much higher the density is than the normal's."""
    return np.nan_to_num(height(inside @ factor.T) + 0.5 * (inside**2).sum(1), nan=-np.inf)


def expect(
    model: Model, clip_norm: float, sample: Mapping[str, np.ndarray], whiten: np.ndarray, place: np.ndarray, key: Any
) -> Expected:
    """What rows drawn from the model at this place answer, with covariates of the sample: two outcomes for each."""
    with jax.enable_x64(True):
        sums = _functions(model).sums(jnp.asarray(place), whiten, clip_norm, dict(sample), key)
    lost, total, both, square, mean = (np.asarray(part) / CENTRED for part in sums)
    total, both = total - np.outer(lost, lost), both - np.outer(lost, lost)
    values, vectors = np.linalg.eigh((both + both.T) / 2)
    shared = vectors * np.maximum(values, 0.0) @ vectors.T
    covariates = min([CENTRED, *(len(column) for column in sample.values())])
    return Expected(lost, shared / covariates + total / CENTRED, square - np.outer(mean, mean))


class _Functions(NamedTuple):
    """Of one model, compiled."""

    sums: Callable
    simulate: Callable
    climb: Callable
    heights: Callable


class _Rows(NamedTuple):
    """Rows drawn from the model at the place, their clipped answers, and their log likelihoods there."""

    rows: Mapping[str, Any]
    answers: Any
    known: Any


@lru_cache(maxsize=8)
def _functions(model: Model) -> _Functions:
    outcome = model.simulate
    if outcome is None:
        raise ValueError("this model cannot simulate its outcome: its answers cannot be read without it")
    likelihood = jax.vmap(model.log_likelihood, in_axes=(None, 0))

    def kept(answers, clip_norm):
        return jnp.minimum(1.0, clip_norm / jnp.maximum(jnp.linalg.norm(answers, axis=1, keepdims=True), 1e-300))

    def sums(place, whiten, clip_norm, sample, key):
        covariates, _ = simulated_rows(sample, CENTRED)
        keys = jax.random.split(key, (CENTRED, 2))

        def add(total, part):
            pair = [gradients_at(model, place, part[0], part[1][:, side]) @ whiten.T for side in (0, 1)]
            share = [kept(answers, clip_norm) for answers in pair]
            one, other = ((share[side] - 1) * pair[side] for side in (0, 1))
            clipped = share[0] * pair[0]
            found = (
                (one + other).sum(0) / 2,
                (one.T @ one + other.T @ other) / 2,
                one.T @ other,
                clipped.T @ clipped,
                clipped.sum(0),
            )
            return jax.tree.map(jnp.add, total, found), None

        parts = jax.tree.map(lambda column: column.reshape(-1, AT_ONCE, *column.shape[1:]), (covariates, keys))
        zero, zeros = jnp.zeros_like(place), jnp.zeros_like(whiten)
        return jax.lax.scan(add, (zero, zeros, zeros, zeros, zero), parts)[0]

    def simulate(place, places, whiten, clip_norm, sample, key):
        covariates, _ = simulated_rows(sample, WEIGHED)
        keys = jax.random.split(key, WEIGHED)
        rows = jax.vmap(lambda key, row: {**row, **outcome(key, place, row)})(keys, covariates)

        def clipped(z):
            answers = jax.vmap(jax.grad(model.log_likelihood), in_axes=(None, 0))(z, rows) @ whiten.T
            answers = jnp.where(jnp.isfinite(answers).all(1, keepdims=True), answers, 0.0)
            return kept(answers, clip_norm) * answers

        total, _ = jax.lax.scan(lambda total, z: (total + clipped(z), None), jnp.zeros((WEIGHED, len(place))), places)
        answers = total / len(places)
        return _Rows(rows, answers, likelihood(place, rows)), (answers - clipped(place)).mean(0)

    def weights(z, rows):
        more = likelihood(z, rows.rows) - rows.known
        return jnp.exp(jnp.clip(jnp.where(jnp.isfinite(more), more, -50.0), -50.0, 5.0))

    def mean_answer(z, rows, lost):
        return lost + (weights(z, rows) - 1) @ rows.answers / WEIGHED

    def height(z, rows, lost, count, told, inverse):
        gap = told - count * mean_answer(z, rows, lost)
        return model.log_prior(z) - 0.5 * gap @ inverse @ gap

    def slopes(z, whiten, rows):
        """How the mean answer changes in whitened units: answers times gradients, of rows by their weights."""
        gradients = jax.vmap(jax.grad(model.log_likelihood), in_axes=(None, 0))(z, rows.rows) @ whiten.T
        gradients = jnp.where(jnp.isfinite(gradients), gradients, 0.0)
        return rows.answers.T @ (weights(z, rows)[:, None] * gradients) / WEIGHED

    def bend(z, whiten, slope, inverse):
        values, vectors = jnp.linalg.eigh(-whiten @ jax.hessian(model.log_prior)(z) @ whiten.T)
        return slope.T @ inverse @ slope + vectors * jnp.maximum(values, 0.0)[None] @ vectors.T

    def climb(z, whiten, *known):
        rows, lost, count, told, inverse = known

        def step(carry):
            z, now, damping, _, taken = carry
            slope = count * slopes(z, whiten, rows)
            hessian = bend(z, whiten, slope, inverse)
            gap = told - count * mean_answer(z, rows, lost)
            uphill = slope.T @ inverse @ gap + whiten @ jax.grad(model.log_prior)(z)
            move = jnp.linalg.solve(hessian + damping * jnp.diag(jnp.diag(hessian)), uphill)
            move = move * jnp.minimum(1.0, LONGEST / jnp.maximum(jnp.linalg.norm(move), 1e-300))
            there = z + whiten.T @ move
            new = height(there, *known)
            good = new >= now
            gained = jnp.where(good, new - now, jnp.inf)
            places = jnp.where(good, there, z), jnp.where(good, new, now)
            return (*places, jnp.where(good, damping / 4, damping * 6), gained, taken + 1)

        start = (z, height(z, *known), jnp.full((), 1e-3), jnp.full((), jnp.inf), jnp.zeros((), int))
        z, *_ = jax.lax.while_loop(lambda carry: (carry[3] > ENOUGH) & (carry[4] < NEWTON), step, start)
        curvature = bend(z, whiten, count * slopes(z, whiten, rows), inverse)
        weight, mean = weights(z, rows), mean_answer(z, rows, lost)
        return z, curvature, (weight[:, None] * rows.answers).T @ rows.answers / WEIGHED - jnp.outer(mean, mean)

    def heights(z, *known):
        return jax.lax.map(lambda one: height(one, *known), z, batch_size=16)

    return _Functions(jax.jit(sums), jax.jit(simulate), jax.jit(climb), jax.jit(heights))
