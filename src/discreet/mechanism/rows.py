"""Rows: a table encoded under a Schema. Secret: no values in its repr, no iteration, no indexing."""

import numpy as np

from discreet.schema import Categorical, Schema, Unit


class Rows:
    """`num_rows` encoded rows; with `counts`, identical rows are held once with their multiplicity.

    Which layout is used (`Schema.held_as_counts`), and the length of the stored arrays, depend only on the schema and
    the public number of rows: every possible cell is stored, empty ones too.
    Where the schema has a unit, `num_rows` counts units, and a column holds `unit.most` places for each of them; the
    unit's own column says which places hold a row.
    A leading axis of `replicas` holds several tables of equal size, for simulated studies.
    """

    __slots__ = ("_columns", "_counts", "num_rows", "replicas", "schema")

    def __init__(self, schema: Schema, columns: dict[str, np.ndarray], counts: np.ndarray | None = None):
        """Hold encoded columns (see `Schema.encode`) under the schema that encoded them."""
        first, places = columns[schema.names[0]], 0 if schema.unit is None else 1
        self.schema, self._columns, self._counts = schema, columns, counts
        self.replicas = None if first.ndim == 1 + places else first.shape[0]
        self.num_rows = int(first.shape[-1 - places] if counts is None else counts.sum(-1).flat[0])

    def __repr__(self) -> str:
        return f"Rows({self.num_rows} {self.unit}s; columns {', '.join(self.schema.names)})"

    @property
    def unit(self) -> str:
        """Whom a mechanism protects here: a row, or a unit of several."""
        return "row" if self.schema.unit is None else self.schema.unit.column

    def __iter__(self):
        raise TypeError("rows are secret: they can be asked through a mechanism, not iterated")


def encode(table, schema: Schema) -> Rows:
    """The table as Rows; every error comes here, before anything is spent."""
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
