"""The one shape of an experiment: rows of a table, a verdict for each, results/NAME.json, exit 0 only if all hold."""

import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).resolve().parent.parent / "results"
FULL = os.environ.get("FULL") == "1"
PACKAGES = ("discreet", "jax", "numpyro", "numpy", "scipy", "dp-accounting")


def progress(label):
    """A wrapper for `run(progress=…)`: a bar on a terminal, nothing in a pipe."""
    from rich.progress import track

    return lambda blocks: track(
        blocks, description=label, disable=not sys.stderr.isatty(), console=Console(stderr=True)
    )


def finish(name, records, seeds, *, columns, notes=(), target=True):
    """Print the table, write results/NAME.json and exit: 0 only if every record's verdict holds.

    A record is a dict; `verdict` is True (holds), False (does not) or None (nothing was promised). `target=False`
    marks a quick run, whose numbers are not the ones the criteria speak of.
    """
    table = Table(title=name if target else f"{name} — NOT THE TARGET (quick mode; FULL=1 for the real one)")
    for column in columns:
        table.add_column(column, justify="left" if column == columns[0] else "right")
    for record in records:
        table.add_row(*(_text(record.get(column)) for column in columns))
    Console(width=max(140, Console().width)).print(table)
    for note in notes:
        print(note)
    RESULTS.mkdir(exist_ok=True)
    facts = {
        "name": name,
        "command": f"make experiment NAME={name}" + (" FULL=1" if FULL else ""),
        "target": target,
        "versions": {"python": platform.python_version()} | {package: version(package) for package in PACKAGES},
        "seeds": seeds,
        "records": records,
        "notes": list(notes),
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    failed = [record for record in records if record.get("verdict") is False]
    print(f"{len(records) - len(failed)} of {len(records)} rows hold")
    sys.exit(1 if failed else 0)


def _text(value):
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "holds" if value else "FAILS"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
