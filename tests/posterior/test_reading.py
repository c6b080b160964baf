import dataclasses

import numpy as np
import pytest

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
