"""The noise-aware posterior of DP-SEP: against theory where sites do not answer to φ, and by coverage."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from scipy import stats

from discreet.accounting import calibrate
from discreet.evaluate import study
from discreet.families.mixture import Mixture
from discreet.methods import sep as method
from discreet.methods.sites import SiteError, linear, mixture
from discreet.plan import Plan
from discreet.posterior import full, sep
from discreet.posterior.trace import TraceError
from tests import tiny
from tests.posterior.traces import quadratic

SITE = linear(tiny.MODEL)


@pytest.fixture(scope="module")
def studied():
    """60 tables of 1000 rows from the prior, each fitted at ε = 1: truths and releases."""
    truth, tables = study.simulate_tables(5, tiny.MODEL, tiny.SCHEMA, 1000, 60)
    plan = calibrate(Plan(1000, 400, 0.2, 1.2, 1.0), 1.0, 1e-5)
    query = method.query(SITE, plan, method.Settings(gamma=0.05 * 1000 / 0.2))
    return truth, study.fit_tables(6, tiny.SCHEMA, plan, query, tables)


def test_the_truth_is_covered_and_the_last_iterate_s_posterior_misses_it(studied):
    """Three intervals of each of 60 releases, counted as 60: 90 % of them within a binomial band, false alarm 10⁻³."""
    truth, release = studied
    rng = np.random.default_rng(7)
    drawn = np.stack([sep.solve(rng, study.chosen(release, place), 400).z for place in range(60)])
    low, high = np.quantile(drawn, [0.05, 0.95], axis=1)
    held = ((low < truth) & (truth < high)).mean()
    band = np.array(stats.binom.interval(0.999, 60, 0.9)) / 60
    assert band[0] <= held <= band[1]
    with jax.enable_x64(True):
        mean, cov = map(np.asarray, SITE.shape.moments(SITE.prior + release.last))
    sd = np.sqrt(np.diagonal(cov, axis1=-2, axis2=-1))
    naive = (np.abs(mean - truth[:, None]) < 1.645 * sd).mean()
    assert naive < band[0]


def test_the_optimum_is_seen_as_well_as_the_mean_answer(studied):
    """y = κa(φ − φ*) + noise with a = 1: φ* to sd/(κ√steps), within 1.3 of it, for a is not known; and it is unbiased.

    300 optima, all with this sd: their mean square in units of it within .8 and 1.3 (χ²: false alarm 10⁻³).
    """
    del studied
    rng, std, rate, steps, count = np.random.default_rng(8), 20.0, 0.1, 2000, 300
    optimum = 5 * rng.standard_normal(count)
    release = quadratic(rng, np.eye(count), optimum, steps=steps, std=std, rate=rate, step_size=0.1, start=optimum)
    release = replace(release, settings={"method": "sep"})
    found = sep.seen(rng, release, burn_in=0.2)
    expected = std / (rate * np.sqrt(0.8 * steps))
    assert np.all(found.sd > 0.7 * expected)
    assert np.median(found.sd) < 1.3 * expected
    assert 0.8 < (((found.mean - optimum) / found.sd) ** 2).mean() < 1.3
    assert np.median(found.slope) == pytest.approx(1, abs=0.2)


def test_what_is_publicly_known_of_the_precision_is_used(studied):
    """With a precision declared to 1 %, z is around its mean with that precision: 4000 draws, sds to 6 %, 10⁻⁶."""
    _, release = studied
    one, rng = study.chosen(release, 0), np.random.default_rng(9)
    known = sep.public_prior(np.asarray(one.settings["prior_theta"]), SITE.shape)
    precision = np.array([[60.0, 5.0, 10.0], [5.0, 25.0, 2.0], [10.0, 2.0, 30.0]])
    spread = np.diag((0.01 * np.sqrt(np.outer(np.diag(precision), np.diag(precision)))[np.triu_indices(3)]) ** 2)
    declared = full.Prior(known.mean, known.sd, precision, spread)
    drawn = sep.solve(rng, one, 4000, prior=declared)
    expected = np.sqrt(np.diag(np.linalg.inv(precision)))
    np.testing.assert_allclose((drawn.z - drawn.optimum).std(0), expected, rtol=0.06)
    wide = sep.solve(rng, one, 4000)
    assert np.abs((wide.z - wide.optimum).std(0) / expected - 1).max() > 0.1


def test_what_cannot_be_read_is_refused_by_name(studied):
    _, release = studied
    one, rng = study.chosen(release, 0), np.random.default_rng(10)
    with pytest.raises(TraceError, match="replicas"):
        sep.solve(rng, release)
    with pytest.raises(TraceError, match="not of sites"):
        sep.solve(rng, replace(one, settings={"method": "elbo"}))
    blocks = mixture(Mixture(("x",), np.array([0.5, 0.5]), 1.0, np.zeros((2, 1)), 1.0))
    with pytest.raises(SiteError, match="several optima"):
        sep.solve(rng, replace(one, settings=method.describe(blocks, method.Settings(1.0))))
    tilted = np.array(SITE.prior)
    tilted[4] = 0.1
    with pytest.raises(SiteError, match="correlated"):
        sep.solve(rng, replace(one, settings={**one.settings, "prior_theta": tilted.tolist()}))
