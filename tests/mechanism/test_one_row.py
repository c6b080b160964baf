"""One row a step: the sampler of the DP-SEP paper, its plan, its price and its mechanism."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from discreet.accounting import calibrate, event, guarantee
from discreet.mechanism import loop, noise, sampling
from discreet.mechanism.rows import store
from discreet.plan import Plan
from discreet.query import Point, Query
from discreet.schema import Categorical, Numeric, Schema


def one_row(num_rows=50, steps=20, **changes):
    usual = {"sampling_prob": 1 / num_rows, "clip_norm": 1.0, "noise_multiplier": 2.0, "sampling": "one row"}
    return Plan(**{"num_rows": num_rows, "steps": steps} | usual | changes)


def test_every_row_is_drawn_alike_and_independently():
    """χ² over 50 rows, and over pairs of neighbouring steps; false alarm 10⁻⁴ each."""
    plan = one_row()
    batch = sampling.draw_batches(noise.simulated(1), 0, plan, 100_000, None)
    assert batch.indices.shape == batch.multiplicity.shape == (100_000, 1)
    assert (batch.multiplicity == 1).all()
    drawn = batch.indices[:, 0]
    assert stats.chisquare(np.bincount(drawn, minlength=50)).pvalue > 1e-4
    pairs = np.bincount(50 * drawn[:-1:2] + drawn[1::2], minlength=2500)
    assert stats.chisquare(pairs).pvalue > 1e-4


def test_replicas_draw_their_own():
    batch = sampling.draw_batches(noise.simulated(1), 0, one_row(), 30, None, replicas=4)
    assert batch.indices.shape == (4, 30, 1)
    assert (batch.indices[0] != batch.indices[1]).any()


def test_the_mechanism_sums_one_row_and_its_noise():
    values = np.arange(50.0) / 100
    rows = store(Schema((Numeric("x", 0, 1),)), {"x": values})
    query = Query(
        init=lambda key: jnp.zeros(1),
        ask=lambda chance, state: (),
        row_value=lambda question, row: jnp.reshape(row["x"], (1,)),
        update=lambda state, question, answer: (state, Point(state, state, answer, jnp.ones(1))),
        last=lambda state: state,
        size=1,
        columns=("x",),
        settings={},
    )
    plan = one_row(steps=300, noise_multiplier=0.0)
    answers = loop.run(noise.simulated(3), plan, query, rows, keep="trace").trace.y[:, 0]
    assert np.abs(100 * answers - np.round(100 * answers)).max() < 1e-3
    assert len(set(np.round(100 * answers))) > 40


def test_its_price_is_that_of_replacing_a_row():
    """Twice the clip norm: a noise multiplier of 2·1.36 is 1.36 sensitivities. 2.35 in `privacy.md` of the house."""
    paid = guarantee(one_row(1000, 100_000, noise_multiplier=2.72), 1e-5)
    assert paid.epsilon == pytest.approx(2.348, abs=2e-3)
    assert (paid.relation, paid.accountant) == ("replace-one", "RDP")
    assert "replace-one" in str(paid)
    assert 0 < paid.advantage < 1
    assert "one of 1000 rows" in paid.event


def test_a_budget_is_met():
    plan = calibrate(one_row(200, 1000), 1.0, 1e-5)
    assert 0.99 < guarantee(plan, 1e-5).epsilon <= 1.0
    assert event(plan).event.sample_size == 1


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"sampling": "two rows"}, "sampling=two rows must be one of"),
        ({"sampling_prob": 0.1}, "1/num_rows = 0.02"),
        ({"batch_limit": 1}, "batch_limit=1"),
        ({"noise_kind": "laplace"}, "noise_kind=laplace"),
    ],
)
def test_plans_that_are_none_are_refused(changes, problem):
    with pytest.raises(ValueError, match=problem):
        one_row(**changes)


def test_two_relations_do_not_add_up():
    with pytest.raises(ValueError, match="one relation"):
        guarantee([one_row(), Plan(50, 20, 0.1, 1.0, 2.0)], 1e-5)


def test_counts_are_refused():
    schema = Schema((Categorical("x", ("a", "b")),))
    rows = store(schema, {"x": np.zeros(50, np.int32)})
    with pytest.raises(ValueError, match="held as counts"):
        loop._check(noise.simulated(1), one_row(), rows)
