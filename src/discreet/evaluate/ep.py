"""Expectation propagation without privacy, EP, SEP and ADF: what DP-SEP is compared with.

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
    """Natural parameters of the posterior, its moments as its shape has them, and the last sweep's change of the means
    in sds.
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
    rows, count = _rows(site, columns, sweeps)

    def one(theta, inputs):
        own, row = inputs
        without = theta - own
        good = site.shape.exists(without, site.prior)
        against = cavity(site.shape, jnp.where(good, without, theta))
        new = own + damping * (site.of_row(against, row) - own)
        new = jnp.where(good, new, own)
        return without + new, (new, good.any())

    with jax.enable_x64(True):
        share = jnp.zeros(site.shape.size) if start is None else jnp.asarray(start) / count
        sites = jnp.tile(share, (count, 1))
        prior, change = jnp.asarray(site.first), np.inf
        theta = prior + sites.sum(0)
        sweep = jax.jit(lambda theta, sites: jax.lax.scan(one, theta, (sites, rows)))
        for _ in range(sweeps):
            new, (sites, good) = sweep(theta, sites)
            _check(new, good)
            phi = sites.sum(0)
            prior = _refined(site, phi, prior)
            change, theta = _change(site, theta, new), prior + phi
            if change < tolerance:
                break
        return _fit(site, theta, change)


def adf(site: Site, columns: Mapping[str, np.ndarray], *, passes: int = 40, seed: int = 0) -> Fit:
    """Assumed density filtering, as PBP does it: a row at a time, in random order, whose site is never taken out again.

    Every pass counts the rows once more: `passes` are when to stop, and intervals grow narrower with each.
    """
    table, count = _rows(site, columns, passes)

    def one(rows, theta, place):
        new = theta + site.of_row(cavity(site.shape, theta), {name: column[place] for name, column in rows.items()})
        good = site.shape.exists(new, site.prior)
        return jnp.where(good, new, theta), good.any()

    with jax.enable_x64(True):
        rows = {name: jnp.asarray(column) for name, column in table.items()}
        prior, phi, change, rng = (
            jnp.asarray(site.first),
            jnp.zeros(site.shape.size),
            np.inf,
            np.random.default_rng(seed),
        )
        sweep = jax.jit(lambda theta, order: jax.lax.scan(partial(one, rows), theta, order))
        for _ in range(passes):
            new, good = sweep(prior + phi, rng.permutation(count))
            _check(new, good)
            change, phi = _change(site, prior + phi, new), new - prior
            prior = _refined(site, phi, prior)
        return _fit(site, prior + phi, change)


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
    table, count = _rows(site, columns, passes)
    plan = Plan(count, 1, 1 / count, clip_norm, 0.0)

    def one(rows, prior, phi, place):
        against = cavity(site.shape, dp_sep.without_one(plan, phi, prior))
        value = shortened(site.of_row(against, {name: column[place] for name, column in rows.items()}), clip_norm)
        return dp_sep.advance(site, plan, settings, phi, value, prior), jnp.isfinite(value).all()

    with jax.enable_x64(True):
        rows = {name: jnp.asarray(column) for name, column in table.items()}
        phi, change, rng = jnp.asarray(dp_sep.check(site, plan, settings)), np.inf, np.random.default_rng(seed)
        prior = jnp.asarray(site.first)
        sweep = jax.jit(lambda phi, prior, order: jax.lax.scan(partial(one, rows, prior), phi, order))
        for _ in range(passes):
            new, good = sweep(phi, prior, rng.permutation(count))
            _check(new, good)
            change, phi, prior = _change(site, prior + phi, prior + new), new, _refined(site, new, prior)
        return _fit(site, prior + phi, change)


def _rows(site: Site, columns: Mapping[str, np.ndarray], times: int) -> tuple[dict[str, np.ndarray], int]:
    """The columns that the sites need, and how many rows there are; refused before anything is matched."""
    if times < 1:
        raise SiteError(f"{times} times over the rows are too few: at least 1")
    missing = set(site.columns) - set(columns)
    if missing:
        raise SiteError(f"the sites need columns {sorted(missing)}; there are {sorted(columns)}")
    rows = {name: np.asarray(columns[name]) for name in site.columns}
    lengths = {name: len(column) for name, column in rows.items()}
    if len(set(lengths.values())) != 1 or not min(lengths.values()):
        raise SiteError(f"columns must be of one length, at least 1: {lengths}")
    wild = [name for name, column in rows.items() if not np.isfinite(column).all()]
    if wild:
        raise SiteError(f"columns {wild} have values that are not finite")
    return rows, next(iter(lengths.values()))


def _refined(site: Site, phi: jax.Array, prior: jax.Array) -> jax.Array:
    """θ₀ once rows said φ."""
    return prior if site.refined is None else site.refined(phi, prior)


def _check(theta, good) -> None:
    bad = int((~np.asarray(good)).sum())
    if bad or not np.isfinite(np.asarray(theta)).all():
        raise SiteError(
            f"{bad} rows had a cavity that is not positive definite, or moments that do not exist: use damping"
        )


def _change(site: Site, before, after) -> float:
    (old, _), (new, _) = site.shape.moments(before), site.shape.moments(after)
    return float(jnp.abs((new - old) / site.shape.sds(after)).max())


def _fit(site: Site, theta, change: float) -> Fit:
    mean, cov = site.shape.moments(theta)
    return Fit(np.asarray(theta), np.asarray(mean), np.asarray(cov), change)
