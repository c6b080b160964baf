"""A table of any make as arrays: frames, mappings, CSV and Parquet files, read or refused.

Messages count values and never show a number of the table; Arrow's own messages do, and are not passed on.
"""

import csv
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import narwhals as nw
import narwhals.exceptions
import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv as arrow_csv
from pyarrow import parquet

pc: Any = pyarrow.compute  # Arrow makes these functions at import, where no type checker sees them

PIECE = 2**18
EXACT = 2**53
"""Whole numbers up to here are exact in float64."""

MISSING_SPELLINGS = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "-nan", "NULL", "null")
"""What a CSV file may write for a missing value; a spelling that is a declared level is that level."""

Columns = dict[str, pa.ChunkedArray]


class SchemaError(ValueError):
    """A schema that cannot be, or a table that does not fit its schema."""


def read(table: Any, wanted: Mapping[str, Collection[str] | None] | None = None) -> Columns:
    """The wanted columns, of one length ≥ 1, dictionaries decoded; other columns are never read.

    `wanted` maps each name to its levels if they are text, else to None; without it all columns are read.
    Only CSV files, which have no types, look at the levels: `"1"` is text if the levels are, else a number.

    >>> read({"age": [31, None], "note": ["x", "y"]}, {"age": None})["age"].to_pylist()
    [31, None]
    """
    source = _open(table)
    wanted = _checked(source, wanted)
    return _columns(source, wanted, source.fetch(list(wanted)))


def read_pieces(table: Any, wanted: Mapping[str, Collection[str] | None]) -> tuple[int, Iterator[Columns]]:
    """The number of rows, and the wanted columns piece by piece: a Parquet file by its parts, anything else whole."""
    source = _open(table)
    names = list(_checked(source, wanted))
    if source.pieces is None:
        columns = _columns(source, wanted, source.fetch(names))
        return len(columns[names[0]]), iter([columns])
    num_rows, pieces = source.pieces(names)
    if not num_rows:
        raise SchemaError("the table has no rows: give at least one")
    return num_rows, (_columns(source, wanted, piece) for piece in pieces)


def _checked(source: "_Source", wanted: Mapping[str, Collection[str] | None] | None) -> Mapping:
    _refuse_repeated(source.names)
    wanted = dict.fromkeys(source.names) if wanted is None else wanted
    if not wanted:
        raise SchemaError("the table has no columns: give a header and at least one row")
    lacking = [name for name in wanted if name not in source.names]
    if lacking:
        raise SchemaError(f"the table has no column {_listed(lacking)}; it has {_listed(source.names)}")
    return wanted


def _columns(source: "_Source", wanted: Mapping[str, Collection[str] | None], fetched: Mapping[str, Any]) -> Columns:
    columns = {name: _decoded(column) for name, column in fetched.items()}
    if len({len(column) for column in columns.values()}) > 1:
        raise SchemaError(f"columns {_listed(columns)} differ in length: give each one value per row")
    if not any(len(column) for column in columns.values()):
        raise SchemaError("the table has no rows: give at least one")
    return columns if source.typed else {name: _parsed(columns[name], wanted[name]) for name in wanted}


def kind(column: pa.ChunkedArray) -> str:
    """What a column holds: "numbers", "booleans", "text", "nothing", or the name of another Arrow type.

    >>> [kind(pa.chunked_array([values])) for values in ([1, 2.5], [True], ["a"], [None])]
    ['numbers', 'booleans', 'text', 'nothing']
    """
    of, types = column.type, pa.types
    if types.is_integer(of) or types.is_floating(of) or types.is_decimal(of):
        return "numbers"
    if types.is_string(of) or types.is_large_string(of) or types.is_string_view(of):
        return "text"
    return "booleans" if types.is_boolean(of) else "nothing" if types.is_null(of) else str(of)


def to_numbers(name: str, column: pa.ChunkedArray, integer: bool, missing: float | None) -> np.ndarray:
    """Numbers or booleans as float64 with missing values filled; infinities stay.

    >>> to_numbers("age", pa.chunked_array([[31, None]]), integer=True, missing=40)
    array([31., 40.])
    """
    held = kind(column)
    if held not in ("numbers", "booleans", "nothing"):
        raise SchemaError(f"column {name!r} has bounds but holds {held}: convert it, or give it levels")
    values = _floats(column).to_numpy()
    absent = np.isnan(values)
    fractions = np.sum(values[~absent] != np.rint(values[~absent])) if integer else 0
    if fractions:
        raise SchemaError(f"column {name!r} has {fractions} values that are not whole: set integer = false")
    if missing is None:
        _refuse_missing(name, absent, "a number within its bounds")
        return values
    return np.where(absent, float(missing), values)


def to_codes(name: str, column: pa.ChunkedArray, levels: tuple, other: int | None, missing: int | None) -> np.ndarray:
    """The int32 index of each value in `levels`; undeclared levels become `other`, missing values `missing`.

    >>> to_codes("smokes", pa.chunked_array([["yes", "no", None]]), ("no", "yes"), other=None, missing=0)
    array([1, 0, 0], dtype=int32)
    """
    text = isinstance(levels[0], str)
    _refuse_kind(name, kind(column), text)
    values = column.cast(pa.large_string()) if text else _floats(column)
    known = pa.array(levels if text else [float(level) + 0.0 for level in levels], values.type)
    codes = pc.index_in(values, known).fill_null(-1).to_numpy().astype(np.int32)
    absent = values.is_null(nan_is_null=True).to_numpy()
    undeclared = (codes < 0) & ~absent
    if missing is None:
        _refuse_missing(name, absent, "one of its levels")
    if other is None and undeclared.any():
        raise _undeclared(name, values.filter(pa.array(undeclared)).unique(), text)
    return np.select([absent, undeclared], [np.int32(missing or 0), np.int32(other or 0)], codes)


def to_units(name: str, column: pa.ChunkedArray) -> np.ndarray:
    """Which unit each row belongs to, as int64: units are numbered as they appear.

    >>> to_units("patient", pa.chunked_array([["b", "a", "b"]]))
    array([0, 1, 0])
    """
    held = kind(column)
    if held not in ("numbers", "booleans", "text", "nothing"):
        raise SchemaError(f"unit {name!r} holds {held}: convert it to numbers or text")
    absent = column.is_null(nan_is_null=True).to_numpy()
    if absent.any():
        raise SchemaError(f"unit {name!r} is missing in {absent.sum()} rows: name one for each, or drop those rows")
    return column.combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)


def guess(name: str, column: pa.ChunkedArray, max_levels: int) -> dict[str, Any]:
    """Bounds or levels as observed. NOT PUBLIC: they depend on the private values.

    >>> guess("age", pa.chunked_array([[31, 64]]), max_levels=30)
    {'bounds': [31, 64], 'integer': True}
    """
    held = kind(column)
    if column.null_count == len(column):
        raise SchemaError(f"column {name!r} has only missing values: leave it out")
    if held == "booleans":
        return {"levels": [False, True]}
    if held == "text":
        return {"levels": _observed_levels(name, column, max_levels)}
    if held == "numbers":
        return _observed_bounds(name, column)
    raise SchemaError(f"column {name!r} holds {held}: convert it to numbers or text, or leave it out")


class _Source(NamedTuple):
    names: list[str]
    fetch: Callable[[list[str]], Mapping[str, Any]]
    typed: bool = True
    pieces: Callable[[list[str]], tuple[int, Iterator[Mapping[str, Any]]]] | None = None


def _open(table: Any) -> _Source:
    if isinstance(table, str | os.PathLike):
        return _open_file(Path(table))
    if isinstance(table, Mapping):
        return _Source(list(table), lambda names: {name: _from_values(name, table[name]) for name in names})
    try:
        frame = nw.from_native(table, eager_only=True)
        names = list(frame.columns)
    except narwhals.exceptions.DuplicateError:
        raise SchemaError("the table has columns of the same name: rename them") from None
    except TypeError:
        raise SchemaError(
            f"a table of type {type(table).__name__} is not supported: give a pandas, polars or Arrow table "
            "(collect lazy frames first), a dict of columns, or a path to a .csv or .parquet file"
        ) from None
    return _Source(names, lambda names: {name: _from_series(name, frame.get_column(name)) for name in names})


def _open_file(path: Path) -> _Source:
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise SchemaError(f"{path} is not supported: give a .csv or .parquet file")
    if not path.is_file():
        raise SchemaError(f"{path} is not a file: check the path")
    return _open_csv(path) if path.suffix.lower() == ".csv" else _open_parquet(path)


def _open_csv(path: Path) -> _Source:
    def fetch(names):
        # All as text: Arrow would guess types from the first block and fail on a later one.
        convert = arrow_csv.ConvertOptions(include_columns=names, column_types=dict.fromkeys(names, pa.string()))
        parse = arrow_csv.ParseOptions(newlines_in_values=True)
        try:
            table = arrow_csv.read_csv(path, parse_options=parse, convert_options=convert)
        except (pa.ArrowException, OSError):
            raise SchemaError(f"{path} is not UTF-8 CSV with equally many cells in each row") from None
        return dict(zip(names, table.select(names).columns, strict=True))

    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            return _Source(next(csv.reader(lines), []), fetch, typed=False)
    except (UnicodeDecodeError, csv.Error):
        raise SchemaError(f"{path} has no header of UTF-8 text: save it as UTF-8 CSV") from None


def _open_parquet(path: Path) -> _Source:
    def by_name(names, table):
        return dict(zip(names, table.select(names).columns, strict=True))

    def fetch(names):
        with _damage_named(path):
            return by_name(names, parquet.ParquetFile(path).read(columns=names))

    def pieces(names):
        def each():
            with _damage_named(path):
                yield from (by_name(names, batch) for batch in file.iter_batches(PIECE, columns=names))

        with _damage_named(path):
            file = parquet.ParquetFile(path)
        return file.metadata.num_rows, each()

    try:
        return _Source(parquet.read_schema(path).names, fetch, pieces=pieces)
    except (pa.ArrowException, OSError):
        raise SchemaError(f"{path} is not a Parquet file: check what it holds") from None


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError):
        raise SchemaError(f"{path} is a damaged Parquet file: write it again") from None


def _from_values(name: str, values: Any) -> pa.ChunkedArray | pa.Array:
    try:
        if isinstance(values, pa.Array | pa.ChunkedArray):
            return values
        if hasattr(values, "__arrow_c_stream__"):
            return pa.chunked_array(values)
        return pa.array(values if isinstance(values, list | tuple) else np.asarray(values), from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise _mixed(name) from None


def _from_series(name: str, series: nw.Series) -> pa.ChunkedArray | pa.Array:
    try:
        return series.to_arrow()
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise _mixed(name) from None


def _mixed(name: str) -> SchemaError:
    return SchemaError(f"column {name!r} is not a list of values of one type: convert it to numbers or text")


def _decoded(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray:
    chunked = pa.chunked_array([column]) if isinstance(column, pa.Array) else column
    return chunked.cast(chunked.type.value_type) if pa.types.is_dictionary(chunked.type) else chunked


def _parsed(text: pa.ChunkedArray, levels: Collection[str] | None) -> pa.ChunkedArray:
    spellings = pa.array([s for s in MISSING_SPELLINGS if s not in (levels or ())], pa.string())
    text = pc.if_else(pc.is_in(text, spellings), None, text)
    if levels is not None:
        return text
    trimmed = pc.utf8_trim_whitespace(text)
    for numeric in (pa.int64(), pa.float64(), pa.bool_()):
        try:
            return trimmed.cast(numeric)
        except pa.ArrowInvalid:
            continue
    return text


def _refuse_repeated(names: list[str]) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise SchemaError(f"the table has more than one column {_listed(repeated)}: rename them")


def _listed(names: Collection[Any]) -> str:
    shown = ", ".join(repr(name) for name in list(names)[:20]) or "no columns"
    return shown + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _floats(column: pa.ChunkedArray) -> pa.ChunkedArray:
    # Adding 0.0 turns -0.0 into 0.0: Arrow tells them apart when it looks up a level.
    return pc.add(column.cast(pa.float64(), safe=False), 0.0)


def _refuse_missing(name: str, absent: np.ndarray, remedy: str) -> None:
    if absent.any():
        raise SchemaError(
            f"column {name!r} has {absent.sum()} missing values: set missing to {remedy}, or drop those rows"
        )


def _refuse_kind(name: str, held: str, text: bool) -> None:
    if held in (("text", "nothing") if text else ("numbers", "booleans", "nothing")):
        return
    declared, remedy = ("text", "unquote the levels") if text else ("not text", "quote the levels")
    remedy = remedy if held in ("text", "numbers", "booleans") else "convert the column"
    raise SchemaError(f"column {name!r} holds {held} but its levels are {declared}: {remedy}")


def _undeclared(name: str, found: pa.Array, text: bool) -> SchemaError:
    named = [repr(level[:40]) for level in found[:3].to_pylist()] if text else []
    shown = f" ({', '.join(named)}{', …' if len(found) > 3 else ''})" if named else ""
    return SchemaError(f"column {name!r} has {len(found)} undeclared levels{shown}: declare them, or set other")


def _observed_levels(name: str, column: pa.ChunkedArray, max_levels: int) -> list[str]:
    levels = column.cast(pa.large_string()).drop_null().unique()
    if len(levels) > max_levels:
        raise SchemaError(f"column {name!r} has over {max_levels} levels: leave it out, or raise max_levels")
    if len(levels) < 2:
        raise SchemaError(f"column {name!r} has only one level: leave it out, or declare its levels by hand")
    return sorted(levels.to_pylist())


def _observed_bounds(name: str, column: pa.ChunkedArray) -> dict[str, Any]:
    values = _floats(column).to_numpy()
    values = values[np.isfinite(values)]
    if not len(values):
        raise SchemaError(f"column {name!r} has no finite values: leave it out")
    low, high = float(values.min()), float(values.max())
    if low == high:
        low, high = (low, low + 1) if abs(low) < EXACT else sorted((low / 2, low))
    if pa.types.is_integer(column.type) and max(-low, high) <= EXACT:
        return {"bounds": [int(low), int(high)], "integer": True}
    return {"bounds": [low, high]}
