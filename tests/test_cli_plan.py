"""`discreet plan`: what a fit would do, and why, before anything is spent."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from discreet import fitting, planner
from discreet.rehearsal import Rehearsal
from discreet.schema import Unit
from tests import tiny
from tests.test_cli import assert_refused, call, write

STEPS, CHOOSERS = 300, {"choose": "dpvi", "choose_score": "score"}
PLAN = {"--schema": "ok.toml", "--outcome": "ill", "--family": "logistic", "--epsilon": "1", "--delta": "1e-4"}
PLAN |= {"--rows": "300", "--rehearsals": "0"}
SAMPLE, NAMES = {"--sample": "public.csv"}, ["Intercept", "age", "sex[m]"]
TRIED = Rehearsal(0.875, 0.05, np.array([1.25, 2.5, 3.75]), 0.4)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a schema and a public table, and planners of few steps."""
    monkeypatch.chdir(tmp_path)
    Path("ok.toml").write_text(tiny.SCHEMA.to_toml())
    public = tiny.table(200)
    write("public.csv", zip(public["age"], public["sex"], strict=True), ("age", "sex"))
    Path("units.toml").write_text(replace(tiny.SCHEMA, unit=Unit("who", 3, 2)).to_toml())
    write("half.csv", [(age,) for age in public["age"]], ("age",))
    for name, method in CHOOSERS.items():
        fewer = partial(getattr(planner, name), steps=STEPS)
        monkeypatch.setattr(planner, name, fewer)
        monkeypatch.setitem(planner.METHODS, method, fewer)
    return tmp_path


@pytest.fixture
def no_fit(monkeypatch):
    monkeypatch.setattr(fitting, "run_phases", lambda *_, **__: pytest.fail("a table was fitted"))


@pytest.fixture
def rehearsed(monkeypatch):
    """Rehearsals that were over before they began; what was asked of them."""
    asked = []

    def rehearse(*given, **options):
        asked.append((given, options))
        return TRIED

    monkeypatch.setattr("discreet.rehearsal.rehearse", rehearse)
    return asked


def plan(capsys, *flags, **changes):
    """Standard output and standard error of a plan that went well."""
    code, out, err = call(capsys, "plan", *flags, **PLAN | changes)
    assert code == 0, err
    return out, err


def cells(out, name):
    """The numbers in the line of a printed table that begins with this name."""
    (line,) = [line for line in out.splitlines() if re.match(rf"│ {re.escape(name)} ", line)]
    return [float(cell) for cell in line.strip("│ ").split("│")[1:]]


def expected(**options):
    """What the planner would choose, without the command."""
    return planner.choose_best(tiny.MODEL, tiny.SCHEMA, 300, 1.0, 1e-4, **options)


@pytest.mark.usefixtures("no_fit")
def test_a_plan_names_its_method_its_reasons_and_the_width_of_each_parameter(here, capsys):
    out, err = plan(capsys)
    choice = expected()
    assert err == ""
    assert out.splitlines()[: len(choice.reasons)] == [f"· {reason}" for reason in choice.reasons]
    assert out.startswith("· method one-step: most of the budget for one question")
    assert "\n· law of age, sex: 23% of the budget buys it, for no public sample was given\n" in out
    assert "width ÷ non-private, predicted" in out
    for name, width in zip(NAMES, choice.predicted, strict=True):
        assert cells(out, name) == [pytest.approx(width, abs=0.0051)]
    assert "rehears" not in out
    assert sorted(path.name for path in here.iterdir()) == ["half.csv", "ok.toml", "public.csv", "units.toml"]


def test_rehearsals_say_coverage_widths_and_run_time(here, capsys, rehearsed):
    out, err = plan(capsys, **{"--rehearsals": "8"})
    assert err == ""
    assert "90 % intervals held 88% ± 5% of the truths of 8 rehearsals; a fit took 0.4 s" in out
    assert [cells(out, name)[1] for name in NAMES] == TRIED.widths.tolist()
    ((_, _, choice, count), options) = rehearsed[0]
    assert (choice.plan, count) == (expected().plan, 8)
    assert (options["delta"], options["sample"]) == (1e-4, None)


def test_a_rehearsal_is_a_fit_of_a_made_up_table(here, capsys):
    """One of them, in full: the sd of a parameter is positive and at most a few prior sds."""
    out, _ = plan(capsys, **{"--rehearsals": "1"})
    found = re.search(r"held (\d+)% of the truths of a rehearsal; a fit took (\d+\.\d) s", out)
    assert 0 <= int(found[1]) <= 100
    assert all(0 < cells(out, name)[1] < 100 for name in NAMES)


def test_twenty_tables_are_rehearsed_unless_told_otherwise(here, capsys, rehearsed):
    options = {name: value for name, value in PLAN.items() if name != "--rehearsals"}
    assert call(capsys, "plan", **options)[0] == 0
    assert rehearsed[0][0][3] == 20


def test_json_is_one_object_with_all_of_it(here, capsys, rehearsed):
    out, err = plan(capsys, "--json", **SAMPLE | {"--rehearsals": "3", "--curve": ".3"})
    facts = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    sample = planner.public_sample(tiny.MODEL, tiny.SCHEMA, "public.csv")
    choice = expected(sample=sample)
    assert err == ""
    assert facts["plan"] == choice.plan.to_dict()
    assert facts["before"] == [phase.to_dict() for phase in choice.before]
    assert (facts["family"], len(facts["before"])) == ("one step", 1)
    assert facts["reasons"] == list(choice.reasons)
    assert (facts["predicted"], facts["parameters"]) == (choice.predicted.tolist(), NAMES)
    assert facts["warnings"] == []
    assert facts["rehearsed"] == TRIED.to_dict() | {"widths": TRIED.widths.tolist()}
    assert facts["curves"]["rows"] == [75, 300, 1200]
    assert facts["curves"]["epsilons"] == [0.3, 1.0]
    assert facts["curves"]["widths"][1][1] == pytest.approx(choice.width)


def test_json_says_null_of_what_was_not_asked_for(here, capsys):
    facts = json.loads(plan(capsys, "--json", **{"--method": "dpvi"})[0])
    assert (facts["rehearsed"], facts["curves"], facts["before"]) == (None, None, [])


def test_with_a_public_sample_no_law_is_bought_and_rehearsals_use_it(here, capsys, rehearsed):
    out, _ = plan(capsys, **SAMPLE | {"--rehearsals": "2"})
    assert out.startswith("· method one-step: ")
    assert "law of" not in out
    ((_, _, choice, _), options) = rehearsed[0]
    assert (choice.family, len(choice.before)) == ("one step", 1)
    assert set(options["sample"]) == set(choice.settings.reference.sample) == {"age", "sex"}


def test_a_method_may_be_asked_for(here, capsys):
    assert "reference 200 steps" in plan(capsys, **{"--method": "one-step"})[0]
    assert "whitened units" in plan(capsys, **SAMPLE | {"--method": "score"})[0]
    assert "learning rate" in plan(capsys, **{"--method": "dpvi"})[0]


def test_a_curve_is_a_table_of_widths_against_ε_and_rows(here, capsys):
    out, err = plan(capsys, **{"--curve": ".3"})
    assert err == ""
    head = next(line for line in out.splitlines() if "mean width ÷ non-private" in line)
    assert re.findall(r"ε = ([\d.]+)", head) == ["0.3", "1"]
    found = [cells(out, f"{rows} rows") for rows in (75, 300, 1200)]
    assert found[1][1] == pytest.approx(expected().width, abs=0.0051)
    assert (np.diff(found, axis=1) < 0).all()


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_curve_is_drawn_where_out_says(here, capsys, flags):
    out, err = plan(capsys, *flags, **{"--curve": ".3", "--out": "deep/curve.svg"})
    assert err == ("" if flags else "wrote deep/curve.svg\n")
    assert bool(flags) == out.startswith("{")
    root = ElementTree.fromstring(Path("deep/curve.svg").read_bytes())
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    red = [dot for dot in root.iter("{http://www.w3.org/2000/svg}circle") if dot.get("class") == "asked"]
    assert (len(lines), len(red)) == (3, 1)


@pytest.mark.usefixtures("no_fit")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"--out": "c.svg"}, "--out is for the picture of a curve: give --curve"),
        ({"--out": "c.svg", "--json": None}, "--out is for the picture of a curve: give --curve"),
        ({"--out": "ok.toml", "--curve": ".3"}, "out=ok.toml exists: choose another"),
        ({"--out": "ok.toml/c.svg", "--curve": ".3"}, "out=ok.toml/c.svg cannot be written"),
        ({"--rehearsals": "-1"}, "rehearsals=-1 must not be negative"),
        ({"--rehearsals": "1.5"}, "--rehearsals"),
        ({"--curve": "a,1"}, "curve='a,1' must be numbers, separated by commas"),
        ({"--curve": ""}, "curve='' must be numbers"),
        ({"--curve": "1,1"}, "must be distinct positive numbers"),
        ({"--curve": "0,1"}, "must be distinct positive numbers"),
        ({"--curve": "inf"}, "must be distinct positive numbers"),
        ({"--epsilon": "0"}, "epsilon=0.0 must be positive"),
        ({"--delta": "0"}, "delta=0.0 must lie in (0, 1)"),
        ({"--rows": "0"}, "num_rows=0 must be at least 1"),
        ({"--method": "vi"}, "method='vi' must be one of one-step, dpvi, sep, score"),
        ({"--method": "score"}, "the law of age, sex is not public"),
        (SAMPLE | {"--method": "dpvi"}, "method='dpvi' has no use for a public sample"),
        ({"--schema": "units.toml", "--method": "one-step"}, "one step asks rows, and 'who' may have several"),
        ({"--sample": "half.csv"}, "sex"),
        ({"--sample": "nowhere.csv"}, "nowhere.csv is not a file: check the path"),
        ({"--schema": "nowhere.toml"}, "nowhere.toml cannot be read"),
        ({"--outcome": "wat"}, "no column 'wat'"),
    ],
)
def test_plan_refuses_in_one_line_and_writes_nothing(here, capsys, changes, reason):
    flags = [name for name, value in changes.items() if value is None]
    given = {name: value for name, value in changes.items() if value is not None}
    assert_refused(capsys, here, reason, "plan", *flags, **PLAN | given)


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_noise_that_drowns_the_signal_is_warned_of(here, capsys, flags):
    """At ε = .1, 300 rows leave intervals more than three times as wide."""
    out, err = plan(capsys, *flags, **{"--epsilon": "0.1"})
    said = json.loads(out)["warnings"][0] if flags else err.removeprefix("warning: ")
    assert said.startswith("noise drowns the signal: at ε = 0.1 with 300 rows the interval for ")
    assert re.search(r"for (Intercept|age|sex\[m\]) will be \d+(\.\d)? times the non-private one", said)
    assert re.search(r"about \de\+\d\d rows would do, or a larger ε", said)
    assert err.count("\n") == (0 if flags else 1)


def test_a_delta_of_one_row_is_warned_of(here, capsys):
    _, err = plan(capsys, **{"--delta": "0.01"})
    assert err.startswith("warning: delta=0.01 is at least 1/300 and so protects nobody")
