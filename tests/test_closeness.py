"""Synthetic tables beside a public truth: margins, associations and coefficients."""

import numpy as np
import pandas
import pytest
from scipy import stats

from discreet import synth
from discreet.fitting import encode
from discreet.schema import Categorical, Numeric, Schema, SchemaError

PEOPLE = Schema((Numeric("age", 20, 60), Numeric("cups", 0, 4, integer=True), Categorical("sex", ("f", "m"))))


def people(rng, rows, tilt=0.0):
    sex = rng.random(rows) < 0.5
    age = np.clip(rng.normal(40 + 8 * sex, 6), 20, 60)
    cups = rng.binomial(4, 1 / (1 + np.exp(-(age - 40) / 10 - tilt)))
    return {"age": age, "cups": cups, "sex": np.where(sex, "m", "f")}


def test_a_table_is_like_itself():
    table = people(np.random.default_rng(0), 500)
    found = synth.utility([table, table], table, PEOPLE)
    assert [each.columns for each in found] == ["age", "cups", "sex", "age × cups", "age × sex", "cups × sex"]
    assert [each.measure for each in found] == ["total variation"] * 3 + ["correlation"] + ["Cramér's V"] * 2
    assert all(each.difference == 0 for each in found)


def test_associations_are_those_of_scipy_and_numpy():
    table = people(np.random.default_rng(1), 800)
    found = {each.columns: each.truth for each in synth.utility([table], table, PEOPLE)}
    assert found["age × cups"] == pytest.approx(np.corrcoef(table["age"], table["cups"])[0, 1])
    crossed = pandas.crosstab(table["cups"], table["sex"]).to_numpy()
    assert found["cups × sex"] == pytest.approx(stats.contingency.association(crossed, "cramer"))


def test_a_table_that_differs_is_seen_where_it_differs():
    rng = np.random.default_rng(2)
    truth, tilted = people(rng, 4000), [people(rng, 4000, tilt=1.5) for _ in range(2)]
    found = {each.columns: each for each in synth.utility(tilted, truth, PEOPLE)}
    assert found["cups"].difference > 0.2
    assert found["age"].difference < 0.06
    shuffled = {**truth, "sex": rng.permutation(truth["sex"])}
    found = {each.columns: each for each in synth.utility([shuffled], truth, PEOPLE)}
    assert found["sex"].difference == 0
    assert found["age × sex"].difference < -0.3


def test_constant_columns_have_no_association():
    flat = {"age": [30.0, 30.0], "cups": [1, 1], "sex": ["f", "f"]}
    assert {each.truth for each in synth.utility([flat], flat, PEOPLE)} == {0.0}


def line(table):
    """Intercept and slope of cups on age."""
    slope, intercept = np.polyfit(table["age"], table["cups"], 1)
    return {"Intercept": intercept, "age": slope}


def test_coefficients_are_those_of_the_analysis_on_average_over_tables():
    rng = np.random.default_rng(4)
    truth, tables = people(rng, 900), [people(rng, 900, tilt=1.0) for _ in range(3)]
    found = synth.utility(tables, truth, PEOPLE, analysis=lambda table: pandas.Series(line(table)))
    assert found[:-2] == synth.utility(tables, truth, PEOPLE)
    for each in found[-2:]:
        assert (each.measure, each.truth) == ("coefficient", pytest.approx(line(truth)[each.columns]))
        assert each.synthetic == pytest.approx(np.mean([line(table)[each.columns] for table in tables]))
        assert each.difference == each.synthetic - each.truth
    assert found[-2].difference > 0.3


def test_an_analysis_that_finds_other_terms_is_refused():
    """A level that is in one table and not in the other."""
    some = people(np.random.default_rng(5), 50)
    other = {name: column[:1] for name, column in some.items()}
    with pytest.raises(ValueError, match="the same terms in every table"):
        synth.utility([other], some, PEOPLE, analysis=lambda table: dict.fromkeys(set(table["sex"]), 1.0))


def test_utility_takes_plain_tables_and_refuses_rows():
    table = people(np.random.default_rng(0), 50)
    with pytest.raises(ValueError, match="rows are secret, and utility adds no noise"):
        synth.utility([table], encode(table, PEOPLE), PEOPLE)
    with pytest.raises(SchemaError, match="Rows is not supported"):
        synth.utility([encode(table, PEOPLE)], table, PEOPLE)
    with pytest.raises(ValueError, match="no tables"):
        synth.utility([], table, PEOPLE)
    with pytest.raises(ValueError, match="bins=1"):
        synth.utility([table], table, PEOPLE, bins=1)
