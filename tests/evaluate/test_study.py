"""Many simulated fits at once: tables with the model's law, replicas like single fits, and parts that survive."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from discreet.evaluate import study
from discreet.families.exponential import gamma_exponential
from discreet.families.glm import glm
from discreet.mechanism import loop, noise
from discreet.mechanism.rows import store
from discreet.methods import elbo
from discreet.model import Model
from discreet.plan import Plan
from discreet.query import Point, Query
from discreet.schema import Categorical, Numeric, Schema

K, N, T = 8, 200, 200
CLIP, MULTIPLIER = 8.0, 3.0
COIN = Schema((Categorical("x", ("no", "yes")),))
COUNTS = glm("logistic", "x", [], COIN), COIN  # a Bernoulli with a normal prior: quick to compile
ROWS = gamma_exponential(8.0, 2.0), Schema((Numeric("x", 0, 20),))


def still(model, plan):
    """A query that hardly moves from z ≈ 0 and has almost no width, so that every step asks the same."""
    settings = elbo.Settings(np.array([0.0, -20.0]), 1e-12, draws=2)
    return elbo.query(model, plan, settings)


def location_gradient(name, x):
    """Σ −∂ log p(x_i | z)/∂z at z = 0, over the last axis of the tables, and Σ of its squares."""
    each = 0.5 - x if name == "counts" else 0.5 * (x - 1 / np.log(2))
    return each.sum(-1), (each**2).sum(-1)


@pytest.fixture(scope="module", params=["counts", "rows"])
def studied(request):
    """K fits of one model at κ = ½, their tables, and one of the tables fitted alone."""
    model, schema = COUNTS if request.param == "counts" else ROWS
    limit = None if request.param == "counts" else N
    plan = Plan(N, T, 0.5, CLIP, MULTIPLIER, limit)
    query = still(model, plan)
    result = study.simulate_fits(5, model, schema, plan, query, K)
    alone = loop.run(noise.simulated(6), plan, query, store(schema, {"x": result.tables["x"][0]}))
    return request.param, result, alone


def test_every_array_has_a_leading_axis_of_replicas(studied):
    _, result, alone = studied
    assert result.truth.shape == (K, 1)
    assert result.tables["x"].shape == (K, N)
    assert result.release.last.shape == (K, 2)
    assert alone.last.shape == (2,)
    for together, one in zip(result.release.blocks, alone.blocks, strict=True):
        assert together.shape == (K, *one.shape)
    assert (result.release.blocks.steps.sum(1) == T).all()


def test_a_simulated_release_says_so(studied):
    _, result, _ = studied
    assert result.release.noise == "simulated"


def test_replicas_have_noise_of_their_own(studied):
    """Step means of two replicas would agree exactly if they shared their noise and differ by tables only."""
    name, result, _ = studied
    total, _ = location_gradient(name, result.tables["x"])
    residual = result.release.blocks.mean_y[..., 0] - 0.5 * total[:, None]
    correlation = np.corrcoef(residual)[np.triu_indices(K, 1)]
    limit = np.tanh(stats.norm.isf(1e-6) / np.sqrt(residual.shape[1] - 3))  # false alarms: 6e-5 in all
    assert (np.abs(correlation) < limit).all()


def test_answers_of_replicas_and_of_a_single_table_have_the_mean_and_noise_of_the_plan(studied):
    """y_t = κ·total + public gradient + noise of variance (σC)² + κ(1 − κ)·Σ squares; the same for one table.

    False alarms: 2e-6 for each of 9 means and 9 sums of squares. Nothing reaches the clip norm.
    """
    name, result, alone = studied
    tables = np.concatenate([result.tables["x"], result.tables["x"][:1]])
    total, squares = location_gradient(name, tables)
    public = {"counts": 0.0, "rows": -(7 / np.log(2) - 2 + 1) / 2}[name]
    mean, variance = 0.5 * (total + public), (CLIP * MULTIPLIER) ** 2 + 0.25 * squares
    y = np.concatenate([result.release.blocks.mean_y[..., 0], alone.blocks.mean_y[None, :, 0]])
    within = np.concatenate([result.release.blocks.yy[..., 0].sum(1), [alone.blocks.yy[:, 0].sum()]])
    error = np.sqrt(variance / T)
    np.testing.assert_array_less(np.abs(y.mean(1) - mean) / error, stats.norm.isf(1e-6))
    blocks = y.shape[1]
    total_square = within / variance  # χ² with T − blocks degrees of freedom
    low, high = stats.chi2(T - blocks).ppf([1e-6, 1 - 1e-6])
    assert ((low < total_square) & (total_square < high)).all()


def test_a_seed_repeats_its_tables_and_every_table_has_its_own_truth(studied):
    name, result, _ = studied
    if name == "counts":
        truth, tables = study.simulate_tables(5, *COUNTS, N, K)
        np.testing.assert_array_equal(result.truth, truth)
        np.testing.assert_array_equal(result.tables["x"], tables["x"])
    assert len(np.unique(result.truth)) == K


def test_outcomes_follow_the_truth_of_their_table(studied):
    """Σ of squared standardised sums is χ² (nearly normal sums of 200). False alarms: 2e-4."""
    name, result, _ = studied
    z, total = result.truth[:, 0], result.tables["x"].sum(1)
    if name == "counts":
        theta = special.expit(z)
        score = (total - N * theta) / np.sqrt(N * theta * (1 - theta))
    else:
        score = (total * np.logaddexp(0, z) - N) / np.sqrt(N)
    assert 1e-4 < stats.chi2(K).cdf((score**2).sum()) < 1 - 1e-4
    assert result.tables["x"].dtype == (np.int32 if name == "counts" else np.float64)


def test_covariates_are_what_the_schema_declares():
    schema = Schema((Numeric("age", 20, 60), Categorical("y", ("no", "yes"))))
    truth, tables = study.simulate_tables(4, glm("logistic", "y", ["age"], schema), schema, 30, 5)
    assert truth.shape == (5, 2)
    assert {name: values.shape for name, values in tables.items()} == {"age": (5, 30), "y": (5, 30)}
    assert ((tables["age"] >= 20) & (tables["age"] <= 60)).all()


def test_a_model_that_cannot_simulate_is_refused():
    mute = Model(
        dim=1,
        log_prior=lambda z: -jnp.sum(z**2),
        log_likelihood=lambda z, row: z[0],
        constrain=lambda z: {"z": z},
        sample_prior=lambda key: jnp.zeros(1),
        columns=("x",),
    )
    with pytest.raises(ValueError, match="cannot simulate"):
        study.simulate_tables(0, mute, COIN, 10, 2)


def correlated_covariates(rng, count):
    """Ages that only this function makes, in the order of its rows."""
    return {"age": 30 + np.arange(count) % 7, "y": rng.integers(0, 2, count).astype(np.int32)}


def test_covariates_may_have_a_law_of_their_own():
    """Their rows are dealt to the tables in order, and their outcome is replaced."""
    schema = Schema((Numeric("age", 20, 60), Categorical("y", ("no", "yes"))))
    model = glm("logistic", "y", ["age"], schema)
    truth, tables = study.simulate_tables(4, model, schema, 300, 5, correlated_covariates)
    np.testing.assert_array_equal(tables["age"].ravel(), 30 + np.arange(1500) % 7)
    theta = special.expit(truth[:, :1] + truth[:, 1:] * (tables["age"] - 40) / 20)
    score = (tables["y"] - theta).sum(1) / np.sqrt((theta * (1 - theta)).sum(1))
    assert 1e-4 < stats.chi2(5).cdf((score**2).sum()) < 1 - 1e-4  # false alarms: 2e-4


# Several replicas, and one of them


def walk(grows=1.0):
    """A cheap query: rows answer with how far they are from the state, which is multiplied where that is far."""

    def update(state, question, answer):
        state = jnp.where(answer > 3, grows, 1.0) * (state + 0.01 * answer)
        return state, Point(state, question, answer, jnp.ones(2))

    return Query(
        init=lambda key: jnp.array([1.0, 2.0]),
        ask=lambda key, state: state,
        row_value=lambda question, row: row["x"] - question,
        update=update,
        last=lambda state: state,
        size=2,
        columns=("x",),
        settings={"walk": grows},
    )


@pytest.fixture(scope="module")
def crossed():
    """Three fits that kept their products, and the same tables fitted by `fit_tables` with their trace."""
    model, schema = COUNTS
    plan = Plan(20, 250, 0.5, CLIP, MULTIPLIER)
    result = study.simulate_fits(8, model, schema, plan, walk(), 3, keep="cross")
    return result, study.fit_tables(8, schema, plan, walk(), result.tables, keep="trace")


def test_fit_tables_is_the_second_half_of_simulate_fits(crossed):
    result, again = crossed
    for one, other in zip(result.release.blocks, again.blocks, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(result.release.last, again.last)


def test_products_of_replicas_are_kept_on_request(crossed):
    """Σ(y − ȳ)(x − x̄)ᵀ of each block, from the trace."""
    result, traced = crossed
    cross, lengths = result.release.cross, result.release.blocks.steps[0, :, 0].astype(int)
    assert cross.xx.shape == cross.yx.shape == (3, len(lengths), 2, 2)
    for replica in range(3):
        ends = np.cumsum(lengths)
        for block, (end, length) in enumerate(zip(ends, lengths, strict=True)):
            x, y = (part[replica, end - length : end] for part in traced.trace[1:3])
            dx, dy = x - x.mean(0), y - y.mean(0)
            np.testing.assert_allclose(cross.xx[replica, block], dx.T @ dx, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(cross.yx[replica, block], dy.T @ dx, rtol=1e-9, atol=1e-9)


def arrays_of(release):
    return {name: np.asarray(values) for name, values in release._arrays().items()}


@pytest.mark.parametrize("kept", [0, 1])
def test_a_chosen_replica_is_a_release_of_its_own_and_chosen_ones_keep_their_order(crossed, kept):
    release = (crossed[0].release, crossed[1])[kept]
    whole = arrays_of(release)
    assert len(whole) == (13 if kept == 0 else 15)
    for which in (1, np.array([2, 0]), np.array([True, False, True])):
        found = study.chosen(release, which)
        assert (found.plan, found.noise, found.settings) == (release.plan, release.noise, release.settings)
        assert arrays_of(found).keys() == whole.keys()
        for name, values in arrays_of(found).items():
            np.testing.assert_array_equal(values, whole[name][which])
    assert study.chosen(release, 1).last.ndim == 1


def test_diverged_finds_the_replica_whose_steps_overflow():
    plan, schema = Plan(6, 5, 1.0, 100.0, 0.0), Schema((Numeric("x", -400, 400),))
    tables = np.full((4, 6), -1.0)
    tables[2] = 10.0
    release = study.fit_tables(1, schema, plan, walk(np.inf), {"x": tables})
    np.testing.assert_array_equal(study.diverged(release), [False, False, True, False])
    np.testing.assert_array_equal(study.diverged(study.chosen(release, ~study.diverged(release))), [False] * 3)
    assert not study.diverged(study.chosen(release, 0))
    assert study.diverged(study.chosen(release, 2))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_moment_that_is_not_finite_is_enough(crossed, value):
    release = crossed[0].release
    assert not study.diverged(release).any()
    for name, field in release.blocks._asdict().items():
        broken = np.array(field)
        broken[1, -1, -1] = value
        blocks = release.blocks._replace(**{name: broken})
        np.testing.assert_array_equal(study.diverged(study.replace(release, blocks=blocks)), [False, True, False])


# Parts of a study: jobs stand at the top of the module, so that other processes find them


class Lethal(NamedTuple):
    """An array whose writing does what a machine does that loses its power."""

    signal: int | None

    def __array__(self, dtype=None, copy=None):
        if self.signal is None:
            raise OSError("no space left")
        os.kill(os.getpid(), self.signal)


class Marked(NamedTuple):
    """A job that notes each call; the part numbered `ends` kills the process, or what is wrong with it says `how`."""

    notes: Path
    ends: int | None = None
    how: str = "killed"

    def __call__(self, index):
        with self.notes.open("a") as file:
            file.write(f"{index}\n")
        part = {"value": 10.0 * index + np.arange(3), "index": np.array([index])}
        if index != self.ends:
            return part
        if self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "raises":
            raise ArithmeticError("a part that cannot be")
        return part | {"late": Lethal({"killed in writing": signal.SIGKILL, "cannot be written": None}[self.how])}

    def calls(self):
        return [int(line) for line in self.notes.read_text().split()] if self.notes.exists() else []


FACTS = {"model": "coin", "seeds": [1, 2]}


def assert_same_parts(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def job(tmp_path):
    return Marked(tmp_path / "notes")


def test_parts_that_are_done_are_not_run_again(job, tmp_path):
    first = study.run(job, 3, tmp_path / "parts", FACTS)
    assert_same_parts(first, [Marked(tmp_path / "other")(index) for index in range(3)])
    seen = []
    again = study.run(job, 5, tmp_path / "parts", dict(reversed(FACTS.items())), progress=lambda r: seen.append(r) or r)
    assert_same_parts(again[:3], first)
    assert job.calls() == [0, 1, 2, 3, 4]
    assert seen == [range(2)]
    assert names_in(tmp_path / "parts") == [*(f"part-{index}" for index in range(5)), "study.json"]


def test_the_folder_of_another_study_is_refused(job, tmp_path):
    study.run(job, 1, tmp_path / "parts", FACTS)
    for facts in (FACTS | {"seeds": [1, 3]}, {}, FACTS | {"more": None}):
        with pytest.raises(ValueError, match=r"another study.*remove it, or name another"):
            study.run(job, 2, tmp_path / "parts", facts)
    assert job.calls() == [0]
    assert names_in(tmp_path / "parts") == ["part-0", "study.json"]


KILLED = "killed", "killed in writing"


def die(place):
    """For each way to be killed, a process of its own that runs a study until then; prints how they ended."""
    for how in KILLED:
        folder = Path(place) / how
        folder.mkdir()
        if os.fork() == 0:
            study.run(Marked(folder / "notes", 2, how), 5, folder / "parts", FACTS)
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)


@pytest.fixture(scope="module")
def deaths(tmp_path_factory):
    place = tmp_path_factory.mktemp("deaths")
    command = [sys.executable, "-c", f"import {__name__} as here; here.die({str(place)!r})"]
    found = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120)
    assert found.stdout.split() == 2 * [str(-signal.SIGKILL)], found.stderr
    return place


@pytest.mark.parametrize("how", KILLED)
def test_a_killed_study_goes_on_where_it_was(deaths, how, tmp_path):
    """Another process ran it and died by SIGKILL in its third part."""
    job, parts = Marked(deaths / how / "notes"), deaths / how / "parts"
    assert job.calls() == [0, 1, 2]
    assert [name for name in names_in(parts) if name.startswith("part")] == ["part-0", "part-1"]
    found = study.run(job, 5, parts, FACTS)
    assert job.calls() == [0, 1, 2, 2, 3, 4]
    assert_same_parts(found, study.run(job, 5, tmp_path / "uninterrupted", FACTS))


@pytest.mark.parametrize(("how", "error"), [("raises", ArithmeticError), ("cannot be written", OSError)])
def test_a_job_that_raises_leaves_the_parts_that_are_done_and_no_others(job, how, error, tmp_path):
    with pytest.raises(error):
        study.run(job._replace(ends=2, how=how), 5, tmp_path / "parts", FACTS)
    assert names_in(tmp_path / "parts") == ["part-0", "part-1", "study.json"]
    assert len(study.run(job, 5, tmp_path / "parts", FACTS)) == 5
    assert job.calls() == [0, 1, 2, 2, 3, 4]


def damaged(content, how):
    """`how` is what stands in its place, or where a byte was flipped."""
    directory, end = content.index(b"PK\x01\x02"), content.index(b"PK\x05\x06")
    whole = {"cut": content[: len(content) // 2], "empty": b"", "zeros": bytes(len(content)), "text": b"not a part"}
    at = {"number": 150, "name": directory + 46, "compression": directory + 10, "entries": end + 10}
    return whole[how] if how in whole else content[: at[how]] + bytes([content[at[how]] ^ 3]) + content[at[how] + 1 :]


@pytest.mark.parametrize("how", ["empty", "zeros", "text", "number", "name", "cut", "compression", "entries"])
def test_a_damaged_part_is_made_again(job, how, tmp_path):
    expected = study.run(job, 3, tmp_path / "parts", FACTS)
    path = tmp_path / "parts" / "part-1"
    path.write_bytes(damaged(path.read_bytes(), how))
    for _ in range(2):
        assert_same_parts(study.run(job, 3, tmp_path / "parts", FACTS), expected)
    assert job.calls() == [0, 1, 2, 1]


def test_joined_parts_are_all_replicas_under_the_same_names():
    parts = [{"a": np.arange(count), "b": np.full((count, 2), count)} for count in (2, 1, 3)]
    whole = study.joined(parts)
    assert whole.keys() == {"a", "b"}
    np.testing.assert_array_equal(whole["a"], [0, 1, 0, 0, 1, 2])
    np.testing.assert_array_equal(whole["b"][:, 1], [2, 2, 1, 3, 3, 3])


# Parts in other processes


def placed(index):
    """Which process ran this, and under which settings."""
    return {"index": np.array([index]), "pid": np.array([os.getpid()]), "threads": np.array([settings_here()])}


def settings_here():
    return [os.environ.get(name, "") for name in list(study.ONE_THREAD)[:2]]


def test_two_local_processes_do_as_one_and_each_has_one_thread(tmp_path, monkeypatch):
    """What was set before wins, and what was not is not set afterwards."""
    mine, other = list(study.ONE_THREAD)[:2]
    monkeypatch.delenv(mine, raising=False)
    monkeypatch.setenv(other, "3")
    parts = study.run(placed, 5, tmp_path / "parts", FACTS, workers=2)
    whole = study.joined(parts)
    np.testing.assert_array_equal(whole["index"], np.arange(5))
    assert os.getpid() not in whole["pid"]
    assert len(set(whole["pid"])) <= 2
    assert whole["threads"].tolist() == 5 * [[study.ONE_THREAD[mine], "3"]]
    assert settings_here() == ["", "3"]
    assert_same_parts(study.run(placed, 5, tmp_path / "parts", FACTS), parts)


def test_the_environment_is_restored_even_if_a_study_fails(monkeypatch):
    monkeypatch.delenv("A_NAME", raising=False)
    with pytest.raises(ZeroDivisionError), study._environment({"A_NAME": "1"}):
        int(os.environ["A_NAME"]) / 0
    assert "A_NAME" not in os.environ


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, processes=True, threads_per_worker=1, dashboard_address="127.0.0.1:0", host="127.0.0.1"
    ) as running:
        yield running


def fitted(index):
    """Two tiny fits, and the process that made them."""
    result = study.simulate_fits(index, *COUNTS, Plan(20, 10, 0.5, CLIP, MULTIPLIER), walk(), 2)
    return {"truth": result.truth, "last": result.release.last, "pid": np.array([os.getpid()])}


def test_a_dask_cluster_does_as_one_process_and_all_its_workers_take_part(cluster, tmp_path):
    parts = study.run(fitted, 2, tmp_path / "parts", FACTS, dask=cluster.scheduler_address)
    found, expected = study.joined(parts), study.joined([fitted(0), fitted(1)])
    for name, shape in (("truth", (4, 1)), ("last", (4, 2))):
        assert found[name].shape == shape
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12)
    assert len({*found["pid"], os.getpid()}) == 3
    assert_same_parts(study.run(fitted, 2, tmp_path / "parts", FACTS), parts)


def test_a_job_that_raises_on_a_cluster_ends_the_study(cluster, job, tmp_path):
    with pytest.raises(ArithmeticError, match="cannot be"):
        study.run(job._replace(ends=0, how="raises"), 1, tmp_path / "parts", FACTS, dask=cluster.scheduler_address)
    assert names_in(tmp_path / "parts") == ["study.json"]


def test_a_scheduler_that_does_not_answer_is_named(job, tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed")
    impatient = partial(distributed.Client, timeout=0.3)
    monkeypatch.setattr(distributed, "Client", lambda address, timeout: impatient(address))
    with pytest.raises(ValueError, match=r"no Dask scheduler answers at 'tcp://127.0.0.1:1'.*dask scheduler"):
        study.run(job, 2, tmp_path / "parts", FACTS, dask="tcp://127.0.0.1:1")
    assert job.calls() == []
