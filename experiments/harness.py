"""The one shape of an experiment: rows of a table, a verdict for each, results/NAME.json, exit 0 only if all hold."""

import argparse
import json
import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from discreet.atomic import new_file
from discreet.evaluate import study

RESULTS = Path(__file__).resolve().parent.parent / "results"
FULL = os.environ.get("FULL") == "1"
PACKAGES = ("discreet", "jax", "numpyro", "numpy", "scipy", "dp-accounting")
STUDIES = RESULTS.parent / "out" / "studies"
OPTIONS = ("FULL", "SEEDS", "EPSILONS", "MODELS", "LONGEST")
CORES = 2
os.environ.setdefault("NPROC", "1")  # XLA's threads, as the command line has it; several fits run beside each other


def seeds(full, quick):
    """The seeds of the repeated runs; SEEDS=n asks for another number, where a full run would take days."""
    return range(int(os.environ.get("SEEDS") or (full if FULL else quick)))


def epsilons(*default):
    """The ε of the private runs; EPSILONS="1 4" asks for others."""
    return tuple(map(float, os.environ.get("EPSILONS", "").split())) or default


def progress(label):
    """A wrapper for `run(progress=…)`: a bar on a terminal, nothing in a pipe."""
    return lambda blocks: track(
        blocks, description=label, disable=not sys.stderr.isatty(), console=Console(stderr=True)
    )


def parallel(function, jobs, label):
    """[function(*job) for job in jobs] on all cores: compiled loops run outside Python's lock."""
    jobs = list(jobs)
    with ThreadPoolExecutor(CORES) as pool:
        results = pool.map(lambda job: function(*job), jobs)
        return [result for _, result in zip(progress(label)(range(len(jobs))), results, strict=True)]


def run_parts(name, job, count, facts):
    """The parts of a study, on all cores or on the cluster of `--dask ADDRESS`; what was done is not repeated."""
    parser = argparse.ArgumentParser(prog=name)
    parser.add_argument("--dask", metavar="ADDRESS", help="a Dask scheduler, for example tcp://127.0.0.1:8786")
    dask = parser.parse_args().dask
    folder = STUDIES / _file(name)
    return study.run(job, count, folder, facts, workers=CORES, dask=dask, progress=progress(name))


@contextmanager
def picture(name, columns=1, rows=1, size=(4.2, 3.4)):
    """Axes of a figure that is saved as results/NAME.png when the block ends without an error."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        rows, columns, figsize=(size[0] * columns, size[1] * rows), layout="constrained", squeeze=False
    )
    yield axes[0] if rows == 1 else axes
    RESULTS.mkdir(exist_ok=True)
    with new_file(RESULTS / f"{_file(name)}.png") as scratch:
        figure.savefig(scratch, format="png", dpi=130)
    pyplot.close(figure)


def claim(text, paper, measured, verdict):
    """What a paper says, its figure, ours, and "confirmed", "not confirmed" or "not comparable"."""
    if isinstance(verdict, bool):
        verdict = "confirmed" if verdict else "not confirmed"
    return {"claim": text, "paper": paper, "measured": measured, "verdict": verdict}


def finish(name, records, seeds, *, columns, notes=(), claims=(), target=True, kind="experiment"):
    """Print the tables, write results/NAME.json and exit: 0 only if every record's verdict holds.

    A record is a dict; `verdict` is True (holds), False (does not) or None (nothing was promised). `claims` are the
    paper's (see `claim`): they are reported whichever way they go. `target=False` marks a quick run, whose numbers are
    not the ones the criteria speak of.
    """
    title = name if target else f"{name} — NOT THE TARGET (quick mode; FULL=1 for the real one)"
    _print(title, columns, [[_text(record.get(column)) for column in columns] for record in records])
    if claims:
        _print("what the paper says, and what was measured here", list(claims[0]), [list(c.values()) for c in claims])
    for note in notes:
        print(note)
    facts = {
        "name": name,
        "command": f"make {kind} NAME={name}" + "".join(f" {k}={os.environ[k]}" for k in OPTIONS if os.environ.get(k)),
        "target": target,
        "versions": {"python": platform.python_version()} | {package: version(package) for package in PACKAGES},
        "seeds": seeds,
        "records": records,
        "claims": list(claims),
        "notes": list(notes),
    }
    RESULTS.mkdir(exist_ok=True)
    with new_file(RESULTS / f"{_file(name)}.json") as scratch:
        scratch.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    failed = [record for record in records if record.get("verdict") is False]
    judged = [record for record in records if record.get("verdict") is not None]
    print(
        f"{len(judged) - len(failed)} of {len(judged)} criteria hold" if judged else "no criterion of ours, only claims"
    )
    sys.exit(1 if failed else 0)


def _file(name):
    """Quick and full runs keep apart."""
    return f"{name}-full" if FULL else name


def _print(title, columns, rows):
    table = Table(title=title)
    for column in columns:
        text = column in (columns[0], "method", "paper", "measured")
        table.add_column(column, justify="left" if text else "right", no_wrap=column == "method")
    for row in rows:
        table.add_row(*row)
    Console(width=max(180, Console().width)).print(table)


def _text(value):
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "holds" if value else "FAILS"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
