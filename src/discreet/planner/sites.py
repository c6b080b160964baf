"""The public choices of DP-SEP."""

from dataclasses import replace

import jax
import numpy as np

from discreet.methods import sep, sites
from discreet.methods.natural import Shape
from discreet.model import Model
from discreet.plan import Plan
from discreet.planner.prior_rows import (
    TABLES_HELD,
    Choice,
    PriorRows,
    by_unit,
    known,
    plan_for,
    reasons_of,
    simulate_rows,
)
from discreet.posterior import full
from discreet.schema import Schema

SITE_STEPS, SITE_CLOSING, SITE_POWER, SITE_FLOOR, SITES_HELD = 2000, 0.03, 3.0, 2.0, 0.995


def choose_sites(
    model: Model, schema: Schema, num_rows: int, epsilon: float, delta: float, *, steps: int = SITE_STEPS
) -> Choice:
    """The same for DP-SEP: the clip norm holds 99.5 % of simulated sites, in four of five tables.

    φ starts at the precision that simulated rows lead one to expect: with less, the first noisy steps would go far. The
    first step closes 3 % of any distance and step t about 3/t, so that φ arrives, forgets where it came from, and then
    averages. Eigenvalues of its precision stay above the norm of a matrix of φ's own noise after a fifth of the steps:
    a step divides by them. The noise of an average answer falls by a hundredth if 2000 steps become 10⁴: 2000 it is.
    """
    site = sites.linear(model)
    sites.check(site, schema)
    simulated = simulate_rows(model, schema)
    prior, _ = known(model, simulated, num_rows)
    plan = plan_for(schema, num_rows, steps, epsilon, delta)
    lengths = np.linalg.norm(by_unit(schema, _sites(site, simulated, prior)), axis=-1)
    clip_norm = np.quantile(np.quantile(lengths, SITES_HELD, axis=1), TABLES_HELD)
    plan = replace(plan, clip_norm=float(f"{clip_norm:.4g}"))
    gamma = SITE_CLOSING * num_rows / plan.sampling_prob
    rows = np.diag(prior.curvature - prior.sd**-2)[None]
    shape = Shape(1, model.dim)
    with jax.enable_x64(True):
        start = np.asarray(shape.pack(rows @ prior.mean, rows))
    least = 1 + SITE_FLOOR * np.sqrt(model.dim) * _noise_of_precision(plan) * float((prior.sd**2).max())
    settings = sep.Settings(gamma, least, start, slowing=SITE_CLOSING / SITE_POWER, centred=True)
    reasons = (
        f"clip_norm {plan.clip_norm:.4g}: {SITES_HELD:.1%} of sites are shorter, in four of five simulated tables",
        f"gamma {gamma:.4g}: the first step closes {SITE_CLOSING:.0%} of any distance, step t {SITE_POWER:g}/t",
    )
    return Choice(plan, settings, prior, (*reasons_of(plan), *reasons))


def _noise_of_precision(plan: Plan) -> float:
    """sd of the noise in an entry of φ after a fifth of the steps, each of them closing the share that is due then."""
    closing = SITE_CLOSING / (1 + SITE_CLOSING / SITE_POWER * plan.steps / 5)
    return plan.noise_std / plan.sampling_prob * np.sqrt(closing / 2)


def _sites(site: sites.Site, simulated: PriorRows, prior: full.Prior) -> np.ndarray:
    """Each simulated row's site about the truth it came from; (tables, rows, size)."""
    shape, cov = Shape(1, len(prior.curvature)), np.diag(1 / prior.curvature)[None]

    def table(z, rows):
        around = sites.cavity(shape, shape.of_moments(z[None], cov))
        return jax.vmap(lambda row: shape.about(site.of_row(around, row), around.mean))(rows)

    with jax.enable_x64(True):
        return np.asarray(jax.jit(jax.vmap(table))(simulated.z, simulated.rows))
