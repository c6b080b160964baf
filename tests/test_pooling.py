"""What analyses of synthetic tables say together: the rules, by hand and by simulation."""

import csv
import json
import math
from dataclasses import replace

import jax
import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from discreet import synth
from discreet.families import exponential
from discreet.posterior import gibbs
from discreet.schema import Categorical, Schema
from tests.test_fuzz import tried
from tests.test_synth import made


def by_hand(q, u, m):
    """The rules, term by term, in plain Python."""
    mean, within = sum(q) / m, sum(u) / m
    between = sum((each - mean) ** 2 for each in q) / (m - 1)
    total = (1 + 1 / m) * between - within
    df = (m - 1) * (1 - within / ((1 + 1 / m) * between)) ** 2
    half = stats.t.ppf(0.95, df) * math.sqrt(total)
    return mean, math.sqrt(total), mean - half, mean + half, df, within, between


def test_the_rules_are_reiter_s(key):
    rng = np.random.default_rng(int(jax.random.randint(key, (), 0, 2**31 - 1)))
    q, u = rng.normal([1, -50], [2, 30], (8, 2)), rng.uniform(0.1, 0.2, (8, 2))
    pooled = synth.rubin(q, u)
    for place in (0, 1):
        found = [getattr(pooled, name)[place] for name in pooled._fields[1:-1]]
        np.testing.assert_allclose(found, by_hand(q[:, place].tolist(), u[:, place].tolist(), 8))
    assert not pooled.adjusted.any()


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_pooling_knows_no_order_of_tables_and_no_units(shift):
    rng = np.random.default_rng(0)
    q, u = rng.normal(size=(9, 1)), rng.uniform(0.1, 0.2, (9, 1))
    pooled, other = synth.rubin(q, u), synth.rubin(shift - 10 * q[::-1], 100 * u[::-1])
    np.testing.assert_allclose(other.estimate, shift - 10 * pooled.estimate)
    np.testing.assert_allclose(other.low, shift - 10 * pooled.high)
    np.testing.assert_allclose(other.df, pooled.df)


def test_terms_keep_their_names_however_they_are_given():
    rng = np.random.default_rng(0)
    q, u = rng.normal(size=(6, 2)), rng.uniform(0.01, 0.02, (6, 2))
    frames = pandas.DataFrame(q, columns=["a", "b"]), pandas.DataFrame(u[:, ::-1], columns=["b", "a"])
    mappings = {"a": q[:, 0], "b": q[:, 1]}, {"b": u[:, 1], "a": u[:, 0]}
    for given_as in (frames, mappings):
        pooled = synth.rubin(*given_as)
        assert pooled.term == ("a", "b")
        np.testing.assert_array_equal(pooled.low, synth.rubin(q, u).low)
    assert synth.rubin(q, u).term == ("0", "1")
    np.testing.assert_array_equal(synth.rubin(q[:, 0], u[:, 0]).low, pooled.low[:1])
    frame = pandas.DataFrame(pooled._asdict()).set_index("term")
    assert frame.loc["b", "estimate"] == q[:, 1].mean()
    assert synth.records(pooled)[1]["term"] == "b"


def test_where_the_variance_is_not_positive_the_sizes_are_needed():
    q, u = {"flat": [1.0, 1.0, 1.0], "b": [1.0, 2, 3]}, {"flat": [0.3, 0.3, 0.3], "b": [0.1, 0.1, 0.1]}
    with pytest.raises(ValueError, match=r"not positive for flat: give n and num_rows"):
        synth.rubin(q, u)
    with pytest.raises(ValueError, match=r"not positive for flat: give num_rows"):
        synth.rubin(q, u, n=30)
    pooled = synth.rubin(q, u, n=30, num_rows=10)
    assert pooled.adjusted.tolist() == [True, False]
    np.testing.assert_allclose(pooled.std_error[0] ** 2, 0.9)
    assert pooled.df[0] == 2
    np.testing.assert_array_equal(pooled.low[1], synth.rubin({"b": q["b"]}, {"b": u["b"]}).low[0])


@pytest.mark.parametrize(
    ("q", "u", "reason"),
    [
        ([1.0], [1.0], "1 tables cannot be pooled"),
        ([], [], "0 tables cannot be pooled"),
        (1.0, 1.0, r"give \(m,\) or \(m, terms\)"),
        (np.ones((3, 0)), np.ones((3, 0)), r"give \(m,\) or \(m, terms\)"),
        ([1.0, math.nan], [1.0, 1.0], "estimates have 1 values that are not finite"),
        ([1.0, 2.0], [1.0, math.inf], "variances have 1 values that are not finite"),
        ([1.0, 2.0], [1.0, -1.0], "variances have 1 negative values"),
        ([1.0, 2.0], [1.0], "give one for each"),
        ([[1.0], [2.0]], [1.0, 2.0], "give one for each"),
        ([[1.0], [2.0, 3.0]], [1.0, 2.0], "estimates must be numbers"),
        ({"a": [1.0, 2.0]}, [1.0, 2.0], "must be of one kind"),
        ({"a": [1.0, 2.0]}, {"b": [1.0, 2.0]}, "a, b is in one alone"),
        (["x", "y"], [1.0, 2.0], "estimates must be numbers"),
    ],
)
def test_what_cannot_be_pooled_is_refused(q, u, reason):
    with pytest.raises(ValueError, match=reason):
        synth.rubin(q, u)


ANYTHING = st.one_of(
    st.floats(), st.integers(-10, 10**9), st.text(max_size=3), st.none(), st.lists(st.floats(), max_size=3)
)
ANY_FORM = st.one_of(
    st.lists(ANYTHING, max_size=4), st.dictionaries(st.text(max_size=1), st.lists(ANYTHING, max_size=3))
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(ANY_FORM, ANY_FORM, st.sampled_from([None, 0, 1, 30]))
def test_whatever_is_pooled_is_pooled_or_refused_in_words(q, u, n):
    for variances in (u, q):
        pooled = tried(lambda variances=variances: synth.rubin(q, variances, n=n, num_rows=20))
        if pooled is not None:
            assert not (pooled.low > pooled.high).any()
            json.dumps(synth.records(pooled), allow_nan=False)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(
        st.one_of(st.sampled_from(["table,term,estimate,variance", "1,a,1,1", "2,a,1,1", '"']), st.text()), max_size=5
    )
)
def test_whatever_is_read_is_read_or_refused_in_words(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("results") / "r.csv"
    path.write_bytes("\n".join(lines).encode(errors="surrogatepass"))
    tried(lambda: synth.rubin(*synth.read_results([path]), n=1, num_rows=1))


def test_other_arguments_of_pooling_are_checked():
    for prob in (0, 1, math.nan):
        with pytest.raises(ValueError, match="must lie in"):
            synth.rubin([1.0, 2.0], [0.1, 0.1], prob=prob)
    with pytest.raises(ValueError, match="num_rows=0"):
        synth.rubin([1.0, 1.0], [0.1, 0.1], n=5, num_rows=0)


NUM_ROWS, DATA_SETS = 400, 1000


def posteriors(noise_sd, draws, seed=0):
    """Truths θ ~ Beta(2, 3), and draws of z from each data set's posterior: exact, or noise-aware given a noisy sum."""
    rng = np.random.default_rng(seed)
    theta = rng.beta(2, 3, DATA_SETS)
    ones = rng.binomial(NUM_ROWS, theta)
    if not noise_sd:
        return theta, exponential.exact_beta(rng, 2, 3, ones, NUM_ROWS, draws)[..., None]
    noisy = (ones + noise_sd * rng.standard_normal(DATA_SETS))[:, None]
    side = exponential.conjugate_beta(2, 3)
    return theta, gibbs.sample(jax.random.key(seed), side, noisy, NUM_ROWS, noise_sd, "gaussian", draws, thin=10)


def covered(low, high, truth):
    return np.mean((low <= truth) & (truth <= high))


@pytest.fixture(scope="module", params=[0.0, 20.0], ids=["exact", "noise-aware"])
def data_sets(request):
    return posteriors(request.param, 100)


BAND = 3.29 * math.sqrt(0.9 * 0.1 / DATA_SETS)
"""Coverage of 1000 intervals of 90 % is within .031 of .9, but for one seed in 1000; the seed is fixed."""


@pytest.mark.parametrize("n", [NUM_ROWS, 3 * NUM_ROWS])
def test_pooled_intervals_cover_whatever_the_size_of_synthetic_tables(data_sets, n):
    """A table of n rows of a coin is its number of ones."""
    truth, z = data_sets
    share = np.random.default_rng(n).binomial(n, 1 / (1 + np.exp(-z[..., 0].T))) / n
    pooled = synth.rubin(share, share * (1 - share) / n, n=n, num_rows=NUM_ROWS)
    assert pooled.adjusted.mean() < 0.01
    assert abs(covered(pooled.low, pooled.high, truth) - 0.9) < BAND


def test_small_tables_pool_to_intervals_that_are_too_wide_and_not_too_narrow(data_sets):
    truth, z = data_sets
    n = NUM_ROWS // 4
    share = np.random.default_rng(n).binomial(n, 1 / (1 + np.exp(-z[..., 0].T))) / n
    pooled = synth.rubin(share, share * (1 - share) / n, n=n, num_rows=NUM_ROWS)
    assert covered(pooled.low, pooled.high, truth) > 0.9 - BAND


def test_one_table_taken_for_real_and_the_rule_for_missing_data_do_not_cover(data_sets):
    """One table misses sampling and privacy; Ū + (1 + 1/m)B counts sampling twice."""
    truth, z = data_sets
    n = NUM_ROWS
    share = np.random.default_rng(n).binomial(n, 1 / (1 + np.exp(-z[..., 0].T))) / n
    half = 1.645 * np.sqrt(share[0] * (1 - share[0]) / n)
    assert covered(share[0] - half, share[0] + half, truth) < 0.75
    within, between = (share * (1 - share) / n).mean(0), share.var(0, ddof=1)
    half = 1.645 * np.sqrt(within + (1 + 1 / len(share)) * between)
    assert covered(share.mean(0) - half, share.mean(0) + half, truth) > 0.9 + BAND


def test_a_posterior_that_ignores_privacy_s_noise_does_not_cover():
    """The noisy count taken for the count: pooling is then of no help."""
    rng = np.random.default_rng(0)
    theta = rng.beta(2, 3, DATA_SETS)
    told = np.clip(rng.binomial(NUM_ROWS, theta) + 20 * rng.standard_normal(DATA_SETS), 0, NUM_ROWS)
    z = exponential.exact_beta(rng, 2, 3, told, NUM_ROWS, 100)
    share = rng.binomial(NUM_ROWS, 1 / (1 + np.exp(-z.T))) / NUM_ROWS
    pooled = synth.rubin(share, share * (1 - share) / NUM_ROWS, n=NUM_ROWS, num_rows=NUM_ROWS)
    assert covered(pooled.low, pooled.high, theta) < 0.8


def test_the_whole_way_covers():
    """Tables as `synthesize` makes them, of a Dirichlet-categorical model, noise-aware: 300 data sets, of which two
    shares. The band is 3.29 sds as if there were 300 shares (the two are not independent): one false alarm in 1000.
    """
    alpha, n, m, noise_sd, count = (2.0, 2.0, 3.0), 300, 50, 10.0, 300
    schema = Schema((Categorical("x", ("a", "b", "c")),))
    rng, model, side = (
        np.random.default_rng(3), exponential.dirichlet_categorical(alpha), exponential.conjugate_dirichlet(alpha)
    )  # fmt: skip
    theta = rng.dirichlet(alpha, count)
    noisy = rng.multinomial(n, theta) + noise_sd * rng.standard_normal((count, 3))
    draws = gibbs.sample(jax.random.key(3), side, noisy, n, noise_sd, "gaussian", m, thin=10)
    posterior, hits = made(model, schema, draws[0]), []
    for truth, z in zip(theta, draws, strict=True):
        tables = replace(posterior, z=z[None]).synthesize(n, m, seed=int(rng.integers(2**31)))
        shares = pandas.DataFrame([{level: np.mean(table["x"] == level) for level in "ab"} for table in tables])
        pooled = synth.rubin(shares, shares * (1 - shares) / n, n=n, num_rows=n)
        hits += [pooled.low <= truth[:2], truth[:2] <= pooled.high]
    inside = np.mean(np.logical_and(hits[::2], hits[1::2]))
    assert abs(inside - 0.9) < 3.29 * math.sqrt(0.09 / count)


def test_results_are_read_from_files(tmp_path):
    lines = [
        ("table", "name", "estimate", "std_error"),
        (1, "a", 1.5, 0.1),
        (2, "a", 1.7, 0.2),
        (2, "b", 0, 0),
        (1, "b", 9, 1),
    ]
    with (tmp_path / "all.csv").open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    estimates, variances = synth.read_results([tmp_path / "all.csv"])
    assert estimates == {"a": [1.5, 1.7], "b": [9, 0]}
    np.testing.assert_allclose([variances["a"], variances["b"]], [[0.01, 0.04], [1, 0]])
    for number, value in enumerate((1.5, 1.7)):
        (tmp_path / f"{number}.csv").write_text(f"term,estimate,variance,p\na,{value},0.01,0\n", encoding="utf-8-sig")
    assert synth.read_results([tmp_path / "0.csv", tmp_path / "1.csv"]) == ({"a": [1.5, 1.7]}, {"a": [0.01, 0.01]})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no column term, estimate, variance or std_error; it has none"),
        ("term,estimate\n", "no column variance or std_error; it has term, estimate"),
        ("table,term,estimate,variance\n", "has no results"),
        ("table,term,estimate,variance\n1,a,x,1\n", "line 2: estimate and variance must be numbers"),
        ("table,term,estimate,std_error\n1,a,1\n", "line 2: estimate and std_error must be numbers"),
        ("table,term,estimate,std_error\n1,a,1,-1\n", "line 2: std_error=-1.0 must not be negative"),
        ("table,term,estimate,variance\n1,,1,1\n", "line 2: term is empty"),
        ("table,term,estimate,variance\n,a,1,1\n", "line 2: table is empty"),
        ("table,term,estimate,variance\n1,a,1,1\n1,a,1,1\n", "line 3: 'a' of table 1 is there twice"),
        ("table,term,estimate,variance\n1,a,1,1\n2,b,1,1\n", "table 1 has no b, which others have"),
        (b"\xff\xfe,", "not UTF-8 CSV"),
    ],
)
def test_results_that_cannot_be_read_are_refused_with_their_place(tmp_path, text, reason):
    path = tmp_path / "r.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=reason):
        synth.read_results([path])
