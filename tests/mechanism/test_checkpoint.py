"""Runs that are cut short: what they leave goes on with the same noise, and is refused by anything else."""

import copy
import fcntl
import os
import pickle
import shutil
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from discreet.fitting import Checkpoint, encode, fit, run, secure, simulated
from discreet.ledger import Account, Budget, LedgerError, open_account
from discreet.mechanism.checkpoint import SECRET, CheckpointError
from discreet.methods import elbo
from discreet.release import Release
from tests import tiny

pytestmark = pytest.mark.usefixtures("blocks_one_by_one")


class Cut(Exception):
    pass


def until(block):
    """A progress that ends the run before this block."""

    def progress(blocks):
        for index in blocks:
            if index == block:
                raise Cut
            yield index

    return progress


def released(folder, account=None, *, noise=None, plan=None, rows=None, **options):
    """The release of a small run with a checkpoint, secure unless a stream is given."""
    plan = plan or tiny.choice().plan
    query = elbo.query(tiny.MODEL, plan, tiny.choice().settings)
    with Checkpoint(folder, account, "test") as checkpoint:
        stream = checkpoint.noise(noise or secure())
        return run(stream, plan, query, rows or tiny.rows(), **{"keep": "trace", **options}, checkpoint=checkpoint)


def whole(seed, **options):
    """The same without a checkpoint."""
    return released(None, noise=simulated(seed), **options)


def cut(folder, block=30, **changes):
    with pytest.raises(Cut):
        released(folder, progress=until(block), **changes)


def assert_equal(one: Release, other: Release):
    for mine, theirs in zip((*one.blocks, one.last), (*other.blocks, other.last), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for name in ("trace", "cross"):
        for mine, theirs in zip(getattr(one, name) or (), getattr(other, name) or (), strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("block", [0, 57, 99])
def test_a_run_that_was_cut_short_ends_as_if_it_had_not_been(tmp_path, block):
    """The seed is known here, so the whole run can be had for comparison."""
    cut(tmp_path / "run", block, noise=simulated(5))
    found = released(tmp_path / "run", noise=simulated(6))  # the stream of the checkpoint is used, not this one
    assert_equal(found, whole(5))
    assert found.noise == "simulated"
    assert list(tmp_path.iterdir()) == []


def test_two_copies_of_a_secure_checkpoint_go_on_alike(tmp_path):
    cut(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    one, other = released(tmp_path / "run"), released(tmp_path / "copy")
    assert_equal(one, other)
    assert one.noise == "secure"


@pytest.mark.parametrize("keep", ["blocks", "cross"])
def test_whatever_is_kept_of_the_trace_is_kept_across_a_cut(tmp_path, keep):
    cut(tmp_path / "run", noise=simulated(5), keep=keep)
    found = released(tmp_path / "run", keep=keep)
    assert_equal(found, whole(5, keep=keep))
    assert (found.cross is None) == (keep == "blocks")


def kept(folder, account=None, done=3, **options):
    """A checkpoint that a run has left, without the run: its stream, its rows and how to restore it."""
    stream, rows, state = secure(), tiny.rows(), {"phi": np.arange(3.0)}
    checkpoint = Checkpoint(folder, account, **options)
    checkpoint.restore(stream, {"what": "made up"}, rows)
    checkpoint.save(stream, 0, state)
    checkpoint.charge(tiny.choice().plan)
    for block in range(1, done + 1):
        checkpoint.save(stream, block, state, (np.full(4, float(block)), np.ones((2, 3))))
    return lambda again: again.restore(again.noise(secure()), {"what": "made up"}, rows)


@pytest.mark.parametrize("folder", [None, "run"])
def test_a_checkpoint_serves_one_run_and_refuses_a_second_before_it_is_charged(tmp_path, folder):
    """Else a second fit would draw fresh noise under the first one's entry."""
    account = open_account(tmp_path / "ledger.db", "tiny", Budget(9.0, tiny.DELTA))
    checkpoint = Checkpoint(folder and tmp_path / folder, account)
    asked = {"epsilon": tiny.EPSILON, "delta": tiny.DELTA, "choice": tiny.choice(), "draws": 10}
    asked |= {"reading": "last iterate", "checkpoint": checkpoint}
    fit(tiny.MODEL, tiny.rows(), **asked)
    before = account.entries()
    for again in (checkpoint, copy.copy(checkpoint)):
        with pytest.raises(CheckpointError, match="has served a run: make a new Checkpoint"):
            fit(tiny.MODEL, tiny.rows(), **asked | {"checkpoint": again})
    assert account.entries() == before
    with pytest.raises(TypeError):
        pickle.dumps(checkpoint)


def test_a_run_has_no_name_before_it_begins():
    """Processes that were forked with one object would share it, and charge one run for all."""
    checkpoint = Checkpoint()
    assert checkpoint.run == ""
    checkpoint.begin()
    assert len(checkpoint.run) == 32


def test_the_key_of_a_run_that_goes_on_is_handed_out_once_and_then_forgotten(tmp_path):
    kept(tmp_path / "run")
    checkpoint = Checkpoint(tmp_path / "run")
    key = checkpoint._saved["key"]
    stream = checkpoint.noise(secure())
    assert any(stream._key)
    assert not key.any()
    with pytest.raises(CheckpointError, match="has served a run"):
        checkpoint.noise(secure())


@pytest.mark.parametrize("there", ["a checkpoint", "a file"])
def test_a_folder_that_another_run_made_meanwhile_stays_as_it_is(tmp_path, there):
    """Both looked when there was none: whoever comes second is refused, uncharged, and removes nothing."""
    account = open_account(tmp_path / "ledger.db", "tiny", Budget(9.0, tiny.DELTA))
    late = Checkpoint(tmp_path / "run", account)
    stream, state = secure(), {"phi": np.arange(3.0)}
    late.restore(stream, {}, tiny.rows())
    if there == "a file":
        (tmp_path / "run").write_text("hello")
    else:
        goes_on = kept(tmp_path / "run", account)
    before = account.entries()
    with pytest.raises(CheckpointError, match="was made by another run just now"):
        late.save(stream, 0, state)
    assert account.entries() == before
    assert [path.name for path in tmp_path.glob("*run*")] == ["run"]
    with pytest.raises(ValueError, match="has no run"):
        late.finish()
    if there == "a file":
        assert (tmp_path / "run").read_text() == "hello"
    else:
        assert goes_on(Checkpoint(tmp_path / "run", account))[0] == 3


def test_a_refused_charge_removes_no_folder_but_its_own(tmp_path):
    poor = open_account(tmp_path / "ledger.db", "tiny", Budget(0.5, tiny.DELTA))
    refused = Checkpoint(tmp_path / "run", poor)
    refused.begin()
    kept(tmp_path / "run")
    with pytest.raises(ValueError, match="would have spent"):
        refused.charge(tiny.choice().plan)
    Checkpoint(tmp_path / "run")
    with pytest.raises(ValueError, match="would have spent"):
        kept(tmp_path / "other", poor)
    assert [path.name for path in tmp_path.glob("*") if "ledger" not in path.name] == ["run"]


def test_a_folder_that_was_taken_away_is_not_made_anew_in_part(tmp_path):
    stream, state = secure(), {"phi": np.arange(3.0)}
    with Checkpoint(tmp_path / "run") as checkpoint:
        checkpoint.restore(stream, {}, tiny.rows())
        checkpoint.save(stream, 0, state)
        shutil.rmtree(tmp_path / "run")
        checkpoint.save(stream, 1, state, np.ones(3))
        assert list(tmp_path.iterdir()) == []


def test_what_a_run_left_that_died_in_its_first_save_is_swept_unless_it_lives(tmp_path):
    """The folder under its first name, as a kill leaves it; the lock goes with the process."""
    left = tmp_path / f".run.{32 * 'a'}"
    kept(left)
    empty, other = tmp_path / f".run.{32 * 'b'}", tmp_path / f".run.x.{32 * 'c'}"
    for folder in (empty, other):
        folder.mkdir()
    (other / SECRET).write_bytes(b"of another run")
    handle = os.open(left, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    Checkpoint(tmp_path / "run")
    assert (left / SECRET).exists()
    os.close(handle)
    Checkpoint(tmp_path / "run")
    assert not left.exists()
    assert empty.exists()  # its process may be about to hold it; it holds nothing
    assert other.exists()


def test_a_first_save_holds_what_it_makes(tmp_path, monkeypatch):
    seen = []

    def watched(place, folder):
        Checkpoint(tmp_path / "run")  # another process would sweep now
        seen.append((place / SECRET).exists())
        move(place, folder)

    move = os.rename
    monkeypatch.setattr(os, "rename", watched)
    kept(tmp_path / "run")
    assert seen == [True]


@pytest.mark.parametrize("moment", ["write", "rename"])
def test_an_error_in_the_first_save_leaves_nothing(tmp_path, monkeypatch, moment):
    def fails(*_, **__):
        raise OSError(28, "No space left on device")

    if moment == "rename":
        monkeypatch.setattr(os, "rename", fails)
    else:
        monkeypatch.setattr(np, "savez", fails)
    with pytest.raises(OSError, match="No space"):
        kept(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_only_its_owner_can_read_it(tmp_path):
    kept(tmp_path / "run", notes={"asked.json": "{}"})
    assert (tmp_path / "run" / "asked.json").read_text() == "{}\n"
    assert stat.S_IMODE(os.stat(tmp_path / "run").st_mode) == 0o700
    for file in (tmp_path / "run").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_key_is_in_the_secret_file_alone(tmp_path):
    cut(tmp_path / "run")
    with np.load(tmp_path / "run" / SECRET) as file:
        key = file["key"].tobytes()
    assert len(key) == 32
    for file in (tmp_path / "run").iterdir():
        assert (key in file.read_bytes()) == (file.name == SECRET)


def test_another_table_is_refused_lest_noise_be_used_twice(tmp_path):
    cut(tmp_path / "run")
    other = tiny.table()
    other["ill"][0] = "no" if other["ill"][0] == "yes" else "yes"
    with pytest.raises(CheckpointError, match="of another table"):
        released(tmp_path / "run", rows=encode(other, tiny.SCHEMA))


def test_another_plan_is_refused(tmp_path):
    cut(tmp_path / "run")
    with pytest.raises(CheckpointError, match="another model, plan or schema"):
        released(tmp_path / "run", plan=replace(tiny.choice().plan, clip_norm=1.0))
    assert (tmp_path / "run" / SECRET).exists()


@pytest.mark.parametrize("damage", ["empty folder", "cut short", "foreign", "a file", "lost block"])
def test_what_is_no_checkpoint_is_refused_by_name(tmp_path, damage):
    folder = tmp_path / "run"
    if damage == "a file":
        folder.write_text("hello")
    elif damage == "empty folder":
        folder.mkdir()
    else:
        cut(folder)
        secret = folder / SECRET
        if damage == "cut short":
            secret.write_bytes(secret.read_bytes()[:200])
        elif damage == "foreign":
            np.savez(secret, hello=np.ones(3))
        else:
            (folder / "chunk-000003.npz").unlink()
    with pytest.raises(CheckpointError, match="checkpoint"):
        released(folder)


def test_an_account_is_charged_once_for_a_run_and_committed_at_its_end(tmp_path):
    account = open_account(tmp_path / "ledger.db", "tiny", Budget(1.2, tiny.DELTA))
    cut(tmp_path / "run", 20, account=account)
    cut(tmp_path / "run", 40, account=account)
    assert [entry.state for entry in account.entries()] == ["intent"]
    released(tmp_path / "run", account)
    assert [entry.state for entry in account.entries()] == ["committed"]


def test_a_refused_charge_leaves_nothing_behind(tmp_path):
    account = open_account(tmp_path / "ledger.db", "tiny", Budget(0.5, tiny.DELTA))
    with pytest.raises(ValueError, match="would have spent"):
        released(tmp_path / "run", account)
    assert not (tmp_path / "run").exists()
    assert not [path for path in tmp_path.iterdir() if "run" in path.name]


def test_a_run_knows_its_own_whole_release(tmp_path):
    plan = tiny.choice().plan
    query = elbo.query(tiny.MODEL, plan, tiny.choice().settings)
    mine = run(secure(), plan, query, tiny.rows(), keep="trace", checkpoint=Checkpoint(tmp_path / "run"))
    again = Checkpoint(tmp_path / "run")
    assert again.has_told(mine)
    assert not again.has_told(tiny.posterior().release)
    assert not again.has_told(replace(mine, noise="simulated"))
    assert not again.has_told(replace(mine, blocks=mine.blocks._replace(mean=mine.blocks.mean + 1e-9)))
    shorter = replace(mine, blocks=type(mine.blocks)(*(field[:-1] for field in mine.blocks)))
    assert not again.has_told(shorter)
    assert not Checkpoint(tmp_path / "new").has_told(mine)


def test_a_failure_after_the_run_keeps_the_checkpoint_and_what_it_told(tmp_path):
    """As when the disk is full: the rows are not asked again, and a fit has what was told."""
    account = open_account(tmp_path / "ledger.db", "tiny", Budget(1.2, tiny.DELTA))
    asked = {"epsilon": tiny.EPSILON, "delta": tiny.DELTA, "draws": 10, "reading": "last iterate"}
    kept = []

    def fit_and_save(**options):
        with Checkpoint(tmp_path / "run", account) as checkpoint:
            kept.append(
                fit(tiny.MODEL, tiny.rows(), **asked, choice=tiny.choice(), checkpoint=checkpoint, **options).release
            )
            if len(kept) == 1:
                raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        fit_and_save()
    assert [entry.state for entry in account.entries()] == ["intent"]
    fit_and_save(progress=lambda blocks: [pytest.fail("asked") for _ in blocks])
    assert_equal(*kept)
    assert [entry.state for entry in account.entries()] == ["committed"]


def test_a_kill_while_the_folder_is_removed_leaves_none_by_its_name(tmp_path, monkeypatch):
    remove = shutil.rmtree

    def removed_in_part(folder, **options):
        if not str(folder).endswith(".over"):
            return remove(folder, **options)
        next(iter(folder.iterdir())).unlink()
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", removed_in_part)
        with pytest.raises(Cut):
            released(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert len(list(tmp_path.iterdir())) == 1
    assert not list(tmp_path.glob(f".run.*/{SECRET}"))
    released(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_stream_that_forgot_its_key_draws_nothing():
    stream = secure()
    stream.normals(0, (2,))
    stream.forget()
    assert len(stream._key) == 0
    with pytest.raises(ValueError, match="forgotten its key"):
        stream.normals(1, (2,))


def test_a_secure_stream_serves_one_run():
    stream = secure()
    first = released(None, noise=stream)
    assert first.noise == "secure"
    with pytest.raises(ValueError, match="every run needs a stream of its own"):
        released(None, noise=stream)


FITS = """
import pickle, sys
from pathlib import Path
from discreet.fitting import Checkpoint, run, secure
from discreet.ledger import Account, LedgerError
from discreet.mechanism import loop
from discreet.methods import elbo
from tests import tiny
loop.CHUNK_WORK = 1
folder = Path(sys.argv[1])
account = Account(folder / "ledger.db", "tiny")
rows, choice = tiny.rows(), pickle.loads((folder / "choice").read_bytes())
query = elbo.query(tiny.MODEL, choice.plan, choice.settings)
print("ready", flush=True)
for number in range(20):
    try:
        with Checkpoint(folder / f"run-{number}", account) as checkpoint:
            found = run(checkpoint.noise(secure()), choice.plan, query, rows, keep="trace", checkpoint=checkpoint)
            found.save(folder / f"out-{number}-{checkpoint.run}")
    except LedgerError:
        break
"""


def killed(folder, moment):
    """A process that fits until the budget is spent, killed so many seconds after it began to."""
    folder.mkdir()
    open_account(folder / "ledger.db", "tiny", Budget(2.5, tiny.DELTA))
    (folder / "choice").write_bytes(pickle.dumps(tiny.choice()))
    child = subprocess.Popen([sys.executable, "-c", FITS, str(folder)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    time.sleep(moment)
    child.send_signal(signal.SIGKILL)
    child.communicate()


def check_after_a_kill(folder):
    """Nothing overspent, nothing committed lost, and what was cut short goes on, twice alike.

    A run that died between its first save and its charge has spent nothing: it goes on if the budget has room for it,
    and is refused if not.
    """
    account = Account(folder / "ledger.db", "tiny")
    assert account.spent() <= account.budget.epsilon
    saved = {path.name.split("-")[2]: path for path in folder.glob("out-*")}
    for entry in account.entries():
        if entry.state == "committed":
            Release.load(saved[entry.run])
    left = list(folder.glob("run-*"))
    assert len(left) <= 1
    for path in left:
        shutil.copytree(path, folder / "copy")
        try:
            assert_equal(released(path, account), released(folder / "copy"))
            assert account.spent() <= account.budget.epsilon
        except LedgerError:
            assert [chunk.name for chunk in path.iterdir()] == [SECRET]
        assert all(entry.state == "committed" for entry in account.entries())
    return len(left)


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_kills_at_random_moments_lose_and_overspend_nothing(tmp_path, count):
    """Moments are seeded; what a run has reached by then is not."""
    folders = [tmp_path / str(number) for number in range(count)]
    moments = np.random.default_rng(count).uniform(0.2, 4.0, count)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(killed, folders, moments))
    cut_short = sum(map(check_after_a_kill, folders))
    assert cut_short >= count // 5
