"""Made-up input on every surface that people touch: refused in words, with nothing asked, spent or half-written.

200 inputs a surface; `-m slow` makes it 10 000. A refusal is a ValueError (an OSError for files); in the command line
one line on standard error and code 2. Anything else is a traceback that somebody would see.
"""

import json
import math
import sqlite3

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from discreet import cli, planner
from discreet.ledger import Account, Budget, open_account
from discreet.mechanism import loop
from discreet.mechanism.checkpoint import Checkpoint
from discreet.plan import Plan
from discreet.release import Release
from discreet.schema import Schema
from tests import tiny

MANY = [200, pytest.param(10_000, marks=pytest.mark.slow)]
numbers = st.one_of(
    st.floats(),
    st.integers(-10, 10**9),
    st.sampled_from([0.0, -0.0, 1.0, 1e-300, 1e300, math.nan, math.inf, -math.inf]),
)
text = st.text(max_size=12)
anything = st.one_of(numbers, text, st.none(), st.booleans(), st.lists(numbers, max_size=3))


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


@pytest.mark.parametrize("count", MANY)
def test_the_command_line_refuses_in_one_line_and_writes_nothing(count, tmp_path, monkeypatch, capsys):
    def reached(*_, **__):
        raise Reached("reached")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loop, "run", reached)
    monkeypatch.setitem(planner.METHODS, "dpvi", lambda *_: tiny.choice())
    tiny.SCHEMA.save("s.toml")
    names = list(tiny.table())
    lines = [",".join(names), *(",".join(map(str, row)) for row in zip(*tiny.table().values(), strict=True))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    usual = {"--schema": "s.toml", "--outcome": "ill", "--family": "logistic", "--epsilon": "1", "--delta": "1e-4"}
    usual |= {"--out": "out", "--covariates": "age,sex", "--method": "dpvi", "--reading": "noise-aware"}
    usual |= {"--solver": "full", "--simulate": "3"}
    odd = st.one_of(text, numbers.map(str), st.sampled_from(["s.toml", "t.csv", "-1", "--out", "age,age", "ill", "\0"]))
    before = sorted(path.name for path in tmp_path.iterdir())

    @each(count)
    @given(st.dictionaries(st.sampled_from(sorted(usual)), odd, max_size=3), st.sampled_from(["t.csv", "s.toml", "no"]))
    def check(changes, table):
        if "\0" in "".join(changes.values()):
            return  # no shell can pass it
        options = [part for pair in (usual | changes).items() for part in pair]
        with pytest.raises(SystemExit) as done:
            cli.run(["fit", table, *options])
        out, err = capsys.readouterr()
        assert done.value.code == 2
        assert out == ""
        assert "Traceback" not in err
        refusals = [line for line in err.splitlines() if line.startswith("error: ")]
        assert len(refusals) == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == before

    check()
