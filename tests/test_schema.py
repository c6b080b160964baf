import os
import tomllib
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.schema import Categorical, Numeric, Schema, draft
from discreet.table import SchemaError

AGE = Numeric("age", 17, 90, integer=True)
PAY = Numeric("pay", 0.0, 1000.0, missing=0.5)
EDUCATION = Categorical("education", ("none", "school", "university"), other="none", missing="none")
CHILDREN = Categorical("children", (0, 1, 2))
SCHEMA = Schema((AGE, PAY, EDUCATION, CHILDREN))
TABLE = {
    "note": ["a, b", 'say "hi"', "two\nlines"],
    "children": [0, 2, 1],
    "age": [5, 44, 200],
    "pay": [-1.5, None, 12.25],
    "education": ["university", None, "kindergarten"],
}
ENCODED = {"age": [17, 44, 90], "pay": [0, 0.5, 12.25], "education": [2, 0, 0], "children": [0, 2, 1]}


def pandas_categorical(folder):
    return pd.DataFrame(TABLE).astype({"education": "category", "children": "category"})


def polars_categorical(folder):
    return pl.DataFrame(TABLE).with_columns(pl.col("education").cast(pl.Categorical))


def arrow_dictionary(folder):
    table = pa.table(TABLE)
    at = table.column_names.index("education")
    return table.set_column(at, "education", table["education"].dictionary_encode())


def chunked(folder):
    return pa.concat_tables([pa.table(TABLE).slice(0, 1), pa.table(TABLE).slice(1)])


def csv_file(folder):
    pd.DataFrame(TABLE).to_csv(folder / "t.csv", index=False)
    return folder / "t.csv"


def parquet_file(folder):
    pq.write_table(pa.table(TABLE), folder / "t.parquet")
    return str(folder / "t.parquet")


SOURCES = {
    "mapping": lambda folder: TABLE,
    "arrays": lambda folder: {k: pd.DataFrame(TABLE)[k].to_numpy() for k in TABLE},
    "series": lambda folder: {k: pl.DataFrame(TABLE)[k] for k in TABLE},
    "pandas": lambda folder: pd.DataFrame(TABLE, index=[7, 8, 9]),
    "pandas_categorical": pandas_categorical,
    "polars": lambda folder: pl.DataFrame(TABLE),
    "polars_categorical": polars_categorical,
    "arrow": lambda folder: pa.table(TABLE),
    "arrow_dictionary": arrow_dictionary,
    "chunked": chunked,
    "csv": csv_file,
    "parquet": parquet_file,
}

names = st.text(min_size=1, max_size=8)
finite = st.floats(allow_nan=False, allow_infinity=False)
small = st.integers(-(2**52), 2**52) | st.floats(-1e6, 1e6)


@st.composite
def numerics(draw, name):
    integer = draw(st.booleans())
    bound = st.integers(-(2**53), 2**53) if integer else finite | st.integers(-(2**70), 2**70)
    pairs = st.tuples(bound, bound).map(sorted).filter(lambda pair: float(pair[0]) < float(pair[1]))
    low, high = draw(pairs)
    missing = draw(st.sampled_from([None, low, high]))
    return Numeric(name, low, high, integer, missing, draw(st.booleans()))


@st.composite
def categoricals(draw, name):
    lists = [st.lists(sort, min_size=2, max_size=4, unique=True) for sort in (st.text(), small, st.booleans())]
    levels = draw(st.one_of(lists))
    choice = st.sampled_from([None, *levels])
    return Categorical(name, tuple(levels), draw(choice), draw(choice), draw(st.booleans()))


@st.composite
def schemas(draw):
    chosen = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    return Schema(tuple(draw(st.one_of(numerics(name), categoricals(name))) for name in chosen))


def confirmed(schema):
    plain = schema.to_dict()["columns"]
    return Schema.from_dict({"columns": {k: {**v, "confirmed": True} for k, v in plain.items()}})


def assert_same(left, right):
    assert list(left) == list(right)
    for name in left:
        np.testing.assert_array_equal(left[name], right[name])


def refused(column, values):
    """The message with which one column refuses its values."""
    with pytest.raises(SchemaError) as caught:
        Schema((column,)).encode({column.name: values})
    assert column.name in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("source", SOURCES)
def test_every_kind_of_table_encodes_alike(source, tmp_path):
    encoded = SCHEMA.encode(SOURCES[source](tmp_path))
    assert_same(encoded, ENCODED)
    assert [values.dtype for values in encoded.values()] == [np.float64, np.float64, np.int32, np.int32]


@settings(max_examples=60, deadline=None)
@given(schemas(), st.integers(1, 20), st.integers(0, 2**32))
def test_encode_inverts_decode_on_every_sampled_row(schema, num_rows, seed):
    schema = confirmed(schema)
    rows = schema.sample(np.random.default_rng(seed), num_rows)
    assert_same(schema.encode(schema.decode(rows)), rows)


@settings(max_examples=60, deadline=None)
@given(schemas(), st.integers(0, 20), st.integers(0, 2**32))
def test_samples_stay_within_the_declaration(schema, num_rows, seed):
    for name, values in schema.sample(np.random.default_rng(seed), num_rows).items():
        column = schema[name]
        low, high = (column.low, column.high) if isinstance(column, Numeric) else (0, column.size - 1)
        assert values.shape == (num_rows,)
        assert np.all((values >= float(low)) & (values <= float(high)))
        assert column.size is None or np.all(values == np.rint(values))


def test_samples_reach_all_that_is_declared():
    rows = Schema((Numeric("n", 1, 3, integer=True), CHILDREN)).sample(np.random.default_rng(0), 200)
    assert set(rows["n"]) == {1, 2, 3}
    assert set(rows["children"]) == {0, 1, 2}


@settings(max_examples=60, deadline=None)
@given(numerics("x"), st.lists(st.floats(allow_nan=False), min_size=1))
def test_numbers_are_clamped_to_the_bounds(column, values):
    values = np.rint(values) if column.integer else np.array(values)
    encoded = confirmed(Schema((column,))).encode({"x": values})
    assert encoded["x"].tolist() == [min(max(v, float(column.low)), float(column.high)) for v in values]


def test_infinities_are_clamped_and_nan_is_missing():
    assert Schema((PAY,)).encode({"pay": [np.inf, -np.inf, np.nan]})["pay"].tolist() == [1000, 0, 0.5]


@pytest.mark.parametrize("values", [[True, False], [Decimal("1"), Decimal("0")], np.array([1, 0], np.uint64)])
def test_numeric_takes_booleans_and_decimals(values):
    assert Schema((PAY,)).encode({"pay": values})["pay"].tolist() == [1, 0]


@pytest.mark.parametrize("values", [[1, 0], [1.0, -0.0], [True, False], [Decimal(1), Decimal(0)]])
@pytest.mark.parametrize("levels", [(0, 1), (-0.0, 1.0), (False, True)])
def test_numbers_and_booleans_match_levels_by_value(values, levels):
    assert Schema((Categorical("c", levels),)).encode({"c": values})["c"].tolist() == [1, 0]


def test_large_numbers_never_match_a_level_they_only_round_to():
    assert "1 undeclared" in refused(Categorical("c", (2**53 - 1, 0)), [2**53])


def test_csv_takes_its_types_from_the_schema(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("\ufeffzip,flag,x,na\n01,true,7,NA\n02,False, 1.5,NB\n".encode())
    columns = (
        Categorical("zip", ("01", "02")),
        Categorical("flag", (False, True)),
        Numeric("x", 0, 10),
        Categorical("na", ("NA", "NB")),
    )
    assert_same(Schema(columns).encode(path), {"zip": [0, 1], "flag": [1, 0], "x": [7, 1.5], "na": [0, 1]})


def test_csv_numbers_may_change_look_late_in_the_file(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x\n" + "1\n" * 700_000 + "2.5\nNA\n")
    assert Schema((Numeric("x", 0, 9, missing=3),)).encode(path)["x"][-2:].tolist() == [2.5, 3]


def test_only_declared_columns_are_read():
    class Trap(dict):
        def __getitem__(self, name):
            assert name == "age"
            return super().__getitem__(name)

    assert Schema((AGE,)).encode(Trap(age=[20], secret=[object()]))["age"].tolist() == [20]


def test_refuses_missing_columns_and_says_which_there_are():
    with pytest.raises(SchemaError, match=r"no column 'age'; it has 'pay', 'years'"):
        Schema((AGE,)).encode({"pay": [1], "years": [2]})


@pytest.mark.parametrize("values", [["31417", "x"], [31417, "x"], pd.to_datetime(["1986-01-05"])])
def test_refuses_what_is_no_number_without_showing_it(values):
    message = refused(AGE, values)
    assert "convert it" in message
    assert "31417" not in message
    assert "1986" not in message


def test_refuses_fractions_in_an_integer_column_without_showing_them():
    message = refused(AGE, [20, 31.417, 2.5])
    assert "2 values" in message
    assert "31" not in message


def test_refuses_missing_values_by_count():
    assert "2 missing" in refused(AGE, [20, None, np.nan])
    assert "1 missing" in refused(CHILDREN, [0, np.nan])
    assert "2 missing" in refused(Categorical("c", ("a", "b")), [None, None])


def test_refuses_undeclared_levels_and_names_three():
    message = refused(Categorical("c", ("a", "b")), ["a", "p", "q", "r", "s", "p"])
    assert "4 undeclared levels ('p', 'q', 'r', …)" in message
    message = refused(CHILDREN, [0, 31417])
    assert "1 undeclared" in message
    assert "31417" not in message


def test_refuses_levels_of_the_wrong_kind():
    assert ": unquote the levels" in refused(Categorical("c", ("0", "1")), [0, 1])
    assert ": unquote the levels" in refused(Categorical("c", ("true", "false")), [True])
    assert ": quote the levels" in refused(CHILDREN, ["0", "1"])
    assert "convert the column" in refused(CHILDREN, pd.to_datetime(["1986-01-05"]))


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame([[20, 30]], columns=["age", "age"]),
        pa.table([[20], [30]], names=["age", "age"]),
        "age,x,age\n20,1,30\n",
    ],
)
def test_refuses_repeated_columns(table, tmp_path):
    if isinstance(table, str):
        (tmp_path / "t.csv").write_text(table)
        table = tmp_path / "t.csv"
    with pytest.raises(SchemaError, match="rename them"):
        Schema((AGE,)).encode(table)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"age": []}, "no rows"),
        (pd.DataFrame({"age": []}), "no rows"),
        ({"age": [20, 30], "pay": [1.0]}, "differ in length"),
        ({"age": 20, "pay": 1.0}, "list of values"),
        ({"age": np.ones((2, 2)), "pay": [1.0, 2.0]}, "list of values"),
        (pl.LazyFrame({"age": [1]}), "LazyFrame is not supported.*collect"),
        ([1, 2], "list is not supported"),
        ("table.xlsx", "table.xlsx is not supported: give a .csv or .parquet"),
        ("nowhere.csv", "nowhere.csv is not a file"),
    ],
)
def test_refuses_what_is_no_table(table, message):
    schema = Schema((AGE, PAY)) if isinstance(table, dict) and "pay" in table else Schema((AGE,))
    with pytest.raises(SchemaError, match=message):
        schema.encode(table)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "no column 'age'; it has no columns"),
        ("t.csv", b"age\n", "no rows"),
        ("t.csv", b"age,x\n31417\n", "equally many cells"),
        ("t.csv", b"age\n\xff\xfe\n", "UTF-8"),
        ("t.parquet", b"31417", "is not a Parquet file"),
    ],
)
def test_refuses_damaged_files_without_showing_them(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SchemaError, match=message) as caught:
        Schema((AGE,)).encode(tmp_path / name)
    assert "31417" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Numeric("", 0, 1), "non-empty"),
        (lambda: Numeric(3, 0, 1), "non-empty"),
        (lambda: Numeric("x", 1, 1), "low < high"),
        (lambda: Numeric("x", 0, np.inf), "finite"),
        (lambda: Numeric("x", np.nan, 1), "finite"),
        (lambda: Numeric("x", 0, 10**400), "finite"),
        (lambda: Numeric("x", "0", 1), "finite"),
        (lambda: Numeric("x", False, True), "finite"),
        (lambda: Numeric("x", 2**60, 2**60 + 1), "low < high"),
        (lambda: Numeric("x", 0, 1, missing=2), r"missing=2 must be a number within \[0, 1\]"),
        (lambda: Numeric("x", 0, 1, missing="none"), "missing='none'"),
        (lambda: Numeric("x", 0.5, 2, integer=True), "whole"),
        (lambda: Numeric("x", 0, 2**54, integer=True), "whole"),
        (lambda: Numeric("x", 0, 2, integer=True, missing=0.5), "whole"),
        (lambda: Numeric("x", 0, 1, integer="yes"), "integer='yes' must be true or false"),
        (lambda: Categorical("c", ("a",)), "levels"),
        (lambda: Categorical("c", "ab"), "levels"),
        (lambda: Categorical("c", ("a", "a")), "distinct"),
        (lambda: Categorical("c", (0, 0.0)), "distinct"),
        (lambda: Categorical("c", ("a", 1)), "levels"),
        (lambda: Categorical("c", (True, 0)), "levels"),
        (lambda: Categorical("c", (1, np.nan)), "levels"),
        (lambda: Categorical("c", (1, None)), "levels"),
        (lambda: Categorical("c", (1, 2**53)), "levels"),
        (lambda: Categorical("c", ([], {})), "levels"),
        (lambda: Categorical("c", ("a", "b"), other="x"), "other='x' must be one of the levels"),
        (lambda: Categorical("c", ("a", "b"), missing=["a"]), "missing"),
        (lambda: Schema(()), "one or more"),
        (lambda: Schema(("age",)), "Numeric or Categorical"),
        (lambda: Schema((AGE, AGE)), "more than once"),
    ],
)
def test_refuses_impossible_declarations(make, message):
    with pytest.raises(SchemaError, match=message):
        make()


def test_schema_is_a_collection_of_public_names():
    assert SCHEMA.names == ("age", "pay", "education", "children")
    assert SCHEMA["pay"] is PAY
    assert "pay" in SCHEMA
    assert "note" not in SCHEMA
    assert SCHEMA.select(["children", "age"]) == Schema((CHILDREN, AGE))
    with pytest.raises(SchemaError, match=r"no column 'note'; the schema has age, pay, education, children"):
        SCHEMA.select(["age", "note"])


def test_cells_count_the_distinct_rows():
    assert SCHEMA.cells is None
    assert Schema((AGE, EDUCATION, CHILDREN)).cells == 74 * 3 * 3


@pytest.mark.parametrize("codes", [[-1], [3], [0.0]])
def test_decode_refuses_codes_without_a_level(codes):
    with pytest.raises(SchemaError, match="from 0 to 2"):
        SCHEMA.decode({"education": codes})


def test_decode_gives_levels_of_their_own_type():
    schema = Schema((EDUCATION, Categorical("flag", (False, True)), AGE))
    decoded = schema.decode({"education": [2, 0], "flag": [1, 0], "age": [20.0, 30.0]})
    assert {k: v.tolist() for k, v in decoded.items()} == {
        "education": ["university", "none"],
        "flag": [True, False],
        "age": [20.0, 30.0],
    }


@settings(max_examples=150, deadline=None)
@given(schema=schemas())
def test_toml_round_trip(schema, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "round_trip.toml"
    schema.save(path)
    again = Schema.load(path)
    assert repr(again) == repr(schema)
    assert Schema.from_dict(schema.to_dict()) == schema


@pytest.mark.parametrize("name", ["a.b", "a b", 'say "hi"', "a'b", "back\\slash", "größe", "x\x7f\r\n", "[t]", "😀"])
def test_toml_quotes_names(name, tmp_path):
    schema = Schema((Numeric(name, 0, 1), Categorical("c", (name, "b"))))
    schema.save(tmp_path / "s.toml")
    assert Schema.load(tmp_path / "s.toml") == schema


def test_toml_is_what_a_person_would_write(tmp_path):
    Schema((AGE, EDUCATION, Numeric("pay", 0.5, 1e6, confirmed=False))).save(tmp_path / "s.toml")
    assert (tmp_path / "s.toml").read_text() == (
        "[columns.age]\nbounds = [17, 90]\ninteger = true\n\n"
        '[columns.education]\nlevels = ["none", "school", "university"]\nother = "none"\nmissing = "none"\n\n'
        "# NOT PUBLIC until you confirm it: guessed from the data\n"
        "[columns.pay]\nbounds = [0.5, 1000000.0]\nconfirmed = false\n"
    )


def test_save_leaves_the_old_file_whole_when_it_fails(tmp_path, monkeypatch):
    def fail(*paths):
        raise OSError("disk full")

    SCHEMA.save(tmp_path / "s.toml")
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        Schema((AGE,)).save(tmp_path / "s.toml")
    assert os.listdir(tmp_path) == ["s.toml"]
    assert Schema.load(tmp_path / "s.toml") == SCHEMA


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[columns.age", "is not TOML"),
        ("", "nothing else"),
        ("columns = 3", "nothing else"),
        ("title = 'x'\n[columns.age]\nbounds = [0, 1]", "nothing else, not .*title"),
        ("[columns]", "one or more"),
        ("[columns]\nage = 3", "'age' must have either bounds"),
        ("[columns.age]", "either bounds"),
        ("[columns.age]\nbounds = [0, 1]\nlevels = ['a', 'b']", "either bounds"),
        ("[columns.age]\nbounds = [0, 1]\nother = 1", "unknown keys .*other"),
        ("[columns.c]\nlevels = ['a', 'b']\ninteger = true", "unknown keys .*integer"),
        ("[columns.age]\nbounds = [0, 1, 2]", "two numbers"),
        ("[columns.age]\nbounds = 3", "two numbers"),
        ("[columns.age]\nbounds = ['0', '1']", "two finite numbers"),
        ("[columns.age]\nbounds = [0, inf]", "two finite numbers"),
        ("[columns.c]\nlevels = 'ab'", "2 or more distinct"),
        ("[columns.c]\nlevels = [1986-01-05, 1986-01-06]", "2 or more distinct"),
        ("[columns.c]\nlevels = ['a', 'b']\nconfirmed = 'no'", "confirmed='no' must be true or false"),
    ],
)
def test_load_names_what_is_wrong(text, message, tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(text)
    with pytest.raises(SchemaError, match=message) as caught:
        Schema.load(path)
    assert str(path) in str(caught.value)


def test_load_names_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SchemaError, match=r"s\.toml cannot be read"):
        Schema.load(tmp_path / "s.toml")


@pytest.mark.parametrize("source", ["mapping", "pandas", "polars", "arrow", "csv", "parquet"])
def test_draft_says_what_it_saw_and_is_refused_until_confirmed(source, tmp_path):
    table = SOURCES[source](tmp_path)
    schema = draft(table)
    assert set(schema.unconfirmed) == set(schema.names) == set(TABLE)
    assert schema["age"] == Numeric("age", 5, 200, integer=True, confirmed=False)
    assert schema["pay"] == Numeric("pay", -1.5, 12.25, confirmed=False)
    assert schema["education"] == Categorical("education", ("kindergarten", "university"), confirmed=False)
    with pytest.raises(SchemaError, match=r"age.* guessed from the data .*confirmed = true"):
        schema.encode(table)
    assert confirmed(schema.select(["age"])).encode(table)["age"].tolist() == [5, 44, 200]


def test_draft_survives_its_file_unconfirmed(tmp_path):
    draft(TABLE).save(tmp_path / "s.toml")
    assert Schema.load(tmp_path / "s.toml") == draft(TABLE)
    assert not any(c["confirmed"] for c in tomllib.loads((tmp_path / "s.toml").read_text())["columns"].values())


@pytest.mark.parametrize(
    ("values", "column"),
    [
        ([3, 3], Numeric("x", 3, 4, integer=True, confirmed=False)),
        ([0.5, np.inf, np.nan], Numeric("x", 0.5, 1.5, confirmed=False)),
        ([1.7e308], Numeric("x", 0.85e308, 1.7e308, confirmed=False)),
        ([2**60, 0], Numeric("x", 0.0, 2.0**60, confirmed=False)),
        ([True, None], Categorical("x", (False, True), confirmed=False)),
    ],
)
def test_draft_of_special_columns(values, column):
    assert draft({"x": values})["x"] == column


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([None, None], "'x' has only missing values"),
        ([np.inf, np.nan], "'x' has no finite values"),
        (["a", None], "'x' has only one level"),
        (list("abcd"), "'x' has over 3 levels.*max_levels"),
        (pd.to_datetime(["1986-01-05"]), "'x' holds timestamp"),
    ],
)
def test_draft_refuses_what_it_cannot_declare(values, message):
    with pytest.raises(SchemaError, match=message):
        draft({"x": values}, max_levels=3)
