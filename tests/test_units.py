"""Several rows for one person: sampling, clipping and the price go by unit, and planning and studies know it."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

from discreet import audit as module
from discreet import planner
from discreet.accounting import Guarantee, guarantee
from discreet.audit import audit
from discreet.evaluate import study
from discreet.evaluate.reference import non_private
from discreet.fitting import encode, fit, question, run, simulated
from discreet.ledger import Budget, LedgerError, open_account
from discreet.mechanism import clipping, loop
from discreet.methods import elbo, statistics
from discreet.plan import Plan
from discreet.posterior import full
from discreet.posterior.clip_bias import clip_bias
from discreet.schema import Numeric, Schema, SchemaError, Unit, draft
from tests import tiny

PEOPLE, DELTA = Unit("person", most=4, typical=2), 1e-5
SCHEMA = replace(tiny.SCHEMA, unit=PEOPLE)


def table(sizes):
    """The tiny table, whose first rows are the first person's and so on, in mixed order; persons' names are text."""
    rows = tiny.table(int(np.sum(sizes)))
    rows["person"] = [f"p{number}" for number in np.repeat(np.arange(len(sizes)), sizes)]
    order = np.random.default_rng(5).permutation(len(rows["person"]))
    return {name: [column[place] for place in order] for name, column in rows.items()}


def released(given, schema, plan, **options):
    query = elbo.query(tiny.MODEL, plan, tiny.choice().settings)
    return run(simulated(3), plan, query, encode(given, schema), keep="trace", **options)


def bare(units, **changes):
    """A plan in which everybody takes part, without noise, and with a clip norm that clips nobody."""
    plain = {"sampling_prob": 1.0, "clip_norm": 1e3, "noise_multiplier": 0.0, "batch_limit": None, "unit": "person"}
    return replace(tiny.choice().plan, num_rows=units, **{"steps": 3, **plain, **changes})


def test_units_of_one_row_are_rows():
    plan = replace(tiny.choice().plan, unit="person")
    given = {**tiny.table(), "person": list(range(tiny.NUM_ROWS))}
    found = released(given, replace(tiny.SCHEMA, unit=Unit("person", 1, 1)), plan)
    same = released(tiny.table(), tiny.SCHEMA, tiny.choice().plan)
    for mine, theirs in zip(found.trace, same.trace, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-4)  # sums by matrix products are rounded once


def test_a_unit_answers_with_the_sum_over_its_rows():
    """Without clip and noise the sums are those of the rows, in whatever order; rounding is 10⁻⁶ of the clip norm."""
    sizes = [1, 4, 2, 3, 1, 1, 4]
    given = table(sizes)
    found = released(given, SCHEMA, bare(len(sizes)))
    flat = released({name: given[name] for name in tiny.SCHEMA.names}, tiny.SCHEMA, bare(16, unit="row"))
    np.testing.assert_allclose(found.trace.y, flat.trace.y, atol=30 * 1e3 / 2**20)


def test_all_rows_of_a_unit_together_move_a_sum_by_one_clip_norm():
    """Someone with four rows, all of them long, is there or not: rows clipped one by one would move it by four."""
    clip_norm = 1e-3
    given = table([4, 2, 1])
    others = [place for place, person in enumerate(given["person"]) if person != "p0"]
    rest = {name: [column[place] for place in others] for name, column in given.items()}
    everybody, without = (
        released(these, SCHEMA, bare(count, clip_norm=clip_norm, steps=1)) for these, count in ((given, 3), (rest, 2))
    )
    factor = np.asarray(tiny.choice().settings.precondition)
    moved = np.linalg.norm((everybody.trace.y - without.trace.y)[0] * factor)
    assert 0.99 * clip_norm < moved <= clip_norm * (1 + 1e-9)


def test_who_takes_part_takes_part_with_all_rows():
    """Each of 6 people says who they are, once a row; a step sees all of a person's rows or none."""
    sizes, steps = np.array([1, 2, 3, 4, 2, 1]), 4000
    schema = Schema((Numeric("who", 0, 6),), Unit("person", 4, 2))
    people = np.repeat(np.arange(6), sizes)
    plan = Plan(6, steps, 0.3, 10.0, 0.0, unit="person")
    asked = statistics.query(lambda row: (row["who"] == np.arange(6.0)) * 1.0, 6, ["who"], bare(6, steps=1, unit="row"))
    told = run(simulated(2), plan, asked, encode({"who": people, "person": people}, schema), keep="trace").trace.y
    rows = np.rint(told).astype(int)
    assert ((rows == 0) | (rows == sizes)).all()
    z = ((rows > 0).mean(0) - 0.3) / np.sqrt(0.3 * 0.7 / steps)
    assert np.abs(z).max() < 4.5  # false alarm below 10⁻⁴


def test_a_row_that_answers_nothing_finite_silences_its_unit_and_no_other():
    given = table([2, 2])
    bad, whose = given["age"][0], given["person"][0]
    others = [place for place, person in enumerate(given["person"]) if person != whose]
    rest = {name: [column[place] for place in others] for name, column in given.items()}

    def told(these, units):
        query = statistics.query(lambda row: row["age"][None], 1, ["age"], bare(units, steps=1, unit="row"))
        broken = query._replace(row_value=lambda _, row: (row["age"] / (row["age"] != bad))[None])
        return run(simulated(1), bare(units, steps=1), broken, encode(these, SCHEMA)).last

    np.testing.assert_array_equal(told(given, 2), told(rest, 1))
    assert told(rest, 1) > 0


@pytest.mark.parametrize("method", ["dpvi", "sep"])
def test_a_fit_by_unit_says_whom_it_protects(method, tmp_path):
    sizes = PEOPLE.sizes(np.random.default_rng(1), 150)
    rows = encode(table(sizes), SCHEMA)
    account = open_account(tmp_path / "ledger.db", "visits", Budget(2.0, DELTA, unit="person"))
    choice = planner.of_method(method)(tiny.MODEL, SCHEMA, rows.num_rows, 1.0, DELTA, steps=400)
    found = fit(tiny.MODEL, rows, epsilon=1.0, delta=DELTA, choice=choice, account=account, draws=200)
    assert found.guarantee.private
    assert found.guarantee.unit == "person"
    assert "zero-out of all rows of one person" in str(found.guarantee)
    assert json.loads(json.dumps(found.guarantee.to_dict()))["unit"] == "person"
    assert Guarantee.from_dict(found.guarantee.to_dict()) == found.guarantee
    assert account.entries()[0].plan.unit == "person"
    assert np.isfinite(clip_bias(tiny.MODEL, SCHEMA, found.release, found.z)).all()


def test_a_budget_for_people_pays_for_no_promise_to_rows(tmp_path):
    account = open_account(tmp_path / "ledger.db", "visits", Budget(2.0, DELTA, unit="person"))
    with pytest.raises(LedgerError, match="kept for unit 'person', and this plan is for 'row'"):
        account.charge(tiny.choice().plan)
    with pytest.raises(ValueError, match="phases of one unit"):
        guarantee([tiny.choice().plan, replace(tiny.choice().plan, unit="person")], DELTA)


@pytest.mark.parametrize("unit", ["row", "patient"])
def test_a_plan_for_others_than_the_schema_protects_is_refused(unit):
    with pytest.raises(ValueError, match=f"plan.unit='{unit}' but the schema protects each 'person'"):
        released(table([1, 2]), SCHEMA, bare(2, unit=unit))


def test_statistics_that_need_the_number_of_rows_are_refused():
    with pytest.raises(ValueError, match="unit=person must be row"):
        statistics.query(lambda row: row["x"][None], 1, ["x"], bare(5, steps=1))


def test_a_plan_expects_units_of_the_typical_size():
    """Twice the rows in as many units is twice the information, and √2 times the length of a unit's gradient."""
    steps = {"steps": 400}
    one = planner.choose(tiny.MODEL, tiny.SCHEMA, 2000, 1.0, DELTA, **steps)
    two = planner.choose(tiny.MODEL, replace(tiny.SCHEMA, unit=Unit("person", 4, 4)), 2000, 1.0, DELTA, **steps)
    np.testing.assert_allclose(two.prior.curvature / one.prior.curvature, 4, rtol=0.25)
    assert 1.5 < two.plan.clip_norm / one.plan.clip_norm < 2.7
    assert two.plan.unit == "person"
    assert replace(two.plan, unit="row", clip_norm=1.0) == replace(one.plan, clip_norm=1.0)


@pytest.mark.parametrize("tables", [24, pytest.param(200, marks=pytest.mark.slow)])
def test_noise_aware_intervals_by_unit_cover(tables):
    """90 % intervals of 3 parameters in tables of 400 people, within 4.5 sds of .9: false alarm below 10⁻⁵.

    Intervals share a table, so that the sd allows for full correlation within one.
    """
    choice = planner.choose(tiny.MODEL, SCHEMA, 400, 3.0, DELTA, steps=1000)
    asked = question(tiny.MODEL, SCHEMA, choice)
    found = study.simulate_fits(7, tiny.MODEL, SCHEMA, choice.plan, asked, tables, keep="trace")
    rng, inside = np.random.default_rng(8), []
    for number, truth in enumerate(found.truth):
        z = full.solve(rng, study.chosen(found.release, number), choice.prior, 200).z
        low, high = np.quantile(z, [0.05, 0.95], axis=0)
        inside.append((low <= truth) & (truth <= high))
    assert abs(np.mean(inside) - 0.9) < 4.5 * np.sqrt(0.09 / tables), np.mean(inside)


def test_the_reference_of_a_table_with_units_is_of_its_rows():
    given = table([2] * 40)
    with_units, without = SCHEMA.encode(given), tiny.SCHEMA.encode(given)
    np.testing.assert_allclose(non_private(tiny.MODEL, with_units).mean, non_private(tiny.MODEL, without).mean)


def test_an_audit_by_unit_holds_and_catches_rows_that_are_clipped_one_by_one(monkeypatch):
    monkeypatch.setattr(module, "DRAWS", 10**5)
    plan = Plan(300, 2, 0.2, 1.0, 4.0, unit="person")
    query = question(tiny.MODEL, tiny.SCHEMA, tiny.choice())
    found = audit(query, plan, SCHEMA, DELTA)
    assert found.holds, found
    assert 0.9 * found.claimed <= found.lower <= found.claimed

    honest = clipping.of_unit

    def each_row(row_value, unit):
        def clipped(question, row):
            return clipping.clip_to_grid(row_value(question, row)[None], 1.0)[0] / clipping.GRID

        return honest(clipped, unit)

    monkeypatch.setattr(loop, "of_unit", each_row)
    monkeypatch.setattr(loop, "bounded_sum", _unbounded)
    caught = audit(query, plan, SCHEMA, DELTA)
    assert not caught.holds
    assert caught.checks[1].measured > 1.5


def _unbounded(row_value, question, rows, multiplicity, clip_norm, order=2):
    """A unit's sum that is not clipped again."""
    del order
    values = jax.vmap(lambda row: row_value(question, row))(rows)
    return (multiplicity[:, None] * values).sum(0) * clipping.GRID / clip_norm


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"most": 0, "typical": 1}, "most=0 must be a whole number"),
        ({"most": 2.5, "typical": 1}, "most=2.5 must be a whole number"),
        ({"most": True, "typical": 1}, "most=True must be a whole number"),
        ({"most": 3, "typical": 4}, r"typical=4 must lie in \[1, 3\]"),
        ({"most": 3, "typical": float("nan")}, "typical=nan must lie"),
        ({"most": 3, "typical": 1, "confirmed": "yes"}, "confirmed='yes' must be true or false"),
    ],
)
def test_what_no_unit_can_be_is_refused(declared, said):
    with pytest.raises(SchemaError, match=said):
        Unit("person", **declared)


def test_a_unit_is_no_column_and_needs_all_its_words():
    with pytest.raises(SchemaError, match="'age' is the unit"):
        replace(tiny.SCHEMA, unit=Unit("age", 2, 1))
    with pytest.raises(SchemaError, match="unit='person' must be a Unit"):
        replace(tiny.SCHEMA, unit="person")
    columns = tiny.SCHEMA.to_dict()
    for unit in ("person", {"column": "person"}, {"column": "p", "most": 2, "typical": 1, "least": 0}):
        with pytest.raises(SchemaError, match=r"\[unit\] must have column, most and typical"):
            Schema.from_dict({**columns, "unit": unit})


def test_tables_that_break_the_declaration_are_refused():
    with pytest.raises(SchemaError, match="2 units have more than most=4 rows"):
        encode(table([5, 1, 6]), SCHEMA)
    with pytest.raises(SchemaError, match="no column 'person'"):
        encode(tiny.table(), SCHEMA)
    given = table([2, 2])
    given["person"][1] = None
    with pytest.raises(SchemaError, match="'person' is missing in 1 rows"):
        encode(given, SCHEMA)
    with pytest.raises(SchemaError, match="'person' holds"):
        encode({**given, "person": [[1], [2], [3], [4]]}, SCHEMA)


def test_names_of_units_are_text_in_a_csv_file(tmp_path):
    """007 and 7 are two people there."""
    path = tmp_path / "visits.csv"
    path.write_text("age,sex,ill,person\n30,f,no,007\n31,m,no,7\n32,m,yes,007\n")
    assert encode(path, SCHEMA).num_rows == 2
    assert repr(encode(path, SCHEMA)) == "Rows(2 persons; columns age, sex, ill)"


def test_a_schema_with_a_unit_is_saved_loaded_and_drafted(tmp_path):
    SCHEMA.save(tmp_path / "schema.toml")
    assert Schema.load(tmp_path / "schema.toml") == SCHEMA
    assert SCHEMA.select(["age"]).unit == PEOPLE
    given = table([4, 2, 4, 1, 4])
    drafted = draft(given, unit="person")
    assert drafted.unit == Unit("person", 4, 3.0, confirmed=False)
    assert drafted.unconfirmed == ("age", "sex", "ill", "person")
    assert Schema.from_dict(drafted.to_dict()) == drafted
    with pytest.raises(SchemaError, match="unconfirmed"):
        encode(given, replace(SCHEMA, unit=drafted.unit))
    with pytest.raises(SchemaError, match="no column 'nobody'"):
        draft(given, unit="nobody")


def test_made_up_sizes_are_typical():
    sizes = Unit("person", 12, 3).sizes(np.random.default_rng(0), 100_000)
    assert sizes.min() == 1
    assert sizes.max() <= 12
    assert abs(sizes.mean() - 3) < 5 * sizes.std() / np.sqrt(100_000)  # false alarm 6·10⁻⁷
