"""`discreet synth` and `discreet pool`: from the folder of a run to pooled estimates."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from discreet import cli
from discreet.families.exponential import beta_bernoulli
from discreet.fitting import encode, fit, simulated
from discreet.model import covariates_of
from discreet.planner import choose
from discreet.posterior.reading import naive_posterior
from discreet.report.folder import load_run, save_run
from discreet.schema import Schema
from tests import tiny
from tests.test_cli import assert_refused, call, write

ASK = {"-n": "300", "-m": "4", "--out": "out"}
PUBLIC = {"--covariates": "public.csv"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of fits: of a regression, of its naive reading, of a model of whole rows, and of another's code."""
    folder = tmp_path_factory.mktemp("runs")
    sharp = {"epsilon": 20.0, "delta": tiny.DELTA, "noise": simulated(1), "draws": 500}
    choice = choose(tiny.MODEL, tiny.SCHEMA, 3000, 20.0, tiny.DELTA, steps=600)
    regression = fit(tiny.MODEL, tiny.rows(3000), **sharp, choice=choice)
    schema = Schema(tiny.SCHEMA.columns[2:])
    coin = beta_bernoulli(2, 2, "ill")
    choice = choose(coin, schema, tiny.NUM_ROWS, tiny.EPSILON, tiny.DELTA, steps=tiny.STEPS)
    whole = {"epsilon": tiny.EPSILON, "delta": tiny.DELTA, "choice": choice, "noise": simulated(1), "draws": 500}
    save_run(folder / "regression", regression, "<html>")
    save_run(folder / "naive", naive_posterior(regression), "<html>")
    save_run(folder / "coin", fit(coin, encode(tiny.table(), schema), **whole), "<html>")
    return folder


@pytest.fixture
def here(runs, tmp_path, monkeypatch):
    shutil.copytree(runs, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    public = tiny.table(3000)
    write("public.csv", list(zip(public["age"], public["sex"], strict=True)), ("age", "sex"))
    return tmp_path


def changed(old, new, path="runs/regression/schema.toml"):
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new))


def test_a_run_of_whole_rows_gives_tables_and_says_what_they_promise(here, capsys):
    code, out, err = call(capsys, "synth", "runs/coin", **ASK | {"--seed": "3"})
    assert code == 0
    assert "NOT PRIVATE: simulated noise" in out
    assert "wrote out/: 4 tables of 300 rows, synthetic.json" in out
    assert "m=4 is few" in err
    schema = load_run(here / "runs/coin").schema
    shares = [schema.encode(f"out/table-00{number}.csv")["ill"].mean() for number in (1, 2, 3, 4)]
    assert abs(np.mean(shares) - np.mean(np.array(tiny.table()["ill"]) == "yes")) < 0.3
    label = json.loads(Path("out/synthetic.json").read_text())
    assert label["model"] == {"family": "beta-bernoulli", "a": 2, "b": 2, "column": "ill"}
    first = Path("out/table-001.csv").read_bytes()
    assert call(capsys, "synth", "runs/coin", **ASK | {"--seed": "3", "--out": "again"})[0] == 0
    assert Path("again/table-001.csv").read_bytes() == first


def test_as_json_it_is_the_label(here, capsys):
    code, out, _ = call(capsys, "synth", "runs/coin", "--json", **ASK | {"--format": "parquet", "--out": "deep/out"})
    facts = json.loads(out)
    assert (code, facts["n"], facts["m"], facts["num_rows"], facts["out"]) == (0, 300, 4, 300, "deep/out")
    assert sorted(path.name for path in Path("deep/out").iterdir()) == ["synthetic.json", *facts["files"]]
    assert facts["files"][0] == "table-001.parquet"


def test_from_a_run_to_pooled_coefficients(here, capsys):
    """A logistic regression of each table by statsmodels: the pooled intervals are about those of the posterior.

    A mean of 60 tables is within .2 posterior sds, and standard errors are within 40 %, about one sd each: 5 and 3 sds.
    """
    import pandas
    import statsmodels.api as sm

    assert call(capsys, "synth", "runs/regression", **ASK | PUBLIC | {"-n": "3000", "-m": "60", "--seed": "1"})[0] == 0
    lines = []
    for path in sorted(Path("out").glob("*.csv")):
        table = pandas.read_csv(path)
        x = pandas.DataFrame({"Intercept": 1.0, "age": table["age"] - 40, "sex[m]": (table["sex"] == "m") * 1.0})
        found = sm.Logit((table["ill"] == "yes") * 1.0, x).fit(disp=0)
        lines += [(path.name, term, found.params[term], found.bse[term]) for term in x]
    write("results.csv", lines, ("table", "term", "estimate", "std_error"))
    code, out, _ = call(capsys, "pool", "results.csv", "--json", **{"--tables": "out"})
    assert code == 0
    facts = json.loads(out)
    summary = load_run(here / "runs/regression").summary()
    assert (facts["m"], [term["term"] for term in facts["terms"]]) == (60, list(summary.index))
    for term in facts["terms"]:
        ours = summary.loc[term["term"]]
        assert abs(term["estimate"] - ours["mean"]) < ours["sd"]
        assert 0.4 < term["std_error"] / ours["sd"] < 2 or term["adjusted"]
    code, out, _ = call(capsys, "pool", "results.csv", **{"--tables": "out", "--prob": "0.5"})
    assert code == 0
    for word in ("sex[m]", "50% interval", "pooled over 60 synthetic tables"):
        assert word in out


def test_a_variance_that_is_not_positive_is_told(here, capsys):
    write("r.csv", [(1, "a", 1, 0.5), (2, "a", 1, 0.5)], ("table", "term", "estimate", "variance"))
    assert_refused(capsys, here, "not positive for a: give n and num_rows", "pool", "r.csv")
    code, _, err = call(capsys, "pool", "r.csv", **{"-n": "20", "--rows": "10"})
    assert code == 0
    assert "warning: a: the pooled variance was not positive" in err


@pytest.mark.parametrize(
    ("run", "changes", "reason"),
    [
        ("coin", {"-n": "0"}, "n=0 must be a whole number ≥ 1"),
        ("coin", {"-n": "-5"}, "n=-5 must be"),
        ("coin", {"-n": "2.5"}, "-n"),
        ("coin", {"-m": "0"}, "m=0 must be a whole number ≥ 1"),
        ("coin", {"-m": "many"}, "-m"),
        ("coin", {"-m": "501"}, "m=501 exceeds the 500 draws"),
        ("coin", {"--format": "xls"}, "format='xls' must be one of csv, parquet"),
        ("coin", {"--out": "runs"}, "out=runs exists: choose another"),
        ("coin", {"--out": "public.csv/out"}, "cannot be written"),
        ("coin", {"--seed": "x"}, "--seed"),
        ("coin", {"--seed": "-1"}, "seed=-1 must be a whole number ≥ 0"),
        ("coin", PUBLIC, "makes every column itself"),
        ("regression", {}, "says how ill depends on age, sex, not how these are distributed: fit a joint model"),
        ("regression", {"--covariates": "nowhere.csv"}, "nowhere.csv is not a file"),
        ("regression", {"--covariates": "levels.csv"}, "undeclared levels"),
        ("regression", {"--covariates": "short.csv"}, "no column 'sex'"),
        ("naive", PUBLIC, "only for tables drawn from a noise-aware posterior"),
        ("nowhere", {}, "not the folder of a whole run"),
        (".", {}, "not the folder of a whole run"),
    ],
)
def test_synth_refuses_and_writes_nothing(here, capsys, run, changes, reason):
    write("levels.csv", [(30, "x")], ("age", "sex"))
    write("short.csv", [(30,)], ("age",))
    assert_refused(capsys, here, reason, "synth", f"runs/{run}", **ASK | changes)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('["f", "m"]', '["f", "m", "x"]', "declared otherwise: sex"),
        ('["f", "m"]', '["m", "f"]', "declared otherwise: sex"),
        ("[20, 60]", "[20, 70]", "declared otherwise: age"),
        ("[columns.sex]", "[columns.gender]", "no column 'sex'"),
        ("[columns.sex]", '[columns.more]\nlevels = ["a", "b"]\n[columns.sex]', "extra: more"),
    ],
)
def test_a_schema_that_is_not_the_fit_s_is_refused(here, capsys, old, new, reason):
    changed(old, new)
    assert_refused(capsys, here, reason, "synth", "runs/regression", **ASK | PUBLIC)


def test_a_run_whose_model_is_code_is_refused_with_the_remedy(here, capsys, monkeypatch):
    monkeypatch.setattr("discreet.report.folder.described", lambda *_: None)
    assert_refused(capsys, here, "Posterior.load(path, model=…, schema=…)", "synth", "runs/coin", **ASK)


@pytest.mark.parametrize(
    ("arguments", "changes", "reason"),
    [
        (["nowhere.csv"], {}, "nowhere.csv: No such file"),
        (["r.csv"], {"--prob": "1"}, "prob=1.0 must lie in (0, 1)"),
        (["r.csv"], {"--tables": "runs"}, "has no synthetic.json"),
        (["one.csv"], {}, "1 tables cannot be pooled"),
        (["r.csv", "r.csv"], {}, "is there twice"),
        (["public.csv"], {}, "no column term, estimate, variance or std_error; it has age, sex"),
        (["nan.csv"], {}, "values that are not finite"),
        ([], {}, "results"),
    ],
)
def test_pool_refuses_in_one_line(here, capsys, arguments, changes, reason):
    names = ("table", "term", "estimate", "variance")
    write("r.csv", [(1, "a", 1, 0.5), (2, "a", 9, 0.5)], names)
    write("one.csv", [(1, "a", 1, 0.5)], names)
    write("nan.csv", [(1, "a", 1, 0.5), (2, "a", "nan", 0.5)], names)
    assert_refused(capsys, here, reason, "pool", *arguments, **changes)


def test_pool_takes_sizes_from_one_place_and_refuses_naive_tables(here, capsys):
    write("r.csv", [(1, "a", 1, 0.5), (2, "a", 9, 0.5)], ("table", "term", "estimate", "variance"))
    assert call(capsys, "synth", "runs/coin", **ASK)[0] == 0
    assert_refused(capsys, here, "leave -n and --rows out", "pool", "r.csv", **{"--tables": "out", "-n": "5"})
    label = json.loads(Path("out/synthetic.json").read_text()) | {"noise_aware": False, "method": "last iterate"}
    Path("out/synthetic.json").write_text(json.dumps(label))
    assert_refused(capsys, here, "last iterate; pooling is valid only", "pool", "r.csv", **{"--tables": "out"})


def test_results_of_several_files_are_of_as_many_tables(here, capsys):
    for number, estimate in enumerate((1, 2, 4)):
        with Path(f"{number}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("term", "estimate", "std.error"), ("a", estimate, 0.5)])
    code, out, _ = call(capsys, "pool", "0.csv", "1.csv", "2.csv", "--json")
    (term,) = json.loads(out)["terms"]
    assert (code, term["estimate"], term["within"]) == (0, pytest.approx(7 / 3), 0.25)


@pytest.mark.parametrize("components", [None, 1, 3])
def test_with_components_whole_rows_are_modelled(here, components):
    """So that tables can be drawn from the run: of the same columns, and no others."""
    path = here / "people.toml"
    path.write_text(tiny.SCHEMA.to_toml())
    model, declared = cli._declared(path, "ill", "logistic", "sex", components)
    assert declared.names == ("sex", "ill")
    assert covariates_of(model) == ([] if components else ["sex"])
    assert model.labels["coefficients"] == ("Intercept", "sex[m]")
    assert (model.description["family"] == "mixture") == bool(components)


@pytest.mark.parametrize("components", [0, -2])
def test_components_are_at_least_one(here, components):
    path = here / "people.toml"
    path.write_text(tiny.SCHEMA.to_toml())
    with pytest.raises(ValueError, match=f"components={components} must be a whole number, at least 1"):
        cli._declared(path, "ill", "logistic", None, components)


def test_a_title_says_whether_whole_rows_were_modelled():
    asked = {"family": "poisson", "outcome": "visits"}
    assert cli._title(asked) == cli._title({**asked, "components": None}) == "Poisson regression of visits"
    assert cli._title({**asked, "components": 2}) == "Poisson regression of visits, and a mixture of 2 for the rest"
