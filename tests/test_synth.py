"""Synthetic tables: what they are drawn from, what their files hold, and what analyses of them say together."""

import json
import math
import warnings
from dataclasses import replace
from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import synth
from discreet.accounting import Guarantee
from discreet.families import exponential
from discreet.families.described import described
from discreet.families.glm import glm
from discreet.model import Model, from_numpyro
from discreet.posterior import predictive
from discreet.posterior.types import Posterior, from_draws
from discreet.schema import Categorical, Numeric, Schema, SchemaError, Unit
from tests import tiny

PROMISE = Guarantee(0.5, 1e-5, "PLD", "dp-accounting 0.6.0", "3 × Gaussian(2.0)", 0.1, 0.02, "secure")
INFO = {"method": "one step, noise-aware", "plan": {"num_rows": 300}}
COIN = Schema((Categorical("x", ("no", "yes")),))
FAMILY = exponential.beta_bernoulli(2, 3)
ODD = Schema(
    (
        Categorical("a,b", ("a,b", 'say "x"', "two\nlines", "ünï ☃", "", "NA", " a ", "\r\n", "1", "true")),
        Categorical("number", (1, 2.5, -3)),
        Categorical("flag", (False, True)),
        Categorical("whole", (10, 20)),
        Numeric("count", -5, 2**40, integer=True),
        Numeric("share", -1e-3, 1e300),
    )
)


def uniform(schema):
    """A model of whole rows that are uniform on what the schema declares, around no parameter at all."""

    def simulate(key, z, row):
        drawn = {}
        for column, own in zip(schema.columns, jax.random.split(key, len(schema.columns)), strict=True):
            levels = jax.random.randint(own, (), 0, column.size) if isinstance(column, Categorical) else None
            number = jax.random.uniform(own, dtype=z.dtype)
            drawn[column.name] = levels if levels is not None else column.low + number * (column.high - column.low)
        return drawn

    zero = lambda *_: 0.0  # noqa: E731
    return Model(1, zero, zero, lambda z: {"z": z}, lambda key: jnp.zeros(1), schema.names, schema.names, simulate)


def made(model, schema, z, **info):
    """A posterior of any draws: nothing was asked of any rows."""
    return from_draws(np.asarray(z, float), model, PROMISE, info=INFO | info, schema=schema)


def coin(draws=200, seed=0):
    return made(FAMILY, COIN, np.random.default_rng(seed).normal(size=(draws, 1)))


def odd(draws=3):
    return made(uniform(ODD), ODD, np.zeros((draws, 1)))


def regression(draws=60):
    return made(tiny.MODEL, tiny.SCHEMA, np.random.default_rng(1).normal(size=(draws, 3)))


def test_tables_are_in_the_words_and_types_of_the_schema():
    (table,) = odd().synthesize(500, 1, seed=0)
    assert tuple(table) == ODD.names
    kinds = {name: values.dtype.kind for name, values in table.items()}
    assert kinds == {"a,b": "O", "number": "f", "flag": "b", "whole": "i", "count": "i", "share": "f"}
    for column in ODD.columns:
        values = table[column.name]
        assert values.shape == (500,)
        if isinstance(column, Categorical):
            assert set(values.tolist()) <= set(column.levels)
        else:
            assert values.min() >= column.low
            assert values.max() <= column.high


def test_a_seed_repeats_the_tables_and_no_seed_does_not():
    first, again, other, fresh, fresher = (
        np.stack([table["x"] for table in coin().synthesize(50, 4, seed=seed)]) for seed in (7, 7, 8, None, None)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert (fresh != fresher).any()


def test_each_table_is_of_one_draw_and_no_two_of_the_same():
    """Draws so far apart that a table tells its own: shares of a coin, with 2000 rows; 5 sds miss once in 10⁶."""
    shares = np.linspace(0.02, 0.98, 20)
    posterior = made(FAMILY, COIN, np.log(shares / (1 - shares))[:, None])
    found = [np.mean(table["x"] == "yes") for table in posterior.synthesize(2000, 20, seed=1)]
    assert np.abs(np.sort(found) - shares).max() < 5 * 0.5 / math.sqrt(2000)
    assert found != sorted(found)


def test_chunks_are_seamless(monkeypatch):
    """Rows beyond a chunk are as random as those within: the share has 4 sds, missed once in 10⁴."""
    monkeypatch.setattr(predictive, "CHUNK", 64)
    posterior = made(FAMILY, COIN, np.zeros((2, 1)))
    x = np.array([table["x"] == "yes" for table in posterior.synthesize(64 * 7 + 1, 2, seed=2)])
    assert x.shape == (2, 449)
    assert abs(x.mean() - 0.5) < 4 * 0.5 / math.sqrt(x.size)
    blocks = x[0][:448].reshape(7, 64)
    assert len({block.tobytes() for block in blocks}) == 7


def test_tables_are_made_one_by_one_and_refusals_come_at_once():
    tables = coin().synthesize(10**6, 200)
    assert len(next(tables)["x"]) == 10**6
    with pytest.raises(ValueError, match="n=0"):
        coin().synthesize(0, 1)


def test_a_numpyro_model_of_whole_rows_needs_no_covariates():
    schema = Schema(
        (Categorical("smokes", ("no", "yes")), Numeric("cups", 0, 40, integer=True), Numeric("age", 20, 80))
    )

    def people(smokes, cups, age):
        share = numpyro.sample("share", dist.Beta(1, 1))
        with numpyro.plate("rows", smokes.shape[0]):
            numpyro.sample("s", dist.Bernoulli(share), obs=smokes)
            numpyro.sample("c", dist.Poisson(1 + 8 * smokes), obs=cups)
            numpyro.sample("a", dist.Normal(50, 100), obs=age)

    model = from_numpyro(people, schema)
    (table,) = made(model, schema, np.zeros((5, 1))).synthesize(4000, 1, seed=0)
    assert tuple(table) == schema.names
    smokes = table["smokes"] == "yes"
    assert table["cups"].dtype.kind == "i"
    assert abs(table["cups"][smokes].mean() - 9) < 0.4  # 5.9 sds of a Poisson mean
    assert abs(table["cups"][~smokes].mean() - 1) < 0.15
    assert {table["age"].min(), table["age"].max()} == {20, 80}  # clamped, as real rows are when they are encoded


def test_public_covariates_stay_as_they_are_where_they_are_n_rows():
    public = tiny.table(40)
    for table in regression().synthesize(40, 3, covariates=public, seed=0):
        assert tuple(table) == tiny.SCHEMA.names
        np.testing.assert_array_equal(table["age"], public["age"])
        assert table["sex"].tolist() == public["sex"]
    outcomes = [table["ill"] for table in regression().synthesize(40, 3, covariates=public, seed=0)]
    assert (outcomes[0] != outcomes[1]).any()


def test_public_covariates_of_another_length_are_drawn_with_replacement_row_by_row():
    public = {"age": [21, 22, 23], "sex": ["f", "m", "f"]}
    first, second = regression().synthesize(300, 2, covariates=public, seed=0)
    assert set(zip(first["age"], first["sex"], strict=True)) == {(21, "f"), (22, "m"), (23, "f")}
    assert (first["age"] != second["age"]).any()


def test_the_outcome_follows_its_covariates():
    """A coefficient so large that the sex decides."""
    posterior = made(tiny.MODEL, tiny.SCHEMA, np.tile([-30.0, 0.0, 60.0], (3, 1)))
    (table,) = posterior.synthesize(50, 1, covariates=tiny.table(50))
    np.testing.assert_array_equal(table["ill"] == "yes", table["sex"] == "m")


def test_a_unit_is_left_out_because_rows_are_made_one_by_one():
    visits = Schema(COIN.columns, Unit("person", most=3, typical=2))
    (table,) = made(FAMILY, visits, np.zeros((2, 1))).synthesize(5, 1)
    assert tuple(table) == ("x",)


BAD_SCHEMA = Schema((Categorical("x", ("no", "yes", "other")),))


@pytest.mark.parametrize(
    ("posterior", "given", "reason"),
    [
        (coin, {"n": 0}, "n=0 must be a whole number ≥ 1"),
        (coin, {"n": -3}, "n=-3 must be"),
        (coin, {"n": 2.5}, "n=2.5 must be"),
        (coin, {"n": True}, "n=True must be"),
        (coin, {"m": 0}, "m=0 must be"),
        (coin, {"m": "4"}, "m='4' must be"),
        (coin, {"m": 201}, "m=201 exceeds the 200 draws of this posterior"),
        (coin, {"covariates": {"x": ["no"]}}, "makes every column itself"),
        (regression, {}, "says how ill depends on age, sex, not how these are distributed"),
        (regression, {"covariates": {"age": [30]}}, "no column 'sex'"),
        (regression, {"covariates": {"age": [30], "sex": ["x"]}}, "undeclared levels"),
        (regression, {"covariates": tiny.rows()}, "Rows is not supported"),
        (lambda: replace(coin(), model=None), {}, "no model to make rows with"),
        (lambda: replace(coin(), model=None, schema=None), {}, "no model and schema"),
        (lambda: replace(coin(), model=replace(FAMILY, simulate=None)), {}, "cannot simulate"),
        (lambda: replace(coin(), schema=tiny.SCHEMA), {}, "no column x"),
        (lambda: replace(coin(), z=np.zeros((1, 9, 2))), {}, "has 2 parameters and the model 1"),
        (lambda: replace(coin(), info=INFO | {"schema": BAD_SCHEMA.to_dict()}), {}, "declared otherwise: x"),
        (lambda: replace(coin(), info=INFO | {"schema": tiny.SCHEMA.to_dict()}), {}, "missing: age.*extra: x"),
        (lambda: replace(coin(), info={"method": "last iterate"}), {}, "only for tables drawn from a noise-aware"),
        (lambda: replace(coin(), info={"method": "one step, last iterate"}), {}, "read the release noise-aware"),
    ],
)
def test_what_cannot_be_drawn_is_refused_at_the_door_and_nothing_is_written(posterior, given, reason, tmp_path):
    asked = {"n": 10, "m": 2} | given
    with pytest.raises(ValueError, match=reason):
        posterior().synthesize(**asked)
    with pytest.raises(ValueError, match=reason):
        synth.save(tmp_path / "out", posterior(), **asked)
    assert not list(tmp_path.iterdir())


def test_levels_that_a_schema_does_not_have_and_numbers_that_are_none_are_refused():
    three = exponential.dirichlet_categorical((1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="levels of 'x' that the schema does not have"):
        next(made(three, COIN, np.zeros((2, 2))).synthesize(100, 1))
    waiting = exponential.gamma_exponential(1, 1)
    with pytest.raises(ValueError, match="'x' that is not a number"):
        next(made(waiting, Schema((Numeric("x", 0, 9),)), np.full((2, 1), np.nan)).synthesize(10, 1))


def test_a_naive_posterior_s_tables_are_for_comparison_and_say_so(tmp_path):
    naive = replace(coin(), info=INFO | {"method": "last iterate"})
    label = synth.read_label(synth.save(tmp_path / "out", naive, 10, 2, naive=True))
    assert (label["noise_aware"], label["pooling"][:9]) == (False, "not valid")
    with pytest.raises(ValueError, match="last iterate; pooling is valid only"):
        synth.told(tmp_path / "out")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_files_hold_the_tables_to_the_last_bit(tmp_path, kind):
    folder = synth.save(tmp_path / "out", odd(), 400, 3, kind=kind, seed=5)
    assert sorted(path.name for path in folder.iterdir()) == [
        "synthetic.json", *(f"table-00{number}.{kind}" for number in (1, 2, 3))
    ]  # fmt: skip
    for number, table in enumerate(odd().synthesize(400, 3, seed=5), start=1):
        read, whole = ODD.encode(folder / f"table-00{number}.{kind}"), ODD.encode(table)
        for name in ODD.names:
            np.testing.assert_array_equal(read[name], whole[name], strict=True)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\ufeff"), max_size=6)


@settings(max_examples=60, deadline=None)
@given(name=TEXT.filter(bool), levels=st.lists(TEXT, min_size=2, max_size=6, unique=True), alone=st.booleans())
def test_any_text_survives_csv(tmp_path_factory, name, levels, alone):
    columns = (Categorical(name, tuple(levels)), *(() if alone else (Numeric(name + "'", 0, 1),)))
    schema, path = Schema(columns), tmp_path_factory.mktemp("csv") / "table.csv"
    table = {name: np.array(levels, object), name + "'": np.linspace(0, 1, len(levels)) ** 3}
    table = {column: table[column] for column in schema.names}
    synth.writing._write_csv(synth.writing._arrow(table), path)
    for column, values in schema.encode(path).items():
        np.testing.assert_array_equal(values, schema.encode(table)[column])


@settings(max_examples=60, deadline=None)
@given(numbers=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=9))
def test_any_number_survives_csv(tmp_path_factory, numbers):
    path = tmp_path_factory.mktemp("csv") / "table.csv"
    synth.writing._write_csv(synth.writing._arrow({"x": np.array(numbers)}), path)
    schema = Schema((Numeric("x", -1.7e308, 1.7e308),))
    np.testing.assert_array_equal(schema.encode(path)["x"], schema.encode({"x": numbers})["x"])


def test_the_label_says_what_the_tables_are(tmp_path):
    label = synth.read_label(synth.save(tmp_path / "out", coin(), 20, 2, seed=3))
    assert (label["n"], label["m"], label["num_rows"], label["seed"]) == (20, 2, 300, 3)
    assert label["private"] is True
    assert label["guarantee"] == PROMISE.to_dict()
    assert Schema.from_dict(label["schema"]) == COIN
    assert label["covariates"] == "made by the model"
    assert any("m=2 is few" in text for text in synth.advice(label))
    assert any("n=20 is less than the 300 rows" in text for text in synth.advice(label))
    simulated = replace(coin(), guarantee=replace(PROMISE, noise="simulated"))
    label = synth.read_label(synth.save(tmp_path / "more", simulated, 300, 50))
    assert label["private"] is False
    assert "NOT PRIVATE" in label["says"]
    assert synth.advice(label) == []


def test_the_number_of_rows_is_secret_where_there_is_a_unit(tmp_path):
    posterior = replace(coin(), guarantee=replace(PROMISE, unit="person"))
    assert synth.read_label(synth.save(tmp_path / "out", posterior, 20, 2))["num_rows"] is None


def test_an_interrupted_or_refused_folder_leaves_nothing(tmp_path):
    def progress(places):
        yield from islice(places, 2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        synth.save(tmp_path / "out", coin(), 20, 5, progress=progress)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="format='xls' must be one of csv, parquet"):
        synth.save(tmp_path / "out", coin(), 20, 5, kind="xls")
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match="exists: choose another"):
        synth.save(tmp_path / "out", coin(), 20, 5)
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    with pytest.raises(ValueError, match=r"no synthetic.json"):
        synth.read_label(tmp_path / "out")


@pytest.mark.parametrize(
    "model",
    [
        FAMILY,
        exponential.gamma_exponential(2, 3, link="log"),
        exponential.dirichlet_categorical((1.0, 2.0)),
        tiny.MODEL,
        glm("logistic", "ill", ["age"], tiny.SCHEMA, coding="every level", units={"age": (30, 5)}),
    ],
    ids=lambda model: model.description["family"],
)
def test_a_ready_model_is_made_again_from_its_description(model):
    again = described(json.loads(json.dumps(model.description)), tiny.SCHEMA)
    assert (again.description, again.columns, again.outcome) == (model.description, model.columns, model.outcome)
    z, key = np.full(model.dim, 0.3), jax.random.key(0)
    row = {"age": jnp.array(30.0), "sex": jnp.array(1)}
    with jax.enable_x64(True):
        assert again.simulate(key, z, row) == model.simulate(key, z, row)


def test_other_descriptions_are_of_no_ready_model():
    assert described(None, COIN) is None
    assert described({"numpyro": "people"}, COIN) is None
    with pytest.raises(ValueError, match="it was changed"):
        described({"family": "beta-bernoulli", "a": 1}, COIN)
    with pytest.raises(SchemaError, match="no column"):
        described(tiny.MODEL.description, COIN)


def test_loading_gives_what_is_needed_to_draw(tmp_path):
    path = coin().save(tmp_path / "posterior.nc")
    loaded = Posterior.load(path, FAMILY, COIN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tables = zip(loaded.synthesize(30, 3, seed=1), coin().synthesize(30, 3, seed=1), strict=True)
    for one, other in tables:
        np.testing.assert_array_equal(one["x"], other["x"])
