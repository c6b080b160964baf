"""Coverage and sharpness together: perfect, prior, overconfident, timid and biased posteriors are told apart."""

from types import SimpleNamespace

import numpy as np
import pytest

from discreet.evaluate import ranks, sharpness, tarp

K, M, D, REPETITIONS = 500, 400, 2, 5
NOISE_SD = 0.4


@pytest.fixture(scope="module")
def world():
    """θ ~ N(0, I), datum N(θ, .4²I): the exact posterior and four others, as draws (K, M, D)."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(K, D))
    weight = 1 / (1 + NOISE_SD**2)
    centre = (weight * (truth + NOISE_SD * rng.normal(size=(K, D))))[:, None]
    sd = np.sqrt(1 - weight)

    def normal():
        return rng.normal(size=(K, M, D))

    return SimpleNamespace(
        truth=truth,
        centre=centre[:, 0],
        sd=sd,
        perfect=centre + sd * normal(),
        prior=normal(),
        overconfident=centre + sd / 2 * normal(),
        timid=centre + 2 * sd * normal(),
        biased=centre + sd + sd * normal(),
    )


def score(draws, truth):
    return tarp.mean_rmse(np.random.default_rng(1), draws, truth, REPETITIONS)


def bound():
    """The null's 99.9 %: false alarms 1e-3 for each posterior called honest, seeds fixed."""
    return tarp.null_band(K, 0.999, dim=D, repetitions=REPETITIONS, simulations=10_000)[1]


def marginal_scores(draws, truth):
    return tarp.rmse(tarp.marginal_fractions(np.random.default_rng(2), draws, truth))


@pytest.mark.parametrize("name", ["perfect", "prior"])
def test_the_exact_posterior_and_the_prior_are_honest(world, name):
    draws = getattr(world, name)
    assert score(draws, world.truth) < bound()
    assert (marginal_scores(draws, world.truth) < tarp.null_band(K, 0.999)[1]).all()
    assert (ranks.uniformity(ranks.ranks(draws, world.truth), M) > 1e-3).all()


@pytest.mark.parametrize("name", ["overconfident", "timid", "biased"])
def test_the_others_are_not(world, name):
    """Each is off by much: twice the null's 99.9 %, and so are its marginals; ranks agree."""
    draws = getattr(world, name)
    assert score(draws, world.truth) > 2 * bound()
    assert (marginal_scores(draws, world.truth) > tarp.null_band(K, 0.999)[1]).all()
    assert (ranks.uniformity(ranks.ranks(draws, world.truth), M) < 1e-6).all()


def test_sharpness_tells_the_prior_from_the_posterior(world):
    ratio = sharpness.sd_ratio(world.prior, world.perfect)
    np.testing.assert_allclose(ratio, 1 / world.sd, rtol=0.02)
    assert (ratio > 2.5).all()


@pytest.mark.parametrize("name", ["prior", "overconfident", "timid", "biased"])
def test_the_exact_posterior_has_the_best_scores(world, name):
    """By 4 standard errors of the difference over data sets, false alarms 3e-5 each."""
    wrong = getattr(world, name)
    log = sharpness.log_scores(world.perfect, world.truth) - sharpness.log_scores(wrong, world.truth)
    exact, other = (
        sharpness.energy_scores(np.random.default_rng(3), draws, world.truth) for draws in (world.perfect, wrong)
    )
    for gain in (log.sum(1), other - exact):
        assert gain.mean() > 4 * gain.std() / np.sqrt(K)


def test_the_table_of_verdicts(world):
    """Honest? As sharp as the exact posterior? Only the exact posterior is both."""
    verdicts = {
        name: (
            score(getattr(world, name), world.truth) < bound(),
            bool((sharpness.sd_ratio(getattr(world, name), world.perfect) < 1.1).all()),
        )
        for name in ("perfect", "prior", "overconfident", "timid", "biased")
    }
    assert verdicts == {
        "perfect": (True, True),
        "prior": (True, False),
        "overconfident": (False, True),
        "timid": (False, False),
        "biased": (False, True),
    }


def test_a_coordinate_of_small_scale_hides_in_the_joint_distance_but_not_in_its_margin(world):
    """The second coordinate is overconfident, and a hundredth of the first: balls hardly see it."""
    units = np.array([1, 0.01])
    draws, truth = units * world.perfect, units * world.truth
    draws[..., 1] = units[1] * world.overconfident[..., 1]
    honest = tarp.null_band(K, 0.999)[1]
    for references in ("random", "around"):
        assert tarp.rmse(tarp.fractions(np.random.default_rng(4), draws, truth, references)) < honest
        first, second = tarp.rmse(tarp.marginal_fractions(np.random.default_rng(4), draws, truth, references))
        assert first < honest < second


def test_references_at_the_data_refute_a_prior_that_balls_around_itself_do_not(world):
    """Truths are near the exact posterior's means, and the prior's draws are not; the exact posterior still passes."""
    rng, references, honest = np.random.default_rng(5), world.centre, tarp.null_band(K, 0.999)[1]
    assert tarp.rmse(tarp.fractions(rng, world.perfect, world.truth, references)) < honest
    assert tarp.rmse(tarp.fractions(rng, world.prior, world.truth, references)) > 4 * honest
    assert tarp.rmse(tarp.fractions(rng, world.prior, world.truth, "random")) < honest
