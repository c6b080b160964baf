"""A budget that cannot be overspent: by composition, across processes, and through files that are no ledgers."""

import json
import math
import multiprocessing
import sqlite3
import subprocess
import sys
from dataclasses import replace

import pytest
from scipy import stats

from discreet import planner
from discreet.accounting import _rdp, calibrate, filtered_epsilon, guarantee, rdp_epsilon
from discreet.fitting import Checkpoint, fit, simulated
from discreet.ledger import Account, Budget, LedgerError, accounts, export, open_account
from discreet.mechanism import loop
from discreet.plan import Plan
from tests import tiny

DELTA = 1e-5
PLAN = Plan(num_rows=50, steps=4, sampling_prob=1.0, clip_norm=1.0, noise_multiplier=7.47)  # ε = 1 to three digits


@pytest.fixture
def account(tmp_path):
    return open_account(tmp_path / "ledger.db", "people", Budget(2.0, DELTA))


def test_plans_are_composed_and_epsilons_not_added_up(account):
    """Gaussian answers of equal noise are one of √n times the budget: 1, 1.46, 1.83 and 2.15 for one to four."""
    assert account.spent() == 0
    for count in (1, 2, 3):
        account.charge(PLAN)
        together = replace(PLAN, steps=4 * count)
        assert account.spent() == pytest.approx(guarantee(together, DELTA).epsilon, rel=1e-3)
    assert 1.8 < account.spent() < 2
    with pytest.raises(LedgerError, match=r"would have spent ε = 2\.15\d of 2 \(now 1\.83\d, in 3 fits\)"):
        account.charge(PLAN)
    assert len(account.entries()) == 3


def test_an_intent_counts_until_and_after_it_is_committed(account):
    run = account.charge(PLAN, "a fit")
    before = account.spent()
    (entry,) = account.entries()
    assert (entry.run, entry.plan, entry.purpose, entry.state, entry.committed) == (run, PLAN, "a fit", "intent", None)
    account.commit(run)
    account.commit(run)
    (entry,) = account.entries()
    assert entry.state == "committed"
    assert entry.committed >= entry.charged
    assert account.spent() == before


def test_a_run_that_goes_on_is_not_charged_again(account):
    run = account.charge(PLAN)
    assert account.charge(PLAN, run=run) == run
    assert len(account.entries()) == 1
    with pytest.raises(LedgerError, match="was charged for another plan"):
        account.charge(replace(PLAN, steps=1), run=run)
    with pytest.raises(LedgerError, match="has no run nobody"):
        account.commit("nobody")


def test_what_was_charged_is_there_for_whoever_opens_it_next(account):
    account.charge(PLAN)
    again = Account(account.path, "people")
    assert again.budget == Budget(2.0, DELTA)
    assert again.spent() == account.spent() > 0
    with pytest.raises(LedgerError, match="has an account 'people' already"):
        open_account(account.path, "people", Budget(9.0, DELTA))
    open_account(account.path, "others", Budget(1.0, DELTA, num_rows=50))
    assert [found.name for found in accounts(account.path)] == ["others", "people"]


@pytest.mark.parametrize(
    ("budget", "plan", "message"),
    [
        (Budget(9.0, DELTA, num_rows=51), PLAN, "num_rows=50 must be 51, as 'people' was declared"),
        (Budget(9.0, DELTA, "replace-one"), PLAN, "kept for relation 'replace-one', and this plan is for 'zero-out'"),
        (Budget(9.0, DELTA), replace(PLAN, noise_multiplier=0.0), "would have spent ε = inf of 9"),
        (Budget(9.0, DELTA, adaptive=True), replace(PLAN, sampling_prob=0.5, batch_limit=40), "truncated"),
    ],
)
def test_a_plan_that_cannot_be_paid_here_is_refused_and_leaves_no_trace(tmp_path, budget, plan, message):
    account = open_account(tmp_path / "ledger.db", "people", budget)
    with pytest.raises(ValueError, match=message):
        account.charge(plan)
    assert account.entries() == []


@pytest.mark.parametrize(
    ("name", "budget", "message"),
    [
        ("", Budget(1.0, DELTA), "name="),
        ("a\nb", Budget(1.0, DELTA), "name="),
        ("people", Budget(0.0, DELTA), "epsilon=0.0"),
        ("people", Budget(math.inf, DELTA), "epsilon=inf"),
        ("people", Budget(math.nan, DELTA), "epsilon=nan"),
        ("people", Budget(1.0, 0.0), "delta=0.0"),
        ("people", Budget(1.0, DELTA, "add-remove"), "relation=add-remove must be one of replace-one, zero-out"),
        ("people", Budget(1.0, DELTA, num_rows=0), "num_rows=0"),
    ],
)
def test_a_budget_that_is_none_is_refused_before_a_file_is_made(tmp_path, name, budget, message):
    with pytest.raises(ValueError, match=message):
        open_account(tmp_path / "ledger.db", name, budget)
    assert list(tmp_path.iterdir()) == []


def test_an_adaptive_account_filters_at_one_order(tmp_path):
    account = open_account(tmp_path / "ledger.db", "people", Budget(2.0, DELTA, adaptive=True))
    account.charge(PLAN)
    assert account.spent() == filtered_epsilon(PLAN, 2.0, DELTA) > guarantee(PLAN, DELTA).epsilon
    account.charge(PLAN)
    assert account.spent() > guarantee([PLAN, PLAN], DELTA).epsilon
    with pytest.raises(LedgerError, match="would have spent"):
        account.charge(replace(PLAN, steps=8))


def test_the_filter_s_bound_is_the_gaussian_s_own_at_a_fixed_order():
    """RDP of T Gaussian answers is αT/2σ²; to (ε, δ) by log(1 − 1/α) − log(δα)/(α − 1). The order looks at no plan.

    Nor does δ: a thousandth of it is for truncated batches, also where there are none.
    """
    odds = math.log(1 / DELTA)
    order = round(1 + math.sqrt(odds) / (math.sqrt(odds + 3.0) - math.sqrt(odds)))
    for steps in (1, 7, 40):
        rdp = order * steps / (2 * 7.47**2)
        expected = rdp + math.log(1 - 1 / order) - math.log(0.999 * DELTA * order) / (order - 1)
        assert filtered_epsilon(replace(PLAN, steps=steps), 3.0, DELTA) == pytest.approx(max(expected, 0), rel=1e-6)


ROOMY = Plan(num_rows=300, steps=200, sampling_prob=0.1, clip_norm=1.0, noise_multiplier=7.0, batch_limit=94)


def test_batches_that_are_hardly_ever_truncated_cost_a_filter_what_free_ones_do_and_never_less():
    free, budget = replace(ROOMY, batch_limit=None), (2.0, DELTA)
    assert filtered_epsilon(ROOMY, *budget) == filtered_epsilon(free, *budget) > rdp_epsilon(free, DELTA)
    order = round(1 + math.sqrt(-math.log(DELTA)) / (math.sqrt(2 - math.log(DELTA)) - math.sqrt(-math.log(DELTA))))
    assert filtered_epsilon(ROOMY, *budget) > _rdp([free], (order,)).get_epsilon(DELTA)


def test_a_filter_adds_up_the_odds_of_truncation_and_pays_for_them_with_a_thousandth_of_delta():
    """(1 + e^ε) τ ≤ 10⁻³ δ, with τ the binomial tail of every step of every phase, and ε the budget's."""
    quiet = replace(ROOMY, noise_multiplier=300.0, batch_limit=75, steps=1000)
    tail = stats.binom.sf(75, 300, 0.1)
    most = int(1e-3 * DELTA / ((1 + math.exp(2.0)) * 1000 * tail))
    assert 3 < most < 300
    filtered_epsilon([quiet] * most, 2.0, DELTA)
    with pytest.raises(ValueError, match="batch_limit=75 must be so large that hardly a batch is ever truncated"):
        filtered_epsilon([quiet] * (most + 1), 2.0, DELTA)
    with pytest.raises(ValueError, match="hardly a batch"):
        filtered_epsilon([quiet] * most, 2.1, DELTA)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_planned_fit_of_rows_that_are_no_counts_is_let_in_by_an_adaptive_account(tmp_path, monkeypatch, checkpointed):
    """The default limit is refused, so that the planner's is made roomy; what exceeds the budget is refused."""
    monkeypatch.setitem(planner.METHODS, "dpvi", lambda *_: tiny.choice())
    account = open_account(tmp_path / "ledger.db", "people", Budget(2.0, tiny.DELTA, adaptive=True))
    with pytest.raises(ValueError, match="truncated"):
        account.charge(tiny.choice().plan)
    given = {"checkpoint": Checkpoint(tmp_path / "run", account)} if checkpointed else {"account": account}
    posterior = fit(tiny.MODEL, tiny.rows(), epsilon=1.0, delta=tiny.DELTA, method="dpvi", draws=100, **given)
    (entry,) = account.entries()
    assert entry.plan.batch_limit > tiny.choice().plan.batch_limit
    assert posterior.guarantee.epsilon <= guarantee(tiny.choice().plan, tiny.DELTA).epsilon
    assert posterior.guarantee.epsilon < account.spent() < 2
    with pytest.raises(LedgerError, match="would have spent"):
        account.charge(replace(entry.plan, steps=4 * entry.plan.steps))


@pytest.mark.parametrize("adaptive", [False, True])
def test_all_phases_of_a_fit_are_charged_as_one_entry(tmp_path, adaptive):
    account = open_account(tmp_path / "ledger.db", "people", Budget(1.3, tiny.DELTA, adaptive=adaptive))
    sample = {name: values for name, values in tiny.table().items() if name != "ill"}
    asked = {"epsilon": 1.0, "delta": tiny.DELTA, "sample": sample, "draws": 50}
    posterior = fit(tiny.MODEL, tiny.rows(), **asked, account=account)
    (entry,) = account.entries()
    assert entry.state == "committed"
    told = [plan.noise_multiplier for plan in posterior.release.plans]
    assert len(told) == 2
    assert [plan.noise_multiplier for plan in entry.plan] == told
    assert posterior.guarantee.epsilon <= account.spent() * (1 + 1e-9) < 1.3
    with pytest.raises(LedgerError, match="would have spent"):
        fit(tiny.MODEL, tiny.rows(), **asked, account=account)
    assert account.entries() == [entry]


def test_files_that_are_no_ledgers_are_refused_and_stay_as_they_are(tmp_path):
    with pytest.raises(LedgerError, match="there is no ledger at"):
        Account(tmp_path / "none.db", "people")
    text, other, marked = (tmp_path / name for name in ("text.db", "other.db", "marked.db"))
    text.write_text("not a database, but long enough to look like one" * 100)
    sqlite3.connect(other).execute("create table t (x)").connection.close()
    sqlite3.connect(marked).execute("pragma user_version = 7").connection.close()
    names = sorted(tmp_path.iterdir())
    for path in (text, other, marked):
        before = path.read_bytes()
        for use in (lambda path=path: Account(path, "x"), lambda path=path: open_account(path, "x", Budget(1, DELTA))):
            with pytest.raises(LedgerError, match=r"cannot be used as a ledger|is no ledger of format"):
                use()
        assert path.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == names


def test_a_foreign_database_with_a_log_of_its_own_keeps_it(tmp_path):
    """A connection that may write would carry the log over into the file when it closes."""
    path = tmp_path / "other.db"
    made = "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('pragma journal_mode = wal'); "
    made += "db.execute('create table t (x)'); os._exit(0)"
    subprocess.run([sys.executable, "-c", made, str(path)], check=True)
    log = path.with_name("other.db-wal")
    before = path.read_bytes(), log.read_bytes()
    assert before[1]
    with pytest.raises(LedgerError, match="is no ledger of format"):
        open_account(path, "x", Budget(1, DELTA))
    assert (path.read_bytes(), log.read_bytes()) == before


def test_an_empty_file_becomes_a_ledger(tmp_path):
    (tmp_path / "ledger.db").touch()
    open_account(tmp_path / "ledger.db", "people", Budget(1.0, DELTA))
    assert [found.name for found in accounts(tmp_path / "ledger.db")] == ["people"]


def test_a_damaged_entry_closes_the_account(account):
    account.charge(PLAN)
    db = sqlite3.connect(account.path)
    db.execute("update entries set plan = replace(plan, 'steps', 'stops')")
    db.commit()
    db.close()
    for use in (account.spent, account.entries, lambda: account.charge(PLAN)):
        with pytest.raises(LedgerError, match="an entry of 'people' is damaged"):
            use()


def test_the_export_is_json_and_says_everything(account):
    account.charge(PLAN, "a fit")
    (found,) = json.loads(json.dumps(export(account.path)))["accounts"]
    assert found["name"] == "people"
    assert found["budget"] == Budget(2.0, DELTA)._asdict()
    assert found["spent"] == account.spent()
    assert Plan(**found["entries"][0]["plan"]) == PLAN


def test_a_fit_is_charged_once_and_refused_when_nothing_is_left(tmp_path, monkeypatch):
    account = open_account(tmp_path / "ledger.db", "tiny", Budget(1.2, tiny.DELTA))
    asked = {"epsilon": tiny.EPSILON, "delta": tiny.DELTA, "choice": tiny.choice(), "draws": 10}
    fit(tiny.MODEL, tiny.rows(), **asked, account=account)
    (entry,) = account.entries()
    assert (entry.state, entry.plan) == ("committed", tiny.choice().plan)
    with pytest.raises(ValueError, match="num_rows=300 but the table has 299"):
        fit(tiny.MODEL, tiny.rows(299), **asked, account=account)
    with pytest.raises(ValueError, match="protects nobody"):
        fit(tiny.MODEL, tiny.rows(), **asked, account=account, noise=simulated(1))
    monkeypatch.setattr(loop, "chunk", lambda *_: pytest.fail("the rows were asked"))
    with pytest.raises(LedgerError, match="would have spent"):
        fit(tiny.MODEL, tiny.rows(), **asked, account=account)
    assert len(account.entries()) == 1


ROUNDS, RACERS = 50, 8


def _race(path, barrier, results):
    """One of the processes that want the same budget, round after round."""
    for number in range(ROUNDS):
        account = Account(path, f"round {number}")
        barrier.wait()
        try:
            account.charge(PLAN)
            results.put((number, True))
        except LedgerError:
            results.put((number, False))


def test_eight_processes_never_overspend_one_budget(tmp_path):
    """Three of eight equal plans fit into ε = 2: in each of 50 rounds exactly three are let in."""
    path = tmp_path / "ledger.db"
    for number in range(ROUNDS):
        open_account(path, f"round {number}", Budget(2.0, DELTA))
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(RACERS), context.Queue()
    racers = [context.Process(target=_race, args=(path, barrier, results)) for _ in range(RACERS)]
    for racer in racers:
        racer.start()
    told = [results.get(timeout=300) for _ in range(ROUNDS * RACERS)]
    for racer in racers:
        racer.join(timeout=60)
        assert racer.exitcode == 0
    for account in accounts(path):
        assert len(account.entries()) == 3
        assert account.spent() <= 2.0
    assert sum(let_in for _, let_in in told) == 3 * ROUNDS


def test_calibrated_plans_of_one_budget_are_let_in(tmp_path):
    account = open_account(tmp_path / "ledger.db", "people", Budget(1.0, DELTA))
    account.charge(calibrate(PLAN, 1.0, DELTA))
    assert 0.999 < account.spent() <= 1.0
