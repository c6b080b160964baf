"""The law of the covariates: cells, how long answers are, and rows that have the moments which were told."""

import jax
import numpy as np
import pytest

from discreet.mechanism import loop, noise
from discreet.mechanism.rows import store
from discreet.methods import law
from discreet.plan import Plan
from discreet.schema import Categorical, Numeric, Schema

BINS, ROWS = 32, 4000
CONTINUOUS, FEW, MANY = Numeric("x", -2.5, 6.0), Numeric("x", 3, 12, integer=True), Numeric("x", -40, 60, integer=True)
LEVELS = Categorical("x", ("a", "b", "c"))
MIXED = Schema(
    (
        Numeric("normal", -4, 4),
        Categorical("three", ("a", "b", "c")),
        Numeric("skewed", 0, 30),
        Numeric("few", 0, 9, integer=True),
        Categorical("two", ("no", "yes")),
        Numeric("many", 0, 200, integer=True),
    )
)
NUMBERS = ("normal", "skewed", "few", "many")


def mixed_table(num_rows=ROWS):
    rng = np.random.default_rng(0)
    shared = rng.multivariate_normal(np.zeros(3), [[1, 0.5, 0.3], [0.5, 1, -0.2], [0.3, -0.2, 1]], num_rows).T
    share = rng.random(num_rows)
    three = np.where(share < 0.8 / (1 + np.exp(-shared[0])), 0, np.where(share < 0.9, 1, 2))
    return {
        "normal": np.clip(shared[0], -4, 4),
        "three": three.astype(np.int32),
        "skewed": np.clip(np.exp(0.5 * shared[1] + 1.5), 0, 30),
        "few": rng.binomial(9, 1 / (1 + np.exp(-shared[2]))).astype(float),
        "two": (rng.random(num_rows) < np.where(three == 0, 0.7, 0.25)).astype(np.int32),
        "many": np.clip(np.round(80 + 20 * shared[0] + rng.normal(0, 20, num_rows)), 0, 200),
    }


def told_by(query, plan, schema, table, seed):
    release = loop.run(noise.simulated(seed), plan, query, store(schema, table))
    return np.asarray(release.last), plan.noise_std


def buy(schema, table, of_counts=0.0, of_moments=0.0, seed=0):
    """What both questions are answered, with noise of these sds on the mean of rows."""
    columns, num_rows = schema.columns, len(table[schema.names[0]])

    def plan(clip_norm, sd):
        return Plan(num_rows, 1, 1.0, clip_norm, sd * num_rows / clip_norm)

    first, second = plan(law.count_norm(columns), of_counts), plan(law.moment_norm(columns), of_moments)
    counts = told_by(law.ask_counts(columns, BINS, first), first, schema, table, 2 * seed)
    with jax.enable_x64(True):  # as the loop has it
        query = law.ask_moments(columns, BINS, counts, second)
    return counts, told_by(query, second, schema, table, 2 * seed + 1)


def learn(schema, heard, laws=0, num_rows=ROWS, seed=1):
    return law.learn(np.random.default_rng(seed), schema.columns, BINS, *heard, num_rows, laws)


def shares(made, column):
    return np.bincount(made[column.name], minlength=column.size) / len(made[column.name])


# Cells.


@pytest.mark.parametrize("column", [CONTINUOUS, FEW, MANY, LEVELS], ids=["continuous", "few", "many", "levels"])
def test_every_value_has_a_cell_of_which_it_is_a_value(column):
    """Continuous ones lie between the ends of their cell; whole ones may be rounded into it from half a unit away."""
    values = column.sample(np.random.default_rng(1), 3000)
    cell = law.cell_of(column, BINS, values)
    assert cell.min() >= 0
    assert cell.max() < law.cells(column, BINS)
    low, high = (law.value_in(column, BINS, cell, np.full(3000, share)) for share in (0.0, 1.0))
    slack = 0.5 if column is MANY else 1e-9
    assert (low - slack <= values).all()
    assert (values <= high + slack).all()


@pytest.mark.parametrize("column", [CONTINUOUS, FEW, LEVELS], ids=["continuous", "few", "levels"])
def test_a_value_of_a_cell_is_in_that_cell(column):
    cell = np.repeat(np.arange(law.cells(column, BINS)), 9)
    share = np.tile(np.linspace(0.01, 0.99, 9), law.cells(column, BINS))
    np.testing.assert_array_equal(law.cell_of(column, BINS, law.value_in(column, BINS, cell, share)), cell)


def test_whole_numbers_that_are_many_are_made_whole_in_their_cell_or_the_next():
    cell = np.repeat(np.arange(BINS + 2), 9)
    values = law.value_in(MANY, BINS, cell, np.tile(np.linspace(0.01, 0.99, 9), BINS + 2))
    np.testing.assert_array_equal(values, np.round(values))
    assert np.abs(law.cell_of(MANY, BINS, values) - cell).max() <= 1


@pytest.mark.parametrize("column", [CONTINUOUS, MANY], ids=["continuous", "many"])
def test_bounds_are_cells_of_their_own(column):
    ends = np.array([column.low, column.high], float)
    np.testing.assert_array_equal(law.cell_of(column, BINS, ends), [0, BINS + 1])
    inside = np.array([column.low + 1e-6, column.high - 1e-6])
    np.testing.assert_array_equal(law.cell_of(column, BINS, inside), [1, BINS])
    np.testing.assert_array_equal(law.value_in(column, BINS, np.array([0, BINS + 1]), np.full(2, 0.5)), ends)


def test_whole_numbers_have_cells_of_their_own_as_long_as_they_are_few():
    assert law.cells(Numeric("x", 0, BINS + 1, integer=True), BINS) == BINS + 2
    assert law.cells(Numeric("x", 0, 10 * BINS, integer=True), BINS) == BINS + 2
    assert [law.cells(column, BINS) for column in (CONTINUOUS, FEW, LEVELS)] == [BINS + 2, 10, 3]
    values = np.arange(3.0, 13.0)
    np.testing.assert_array_equal(law.cell_of(FEW, BINS, values), np.arange(10))


def test_levels_that_are_many_have_cells_of_their_own():
    wide = Categorical("x", tuple(range(3 * BINS)))
    codes = np.arange(3 * BINS, dtype=np.int32)
    np.testing.assert_array_equal(law.cell_of(wide, BINS, codes), codes)
    assert law.value_in(wide, BINS, codes, np.zeros(3 * BINS)).dtype == np.int32


@pytest.mark.parametrize("column", [CONTINUOUS, FEW, MANY, LEVELS], ids=["continuous", "few", "many", "levels"])
def test_rows_are_put_into_the_cells_that_made_them(column):
    """By JAX, as the mechanism does it, and by NumPy."""
    values = column.sample(np.random.default_rng(1), 1000)
    with jax.enable_x64(True):
        found = law.cell_of(column, BINS, jax.numpy.asarray(values), jax.numpy)
    np.testing.assert_array_equal(found, law.cell_of(column, BINS, values))


# How long answers are.


def extreme_table(num_rows=400):
    """Uniform rows, and some with every column at a bound or on one level."""
    rng = np.random.default_rng(4)
    table = MIXED.sample(rng, num_rows)
    for column in MIXED.columns:
        ends = (0, column.size - 1) if isinstance(column, Categorical) else (column.low, column.high)
        table[column.name][: num_rows // 4] = rng.choice(ends, num_rows // 4)
    return table


def answers(query, table):
    with jax.enable_x64(True):
        question = query.ask(None, query.init(None))
        return np.asarray(jax.jit(jax.vmap(lambda row: query.row_value(question, row)))(table))


def told_counts(how):
    """Counts of a table; such that noise alone has made; and of one value."""
    rng, size = np.random.default_rng(5), sum(law.cells(column, BINS) for column in MIXED.columns)
    if how == "true":
        return answers(law.ask_counts(MIXED.columns, BINS, Plan(400, 1, 1.0, 9.0, 0.0)), extreme_table()).sum(0), 0.0
    return (rng.normal(0, 1e4, size), 1e4) if how == "noise" else (np.eye(size)[0] * 400, 1.0)


def test_a_row_answers_for_each_column_with_one_cell():
    found = answers(law.ask_counts(MIXED.columns, BINS, Plan(400, 1, 1.0, 9.0, 0.0)), extreme_table())
    assert set(np.unique(found)) == {0.0, 1.0}
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), law.count_norm(MIXED.columns))


@pytest.mark.parametrize("how", ["true", "noise", "one value"])
def test_no_row_answers_with_moments_that_are_longer_than_the_norm(how):
    query = law.ask_moments(MIXED.columns, BINS, told_counts(how), Plan(400, 1, 1.0, 9.0, 0.0))
    found = answers(query, extreme_table())
    assert found.shape[1] == law.size_of_moments(MIXED.columns)
    assert np.linalg.norm(found, axis=1).max() <= law.moment_norm(MIXED.columns) * (1 + 1e-12)


def test_the_norm_of_moments_is_reached_by_numbers_far_out():
    """So that no smaller one would do."""
    schema = MIXED.select(NUMBERS)
    counts = (np.full(sum(law.cells(column, BINS) for column in schema.columns), 10.0), 1.0)
    query = law.ask_moments(schema.columns, BINS, counts, Plan(400, 1, 1.0, 9.0, 0.0))
    lengths = np.linalg.norm(answers(query, {name: extreme_table()[name] for name in NUMBERS}), axis=1)
    assert lengths.max() == pytest.approx(law.moment_norm(schema.columns), rel=1e-9)


@pytest.mark.parametrize("question", ["counts", "moments"])
def test_without_noise_a_row_that_is_removed_moves_the_sum_by_what_it_answered(question):
    """At most the norm, through the mechanism; its grid has clip_norm / 2²⁰."""
    table, columns = extreme_table(), MIXED.columns
    counts = told_counts("true")

    def told(rows):
        norm = {"counts": law.count_norm, "moments": law.moment_norm}[question](columns)
        plan = Plan(len(rows["two"]), 1, 1.0, norm, 0.0)
        asked = {"counts": lambda: law.ask_counts(columns, BINS, plan)}
        asked["moments"] = lambda: law.ask_moments(columns, BINS, counts, plan)
        query = asked[question]()
        return told_by(query, plan, MIXED, rows, 1)[0], norm, answers(query, table)

    whole, norm, alone = told(table)
    for row in (0, 7, 350):
        rest, *_ = told({name: np.delete(values, row) for name, values in table.items()})
        assert np.linalg.norm(whole - rest) <= norm
        np.testing.assert_allclose(whole - rest, alone[row], atol=400 * norm / 2**20)


# What is learned.


def test_without_noise_rows_are_made_with_the_moments_of_the_table():
    """8192 rows are drawn of the law: means within .03 sds and shares within .02 are three to four standard errors."""
    table = mixed_table()
    (made,) = learn(MIXED, buy(MIXED, table))
    for name in NUMBERS:
        sd = table[name].std()
        assert abs(made[name].mean() - table[name].mean()) < 0.03 * sd
        assert made[name].std() == pytest.approx(sd, rel=0.03)
    both = [np.corrcoef([rows[name] for name in NUMBERS]) for rows in (made, table)]
    np.testing.assert_allclose(*both, atol=0.02)
    for name in ("three", "two"):
        np.testing.assert_allclose(shares(made, MIXED[name]), shares(table, MIXED[name]), atol=0.02)


def test_without_noise_levels_go_together_as_in_the_table():
    """Shares of pairs of levels, and the means of numbers on each level; chance alone would miss both by far."""
    table = mixed_table()
    (made,) = learn(MIXED, buy(MIXED, table))

    def pairs(rows):
        return np.histogram2d(rows["three"], rows["two"], (3, 2))[0] / len(rows["two"])

    by_chance = np.outer(pairs(table).sum(1), pairs(table).sum(0))
    assert np.abs(pairs(table) - by_chance).max() > 0.1
    np.testing.assert_allclose(pairs(made), pairs(table), atol=0.02)
    for name in NUMBERS:
        on_level = [[rows[name][rows["three"] == level].mean() for level in range(3)] for rows in (made, table)]
        np.testing.assert_allclose(*on_level, atol=0.06 * table[name].std())
    assert table["many"][table["three"] == 0].mean() - table["many"][table["three"] == 1].mean() > 5


def test_the_shape_of_a_margin_is_that_of_the_table():
    table = mixed_table()
    (made,) = learn(MIXED, buy(MIXED, table))
    for name in NUMBERS:
        found, true = (np.quantile(rows[name], [0.05, 0.25, 0.5, 0.75, 0.95]) for rows in (made, table))
        np.testing.assert_allclose(found, true, atol=0.08 * table[name].std() + (0.5 if name == "few" else 0.0))


def small_table(num_rows=ROWS):
    rng = np.random.default_rng(3)
    first, second = rng.multivariate_normal(np.zeros(2), [[1, 0.5], [0.5, 1]], num_rows).T
    levels = (rng.random(num_rows) < 1 / (1 + np.exp(-first))).astype(np.int32)
    return {"a": np.clip(first, -4, 4), "b": np.clip(10 + 2 * second, 0, 20), "t": levels}


SMALL = Schema((Numeric("a", -4, 4), Numeric("b", 0, 20), Categorical("t", ("no", "yes"))))


def summary(rows):
    together = np.corrcoef([rows["a"], rows["b"], rows["t"]])[np.triu_indices(3, 1)]
    return np.array([rows["a"].mean(), rows["b"].mean() / 2, rows["t"].mean() * 2, *together])


def test_laws_are_as_far_apart_as_the_middle_one_is_from_the_truth():
    """Sixteen answers with noise of sd .02 in counts and .03 in moments, eight laws each, six numbers each: the mean
    square of errors over that of spreads has an sd of √(2/96 + 2/672) = .15 were all independent, and its logarithm is
    within five of them of zero (false alarm below 10⁻⁶).
    """
    table = small_table()
    true, errors, spreads = summary(table), [], []
    for seed in range(16):
        found = np.stack([summary(rows) for rows in learn(SMALL, buy(SMALL, table, 0.02, 0.03, seed), 8, seed=seed)])
        errors.append(found[0] - true)
        spreads.append(found[1:].var(0, ddof=1))
    spread = np.sqrt(np.mean(spreads, 0))
    assert abs(np.log(np.mean((errors / spread) ** 2))) < 5 * 0.15
    assert (spread > 0.02).all()
    assert (spread < 0.06).all()


def test_without_noise_all_laws_are_the_same_but_for_the_rows_that_are_drawn():
    """Their means differ by the chance of 8192 rows, .011 sds each; noise of .03 would show."""
    found = np.stack([summary(rows) for rows in learn(SMALL, buy(SMALL, small_table()), 8)])
    assert found.std(0).max() < 0.015
    assert found.std(0).min() > 0


def test_the_middle_law_does_not_depend_on_how_many_others_are_drawn():
    """Else a question would be asked under one law, and read under another."""
    heard = buy(SMALL, small_table(), 0.02, 0.03)
    (alone,), among = learn(SMALL, heard), learn(SMALL, heard, 3)
    assert len(among) == 4
    for name, column in alone.items():
        np.testing.assert_array_equal(column, among[0][name])
        assert not np.array_equal(among[1][name], among[2][name])


def correlations(rows, names):
    return np.corrcoef([rows[name] for name in names])[np.triu_indices(len(names), 1)]


def test_columns_that_all_go_together_are_found_better_than_pair_by_pair(monkeypatch):
    """28 correlations of .6 under noise of .1, a third more once what the cut of rows takes is given back: errors are
    smaller by a third, and the one factor is what does it.
    """
    rng, names = np.random.default_rng(1), [f"x{number}" for number in range(8)]
    schema = Schema(tuple(Numeric(name, -4, 4) for name in names))
    values = rng.multivariate_normal(np.zeros(8), 0.4 * np.eye(8) + 0.6, ROWS).T
    table = {name: np.clip(column, -4, 4) for name, column in zip(names, values, strict=True)}
    true, quiet = correlations(table, names), buy(schema, table)[1][0][16:]
    heard = [buy(schema, table, 0.002, 0.1, seed) for seed in range(4)]

    def error(found):
        return np.sqrt(np.square(found - true).mean())

    pair_by_pair = error(np.stack([true * told[16:] / quiet for _, (told, _) in heard]))
    together = error(np.stack([correlations(learn(schema, one)[0], names) for one in heard]))
    monkeypatch.setattr(law, "_one_factor", lambda columns, seen, noise: np.zeros(len(seen)))
    alone = error(np.stack([correlations(learn(schema, one)[0], names) for one in heard]))
    assert 0.1 < pair_by_pair < 0.2
    assert together < 0.67 * pair_by_pair
    assert together < 0.9 * alone


def test_columns_that_do_not_go_together_are_found_so_under_noise():
    """Correlations of zero under noise of .1: shrunk towards zero, by a factor of two at least."""
    rng, names = np.random.default_rng(2), [f"x{number}" for number in range(6)]
    schema = Schema(tuple(Numeric(name, -4, 4) for name in names))
    table = {name: np.clip(rng.normal(size=ROWS), -4, 4) for name in names}
    found = [correlations(learn(schema, buy(schema, table, 0.002, 0.1, seed))[0], names) for seed in range(4)]
    assert np.sqrt(np.square(found).mean()) < 0.05


# Tables that are hardly any.


def joined(column, values, of_counts, of_moments, seed=0):
    """The mean and mean square (÷ √2) of one column's scores: as told, joined with counts, and without noise."""
    schema, table = Schema((column,)), {"x": values}
    counts, moments = buy(schema, table, of_counts, of_moments, seed)
    margins = law._margins(schema.columns, BINS, counts)
    found, unsure = law._with_counts(schema.columns, BINS, margins, moments[0] / len(values), of_moments)
    with jax.enable_x64(True):
        query = law.ask_moments(schema.columns, BINS, counts, Plan(len(values), 1, 1.0, 99.0, 1e-9))
        question = query.init(jax.random.key(0))[0]
        truth = np.asarray(jax.vmap(query.row_value, in_axes=(None, 0))(question, table)).mean(0)
    return moments[0] / len(values), found, unsure, truth


def test_where_counts_say_more_than_moments_the_moments_follow_them():
    """Moments with noise of .5, counts with .002: what is joined is nearer to the truth in at least 17 of 20 buys (a
    coin does that once in 800), and off by at most three of the sds that are said, but for a share of 10⁻².
    """
    values = np.clip(np.random.default_rng(3).normal(1.0, 1.0, ROWS), -2.5, 6.0)
    apart = []
    for seed in range(20):
        told, found, unsure, truth = joined(CONTINUOUS, values, 0.002, 0.5, seed)
        assert (unsure < 0.5).all()
        apart.append((np.linalg.norm(told - truth), np.linalg.norm(found - truth), np.abs((found - truth) / unsure)))
    assert sum(before > after for before, after, _ in apart) >= 17
    assert np.mean([far <= 3 for *_, far in apart]) >= 0.95


def test_where_moments_say_more_than_counts_they_stay():
    values = np.clip(np.random.default_rng(3).normal(1.0, 1.0, ROWS), -2.5, 6.0)
    told, found, unsure, _ = joined(CONTINUOUS, values, 0.05, 0.001)
    np.testing.assert_allclose(found, told, atol=1e-3)
    np.testing.assert_allclose(unsure, 0.001, rtol=0.01)


def test_correlations_that_noise_made_impossible_are_mended_and_others_stay():
    """Of four numbers: an eigenvalue below zero is lifted above it as noise asks; clear ones do not move."""
    columns = tuple(Numeric(name, 0, 1) for name in "abcd")
    first, second = np.triu_indices(4, 1)
    good = np.array([0.5, 0.3, 0.1, 0.4, 0.2, 0.3])
    np.testing.assert_allclose(law._apart(columns, good, np.full(6, 0.01)), good, atol=1e-6)
    bad, matrix = np.array([0.9, 0.9, 0.0, -0.9, 0.0, 0.0]), np.eye(4)
    mended = law._apart(columns, bad, np.full(6, 0.2))
    matrix[first, second] = matrix[second, first] = mended
    assert np.linalg.eigvalsh(matrix).min() > 0.02
    assert (np.sign(mended) == np.sign(bad)).all() or np.abs(mended[bad == 0]).max() < 1e-6


def test_one_number_alone():
    table = {"a": small_table()["a"]}
    schema = SMALL.select(["a"])
    (made,) = learn(schema, buy(schema, table))
    assert abs(made["a"].mean() - table["a"].mean()) < 0.03
    assert made["a"].std() == pytest.approx(table["a"].std(), rel=0.03)


def test_one_column_of_levels_alone_has_no_moments_to_ask_for():
    """Its counts are all there is to know; five standard errors of 8192 rows (false alarm below 10⁻⁶)."""
    schema, counts = Schema((LEVELS,)), np.array([2400.0, 1200.0, 400.0])
    assert law.size_of_moments(schema.columns) == 0
    found = learn(schema, ((counts, 40.0), (np.zeros(0), 0.0)), 8)
    np.testing.assert_allclose(shares(found[0], LEVELS), counts / ROWS, atol=5 * np.sqrt(0.24 / law.MADE))
    spread = np.std([shares(made, LEVELS) for made in found[1:]], axis=0)
    assert (spread > 0.002).all()
    assert (spread < 0.03).all()


@pytest.mark.parametrize("sd", [0.0, 0.002])
@pytest.mark.parametrize(
    ("column", "value"),
    [(CONTINUOUS, 1.3), (CONTINUOUS, -2.5), (CONTINUOUS, 6.0), (FEW, 7.0), (MANY, 20.0), (LEVELS, 1)],
    ids=["inside", "low", "high", "few", "many", "level"],
)
def test_a_column_of_one_value_is_made_with_that_value(column, value, sd):
    """But for one row in fifty, and where cells are bins, for the width of one."""
    schema = Schema((column, Numeric("a", -4, 4)))
    table = {"x": np.full(ROWS, value, np.int32 if column is LEVELS else float), "a": small_table()["a"]}
    (made,) = learn(schema, buy(schema, table, sd, sd))
    width = 0.0 if column in (FEW, LEVELS) else (column.high - column.low) / BINS
    assert (np.abs(made["x"] - value) <= width + 1e-9).mean() > 0.98
    assert abs(made["a"].mean() - table["a"].mean()) < 0.04


@pytest.mark.parametrize("sd", [0.0, 0.002, 0.01])
@pytest.mark.parametrize("integer", [False, True])
def test_numbers_whose_bounds_were_declared_far_too_wide_stay_where_they_are(sd, integer):
    """All of them in the first of 32 cells: their mean is found to a tenth of its width, and no row is far."""
    rng = np.random.default_rng(7)
    values = np.clip(rng.normal(50, 20, ROWS), 1, 10_000)
    values = np.round(values) if integer else values
    schema = Schema((Numeric("x", 0, 10_000, integer=integer), Numeric("a", -4, 4)))
    (made,) = learn(schema, buy(schema, {"x": values, "a": small_table()["a"]}, sd, sd))
    width = 10_000 / BINS
    assert abs(made["x"].mean() - 50) < 0.1 * width
    assert (made["x"] <= width).mean() > 0.99


def test_a_number_that_is_nearly_always_at_its_bound_keeps_its_tail():
    """Nine rows in ten are zero, as incomes from capital are: neither a constant is made of them, nor a uniform."""
    rng = np.random.default_rng(6)
    values = np.where(rng.random(ROWS) < 0.92, 0.0, np.clip(rng.exponential(2, ROWS), 0, 10))
    schema, table = Schema((Numeric("x", 0, 10), Numeric("a", -4, 4))), {"x": values, "a": small_table()["a"]}
    for sd in (0.0, 0.002):
        (made,) = learn(schema, buy(schema, table, sd, sd))
        assert 0.85 < (made["x"] == 0).mean() < 0.98
        assert 0.5 < made["x"].mean() / values.mean() < 1.6


@pytest.mark.parametrize("sd", [0.0, 0.05, 1.0])
def test_rows_that_are_made_stay_within_bounds_and_levels(sd):
    """Also where noise is all that was told."""
    heard = buy(MIXED, mixed_table(), sd, sd)
    for made in learn(MIXED, heard, 3):
        assert set(made) == set(MIXED.names)
        for column in MIXED.columns:
            values = made[column.name]
            assert values.shape == (law.MADE,)
            if isinstance(column, Categorical):
                assert values.dtype == np.int32
                assert values.min() >= 0
                assert values.max() < column.size
            else:
                assert values.dtype == np.float64
                assert values.min() >= column.low
                assert values.max() <= column.high
                assert not column.integer or (values == np.round(values)).all()
