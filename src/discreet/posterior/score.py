"""What a release of scores means: the dense trace model, with the curvature that is expected where the iterates went.

Iterates are public, so that rows can be simulated there, and clipped as the real ones were. They say what a table from
that very place would have answered: not zero, because clipping takes more on one side than on the other, and this bias
is taken out. And they say how answers change as the truth moves away from there (Bartlett's identity: the mean of
clipped answer × whole answer), which is the curvature to expect, up to a few per cent.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from discreet.methods.score import gradients_at, simulated_rows
from discreet.model import Model
from discreet.posterior import full
from discreet.posterior.trace_model import Subsampling
from discreet.release import Release, tail_mean

ROWS, AT_ONCE, PLACES, ERROR = 2**16, 2**11, 16, 0.05


class Expected(NamedTuple):
    """What rows drawn from the model at a place answer there.

    lost      (d,)     what clipping takes from an answer, on average
    spread    (d, d)   covariance of what it takes
    change    (d, d)   how the mean answer changes as the truth moves
    slopes    (d, d)   how it changes as the iterate moves, from fewer rows: about the same, and quieter
    variance  (d, d)   of a row's slopes, entry by entry
    """

    lost: np.ndarray
    spread: np.ndarray
    change: np.ndarray
    slopes: np.ndarray
    variance: np.ndarray


def solve(
    rng: np.random.Generator,
    release: Release,
    model: Model,
    prior: full.Prior,
    draws: int = 4000,
    *,
    burn_in: float | None = None,
    subsampling: Subsampling = "learned",
) -> full.Draws:
    """Draws of the optimum and of z; `prior` has the prior's mean and sd.

    Steps that fell are left out: in them the units of answers changed. What clipping takes is known as well as the
    public sample is long: draws are spread by what is left open.
    """
    falling, trace = release.settings["falling"], release.trace
    if burn_in is not None and burn_in < falling:
        raise ValueError(
            f"burn_in={burn_in}: scores are read from where their steps have fallen, {falling:g}, or later"
        )
    if trace is None:
        raise ValueError("scores are read from every point of their trace: run with keep='trace'")
    share = falling if burn_in is None else burn_in
    whiten = release.last[model.dim :].reshape(model.dim, model.dim)
    sample = {name: np.asarray(column) for name, column in release.settings["sample"].items()}
    at = partial(expect, model, release.plan.clip_norm, sample, whiten)
    place = tail_mean(release, share)
    expected = at(place)
    batch = release.plan.sampling_prob * release.plan.num_rows
    unbiased = replace(release, trace=trace._replace(y=np.asarray(trace.y) + batch * expected.lost))
    count = min([ROWS, *(len(column) for column in sample.values())])

    def given(on_the_way, draws):
        known = _known(release, prior, whiten, expected, count, on_the_way)
        found = full.solve(rng, unbiased, known, draws, burn_in=share, subsampling=subsampling, arrived=True)
        wrong = rng.multivariate_normal(np.zeros(model.dim), expected.spread / count, draws)
        moved = np.linalg.solve(known.curvature / release.plan.num_rows, wrong.T).T
        return found._replace(optimum=(found.optimum + moved) @ whiten, z=(found.z + moved) @ whiten)

    first = given(None, PLACES).z
    return given(np.stack([at((place + z) / 2, AT_ONCE).slopes for z in first]), draws)


def _known(
    release: Release,
    prior: full.Prior,
    whiten: np.ndarray,
    expected: Expected,
    count: int,
    on_the_way: np.ndarray | None,
) -> full.Prior:
    """The prior in units of the answers, and the curvature to expect.

    The table is one of many, and so is the public sample, of `count` rows: entries differ by chance, as those of rows
    do. They also differ on the way to the truth: `on_the_way` (places, d, d) are slopes half way to where it may be. On
    top of that directions err by `ERROR`: rows follow the model in part only, and a trace is a line in part only.
    """
    num_rows = release.plan.num_rows
    change, variance = expected.change, expected.variance * (1 / num_rows + 1 / count)
    if on_the_way is not None:
        change, variance = change + on_the_way.mean(0) - expected.slopes, variance + on_the_way.var(0)
    precision = (whiten**2) @ prior.sd**-2.0
    return full.Prior(
        mean=np.linalg.solve(whiten.T, prior.mean),
        sd=precision**-0.5,
        curvature=num_rows * change + np.diag(precision),
        error=ERROR / np.sqrt(len(precision)),  # of entries, so that directions err by the same share in any dimension
        chance=num_rows * np.sqrt(variance),
    )


def expect(
    model: Model,
    clip_norm: float,
    sample: Mapping[str, np.ndarray],
    whiten: np.ndarray,
    place: np.ndarray,
    count: int = ROWS,
) -> Expected:
    """What `count` rows drawn from the model at this place answer, with covariates of the public sample."""
    with jax.enable_x64(True):
        sums, slopes = _answers(model, count)(jnp.asarray(place), whiten, clip_norm, dict(sample))
    lost, square, change = (np.asarray(part) / count for part in sums)
    return Expected(lost, square - np.outer(lost, lost), change, np.asarray(slopes).mean(0), np.asarray(slopes).var(0))


@lru_cache(maxsize=8)
def _answers(model: Model, count: int) -> Callable:
    """(z, W, clip norm, sample) → sums over rows, and slopes of the first ones; compiled once for a model."""
    simulate = model.simulate
    if simulate is None:
        raise ValueError("this model cannot simulate its outcome: scores cannot be read without it")

    def kept(answers, clip_norm):
        return jnp.minimum(1.0, clip_norm / jnp.maximum(jnp.linalg.norm(answers, axis=-1, keepdims=True), 1e-300))

    def answers_of(z, whiten, clip_norm, sample):
        covariates, keys = simulated_rows(sample, count)

        def add(total, part):
            answers = -gradients_at(model, z, *part) @ whiten.T
            share = kept(answers, clip_norm)
            lost = (1 - share) * answers
            found = lost.sum(0), lost.T @ lost, (share * answers).T @ answers
            return jax.tree.map(jnp.add, total, found), None

        def slope(key, row):
            outcome = simulate(key, z, row)

            def clipped(z):
                answer = -whiten @ jax.grad(model.log_likelihood)(z, {**row, **outcome})
                return answer * kept(answer, clip_norm)

            found = jax.jacfwd(clipped)(z) @ whiten.T
            return jnp.where(jnp.isfinite(found).all(), (found + found.T) / 2, 0.0)

        parts = jax.tree.map(lambda column: column.reshape(-1, AT_ONCE, *column.shape[1:]), (covariates, keys))
        sums, _ = jax.lax.scan(add, (jnp.zeros_like(z), jnp.zeros_like(whiten), jnp.zeros_like(whiten)), parts)
        first, keys = jax.tree.map(lambda column: column[:AT_ONCE], (covariates, keys))
        return sums, jax.vmap(slope)(keys, first)

    return jax.jit(answers_of)
