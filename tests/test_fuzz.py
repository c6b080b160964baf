"""Made-up input on every surface that people touch: refused in words, with nothing asked, spent or half-written.

200 inputs a surface; `-m slow` makes it 10 000. A refusal is a ValueError (an OSError for files); in the command line
one line on standard error and code 2. Anything else is a traceback that somebody would see.
"""

import json
import math
import shutil
import sqlite3
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from discreet import cli, planner
from discreet.ledger import Account, Budget, accounts, open_account
from discreet.mechanism.checkpoint import Checkpoint, CheckpointError
from discreet.plan import Plan
from discreet.posterior.types import Posterior
from discreet.release import Release
from discreet.schema import Schema
from tests import tiny
from tests.mechanism.test_checkpoint import kept

MANY = [200, pytest.param(10_000, marks=pytest.mark.slow)]
numbers = st.one_of(
    st.floats(),
    st.integers(-10, 10**9),
    st.sampled_from([0.0, -0.0, 1.0, 1e-300, 1e300, math.nan, math.inf, -math.inf]),
)
text = st.text(max_size=12)
anything = st.one_of(numbers, text, st.none(), st.booleans(), st.lists(numbers, max_size=3))

pytestmark = pytest.mark.usefixtures("blocks_one_by_one")


def each(count):
    """Hypothesis with this many inputs, the same each time."""
    checks = list(HealthCheck)
    return settings(max_examples=count, derandomize=True, deadline=None, database=None, suppress_health_check=checks)


def tried(make, refusals=ValueError):
    """What was made, or None if it was refused in words."""
    try:
        return make()
    except refusals as error:
        if not str(error):
            raise
        return None


@pytest.mark.parametrize("count", MANY)
def test_plans_are_made_or_refused(count):
    @each(count)
    @given(st.fixed_dictionaries(dict.fromkeys(Plan.__dataclass_fields__, anything)))
    def check(values):
        plan = tried(lambda: Plan(**values), (ValueError, TypeError))
        if plan is not None:
            assert Plan(**json.loads(json.dumps(plan.to_dict()))) == plan
            assert math.isfinite(plan.noise_multiplier)

    check()


@pytest.mark.parametrize("count", MANY)
def test_schemas_from_files_are_read_or_refused(count, tmp_path):
    words = st.sampled_from(["[columns.a]", "bounds = [0, 1]", "levels = ['x', 'y']", "integer = true", "missing = 3"])
    lines = st.lists(st.one_of(words, text, st.just("bounds = [nan, 1]"), st.just("levels = []")), max_size=6)

    @each(count)
    @given(lines)
    def check(parts):
        path = tmp_path / "s.toml"
        path.write_bytes("\n".join(parts).encode(errors="surrogatepass"))
        found = tried(lambda: Schema.load(path))
        assert found is None or found.names

    check()


@pytest.mark.parametrize("count", MANY)
def test_tables_are_encoded_or_refused(count):
    cells = st.one_of(numbers, text, st.none())
    columns = st.dictionaries(st.sampled_from(["age", "sex", "ill", "x"]), st.lists(cells, max_size=4), max_size=4)

    @each(count)
    @given(columns)
    def check(table):
        encoded = tried(lambda: tiny.SCHEMA.encode(table))
        assert encoded is None or all(np.isfinite(values.astype(float)).all() for values in encoded.values())

    check()


@pytest.mark.parametrize("count", MANY)
def test_saved_releases_that_were_damaged_are_refused(count, tmp_path):
    folder = tiny.posterior().release.save(tmp_path / "release")
    originals = {name: (folder / name).read_bytes() for name in ("release.json", "arrays.npz")}

    @each(count)
    @given(st.sampled_from(sorted(originals)), st.integers(0, 10**6), st.binary(max_size=8), st.booleans())
    def check(name, place, patch, cut):
        content = originals[name]
        place %= len(content)
        damaged = content[:place] if cut else content[:place] + patch + content[place + len(patch) :]
        for other, whole in originals.items():
            (folder / other).write_bytes(damaged if other == name else whole)
        found = tried(lambda: Release.load(folder))
        assert found is None or found.last.shape == tiny.posterior().release.last.shape

    check()


damages = (st.integers(0, 10**6), st.binary(min_size=1, max_size=8), st.sampled_from(["cut", "patch", "flip"]))


def damaged(content, place, patch, how):
    """The content cut short, with some bytes replaced, or with some bits of one byte turned over."""
    place %= len(content)
    if how == "flip":
        return content[:place] + bytes([content[place] ^ (patch[0] or 1)]) + content[place + 1 :]
    return content[:place] if how == "cut" else content[:place] + patch + content[place + len(patch) :]


@pytest.mark.parametrize("count", MANY)
def test_checkpoints_that_were_damaged_are_refused(count, tmp_path):
    """Every bit of them: a checkpoint that lost an array, or a digit, would go on to another release."""
    folder = tmp_path / "run"
    restored = kept(folder)
    originals = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert restored(Checkpoint(folder))[0] == 3

    @each(count)
    @given(st.sampled_from(sorted(originals)), *damages)
    def check(name, place, patch, how):
        (folder / name).write_bytes(damaged(originals[name], place, patch, how))
        same = (folder / name).read_bytes() == originals[name]
        found = tried(lambda: restored(Checkpoint(folder)), CheckpointError)
        (folder / name).write_bytes(originals[name])
        assert (found is not None) == same

    check()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of h5netcdf, when it closes them
@pytest.mark.parametrize("count", MANY)
def test_posteriors_that_were_damaged_are_read_or_refused(count, tmp_path):
    path = tiny.posterior().save(tmp_path / "posterior.nc")
    whole = path.read_bytes()

    @each(count)
    @given(*damages)
    def check(place, patch, how):
        path.write_bytes(damaged(whole, place, patch, how))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = tried(lambda: Posterior.load(path))
        assert found is None or isinstance(found, Posterior)

    check()


@pytest.mark.parametrize("count", MANY)
def test_ledgers_and_checkpoints_that_were_damaged_are_refused(count, tmp_path):
    ledger = open_account(tmp_path / "l.db", "people", Budget(9.0, 1e-5)).path
    Account(ledger, "people").charge(tiny.choice().plan)
    sqlite3.connect(ledger).execute("pragma wal_checkpoint(truncate)").connection.close()
    whole = ledger.read_bytes()

    @each(count)
    @given(st.integers(0, 10**6), st.binary(min_size=1, max_size=64), st.booleans())
    def check(place, patch, cut):
        for name in ("l.db-wal", "l.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        place %= len(whole)
        ledger.write_bytes(whole[:place] if cut else whole[:place] + patch + whole[place + len(patch) :])
        tried(lambda: Account(ledger, "people").spent())
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        (folder / "secret.npz").write_bytes(patch)
        with pytest.raises(ValueError, match="checkpoint"):
            Checkpoint(folder)

    check()


class Reached(ValueError):
    """The rows would have been asked."""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a table, its schema and an account; what would ask rows, or take long, refuses instead."""

    def reached(*_, **__):
        raise Reached("reached")

    monkeypatch.chdir(tmp_path)
    for name in ("discreet.fitting.run_phases", "discreet.tune.calibrate_search", "discreet.audit.audit"):
        monkeypatch.setattr(name, reached)
    monkeypatch.setitem(planner.METHODS, "dpvi", lambda *_: tiny.choice())
    tiny.SCHEMA.save("s.toml")
    names = list(tiny.table())
    lines = [",".join(names), *(",".join(map(str, row)) for row in zip(*tiny.table().values(), strict=True))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    open_account("l.db", "people", Budget(9.0, 1e-4))
    return tmp_path


def files(folder):
    """What is in a folder, but for what SQLite comes and goes with."""
    found = {path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".db-wal", ".db-shm")}
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def refused(capsys, here, arguments):
    """Run a command that must end in a refusal of one line, and leave everything as it was."""
    before = files(here)
    with pytest.raises(SystemExit) as done:
        cli.run(arguments)
    out, err = capsys.readouterr()
    assert done.value.code == 2
    assert out == ""
    assert "Traceback" not in err
    assert len([line for line in err.splitlines() if line.startswith("error: ")]) == 1
    assert files(here) == before
    return err


USUAL = {"--schema": "s.toml", "--outcome": "ill", "--family": "logistic", "--epsilon": "1", "--delta": "1e-4"}
USUAL |= {"--covariates": "age,sex", "--method": "dpvi"}
PAYING = {"--out": "out", "--ledger": "l.db", "--dataset": "people"}
COMMANDS = {
    "fit": {"--out": "out", "--reading": "noise-aware", "--solver": "full", "--simulate": "3"},
    "tune": {**PAYING, "--clip": "0.5,1", "--trials": "3", "--law": "geometric"},
    "audit": {"--rows": "300"},
}
odd = st.one_of(text, numbers.map(str), st.sampled_from(["s.toml", "t.csv", "-1", "--out", "age,age", "ill", "\0"]))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("count", MANY)
def test_the_command_line_refuses_in_one_line_and_writes_nothing(count, command, here, capsys):
    usual = USUAL | COMMANDS[command]

    @each(count)
    @given(st.dictionaries(st.sampled_from(sorted(usual)), odd, max_size=3), st.sampled_from(["t.csv", "s.toml", "no"]))
    def check(changes, table):
        if "\0" in "".join(changes.values()):
            return  # no shell can pass it
        options = [part for pair in (usual | changes).items() for part in pair]
        refused(capsys, here, [command, *([] if command == "audit" else [table]), *options])

    check()
    assert Account(here / "l.db", "people").entries() == []


@pytest.mark.parametrize("count", MANY)
def test_runs_whose_checkpoint_was_damaged_are_not_resumed(count, here, capsys):
    """Bytes of its files, or what was asked: unless all of it is right, which ends at the rows here."""
    asked = {name: "out" for name, kind in cli._ASKED.items() if kind is str}
    asked |= {"table": str(here / "t.csv"), "schema": str(here / "s.toml"), "out": str(here / "out")}
    asked |= {"outcome": "ill", "family": "logistic", "method": "dpvi", "reading": "noise-aware"}
    asked |= {"epsilon": 1.0, "delta": 1e-4, "ledger": str(here / "l.db"), "dataset": "people"}
    asked |= {"covariates": None, "solver": None, "simulate": None}
    folder = here / "out.checkpoint"
    kept(folder, Account(here / "l.db", "people"), notes={cli.ASKED: json.dumps(asked)})
    before = Account(here / "l.db", "people").entries()
    assert "reached" in refused(capsys, here, ["resume", str(folder)])
    originals = {path.name: path.read_bytes() for path in folder.iterdir()}
    changes = st.dictionaries(st.sampled_from(sorted(set(asked) - {"out"})), anything, min_size=1, max_size=2)

    @each(count)
    @given(st.sampled_from(sorted(originals)), st.one_of(st.tuples(*damages), changes), st.booleans())
    def check(name, damage, lost):
        if isinstance(damage, dict):
            name, rest = cli.ASKED, {key: value for key, value in asked.items() if not (lost and key in damage)}
            content = json.dumps(rest if lost else asked | damage).encode()
        else:
            content = damaged(originals[name], *damage)
        (folder / name).write_bytes(content)
        refused(capsys, here, ["resume", str(folder)])
        (folder / name).write_bytes(originals[name])

    check()
    assert Account(here / "l.db", "people").entries() == before


@pytest.mark.parametrize("count", MANY)
def test_ledger_commands_refuse_or_do_all_of_it(count, here, capsys):
    paths = st.sampled_from(["l.db", "s.toml", "t.csv", "no.db", "deep/no.db", "t.csv/no.db", "."])
    usual = {"--epsilon": "1", "--delta": "1e-5", "--rows": "300", "--relation": "zero-out", "--unit": "row"}
    changes = st.dictionaries(st.sampled_from(sorted(usual)), odd, max_size=2)
    Account(here / "l.db", "people").charge(tiny.choice().plan)
    before, spent = files(here), Account(here / "l.db", "people").entries()

    @each(count)
    @given(st.sampled_from(["init", "show", "history", "export"]), paths, odd, changes)
    def check(command, path, name, changes):
        if "\0" in name + "".join(changes.values()):
            return
        options = [part for pair in (usual | changes).items() for part in pair]
        arguments = {"init": [name, *options], "history": [name], "show": [], "export": ["--out", f"{path}.json"]}
        with pytest.raises(SystemExit) as done:
            cli.run(["ledger", command, path, *arguments[command]])
        err = capsys.readouterr().err
        assert "Traceback" not in err
        if done.value.code == 0:
            assert [found.name for found in accounts(path)]
            assert command != "export" or json.loads((here / f"{path}.json").read_text())
        else:
            assert done.value.code == 2
            assert files(here) == before
        assert Account(here / "l.db", "people").entries() == spent
        for made in set(files(here)) - set(before):
            (here / made).unlink()
        shutil.rmtree(here / "deep", ignore_errors=True)
        (here / "l.db").write_bytes(before["l.db"])

    check()
