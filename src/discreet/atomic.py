"""Writing all or nothing: work on a hidden neighbour, then rename it into place."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_file(target: str | os.PathLike) -> Iterator[Path]:
    """A scratch path that becomes `target` when the block ends well, and nothing when it does not."""
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
    os.close(handle)
    scratch = Path(name)
    try:
        yield scratch
        scratch.chmod(0o644)
        os.replace(scratch, target)
    finally:
        scratch.unlink(missing_ok=True)


@contextmanager
def new_folder(target: str | os.PathLike) -> Iterator[Path]:
    """A scratch folder that replaces `target` when the block ends well, and nothing when it does not."""
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    scratch, retired = place / "new", place / "old"
    scratch.mkdir()
    try:
        yield scratch
        if target.exists():
            os.replace(target, retired)
        os.replace(scratch, target)
    finally:
        shutil.rmtree(place, ignore_errors=True)
