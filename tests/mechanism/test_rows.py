import json
import stat
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from discreet import table as tables
from discreet.families.glm import glm
from discreet.mechanism import loop, noise
from discreet.mechanism.rows import encode, read_batches, store, unpacked
from discreet.methods import elbo
from discreet.plan import Plan
from discreet.schema import Categorical, Numeric, Schema, SchemaError, Unit

DISCRETE = Schema((Categorical("sex", ("f", "m")), Numeric("children", 2, 4, integer=True)))


def people(seed=0, count=50):
    rng = np.random.default_rng(seed)
    return {"sex": rng.choice(["f", "m"], count).tolist(), "children": rng.integers(2, 5, count).tolist()}


def test_discrete_tables_become_cells_with_counts():
    table = people()
    rows = encode(table, DISCRETE)
    assert rows._counts.shape == (6,)
    assert rows._counts.sum() == rows.num_rows == 50
    for sex, children, count in zip(rows._columns["sex"], rows._columns["children"], rows._counts, strict=True):
        pairs = zip(table["sex"], table["children"], strict=True)
        assert count == sum(pair == (("f", "m")[sex], children) for pair in pairs)


def test_the_stored_shapes_do_not_depend_on_the_rows():
    """Whether and where cells are empty is secret: a table of equal people is stored like any other."""
    same = {"sex": ["f"] * 50, "children": [2] * 50}
    one, other = encode(people(), DISCRETE), encode(same, DISCRETE)
    assert one._counts.shape == other._counts.shape
    for name in DISCRETE.names:
        np.testing.assert_array_equal(one._columns[name], other._columns[name])


def test_more_cells_than_rows_are_kept_as_rows():
    assert encode(people(count=5), DISCRETE)._counts is None
    assert encode({"x": [0.5, 1.5]}, Schema((Numeric("x", 0, 2),)))._counts is None


def test_replicas_have_counts_of_their_own():
    columns = {"sex": np.array([[0] * 20, [1] * 20], np.int32), "children": np.full((2, 20), 3.0)}
    rows = store(DISCRETE, columns)
    assert rows.replicas == 2
    assert rows._counts.shape == (2, 6)
    assert rows.num_rows == 20
    assert (rows._counts[0] != rows._counts[1]).any()


def test_rows_do_not_show_themselves():
    rows = encode({"x": [0.123456, 1.5]}, Schema((Numeric("x", 0, 2),)))
    assert "0.123456" not in repr(rows)
    assert repr(rows) == "Rows(2 rows; columns x)"
    with pytest.raises(TypeError, match="secret"):
        iter(rows)
    with pytest.raises(TypeError):
        rows[0]


def test_errors_come_before_anything_is_stored():
    with pytest.raises(SchemaError, match="children"):
        encode({"sex": ["f"]}, DISCRETE)


MIXED = Schema(
    (
        Numeric("age", 17, 90),
        Numeric("visits", 0, 300, integer=True),
        Numeric("debt", -5, 5, integer=True),
        Categorical("sex", ("f", "m")),
        Categorical("ill", ("no", "yes")),
    )
)


def written(path, count=1000, **changed):
    """A Parquet file of several row groups."""
    rng = np.random.default_rng(1)
    columns = {
        "age": rng.uniform(10, 95, count),
        "visits": rng.integers(0, 301, count),
        "debt": rng.integers(-5, 6, count),
        "sex": rng.choice(["f", "m"], count),
        "ill": rng.choice(["no", "yes"], count),
    }
    parquet.write_table(pa.table(columns | changed), path, row_group_size=300)
    return path


@pytest.fixture
def in_pieces(monkeypatch):
    monkeypatch.setattr(tables, "PIECE", 128)


@pytest.mark.usefixtures("in_pieces")
def test_rows_on_disk_are_the_rows_in_memory(tmp_path):
    path = written(tmp_path / "people.parquet")
    here, there = encode(path, MIXED), encode(path, MIXED, tmp_path / "rows")
    again = encode(tmp_path / "rows", MIXED)
    for name in MIXED.names:
        np.testing.assert_array_equal(here._columns[name], there._columns[name])
        np.testing.assert_array_equal(here._columns[name], again._columns[name])
    assert there.num_rows == 1000
    assert repr(there) == repr(here)
    kinds = {str(there._columns[name].dtype) for name in MIXED.names}
    assert kinds == {"float64", "int16", "int8"}, "whole numbers take no more room than they need"


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("fused", [True, False])
def test_a_release_does_not_depend_on_where_rows_are(tmp_path, fused):
    path = written(tmp_path / "people.parquet")
    model = glm("logistic", "ill", ["age", "visits", "sex"], MIXED)
    schema = MIXED.select(model.columns)
    encode(path, MIXED, tmp_path / "rows")
    plan = Plan(1000, 40, 0.1, 1.0, 1.0, 150)
    query = elbo.query(model, plan, elbo.Settings(elbo.start_at(model, 0.1), 1e-3))
    query = query if fused else query._replace(products=None)
    here, there = (
        loop.run(noise.simulated(1), plan, query, rows)
        for rows in (encode(path, schema), encode(tmp_path / "rows", schema))
    )
    np.testing.assert_allclose(here.last, there.last, rtol=1e-12)


@pytest.mark.parametrize("left_out", MIXED.names)
def test_a_schema_of_fewer_columns_picks_its_own_from_the_files(tmp_path, left_out):
    path, names = written(tmp_path / "people.parquet"), [name for name in MIXED.names if name != left_out]
    encode(path, MIXED, tmp_path / "rows")
    schema, indices = MIXED.select(names), np.array([[3, 999, 0, 41]])
    here, there = encode(path, schema), encode(tmp_path / "rows", schema)
    picked = unpacked(read_batches(there, indices))
    assert set(picked) == set(names)
    for name in names:
        np.testing.assert_array_equal(picked[name], here._columns[name][indices])


def test_files_of_rows_are_their_owners_alone(tmp_path):
    encode(written(tmp_path / "people.parquet"), MIXED, tmp_path / "rows")
    assert stat.S_IMODE((tmp_path / "rows").stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "rows").glob("*.npy")}
    assert set(modes.values()) == {0o600}, modes


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sex": ["f"] * 900 + ["x"] * 100}, "undeclared"),
        ({"age": [20.0] * 999 + [None]}, "missing"),
        ({"visits": [1.5] * 1000}, "not whole"),
    ],
)
def test_a_table_that_is_refused_leaves_no_files(tmp_path, changed, message):
    """Also where the fault is in the last piece."""
    path = written(tmp_path / "people.parquet", **changed)
    with pytest.raises(SchemaError, match=message):
        encode(path, MIXED, tmp_path / "rows")
    assert [found.name for found in tmp_path.iterdir()] == ["people.parquet"]


def test_folders_of_rows_that_are_refused(tmp_path):
    path = written(tmp_path / "people.parquet")
    encode(path, MIXED, tmp_path / "rows")
    with pytest.raises(FileExistsError, match="exists"):
        encode(path, MIXED, tmp_path / "rows")
    other = Schema((Numeric("age", 0, 90), *MIXED.columns[1:]))
    with pytest.raises(SchemaError, match="columns age differ"):
        encode(tmp_path / "rows", other)
    with pytest.raises(SchemaError, match="units are held in memory"):
        encode(path, replace(MIXED, unit=Unit("person", 3, 2)), tmp_path / "others")
    with pytest.raises(SchemaError, match="2 counts hold this table"):
        encode(path, MIXED.select(["sex"]), tmp_path / "others")
    label = json.loads((tmp_path / "rows" / "rows.json").read_text())
    (tmp_path / "rows" / "rows.json").write_text(json.dumps(label | {"rows": 999}))
    with pytest.raises(SchemaError, match="no encoded rows of format"):
        encode(tmp_path / "rows", MIXED)
    assert not (tmp_path / "others").exists()


def test_rows_on_disk_need_batches(tmp_path):
    path = written(tmp_path / "people.parquet")
    model = glm("logistic", "ill", ["age"], MIXED)
    rows = encode(path, MIXED, tmp_path / "rows")
    plan = Plan(1000, 40, 0.1, 1.0, 1.0)
    query = elbo.query(model, plan, elbo.Settings(elbo.start_at(model, 0.1), 1e-3))
    with pytest.raises(ValueError, match="batch_limit=None: rows on disk are read by batches"):
        loop.run(noise.simulated(1), plan, query, rows)
