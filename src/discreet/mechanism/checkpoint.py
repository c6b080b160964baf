"""A run that survives its process: where it is, kept on disk after every block of steps.

The noise stream is a function of its key and the block's number, so going on needs the key, the number and the public
state: nothing is ever drawn twice, and nothing is drawn anew. The key can undo the noise: it stands in a file that only
its owner can read, and is removed with the folder when the run is over.
"""

import glob
import hashlib
import hmac
import json
import os
import secrets
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from discreet.atomic import new_file
from discreet.mechanism.noise import Noise
from discreet.mechanism.rows import Rows
from discreet.plan import Plan

SECRET, FIELDS = "secret.npz", {"run", "key", "kind", "done", "digest", "rows"}
Leaves = Sequence[np.ndarray]


class Charged(Protocol):
    """What a run is charged to: an account of the ledger."""

    def charge(self, plan: Plan, purpose: str = "", run: str | None = None) -> Any:
        """Write an intent for this run, once."""

    def commit(self, run: str) -> None:
        """Say that the run is complete."""


class CheckpointError(ValueError):
    """The folder is no checkpoint of this run."""


class Checkpoint:
    """The checkpoint of one run in `folder`: new if there is none, else what a run that was cut short has left.

    Without a folder nothing is kept, and the account alone is looked after. `notes` are files (name: text) that a new
    folder gets, for whoever finds it.
    As a context it ends the run: when the block ends well, the account's entry is committed and the folder removed;
    when it does not, both stay as they are, and the same block can be run again. So save the posterior inside.
    """

    def __init__(self, folder: str | Path | None = None, account: Charged | None = None, purpose: str = "", notes=None):
        self.folder, self.account, self.purpose = None if folder is None else Path(folder), account, purpose
        self._notes: dict[str, str] = notes or {}
        self._sweep()
        self._saved = _read(self.folder / SECRET) if self.folder and os.path.lexists(self.folder) else None
        if self._saved is not None and FIELDS - set(self._saved):
            raise CheckpointError(f"{self.folder} is no checkpoint: its {SECRET} is of something else; give another")
        self.run = secrets.token_hex(16) if self._saved is None else str(self._saved["run"])

    def __repr__(self) -> str:
        return f"Checkpoint({self.folder})"

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is None:
            self.finish()

    def finish(self) -> None:
        """Commit the entry, then remove the folder: the run is over, and what it told is kept elsewhere."""
        if self.account is not None:
            self.account.commit(self.run)
        if self.folder is not None and self.folder.exists():
            os.replace(self.folder, self.folder.with_name(f".{self.folder.name}.{self.run}.over"))
            self._sweep()

    def _sweep(self) -> None:
        """Remove what finished runs left: under its own name a folder is whole or not there, also after a kill."""
        if self.folder is not None:
            for remains in self.folder.parent.glob(f".{glob.escape(self.folder.name)}.*.over"):
                (remains / SECRET).unlink(missing_ok=True)
                shutil.rmtree(remains, ignore_errors=True)

    def noise(self, fresh: Noise) -> Noise:
        """The stream of the run that was cut short, or the `fresh` one."""
        if self._saved is None:
            return fresh
        return Noise(self._saved["key"].tobytes(), str(self._saved["kind"]))  # pyright: ignore[reportArgumentType]

    def charge(self, plan: Plan) -> None:
        """Write the intent, once for each run; where it is refused, a new run leaves nothing behind."""
        try:
            if self.account is not None:
                self.account.charge(plan, self.purpose, self.run)
        except ValueError:
            if self._saved is None and self.folder is not None:
                shutil.rmtree(self.folder)
            raise

    def restore(self, noise: Noise, facts: dict, rows: Rows, state: Any) -> tuple[int, Any, list[Leaves]]:
        """How many blocks are done, the state after them, and what each of them told; of a new run: none."""
        if self.folder is None:
            return 0, state, []
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
        self._told = {"digest": digest, "rows": _tag(noise, rows)}
        if self._saved is None:
            return 0, state, []
        if str(self._saved["digest"]) != digest:
            raise CheckpointError(
                f"{self.folder} is of another model, plan or schema: give the same, or another folder"
            )
        if not hmac.compare_digest(str(self._saved["rows"]), self._told["rows"]):
            raise CheckpointError(f"{self.folder} is of another table: noise that is used for two protects neither")
        done, tree = int(self._saved["done"]), jax.tree.structure(state)
        leaves = [self._saved[name] for name in sorted(self._saved) if name.startswith("state_")]
        if len(leaves) != tree.num_leaves:
            raise CheckpointError(f"{self.folder} is no checkpoint of this query: give another")
        told = [_read(self.folder / _name(block)) for block in range(done)]
        return done, jax.tree.unflatten(tree, leaves), [[block[name] for name in sorted(block)] for block in told]

    def save(self, noise: Noise, done: int, state: Any, told: Any = None) -> None:
        """What the last of `done` blocks told, and then that it is done: a kill in between repeats the block."""
        if self.folder is None:
            return
        new = not self.folder.exists()
        place = self.folder.with_name(f".{self.folder.name}.{self.run}") if new else self.folder
        if new:
            place.mkdir(mode=0o700, parents=True)
            for name, text in self._notes.items():
                (place / name).write_text(text + "\n")
        if told is not None:
            _write(place / _name(done - 1), _numbered("part", told))
        key = np.frombuffer(bytes(noise._key), np.uint8)
        facts = {"run": self.run, "kind": noise.kind, "done": done, **self._told}
        _write(
            place / SECRET,
            {"key": key, **{n: np.array(value) for n, value in facts.items()}, **_numbered("state", state)},
        )
        if new:
            os.replace(place, self.folder)


def _tag(noise: Noise, rows: Rows) -> str:
    """Which rows these are, to whoever has the key; without it, it tells nothing of them."""
    tag = hmac.new(bytes(noise._key), b"discreet rows", hashlib.sha256)
    columns = {**rows._columns, **({} if rows._counts is None else {"": rows._counts})}
    for name, column in sorted(columns.items()):
        tag.update(f"{name}\0{column.dtype}\0{column.shape}\0".encode())
        tag.update(np.ascontiguousarray(column).data)
    return tag.hexdigest()


def _numbered(name: str, tree: Any) -> dict[str, np.ndarray]:
    """The arrays of a tree, under names whose order is theirs."""
    return {f"{name}_{number:04}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(tree))}


def _name(block: int) -> str:
    return f"block-{block:06}.npz"


def _write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with new_file(path) as scratch:
        handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
            file.flush()
            os.fsync(file.fileno())


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return dict(file)
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise CheckpointError(
            f"{path} is not part of a checkpoint ({type(error).__name__}): give another folder"
        ) from None
