"""DP-EM (Park et al., 2017) for the means of a Gaussian mixture: rows answer with expected sufficient statistics.

A row belongs to component j with the probability r_j that the current means give it, and answers with every r_j and
r_j·x. The noisy sums then give new means, in public.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from discreet.families.gaussian_mixture import Mixture, check
from discreet.plan import Plan, require
from discreet.query import Point, Query


class Estimate(NamedTuple):
    """The means (components, columns), and the variance of each given how many rows belong to it."""

    mean: np.ndarray
    variance: np.ndarray


def query(mixture: Mixture, plan: Plan, start: np.ndarray) -> Query:
    """Ask rows for r and r·x at the current means, `start` (components, columns) at first.

    Guarantee: one row moves an answer by at most the plan's clip norm. √(1 + ‖x‖²) is the most a row's vector can be.
    """
    check(mixture)
    shape = mixture.shape
    require(np.shape(start) == shape, "start", np.shape(start), f"have shape {shape}")

    def row_value(means, row):
        x = jnp.stack([row[name] for name in mixture.columns])
        belongs = responsibilities(mixture, means, x)
        return jnp.concatenate([belongs, (belongs[:, None] * x[None]).ravel()])

    def update(state, question, answer):
        del question
        means = _means(mixture, answer / plan.sampling_prob)
        point = Point(state[: means.size], jnp.zeros_like(answer), answer, jnp.ones_like(answer))
        return jnp.concatenate([means.ravel(), answer[: shape[0]] / plan.sampling_prob]), point

    return Query(
        init=lambda key: jnp.concatenate([jnp.asarray(start, float).ravel(), jnp.zeros(shape[0])]),
        ask=lambda chance, state: state[: shape[0] * shape[1]].reshape(shape),
        row_value=row_value,
        update=update,
        last=lambda state: state,
        size=shape[0] * (1 + shape[1]),
        columns=mixture.columns,
        settings=describe(mixture, start),
    )


def responsibilities(mixture: Mixture, means: Array, x: Array) -> Array:
    """The probability of each component for a row at `x`, if these are the means."""
    height = jnp.log(jnp.asarray(mixture.weights)) - ((x[None] - means) ** 2).sum(-1) / (2 * mixture.sd**2)
    return jax.nn.softmax(height)


def estimate(mixture: Mixture, last: np.ndarray) -> Estimate:
    """What the last state of a release says; counts below zero are none."""
    count = len(mixture.weights)
    mean, rows = last[..., :-count], np.maximum(last[..., -count:], 0.0)
    variance = 1 / (rows / mixture.sd**2 + mixture.prior_sd**-2)
    return Estimate(mean.reshape(*last.shape[:-1], count, -1), variance)


def describe(mixture: Mixture, start: np.ndarray) -> dict[str, Any]:
    """Plain values of what was asked, for the release."""
    return {"method": "em", **mixture.describe(), "start": np.asarray(start).tolist()}


def _means(mixture: Mixture, answer: Array) -> Array:
    """The posterior mode of the means if `answer` holds each component's number of rows and their sum."""
    count = len(mixture.weights)
    rows, sums = jnp.maximum(answer[:count], 0.0), answer[count:].reshape(count, -1)
    before = 1 / mixture.prior_sd**2
    precision = rows / mixture.sd**2 + before
    return (sums / mixture.sd**2 + before * jnp.asarray(mixture.mean)) / precision[:, None]
