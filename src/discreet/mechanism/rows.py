"""Rows: a table encoded under a Schema. Secret: no values in its repr, no iteration, no indexing."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from discreet.atomic import new_folder
from discreet.schema import Categorical, Numeric, Schema, SchemaError, Unit

Packed = dict[tuple[str, ...], Any]
"""Columns of one type side by side under all their names: picking rows of one array is quicker than of many."""
LABEL, FORMAT = "rows.json", 1


class Rows:
    """`num_rows` encoded rows; with `counts`, identical rows are held once with their multiplicity.

    Which layout is used (`Schema.held_as_counts`), and the length of the stored arrays, depend only on the schema and
    the public number of rows: every possible cell is stored, empty ones too.
    Where the schema has a unit, `num_rows` counts units, and a column holds `unit.most` places for each of them; the
    unit's own column says which places hold a row.
    A leading axis of `replicas` holds several tables of equal size, for simulated studies.
    With `files`, columns are views of arrays on disk, and batches are read from these: by the names of columns of one
    type, the array and their places in it.
    """

    __slots__ = ("_columns", "_counts", "_files", "num_rows", "replicas", "schema")

    def __init__(
        self,
        schema: Schema,
        columns: dict[str, np.ndarray],
        counts: np.ndarray | None = None,
        files: dict[tuple[str, ...], tuple[np.ndarray, Any]] | None = None,
    ):
        """Hold encoded columns (see `Schema.encode`) under the schema that encoded them."""
        first, places = columns[schema.names[0]], 0 if schema.unit is None else 1
        self.schema, self._columns, self._counts, self._files = schema, columns, counts, files
        self.replicas = None if first.ndim == 1 + places else first.shape[0]
        self.num_rows = int(first.shape[-1 - places] if counts is None else counts.sum(-1).flat[0])

    def __repr__(self) -> str:
        return f"Rows({self.num_rows} {self.unit}s; columns {', '.join(self.schema.names)})"

    @property
    def on_disk(self) -> bool:
        """Whether rows are read from files, by batches."""
        return self._files is not None

    @property
    def unit(self) -> str:
        """Whom a mechanism protects here: a row, or a unit of several."""
        return "row" if self.schema.unit is None else self.schema.unit.column

    def __iter__(self):
        raise TypeError("rows are secret: they can be asked through a mechanism, not iterated")


def encode(table: Any, schema: Schema, folder: str | os.PathLike | None = None) -> Rows:
    """The table as Rows; every error comes here, before anything is spent.

    For a table that does not fit into memory give a `folder`: the encoded rows are written there, piece by piece if the
    table is a Parquet file, and batches are read from there when they are needed. Only its owner can read it. Such a
    folder is a table itself: `encode(folder, schema)` opens it again.
    """
    if folder is not None:
        _write(Path(folder), schema, table)
        return _open(Path(folder), schema)
    if isinstance(table, str | os.PathLike) and (Path(table) / LABEL).is_file():
        return _open(Path(table), schema)
    return store(schema, schema.encode(table))


def store(schema: Schema, columns: dict[str, np.ndarray]) -> Rows:
    """Rows from encoded columns, by unit where the schema has one, as cells with counts where it allows.

    Several tables have the same units: the unit's column is of one table.
    """
    if schema.unit is not None:
        return Rows(schema, _by_unit(schema.unit, columns))
    num_rows = columns[schema.names[0]].shape[-1]
    if not schema.held_as_counts(num_rows):
        return Rows(schema, columns)
    cells = schema.cells or 0
    offsets, sizes = zip(*(_grid(schema[name]) for name in schema.names), strict=True)
    codes = [columns[name].astype(np.int64) - low for name, low in zip(schema.names, offsets, strict=True)]
    cell = np.asarray(np.ravel_multi_index(codes, sizes))
    counts = _count(cell, cells)
    grid = np.unravel_index(np.arange(cells), sizes)
    stored = {
        name: np.broadcast_to((values + low).astype(columns[name].dtype), counts.shape)
        for name, values, low in zip(schema.names, grid, offsets, strict=True)
    }
    return Rows(schema, stored, counts)


def packed(columns: Mapping[str, Any]) -> Packed:
    """The columns by type, side by side."""
    kinds = sorted({str(column.dtype) for column in columns.values()})
    alike = [tuple(name for name in columns if str(columns[name].dtype) == kind) for kind in kinds]
    return {names: jnp.stack([columns[name] for name in names], axis=-1) for names in alike}


def unpacked(parts: Packed) -> dict[str, Any]:
    """Columns by name again."""
    return {name: part[..., place] for names, part in parts.items() for place, name in enumerate(names)}


def read_batches(rows: Rows, indices: Any) -> Packed | None:
    """The rows at these positions, from files, in the types that `Schema.encode` gives; None if rows are in memory."""
    if rows._files is None:
        return None
    return {
        names: np.take(file, indices, axis=0, mode="clip")[..., places].astype(encoded_kind(rows.schema[names[0]]))
        for names, (file, places) in rows._files.items()
    }


def _write(folder: Path, schema: Schema, table: Any) -> None:
    """The encoded table as one file for each type, row by row, and a label; all or nothing."""
    if schema.unit is not None:
        raise SchemaError(f"folder={str(folder)!r}: units are held in memory alone; leave the folder out")
    if os.path.lexists(folder):
        raise FileExistsError(f"{folder} exists: choose another folder, or open it as it is, encode(folder, schema)")
    num_rows, pieces = schema.encode_pieces(table)
    if schema.held_as_counts(num_rows):
        raise SchemaError(f"folder={str(folder)!r}: {schema.cells} counts hold this table; leave the folder out")
    with new_folder(folder) as scratch:
        scratch.chmod(0o700)
        _fill(scratch, schema, num_rows, pieces)
        facts = {"format": FORMAT, "rows": num_rows, "schema": schema.to_toml()}
        (scratch / LABEL).write_text(json.dumps(facts, indent=1) + "\n")


def _fill(folder: Path, schema: Schema, num_rows: int, pieces: Iterable[Mapping[str, np.ndarray]]) -> None:
    groups = _groups(schema)
    files = [
        np.lib.format.open_memmap(folder / name, "w+", kind, (num_rows, len(names)))
        for name, (kind, names) in groups.items()
    ]
    for name in groups:
        (folder / name).chmod(0o600)
    done = 0
    for piece in pieces:
        count = len(piece[schema.names[0]])
        for file, (_, names) in zip(files, groups.values(), strict=True):
            for place, name in enumerate(names):
                file[done : done + count, place] = piece[name]
        done += count
    for file in files:
        file.flush()


def _open(folder: Path, schema: Schema) -> Rows:
    """The rows of a folder that `encode` wrote, if it has the schema's columns as they are declared there."""
    try:
        facts = json.loads((folder / LABEL).read_text())
        kept, count = Schema.from_toml(facts["schema"]), facts["rows"]
        arrays = [(names, np.load(folder / name, "r")) for name, (_, names) in _groups(kept).items()]
        whole = facts["format"] == FORMAT and all(array.shape == (count, len(names)) for names, array in arrays)
    except (OSError, ValueError, KeyError, TypeError):
        whole, arrays, kept = False, [], schema
    if not whole:
        raise SchemaError(f"{folder} holds no encoded rows of format {FORMAT}: encode the table again")
    others = [column.name for column in schema.columns if column.name not in kept or kept[column.name] != column]
    if others or schema.unit is not None:
        differ = f"columns {', '.join(others)}" if others else "the unit"
        raise SchemaError(f"{folder} was encoded under another schema ({differ} differ): encode the table again")
    files, columns = {}, {}
    for names, array in arrays:
        places = {name: place for place, name in enumerate(names) if name in schema}
        if places:
            every = slice(None) if len(places) == len(names) else list(places.values())
            files[tuple(places)] = (array, every)
            columns |= {name: array[:, place] for name, place in places.items()}
    return Rows(schema, columns, files=files)


def _groups(schema: Schema) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Which columns stand in which file, and its type: the smallest that holds them."""
    kinds = {column.name: (encoded_kind(column), _smallest_kind(column)) for column in schema.columns}
    return {
        f"{encoded}-{kind}.npy": (kind, tuple(name for name in kinds if kinds[name] == (encoded, kind)))
        for encoded, kind in sorted(set(kinds.values()))
    }


def encoded_kind(column: Numeric | Categorical) -> str:
    """The type that `Schema.encode` gives a column."""
    return "int32" if isinstance(column, Categorical) else "float64"


def _smallest_kind(column: Numeric | Categorical) -> str:
    if isinstance(column, Numeric) and not column.integer:
        return "float64"
    low, high = (0, column.size - 1) if isinstance(column, Categorical) else (int(column.low), int(column.high))
    fits = (kind for kind in ("int8", "int16", "int32") if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)
    return next(fits, "float64")


def _by_unit(unit: Unit, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Columns (…, units, most): a unit's rows in their order, then its first row again for want of another."""
    numbers = columns[unit.column]
    order, sizes = np.argsort(numbers, kind="stable"), np.bincount(numbers)
    first, place = (np.cumsum(sizes) - sizes)[:, None], np.arange(unit.most)
    here = place < sizes[:, None]
    rows = order[np.where(here, first + place, first)]
    stored = {name: column[..., rows] for name, column in columns.items() if name != unit.column}
    shape = next(iter(stored.values())).shape
    return {**stored, unit.column: np.broadcast_to(here.astype(np.int8), shape)}


def _grid(column) -> tuple[int, int]:
    return (0 if isinstance(column, Categorical) else int(column.low)), column.size


def _count(cell: np.ndarray, cells: int) -> np.ndarray:
    tables = cell.reshape(-1, cell.shape[-1])
    counts = np.stack([np.bincount(table, minlength=cells) for table in tables])
    return counts.reshape(*cell.shape[:-1], cells)
