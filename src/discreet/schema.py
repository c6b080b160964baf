"""What a row is, in public: columns, bounds, levels. Declared, never learned from data."""

import json
import math
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from discreet.atomic import new_file
from discreet.table import EXACT, SchemaError, guess, read, read_pieces, to_codes, to_numbers, to_units

MOST_CELLS = 4096
Covariates = Callable[[np.random.Generator, int], Mapping[str, np.ndarray]]
"""Draws that many rows of encoded columns, like `Schema.sample`: a public law of covariates."""


@dataclass(frozen=True)
class Numeric:
    """A column of numbers, clamped to the public bounds [low, high].

    A missing value (null or NaN) becomes `missing`, or is refused if that is None. With `integer`, anything
    but a whole number is refused. `confirmed=False` marks bounds that were guessed from the data.

    >>> Numeric("age", 17, 90, integer=True).size
    74
    """

    name: str
    low: float
    high: float
    integer: bool = False
    missing: float | None = None
    confirmed: bool = True

    def __post_init__(self):
        """Refuse what no column can be; the bounds of an integer column become Python integers."""
        _check_shared(self.name, integer=self.integer, confirmed=self.confirmed)
        bounds = [_plain(self.low), _plain(self.high)]
        ok = all(_is_finite(bound) for bound in bounds) and float(bounds[0]) < float(bounds[1])
        _require(ok, self.name, "bounds", bounds, "be two finite numbers, low < high")
        missing = _plain(self.missing)
        ok = missing is None or (_is_finite(missing) and bounds[0] <= missing <= bounds[1])
        _require(ok, self.name, "missing", missing, f"be a number within {bounds}")
        if self.integer:
            ok = all(x is None or (x == int(x) and abs(x) <= EXACT) for x in (*bounds, missing))
            _require(ok, self.name, "bounds and missing", (bounds, missing), "be whole, at most 2**53 in size")
            bounds, missing = [int(bound) for bound in bounds], None if missing is None else int(missing)
        _set(self, low=bounds[0], high=bounds[1], missing=missing)

    @property
    def size(self) -> int | None:
        """How many values the column can take; None if it is not an integer column."""
        return int(self.high) - int(self.low) + 1 if self.integer else None

    def encode(self, column: pa.ChunkedArray) -> np.ndarray:
        """The column as float64 within [low, high]."""
        return np.clip(to_numbers(self.name, column, self.integer, self.missing), *self._span)

    def decode(self, values: Any) -> np.ndarray:
        """The values as they are."""
        return np.asarray(values)

    def sample(self, rng: np.random.Generator, num_rows: int) -> np.ndarray:
        """Values uniform on the bounds."""
        if self.integer:
            return rng.integers(int(self.low), int(self.high), num_rows, endpoint=True).astype(np.float64)
        (low, high), share = self._span, rng.random(num_rows)
        return np.clip(low * (1 - share) + high * share, low, high)

    def to_dict(self) -> dict[str, Any]:
        """The declaration as it stands in a schema file."""
        integer = {"integer": True} if self.integer else {}
        return {"bounds": [self.low, self.high], **integer, **_shared(self)}

    @property
    def _span(self) -> tuple[float, float]:
        return float(self.low), float(self.high)


@dataclass(frozen=True)
class Categorical:
    """A column of public levels, encoded as their index.

    The levels are all text, all numbers or all booleans; the latter two match by value (1 = 1.0 = True).
    A missing value becomes `missing` and an undeclared level becomes `other`, or is refused if that is None.

    >>> Categorical("smokes", ("no", "yes"), missing="no").size
    2
    """

    name: str
    levels: tuple
    other: Any = None
    missing: Any = None
    confirmed: bool = True

    def __post_init__(self):
        """Refuse what no column can be; the levels become a tuple."""
        _check_shared(self.name, confirmed=self.confirmed)
        listed = isinstance(self.levels, Sequence | np.ndarray) and not isinstance(self.levels, str)
        levels = tuple(_plain(level) for level in self.levels) if listed else ()
        sorts = {_sort_of(level) for level in levels}
        ok = len(sorts) == 1 and None not in sorts and len(set(levels)) == len(levels) >= 2
        _require(ok, self.name, "levels", self.levels, "be 2 or more distinct texts, numbers or booleans")
        for key in ("other", "missing"):
            value = _plain(getattr(self, key))
            ok = value is None or (_sort_of(value) is not None and value in levels)
            _require(ok, self.name, key, value, f"be one of the levels {list(levels)}")
            _set(self, **{key: None if value is None else levels[levels.index(value)]})
        _set(self, levels=levels)

    @property
    def size(self) -> int:
        """How many values the column can take."""
        return len(self.levels)

    @property
    def text(self) -> bool:
        """Whether the levels are text."""
        return isinstance(self.levels[0], str)

    def encode(self, column: pa.ChunkedArray) -> np.ndarray:
        """The column as int32 indices into `levels`."""
        return to_codes(self.name, column, self.levels, self._index(self.other), self._index(self.missing))

    def decode(self, values: Any) -> np.ndarray:
        """The levels at these indices."""
        codes = np.asarray(values)
        whole = np.issubdtype(codes.dtype, np.integer)
        if not whole or np.any(codes < 0) or np.any(codes >= self.size):
            raise SchemaError(f"codes of column {self.name!r} must be integers from 0 to {self.size - 1}")
        return np.array(self.levels, dtype=object if self.text else None)[codes]

    def sample(self, rng: np.random.Generator, num_rows: int) -> np.ndarray:
        """Indices uniform on the levels."""
        return rng.integers(self.size, size=num_rows, dtype=np.int32)

    def to_dict(self) -> dict[str, Any]:
        """The declaration as it stands in a schema file."""
        other = {} if self.other is None else {"other": self.other}
        return {"levels": list(self.levels), **other, **_shared(self)}

    def _index(self, level: Any) -> int | None:
        return None if level is None else self.levels.index(level)


@dataclass(frozen=True)
class Unit:
    """Whom to protect in a table that has several rows for each: all rows with the same value of `column`.

    A unit has 1 to `most` rows, else the table is refused; `typical` is how many to expect on average, for planning
    alone. Both are declared, and so is the number of units; how many rows there are is as secret as the rows.

    >>> Unit("patient", most=12, typical=3).typical
    3.0
    """

    column: str
    most: int
    typical: float
    confirmed: bool = True

    def __post_init__(self):
        """Refuse what no unit can be."""
        _check_shared(self.column, confirmed=self.confirmed)
        most, typical = _plain(self.most), _plain(self.typical)
        ok = isinstance(most, int) and not isinstance(most, bool) and most >= 1
        _require(ok, self.column, "most", most, "be a whole number ≥ 1: the most rows that a unit has")
        _require(_is_finite(typical) and 1 <= typical <= most, self.column, "typical", typical, f"lie in [1, {most}]")
        _set(self, most=most, typical=float(typical))

    def sizes(self, rng: np.random.Generator, units: int) -> np.ndarray:
        """Made-up numbers of rows of so many units: `typical` on average."""
        share = (self.typical - 1) / (self.most - 1) if self.most > 1 else 0.0
        return 1 + rng.binomial(self.most - 1, share, units)

    def made_up(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """(count, count): how often each of `count` made-up rows is in each of as many made-up units.

        Times what rows answer, this is what units answer.
        """
        return rng.multinomial(self.sizes(rng, count), np.full(count, 1 / count)).astype(float)

    def to_dict(self) -> dict[str, Any]:
        """The declaration as it stands in a schema file."""
        unconfirmed = {} if self.confirmed else {"confirmed": False}
        return {"column": self.column, "most": self.most, "typical": self.typical, **unconfirmed}


@dataclass(frozen=True)
class Schema:
    """Public columns, in order, and whom to protect: each row, or each `unit` of several rows.

    >>> schema = Schema((Numeric("age", 17, 90), Categorical("smokes", ("no", "yes"))))
    >>> schema.encode({"age": [12.5, 40.0], "smokes": ["yes", "no"], "note": ["never", "read"]})
    {'age': array([17., 40.]), 'smokes': array([1, 0], dtype=int32)}
    """

    columns: tuple[Numeric | Categorical, ...]
    unit: Unit | None = None

    def __post_init__(self):
        """Refuse an empty schema, foreign columns and repeated names."""
        if self.unit is not None and not isinstance(self.unit, Unit):
            raise SchemaError(f"unit={self.unit!r} must be a Unit, or None where each row is of another person")
        columns = tuple(self.columns)
        if not columns or not all(isinstance(column, Numeric | Categorical) for column in columns):
            raise SchemaError("columns must be one or more Numeric or Categorical")
        names = [column.name for column in columns]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise SchemaError(f"columns {repeated} are declared more than once: keep one of each")
        if self.unit is not None and self.unit.column in names:
            raise SchemaError(f"{self.unit.column!r} is the unit: it names people, so leave it out of the columns")
        _set(self, columns=columns)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def cells(self) -> int | None:
        """How many distinct encoded rows there can be; None if a column is continuous."""
        sizes = [column.size for column in self.columns]
        return None if None in sizes else math.prod(size for size in sizes if size)

    def held_as_counts(self, num_rows: int) -> bool:
        """Whether `num_rows` rows are held as one count per cell: a public rule, blind to the rows."""
        return self.unit is None and self.cells is not None and self.cells <= min(MOST_CELLS, num_rows)

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        """Names of the columns, and of the unit, whose declaration was guessed from the data."""
        unit = () if self.unit is None or self.unit.confirmed else (self.unit.column,)
        return (*(column.name for column in self.columns if not column.confirmed), *unit)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> Numeric | Categorical:
        if name not in self:
            raise SchemaError(f"no column {name!r}; the schema has {', '.join(self.names)}")
        return self.columns[self.names.index(name)]

    def select(self, names: Sequence[str]) -> "Schema":
        """The schema of these columns, in this order, for the same unit."""
        return Schema(tuple(self[name] for name in names), self.unit)

    def encode(self, table: Any) -> dict[str, np.ndarray]:
        """One array per column: float64 within the bounds, or int32 indices into the levels; and the unit's number.

        `table` is a pandas, polars or Arrow table, a mapping of columns, or the path of a .csv or .parquet
        file; its other columns are never read. Guarantee: every encoded row is one the schema declares.
        """
        columns = read(table, self._wanted())
        unit = self.unit
        encoded = self._encoded(columns)
        return encoded if unit is None else {**encoded, unit.column: _units(unit, columns[unit.column])}

    def encode_pieces(self, table: Any) -> tuple[int, Iterator[dict[str, np.ndarray]]]:
        """The number of rows, and what `encode` would give, piece by piece: a Parquet file is never whole in memory."""
        num_rows, pieces = read_pieces(table, self._wanted())
        return num_rows, (self._encoded(piece) for piece in pieces)

    def _wanted(self) -> dict[str, Any]:
        """The columns to read, with their levels if these are text; refused while any are unconfirmed."""
        if self.unconfirmed:
            raise SchemaError(
                f"columns {', '.join(self.unconfirmed)} are unconfirmed: their bounds were guessed from the "
                "data and are not public until confirmed. Check them and set `confirmed = true` or delete "
                "the line"
            )
        wanted = {c.name: c.levels if isinstance(c, Categorical) and c.text else None for c in self.columns}
        return wanted if self.unit is None else {**wanted, self.unit.column: ()}

    def _encoded(self, columns: Mapping[str, pa.ChunkedArray]) -> dict[str, np.ndarray]:
        return {column.name: column.encode(columns[column.name]) for column in self.columns}

    def decode(self, columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Encoded columns in the words of the table: indices become levels."""
        return {name: self[name].decode(values) for name, values in columns.items()}

    def sample(self, rng: np.random.Generator, num_rows: int) -> dict[str, np.ndarray]:
        """Encoded rows uniform over what is declared: public stand-ins for covariates, made without data."""
        return {column.name: column.sample(rng, num_rows) for column in self.columns}

    def to_dict(self) -> dict[str, Any]:
        """The schema as plain values, as they stand in a schema file."""
        unit = {} if self.unit is None else {"unit": self.unit.to_dict()}
        return {**unit, "columns": {column.name: column.to_dict() for column in self.columns}}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "Schema":
        """The schema that `to_dict` wrote."""
        if set(values) - {"unit"} != {"columns"} or not isinstance(values["columns"], Mapping):
            raise SchemaError(f"a schema holds tables [columns.NAME], [unit], and nothing else, not {sorted(values)}")
        unit = _unit(values["unit"]) if "unit" in values else None
        return Schema(tuple(_column(name, declared) for name, declared in values["columns"].items()), unit)

    def to_toml(self) -> str:
        """The text of the schema file."""
        units = [] if self.unit is None else [_toml("unit", self.unit)]
        return "\n".join([*units, *(_toml(f"columns.{_toml_key(column.name)}", column) for column in self.columns)])

    @staticmethod
    def from_toml(text: str) -> "Schema":
        """The schema of the text that `to_toml` wrote."""
        return Schema.from_dict(tomllib.loads(text))

    def save(self, path: str | os.PathLike) -> None:
        """Write the schema as TOML: all of it or nothing."""
        with new_file(path) as scratch:
            scratch.write_bytes(self.to_toml().encode())

    @staticmethod
    def load(path: str | os.PathLike) -> "Schema":
        """The schema of a TOML file; errors name the file."""
        try:
            return Schema.from_toml(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise SchemaError(f"{path} cannot be read ({error.strerror}): check the path") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SchemaError(f"{path} is not TOML: {error}") from None
        except SchemaError as error:
            raise SchemaError(f"{path}: {error}") from None


def draft(table: Any, max_levels: int = 30, unit: str | None = None) -> Schema:
    """A first guess at a schema, every column unconfirmed; `unit` names the column that says whose row it is.

    NOT PUBLIC: its bounds are the smallest and largest value in the private data and its levels are those
    that occur. `encode` refuses it until a person has put what is known without the data in their place.

    >>> draft({"age": [31, 64]}).unconfirmed
    ('age',)
    """
    columns = read(table)
    units: dict[str, Any] = {}
    if unit is not None:
        sizes = np.bincount(to_units(unit, read(table, {unit: ()})[unit]))
        units = {"unit": {"column": unit, "most": int(sizes.max()), "typical": float(sizes.mean()), "confirmed": False}}
    guesses = {name: guess(name, column, max_levels) for name, column in columns.items() if name != unit}
    return Schema.from_dict({**units, "columns": {name: {**it, "confirmed": False} for name, it in guesses.items()}})


def _column(name: str, declared: Any) -> Numeric | Categorical:
    """The column of one [columns.NAME] table."""
    if not isinstance(declared, Mapping) or ("bounds" in declared) == ("levels" in declared):
        raise SchemaError(f"column {name!r} must have either bounds = [low, high] or levels = [...]")
    numeric = "bounds" in declared
    known = {"missing", "confirmed"} | ({"bounds", "integer"} if numeric else {"levels", "other"})
    unknown = sorted(set(declared) - known)
    if unknown:
        raise SchemaError(f"column {name!r} has unknown keys {unknown}: it may have {sorted(known)}")
    if not numeric:
        return Categorical(name, **declared)
    bounds = declared["bounds"]
    _require(isinstance(bounds, list | tuple) and len(bounds) == 2, name, "bounds", bounds, "be two numbers")
    return Numeric(name, *bounds, **{key: value for key, value in declared.items() if key != "bounds"})


def _unit(declared: Any) -> Unit:
    """The unit of a [unit] table."""
    needed, given = {"column", "most", "typical"}, set(declared) if isinstance(declared, Mapping) else set()
    if not needed <= given <= needed | {"confirmed"}:
        raise SchemaError(f"[unit] must have column, most and typical, and may have confirmed, not {sorted(given)}")
    return Unit(**declared)


def _units(unit: Unit, column: pa.ChunkedArray) -> np.ndarray:
    numbers = to_units(unit.column, column)
    larger = int(np.sum(np.bincount(numbers) > unit.most))
    if larger:
        raise SchemaError(
            f"unit {unit.column!r}: {larger} units have more than most={unit.most} rows: raise most, or drop rows"
        )
    return numbers


def _shared(column: Numeric | Categorical) -> dict[str, Any]:
    missing = {} if column.missing is None else {"missing": column.missing}
    return missing if column.confirmed else {**missing, "confirmed": False}


def _toml(title: str, declared: Numeric | Categorical | Unit) -> str:
    note = "" if declared.confirmed else "# NOT PUBLIC until you confirm it: guessed from the data\n"
    lines = [f"{key} = {_toml_value(value)}\n" for key, value in declared.to_dict().items()]
    return f"{note}[{title}]\n{''.join(lines)}"


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml_value(name)


def _toml_value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_toml_value(item) for item in value)}]"
    # JSON writes TOML's strings, numbers and booleans, but for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _check_shared(name: Any, **flags: Any) -> None:
    if not isinstance(name, str) or not name:
        raise SchemaError(f"column name {name!r} must be non-empty text")
    for key, flag in flags.items():
        _require(isinstance(flag, bool), name, key, flag, "be true or false")


def _require(ok: bool, name: str, key: str, value: Any, remedy: str) -> None:
    if not ok:
        raise SchemaError(f"column {name!r}: {key}={value!r} must {remedy}")


def _set(instance: Any, **fields: Any) -> None:
    for key, value in fields.items():
        object.__setattr__(instance, key, value)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _sort_of(level: Any) -> str | None:
    """Text, boolean or number; None for what cannot be a level, such as a number that float64 may blur."""
    if isinstance(level, str | bool):
        return "text" if isinstance(level, str) else "boolean"
    return "number" if _is_finite(level) and abs(level) < EXACT else None
