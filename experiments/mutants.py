"""Do the tests notice when the mechanism is wrong? Small changes of its code, made by a machine, one at a time.

Each mutant is one change in `mechanism/`, `plan.py` or `accounting.py`: a comparison, an operator, a constant, a
condition, a minimum or a maximum turned into its neighbour, or a statement left out. 80 of all that can be made are
drawn at random, at least three from each file, and the tests of the mechanism are run on each in a copy of the project,
until one fails. No test knows of any mutant. Texts of messages, type annotations, `__repr__` and the constants that
decide nothing but speed (`SPEED`) are left alone.

Criterion (written before the run): at least 95 % of the mutants are killed. Survivors are listed with what they
change; `docs/faults.md` says why each survived.
"""

import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from harness import finish, parallel

SEED, MUTANTS, FEWEST, PATIENCE = 15, int(os.environ.get("SEEDS") or 80), 3, 1500
ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "discreet"
FILES = [*sorted((PACKAGE / "mechanism").glob("*.py")), PACKAGE / "plan.py", PACKAGE / "accounting.py"]
OWN = {
    "loop": ["mechanism/test_loop.py", "mechanism/test_one_row.py"],
    "checkpoint": ["mechanism/test_checkpoint.py"],
    "sampling": ["mechanism/test_sampling.py", "guarantees/test_audits.py"],
    "plan": ["test_plan.py", "test_tune.py"],
    "accounting": ["test_accounting.py"],
}
OTHERS = [  # the quick ones first
    *("mechanism", "test_plan.py", "test_accounting.py", "test_release.py", "test_fitting.py", "guarantees"),
    *("methods", "test_ledger.py", "test_units.py", "evaluate/test_study.py", "test_audit.py"),
]
ABORT = ("--override-ini=addopts=", "-q", "-x", "-p", "no:cacheprovider", "--no-header", "-m", "not slow")
COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.MatMult: ast.Mult,
}  # fmt: skip
EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "less": "greater", "floor": "ceil"}
SHOWN = ("__repr__", "__str__", "_description")
SPEED = ("CHUNK_ENTRIES", "CHUNK_WORK", "MOST_FEATURES", "IN_CACHE", "LANES", "MOST_PAIRED")


class Mutant(NamedTuple):
    """Where the change is, what it is, and the whole text of the changed file."""

    path: Path
    line: int
    change: str
    text: str


def mutants_of(path):
    """Every mutant of one file."""
    whole = ast.parse(path.read_text())
    found = []
    for number, (node, field, neighbour) in enumerate(_changes(whole)):
        changed = copy.deepcopy(whole)
        twin, _, _ = list(_changes(changed))[number]
        before = ast.unparse(twin)
        setattr(twin, field, copy.deepcopy(neighbour)) if field else _leave_out(twin)
        after = ast.unparse(twin) if field else "pass"
        ast.fix_missing_locations(changed)
        found.append(Mutant(path, node.lineno, f"{_short(before)} → {_short(after)}", ast.unparse(changed)))
    return found


def _changes(node):
    """(node, field, value) of every change below `node`; a field of "" leaves the statement out."""
    for child in _children(node):
        yield from _changes(child)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        yield node, "ops", [COMPARISONS[type(node.ops[0])]()]
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATORS:
        yield node, "op", OPERATORS[type(node.op)]()
    elif isinstance(node, ast.BoolOp):
        yield node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        yield node, "value", _neighbour(node.value)
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield node, "test", ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        yield node, "op", ast.UAdd() if isinstance(node.op, ast.USub) else ast.Not()
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in EXTREMES:
        yield node.func, "id", EXTREMES[node.func.id]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in EXTREMES:
        yield node.func, "attr", EXTREMES[node.func.attr]
    elif isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield node, "", None


def _children(node):
    """What is below a node, but for texts, types and what is only shown."""
    if isinstance(node, ast.Raise | ast.JoinedStr) or getattr(node, "name", "") in SHOWN:
        return
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in SPEED:
        return
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        if isinstance(node, ast.If) and field == "test" and ast.unparse(value) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield from _children(node.operand)
            return
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child


def _neighbour(value):
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value * 1.1 + 1e-300


def _leave_out(statement):
    statement.__class__, statement.__dict__ = ast.Pass, {"lineno": statement.lineno, "col_offset": 0}


def _short(text):
    line = " ".join(text.split())
    return line if len(line) <= 110 else f"{line[:50]} … {line[-50:]}"


def drawn():
    """A few mutants of each file, and the rest at random from all; equal texts once."""
    rng = random.Random(SEED)
    every = {path: list({mutant.text: mutant for mutant in mutants_of(path)}.values()) for path in FILES}
    chosen = [mutant for several in every.values() for mutant in rng.sample(several, min(FEWEST, len(several)))]
    rest = [mutant for several in every.values() for mutant in several if mutant not in chosen]
    return [*chosen, *rng.sample(rest, max(0, MUTANTS - len(chosen)))][:MUTANTS], sum(map(len, every.values()))


def first_failure(mutant, place):
    """The test that fails on this mutant in a copy of the project; None if none does."""
    own = []
    if mutant is not None:
        (place / mutant.path.relative_to(ROOT)).write_text(mutant.text)
        own = OWN.get(mutant.path.stem, [f"mechanism/test_{mutant.path.stem}.py"])
    cache = place / "cache"
    environment = os.environ | {
        "PYTHONPATH": str(place / "src"), "DISCREET_TEST_CACHE": str(cache), "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / "tests" / ".cache" / "compiled"),
    }  # fmt: skip
    for tests in filter(None, (own, [part for part in OTHERS if part not in own])):
        command = [sys.executable, "-m", "pytest", *ABORT, *(f"tests/{part}" for part in tests)]
        try:
            done = subprocess.run(
                command, cwd=place, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
        except subprocess.TimeoutExpired:
            return f"more than {PATIENCE} s in {tests[0]}"
        if done.returncode:
            lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            return lines[0].split(" - ")[0].split(" ", 1)[1] if lines else "the tests do not start"
    return None


def first_failure_in_copy(mutant):
    """The same, with a copy made for it."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name in ("src", "tests"):
            shutil.copytree(COPY / name, place / name)
        shutil.copy(COPY / "pyproject.toml", place)
        priced = mutant is not None and mutant.path.stem in ("plan", "accounting")
        if not priced:  # what a mutant of the accounting is wrong about must not be known already
            shutil.copytree(COPY / "cache", place / "cache")
        return first_failure(mutant, place)


def judged(number, mutant):
    began = time.time()
    killer = first_failure_in_copy(mutant)
    where = "untouched" if mutant is None else f"{mutant.path.relative_to(PACKAGE)}:{mutant.line}"
    change = "" if mutant is None else mutant.change
    print(f"{number:3} {time.time() - began:5.0f} s  {where:28} {killer or 'SURVIVES: ' + change}", flush=True)
    return {"mutant": number, "where": where, "change": change, "killed by": killer, "verdict": None}


with tempfile.TemporaryDirectory() as frozen:  # the project as it is now: it may go on changing meanwhile
    COPY = Path(frozen)
    for part in ("src", "tests"):
        shutil.copytree(ROOT / part, COPY / part, ignore=shutil.ignore_patterns("__pycache__", ".cache"))
    shutil.copy(ROOT / "pyproject.toml", COPY)
    cached = ROOT / "tests" / ".cache"
    cached.mkdir(exist_ok=True)
    shutil.copytree(cached, COPY / "cache", ignore=shutil.ignore_patterns("compiled"))
    started = time.time()
    mutants, possible = drawn()
    untouched, *records = parallel(judged, [(-1, None), *enumerate(mutants)], "mutants")
    if untouched["killed by"] is not None:
        sys.exit(f"{untouched['killed by']} fails without any mutant: put that right first")
alive = [record for record in records if record["killed by"] is None]
share = 1 - len(alive) / len(records)
records.append({"mutant": "all", "killed": f"{len(records) - len(alive)} of {len(records)}", "verdict": share >= 0.95})
finish(
    "mutants",
    records,
    {"mutants": SEED},
    columns=["mutant", "where", "change", "killed by", "killed", "verdict"],
    notes=[f"{len(records) - 1} of {possible} possible mutants; {time.time() - started:.0f} s"],
    target=True,
)
