"""Expectation propagation without privacy, EP and SEP: what DP-SEP is compared with.

Not private: for simulated and public tables only.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from discreet.methods import sep as dp_sep
from discreet.methods.natural import shortened
from discreet.methods.sites import Site, SiteError, cavity
from discreet.plan import Plan


class Fit(NamedTuple):
    """Natural parameters of the posterior, its moments (blocks, dim) and (blocks, dim, dim), and the last sweep's
    change of the means in sds.
    """

    theta: np.ndarray
    mean: np.ndarray
    cov: np.ndarray
    change: float


def ep(
    site: Site,
    columns: Mapping[str, np.ndarray],
    *,
    start: np.ndarray | None = None,
    sweeps: int = 100,
    damping: float = 1.0,
    tolerance: float = 1e-8,
) -> Fit:
    """EP: a site for every row, matched one after the other until the means change by less than `tolerance` sds.

    `start` is φ₀, shared by all sites; a step goes the share `damping` of the way to the new site.
    """
    count = len(next(iter(columns.values())))
    rows = {name: columns[name] for name in site.columns}

    def one(theta, inputs):
        own, row = inputs
        without = theta - own
        good = site.shape.smallest(without, site.prior) > 0
        new = own + damping * (site.of_row(cavity(site.shape, without), row) - own)
        new = jnp.where(good, new, own)
        return without + new, (new, good)

    with jax.enable_x64(True):
        share = jnp.zeros(site.shape.size) if start is None else jnp.asarray(start) / count
        sites = jnp.tile(share, (count, 1))
        theta, change = jnp.asarray(site.prior) + sites.sum(0), np.inf
        sweep = jax.jit(lambda theta, sites: jax.lax.scan(one, theta, (sites, rows)))
        for _ in range(sweeps):
            new, (sites, good) = sweep(theta, sites)
            _check(new, good)
            change, theta = _change(site, theta, new), jnp.asarray(site.prior) + sites.sum(0)
            if change < tolerance:
                break
        return _fit(site, theta, change)


def sep(
    site: Site,
    columns: Mapping[str, np.ndarray],
    settings: dp_sep.Settings,
    *,
    passes: int = 100,
    clip_norm: float = 1e12,
    seed: int = 0,
) -> Fit:
    """SEP: one average site, a row at a time in passes of random order; sites are clipped to `clip_norm`."""
    count = len(next(iter(columns.values())))
    plan = Plan(count, 1, 1 / count, clip_norm, 0.0)

    def one(rows, phi, place):
        against = cavity(site.shape, dp_sep.without_one(site, plan, phi))
        value = shortened(site.of_row(against, {name: column[place] for name, column in rows.items()}), clip_norm)
        return dp_sep.advance(site, plan, settings, phi, value, site.prior), jnp.isfinite(value).all()

    with jax.enable_x64(True):
        rows = {name: jnp.asarray(columns[name]) for name in site.columns}
        phi, change, rng = jnp.asarray(dp_sep.check(site, plan, settings)), np.inf, np.random.default_rng(seed)
        sweep = jax.jit(lambda phi, order: jax.lax.scan(partial(one, rows), phi, order))
        for _ in range(passes):
            new, good = sweep(phi, rng.permutation(count))
            _check(new, good)
            change, phi = _change(site, site.prior + phi, site.prior + new), new
        return _fit(site, site.prior + phi, change)


def _check(theta, good) -> None:
    bad = int((~np.asarray(good)).sum())
    if bad or not np.isfinite(np.asarray(theta)).all():
        raise SiteError(
            f"{bad} rows had a cavity that is not positive definite, or moments that do not exist: use damping"
        )


def _change(site: Site, before, after) -> float:
    (old, _), (new, cov) = site.shape.moments(before), site.shape.moments(after)
    return float(jnp.abs((new - old) / jnp.sqrt(jnp.diagonal(cov, axis1=-2, axis2=-1))).max())


def _fit(site: Site, theta, change: float) -> Fit:
    mean, cov = site.shape.moments(theta)
    return Fit(np.asarray(theta), np.asarray(mean), np.asarray(cov), change)
