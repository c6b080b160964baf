"""Variational inference for a regression network whose outer weights are integrated out in closed form (DP-SEP,
appendix D).

q has an independent Gaussian for every weight. Of the hidden layer draws are taken, which all rows of a step share;
given these, the expected log-likelihood is a formula in the outer weights' means and variances. The precisions of the
noise and of the weights' prior are given, in public. The divergence from the prior is a formula, too, and comes after
the noise. Weights are plain here, as the paper means precisions and rates: what a layer gets is not divided by the
root of how many it gets, as it is elsewhere in this house. `weights` turns them into those.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from discreet.families.network import Layers
from discreet.methods.gaussian import MEAN_FIELD, antithetic
from discreet.methods.pbp import Weights
from discreet.plan import Plan, require
from discreet.query import Point, Query


class Settings(NamedTuple):
    """The public choices of a run: Adam's rate, the two precisions, how many `draws` of the hidden layer, and the
    `weight` of the divergence from the prior (the paper's β: 1 is the evidence bound, less sharpens the posterior).

    Weights start at random means, by `seed`, as large as what a layer gets allows, with sds of `start_sd`.
    """

    learning_rate: float
    noise: float
    prior: float = 1.0
    draws: int = 10
    weight: float = 1.0
    start_sd: float = 0.05
    seed: int = 0


class State(NamedTuple):
    """The iterate φ and Adam's memory."""

    phi: Array
    memory: Any


class Question(NamedTuple):
    """The iterate, and the draws of the hidden layer (draws, hidden weights) as standard normals."""

    phi: Array
    eta: Array


def query(layers: Layers, plan: Plan, settings: Settings) -> Query:
    """The gradient of κ·(negative evidence bound) per row, with Adam.

    Guarantee: one row moves an answer by at most the plan's clip norm: the gradient by φ of its own expected negative
    log-likelihood, clipped.
    """
    check(settings)
    optimiser, hidden = optax.adam(settings.learning_rate), layers.hidden * layers.inputs
    with jax.enable_x64(True):
        sds = np.full(layers.weights, settings.start_sd)
        start = np.asarray(MEAN_FIELD.pack(layers.random_weights(settings.seed), sds))

    def ask(eta, state):
        return Question(state.phi, eta)

    def row_value(question, row):
        return jax.grad(lambda phi: expected_loss(layers, settings.noise, phi, question.eta, row))(question.phi)

    def update(state, question, answer):
        del question
        public = plan.sampling_prob * settings.weight * jax.grad(lambda phi: divergence(settings.prior, phi))(state.phi)
        gradient = answer + public
        change, memory = optimiser.update(gradient / (plan.sampling_prob * plan.num_rows), state.memory)
        moved = State(state.phi + change, memory)
        return moved, Point(state.phi, state.phi, gradient, jnp.ones_like(gradient))

    return Query(
        init=lambda key: State(jnp.asarray(start), optimiser.init(jnp.asarray(start))),
        ask=ask,
        row_value=row_value,
        update=update,
        last=lambda state: state.phi,
        size=2 * layers.weights,
        columns=layers.columns,
        settings={"method": "collapsed", **settings._asdict(), **layers.describe()},
        chance=lambda key: antithetic(key, settings.draws, hidden),
    )


def expected_loss(layers: Layers, noise: float, phi: Array, eta: Array, row) -> Array:
    """−E log p(row) up to a constant: over outer weights in closed form, over the hidden layer by the draws."""
    hidden = layers.hidden * layers.inputs
    mean, sd = MEAN_FIELD.mean(phi), MEAN_FIELD.sd(phi)
    roots, x, y = layers.roots, layers.features(row), layers.target(row)
    mean, sd = mean * roots, sd * roots
    weights = mean[None, :hidden] + sd[None, :hidden] * eta
    above = jax.vmap(lambda one: layers.above(one.reshape(layers.hidden, layers.inputs) @ x))(weights)
    missed = (y - above @ mean[hidden:]) ** 2 + above**2 @ sd[hidden:] ** 2
    return 0.5 * noise * missed.mean()


def divergence(prior: float, phi: Array) -> Array:
    """KL(q ‖ N(0, 1/prior)), up to a constant."""
    mean, sd = MEAN_FIELD.mean(phi), MEAN_FIELD.sd(phi)
    return 0.5 * prior * (mean**2 + sd**2).sum() - jnp.log(sd).sum()


def weights(layers: Layers, settings: Settings, phi: np.ndarray) -> Weights:
    """What φ says of a network."""
    with jax.enable_x64(True):
        mean, sd = np.asarray(MEAN_FIELD.mean(phi)), np.asarray(MEAN_FIELD.sd(phi))
    return Weights(mean * layers.roots, (sd * layers.roots) ** 2, 1 / settings.noise)


def check(settings: Settings) -> None:
    """Refuse settings that are none."""
    for name in ("learning_rate", "noise", "prior", "start_sd"):
        value = getattr(settings, name)
        require(0 < value < np.inf, name, value, "be positive and finite")
    require(0 <= settings.weight < np.inf, "weight", settings.weight, "be finite and not negative")
    whole = isinstance(settings.draws, int) and settings.draws >= 1
    require(whole, "draws", settings.draws, "be a whole number, at least 1")
