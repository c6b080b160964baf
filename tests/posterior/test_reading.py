import dataclasses
import math

import numpy as np
import pytest

from discreet.fitting import fit, simulated
from discreet.methods import elbo
from discreet.methods.gaussian import Family
from discreet.posterior import averaging, reading
from discreet.posterior.reading import far_from_prior, naive_posterior, public_prior, read
from discreet.release import Release
from tests import tiny


@pytest.fixture(scope="module")
def posterior():
    return tiny.posterior(1)


def moved(release, distance):
    """The release of the same run far away: every mean shifted by `distance` prior sds of its first parameter."""
    shift = np.zeros(release.blocks.mean_x.shape[-1])
    shift[1] = distance * public_prior(release).sd[1]
    return dataclasses.replace(release, blocks=release.blocks._replace(mean_x=release.blocks.mean_x + shift))


def test_a_saved_release_can_be_read_again(posterior, tmp_path):
    """Everything a reading needs is in the release: prior, start and reasons."""
    loaded = Release.load(posterior.release.save(tmp_path / "release"))
    again = read(loaded, tiny.MODEL, posterior.guarantee, draws=2000)
    assert again.info == posterior.info
    gap = np.abs(again.z.mean((0, 1)) - posterior.z.mean((0, 1)))
    assert (gap < 6 * posterior.z.std((0, 1)) / np.sqrt(400)).all()  # 500 and 2000 draws: false alarm below 1e-6


def test_without_a_trace_the_curvature_is_diagonal(posterior):
    short = dataclasses.replace(posterior.release, trace=None)
    assert read(short, tiny.MODEL, posterior.guarantee).info["method"] == "noise-aware, diagonal curvature"


def test_the_naive_reading_is_the_last_iterate(posterior):
    naive = naive_posterior(posterior)
    assert naive.info["method"] == "last iterate"
    gap = np.abs(naive.z.mean((0, 1)) - posterior.release.last[: tiny.MODEL.dim])
    assert (gap < 6 * naive.z.std((0, 1)) / np.sqrt(tiny.DRAWS)).all()


def test_steps_that_leave_the_prior_are_reported_by_name(posterior):
    assert far_from_prior(moved(posterior.release, 0), tiny.MODEL) == []
    (warning,) = far_from_prior(moved(posterior.release, 8), tiny.MODEL)
    assert warning.startswith("age: the steps settled")


def test_a_release_that_does_not_say_its_prior_is_refused(posterior):
    foreign = dataclasses.replace(posterior.release, settings={})
    with pytest.raises(ValueError, match="prior"):
        read(foreign, tiny.MODEL, posterior.guarantee)


def test_the_iterate_average_is_the_converged_window_s():
    """4000 draws of z: mean within 5 standard errors of the window's, sd² that of q and of the mean together; 4e-6."""
    found, count = tiny.noiseless(), 4000
    window = averaging.average(found.release)
    sd = np.sqrt(np.asarray(Family().sd(window.mean)) ** 2 + window.mean_sd[:3] ** 2)
    assert found.info["method"] == "iterate average"
    assert found.z.shape == (1, count, 3)
    assert (np.abs(found.z.mean((0, 1)) - window.mean[:3]) < 5 * sd / np.sqrt(count)).all()
    assert (np.abs(found.z.std((0, 1)) / sd - 1) < 5 / np.sqrt(2 * count)).all()
    assert found.info["warnings"] == averaging.unsettled(window)


def test_unknown_readings_are_refused(posterior):
    with pytest.raises(ValueError, match="iterate mean"):
        read(posterior.release, tiny.MODEL, posterior.guarantee, "iterate mean")


WAYS = [
    ("aligned", "mean-field", "dense"),
    ("aligned natural", "mean-field", "diagonal"),
    ("natural", "mean-field", "diagonal"),
    ("aligned", "full-rank", "dense"),
    ("vanilla", "full-rank", "dense"),
]


def settled(variant, family):
    """A fit without noise by this variant on this family, with half of the rows at each step."""
    step = 0.1 if "natural" in variant else 0.02
    settings = elbo.Settings(elbo.start_at(tiny.MODEL, 0.2, family=family), step, variant, family=family)
    choice = tiny.noiseless_choice(steps=600, sampling_prob=0.5, batch_limit=None, clip_norm=50.0)
    budget = {"epsilon": math.inf, "delta": tiny.DELTA, "noise": simulated(1)}
    return fit(tiny.MODEL, tiny.rows(), choice=choice._replace(settings=settings), draws=1000, **budget)


@pytest.mark.parametrize(("variant", "name", "solver"), WAYS)
def test_every_variant_and_family_can_be_read_in_every_way(variant, name, solver, monkeypatch):
    """Near the mode: subsampling leaves up to .4 sd in an iterate and clipping nothing, so one sd is beyond doubt.

    A noise scale that varies needs the diagonal solver although the trace was kept. A full-rank q is as wide as the
    posterior: 1000 draws show its sd to 2 %, and 300 rows are Gaussian to a few.
    """
    family = Family(name)
    found = settled(variant, family)
    mode, sd = tiny.laplace().mean, np.sqrt(np.diag(tiny.laplace().covariance))
    others = ["iterate average", "last iterate"]
    readings = [found, *(read(found.release, tiny.MODEL, found.guarantee, how, draws=1000) for how in others)]
    for one, method in zip(readings, [f"noise-aware, {solver} curvature", *others], strict=True):
        assert one.info["method"] == method
        assert (np.abs(one.z.mean((0, 1)) - mode) < sd).all()
        if name == "full-rank" and one is not found:
            np.testing.assert_allclose(one.z.std((0, 1)), sd, rtol=0.15)
    assert np.ptp(found.release.trace.scale, axis=0).any() == (solver == "diagonal")
    check_diagonal(found.release, family, found.guarantee, monkeypatch)


def check_diagonal(release, family, guarantee, monkeypatch):
    """Without its trace it is read with a diagonal curvature; what rows were not asked about stands at a mean."""
    seen = []
    monkeypatch.setattr(reading, "through_q", lambda rng, phi, family: seen.append((phi, family)) or phi[:, :3])
    read(dataclasses.replace(release, trace=None), tiny.MODEL, guarantee, draws=200)
    ((phi, used),) = seen
    answered = 3 if "aligned" in release.settings["variant"] else family.size(3)
    assert (used, phi.shape) == (family, (200, family.size(3)))
    last_four_fifths = release.trace.iterate[120:, answered:].mean(0)
    np.testing.assert_allclose(phi[:, answered:], np.tile(last_four_fifths, (200, 1)), rtol=1e-9)
    assert (np.ptp(phi[:, :answered], axis=0) > 0).all()
