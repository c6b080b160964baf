"""Writing all or nothing: work in a hidden neighbour of the target, then rename into place.

Whatever ends the block early, the target stays as it was and no folder made for it stays behind. What is in place when
the block has ended is on the disk: it survives a loss of power.
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from platformdirs import user_cache_dir


def cache_folder() -> Path:
    """Where computed things are kept for next time: DISCREET_CACHE, or the user's own cache."""
    return Path(os.environ.get("DISCREET_CACHE") or user_cache_dir("discreet"))


@contextmanager
def new_file(target: str | os.PathLike) -> Iterator[Path]:
    """A scratch path that becomes `target` when the block ends well, and nothing when it does not."""
    target = Path(os.path.abspath(target))
    with _neighbour(target) as place:
        scratch = place / target.name
        yield scratch
        sync(scratch)
        os.replace(scratch, target)


@contextmanager
def new_folder(target: str | os.PathLike) -> Iterator[Path]:
    """A scratch folder that becomes `target` when the block ends well, and nothing when it does not.

    An existing `target` is replaced only if the new one has all of its names: nothing else is ever deleted. That takes
    two renames, with a moment between them in which there is no `target`; a kill in that moment leaves the old one as
    `.discreet-…/old` beside it.
    """
    target = Path(os.path.abspath(target))
    with _neighbour(target) as place:
        scratch, retired = place / "new", place / "old"
        scratch.mkdir()
        yield scratch
        refuse_loss(target, os.listdir(scratch))
        for part in (*scratch.rglob("*"), scratch):
            if not part.is_symlink():
                sync(part)
        try:
            if target.exists():
                os.replace(target, retired)
            os.replace(scratch, target)
        except BaseException:
            if retired.exists() and not target.exists():
                os.replace(retired, target)
            raise


def sync(path: str | os.PathLike) -> None:
    """Wait until a file, or the names in a folder, are on the disk, as far as the system can do that."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # Windows opens no folders
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def refuse_loss(target: str | os.PathLike, names: Collection[str]) -> None:
    """Raise FileExistsError if a folder of these `names` in place of `target` would delete anything else."""
    if os.path.lexists(target) and (os.path.islink(target) or not os.path.isdir(target)):
        raise FileExistsError(f"{target} exists and is not a folder: choose another")
    lost = sorted(set(os.listdir(target)) - set(names)) if os.path.isdir(target) else []
    if lost:
        raise FileExistsError(f"{target} holds {', '.join(lost[:3])}{', …' * (len(lost) > 3)}: choose another folder")


def rehearse(target: str | os.PathLike) -> None:
    """Raise OSError now if `target` could not be written later; leaves nothing behind."""
    with _neighbour(Path(os.path.abspath(target))) as place:
        (place / "file").write_bytes(b"rehearsal")


@contextmanager
def _neighbour(target: Path) -> Iterator[Path]:
    """A hidden folder beside `target`, for as long as the block lasts; missing parents stay only if used."""
    parents = [parent for parent in target.parents if not parent.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=".discreet-", dir=target.parent))
        try:
            yield place
            for folder in (target.parent, *(parent.parent for parent in parents)):
                sync(folder)
        finally:
            shutil.rmtree(place, ignore_errors=True)
    finally:
        for parent in parents:
            with suppress(OSError):
                parent.rmdir()
