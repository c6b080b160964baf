"""A search with its cost: one price, stated before; the best trial alone is told; what went wrong is the worst."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant

from discreet import tune as module
from discreet.accounting import calibrate_search, composed_epsilon, guarantee
from discreet.fitting import Checkpoint
from discreet.ledger import Budget, LedgerError, open_account
from discreet.mechanism import noise
from discreet.plan import TRIAL_LAWS, Plan, Search, from_plain
from discreet.posterior.trace import TraceError
from discreet.release import Release
from discreet.tune import prepare, tune
from tests import tiny

EPSILON, DELTA = 2.0, 1e-5
PLAN = Plan(300, 200, 0.1, 1.0, 5.0)


def candidates(*factors):
    """The tiny choice with its clip norm times each of these."""
    choice = tiny.choice()
    clips = {f"× {factor:g}": factor * choice.plan.clip_norm for factor in factors}
    return {name: choice._replace(plan=replace(choice.plan, clip_norm=clip)) for name, clip in clips.items()}


def prepared(*factors, **options):
    return prepare(tiny.MODEL, candidates(*factors or (0.5, 1.0)), epsilon=EPSILON, delta=DELTA, trials=2.0, **options)


def ages(posterior):
    return float(posterior.draws["coefficients"].mean())


# The price.


@pytest.mark.parametrize("law", TRIAL_LAWS)
def test_a_search_costs_more_than_its_trial_and_more_the_more_trials_there_are(law):
    costs = [guarantee(Search((PLAN,), mean, law), DELTA).epsilon for mean in (1.5, 3.0, 10.0, 30.0)]
    assert guarantee(PLAN, DELTA).epsilon < costs[0] < costs[1] < costs[2] < costs[3]
    assert guarantee(Search((PLAN, PLAN), 3.0, law), DELTA).epsilon > costs[1]


def test_the_price_is_that_of_the_theorem():
    """Papernot and Steinke (2022), Theorem 2, for unsampled Gaussians: every pair of orders gives a valid bound."""
    sigma, mean, eta = 10.0, 5.0, 1.0
    orders = np.array([*range(2, 65), *(int(2 ** (k / 2)) for k in range(13, 25))], float)
    rdp = orders / (2 * sigma**2)
    gamma = 1 / mean
    constant = (1 + eta) * np.min((1 - 1 / orders) * rdp + np.log(1 / gamma) / orders)
    total = rdp + np.log(mean) / (orders - 1) + constant
    total = np.minimum.accumulate(total[::-1])[::-1]
    conversions = total + np.log1p(-1 / orders) - np.log(DELTA * orders) / (orders - 1)
    found = guarantee(Search((Plan(50, 1, 1.0, 1.0, sigma),), mean, "geometric"), DELTA)
    assert found.epsilon == pytest.approx(conversions.min(), rel=1e-6)
    assert found.accountant == "RDP"
    assert "the best of 5 trials on average (geometric), each 1 × Gaussian(10.0)" in found.event


@pytest.mark.parametrize("law", TRIAL_LAWS)
def test_the_number_of_trials_has_the_law_that_is_paid_for(law):
    """Ours and dp-accounting's parameter of the law are one; frequencies within 4.5 sds: false alarm below 10⁻⁴."""
    search = Search((PLAN,), 4.0, law)
    theirs = rdp_privacy_accountant._gamma_truncated_negative_binomial(TRIAL_LAWS[law], 4.0)
    assert 1 - module._shrink(search) == pytest.approx(theirs, rel=1e-6)
    rng = random.Random(1)
    drawn = np.array([module._how_many(search, rng.random()) for _ in range(20_000)])
    assert drawn.min() == 1
    assert abs(drawn.mean() - 4) < 4.5 * drawn.std() / np.sqrt(len(drawn))
    q = 1 - theirs
    for k in (1, 2, 5):
        prob = q**k / k / -np.log(theirs) if law == "logarithmic" else q ** (k - 1) * theirs
        assert abs((drawn == k).mean() - prob) < 4.5 * np.sqrt(prob * (1 - prob) / len(drawn))
    assert module._how_many(search, np.nextafter(1, 0)) < 10_000


def test_a_calibrated_search_meets_its_budget_and_is_tight():
    found = calibrate_search(
        Search((PLAN, replace(PLAN, steps=1, sampling_prob=1.0, noise_multiplier=9.0))), 1.5, DELTA
    )
    spent = guarantee(found, DELTA).epsilon
    assert 1.49 < spent <= 1.5
    assert found.trial[1].noise_multiplier / found.trial[0].noise_multiplier == pytest.approx(9 / 5)


def test_batches_that_are_hardly_ever_full_cost_a_thousandth_of_delta_and_others_are_refused():
    seldom = replace(PLAN, batch_limit=100)
    free, limited = (guarantee(Search((plan,)), DELTA).epsilon for plan in (PLAN, seldom))
    assert free < limited < 1.001 * free
    with pytest.raises(ValueError, match=r"batch_limit=\[40\] must be None, or so large"):
        guarantee(Search((replace(PLAN, batch_limit=40),)), DELTA)
    with pytest.raises(ValueError, match="noise_kind=laplace must be gaussian"):
        guarantee(Search((replace(PLAN, noise_kind="laplace"),)), DELTA)


def test_attack_risk_of_a_search_is_bounded_and_more_than_of_its_trial():
    alone, search = guarantee(PLAN, DELTA), guarantee(Search((PLAN,)), DELTA)
    assert alone.advantage < search.advantage < np.tanh(search.epsilon / 2) + DELTA
    assert alone.tpr_at_fpr_01 < search.tpr_at_fpr_01 <= 0.01 * np.exp(search.epsilon) + DELTA


def test_searches_and_plans_compose():
    search = Search((PLAN,), 3.0)
    both = composed_epsilon([PLAN, search], DELTA)
    assert both == pytest.approx(guarantee(PLAN, DELTA / 2).epsilon + guarantee(search, DELTA / 2).epsilon)
    assert composed_epsilon([PLAN, PLAN], DELTA) == guarantee([PLAN, PLAN], DELTA).epsilon
    assert composed_epsilon([search], DELTA) == guarantee(search, DELTA).epsilon


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trial": ()}, "at least one phase"),
        ({"mean_trials": 1.0}, "mean_trials=1.0 must exceed 1"),
        ({"mean_trials": float("nan")}, "mean_trials=nan must exceed 1"),
        ({"law": "fixed"}, "law=fixed must be one of logarithmic, geometric"),
        ({"trial": (PLAN, replace(PLAN, unit="person"))}, "phases of one unit"),
        ({"trial": (PLAN, replace(PLAN, num_rows=301))}, "phases of one num_rows"),
    ],
)
def test_what_no_search_can_be_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        Search(**{"trial": (PLAN,), **changes})


def test_a_search_is_written_and_read():
    search = Search((PLAN, PLAN), 3.0, "geometric")
    assert from_plain(json.loads(json.dumps(search.to_dict()))) == search
    assert from_plain(json.loads(json.dumps(PLAN.to_dict()))) == PLAN


# The search.


def test_the_whole_price_is_known_before_any_row_is_asked():
    ready = prepared()
    assert 0.99 * EPSILON < ready.guarantee.epsilon <= EPSILON
    assert "2 trials on average, of 2 candidates (× 0.5, × 1); in all (ε = 2" in str(ready)
    for choice in ready.candidates.values():
        assert choice.plan.noise_multiplier == ready.search.trial[0].noise_multiplier
    alone = replace(ready.search.trial[0], batch_limit=None)
    assert guarantee(alone, DELTA).epsilon < EPSILON / 1.5


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A secure search on the tiny table with a private score, charged to an account."""
    path = tmp_path_factory.mktemp("tune") / "ledger.db"
    account = open_account(path, "tiny", Budget(3.0, DELTA))
    return tune(prepared(), tiny.rows(), account=account, draws=100), account


def test_the_best_trial_has_the_guarantee_of_the_search_and_says_that_it_was_chosen(found, tmp_path):
    posterior, account = found
    promise = posterior.guarantee
    assert promise.private
    assert promise == replace(prepared().guarantee, noise="secure")
    assert posterior.info["search"]["chosen"] in ("× 0.5", "× 1")
    posterior.release.save(tmp_path / "release")
    assert Release.load(tmp_path / "release").settings["search"] == posterior.info["search"]
    (entry,) = account.entries()
    assert entry.state == "committed"
    assert entry.plan == prepared().search
    assert account.spent() == promise.epsilon


def test_nothing_tells_how_many_trials_there_were(found):
    told = json.dumps(found[0].info) + json.dumps(found[0].guarantee.to_dict())
    assert set(found[0].info["search"]) == {"chosen", "of", "score", "trial", "mean_trials", "law"}
    assert "number" not in told


def test_a_budget_that_is_too_small_refuses_the_search_before_it_runs(tmp_path, monkeypatch):
    account = open_account(tmp_path / "ledger.db", "tiny", Budget(1.0, DELTA))
    monkeypatch.setattr(noise.Noise, "words", lambda *_: pytest.fail("asked"))
    with pytest.raises(LedgerError, match="would have spent"):
        tune(prepared(), tiny.rows(), account=account)
    adaptive = open_account(tmp_path / "ledger.db", "adaptive", Budget(9.0, DELTA, adaptive=True))
    with pytest.raises(ValueError, match="adaptive=True must be False"):
        tune(prepared(), tiny.rows(), account=adaptive)
    assert account.entries() == adaptive.entries() == []


def test_the_best_by_a_public_score_is_taken(monkeypatch):
    """Three trials: the one whose score is largest is told, and a score that is no number never is."""
    ready = prepared(score_bound=None)
    assert len(ready.search.trial) == 1
    monkeypatch.setattr(module, "_how_many", lambda *_: 3)
    scores = iter([1.0, float("nan"), 3.0])
    seen = []

    def score(posterior):
        seen.append(posterior.z)
        return next(scores)

    best = tune(ready, tiny.rows(), score, seed=4, draws=50)
    np.testing.assert_array_equal(best.z, seen[2])
    assert best.info["search"]["score"] == 3.0
    assert not best.guarantee.private
    assert "NOT PRIVATE" in str(best.guarantee)


def test_trials_that_cannot_be_read_are_the_worst_and_if_all_are_it_says_so(monkeypatch):
    monkeypatch.setattr(module, "_how_many", lambda *_: 2)

    def unreadable(*_, **__):
        raise TraceError("a flat trace")

    with monkeypatch.context() as patch:
        patch.setattr(module, "fit", unreadable)
        with pytest.raises(TraceError, match="no trial of this search could be read"):
            tune(prepared(), tiny.rows(), seed=1)


def test_the_private_score_prefers_what_explains_the_rows():
    """Noise-free scores of a good posterior and of one that is 20 sds away, through the mechanism that adds noise."""
    good = tiny.posterior(3)
    far = replace(good, z=good.z + 20 * good.z.std((0, 1)))
    plan = replace(prepared().search.trial[1], noise_multiplier=0.0)
    scores = [
        float(module.run(noise.simulated(1), plan, module._score_query(tiny.MODEL, one, plan), tiny.rows()).last[0])
        for one in (good, far)
    ]
    assert scores[0] > scores[1] + 20
    assert scores[1] >= -module.SCORE_BOUND * tiny.NUM_ROWS


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: prepared(1.0), "a search needs two or more"),
        (lambda: prepared(score_bound=-1.0), "score_bound=-1.0 must be positive"),
        (
            lambda: prepare(
                tiny.MODEL,
                {"a": tiny.choice(), "b": tiny.choice()._replace(plan=replace(tiny.choice().plan, steps=300))},
                epsilon=1.0,
                delta=DELTA,
            ),
            "candidates 'a' and 'b' differ in steps",
        ),
        (
            lambda: prepare(
                tiny.MODEL,
                {"a": tiny.choice(), "b": tiny.choice()._replace(before=(tiny.choice().plan,))},
                epsilon=1.0,
                delta=DELTA,
            ),
            r"candidates \['b'\] ask in several phases",
        ),
        (lambda: tune(prepared(), tiny.rows(), ages), "prepared with a private score: give no score="),
        (lambda: tune(prepared(score_bound=None), tiny.rows()), "prepared without a private score: give a score="),
        (lambda: tune(prepared(), tiny.rows(20)), "the table has 20 rows and this search was prepared for 300 rows"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_is_spent(ask, said, monkeypatch):
    monkeypatch.setattr(noise.Noise, "words", lambda *_: pytest.fail("asked"))
    with pytest.raises(ValueError, match=said):
        ask()


def test_simulated_searches_are_paid_by_no_account(tmp_path):
    account = open_account(tmp_path / "ledger.db", "tiny", Budget(9.0, DELTA))
    for paid in ({"account": account}, {"checkpoint": Checkpoint(None, account)}):
        with pytest.raises(ValueError, match="leave the account out"):
            tune(prepared(), tiny.rows(), seed=1, **paid)
    assert account.entries() == []


def test_a_search_is_committed_when_the_caller_has_saved_it_and_charged_once(tmp_path, monkeypatch):
    account = open_account(tmp_path / "ledger.db", "tiny", Budget(9.0, DELTA))
    monkeypatch.setattr(module, "_trial", lambda *_: (tiny.posterior(), 1.0, "× 1"))
    with Checkpoint(None, account, "a search") as checkpoint:
        tune(prepared(), tiny.rows(), checkpoint=checkpoint)
        assert [entry.state for entry in account.entries()] == ["intent"]
        with pytest.raises(ValueError, match="has served a run"):
            tune(prepared(), tiny.rows(), checkpoint=checkpoint)
    (entry,) = account.entries()
    assert (entry.state, entry.purpose, entry.run) == ("committed", "a search", checkpoint.run)


def test_what_cannot_keep_a_search_is_refused_uncharged(tmp_path):
    account = open_account(tmp_path / "ledger.db", "tiny", Budget(9.0, DELTA))
    with pytest.raises(ValueError, match="give a Checkpoint without a folder"):
        tune(prepared(), tiny.rows(), checkpoint=Checkpoint(tmp_path / "run", account))
    with pytest.raises(ValueError, match="give the account to the checkpoint"):
        tune(prepared(), tiny.rows(), account=account, checkpoint=Checkpoint(None, account))
    assert account.entries() == []


def test_the_stream_of_a_private_score_is_forgotten(monkeypatch):
    made = []
    monkeypatch.setattr(module, "secure", lambda: made.append(noise.secure()) or made[-1])
    monkeypatch.setattr(module, "fit", lambda *_, **__: tiny.posterior())
    assert module._trial(prepared(), "× 1", tiny.rows(), None, None, 10) is not None
    assert [len(stream._key) for stream in made] == [0]
