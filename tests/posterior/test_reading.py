import dataclasses
import json
import math

import numpy as np
import pytest

from discreet.fitting import fit, simulated
from discreet.methods import elbo
from discreet.methods.gaussian import Family
from discreet.posterior import averaging, exact, reading
from discreet.posterior.reading import Options, far_from_prior, naive_posterior, public_prior, read
from discreet.posterior.trace import TraceError
from discreet.query import Point
from discreet.release import Cross, Release, multiply
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
    again = read(loaded, tiny.MODEL, posterior.guarantee, schema=tiny.SCHEMA, draws=2000)
    assert {**again.info, "clip_bias": None} == {**posterior.info, "clip_bias": None}  # of the draws, which are new
    assert np.allclose(again.info["clip_bias"], posterior.info["clip_bias"], atol=0.1)
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


def test_a_mixture_without_a_dense_curvature_is_warned_of(posterior):
    mixed = dataclasses.replace(tiny.MODEL, description={"family": "mixture"})
    short = dataclasses.replace(posterior.release, trace=None)
    for how, options in (("noise-aware", Options(solver="exact")), ("noise-aware", Options())):
        said = read(short, mixed, posterior.guarantee, how, options=options).info["warnings"]
        assert said[0].startswith("a mixture of 3 parameters, read without a dense curvature")
    settled = tiny.noiseless()
    said = read(settled.release, mixed, settled.guarantee, "iterate average").info["warnings"]
    assert said[0].startswith("a mixture of 3 parameters, read without a dense curvature")
    for model, release in ((tiny.MODEL, short), (mixed, posterior.release)):
        assert not any("mixture" in text for text in read(release, model, posterior.guarantee).info["warnings"])


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
    ("vanilla", "mean-field"),
    ("T′-preconditioned", "mean-field"),
    ("natural", "mean-field"),
    ("aligned", "mean-field"),
    ("aligned natural", "mean-field"),
    ("aligned", "full-rank"),
    ("vanilla", "full-rank"),
]


def settled(variant, family):
    """A fit without noise by this variant on this family, with half of the rows at each step."""
    step = 0.1 if "natural" in variant else 0.02
    settings = elbo.Settings(elbo.start_at(tiny.MODEL, 0.2, family=family), step, variant, family=family)
    choice = tiny.noiseless_choice(steps=600, sampling_prob=0.5, batch_limit=None, clip_norm=50.0)
    budget = {"epsilon": math.inf, "delta": tiny.DELTA, "noise": simulated(1)}
    return fit(tiny.MODEL, tiny.rows(), choice=choice._replace(settings=settings), draws=1000, **budget)


@pytest.mark.parametrize(("variant", "name"), WAYS)
def test_every_variant_and_family_can_be_read_in_every_way(variant, name):
    """Near the mode: subsampling leaves up to .4 sd in an iterate and clipping nothing, so one sd is beyond doubt.

    A full-rank q is as wide as the posterior: 1000 draws show its sd to 2 %, and 300 rows are Gaussian to a few.
    """
    found = settled(variant, Family(name))
    mode, sd = tiny.laplace().mean, np.sqrt(np.diag(tiny.laplace().covariance))
    others = ["iterate average", "last iterate"]
    readings = [found, *(read(found.release, tiny.MODEL, found.guarantee, how, draws=1000) for how in others)]
    for one, method in zip(readings, ["noise-aware, dense curvature", *others], strict=True):
        assert one.info["method"] == method
        assert (np.abs(one.z.mean((0, 1)) - mode) < sd).all()
        if name == "full-rank" and one is not found:
            np.testing.assert_allclose(one.z.std((0, 1)), sd, rtol=0.15)
    assert np.ptp(found.release.trace.scale[:, :3], axis=0).any() == ("natural" in variant)
    check_diagonal(found, name, mode, sd)


def check_diagonal(found, name, mode, sd):
    """Without its trace a mean-field release is read with a diagonal curvature; a full-rank one has none to be read."""
    short = dataclasses.replace(found.release, trace=None)
    if name == "full-rank":
        with pytest.raises(TraceError, match="full-rank family have none"):
            read(short, tiny.MODEL, found.guarantee)
        with pytest.raises(ValueError, match="full-rank family have none"):
            read(found.release, tiny.MODEL, found.guarantee, options=Options(solver="nuts"))
        return
    again = read(short, tiny.MODEL, found.guarantee, draws=1000)
    assert again.info["method"] == "noise-aware, diagonal curvature"
    assert (np.abs(again.z.mean((0, 1)) - mode) < sd).all()


def test_aligned_scales_are_read_from_the_curvature_of_the_locations(monkeypatch):
    """z − m* has sd a^−½, draw by draw: at a mean-field optimum that is what the curvature means."""
    found = settled("aligned", Family("mean-field"))
    given = exact.solve(np.random.default_rng(0), reading.trace_model(found.release), 4000)
    monkeypatch.setitem(reading.DIAGONAL, "exact", lambda *_: given)
    z = read(dataclasses.replace(found.release, trace=None), tiny.MODEL, found.guarantee).z[0]
    spread = (z - given.optimum) * np.sqrt(given.curvature)
    assert (np.abs(spread.std(0) - 1) < 5 / np.sqrt(8000)).all()  # false alarm below 1e-5


@pytest.mark.parametrize("solver", ["exact", "nuts", "laplace", "full"])
def test_solvers_can_be_exchanged(posterior, solver):
    """One release, four solvers: their means agree within the posterior's sd, and the method says which it was."""
    found = read(posterior.release, tiny.MODEL, posterior.guarantee, options=Options(solver=solver))
    gap = np.abs(found.z.mean((0, 1)) - posterior.z.mean((0, 1)))
    assert (gap < posterior.z.std((0, 1))).all()
    assert solver in found.info["method"] or solver in ("exact", "full")


def test_products_serve_a_dense_curvature_as_well_as_the_trace(posterior):
    """600 and 500 draws each: within 6 standard errors."""
    x, y = (np.asarray(part) for part in (posterior.release.trace.x, posterior.release.trace.y))
    steps = np.asarray(posterior.release.blocks.steps)[:, 0].astype(int)
    ends = np.cumsum(steps)
    pieces = [
        multiply(Point(*(np.asarray(part)[end - count : end] for part in posterior.release.trace)))
        for end, count in zip(ends, steps, strict=True)
    ]
    cross = Cross(*(np.stack(field) for field in zip(*pieces, strict=True)))
    assert x.shape == y.shape == (ends[-1], cross.xx.shape[-1])
    release = dataclasses.replace(posterior.release, trace=None, cross=cross)
    found = read(release, tiny.MODEL, posterior.guarantee, draws=600)
    assert found.info["method"] == "noise-aware, dense curvature"
    gap = np.abs(found.z.mean((0, 1)) - posterior.z.mean((0, 1)))
    assert (gap < 6 * posterior.z.std((0, 1)) / np.sqrt(250)).all()


def test_the_diagnosis_comes_with_the_posterior(posterior):
    records = posterior.info["diagnostics"]
    assert [record["parameter"] for record in records] == reading.parameter_names(tiny.MODEL)
    assert json.loads(json.dumps(records)) == records


@pytest.mark.parametrize(
    ("how", "options", "message"),
    [
        ("noise-aware", Options(solver="gibbs"), "gibbs"),
        ("last iterate", Options(solver="exact"), "solves nothing"),
        ("noise-aware", Options(solver="full", prior="H.3"), "takes no prior"),
        ("noise-aware", Options(solver="exact", prior="flat"), "flat"),
        ("noise-aware", Options(solver="exact", subsampling="some"), "some"),
        ("noise-aware", Options(burn_in=1.5), "burn_in"),
    ],
)
def test_options_that_do_not_fit_are_refused(posterior, how, options, message):
    with pytest.raises(ValueError, match=message):
        read(posterior.release, tiny.MODEL, posterior.guarantee, how, options=options)


def test_one_step_is_read_with_its_noise_or_without_and_has_no_options():
    for how in ("noise-aware", "last iterate"):
        reading.check_reading(how, family=reading.ONE_STEP)
    for how, options in (
        ("iterate average", Options()),
        ("noise-aware", Options(solver="full")),
        ("noise-aware", Options(burn_in=0.5)),
    ):
        with pytest.raises(ValueError, match="one step is read noise-aware, or as if it had no noise"):
            reading.check_reading(how, options, reading.ONE_STEP)
