import errno
import itertools
import os
import stat

import pytest

from discreet.atomic import new_file, new_folder, refuse_loss, rehearse


class Stopped(BaseException):
    """Not an Exception: an interrupt must leave as little behind as an error."""


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def stop_in_file(target):
    with new_file(target) as scratch:
        scratch.write_bytes(b"half a fi")
        raise Stopped


def stop_in_folder(target):
    with new_folder(target) as scratch:
        (scratch / "a").write_bytes(b"half a fi")
        raise Stopped


@pytest.mark.parametrize("stop", [stop_in_file, stop_in_folder])
@pytest.mark.parametrize("target", ["new", "made/for/it/new"])
def test_a_stopped_block_leaves_nothing_behind(tmp_path, stop, target):
    with pytest.raises(Stopped):
        stop(tmp_path / target)
    assert tree(tmp_path) == {}


def test_a_stopped_block_leaves_an_existing_target_as_it_was(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "folder" / "a").write_bytes(b"old")
    before = tree(tmp_path)
    for stop, target in ((stop_in_file, "file"), (stop_in_folder, "folder")):
        with pytest.raises(Stopped):
            stop(tmp_path / target)
    assert tree(tmp_path) == before


def test_the_target_is_never_half_written(tmp_path):
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with new_file(target) as scratch:
        scratch.write_bytes(b"ne")
        assert target.read_bytes() == b"old"
        scratch.write_bytes(b"new")
    with new_folder(tmp_path / "folder") as scratch:
        (scratch / "a").write_bytes(b"1")
        assert not (tmp_path / "folder").exists()
    assert tree(tmp_path) == {"file": b"new", "folder": None, "folder/a": b"1"}


@pytest.mark.parametrize("failing", [1, 2])
def test_a_failed_rename_puts_the_old_folder_back(tmp_path, monkeypatch, failing):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_bytes(b"old")
    rename, calls = os.replace, []

    def replace(source, target):
        calls.append(target)
        if len(calls) == failing:
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="No space"), new_folder(tmp_path / "folder") as scratch:
        (scratch / "a").write_bytes(b"new")
    assert tree(tmp_path) == {"folder": None, "folder/a": b"old"}


def test_an_interrupt_between_the_two_renames_puts_the_old_folder_back(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_bytes(b"old")
    rename = os.replace

    def replace(source, target):
        rename(source, target)
        if source == tmp_path / "folder":
            raise Stopped

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(Stopped), new_folder(tmp_path / "folder") as scratch:
        (scratch / "a").write_bytes(b"new")
    assert tree(tmp_path) == {"folder": None, "folder/a": b"old"}


@pytest.mark.parametrize("parents", ["", "made/for/it"])
def test_what_is_in_place_survives_a_loss_of_power(tmp_path, monkeypatch, parents):
    """Every file and folder is synced before it is renamed, and the folders that hold its name after that."""
    synced, renamed = [], []
    sync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(os.fstat(handle).st_ino), sync(handle)))
    monkeypatch.setattr(os, "replace", lambda *names: (renamed.append(len(synced)), rename(*names)))
    with new_folder(tmp_path / parents / "folder") as scratch:
        (scratch / "deep").mkdir()
        (scratch / "deep" / "a").write_bytes(b"1")
        (scratch / "b").write_bytes(b"2")
    with new_file(tmp_path / parents / "file") as scratch:
        scratch.write_bytes(b"3")
    number = {str(path.relative_to(tmp_path / parents)): path.stat().st_ino for path in (tmp_path / parents).rglob("*")}
    moments = [0, *renamed, len(synced)]
    first, second, third = (synced[start:end] for start, end in itertools.pairwise(moments))
    assert {number[name] for name in ("folder", "folder/deep", "folder/deep/a", "folder/b")} <= set(first)
    above = {
        path.stat().st_ino for path in (tmp_path, *tmp_path.rglob("*")) if path in (tmp_path / parents / "x").parents
    }
    assert above <= set(second)
    assert number["file"] in second
    assert (tmp_path / parents).stat().st_ino in third


def test_a_file_system_that_cannot_sync_folders_is_no_reason_to_fail_but_a_broken_disk_is(tmp_path, monkeypatch):
    def failing(number):
        def sync(_):
            raise OSError(number, os.strerror(number))

        return sync

    monkeypatch.setattr(os, "fsync", failing(errno.EINVAL))
    with new_file(tmp_path / "file") as scratch:
        scratch.write_bytes(b"1")
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(OSError, match="Errno 5"), new_file(tmp_path / "file") as scratch:
        scratch.write_bytes(b"2")
    assert tree(tmp_path) == {"file": b"1"}


def test_a_replaced_folder_loses_nothing_that_the_new_one_lacks(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "thesis.tex").write_bytes(b"years of work")
    before = tree(tmp_path)
    with pytest.raises(FileExistsError, match=r"thesis\.tex"), new_folder(tmp_path) as scratch:
        (scratch / "a").write_bytes(b"new")
    with pytest.raises(FileExistsError, match="not a folder"), new_folder(tmp_path / "thesis.tex"):
        pass
    assert tree(tmp_path) == before
    refuse_loss(tmp_path, ["a", "thesis.tex", "b"])


def test_links_are_not_followed_to_what_they_point_to(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(FileExistsError, match="not a folder"), new_folder(tmp_path / "link"):
        pass


def test_files_and_folders_get_the_permissions_that_the_user_wants(tmp_path):
    before = os.umask(0o077)
    try:
        with new_file(tmp_path / "file") as scratch:
            scratch.write_bytes(b"")
        with new_folder(tmp_path / "folder"):
            pass
    finally:
        os.umask(before)
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file", "folder")}
    assert modes == {"file": 0o600, "folder": 0o700}


def test_a_rehearsal_finds_what_cannot_be_written_and_leaves_nothing(tmp_path):
    rehearse(tmp_path / "made" / "for" / "it")
    assert tree(tmp_path) == {}
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError):
        rehearse(tmp_path / "file" / "below")
    with pytest.raises(OSError):
        rehearse("/proc/nowhere/out")
