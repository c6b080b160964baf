"""Units that are paid for: what they cost, that no more leaves, and that they are where the rows are."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from discreet import fitting
from discreet.accounting import calibrate, guarantee
from discreet.families.network import layers
from discreet.fitting import encode, paid_units, secure, simulated
from discreet.ledger import Budget, LedgerError, open_account
from discreet.mechanism import loop
from discreet.methods import law
from discreet.plan import Plan
from discreet.schema import Categorical, Numeric, Schema, Unit
from tests.guarantees.test_audits import (
    euclidean,
    honest_total,
    noise_of_points,
    noise_z_scores,
    sensitivity,
    unclipped,
    wild_columns,
)
from tests.guarantees.test_taint import assert_releases_are_public

SCHEMA = Schema(
    (
        Numeric("normal", -50, 50),
        Numeric("skewed", 0, 40),
        Categorical("sex", ("f", "m")),
        Numeric("flat", 100, 120),
        Numeric("few", 0, 9, integer=True),
        Numeric("many", 0, 500, integer=True),
    )
)
NUMBERS = ("normal", "skewed", "flat", "few", "many")
ROWS, BUDGET = 2000, {"epsilon": 1.0, "delta": 1e-5}


def columns_of(count=ROWS, seed=1):
    rng = np.random.default_rng(seed)
    return {
        "normal": rng.normal(7, 12, count).clip(-50, 50),
        "skewed": rng.exponential(8, count).clip(0, 40),
        "sex": rng.choice(["f", "m"], count),
        "flat": rng.uniform(100, 120, count),
        "few": rng.binomial(9, 0.6, count),
        "many": rng.binomial(500, 0.2, count),
    }


def rows_of(count=ROWS, seed=1):
    return encode(columns_of(count, seed), SCHEMA)


def asked_of(monkeypatch, columns=NUMBERS, rows=None, **given):
    """(plan, query, rows, release) of the one question that units take."""
    seen = []

    def watched(noise, plan, query, rows, **options):
        seen.append((plan, query, rows, run(noise, plan, query, rows, **options)))
        return seen[0][-1]

    run = fitting.run
    monkeypatch.setattr(fitting, "run", watched)
    paid_units(rows or rows_of(), columns, **BUDGET | {"noise": simulated(1)} | given)
    monkeypatch.setattr(fitting, "run", run)
    assert len(seen) == 1
    return seen[0]


@pytest.fixture
def no_row_is_asked(monkeypatch):
    monkeypatch.setattr(fitting, "run", lambda *_, **__: pytest.fail("the rows were asked"))


# What it costs.


def delta_of(epsilon, noise_multiplier):
    """Of one Gaussian answer that a row moves by one clip norm: Balle and Wang (2018)."""
    half, far = 1 / (2 * noise_multiplier), epsilon * noise_multiplier
    return stats.norm.cdf(half - far) - np.exp(epsilon) * stats.norm.cdf(-half - far)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_the_price_is_at_most_the_budget_and_that_of_its_plan(epsilon, monkeypatch):
    """Also by the closed form for one Gaussian answer, to 1 %: no more is claimed than holds, and little less."""
    budget = BUDGET | {"epsilon": epsilon}
    plan = asked_of(monkeypatch, **budget)[0]
    _, paid = paid_units(rows_of(), NUMBERS, **budget, noise=simulated(2))
    assert paid == guarantee(plan, BUDGET["delta"], "simulated")
    assert plan == calibrate(Plan(ROWS, 1, 1.0, law.count_norm(SCHEMA.select(NUMBERS).columns), 1.0), **budget)
    assert (plan.steps, plan.sampling_prob, plan.batch_limit) == (1, 1.0, None)
    assert plan.clip_norm == pytest.approx(5**0.5)
    assert paid.epsilon <= epsilon
    assert paid.delta == BUDGET["delta"]
    assert delta_of(paid.epsilon, plan.noise_multiplier) <= BUDGET["delta"]
    assert delta_of(0.99 * epsilon, plan.noise_multiplier) > BUDGET["delta"]


def test_noise_is_secure_unless_asked_otherwise():
    first, paid = paid_units(rows_of(), NUMBERS, **BUDGET)
    again, _ = paid_units(rows_of(), NUMBERS, **BUDGET)
    assert paid.private
    assert paid.noise == "secure"
    assert all(first[name] != again[name] for name in NUMBERS)


def test_simulated_noise_is_never_called_private_and_repeats_itself():
    first, paid = paid_units(rows_of(), NUMBERS, **BUDGET, noise=simulated(3))
    again, _ = paid_units(rows_of(), NUMBERS, **BUDGET, noise=simulated(3))
    other, _ = paid_units(rows_of(), NUMBERS, **BUDGET, noise=simulated(4))
    assert not paid.private
    assert str(paid).startswith("NOT PRIVATE")
    assert first == again
    assert all(first[name] != other[name] for name in NUMBERS)


def test_a_secure_stream_serves_once():
    stream = secure()
    paid_units(rows_of(), ["normal"], **BUDGET, noise=stream)
    with pytest.raises(ValueError, match="has served a run"):
        paid_units(rows_of(), ["flat"], **BUDGET, noise=stream)


@pytest.fixture
def account(tmp_path):
    return open_account(tmp_path / "ledger.db", "survey", Budget(1.2, 1e-5, num_rows=ROWS))


def test_an_account_is_charged_and_committed(account):
    _, paid = paid_units(rows_of(), NUMBERS, **BUDGET, account=account)
    (entry,) = account.entries()
    assert (entry.state, entry.purpose) == ("committed", "units")
    assert guarantee(entry.plan, BUDGET["delta"], "secure") == paid
    assert account.spent() == pytest.approx(paid.epsilon, rel=1e-3)
    with pytest.raises(LedgerError, match="would have spent"):
        paid_units(rows_of(), NUMBERS, **BUDGET, account=account)
    assert account.entries() == [entry]


def test_the_account_is_charged_before_the_first_row_is_asked(account, monkeypatch):
    """A run that dies while it asks stays charged."""

    def dies(*_):
        assert [entry.state for entry in account.entries()] == ["intent"]
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "_draw", dies)
    with pytest.raises(KeyboardInterrupt):
        paid_units(rows_of(), NUMBERS, **BUDGET, account=account)
    assert [entry.state for entry in account.entries()] == ["intent"]
    assert account.spent() > 0


@pytest.mark.usefixtures("no_row_is_asked")
def test_no_budget_pays_for_simulated_noise(account):
    with pytest.raises(ValueError, match=r"simulated noise protects nobody.*leave the account out"):
        paid_units(rows_of(), NUMBERS, **BUDGET, noise=simulated(1), account=account)
    assert account.entries() == []


# No more leaves than what was paid for.


def test_one_row_moves_the_counts_by_at_most_the_clip_norm(monkeypatch, key):
    """By all of it, as each row is in one cell of each column; NaN, infinite and huge numbers are in some cell."""
    plan, query, _, _ = asked_of(monkeypatch, rows=rows_of(30))
    wild = wild_columns(SCHEMA.sample(np.random.default_rng(2), 30), np.random.default_rng(3))
    moved = sensitivity(honest_total, query, plan, wild, np.ones(30), key)
    assert 0.9999 < moved <= 1.0


@pytest.mark.parametrize("fault", [unclipped, euclidean])
def test_the_sensitivity_audit_catches(fault, monkeypatch, key):
    """A clip norm for one column where there are five; Euclidean clipping under Laplace noise."""
    plan, query, rows, _ = asked_of(monkeypatch, rows=rows_of(30))
    plan = replace(plan, clip_norm=1.0) if fault is unclipped else replace(plan, noise_kind="laplace")
    columns = {name: jnp.asarray(values) for name, values in rows._columns.items()}
    assert sensitivity(fault, query, plan, columns, np.ones(30), key) > 1.0


@pytest.mark.parametrize("columns", [NUMBERS, ("few",)])
def test_its_release_is_public(columns, monkeypatch):
    """Also where rows are held as counts."""
    schema = SCHEMA if len(columns) > 1 else SCHEMA.select(columns)
    rows = encode(columns_of(30), schema)
    assert (rows._counts is None) == (len(columns) > 1)
    plan, query, rows, _ = asked_of(monkeypatch, columns, rows)
    assert_releases_are_public(plan, query, rows)


def test_the_noise_of_the_counts_is_the_plans(monkeypatch):
    """Of the question, and of 40 runs, whose counts are those of the rows without it. False alarm below 10⁻⁵."""
    rows = rows_of(300)
    plan, query, _, _ = asked_of(monkeypatch, rows=rows)
    assert np.abs(noise_z_scores(noise_of_points(plan, query), plan.noise_std)).max() < 4.9
    exact = counts_by_hand(rows)
    told = np.stack([asked_of(monkeypatch, rows=rows, noise=simulated(seed))[3].last for seed in range(40)])
    assert np.abs(noise_z_scores(told - exact, plan.noise_std)).max() < 4.9
    assert np.abs(noise_z_scores(told - exact, 0.9 * plan.noise_std)).max() > 4.9


def counts_by_hand(rows, bins=16):
    """Bounds are cells of their own, and so are whole numbers where there are few."""
    found = []
    for column in SCHEMA.select(NUMBERS).columns:
        values = np.asarray(rows._columns[column.name])
        if column.name == "few":
            found.append(np.bincount(values.astype(int), minlength=10))
            continue
        inner = (values > column.low) & (values < column.high)
        edges = np.linspace(column.low, column.high, bins + 1)
        at_bounds = (values <= column.low).sum(), (values >= column.high).sum()
        found.append(np.r_[at_bounds[0], np.histogram(values[inner], edges)[0], at_bounds[1]])
    return np.concatenate(found).astype(float)


# Where the rows are.


@pytest.mark.parametrize("bins", [12, 16, 40])
def test_with_hardly_any_noise_units_are_those_of_the_rows(bins):
    """The centre within a bin of the median, the scale within half a bin of half of what lies between 16 and 84 %.

    At ε = 50 noise of one count in 2000 moves a quantile by less than a hundredth of a bin: what is left is how rows
    lie in their bin. A bin is a value where these are few.
    """
    table = columns_of()
    units, paid = paid_units(rows_of(), NUMBERS, epsilon=50.0, delta=1e-5, bins=bins, noise=simulated(5))
    assert paid.epsilon <= 50.0
    assert tuple(units) == NUMBERS
    for name, (centre, scale) in units.items():
        column = SCHEMA[name]
        width = 1.0 if name == "few" else (column.high - column.low) / bins
        low, middle, high = np.quantile(table[name], [0.16, 0.5, 0.84])
        assert abs(centre - middle) < width
        assert abs(scale - (high - low) / 2) < width / 2


def test_units_at_a_usual_price_are_near_those_of_the_rows():
    """At ε = 1 for 2000 rows and columns of many bins. Over forty seeds sds were .025 of the spread for the centre and
    .04 for the spread itself, and bins moved either by .02: six sds, for 60 numbers. False alarm below 10⁻⁶.
    """
    table, names = columns_of(), NUMBERS[:3]
    for seed in range(10):
        units, _ = paid_units(rows_of(), NUMBERS, **BUDGET, noise=simulated(seed))
        for name in names:
            (centre, scale), (low, middle, high) = units[name], np.quantile(table[name], [0.16, 0.5, 0.84])
            assert abs(centre - middle) < 0.15 * (high - low) / 2
            assert abs(scale / (high - low) * 2 - 1) < 0.25


@pytest.mark.parametrize("epsilon", [50.0, 0.01])
@pytest.mark.parametrize("name", NUMBERS)
def test_units_of_a_constant_column_are_positive_and_finite(name, epsilon):
    """At either bound and between them, also where noise is all there is; the centre is within bounds."""
    column = SCHEMA[name]
    for value in (column.low, (column.low + column.high) // 2, column.high):
        rows = encode({name: np.full(200, value)}, SCHEMA.select([name]))
        units, _ = paid_units(rows, [name], epsilon=epsilon, delta=1e-5, noise=simulated(6))
        centre, scale = units[name]
        width = 1.0 if name == "few" else (column.high - column.low) / 16
        assert 0 < scale < np.inf
        assert column.low <= centre <= column.high
        if epsilon == 50.0:
            assert abs(centre - value) <= width
            assert scale <= width


@pytest.mark.parametrize(("count", "bins"), [(1, 16), (5, 16), (50, 2), (50, 3), (50, 4)])
def test_a_handful_of_rows_or_bins_has_units_too(count, bins):
    for epsilon in (50.0, 0.01):
        units, _ = paid_units(rows_of(count), NUMBERS, epsilon=epsilon, delta=1e-5, bins=bins, noise=simulated(7))
        for name, (centre, scale) in units.items():
            assert SCHEMA[name].low <= centre <= SCHEMA[name].high
            assert 0 < scale < SCHEMA[name].high - SCHEMA[name].low


def test_rows_that_are_held_as_counts_have_the_same_units():
    whole = encode(columns_of(), SCHEMA)
    alone = encode(columns_of(), SCHEMA.select(["few"]))
    assert whole._counts is None
    assert alone._counts is not None
    given = {**BUDGET, "noise": simulated(8)}
    assert paid_units(whole, ["few"], **given)[0] == paid_units(alone, ["few"], **given)[0]


def test_units_are_what_a_network_takes():
    units, _ = paid_units(rows_of(), ["normal", "flat", "skewed"], **BUDGET, noise=simulated(9))
    made = layers("flat", ["normal", "skewed", "sex"], SCHEMA, 3, units=units)
    assert (made.centre, made.scale) == units["flat"]
    row = {"normal": units["normal"][0] + units["normal"][1], "skewed": units["skewed"][0], "sex": jnp.array(0)}
    np.testing.assert_allclose(made.features(row), np.array([1, 1, 0, 0]) / 2, atol=1e-6)


# What has no units.


@pytest.mark.usefixtures("no_row_is_asked")
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"columns": ["normal", "sex"]}, r"columns=\['normal', 'sex'\] must be numeric.*\['sex'\] have no units"),
        ({"columns": []}, "columns must be one or more|at least one"),
        ({"columns": ["normal", "height"]}, "no column 'height'"),
        ({"columns": ["normal", "flat", "normal"]}, r"\['normal'\] are declared more than once"),
        ({"bins": 1}, "bins=1 must be a whole number, at least 2"),
        ({"bins": 2.5}, r"bins=2\.5 must be a whole number"),
        ({"bins": True}, "bins=True must be a whole number"),
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"epsilon": np.nan}, "epsilon=nan"),
        ({"delta": 0.0}, "delta=0.0"),
    ],
)
def test_what_has_no_units_is_refused_by_name(changes, problem, account):
    given = {"columns": NUMBERS, **BUDGET, "account": account, **changes}
    with pytest.raises(ValueError, match=problem):
        paid_units(rows_of(20), **given)
    assert account.entries() == []


@pytest.mark.usefixtures("no_row_is_asked")
def test_several_rows_for_one_person_are_refused():
    schema = replace(SCHEMA, unit=Unit("person", 3, 2))
    rows = encode({**columns_of(20), "person": np.arange(20) // 2}, schema)
    with pytest.raises(ValueError, match=r"'person' may have several rows.*give units"):
        paid_units(rows, NUMBERS, **BUDGET)


def test_rows_on_disk_are_refused_before_anything_is_charged(account, tmp_path):
    rows = encode(columns_of(), SCHEMA, tmp_path / "rows")
    with pytest.raises(ValueError, match="rows on disk"):
        paid_units(rows, NUMBERS, **BUDGET, account=account)
    assert account.entries() == []
