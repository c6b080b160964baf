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
