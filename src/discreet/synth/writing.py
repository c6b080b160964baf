"""A folder of synthetic tables, with a label that says what they are."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
from pyarrow import parquet

from discreet.atomic import new_folder
from discreet.model import covariates_of
from discreet.posterior.predictive import ONLY_NOISE_AWARE, Source, checked, drawn, is_naive
from discreet.posterior.types import Posterior

LABEL, VERSION, FEW_TABLES = "synthetic.json", 1, 50


def save(
    folder: str | os.PathLike,
    posterior: Posterior,
    n: int,
    m: int,
    *,
    kind: str = "csv",
    covariates: Any = None,
    seed: int | None = None,
    naive: bool = False,
    progress: Callable[[range], Iterable[int]] = iter,
) -> Path:
    """Write `synthesize(posterior, n, m, …)` as FOLDER/table-001.csv (or .parquet) … and a label, all or nothing.

    The tables are read again, to the last bit, by `Schema.encode`. An existing folder is refused.
    """
    if kind not in WRITERS:
        raise ValueError(f"format={kind!r} must be one of {', '.join(WRITERS)}")
    if os.path.lexists(folder):
        raise ValueError(f"out={folder} exists: choose another, so that nothing is overwritten")
    source = checked(posterior, n, m, covariates, naive)
    tables = drawn(source, n, m, seed)
    names = [f"table-{number:0{max(3, len(str(m)))}d}.{kind}" for number in range(1, m + 1)]
    with new_folder(folder) as scratch:
        for place, table in zip(progress(range(m)), tables, strict=True):
            WRITERS[kind](_arrow(table), scratch / names[place])
        label = json.dumps(_label(posterior, source, n, names, seed), indent=1, ensure_ascii=False)
        (scratch / LABEL).write_text(label + "\n", encoding="utf-8")
    return Path(folder)


def read_label(folder: str | os.PathLike) -> dict[str, Any]:
    """What `save` wrote of its tables."""
    try:
        label = json.loads((Path(folder) / LABEL).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        label = None
    if not isinstance(label, dict) or not {"n", "m", "num_rows", "noise_aware", "method"} <= set(label):
        raise ValueError(f"{folder} has no {LABEL} of synthetic tables: give the folder that discreet synth wrote")
    return label


def told(folder: str | os.PathLike) -> tuple[int, int | None]:
    """Rows of each table and of the private one, as pooling needs them; refused for tables that must not be pooled."""
    label = read_label(folder)
    if not label["noise_aware"]:
        raise ValueError(f"{folder}: {label['method']}; {ONLY_NOISE_AWARE}")
    return label["n"], label["num_rows"]


def advice(label: Mapping[str, Any]) -> list[str]:
    """What would make intervals from these tables narrower or honest, and costs nothing."""
    n, m, num_rows = label["n"], label["m"], label["num_rows"]
    said = [] if label["noise_aware"] else [f"{label['method']}: {ONLY_NOISE_AWARE}; these are for comparison alone"]
    if m < FEW_TABLES:
        said.append(f"m={m} is few: pooled intervals are wider than they need be; {FEW_TABLES} tables or more are free")
    if num_rows is not None and n < num_rows:
        said.append(f"n={n} is less than the {num_rows} rows of the fit: pooling is then rough; larger tables are free")
    return said


def _label(posterior: Posterior, source: Source, n: int, names: list[str], seed: Any) -> dict[str, Any]:
    """Plain public values: what the tables were made from, what they promise, and what may be done with them."""
    promise, given, naive = posterior.guarantee, covariates_of(source.model), is_naive(posterior)
    size = posterior.info.get("plan", {}).get("num_rows") if promise.unit == "row" else None
    return {
        "version": VERSION,
        "private": promise.private,
        "says": f"{promise}. Synthetic tables are as private as the posterior they were drawn from.",
        "guarantee": promise.to_dict(),
        "pooling": f"not valid: {ONLY_NOISE_AWARE}" if naive else _POOLING,
        "noise_aware": not naive,
        "n": n,
        "m": len(names),
        "num_rows": size,
        "files": names,
        "seed": seed if isinstance(seed, int) else None,
        "method": posterior.info.get("method"),
        "model": posterior.info.get("model", {}),
        "covariates": f"{', '.join(given)}: of a public table" if given else "made by the model",
        "warnings": list(posterior.info.get("warnings", ())),
        "schema": source.schema.to_dict(),
    }


_POOLING = (
    "analyse each table, then pool: mean of the estimates, variance (1 + 1/m)B - U (discreet pool, or synth.rubin). "
    "Intervals from one table alone are too narrow"
)


def _arrow(table: Mapping[str, np.ndarray]) -> pa.Table:
    text = {name: pa.large_string() if values.dtype == object else None for name, values in table.items()}
    return pa.table({name: pa.array(values, text[name]) for name, values in table.items()})


def _write_csv(table: pa.Table, path: Path) -> None:
    arrow_csv.write_csv(table, path, arrow_csv.WriteOptions(quoting_style="needed"))


def _write_parquet(table: pa.Table, path: Path) -> None:
    parquet.write_table(table, path)


WRITERS = {"csv": _write_csv, "parquet": _write_parquet}
