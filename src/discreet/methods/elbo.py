"""DPVI: rows answer with gradients of the negative ELBO; prior and entropy are public and come after the noise."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from discreet.methods import mean_field
from discreet.model import Model
from discreet.plan import Plan
from discreet.query import Point, Query


class Settings(NamedTuple):
    """The public choices of a DPVI run. Vectors have length 2·dim, means first, then scales.

    `precondition` is β: rows answer with β∘gradient and the answer is divided by β (all ones: vanilla).
    `learning_rate` multiplies β in the step. `start` is φ₀.
    """

    start: np.ndarray
    precondition: np.ndarray
    learning_rate: np.ndarray
    draws: int = 10


class State(NamedTuple):
    """The iterate φ and the optimiser's memory."""

    phi: Array
    optimiser: optax.OptState


class Question(NamedTuple):
    """Asked of every row of a batch: the iterate and the draws it is judged at."""

    phi: Array
    eta: Array


def query(model: Model, plan: Plan, settings: Settings) -> Query:
    """The gradient of −E_q[Σ log p(row | z)] − κ-weighted public part, with SGD on batch sums.

    The trace it reports is y_t = answer/β + κ·∇(−E_q[log p(z)] − H(q)) against x_t = φ_t.
    """
    check(model, settings)
    start, beta, rate = (np.asarray(value, np.float64) for value in settings[:3])
    optimiser = optax.sgd(1.0)

    def init(key):
        del key
        return State(jnp.asarray(start), optimiser.init(jnp.asarray(start)))

    def ask(key, state):
        return Question(state.phi, mean_field.antithetic(key, settings.draws, model.dim))

    def row_value(question, row):
        def loss(phi):
            draws = mean_field.transform(phi[None], question.eta)
            return -jax.vmap(lambda z: model.log_likelihood(z, row))(draws).mean()

        return beta * jax.grad(loss)(question.phi)

    def public_loss(phi, eta):
        draws = mean_field.transform(phi[None], eta)
        return -jax.vmap(model.log_prior)(draws).mean() - mean_field.entropy(phi)

    def update(state, question, answer):
        public = jax.grad(public_loss)(question.phi, question.eta)
        gradient = answer / beta + plan.sampling_prob * public
        change, memory = optimiser.update(rate * beta * gradient, state.optimiser)
        return State(state.phi + change, memory), Point(state.phi, gradient, jnp.asarray(1 / beta))

    return Query(
        init,
        ask,
        row_value,
        update,
        lambda state: state.phi,
        2 * model.dim,
        model.columns,
        describe(settings),
    )


def heuristic_rate(plan: Plan, size: int, factor: float = 1.0) -> float:
    """λ = √2·factor / (σC√(T·size)): steps whose noise wanders about one unit in T steps (NA-DPVI A58).

    >>> plan = Plan(num_rows=5000, steps=10_000, sampling_prob=0.1, clip_norm=2.0, noise_multiplier=307.8)
    >>> round(heuristic_rate(plan, 2) * 1e5, 4)
    1.6244
    """
    if plan.noise_std == 0:
        raise ValueError("noise_multiplier=0: the heuristic measures steps by their noise; give a learning rate")
    return float(np.sqrt(2) * factor / (plan.noise_std * np.sqrt(plan.steps * size)))


def describe(settings: Settings) -> dict:
    """Plain values of the settings, for the release."""
    return {
        "method": "elbo",
        "family": "mean-field",
        "draws": settings.draws,
        **{name: np.asarray(getattr(settings, name)).tolist() for name in Settings._fields[:3]},
    }


def check(model: Model, settings: Settings) -> None:
    """Refuse settings that do not fit the model."""
    for name in Settings._fields[:3]:
        value = np.asarray(getattr(settings, name))
        if value.shape != (2 * model.dim,):
            raise ValueError(
                f"{name} has shape {value.shape}; a model of {model.dim} parameters needs ({2 * model.dim},)"
            )
        if not np.isfinite(value).all() or (name != "start" and (value <= 0).any()):
            raise ValueError(f"{name} must be finite{'' if name == 'start' else ' and positive'}")
    if settings.draws < 1:
        raise ValueError(f"draws={settings.draws} must be at least 1")
