"""The problem in JAX, for the peers that leave it to the user, as it is plainly written and as well as we could."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from _common import FEATURES, LEARNING_RATE, ROWS, START_MEAN, START_SCALE, batch_limit


def start():
    """φ = (m, s) before the first step."""
    return jnp.full(FEATURES, START_MEAN), jnp.full(FEATURES, START_SCALE)


def row_loss(phi, features, label, eta):
    """−mean_k log p(label | features, z_k), as one would write it: z_k = m + softplus(s)·η_k, logits x·z_k."""
    mean, scale = phi
    logits = (mean + jax.nn.softplus(scale) * eta) @ features
    return jnp.mean(jax.nn.softplus(logits) - label * logits)


@jax.custom_jvp
def quick_softplus(u):
    """softplus, and its derivative as a sigmoid: one exponential instead of three functions."""
    return jax.nn.softplus(u)


quick_softplus.defjvps(lambda tangent, _, u: tangent * jax.nn.sigmoid(u))


def row_loss_in_parts(phi, features, label, eta):
    """The same with the logits as x·m + (x·sd)·η_k: a batch's gradients are then products of matrices, without an entry
    for each row, draw and feature. Several times as fast with ten draws, as fast with one.
    """
    mean, scale = phi
    logits = features @ mean + eta @ (jax.nn.softplus(scale) * features)
    return jnp.mean(quick_softplus(logits) - label * logits)


def public_loss(phi, eta):
    """−mean_k log p(z_k) − entropy, up to a constant."""
    mean, scale = phi
    sd = jax.nn.softplus(scale)
    return 0.5 * jnp.mean(jnp.sum((mean + sd * eta) ** 2, -1)) - jnp.sum(jnp.log(sd))


def masked_batch(key, rate):
    """Indices of a Poisson batch, and which of them count: a coin for every row of the table."""
    limit = batch_limit(rate)
    (places,) = jnp.nonzero(jax.random.bernoulli(key, rate, (ROWS,)), size=limit, fill_value=ROWS)
    return jnp.minimum(places, ROWS - 1), places < ROWS


def gap_batch(key, rate):
    """The same by geometric gaps between members: no coin for every row, and no search for heads."""
    unit = -math.log1p(-rate) if rate < 1 else math.inf
    gaps = jnp.floor(jax.random.exponential(key, (batch_limit(rate),)) / unit).astype(jnp.int32) + 1
    places = jnp.cumsum(gaps) - 1
    return jnp.minimum(places, ROWS - 1), places < ROWS


class Form(NamedTuple):
    """How a user writes what a peer leaves to them: the loss of a row, the batch of a step, and how many are made."""

    row_loss: Callable
    batch: Callable
    of_each: Callable


FORMS = {
    "plain": Form(row_loss, masked_batch, jax.lax.map),  # a coin for every row and step at once would fill the memory
    "tuned": Form(row_loss_in_parts, gap_batch, lambda batch, keys: jax.vmap(batch)(keys)),
}


def chances(form, key, rate, draws, steps):
    """Batches and η of all steps: drawing them together is faster than within the loop."""
    for_batches, for_eta = jax.random.split(key)
    indices, present = form.of_each(lambda one: form.batch(one, rate), jax.random.split(for_batches, steps))
    return indices, present, jax.random.normal(for_eta, (steps, draws, FEATURES))


def moved(phi, answer, eta, rate):
    """φ after one step of SGD along the noisy sum and the public gradient."""
    public = jax.grad(public_loss)(phi, eta)
    return jax.tree.map(lambda old, noisy, free: old - LEARNING_RATE * (noisy + rate * free), phi, answer, public)
