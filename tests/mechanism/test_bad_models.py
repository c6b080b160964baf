"""Model code that breaks, breaks off or looks around: no row leaves, and nothing is spent where nothing can run."""

import os
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from discreet.fitting import Checkpoint, fit, run, secure, simulated
from discreet.ledger import Budget, open_account
from discreet.methods import elbo
from discreet.model import Linear
from tests import tiny

EFFECTS = {
    "print": lambda row: jax.debug.print("age {}", row["age"]),
    "callback": lambda row: jax.debug.callback(lambda age: None, row["age"]),
    "pure callback": lambda row: jax.pure_callback(
        lambda age: np.float64(age), jax.ShapeDtypeStruct((), jnp.float64), row["age"], vmap_method="sequential"
    ),
    "io callback": lambda row: jax.experimental.io_callback(lambda age: None, None, row["age"]),
    "callback in a branch": lambda row: jax.lax.cond(
        row["age"] > 30, lambda: jax.debug.callback(lambda age: None, row["age"]), lambda: None
    ),
}


def with_likelihood(change):
    """The tiny model, its log density of a row put through change(value, z, row)."""
    usual = tiny.MODEL.log_likelihood
    return replace(tiny.MODEL, log_likelihood=lambda z, row: change(usual(z, row), z, row))


def assert_nothing_is_spent(tmp_path, model, error, said):
    account = open_account(tmp_path / "ledger.db", "tiny", Budget(2.0, tiny.DELTA))
    budget = {"epsilon": tiny.EPSILON, "delta": tiny.DELTA}
    with pytest.raises(error, match=said):
        fit(model, tiny.rows(), **budget, choice=tiny.choice(), checkpoint=Checkpoint(tmp_path / "run", account))
    assert account.entries() == []
    assert sorted(os.listdir(tmp_path)) == ["ledger.db"]


@pytest.mark.parametrize("effect", EFFECTS)
def test_a_row_function_that_looks_out_is_refused_before_anything_is_spent(tmp_path, effect, capfd):
    def watched(value, _z, row):
        EFFECTS[effect](row)
        return value + 0.0 * (EFFECTS[effect](row) if effect == "pure callback" else 0.0)

    assert_nothing_is_spent(tmp_path, with_likelihood(watched), ValueError, "rows would leave through it")
    assert "age" not in capfd.readouterr().out


def test_a_model_that_raises_is_heard_before_anything_is_spent(tmp_path):
    def broken(_value, _z, row):
        raise KeyError(f"no column {sorted(row)[0]}x")

    assert_nothing_is_spent(tmp_path, with_likelihood(broken), KeyError, "no column")


def test_a_model_that_decides_by_a_value_is_refused_without_showing_it(tmp_path):
    """Python's `if` needs a value, and has none to see."""

    def choosy(value, _z, row):
        return value if row["age"] > 30 else 2 * value

    assert_nothing_is_spent(
        tmp_path, with_likelihood(choosy), jax.errors.TracerBoolConversionError, "Attempted boolean"
    )


@pytest.mark.parametrize("kind", [jnp.float32, jnp.int32, bool])
def test_rows_that_answer_in_another_type_are_refused(tmp_path, kind):
    """The step would fail on it, after the charge."""
    account = open_account(tmp_path / "ledger.db", "tiny", Budget(2.0, tiny.DELTA))
    plan = tiny.choice().plan
    query = elbo.query(tiny.MODEL, plan, tiny.choice().settings)
    other = query._replace(row_value=lambda question, row: query.row_value(question, row).astype(kind))
    with pytest.raises(ValueError, match="full precision"), Checkpoint(None, account) as checkpoint:
        run(secure(), plan, other, tiny.rows(), checkpoint=checkpoint)
    assert account.entries() == []


def answers(model, rows):
    """One exact sum, over all rows, of what they answer."""
    plan = replace(tiny.noiseless_choice(steps=1, sampling_prob=1.0, batch_limit=None).plan, num_rows=rows.num_rows)
    return np.asarray(
        run(simulated(1), plan, elbo.query(model, plan, tiny.choice().settings), rows, keep="trace").trace.y
    )


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_rows_without_a_finite_answer_are_left_out_and_move_no_other(bad):
    """The rows of men have no finite gradient: what is left is the sum over women, to the bit."""
    table = tiny.table()
    women = [place for place, sex in enumerate(table["sex"]) if sex == "f"]
    only = tiny.encode({name: [column[place] for place in women] for name, column in table.items()}, tiny.SCHEMA)
    broken = with_likelihood(lambda value, z, row: value * jnp.where(row["sex"] == 1, bad, 1.0))
    whole = with_likelihood(lambda value, *_: value)
    np.testing.assert_array_equal(answers(broken, tiny.rows()), answers(whole, only))


def test_a_model_without_any_finite_gradient_is_refused_by_the_planner(tmp_path):
    account = open_account(tmp_path / "ledger.db", "tiny", Budget(2.0, tiny.DELTA))
    broken = with_likelihood(lambda value, z, row: value * jnp.nan)
    with pytest.raises(ValueError, match=r"no finite gradient|too vague"):
        fit(broken, tiny.rows(), epsilon=1.0, delta=tiny.DELTA, account=account)
    assert account.entries() == []


def test_a_model_that_writes_into_its_row_writes_into_a_copy():
    def rude(_value, z, row):
        copy = dict(row)
        row["age"] = 0.0 * copy["age"]
        row.pop("sex")
        return tiny.MODEL.log_likelihood(z, copy)

    rows = tiny.rows()
    before = {name: column.copy() for name, column in rows._columns.items()}
    honest = with_likelihood(lambda value, *_: value)
    rude_model = replace(tiny.MODEL, log_likelihood=lambda z, row: rude(None, z, row))
    assert isinstance(tiny.MODEL.log_likelihood, Linear)
    np.testing.assert_allclose(answers(rude_model, rows), answers(honest, rows), rtol=1e-9)
    for name, column in before.items():
        np.testing.assert_array_equal(rows._columns[name], column)


def test_a_model_that_remembers_its_rows_remembers_no_values():
    seen = []

    def nosy(value, _z, row):
        seen.append(row["age"])
        return value

    answers(with_likelihood(nosy), tiny.rows())
    assert seen
    for age in seen:
        with pytest.raises(jax.errors.JAXTypeError):
            float(age)
