"""How far clipping moves the optimum: what no trace shows, told by rows simulated at the posterior's own draws.

Clipped gradients of all rows sum to zero elsewhere than whole ones do. The trace is a straight line all the same, so
that it fits, and its intervals miss. But model, clip norm and posterior are public: rows simulated from them lose as
much to the clip as the table's own did, if the model is right.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from discreet.methods import elbo, sites
from discreet.model import Model
from discreet.plan import Plan
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
    where the draws are not finite. Scores have none: it is taken out when they are read (`posterior.score`).
    """
    simulate = model.simulate
    if simulate is None:
        raise ValueError("this model cannot simulate its outcome, so what clipping does to it is not known")
    some = z[..., np.linspace(0, z.shape[-2] - 1, TABLES).astype(int), :]
    phi = np.repeat(np.asarray(release.last)[..., None, :], TABLES, axis=-2)
    flat = (covariates or schema.sample)(np.random.default_rng(SEED), TABLES * ROWS)
    rows = {name: column.reshape(TABLES, ROWS) for name, column in flat.items()}
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(SEED), TABLES)
        of_method = _of_sites if release.settings.get("method") == "sep" else _of_gradients
        shift = of_method(model, release, partial(_by_unit, schema))

        def table(inputs):
            key, z, phi, rows = inputs
            first, second = jax.random.split(key)
            outcome = jax.vmap(lambda key, row: simulate(key, z, row))(jax.random.split(first, ROWS), rows)
            return shift(second, z, phi, {**rows, **outcome})

        moved = jax.jit(lambda each: jax.lax.map(lambda one: jax.vmap(table)((keys, *one, rows)), each))
        found = np.asarray(moved(tuple(part.reshape(-1, *part.shape[-2:]) for part in (some, phi))))
    return found.mean(1).reshape(*z.shape[:-2], model.dim) / z.std(-2)


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


def _by_unit(schema: Schema, values: Array) -> Array:
    """What made-up units answer, from what rows do, (rows, size); a row for each unit where there are none."""
    if schema.unit is None:
        return values
    finite = jnp.where(jnp.isfinite(values).all(-1, keepdims=True), values, 0.0)
    return jnp.asarray(schema.unit.made_up(np.random.default_rng(SEED), ROWS)) @ finite


def _of_gradients(model: Model, release: Release, by_unit: Callable[[Array], Array]) -> Callable:
    """(key, z, φ, rows) → how far the clip moves the optimum of rows simulated at z, asked with φ's scales."""
    plan = release.plan
    query = elbo.query(model, plan, elbo.described(release.settings))

    def shift(key, z, phi, rows):
        state = query.init(key)._replace(phi=phi.at[: model.dim].set(z))
        question = query.ask(query.chance(key), state)
        lost = _lost(plan, by_unit(jax.vmap(lambda row: query.row_value(question, row))(rows)))
        whole, clipped = (query.update(state, question, answer)[1].y for answer in (lost, jnp.zeros_like(lost)))
        slopes = by_unit(jax.vmap(lambda row: jax.grad(model.log_likelihood)(z, row))(rows))
        curvature = slopes.T @ slopes / ROWS - jax.hessian(model.log_prior)(z) / plan.num_rows
        return jnp.linalg.solve(curvature, (whole - clipped)[: model.dim])

    return shift


def _of_sites(model: Model, release: Release, by_unit: Callable[[Array], Array]) -> Callable:
    """The same where rows answer with sites: what the clip takes from η about z moves the mean."""
    plan, site = release.plan, sites.linear(model)

    def shift(key, z, phi, rows):
        del key
        theta = site.shape.lifted(jnp.asarray(site.prior) + phi, site.prior, 1.0)
        cov = site.shape.moments(theta)[1]
        around = sites.Cavity(theta, z[None], cov)
        origin = z[None] if release.settings["centred"] else jnp.zeros((1, model.dim))
        values = by_unit(jax.vmap(lambda row: site.shape.about(site.of_row(around, row), origin))(rows))
        lost = site.shape.about(plan.num_rows * _lost(plan, values), z[None] - origin)
        return -cov[0] @ lost[: model.dim]

    return shift


def _lost(plan: Plan, values: Array) -> Array:
    """What the clip takes from a row's answer, on average over rows."""
    norm = jnp.linalg.norm(values, ord=plan.norm_order, axis=1, keepdims=True)
    return (values * jnp.maximum(0.0, 1 - plan.clip_norm / jnp.maximum(norm, 1e-300))).mean(0)
