"""Several phases in one run: paid as one, asked one after the other with fresh noise, resumed where they were cut."""

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from discreet.accounting import calibrate_phases, composed_epsilon, filtered_epsilon, flat, guarantee
from discreet.fitting import Checkpoint, secure, simulated
from discreet.ledger import Account, Budget, LedgerError, export, open_account
from discreet.mechanism import loop
from discreet.mechanism.checkpoint import CheckpointError
from discreet.mechanism.noise import Noise
from discreet.mechanism.rows import store
from discreet.methods import onestep, statistics
from discreet.plan import Plan, Search, from_plain, to_plain
from discreet.query import Phase, Point, Query
from discreet.release import Release
from discreet.schema import Numeric, Schema
from tests import tiny
from tests.methods import test_onestep as small

pytestmark = pytest.mark.usefixtures("blocks_one_by_one")

DELTA, ROWS, STEPS = 1e-5, 60, 12
SCHEMA = Schema((Numeric("x", -1, 1),))
TABLE = {"x": np.random.default_rng(0).uniform(-1, 1, ROWS)}
ONCE = Plan(ROWS, 1, 1.0, 1.0, 8.0)
PLANS = (
    ONCE,
    replace(ONCE, steps=STEPS, sampling_prob=0.5, noise_multiplier=20.0),
    replace(ONCE, noise_multiplier=5.0),
)


def rows():
    return store(SCHEMA, {name: np.array(column) for name, column in TABLE.items()})


def powers(row):
    return jnp.stack([row["x"], row["x"] ** 2]) / 2


def scaled(question, row):
    return question * jnp.stack([row["x"], row["x"] ** 2]) / 2


def walk(state, question, answer):
    return state + 0.01 * answer, Point(state, state, answer, jnp.ones_like(answer))


def steps_from(start):
    """Steps whose question is where they are: a run that forgot its state would ask another."""
    return Query(
        init=lambda key: jnp.asarray(start, float),
        ask=_state,
        row_value=scaled,
        update=walk,
        last=_same,
        size=2,
        columns=("x",),
        settings={"method": "walk", "start": np.asarray(start).tolist()},
    )


def _state(chance, state):
    return state


def _same(state):
    return state


def phase(told, plans=PLANS):
    """A sum; steps that start at what it told; and a question at their end, with a clip norm that is theirs, too."""
    plan = plans[len(told)]
    if not told:
        return Phase(plan, statistics.query(powers, 2, ["x"], plan, {"phase": 1}))
    last = np.asarray(told[-1].last)
    if len(told) == 1:
        return Phase(plan, steps_from(last / ROWS), "trace")
    plan = replace(plan, clip_norm=float(0.1 + np.abs(last).max()))
    return Phase(plan, statistics.once(scaled, jnp.asarray(last, float), 2, ["x"], plan, {"at": last.tolist()}))


def released(noise, plans=PLANS, asked=phase, **options):
    return loop.run_phases(noise, plans, asked, rows(), **options)


def assert_equal(one: Release, other: Release):
    """All phases, to the last bit."""
    assert len(one.before) == len(other.before)
    for mine, theirs in zip((*one.before, one), (*other.before, other), strict=True):
        assert (mine.plan, mine.noise, mine.settings) == (theirs.plan, theirs.noise, theirs.settings)
        arrays, others = mine._arrays(), theirs._arrays()
        assert set(arrays) == set(others)
        for name, value in arrays.items():
            np.testing.assert_array_equal(value, others[name])


@pytest.fixture
def drawn(monkeypatch):
    """The chunks whose noise was drawn, in order."""
    chunks, draw = [], Noise.draw

    def watched(self, kind, chunk, shape):
        chunks.append(chunk)
        return draw(self, kind, chunk, shape)

    monkeypatch.setattr(Noise, "draw", watched)
    return chunks


# What is asked, and what it costs.


def test_a_release_has_all_phases_and_their_price_is_that_of_the_plans():
    release = released(simulated(5))
    assert [one.settings.get("method") for one in release.before] == ["statistics", "walk"]
    assert [len(one.before) for one in release.before] == [0, 0]
    assert [replace(plan, clip_norm=1.0) for plan in release.plans] == list(PLANS)
    assert release.plan.clip_norm != 1
    paid = guarantee(release.plans, DELTA).epsilon
    assert paid == guarantee(PLANS, DELTA).epsilon
    apart = [guarantee(plan, DELTA).epsilon for plan in PLANS]
    assert max(apart) < paid < sum(apart)


def test_one_phase_is_a_run():
    """And the first of several is the run that it would be alone: what follows takes nothing from it."""
    alone = loop.run(simulated(5), PLANS[0], phase(()).query, rows())
    assert_equal(alone, released(simulated(5), PLANS[:1]))
    assert_equal(alone, released(simulated(5)).before[0])


def test_without_noise_phases_are_what_separate_runs_would_be():
    """Where every row takes part, so that chance has no say."""
    quiet = tuple(replace(plan, noise_multiplier=0.0, sampling_prob=1.0) for plan in PLANS)
    together = released(simulated(1), quiet, lambda told: phase(told, quiet))
    told = []
    for _ in quiet:
        plan, query, keep = phase(told, quiet)
        told.append(loop.run(simulated(9), plan, query, rows(), keep=keep))
    assert_equal(together, replace(told[-1], before=tuple(told[:-1])))


def test_each_phase_hears_the_releases_before_it_and_no_more():
    heard = []

    def listening(told):
        heard.append(list(told))
        return phase(told)

    release = released(simulated(5), asked=listening)
    assert [len(told) for told in heard] == [0, 1, 2]
    for told in heard:
        for one, other in zip(told, release.before, strict=False):
            assert_equal(one, other)


def test_progress_sees_the_phases_that_have_several_chunks():
    seen = []

    def watching(chunks):
        seen.append(chunks)
        return chunks

    released(simulated(5), progress=watching)
    assert seen == [range(1, 1 + STEPS)]


CHANGES = [
    {"noise_multiplier": 7.9},
    {"steps": 2},
    {"sampling_prob": 0.9},
    {"num_rows": ROWS + 1},
    {"batch_limit": ROWS - 1},
    {"noise_kind": "laplace"},
    {"unit": "person"},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
@pytest.mark.parametrize("number", [0, 2])
def test_a_phase_that_changes_what_was_charged_is_refused_before_its_rows_are_asked(number, change, drawn, tmp_path):
    """Also a little less noise than was paid for."""
    account = open_account(tmp_path / "ledger.db", "people", Budget(9.0, DELTA))

    def other(told):
        plan, query, keep = phase(told)
        return Phase(replace(plan, **change) if len(told) == number else plan, query, keep)

    with pytest.raises(ValueError, match="was planned and charged: keep to it"):
        released(secure(), asked=other, checkpoint=Checkpoint(None, account))
    assert drawn == list(range(0 if number == 0 else 1 + STEPS))
    assert len(account.entries()) == (0 if number == 0 else 1)


def test_another_clip_norm_is_a_phases_own_affair():
    """Noise grows with it: the same draws, times the clip norm; rows that answer nothing leave those alone."""

    def silent(clip_norm):
        def asked(told):
            plan = replace(PLANS[0], clip_norm=clip_norm if told else 1.0)
            return Phase(plan, statistics.query(lambda row: 0 * powers(row), 2, ["x"], plan))

        return released(simulated(3), (PLANS[0], PLANS[0]), asked)

    one, other = silent(0.5), silent(4.0)
    assert (one.plan.clip_norm, other.plan.clip_norm) == (0.5, 4.0)
    np.testing.assert_allclose(8 * one.last, other.last, rtol=1e-4)
    np.testing.assert_array_equal(one.before[0].last, other.before[0].last)
    with pytest.raises(ValueError, match="clip_norm=0"):
        silent(0)


# Noise.


def test_no_chunk_of_noise_is_drawn_twice(drawn):
    released(simulated(5))
    assert drawn == list(range(2 + STEPS))


def test_phases_that_ask_the_same_have_other_noise():
    """And other batches, which is what differs where there is none."""
    for noise_multiplier in (8.0, 0.0):
        plan = replace(ONCE, steps=4, sampling_prob=0.5, noise_multiplier=noise_multiplier)
        same = Phase(plan, steps_from(np.ones(2)), "trace")
        found = released(simulated(3), (plan, plan), lambda told, same=same: same)
        assert (found.before[0].trace.y != found.trace.y).all()


def test_a_secure_stream_serves_all_phases_of_one_run():
    stream = secure()
    assert released(stream).noise == "secure"
    with pytest.raises(ValueError, match="every run needs a stream of its own"):
        released(stream)


def test_a_phase_without_noise_is_refused_before_any_is_asked(drawn):
    """Its plan is looked at with all others."""
    bare = (*PLANS[:2], replace(PLANS[2], noise_multiplier=0.0))
    with pytest.raises(ValueError, match="noise_multiplier=0 adds no noise"):
        released(secure(), bare, lambda told: phase(told, bare))
    assert drawn == []


# Runs that are cut short.


class Cut(Exception):
    pass


def before_chunk(number):
    """A progress that ends the run before this chunk."""

    def progress(chunks):
        for index in chunks:
            if index == number:
                raise Cut
            yield index

    return progress


def between(number):
    """A phase function that ends the run when so many phases were told."""

    def asked(told):
        if len(told) == number:
            raise Cut
        return phase(told)

    return asked


def kept(folder, account=None, noise=None, **options):
    """A release with a checkpoint, and with the stream of the run that was cut short if there was one."""
    with Checkpoint(folder, account, "test") as checkpoint:
        return released(checkpoint.noise(noise or simulated(99)), checkpoint=checkpoint, **options)


def cut(folder, account=None, **options):
    with pytest.raises(Cut):
        kept(folder, account, simulated(5), **options)


CUTS = {  # in the order in which a run comes by them
    "after the first phase": {"asked": between(1)},
    "before a second one": {"progress": before_chunk(1)},
    "inside the second": {"progress": before_chunk(4)},
    "at its end": {"progress": before_chunk(STEPS)},
    "after the second": {"asked": between(2)},
}


@pytest.mark.parametrize("where", CUTS)
def test_a_run_that_was_cut_short_ends_as_if_it_had_not_been(tmp_path, where):
    cut(tmp_path / "run", **CUTS[where])
    assert_equal(kept(tmp_path / "run"), released(simulated(5)))
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_was_cut_short_again_and_again_is_charged_once_with_all_its_plans(tmp_path, drawn):
    """And draws each chunk of its noise once."""
    account = open_account(tmp_path / "ledger.db", "people", Budget(9.0, DELTA, num_rows=ROWS))
    for options in CUTS.values():
        cut(tmp_path / "run", account, **options)
        (entry,) = account.entries()
        assert (entry.state, entry.plan, entry.purpose) == ("intent", PLANS, "test")
    found = kept(tmp_path / "run", account)
    (entry,) = account.entries()
    assert (entry.state, entry.plan) == ("committed", PLANS)
    assert sorted(drawn) == list(range(2 + STEPS))
    assert_equal(found, released(simulated(5)))
    assert account.spent() == guarantee(PLANS, DELTA).epsilon


@pytest.mark.parametrize("number", [1, 2, 3, 12])
def test_one_step_goes_on_from_any_of_its_phases(tmp_path, number):
    """Counts, moments and the one question are a chunk each; between them are twenty of the steps."""
    settings = small.settings_of(tiny.MODEL)
    asked = onestep.phase(tiny.MODEL, tiny.SCHEMA, small.PLANS, settings)

    def one_step(told):
        if len(told) == number and not going_on:
            raise Cut
        return asked(told)

    def run(noise, **options):
        return loop.run_phases(noise, small.PLANS, one_step, tiny.rows(), **options)

    going_on = False
    with pytest.raises(Cut), Checkpoint(tmp_path / "run") as checkpoint:
        run(simulated(5), checkpoint=checkpoint, progress=before_chunk(number))
    going_on = True
    with Checkpoint(tmp_path / "run") as checkpoint:
        found = run(checkpoint.noise(simulated(6)), checkpoint=checkpoint)
    assert_equal(found, run(simulated(5)))


def test_what_a_phase_hears_is_the_same_when_it_goes_on(tmp_path):
    heard = []

    def listening(told):
        heard.append(list(told))
        return phase(told)

    cut(tmp_path / "run", progress=before_chunk(4))
    kept(tmp_path / "run", asked=listening)
    whole = released(simulated(5))
    assert [len(told) for told in heard] == [0, 1, 2]
    for told in heard:
        for one, other in zip(told, whole.before, strict=False):
            assert_equal(one, other)


def test_a_run_that_was_whole_is_not_asked_again(tmp_path, drawn):
    """As when the disk was full when its posterior was to be saved."""
    first = released(simulated(5), checkpoint=Checkpoint(tmp_path / "run"))
    again = Checkpoint(tmp_path / "run")
    assert again.has_told(first)
    assert not again.has_told(first.before[1])
    assert not again.has_told(released(simulated(6)))
    count = len(drawn)
    assert_equal(released(again.noise(simulated(99)), checkpoint=again), first)
    assert len(drawn) == count


@pytest.mark.parametrize(
    "plans",
    [PLANS[:2], (*PLANS, PLANS[2]), (PLANS[0], replace(PLANS[1], noise_multiplier=21.0), PLANS[2])],
    ids=["fewer", "more", "other"],
)
def test_other_plans_do_not_go_on_with_a_run(tmp_path, plans):
    cut(tmp_path / "run", progress=before_chunk(4))
    with pytest.raises(CheckpointError, match="another model, plan or schema"):
        kept(tmp_path / "run", plans=plans, asked=lambda told: phase(told, plans))


def test_a_budget_that_pays_for_a_part_pays_for_nothing(tmp_path, drawn):
    """Each phase alone would do; all of them are charged before the first row is asked."""
    most = max(guarantee(plan, DELTA).epsilon for plan in PLANS)
    account = open_account(tmp_path / "ledger.db", "people", Budget(1.05 * most, DELTA))
    with pytest.raises(LedgerError, match="would have spent"):
        kept(tmp_path / "run", account)
    assert (drawn, account.entries()) == ([], [])
    assert not (tmp_path / "run").exists()


# What is kept of them.


def test_phases_before_are_saved_and_loaded_with_the_release(tmp_path):
    release = released(simulated(5))
    again = Release.load(release.save(tmp_path / "release"))
    assert_equal(again, release)
    assert again.plans == release.plans
    assert isinstance(again.before[1].trace, Point)


def test_a_release_of_one_phase_has_none_before_it(tmp_path):
    release = released(simulated(5), PLANS[:1])
    again = Release.load(release.save(tmp_path / "release"))
    assert (again.before, again.plans) == ((), PLANS[:1])
    assert [path.name for path in (tmp_path / "release").iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("damage", ["altered", "lost"])
def test_a_release_whose_phases_are_damaged_is_refused(tmp_path, damage):
    folder = released(simulated(5)).save(tmp_path / "release")
    arrays = folder / "phase-2" / "arrays.npz"
    if damage == "lost":
        arrays.unlink()
    else:
        content = bytearray(arrays.read_bytes())
        content[len(content) // 2] ^= 1
        arrays.write_bytes(content)
    with pytest.raises(ValueError, match=r"phase-2.*(does not match its checksum|is not a release)"):
        Release.load(folder)


# The ledger.


@pytest.fixture
def account(tmp_path):
    return open_account(tmp_path / "ledger.db", "people", Budget(3.0, DELTA))


def test_phases_come_back_from_the_ledger_as_they_were_charged(account):
    run = account.charge(PLANS, "a fit")
    (entry,) = Account(account.path, "people").entries()
    assert (entry.run, entry.plan, entry.purpose) == (run, PLANS, "a fit")
    (told,) = json.loads(json.dumps(export(account.path)))["accounts"][0]["entries"]
    assert from_plain(told["plan"]) == PLANS
    assert to_plain(PLANS) == [plan.to_dict() for plan in PLANS]


def test_phases_cost_what_they_cost_together(account):
    account.charge(PLANS)
    assert account.spent() == guarantee(PLANS, DELTA).epsilon
    account.charge(ONCE)
    assert account.spent() == pytest.approx(guarantee([*PLANS, ONCE], DELTA).epsilon, rel=1e-9)


def test_phases_are_filtered_together_in_an_adaptive_account(tmp_path):
    account = open_account(tmp_path / "ledger.db", "people", Budget(3.0, DELTA, adaptive=True))
    account.charge(PLANS)
    assert account.spent() == filtered_epsilon(PLANS, 3.0, DELTA) > guarantee(PLANS, DELTA).epsilon


def test_a_run_of_several_phases_goes_on_with_the_same_ones_alone(account):
    run = account.charge(PLANS)
    assert account.charge(PLANS, run=run) == run
    assert len(account.entries()) == 1
    for other in (PLANS[::-1], PLANS[:2], PLANS[0]):
        with pytest.raises(LedgerError, match="was charged for another plan"):
            account.charge(other, run=run)


def test_each_phase_must_be_for_the_rows_and_the_unit_of_the_account(tmp_path):
    account = open_account(tmp_path / "ledger.db", "people", Budget(9.0, DELTA, num_rows=ROWS))
    with pytest.raises(ValueError, match=f"num_rows={ROWS + 1} must be {ROWS}"):
        account.charge((*PLANS[:2], replace(PLANS[2], num_rows=ROWS + 1)))
    with pytest.raises(LedgerError, match="kept for unit 'row', and this plan is for 'person'"):
        account.charge((PLANS[0], replace(PLANS[1], unit="person")))
    assert account.entries() == []


def test_plans_phases_and_searches_are_one_sequence():
    search = Search((ONCE,), mean_trials=3.0)
    assert flat([ONCE, PLANS, search]) == [ONCE, *PLANS, search]
    assert composed_epsilon([PLANS, ONCE], DELTA) == composed_epsilon([*PLANS, ONCE], DELTA)
    with_search = composed_epsilon([PLANS, search], DELTA)
    assert with_search == pytest.approx(guarantee(PLANS, DELTA / 2).epsilon + guarantee(search, DELTA / 2).epsilon)


@pytest.mark.parametrize("epsilon", [0.3, 4.0])
def test_phases_are_calibrated_together(epsilon):
    """To 10⁻³ of the budget, and with the proportions that they had."""
    found = calibrate_phases(PLANS, epsilon, DELTA)
    assert 0.999 * epsilon < guarantee(found, DELTA).epsilon <= epsilon
    louder = [plan.noise_multiplier / was.noise_multiplier for plan, was in zip(found, PLANS, strict=True)]
    np.testing.assert_allclose(louder, louder[0])
    assert [replace(plan, noise_multiplier=1.0) for plan in found] == [
        replace(plan, noise_multiplier=1.0) for plan in PLANS
    ]
