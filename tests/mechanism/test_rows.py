import numpy as np
import pytest

from discreet.mechanism.rows import encode, store
from discreet.schema import Categorical, Numeric, Schema, SchemaError

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
