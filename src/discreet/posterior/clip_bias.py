"""How far clipping moves the optimum: what no trace shows, told by rows simulated at the posterior's own draws.

Clipped gradients of all rows sum to zero elsewhere than whole ones do. The trace is a straight line all the same, so
that it fits, and its intervals miss. But model, clip norm and posterior are public: rows simulated from them lose as
much to the clip as the table's own did, if the model is right.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from discreet.methods import elbo
from discreet.model import Model
from discreet.posterior.diagnostics import named
from discreet.release import Release
from discreet.schema import Covariates, Schema

TABLES, ROWS, SEED = 32, 1024, 3
LARGEST = 1 / 3


def clip_bias(
    model: Model, schema: Schema, release: Release, z: np.ndarray, covariates: Covariates | None = None
) -> np.ndarray:
    """By how many sds of the draws `z` (…, draws, d) clipping moves the optimum, shape (…, d).

    `covariates` draws that many rows of encoded columns; without it they are uniform on what the schema declares. NaN
    where the draws are not finite.
    """
    simulate = model.simulate
    if simulate is None:
        raise ValueError("this model cannot simulate its outcome, so what clipping does to it is not known")
    lead, dim = z.shape[:-2], model.dim
    some = z[..., np.linspace(0, z.shape[-2] - 1, TABLES).astype(int), :]
    phi = np.repeat(np.asarray(release.last)[..., None, :], TABLES, axis=-2)
    phi[..., :dim] = some
    flat = (covariates or schema.sample)(np.random.default_rng(SEED), TABLES * ROWS)
    rows = {name: column.reshape(TABLES, ROWS) for name, column in flat.items()}
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(SEED), TABLES)
        tables = jax.vmap(_shift(model, release, simulate))
        moved = jax.jit(lambda phi: jax.lax.map(lambda one: tables(keys, one, rows), phi))
        found = np.asarray(moved(phi.reshape(-1, *phi.shape[-2:])))
    return found.mean(1).reshape(*lead, dim) / z.std(-2)


def warnings(found: np.ndarray, names: list[str]) -> list[str]:
    """What of one release's clip bias should be said aloud."""
    large = ~(np.abs(found) <= LARGEST)  # so that nan is large, too
    if not large.any():
        return []
    worst = int(np.argmax(np.where(large, np.abs(found), -1.0)))
    return [
        f"clipping moves {named(large, names)}: in rows simulated from this posterior the optimum of {names[worst]} is "
        f"off by {found[worst]:+.1f} of its sds, which its interval does not know; raise clip_norm"
    ]


def _shift(model: Model, release: Release, simulate: Callable):
    """(key, φ, rows) → how far the clip moves the optimum of rows simulated at φ's location."""
    plan = release.plan
    query = elbo.query(model, plan, elbo.described(release.settings))

    def shift(key, phi, rows):
        z, (first, second) = phi[: model.dim], jax.random.split(key)
        keys = jax.random.split(first, ROWS)
        rows = {**rows, **jax.vmap(lambda key, row: simulate(key, z, row))(keys, rows)}
        state = query.init(key)._replace(phi=phi)
        question = query.ask(query.chance(second), state)
        values = jax.vmap(lambda row: query.row_value(question, row))(rows)
        norm = jnp.linalg.norm(values, ord=plan.norm_order, axis=1, keepdims=True)
        lost = (values * jnp.maximum(0.0, 1 - plan.clip_norm / jnp.maximum(norm, 1e-300))).mean(0)
        whole, clipped = (query.update(state, question, answer)[1].y for answer in (lost, jnp.zeros_like(lost)))
        slopes = jax.vmap(lambda row: jax.grad(model.log_likelihood)(z, row))(rows)
        curvature = slopes.T @ slopes / ROWS - jax.hessian(model.log_prior)(z) / plan.num_rows
        return jnp.linalg.solve(curvature, (whole - clipped)[: model.dim])

    return shift
