import hashlib
import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.mechanism import loop, noise
from discreet.methods.gaussian import Family
from discreet.plan import Plan
from discreet.query import Point
from discreet.release import FORMAT, Blocks, Release, summarize
from tests.guarantees.mechanisms import Recipe, make

PLAN = Plan(num_rows=50, steps=30, sampling_prob=0.2, clip_norm=1.5, noise_multiplier=3.25, batch_limit=25)
RNG = np.random.default_rng(0)
TRACE = Point(RNG.normal(size=(30, 7)), *RNG.normal(size=(2, 30, 4)), scale=RNG.uniform(0.5, 2, (30, 4)))


def release(trace=None):
    blocks = Blocks(*(RNG.normal(size=(3, 4)) for _ in Blocks._fields))
    settings = {"method": "elbo", "rate": [0.1, 1 / 3]}
    return Release(PLAN, "simulated", settings, blocks, RNG.normal(size=4), trace)


def rewrite(folder, change):
    """Change the arrays and put the right checksum on them: what a checksum alone cannot see."""
    change(folder / "arrays.npz")
    facts = json.loads((folder / "release.json").read_text())
    facts["sha256"] = hashlib.sha256((folder / "arrays.npz").read_bytes()).hexdigest()
    (folder / "release.json").write_text(json.dumps(facts))


def edit(folder, **changes):
    facts = json.loads((folder / "release.json").read_text())
    (folder / "release.json").write_text(json.dumps(facts | changes))


@pytest.mark.parametrize("trace", [None, TRACE], ids=["without trace", "with trace"])
def test_what_is_saved_is_loaded_to_the_last_bit(tmp_path, trace):
    saved = release(trace)
    loaded = Release.load(saved.save(tmp_path / "release"))
    assert (loaded.plan, loaded.noise, loaded.settings) == (saved.plan, saved.noise, saved.settings)
    for ours, theirs in zip((*saved.blocks, saved.last), (*loaded.blocks, loaded.last), strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)
    assert (loaded.trace is None) == (trace is None)
    for ours, theirs in zip(trace or (), loaded.trace or (), strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)


def test_saving_again_replaces_the_release(tmp_path):
    release(TRACE).save(tmp_path / "release")
    second = release()
    loaded = Release.load(second.save(tmp_path / "release"))
    assert loaded.trace is None
    np.testing.assert_array_equal(loaded.last, second.last)


def test_a_save_that_fails_leaves_nothing(tmp_path):
    unsayable = Release(PLAN, "simulated", {"rate": object()}, release().blocks, np.zeros(4))
    with pytest.raises(TypeError):
        unsayable.save(tmp_path / "release")
    assert list(tmp_path.iterdir()) == []


def cut(folder):
    path = folder / "arrays.npz"
    path.write_bytes(path.read_bytes()[:-100])


def flip(folder):
    path = folder / "arrays.npz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def pickled_array(path):
    np.savez(path, steps=np.array([{"a": 1}], dtype=object))


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def without_last(path):
    np.savez(path, **{name: np.zeros(3) for name in Blocks._fields})


REFUSALS = [
    pytest.param(cut, "checksum", id="cut short"),
    pytest.param(flip, "checksum", id="one bit altered"),
    pytest.param(lambda f: (f / "arrays.npz").unlink(), r"no arrays\.npz", id="no arrays"),
    pytest.param(lambda f: (f / "release.json").unlink(), r"no release\.json", id="no facts"),
    pytest.param(lambda f: (f / "release.json").write_text("{"), "not JSON", id="not JSON"),
    pytest.param(lambda f: (f / "release.json").write_text("{}"), f"format {FORMAT}", id="foreign JSON"),
    pytest.param(lambda f: (f / "release.json").write_text("3"), "release", id="not an object"),
    pytest.param(lambda f: edit(f, format=FORMAT - 1), "format", id="an older format"),
    pytest.param(lambda f: edit(f, noise="quiet"), "noise", id="unknown noise"),
    pytest.param(lambda f: edit(f, plan=PLAN.to_dict() | {"steps": 0}), "steps=0", id="impossible plan"),
    pytest.param(lambda f: edit(f, plan={"sigma": 1}), "plan", id="foreign plan"),
    pytest.param(lambda f: rewrite(f, pickled_array), "Object arrays|pickle", id="pickled array"),
    pytest.param(lambda f: rewrite(f, without_last), "last", id="array missing"),
    pytest.param(lambda f: rewrite(f, halve), "arrays", id="cut zip"),
    pytest.param(lambda f: rewrite(f, lambda p: p.write_bytes(b"\x80\x04N.")), "pickle", id="bare pickle"),
]


@pytest.mark.parametrize(("damage", "reason"), REFUSALS)
def test_a_damaged_or_foreign_folder_is_refused_with_a_reason(tmp_path, damage, reason):
    folder = release(TRACE).save(tmp_path / "release")
    damage(folder)
    with pytest.raises(ValueError, match=reason):
        Release.load(folder)


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not a release"):
        Release.load(tmp_path / "nowhere")


def test_block_moments_are_weighted_least_squares():
    """Slope and intercept of y on x from the moments are those of numpy's weighted fit."""
    blocks = summarize(TRACE)
    for place in range(4):
        x, y, weight = TRACE.x[:, place], TRACE.y[:, place], 1 / TRACE.scale[:, place]
        slope, intercept = np.polyfit(x, y, 1, w=weight)
        found = blocks.xy[place] / blocks.xx[place]
        np.testing.assert_allclose(found, slope, rtol=1e-10)
        np.testing.assert_allclose(blocks.mean_y[place] - found * blocks.mean_x[place], intercept, rtol=1e-10)
    np.testing.assert_array_equal(blocks.steps, [30.0])


def join(blocks):
    """Steps, mean, centred sum of squares and drift of all the steps that consecutive `blocks` hold."""
    steps, mean = np.concatenate([block.steps for block in blocks]), np.stack([block.mean for block in blocks])
    middle = np.cumsum(steps) - steps / 2
    whole = steps @ mean / steps.sum()
    square = sum(block.square for block in blocks) + steps @ (mean - whole) ** 2
    drift = sum(block.drift for block in blocks) + (steps * (middle - steps.sum() / 2)) @ mean
    return steps.sum(), whole, square, drift


@settings(max_examples=60, deadline=None)
@given(cuts=st.sets(st.integers(1, 29)), shift=st.sampled_from([0.0, -3.0, 1e6]), slope=st.floats(-2, 2))
def test_moments_of_the_iterates_can_be_joined_over_any_blocks(cuts, shift, slope):
    """Limits are the rounding of float64: at 10⁶ an iterate is known to 10⁻¹⁰, and 30 of them times 15 are added."""
    iterate = TRACE.iterate + shift + slope * np.arange(30)[:, None]
    points = TRACE._replace(iterate=iterate)
    blocks = [
        summarize(Point(*(part[first:last] for part in points))) for first, last in pairwise([0, *sorted(cuts), 30])
    ]
    steps, mean, square, drift = join(blocks)
    moved, time = iterate - iterate.mean(0), np.arange(30) - 14.5
    assert steps == 30
    np.testing.assert_allclose(mean, iterate.mean(0), rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(square, (moved**2).sum(0), rtol=1e-8)
    np.testing.assert_allclose(drift, time @ moved, atol=1e-10 + 1e-12 * abs(shift))


@pytest.mark.parametrize(
    "recipe",
    [Recipe("aligned", Family("full-rank", "exp"), "adam", 1), Recipe("vanilla", Family("full-rank"), "sgd", 2)],
    ids=["aligned", "vanilla"],
)
def test_a_release_of_a_full_rank_run_is_saved_and_loaded(tmp_path, recipe):
    """An aligned trace has fewer coordinates than its iterates; its settings say which family they are of."""
    plan, query, rows = make("logistic", recipe, num_rows=30, steps=12)
    saved = loop.run(noise.simulated(2), plan, query, rows, keep="trace")
    loaded = Release.load(saved.save(tmp_path / "release"))
    dim, size = 4, recipe.family.size(4)
    answered = dim if recipe.variant == "aligned" else size
    assert loaded.last.shape == (size,)
    assert [part.shape for part in loaded.trace] == [(12, size), *[(12, answered)] * 3]
    assert loaded.settings == json.loads(json.dumps(saved.settings)) == saved.settings
    assert (loaded.settings["family"], loaded.settings["positive"]) == recipe.family
    assert loaded.settings["variant"] == recipe.variant
    everything = (*saved.blocks, *saved.trace, saved.last), (*loaded.blocks, *loaded.trace, loaded.last)
    for ours, theirs in zip(*everything, strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)


def test_a_release_has_no_field_for_what_was_not_paid_for():
    fields = {"plan", "noise", "settings", "blocks", "last", "trace", "cross", "before"}
    assert set(Release.__dataclass_fields__) == fields
