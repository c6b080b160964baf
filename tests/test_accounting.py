import json
import math
import subprocess
import sys
from dataclasses import replace

import dp_accounting
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import accounting
from discreet.accounting import Guarantee, calibrate, event, guarantee, rdp_epsilon
from discreet.plan import Plan, default_batch_limit, non_private

PAPER = Plan(num_rows=5000, steps=10_000, sampling_prob=0.1, clip_norm=1.0, noise_multiplier=37.33)
SMALL = Plan(num_rows=500, steps=100, sampling_prob=0.1, clip_norm=1.0, noise_multiplier=3.0)
EXACT = Plan(num_rows=50, steps=1, sampling_prob=1.0, clip_norm=1.0, noise_multiplier=3.0)
LAPLACE = replace(EXACT, noise_kind="laplace")
TABLE = [
    (5000, 0.1, 10_000, 1e-5, 0.1, 307.8),
    (5000, 0.1, 10_000, 1e-5, 0.3, 112.5),
    (5000, 0.1, 10_000, 1e-5, 1.0, 37.33),
    (30162, 0.01, 400_000, 1 / 30162, 1.0, 21.88),
    (100_000, 0.01, 100_000, 1e-5, 1.0, 11.83),
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DISCREET_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize(("num_rows", "rate", "steps", "delta", "epsilon", "expected"), TABLE)
def test_calibrate_agrees_with_the_published_table(num_rows, rate, steps, delta, epsilon, expected, truncated):
    limit = default_batch_limit(num_rows, rate) if truncated else None
    plan = calibrate(Plan(num_rows, steps, rate, 1.0, 0.0, limit), epsilon, delta)
    assert plan.noise_multiplier == pytest.approx(expected, rel=1e-3)
    assert plan.batch_limit == limit
    assert epsilon * (1 - 1e-3) <= guarantee(plan, delta).epsilon <= epsilon


@settings(max_examples=5, deadline=None)
@given(
    epsilon=st.floats(0.2, 8.0),
    delta=st.floats(1e-7, 1e-3),
    rate=st.sampled_from([0.02, 0.3, 1.0]),
    steps=st.sampled_from([1, 300]),
    truncated=st.booleans(),
)
def test_calibrate_never_overspends_and_is_tight(epsilon, delta, rate, steps, truncated):
    limit = default_batch_limit(400, rate) if truncated else None
    plan = calibrate(Plan(400, steps, rate, 1.0, 0.0, limit), epsilon, delta)
    spent = guarantee(plan, delta).epsilon
    assert spent <= epsilon
    assert spent >= epsilon * (1 - 1e-3) or plan.noise_multiplier == 0.45


@pytest.mark.parametrize(("epsilon", "steps"), [(10.0, 1), (1.0, 1), (0.1, 25)])
def test_calibrate_of_the_pure_gaussian_is_analytic(epsilon, steps):
    plan = calibrate(replace(EXACT, steps=steps), epsilon, 1e-5)
    exact = dp_accounting.get_sigma_gaussian(epsilon, 1e-5) * math.sqrt(steps)
    assert exact * (1 - 1e-6) <= plan.noise_multiplier <= exact * (1 + 5e-4)


def test_guarantee_of_the_pure_gaussian_is_analytic_and_no_smaller():
    exact = dp_accounting.get_epsilon_gaussian(3.0, 1e-5)
    assert exact <= guarantee(EXACT, 1e-5).epsilon <= exact * (1 + 2e-5)


def test_calibrate_handles_tiny_tables():
    for num_rows in (1, 2, 5):
        limit = default_batch_limit(num_rows, 0.3)
        plan = calibrate(Plan(num_rows, 10, 0.3, 1.0, 0.0, limit), 1.0, 1e-5)
        assert 0.999 <= guarantee(plan, 1e-5).epsilon <= 1.0


def test_calibrate_stops_at_the_least_noise_where_none_is_needed():
    assert calibrate(Plan(1000, 1, 0.001, 1.0, 0.0), 1.0, 0.01).noise_multiplier == 0.45


def test_rdp_is_never_below_the_report():
    for plan in (PAPER, SMALL, EXACT, [SMALL, EXACT]):
        assert rdp_epsilon(plan, 1e-5) >= guarantee(plan, 1e-5).epsilon
    assert guarantee(PAPER, 1e-5).accountant == "PLD"


def test_rdp_refuses_truncation_and_sampled_laplace_noise():
    with pytest.raises(ValueError, match="batch_limit=70 must be None"):
        rdp_epsilon(replace(SMALL, batch_limit=70), 1e-5)
    with pytest.raises(ValueError, match=r"sampling_prob=0\.1 must be 1: RDP cannot price sampled Laplace"):
        rdp_epsilon([EXACT, replace(SMALL, noise_kind="laplace")], 1e-5)
    assert rdp_epsilon(replace(SMALL, batch_limit=500), 1e-5) == rdp_epsilon(SMALL, 1e-5)


def test_rdp_is_reported_where_pld_cannot_resolve_delta():
    promise = guarantee(PAPER, 1e-14)
    assert promise.accountant == "RDP"
    assert promise.epsilon == rdp_epsilon(PAPER, 1e-14)
    truncated = replace(PAPER, batch_limit=607)
    assert guarantee(truncated, 1e-14).epsilon == math.inf
    with pytest.raises(ValueError, match=r"delta=1e-14 must exceed 1.0e-11"):
        calibrate(truncated, 1.0, 1e-14)


@pytest.mark.parametrize("limit", [None, 80])
def test_composing_an_event_k_times_equals_its_self_composition(limit):
    once = replace(SMALL, steps=1, batch_limit=limit)
    repeated = guarantee([once] * 5, 1e-5).epsilon
    assert repeated == pytest.approx(guarantee(replace(once, steps=5), 1e-5).epsilon, rel=1e-5)


def test_two_phases_compose_to_less_than_the_sum():
    plan = replace(PAPER, noise_multiplier=35.7)
    one, two = guarantee(plan, 1e-5).epsilon, guarantee([plan, plan], 1e-5).epsilon
    assert one < two < 1.5 * one


def test_epsilon_falls_with_noise_and_grows_with_steps():
    by_noise = [guarantee(replace(SMALL, noise_multiplier=s), 1e-5).epsilon for s in (1.0, 2.0, 4.0, 8.0)]
    by_steps = [guarantee(replace(SMALL, steps=t), 1e-5).epsilon for t in (1, 10, 100, 1000)]
    assert by_noise == sorted(by_noise, reverse=True)
    assert by_steps == sorted(by_steps)


def test_attack_risk_of_the_paper_plan():
    promise = guarantee(PAPER, 1e-5)
    assert promise.advantage == pytest.approx(0.107, abs=5e-4)
    assert promise.tpr_at_fpr_01 == pytest.approx(0.020, abs=5e-4)


def test_attack_risk_of_the_pure_gaussian_is_its_trade_off_curve():
    from scipy.stats import norm

    promise, mu = guarantee(EXACT, 1e-5), 1 / EXACT.noise_multiplier
    assert promise.advantage == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=1e-4)
    assert promise.tpr_at_fpr_01 == pytest.approx(norm.sf(norm.isf(0.01) - mu), rel=1e-4)


def test_attack_risk_is_symmetric_where_the_attacker_is_strong():
    from scipy.stats import norm

    promise, mu = guarantee(replace(EXACT, noise_multiplier=0.2), 1e-5), 5.0
    assert promise.tpr_at_fpr_01 == pytest.approx(norm.sf(norm.isf(0.01) - mu), rel=1e-4)


def test_truncation_costs_nothing_at_five_sd_and_something_at_two():
    free = guarantee(PAPER, 1e-5).epsilon
    sd = math.sqrt(5000 * 0.1 * 0.9)
    five, two = (guarantee(replace(PAPER, batch_limit=math.ceil(500 + k * sd)), 1e-5).epsilon for k in (5, 2))
    assert five == pytest.approx(free, rel=2e-5)
    assert two == pytest.approx(1.17 * free, rel=0.01)


def test_a_limit_without_sampling_is_charged_at_least_as_its_rate():
    plan = replace(EXACT, batch_limit=10, noise_multiplier=10.0)
    sampled = replace(EXACT, sampling_prob=10 / 50, noise_multiplier=10.0)
    assert guarantee(plan, 1e-5).epsilon > guarantee(sampled, 1e-5).epsilon


def test_event_names_each_mechanism():
    gaussian = dp_accounting.GaussianDpEvent(3.0)
    sampled = dp_accounting.PoissonSampledDpEvent(0.1, gaussian)
    limited = dp_accounting.TruncatedSubsampledGaussianDpEvent(500, 0.1, 80, 3.0)
    assert event(EXACT) == dp_accounting.SelfComposedDpEvent(gaussian, 1)
    assert event(SMALL) == dp_accounting.SelfComposedDpEvent(sampled, 100)
    assert event(replace(SMALL, batch_limit=500)) == event(SMALL)
    assert event(replace(SMALL, batch_limit=80)) == dp_accounting.SelfComposedDpEvent(limited, 100)
    assert event([SMALL, EXACT]) == dp_accounting.ComposedDpEvent([event(SMALL), event(EXACT)])
    assert event(replace(SMALL, noise_multiplier=0.0)) == dp_accounting.NonPrivateDpEvent()
    laplace = dp_accounting.LaplaceDpEvent(3.0)
    sampled = dp_accounting.PoissonSampledDpEvent(0.1, laplace)
    assert event(LAPLACE) == dp_accounting.SelfComposedDpEvent(laplace, 1)
    assert event(replace(SMALL, noise_kind="laplace")) == dp_accounting.SelfComposedDpEvent(sampled, 100)
    assert event(replace(SMALL, noise_kind="laplace", noise_multiplier=0.0)) == dp_accounting.NonPrivateDpEvent()


def test_no_noise_is_no_guarantee():
    for plan in (replace(SMALL, noise_multiplier=0.0), [EXACT, replace(EXACT, noise_multiplier=0.0)]):
        promise = guarantee(plan, 1e-5, "secure")
        assert (promise.epsilon, promise.advantage, promise.tpr_at_fpr_01) == (math.inf, 1.0, 1.0)
        assert not promise.private
        assert str(promise).startswith("NOT PRIVATE: ε = ∞ at δ = 1e-05; ")


@pytest.mark.parametrize("noise", ["secure", "simulated", "unstated"])
@pytest.mark.parametrize("limit", [None, 80])
def test_a_non_private_plan_is_priced_at_infinity_whatever_its_noise(noise, limit):
    promise = guarantee(non_private(replace(SMALL, batch_limit=limit)), 1e-5, noise)
    assert promise.epsilon == math.inf
    assert not promise.private
    assert str(promise).startswith("NOT PRIVATE: ε = ∞")
    assert "guessing" not in str(promise)
    assert Guarantee.from_dict(json.loads(json.dumps(promise.to_dict()))) == promise


def test_little_noise_is_priced_in_seconds():
    for multiplier in (1e-9, 1e-4, 0.05):
        for plan in (EXACT, SMALL, replace(SMALL, batch_limit=70)):
            promise = guarantee(replace(plan, noise_multiplier=multiplier), 1e-5)
            assert promise.epsilon > 90
            assert promise.epsilon < math.inf or plan.batch_limit
            assert promise.advantage > 0.999


def test_the_price_does_not_depend_on_the_clip_norm(cache):
    promise = guarantee(SMALL, 1e-5)
    assert guarantee(replace(SMALL, clip_norm=7.0, num_rows=900), 1e-5) == promise
    assert len(list(cache.iterdir())) == 1


def test_a_guarantee_says_whether_it_is_private():
    secure = guarantee(replace(PAPER, noise_multiplier=38.0), 1e-5, "secure")
    assert secure.private
    assert secure.relation == "zero-out"
    assert secure.version == "dp-accounting 0.6.0"
    assert secure.event == "10000 × Poisson(0.1) Gaussian(38.0)"
    simulated = replace(secure, noise="simulated")
    assert not simulated.private
    assert str(simulated).startswith("NOT PRIVATE: simulated noise")
    assert Guarantee.from_dict(json.loads(json.dumps(secure.to_dict()))) == secure


def test_a_printed_guarantee_is_rounded_up():
    printed = str(Guarantee(0.99991, 1e-5, "PLD", "", "", 0.10601, 0.01901))
    assert printed == (
        "(ε = 1, δ = 1e-05), zero-out, PLD; a membership attacker gains at most .107 over guessing "
        "(2.0 % true positives at 1 % false)"
    )


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_bad_budgets_are_refused(bad):
    with pytest.raises(ValueError, match=f"epsilon={bad} must be positive"):
        calibrate(SMALL, bad, 1e-5)
    for call in (lambda: calibrate(SMALL, 1.0, bad), lambda: guarantee(SMALL, bad)):
        with pytest.raises(ValueError, match=f"delta={bad} must lie in"):
            call()


def test_bad_requests_are_refused():
    with pytest.raises(ValueError, match=r"delta=1\.0 must lie in"):
        guarantee(SMALL, 1.0)
    with pytest.raises(ValueError, match="one by one"):
        calibrate([SMALL, SMALL], 1.0, 1e-5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="at least one phase"):
        event([])
    with pytest.raises(ValueError, match="noise=loud must be one of"):
        guarantee(SMALL, 1e-5, "loud")  # pyright: ignore[reportArgumentType]


def test_a_cache_hit_does_not_import_dp_accounting():
    program = (
        "import sys; from discreet.accounting import calibrate, guarantee; from discreet.plan import Plan;"
        "plan = calibrate(Plan(500, 100, 0.1, 1.0, 0.0), 1.0, 1e-5);"
        "print(plan.noise_multiplier, guarantee(plan, 1e-5).epsilon, 'dp_accounting' in sys.modules)"
    )
    plan = calibrate(SMALL, 1.0, 1e-5)
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert found.split() == [str(plan.noise_multiplier), str(guarantee(plan, 1e-5).epsilon), "False"]


@pytest.mark.parametrize("entry", ["", "{", "[]", "{}", "null", '{"noise_multiplier": 0.01, "epsilon": -1}'])
def test_a_corrupt_cache_is_ignored_and_mended(cache, entry):
    plan = calibrate(EXACT, 1.0, 1e-5)
    files = {path: path.read_text() for path in cache.iterdir()}
    for path in files:
        path.write_text(entry)
    assert calibrate(EXACT, 1.0, 1e-5) == plan
    assert files.items() <= {path: path.read_text() for path in cache.iterdir()}.items()


def test_a_cache_that_overspends_is_ignored(cache):
    plan = calibrate(EXACT, 1.0, 1e-5)
    (path,) = (path for path in cache.iterdir() if "accountant" not in path.read_text())
    path.write_text(path.read_text().replace(str(plan.noise_multiplier), "2.5"))
    assert calibrate(EXACT, 1.0, 1e-5) == plan


def test_a_cache_that_cannot_be_written_is_ignored(cache, monkeypatch):
    (cache / "file").write_text("")
    monkeypatch.setenv("DISCREET_CACHE", str(cache / "file"))
    assert guarantee(EXACT, 1e-5) == guarantee(EXACT, 1e-5)


def test_a_cache_hit_computes_nothing(monkeypatch):
    plan = calibrate(EXACT, 1.0, 1e-5)
    monkeypatch.setattr(accounting, "_bound", lambda *_: pytest.fail("computed again"))
    assert calibrate(replace(EXACT, clip_norm=2.0), 1.0, 1e-5) == replace(plan, clip_norm=2.0)


# Laplace noise: closed forms of one step, and bounds on many.


def shifted(mu, epsilon):
    """δ(ε) of Laplace noise of scale 1 around 0 and around μ."""
    return max(0.0, -math.expm1((epsilon - mu) / 2))


@pytest.mark.parametrize("multiplier", [0.2, 1.0, 10.0, 300.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 1e-2])
def test_one_laplace_step_is_its_closed_form_and_no_smaller(multiplier, delta):
    """ε(δ) = 1/b + 2 log(1 − δ), within what the grid of the PLD costs; never above 1/b."""
    mu = 1 / multiplier
    exact = max(0.0, mu + 2 * math.log1p(-delta))
    assert shifted(mu, exact) == pytest.approx(delta) or exact == 0
    promise = guarantee(replace(LAPLACE, noise_multiplier=multiplier), delta)
    assert exact * (1 - 1e-12) <= promise.epsilon <= min(mu, exact * (1 + 2e-5))
    assert promise.event == f"1 × Laplace({multiplier})"
    assert promise.advantage == pytest.approx(shifted(mu, 0), rel=1e-9)
    if multiplier >= 1:
        assert promise.tpr_at_fpr_01 == pytest.approx(0.01 * math.exp(mu), rel=1e-3)


@pytest.mark.parametrize(("multiplier", "rate"), [(0.5, 0.1), (3.0, 0.3), (0.2, 0.01)])
def test_one_sampled_laplace_step_is_its_closed_form_and_no_smaller(multiplier, rate):
    """δ(log(1 + κ(e^ε − 1))) of the sampled step is κ δ(ε) of the whole one."""
    whole = 1 / multiplier + 2 * math.log1p(-1e-4 / rate)
    exact = math.log1p(rate * math.expm1(whole))
    spent = guarantee(replace(LAPLACE, noise_multiplier=multiplier, sampling_prob=rate), 1e-4).epsilon
    assert exact <= spent <= exact * (1 + 2e-3)


def test_a_row_that_spreads_its_norm_over_coordinates_is_no_easier_to_see():
    """Moved by μ₁ and μ₂: δ = 1 − (1 + min(μ₁, μ₂, c)/2) e^−c, c = (μ₁ + μ₂ − ε)/2; less than moved by the sum."""
    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    for first, second in [(0.5, 0.5), (0.2, 1.0), (3.0, 0.1)]:
        loss = dp_accounting.pld.PLDAccountant(relation, 1e-3)
        loss.compose(dp_accounting.LaplaceDpEvent(1 / first)).compose(dp_accounting.LaplaceDpEvent(1 / second))
        for share in (0.0, 0.3, 0.6, 0.9):
            at = share * (first + second)
            c = (first + second - at) / 2
            assert loss.get_delta(at) == pytest.approx(1 - (1 + min(first, second, c) / 2) * math.exp(-c), rel=1e-3)
            assert loss.get_delta(at) < shifted(first + second, at)
    spread = [replace(LAPLACE, noise_multiplier=3.0 / share) for share in (0.4, 0.3, 0.2, 0.1)]
    for delta in (1e-3, 0.05):
        assert guarantee(spread, delta).epsilon < guarantee(LAPLACE, delta).epsilon


def test_laplace_steps_compose():
    once = replace(LAPLACE, noise_multiplier=20.0)
    many = replace(once, steps=200)
    assert guarantee([once] * 5, 1e-5).epsilon == pytest.approx(
        guarantee(replace(once, steps=5), 1e-5).epsilon, rel=1e-5
    )
    spent = guarantee(many, 1e-5)
    assert spent.accountant == "PLD"
    assert guarantee(once, 1e-5).epsilon < spent.epsilon < rdp_epsilon(many, 1e-5) < 200 / 20
    assert spent.epsilon == pytest.approx(guarantee(replace(many, noise_kind="gaussian"), 1e-5).epsilon, rel=0.02)


def test_what_the_steps_cost_on_their_own_is_reported_where_pld_cannot_resolve_delta():
    sampled = replace(LAPLACE, sampling_prob=0.1, steps=10)
    promise = guarantee(sampled, 1e-20)
    assert promise.accountant == "sum of ε"
    assert promise.epsilon == pytest.approx(10 * math.log(1 + 0.1 * (math.exp(1 / 3) - 1)))
    assert guarantee(replace(LAPLACE, noise_multiplier=1e-4), 1e-20).epsilon == pytest.approx(1e4)


def test_gaussian_and_laplace_phases_are_priced_together():
    laplace = replace(LAPLACE, noise_multiplier=4.0)
    for gaussian in (EXACT, SMALL, replace(SMALL, batch_limit=70)):
        alone = [guarantee(plan, 1e-5).epsilon for plan in (gaussian, laplace)]
        promise = guarantee([gaussian, laplace], 1e-5)
        assert max(alone) < promise.epsilon < sum(alone)
        assert promise.epsilon == pytest.approx(guarantee([laplace, gaussian], 1e-5).epsilon, rel=1e-9)
        assert promise.event.endswith("Gaussian(3.0) + 1 × Laplace(4.0)")


def test_kinds_do_not_share_a_price(cache):
    assert guarantee(EXACT, 1e-5).epsilon != guarantee(LAPLACE, 1e-5).epsilon
    assert len(list(cache.iterdir())) == 2
    assert calibrate(EXACT, 1.0, 1e-5).noise_multiplier > 3
    assert calibrate(LAPLACE, 1.0, 1e-5) == replace(LAPLACE, noise_multiplier=1.0)


@pytest.mark.parametrize(
    ("epsilon", "rate", "steps"), [(0.1, 1.0, 1), (12.0, 1.0, 1), (1.0, 1.0, 50), (1.0, 0.1, 1000), (3.0, 0.02, 1)]
)
def test_calibrate_of_laplace_noise_never_overspends_and_is_tight(epsilon, rate, steps):
    plan = calibrate(replace(LAPLACE, sampling_prob=rate, steps=steps), epsilon, 1e-5)
    assert epsilon * (1 - 1e-3) <= guarantee(plan, 1e-5).epsilon <= epsilon
    assert plan.noise_kind == "laplace"


def test_calibrate_of_laplace_noise_stops_at_its_own_least_noise():
    assert calibrate(LAPLACE, 30.0, 1e-5).noise_multiplier == 0.05
