"""The problem in JAX, for the peers that leave it to the user."""

import math

import jax
import jax.numpy as jnp
from _common import FEATURES, LEARNING_RATE, ROWS, START_MEAN, START_SCALE, batch_limit


def start():
    """φ = (m, s) before the first step."""
    return jnp.full(FEATURES, START_MEAN), jnp.full(FEATURES, START_SCALE)


def row_loss(phi, features, label, eta):
    """−mean_k log p(label | features, z_k).

    The logits x·z_k are taken as x·m + (x·sd)·η_k: a batch's gradients are then products of matrices, without an entry
    for each row, draw and feature. Several times as fast as x·(m + sd·η_k) with ten draws, as fast with one.
    """
    mean, scale = phi
    logits = features @ mean + eta @ (jax.nn.softplus(scale) * features)
    return jnp.mean(jax.nn.softplus(logits) - label * logits)


def public_loss(phi, eta):
    """−mean_k log p(z_k) − entropy, up to a constant."""
    mean, scale = phi
    sd = jax.nn.softplus(scale)
    return 0.5 * jnp.mean(jnp.sum((mean + sd * eta) ** 2, -1)) - jnp.sum(jnp.log(sd))


def poisson_batch(key, rate):
    """Indices of a Poisson batch, and which of them count: gaps between members are geometric.

    Much faster than `jax.random.choice` without replacement, which sorts the table, or the places of a random mask.
    """
    unit = -math.log1p(-rate) if rate < 1 else math.inf
    gaps = jnp.floor(jax.random.exponential(key, (batch_limit(rate),)) / unit).astype(jnp.int32) + 1
    places = jnp.cumsum(gaps) - 1
    return jnp.minimum(places, ROWS - 1), places < ROWS


def chances(key, rate, draws, steps):
    """Batches and η of all steps: drawing them together is faster than within the loop."""
    for_batches, for_eta = jax.random.split(key)
    indices, present = jax.vmap(lambda one: poisson_batch(one, rate))(jax.random.split(for_batches, steps))
    return indices, present, jax.random.normal(for_eta, (steps, draws, FEATURES))


def moved(phi, answer, eta, rate):
    """φ after one step of SGD along the noisy sum and the public gradient."""
    public = jax.grad(public_loss)(phi, eta)
    return jax.tree.map(lambda old, noisy, free: old - LEARNING_RATE * (noisy + rate * free), phi, answer, public)
