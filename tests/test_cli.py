import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from discreet import cli, fitting, planner
from discreet.ledger import Account
from discreet.posterior.types import Posterior
from discreet.release import Release
from discreet.report.folder import save_run
from discreet.schema import Schema
from tests import tiny

SCHEMA = """
[columns.age]
bounds = [20, 60]
[columns.sex]
levels = ["f", "m"]
[columns.ill]
levels = ["no", "yes"]
[columns.visits]
bounds = [0, 9]
integer = true
"""
FIT = {"--schema": "ok.toml", "--outcome": "ill", "--family": "logistic", "--covariates": "age,sex"}
FIT |= {"--epsilon": "1", "--delta": "1e-4", "--out": "out", "--method": "dpvi"}
DEFAULT = {name: value for name, value in FIT.items() if name != "--method"}
ACCOUNT = {"--epsilon": "1", "--delta": "1e-5", "--sampling": "0.1", "--steps": "10"}

pytestmark = pytest.mark.usefixtures("blocks_one_by_one")


def write(path, rows, names=("age", "sex", "ill", "visits")):
    with Path(path).open("w", newline="") as lines:
        csv.writer(lines).writerows([names, *rows])


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with good and bad tables and schemas, and the tiny plan for every fit by DPVI."""
    monkeypatch.chdir(tmp_path)
    rows = [(age, sex, ill, 2) for age, sex, ill in zip(*tiny.table().values(), strict=True)]
    write("t.csv", rows)
    write("empty.csv", [])
    write("missing.csv", [*rows, (None, "f", "no", 1)])
    write("level.csv", [*rows, (30, "x", "no", 1)])
    Path("nothing.csv").write_bytes(b"")
    Path("binary.csv").write_bytes(bytes(range(256)) * 20)
    Path("ragged.csv").write_text("age,sex,ill\n1,f,no\n2,m\n")
    Path("ok.toml").write_text(SCHEMA)
    Path("guess.toml").write_text(SCHEMA + "confirmed = false\n")
    Path("bad.toml").write_text("[columns.age]\nbounds = [60, 20]\n")
    monkeypatch.setitem(planner.METHODS, "dpvi", lambda *_: tiny.choice())
    return tmp_path


def call(capsys, *arguments, **options):
    """Exit code, standard output and standard error of one command."""
    given = [part for pair in options.items() for part in pair]
    with pytest.raises(SystemExit) as done:
        cli.run([*arguments, *given])
    return done.value.code, *capsys.readouterr()


def tree(folder):
    """All but the ledger, whose own files SQLite comes and goes with."""
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if not path.name.startswith("l.db")}


def assert_refused(capsys, folder, reason, *arguments, **options):
    """One line on standard error, code 2, nothing on standard output, nothing written."""
    before = tree(folder)
    code, out, err = call(capsys, *arguments, **options)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert reason in err
    assert tree(folder) == before


@pytest.mark.parametrize(
    ("table", "changes", "reason"),
    [
        ("nowhere.csv", {}, "nowhere.csv is not a file: check the path"),
        ("ok.toml", {}, "give a .csv or .parquet file"),
        ("binary.csv", {}, "UTF-8"),
        ("ragged.csv", {}, "equally many cells"),
        ("nothing.csv", {}, "no column"),
        ("empty.csv", {}, "no rows"),
        ("missing.csv", {}, "1 missing values: set missing"),
        ("level.csv", {}, "undeclared levels"),
        ("t.csv", {"--schema": "nowhere.toml"}, "nowhere.toml cannot be read"),
        ("t.csv", {"--schema": "t.csv"}, "not TOML"),
        ("t.csv", {"--schema": "bad.toml"}, "low < high"),
        ("t.csv", {"--schema": "guess.toml", "--covariates": "visits"}, "unconfirmed"),
        ("t.csv", {"--outcome": "wat"}, "no column 'wat'"),
        ("t.csv", {"--outcome": "age", "--covariates": "sex"}, "age"),
        ("t.csv", {"--covariates": "age,wat"}, "no column 'wat'"),
        ("t.csv", {"--covariates": "age, age"}, "twice"),
        ("t.csv", {"--covariates": "ill"}, "also a covariate"),
        ("t.csv", {"--covariates": " "}, "names no column"),
        ("t.csv", {"--covariates": ""}, "names no column"),
        ("t.csv", {"--family": "cauchit"}, "'cauchit' must be one of"),
        ("t.csv", {"--family": "poisson"}, "integer column"),
        ("t.csv", {"--family": "gaussian"}, "numeric column"),
        ("t.csv", {"--epsilon": "abc"}, "--epsilon"),
        ("t.csv", {"--simulate": "half"}, "--simulate"),
        ("t.csv", {"--out": "ok.toml"}, "out=ok.toml exists: choose another"),
        ("t.csv", {"--out": "t.csv/out"}, "out=t.csv/out cannot be written"),
        ("t.csv", {"--out": "/proc/nowhere/out"}, "cannot be written"),
        ("t.csv", {"--bogus": "1"}, "--bogus"),
        ("t.csv", {"--solver": "gibbs"}, "solver='gibbs' must be one of full, exact, nuts, laplace"),
        ("t.csv", {"--reading": "median"}, "reading='median' must be one of noise-aware"),
        ("t.csv", {"--reading": "last iterate", "--solver": "exact"}, "solves nothing"),
        ("t.csv", {"--method": "vi"}, "method='vi' must be one of one-step, dpvi, sep, score"),
        ("t.csv", {"--method": "one-step", "--solver": "full"}, "one step is read noise-aware"),
        ("t.csv", {"--ledger": "l.db"}, "--ledger and --dataset go together"),
        ("t.csv", {"--dataset": "people"}, "--ledger and --dataset go together"),
        ("t.csv", {"--ledger": "l.db", "--dataset": "people"}, "there is no ledger at"),
        ("t.csv", {"--ledger": "ok.toml", "--dataset": "people"}, "cannot be used as a ledger"),
    ],
)
def test_fit_refuses_before_any_row_is_asked(here, capsys, monkeypatch, table, changes, reason):
    monkeypatch.setattr(fitting, "run_phases", lambda *_, **__: pytest.fail("the rows were asked"))
    assert_refused(capsys, here, reason, "fit", table, **FIT | changes)


@pytest.mark.parametrize("given", [FIT, DEFAULT], ids=["dpvi", "default"])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"--epsilon": "0"}, "epsilon=0.0 must be positive"),
        ({"--epsilon": "-1"}, "epsilon=-1.0 must be positive"),
        ({"--epsilon": "nan"}, "epsilon=nan must be positive"),
        ({"--delta": "0"}, "delta=0.0 must lie in (0, 1)"),
    ],
)
def test_fit_refuses_an_impossible_budget(here, capsys, monkeypatch, changes, reason, given):
    """With the real planner, that of DPVI cut short: the budget is judged there."""
    from discreet.accounting import calibrate

    monkeypatch.setitem(planner.METHODS, "dpvi", lambda *given: calibrate(tiny.choice().plan, *given[3:]))
    assert_refused(capsys, here, reason, "fit", "t.csv", **given | changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"--epsilon": "0"}, "epsilon=0.0"),
        ({"--delta": "1"}, "delta=1.0"),
        ({"--sampling": "2"}, "sampling_prob=2.0"),
        ({"--sampling": "nan", "--rows": "100"}, "sampling_prob=nan"),
        ({"--sampling": "5", "--rows": "100"}, "sampling_prob=5.0"),
        ({"--steps": "0"}, "steps=0"),
        ({"--steps": "1.5"}, "--steps"),
        ({"--rows": "0"}, "num_rows=0"),
    ],
)
def test_account_refuses_what_is_no_plan(here, capsys, changes, reason):
    assert_refused(capsys, here, reason, "account", **ACCOUNT | changes)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["schema"], "table"),
        (["schema", "nowhere.csv"], "check the path"),
        (["schema", "nothing.csv"], "no columns"),
        (["schema", "empty.csv"], "no rows"),
        (["schema", "t.csv", "--out", "ok.toml"], "exists: choose another"),
        (["schema", "t.csv", "--out", "t.csv/s.toml"], "cannot be written"),
        (["frobnicate"], "frobnicate"),
        (["demo", "--out", "."], "choose another folder"),
        (["demo", "--out", "t.csv"], "not a folder"),
        (["demo", "--out", "/proc/nowhere/x"], "cannot be written"),
    ],
)
def test_other_commands_refuse_in_one_line(here, capsys, arguments, reason):
    assert_refused(capsys, here, reason, *arguments)


def test_a_draft_is_refused_until_a_person_has_confirmed_it(here, capsys):
    code, toml, _ = call(capsys, "schema", "t.csv")
    assert code == 0
    assert call(capsys, "schema", "t.csv", "--out", "deep/s.toml")[:2] == (0, "")
    assert Path("deep/s.toml").read_text() == toml
    assert set(Schema.load("deep/s.toml").unconfirmed) == {"age", "sex", "ill", "visits"}
    assert_refused(capsys, here, "unconfirmed", "fit", "t.csv", **FIT | {"--schema": "deep/s.toml"})
    Path("s.toml").write_text(toml.replace("confirmed = false", ""))
    assert Schema.load("s.toml").unconfirmed == ()


@pytest.mark.parametrize(("given", "phases"), [(FIT, 1), (DEFAULT, 4)], ids=["dpvi", "default"])
def test_fit_writes_a_private_run_and_says_what_it_modelled(here, capsys, given, phases):
    code, out, err = call(capsys, "fit", "t.csv", **given | {"--out": "deep/out"})
    assert code == 0
    assert all(line.startswith("warning: ") for line in err.splitlines())  # noise is fresh, and may look odd
    assert "log odds of ill = yes against no" in out
    assert "NOT PRIVATE" not in out
    assert "wrote deep/out/" in out
    for label in ("Intercept", "age", "sex[m]"):
        assert label in out
    assert Posterior.load("deep/out/posterior.nc").guarantee.private
    assert len(Release.load("deep/out/release").plans) == phases
    report = Path("deep/out/report.html").read_text(encoding="utf-8")
    assert "log odds of ill = yes against no" in report
    assert ("phase 4" in report) == (phases == 4)


def test_a_rehearsal_as_json_is_one_object_that_says_it_is_not_private(here, capsys):
    code, out, err = call(capsys, "fit", "t.csv", "--json", **FIT | {"--simulate": "3"})
    facts = json.loads(out)
    assert (code, err) == (0, "")
    assert facts["private"] is False
    assert facts["guarantee"]["noise"] == "simulated"
    assert facts["model"]["modelled_level"] == "yes"
    assert facts["out"] == "out"
    assert facts["summary"] == Posterior.load("out/posterior.nc").summary().to_dict(orient="index")
    assert "NOT PRIVATE" in Path("out/report.html").read_text(encoding="utf-8")


def cut_short(capsys, monkeypatch, given):
    """A fit that is interrupted halfway: what it has left."""
    monkeypatch.setattr(cli, "_progress", lambda _: until(50))
    code, out, _ = call(capsys, "fit", "t.csv", **given)
    monkeypatch.undo()
    assert (code, out) == (cli.INTERRUPTED, "")
    return Path("out.checkpoint")


def until(block):
    def progress(blocks):
        for index in blocks:
            if index == block:
                raise KeyboardInterrupt
            yield index

    return progress


@pytest.mark.parametrize("given", [FIT, DEFAULT], ids=["dpvi", "default"])
def test_a_fit_that_was_cut_short_goes_on_where_it_was_and_is_charged_once(here, capsys, monkeypatch, given):
    call(capsys, "ledger", "init", "l.db", "people", **{"--epsilon": "1.2", "--delta": "1e-4", "--rows": "300"})
    paying = {"--ledger": "l.db", "--dataset": "people"}
    folder = cut_short(capsys, monkeypatch, given | paying)
    monkeypatch.chdir(here)
    monkeypatch.setitem(planner.METHODS, "dpvi", lambda *_: tiny.choice())
    assert (folder / "chunk-000049.npz").exists()
    (entry,) = Account(here / "l.db", "people").entries()
    assert (entry.state, entry.purpose) == ("intent", "Logistic regression of ill")
    assert_refused(capsys, here, "is of a run that was cut short", "fit", "t.csv", **given | paying)
    shutil.copytree(folder, "elsewhere.checkpoint")
    assert_refused(capsys, here, "was moved", "resume", "elsewhere.checkpoint")
    code, out, _ = call(capsys, "resume", str(folder))
    assert code == 0
    assert "NOT PRIVATE" not in out
    assert not folder.exists()
    assert Posterior.load("out/posterior.nc").guarantee.private
    assert [entry.state for entry in Account(here / "l.db", "people").entries()] == ["committed"]
    assert_refused(capsys, here, "would have spent", "fit", "t.csv", **given | paying | {"--out": "more"})


@pytest.fixture(params=[FIT, DEFAULT], ids=["dpvi", "default"])
def uncommitted(request, here, capsys, monkeypatch):
    """A run that was saved and then killed, before its entry was committed."""
    call(capsys, "ledger", "init", "l.db", "people", **{"--epsilon": "1.2", "--delta": "1e-4", "--rows": "300"})
    with monkeypatch.context() as patch:
        patch.setattr("discreet.mechanism.checkpoint.Checkpoint.finish", lambda _: cli._fail("killed", 1))
        assert call(capsys, "fit", "t.csv", **request.param | {"--ledger": "l.db", "--dataset": "people"})[0] == 1
    assert Path("out/posterior.nc").exists()
    return Account(here / "l.db", "people")


def test_a_run_that_was_saved_and_not_committed_is_only_ended(uncommitted, capsys, monkeypatch):
    before = {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()}
    monkeypatch.setattr(fitting, "run_phases", lambda *_, **__: pytest.fail("asked"))
    code, out, err = call(capsys, "resume", "out.checkpoint")
    assert code == 0
    assert "out was saved before the run was cut short: only its end was missing" in err
    assert "Intercept" in out
    assert [entry.state for entry in uncommitted.entries()] == ["committed"]
    assert not Path("out.checkpoint").exists()
    assert before == {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()}


def test_a_folder_that_is_not_the_whole_run_s_own_commits_nothing(uncommitted, capsys):
    """In part, of two runs, damaged, of another run, and no folder at all."""
    out, whole = Path("out"), Path("whole")
    out.rename(whole)
    changes = [
        lambda: (out / "report.html").unlink(),
        lambda: (out / "guarantee.json").write_text("{}"),
        lambda: (out / "posterior.nc").write_bytes((whole / "posterior.nc").read_bytes()[:900]),
        lambda: shutil.rmtree(out / "release") or tiny.posterior().release.save(out / "release"),
        lambda: shutil.rmtree(out) or save_run(out, tiny.posterior(), "<html>"),
        lambda: shutil.rmtree(out) or out.write_text("hello"),
    ]
    for change in changes:
        shutil.copytree(whole, out)
        change()
        assert_refused(capsys, Path(), "out exists: choose another", "resume", "out.checkpoint")
        assert [entry.state for entry in uncommitted.entries()] == ["intent"]
        assert Path("out.checkpoint/secret.npz").exists()
        shutil.rmtree(out) if out.is_dir() else out.unlink()


@pytest.mark.parametrize("what", ["nowhere", "t.csv", "."])
def test_what_is_no_checkpoint_is_not_resumed(here, capsys, what):
    assert_refused(capsys, here, "is not the checkpoint of a fit", "resume", what)


def test_tune_states_its_price_before_it_runs_and_writes_the_best_trial(here, capsys):
    call(capsys, "ledger", "init", "l.db", "people", **{"--epsilon": "2", "--delta": "1e-4"})
    paid = {"--ledger": "l.db", "--dataset": "people", "--trials": "1.5", "--clip": "0.5,1"}
    code, out, err = call(capsys, "tune", "t.csv", **DEFAULT | paid)  # of DPVI: one step has nothing to search for
    assert code == 0
    assert "before it runs: 1.5 trials on average, of 2 candidates" in err
    assert "chosen: clip norm × " in err
    assert "δ = 0.0001), zero-out, RDP" in out
    saved = Posterior.load("out/posterior.nc")
    assert 0.99 < saved.guarantee.epsilon <= 1
    assert saved.guarantee.private
    assert "the best of 1.5 trials" in saved.guarantee.event
    assert "the best of 1.5 trials" in Path("out/report.html").read_text(encoding="utf-8")
    (entry,) = Account(here / "l.db", "people").entries()
    assert entry.state == "committed"
    _, out, _ = call(capsys, "ledger", "history", "l.db", "people")
    for word in ("search over", "committed", "added up"):
        assert word in out


def test_a_search_is_saved_before_it_is_committed(here, capsys, monkeypatch):
    def full(*_):
        assert [entry.state for entry in Account(here / "l.db", "people").entries()] == ["intent"]
        raise OSError(28, "No space left on device", "out")

    call(capsys, "ledger", "init", "l.db", "people", **{"--epsilon": "2", "--delta": "1e-4"})
    paid = {"--ledger": "l.db", "--dataset": "people", "--trials": "1.5", "--clip": "0.5,1"}
    monkeypatch.setattr("discreet.tune._trial", lambda *_: (tiny.posterior(), 1.0, "clip norm × 1"))
    monkeypatch.setattr("discreet.report.folder.save_run", full)
    code, out, err = call(capsys, "tune", "t.csv", **FIT | paid)
    assert code == 1
    assert "Intercept" in out
    assert "the budget is spent: keep the numbers printed above" in err
    (entry,) = Account(here / "l.db", "people").entries()
    assert (entry.state, entry.purpose) == (
        "intent", "Logistic regression of ill: search over clip norm × 0.5, clip norm × 1"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("moment", "paying", "said"),
    [
        ("_trial", True, "no results were written; a search cannot be resumed: it stays charged"),
        ("_how_many", False, "no results were written; a search cannot be resumed: if rows had been asked"),
        ("check", True, "no results were written; a search cannot be resumed: it was not charged"),
    ],
)
def test_an_interrupted_search_says_what_is_true(here, capsys, monkeypatch, moment, paying, said):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"discreet.tune.{moment}", interrupted)
    call(capsys, "ledger", "init", "l.db", "people", **{"--epsilon": "2", "--delta": "1e-4"})
    paid = {"--ledger": "l.db", "--dataset": "people"} if paying else {}
    code, out, err = call(capsys, "tune", "t.csv", **FIT | paid | {"--trials": "1.5", "--clip": "0.5,1"})
    assert (code, out) == (cli.INTERRUPTED, "")
    assert f"error: interrupted: {said}" in err
    assert "discreet resume" not in err
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"--clip": "1"}, "a search needs two or more"),
        ({"--clip": "1,x"}, "clip='1,x' must be numbers"),
        ({"--clip": "1,1"}, "must be distinct positive numbers"),
        ({"--trials": "1"}, "mean_trials=1.0 must exceed 1"),
        ({"--method": "one-step"}, "ask in several phases"),
        ({"--law": "fixed"}, "law=fixed must be one of"),
        ({"--ledger": "nowhere.db", "--dataset": "x"}, "there is no ledger"),
        ({"--ledger": "nowhere.db"}, "--ledger and --dataset go together"),
    ],
)
def test_tune_refuses_before_any_row_is_asked(here, capsys, monkeypatch, changes, reason):
    monkeypatch.setattr(fitting, "run_phases", lambda *_, **__: pytest.fail("asked"))
    assert_refused(capsys, here, reason, "tune", "t.csv", **FIT | changes)


def test_a_schema_with_a_unit_is_drafted_and_fitted_by_unit(here, capsys):
    rows = [(*row, number // 2) for number, row in enumerate(zip(*tiny.table().values(), strict=True))]
    write("visits.csv", rows, ("age", "sex", "ill", "person"))
    code, out, _ = call(capsys, "schema", "visits.csv", **{"--unit": "person"})
    assert code == 0
    assert '[unit]\ncolumn = "person"\nmost = 2\ntypical = 2.0\nconfirmed = false' in out
    Path("units.toml").write_text(SCHEMA + '[unit]\ncolumn = "person"\nmost = 2\ntypical = 2\n')
    assert_refused(
        capsys, here, "plan.num_rows=300 but the table has 150 persons", "fit", "visits.csv",
        **FIT | {"--schema": "units.toml"},
    )  # fmt: skip


def test_a_ledger_is_opened_shown_and_exported(here, capsys):
    budget = {"--epsilon": "2", "--delta": "1e-5"}
    code, out, err = call(capsys, "ledger", "init", "l.db", "people", **budget)
    assert (code, err) == (0, "")
    assert "nothing spent" in out
    assert "\nnot adaptive: decide how much each fit spends before" in out
    out = call(capsys, "ledger", "init", "other.db", "people", "--adaptive", **budget)[1]
    assert "\nadaptive: results may decide how much is spent next" in out
    account = Account(here / "l.db", "people")
    account.commit(account.charge(tiny.choice().plan, "first"))
    account.charge(tiny.choice().plan, "second")
    _, out, _ = call(capsys, "ledger", "show", "l.db")
    assert "people" in out
    assert f"{account.spent():.4g}" in out
    (facts,) = json.loads(call(capsys, "ledger", "show", "l.db", "--json")[1])
    assert (facts["name"], facts["fits"], facts["spent"]) == ("people", 2, account.spent())
    _, out, _ = call(capsys, "ledger", "history", "l.db", "people")
    for word in ("first", "second", "committed", "intent", "composed, not added up"):
        assert word in out
    exported = json.loads(call(capsys, "ledger", "export", "l.db")[1])
    assert [entry["purpose"] for entry in exported["accounts"][0]["entries"]] == ["first", "second"]
    assert call(capsys, "ledger", "export", "l.db", **{"--out": "l.json"})[0] == 0
    assert json.loads(Path("l.json").read_text()) == exported


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("init", "l.db", "people", "--epsilon", "0", "--delta", "1e-5"), "epsilon=0.0 must be positive"),
        (("init", "t.csv", "people", "--epsilon", "1", "--delta", "1e-5"), "cannot be used as a ledger"),
        (("show", "nowhere.db"), "there is no ledger at nowhere.db"),
        (("history", "nowhere.db", "people"), "there is no ledger at nowhere.db"),
        (("export", "t.csv"), "cannot be used as a ledger"),
    ],
)
def test_ledgers_that_are_none_are_refused(here, capsys, arguments, reason):
    assert_refused(capsys, here, reason, "ledger", *arguments)


def test_a_delta_of_one_row_is_warned_of(here, capsys, monkeypatch):
    monkeypatch.setattr("discreet.fitting.fit", lambda *_, **__: tiny.posterior())
    code, _, err = call(capsys, "fit", "t.csv", **FIT | {"--delta": "0.01"})
    assert code == 0
    assert err.startswith("warning: delta=0.01 is at least 1/300")
    assert "protects nobody" in err
    assert err.count("\n") == 1
    code, _, err = call(capsys, "account", **ACCOUNT | {"--delta": "0.1", "--rows": "100"})
    assert code == 0
    assert "1/100" in err


def test_what_was_bought_is_shown_even_if_the_disk_is_full(here, capsys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "out")

    monkeypatch.setattr("discreet.fitting.fit", lambda *_, **__: tiny.posterior())
    monkeypatch.setattr("discreet.report.folder.save_run", full)
    code, out, err = call(capsys, "fit", "t.csv", **FIT)
    assert code == 1
    assert "Intercept" in out
    assert "wrote" not in out
    assert "No space left" in err
    assert "the budget is spent" in err


def test_covariates_may_have_spaces_and_quotes_around_them(here, capsys, monkeypatch):
    seen = []

    def fit(model, *_, **__):
        seen.append(model.description["covariates"])
        return tiny.posterior()

    monkeypatch.setattr("discreet.fitting.fit", fit)
    call(capsys, "fit", "t.csv", **FIT | {"--covariates": 'sex , "age"', "--out": "a"})
    call(capsys, "fit", "t.csv", **{name: value for name, value in FIT.items() if name != "--covariates"})
    assert seen == [["sex", "age"], ["age", "sex", "visits"]]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, EOFError])
def test_an_interrupt_is_an_error_of_one_line(here, capsys, monkeypatch, stop):
    def interrupted(*_, **__):
        raise stop

    monkeypatch.setattr("discreet.fitting.fit", interrupted)
    code, out, err = call(capsys, "fit", "t.csv", **FIT)
    assert (code, out) == (130, "")
    assert err.strip().startswith("error: interrupted: no results were written")
    assert not Path("out").exists()


def test_a_bug_is_not_dressed_up_and_its_traceback_shows_no_values(here, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr("discreet.fitting.fit", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.run(["fit", "t.csv", *(part for pair in FIT.items() for part in pair)])
    assert cli.app.pretty_exceptions_enable is False


def test_account_prints_the_noise_that_meets_the_budget(capsys):
    code, out, err = call(capsys, "account", **ACCOUNT)
    assert (code, err) == (0, "")
    assert out.startswith("σ = ")
    code, text, _ = call(capsys, "account", "--json", **ACCOUNT)
    facts = json.loads(text)
    assert code == 0
    assert facts["epsilon"] <= 1
    assert f"{facts['noise_multiplier']:.6g}" in out


def test_help_and_version(capsys):
    assert call(capsys, "--version")[:2] == (0, "0.1.0\n")
    code, out, err = call(capsys)
    assert (code, err) == (0, "")
    assert all(name in out for name in ("schema", "account", "fit", "demo"))


def test_a_terminal_without_greek_letters_loses_no_run(tmp_path):
    """The installed command in a pipe that knows ASCII only."""
    options = [part for pair in ACCOUNT.items() for part in pair]
    command = [sys.executable, "-m", "discreet.cli", "account", *options]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "noise multiplier" in done.stdout
