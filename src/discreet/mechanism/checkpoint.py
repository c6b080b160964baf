"""A run that survives its process: where it is, kept on disk after every chunk of steps.

The noise stream is a function of its key and the chunk's number, so going on needs the key, the number and the public
state: nothing is ever drawn twice, and nothing is drawn anew. The key can undo the noise: it stands in a file that only
its owner can read, and is removed with the folder when the run is over.
"""

import glob
import hashlib
import hmac
import io
import json
import os
import secrets
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from discreet.atomic import new_file, sync
from discreet.mechanism.noise import Noise
from discreet.mechanism.rows import Rows
from discreet.plan import Charge
from discreet.release import Release

SECRET, FIELDS = "secret.npz", {"run", "key", "kind", "done", "digest", "rows"}
SERVED = "has served a run: make a new Checkpoint for each, of the same folder where a run was cut short and goes on"
Leaves = Sequence[np.ndarray]


class Charged(Protocol):
    """What a run is charged to: an account of the ledger."""

    def charge(self, plan: Charge, purpose: str = "", run: str | None = None) -> Any:
        """Write an intent for this run, once."""

    def commit(self, run: str) -> None:
        """Say that the run is complete."""


class CheckpointError(ValueError):
    """This checkpoint does not serve this run."""


class Checkpoint:
    """The checkpoint of one run in `folder`: new if there is none, else what a run that was cut short has left.

    Without a folder nothing is kept, and the account alone is looked after. `notes` are files (name: text) that a new
    folder gets, for whoever finds it.
    As a context it ends the run: when the block ends well, the account's entry is committed and the folder removed;
    when it does not, both stay as they are, and the same block can be run again. So save the posterior inside.

    Guarantee: one object serves one run. A second one is refused before it is charged, whether or not there is a
    folder; else two releases would stand under one entry of the ledger.
    """

    def __init__(self, folder: str | Path | None = None, account: Charged | None = None, purpose: str = "", notes=None):
        self.folder, self.account, self.purpose = None if folder is None else Path(folder), account, purpose
        self._notes: Mapping[str, str] = notes or {}
        self._sweep()
        self._saved = _read(self.folder / SECRET) if self.folder and os.path.lexists(self.folder) else None
        if self._saved is not None and (FIELDS - set(self._saved) or self._saved["key"].shape != (32,)):
            raise CheckpointError(f"{self.folder} is no checkpoint: its {SECRET} is of something else; give another")
        self.run = "" if self._saved is None else str(self._saved["run"])
        self._ours, self._unused = self._saved is not None, threading.Lock()

    def __repr__(self) -> str:
        return f"Checkpoint({self.folder})"

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is None:
            self.finish()

    def begin(self) -> None:
        """Claim this object for one run, and name the run if it is new."""
        if not self._unused.acquire(blocking=False):  # never released; copies share it, and it cannot be pickled
            raise CheckpointError(f"{self} {SERVED}")
        if self._saved is None:
            self.run = secrets.token_hex(16)  # not earlier: a process that was forked has a run of its own

    def finish(self) -> None:
        """Commit the entry, then remove the folder: the run is over, and what it told is kept elsewhere."""
        if self.account is not None:
            self.account.commit(self.run)
        self._remove()

    def _remove(self) -> None:
        """Take the run's own folder away in one move, then delete it."""
        if self.folder is not None and self._ours and self.folder.exists():
            os.replace(self.folder, self.folder.with_name(f".{self.folder.name}.{self.run}.over"))
            self._sweep()

    def _sweep(self) -> None:
        """Remove what runs left that are over, or died before their folder was whole and anything was charged.

        Under its own name a folder is whole or not there, also after a kill. One that is being made is held by its
        process before anything is in it, so that what is not empty and can be held is nobody's.
        """
        if self.folder is None:
            return
        left = f".{glob.escape(self.folder.name)}." + 32 * "[0-9a-f]"
        for remains in self.folder.parent.glob(left + ".over"):
            _delete(remains)
        for remains in self.folder.parent.glob(left):
            with suppress(OSError), _held(remains, wait=False) as held:  # its process may be moving it into place
                if held and os.listdir(remains):
                    _delete(remains)

    def noise(self, fresh: Noise) -> Noise:
        """The stream of the run that was cut short, once, or the `fresh` one."""
        if self._saved is None:
            return fresh
        key = self._saved.pop("key", None)
        if key is None:
            raise CheckpointError(f"{self} {SERVED}")
        stream = Noise(key.data, str(self._saved["kind"]))  # pyright: ignore[reportArgumentType]
        key[:] = 0
        return stream

    def charge(self, plan: Charge) -> None:
        """Write the intent, once for each run; where it is refused, a new run leaves nothing behind."""
        try:
            if self.account is not None:
                self.account.charge(plan, self.purpose, self.run)
        except ValueError:
            if self._saved is None:
                self._remove()
            raise

    def has_told(self, release: Release) -> bool:
        """Whether this is the whole release of the run that was cut short: its noisy answers, block by block.

        Nobody else's can be: noise is drawn once. So what is saved already need not be saved again.
        """
        if self._saved is None or self.folder is None or str(self._saved["kind"]) != release.noise:
            return False
        told, steps = [], 0.0
        for chunk in reversed(range(int(self._saved["done"]))):  # earlier phases told other things before
            told.insert(0, self._told_in(chunk))
            steps += float(np.sum(told[0][0]))
            if steps >= release.plan.steps:
                break
        moments = len(release.blocks)  # points may follow them
        if not told or steps != release.plan.steps or any(len(one) < moments for one in told):
            return False
        joined = [np.concatenate([one[place] for one in told]) for place in range(moments)]
        return all(np.array_equal(*pair, equal_nan=True) for pair in zip(joined, release.blocks, strict=True))

    def restore(self, noise: Noise, facts: dict, rows: Rows) -> tuple[int, Leaves, list[Leaves]]:
        """How many chunks are done, the state after them, and what each of them told; of a new run: none."""
        self.begin()
        if self.folder is None:
            return 0, [], []
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
        self._told = {"digest": digest, "rows": _tag(noise, rows)}
        if self._saved is None:
            return 0, [], []
        if str(self._saved["digest"]) != digest:
            raise CheckpointError(
                f"{self.folder} is of another model, plan or schema: give the same, or another folder"
            )
        if not hmac.compare_digest(str(self._saved["rows"]), self._told["rows"]):
            raise CheckpointError(f"{self.folder} is of another table: noise that is used for two protects neither")
        done = int(self._saved["done"])
        leaves = [self._saved[name] for name in sorted(self._saved) if name.startswith("state_")]
        return done, leaves, [self._told_in(chunk) for chunk in range(done)]

    def _told_in(self, chunk: int) -> Leaves:
        assert self.folder is not None
        parts = _read(self.folder / _name(chunk))
        return [parts[name] for name in sorted(parts)]

    def save(self, noise: Noise, done: int, state: Any, told: Any = None) -> None:
        """What the last of `done` chunks told, and then that it is done: a kill in between repeats the chunk."""
        if self.folder is None:
            return
        if not self._ours:
            self._create(self.folder, noise, state)
        elif self.folder.is_dir():  # whoever took it away wants nothing kept
            if told is not None:
                _write(self.folder / _name(done - 1), _numbered("part", told))
            self._write_secret(self.folder, noise, done, state)

    def _create(self, folder: Path, noise: Noise, state: Any) -> None:
        """The folder of a new run, whole and in one move, which fails where there is one."""
        place = folder.with_name(f".{folder.name}.{self.run}")
        place.mkdir(mode=0o700, parents=True)
        try:
            with _held(place, wait=True):
                for name, text in self._notes.items():
                    with new_file(place / name) as scratch, _private(scratch) as file:
                        file.write(f"{text}\n".encode())
                self._write_secret(place, noise, 0, state)
                os.rename(place, folder)
        except BaseException as error:
            _delete(place)
            if isinstance(error, OSError) and os.path.lexists(folder):
                raise CheckpointError(f"{folder} was made by another run just now: give another folder") from None
            raise
        self._ours = True
        sync(folder.parent)

    def _write_secret(self, folder: Path, noise: Noise, done: int, state: Any) -> None:
        key = np.frombuffer(noise._key, np.uint8).copy()
        facts = {"run": self.run, "kind": noise.kind, "done": done, **self._told}
        arrays = {"key": key, **{name: np.array(value) for name, value in facts.items()}, **_numbered("state", state)}
        try:
            _write(folder / SECRET, arrays)
        finally:
            key[:] = 0


@contextmanager
def _held(folder: Path, *, wait: bool) -> Iterator[bool]:
    """Whether this process alone holds the folder while the block lasts; after a kill the system lets go of it."""
    held = False
    with ExitStack() as stack:
        with suppress(OSError, ImportError):  # where there are no locks nobody can be sure, and nothing is swept
            import fcntl

            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            held = True
        yield held


def _delete(folder: Path) -> None:
    """The key first, then the rest."""
    with suppress(OSError):
        (folder / SECRET).unlink()
    shutil.rmtree(folder, ignore_errors=True)


def _tag(noise: Noise, rows: Rows) -> str:
    """Which rows these are, to whoever has the key; without it, it tells nothing of them."""
    tag = hmac.new(noise._key, b"discreet rows", hashlib.sha256)
    columns = {**rows._columns, **({} if rows._counts is None else {"": rows._counts})}
    for name, column in sorted(columns.items()):
        tag.update(f"{name}\0{column.dtype}\0{column.shape}\0".encode())
        tag.update(np.ascontiguousarray(column).data)
    return tag.hexdigest()


def _numbered(name: str, tree: Any) -> dict[str, np.ndarray]:
    """The arrays of a tree, under names whose order is theirs."""
    return {f"{name}_{number:04}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(tree))}


def _name(chunk: int) -> str:
    return f"chunk-{chunk:06}.npz"


def _private(path: Path):
    """A new file, open for writing and reading, that only its owner can read."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b")


def _write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """The arrays, and after them the digest of all that: zip has none of its directory, and can lose an array."""
    with new_file(path) as scratch, _private(scratch) as file:
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
        file.seek(0)
        file.write(hashlib.file_digest(file, "sha256").digest())


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        content = path.read_bytes()
        if hashlib.sha256(content[:-32]).digest() != content[-32:]:
            raise ValueError("its digest is of something else")
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return dict(file)
    except Exception as error:  # files of others make zipfile and numpy raise whatever they come across
        raise CheckpointError(
            f"{path} is not part of a checkpoint ({type(error).__name__}): give another folder"
        ) from None
