"""What a plan costs: its event, its guarantee, and the noise that meets a budget."""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from decimal import ROUND_CEILING, Context
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, get_args

from discreet.atomic import cache_folder, new_file
from discreet.plan import TRIAL_LAWS, Charge, Plan, Search, phases, require

if TYPE_CHECKING:
    from dp_accounting import DpEvent
Noise = Literal["secure", "simulated", "unstated"]
Phases = Plan | Sequence[Plan]

_INTERVALS = (1e-4, 3e-5, 1e-5)  # below 1e-5 floating point costs more than the finer grid gains
_SPARED = 1e-3  # of δ, for batches that are truncated, where RDP prices those that are not
_ROUNDING = 1e-15  # δ per step that rounding in the Fourier transforms may hide; 1e-16 was the most seen
_ORDERS = (*range(2, 65), *(int(2 ** (k / 2)) for k in range(13, 25)))
_LEAST_NOISE = {"gaussian": 0.45, "laplace": 0.05}


@dataclass(frozen=True)
class Guarantee:
    """What a release promises: (ε, δ)-differential privacy under `relation`, if its noise is secure.

    Zero-out: one row's contribution is replaced by nothing; the number of rows is public. `advantage` bounds
    true − false positives of any membership attack on a row, `tpr_at_fpr_01` its true positives at 1 % false. With a
    `unit` other than "row", read all rows of one such unit for a row.

    >>> promise = Guarantee(0.99994, 1e-5, "PLD", "dp-accounting 0.6.0", "...", 0.1065, 0.0195)
    >>> print(promise)
    (ε = 1, δ = 1e-05), zero-out, PLD; a membership attacker gains at most .107 over guessing
    (2.0 % true positives at 1 % false)
    >>> promise.private, Guarantee.from_dict(promise.to_dict()) == promise
    (False, True)
    """

    epsilon: float
    delta: float
    accountant: str
    version: str
    event: str
    advantage: float
    tpr_at_fpr_01: float
    noise: Noise = "unstated"
    relation: str = "zero-out"
    unit: str = "row"

    def __post_init__(self):
        require(self.epsilon >= 0, "epsilon", self.epsilon, "be ≥ 0, or inf for no guarantee")
        require(0 < self.delta < 1, "delta", self.delta, "lie in (0, 1)")
        for name in ("advantage", "tpr_at_fpr_01"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "lie in [0, 1]")
        require(self.noise in get_args(Noise), "noise", self.noise, f"be one of {get_args(Noise)}")

    @property
    def private(self) -> bool:
        """Whether the promise holds: secure noise and a finite ε."""
        return self.noise == "secure" and math.isfinite(self.epsilon)

    def to_dict(self) -> dict:
        """The guarantee as plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict) -> "Guarantee":
        """The guarantee that `to_dict` wrote."""
        return cls(**values)

    def __str__(self) -> str:
        if self.epsilon == math.inf:
            return f"NOT PRIVATE: ε = ∞ at δ = {_up(self.delta, 3):.3g}; {self.event}"
        warning = "NOT PRIVATE: simulated noise; with secure noise " if self.noise == "simulated" else ""
        gain = f"{_up(self.advantage, 3):.3g}".removeprefix("0")
        whom = "" if self.unit == "row" else f" of all rows of one {self.unit}"
        return (
            f"{warning}(ε = {_up(self.epsilon, 4):.4g}, δ = {_up(self.delta, 3):.3g}), {self.relation}{whom}, "
            f"{self.accountant}; a membership attacker gains at most {gain} over guessing "
            f"({_up(100 * self.tpr_at_fpr_01, 2):.1f} % true positives at 1 % false)"
        )


def event(plan: Phases | Search) -> "DpEvent":
    """The plan's event: its phases composed, each a step composed with itself `steps` times; a search selects.

    A `batch_limit` below `num_rows` is charged as truncated Poisson sampling, also at sampling_prob = 1,
    where that is valid but loose: it charges the random subset as if rows were swapped.
    Laplace noise is charged as if a row put all of its L1 norm on one coordinate. Nothing is worse: one that is moved
    by μ scales has δ(ε) = 1 − exp(−c), c = (μ − ε) / 2 ≥ 0; two that are moved by μ₁ + μ₂ = μ have
    1 − (1 + min(μ₁, μ₂, c) / 2) exp(−c) for ε ≥ 0; more coordinates follow by induction.
    One row at a time is sampling without replacement of one, under replace-one.

    >>> event(Plan(num_rows=50, steps=3, sampling_prob=1.0, clip_norm=1.0, noise_multiplier=2.0))
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=3)
    """
    import dp_accounting as dpa

    if isinstance(plan, Search):
        return dpa.dp_event.RepeatAndSelectDpEvent(event(plan.trial), plan.mean_trials, TRIAL_LAWS[plan.law])
    phase, *others = _priced(plan)
    if others:
        return dpa.ComposedDpEvent([event(part) for part in (phase, *others)])
    if phase.noise_multiplier == 0:
        return dpa.NonPrivateDpEvent()
    if phase.sampling == "one row":  # replacing a row moves the answer by twice the clip norm
        step = dpa.SampledWithoutReplacementDpEvent(phase.num_rows, 1, dpa.GaussianDpEvent(phase.noise_multiplier / 2))
        return dpa.SelfComposedDpEvent(step, phase.steps)
    kinds = {"gaussian": dpa.GaussianDpEvent, "laplace": dpa.LaplaceDpEvent}
    rate, step = phase.sampling_prob, kinds[phase.noise_kind](phase.noise_multiplier)
    if phase.batch_limit is not None:
        terms = (phase.num_rows, rate, phase.batch_limit, phase.noise_multiplier)
        step = dpa.TruncatedSubsampledGaussianDpEvent(*terms)
    elif rate < 1:
        step = dpa.PoissonSampledDpEvent(rate, step)
    return dpa.SelfComposedDpEvent(step, phase.steps)


def guarantee(plan: Phases | Search, delta: float, noise: Noise = "unstated") -> Guarantee:
    """The plan's guarantee at `delta`: the smallest of several valid upper bounds on ε.

    Guarantee: PLD at each of `_intervals`, charged for floating point; RDP where there is one; for Laplace noise alone
    also the sum of the steps' own ε, log(1 + κ (e^(1/b) − 1)) at noise multiplier b. For one row at a time RDP alone,
    and so for a search (Papernot and Steinke, 2022), if its trials truncate batches so seldom that 10⁻³ of δ pays for
    it: trials without truncation differ from these with probability τ, and the search's δ by (1 + e^ε) τ mean_trials.

    >>> plan = Plan(num_rows=50, steps=4, sampling_prob=1.0, clip_norm=1.0, noise_multiplier=2 * 3.7306317)
    >>> round(guarantee(plan, 1e-5).epsilon, 4)
    1.0
    """
    require(0 < delta < 1, "delta", delta, "lie in (0, 1), well below 1 / num_rows")
    priced = _bare(plan) if isinstance(plan, Search) else _priced(plan)
    key = ("guarantee", priced, float(delta))
    found = _remembered(key, Guarantee.from_dict, lambda: _evaluate(*key[1:]))
    return replace(found, noise=noise, unit=plan.unit if isinstance(plan, Search) else phases(plan)[0].unit)


def calibrate(plan: Plan, epsilon: float, delta: float) -> Plan:
    """The plan with the smallest noise multiplier, to about 4 digits, that meets (epsilon, delta).

    Guarantee: `guarantee(calibrate(plan, epsilon, delta), delta).epsilon <= epsilon`, evaluated, not
    extrapolated. The plan's own noise multiplier is ignored. The result is never below 0.45, or 0.05 for Laplace.

    >>> plan = Plan(num_rows=50, steps=4, sampling_prob=1.0, clip_norm=1.0, noise_multiplier=0.0)
    >>> round(calibrate(plan, 1.0, 1e-5).noise_multiplier / 2, 2)
    3.73
    """
    require(isinstance(plan, Plan), "plan", plan, "be one Plan: calibrate its phases one by one")
    require(0 < epsilon < math.inf, "epsilon", epsilon, "be positive and finite, for example 1.0")
    require(0 < delta < 1, "delta", delta, "lie in (0, 1), well below 1 / num_rows")

    def checked(entry: dict) -> Plan:
        found = replace(plan, noise_multiplier=entry["noise_multiplier"])
        spent = guarantee(found, delta).epsilon
        require(spent <= epsilon, "noise_multiplier", found.noise_multiplier, f"grow: it spends ε = {spent}")
        return found

    key = ("calibrate", _priced(replace(plan, noise_multiplier=0.0)), float(delta), float(epsilon))
    return _remembered(key, checked, lambda: checked(_least_noise(plan, epsilon, delta)))


def calibrate_search(search: Search, epsilon: float, delta: float) -> Search:
    """The search with all noise of its trials scaled by the smallest factor, to about 4 digits, that meets a budget.

    Guarantee: `guarantee(calibrate_search(search, epsilon, delta), delta).epsilon <= epsilon`, evaluated.

    >>> search = Search((Plan(50, 1, 1.0, clip_norm=1.0, noise_multiplier=1.0),))
    >>> round(guarantee(calibrate_search(search, 1.0, 1e-5), 1e-5).epsilon, 2)
    1.0
    """
    require(0 < epsilon < math.inf, "epsilon", epsilon, "be positive and finite, for example 1.0")

    def scaled(factor: float) -> Search:
        return replace(search, trial=_louder(search.trial, factor))

    return scaled(_smallest(lambda factor: guarantee(scaled(factor), delta).epsilon, epsilon, 1.0, 1e-3))


def calibrate_phases(plans: Sequence[Plan], epsilon: float, delta: float) -> tuple[Plan, ...]:
    """The phases with all their noise scaled by the smallest factor, to about 4 digits, that meets a budget together.

    Guarantee: `guarantee(calibrate_phases(plans, epsilon, delta), delta).epsilon <= epsilon`, evaluated.

    >>> halves = [Plan(50, 1, 1.0, clip_norm=1.0, noise_multiplier=2**0.5)] * 2
    >>> [round(plan.noise_multiplier / 2**0.5, 2) for plan in calibrate_phases(halves, 1.0, 1e-5)]
    [3.73, 3.73]
    """
    guess = gaussian_noise(epsilon, delta)
    least = _smallest(lambda factor: guarantee(_louder(plans, factor), delta).epsilon, epsilon, guess, 1e-3)
    return _louder(plans, least)


def gaussian_noise(epsilon: float, delta: float) -> float:
    """The noise multiplier with which one question of every row meets a budget.

    >>> round(gaussian_noise(1.0, 1e-5), 2)
    3.73
    """
    require(0 < epsilon < math.inf, "epsilon", epsilon, "be positive and finite, for example 1.0")
    require(0 < delta < 1, "delta", delta, "lie in (0, 1), well below 1 / num_rows")

    from dp_accounting import get_sigma_gaussian

    return float(get_sigma_gaussian(epsilon, delta))


def _louder(plans: Sequence[Plan], factor: float) -> tuple[Plan, ...]:
    return tuple(replace(phase, noise_multiplier=phase.noise_multiplier * factor) for phase in plans)


def flat(parts: Sequence[Charge]) -> list[Any]:
    """Plans and searches one after the other: phases of one run are plans like others."""
    return [one for part in parts for one in ((part,) if isinstance(part, Search) else phases(part))]


def composed_epsilon(parts: Sequence[Charge], delta: float) -> float:
    """ε of plans and searches one after the other, none of which depends on what was learned.

    Guarantee: plans alone are composed as in `guarantee`, their losses with each other. Searches have no such losses:
    each pays for itself with an equal share of δ, the plans together with another, and their ε are added.
    """
    every = flat(parts)
    plans = [part for part in every if isinstance(part, Plan)]
    alone: list[Phases | Search] = [part for part in every if isinstance(part, Search)]
    paid = [*([plans] if plans else []), *alone]
    return sum(guarantee(part, delta / len(paid)).epsilon for part in paid)


def rdp_epsilon(plan: Phases, delta: float) -> float:
    """The RDP upper bound on ε: a cross-check of untruncated plans; with Laplace noise, of unsampled ones.

    >>> plan = Plan(num_rows=50, steps=4, sampling_prob=1.0, clip_norm=1.0, noise_multiplier=7.461264)
    >>> rdp_epsilon(plan, 1e-5) > guarantee(plan, 1e-5).epsilon
    True
    """
    for phase in _priced(plan):
        limit, rate = phase.batch_limit, phase.sampling_prob
        require(limit is None, "batch_limit", limit, "be None or num_rows: RDP cannot price truncation")
        require(_has_rdp(phase), "sampling_prob", rate, "be 1: RDP cannot price sampled Laplace noise")
    return float(_rdp(_priced(plan)).get_epsilon(delta))


def filtered_epsilon(plan: Phases, epsilon: float, delta: float) -> float:
    """ε of phases whose number and noise may depend on earlier answers, at the one Rényi order that suits the budget.

    Guarantee: if this never exceeds `epsilon` before a phase begins, all of them together are (epsilon, delta)-private
    (a Rényi filter: Feldman and Zrnic, 2021). The order is a function of the budget alone, as it must be.
    10⁻³ of δ is kept for truncated batches, whatever the phases are: with τ the odds of one, summed over all steps so
    far, answers are those of phases without truncation but with probability τ, which costs (1 + e^epsilon) τ of δ.

    >>> plan = Plan(num_rows=50, steps=4, sampling_prob=1.0, clip_norm=1.0, noise_multiplier=7.461264)
    >>> round(guarantee(plan, 1e-5).epsilon, 3), round(filtered_epsilon(plan, 1.0, 1e-5), 3)
    (1.0, 1.203)
    """
    priced = _priced(plan)
    free = [replace(phase, batch_limit=None) for phase in priced]
    for phase in free:
        require(
            _has_rdp(phase), "noise_kind", phase.noise_kind, "be gaussian: a filter prices no sampled Laplace noise"
        )
    spared = _SPARED * delta
    lost = (1 + math.exp(min(epsilon, 700))) * _odds_of_truncation(priced)
    limits = [phase.batch_limit for phase in priced if phase.batch_limit is not None]
    seldom = "be so large that hardly a batch is ever truncated (planner.roomy), or None: a filter pays for no others"
    require(lost <= spared, "batch_limit", ", ".join(map(str, dict.fromkeys(limits))), seldom)
    odds = -math.log(delta)
    order = round(1 + math.sqrt(odds) / (math.sqrt(odds + epsilon) - math.sqrt(odds)))
    return float(_rdp(free, (order,)).get_epsilon(delta - spared))


def _rdp(priced: Sequence[Plan] | Search, orders: Sequence[int] = _ORDERS) -> Any:
    from dp_accounting import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant

    relations = {"zero-out": NeighboringRelation.REPLACE_SPECIAL, "replace-one": NeighboringRelation.REPLACE_ONE}
    relation = priced.relation if isinstance(priced, Search) else priced[0].relation
    return RdpAccountant(orders, relations[relation]).compose(event(priced))


def _seldom_truncated(search: Search, delta: float) -> tuple[Search, float]:
    """The same search without truncation, and the δ that is left if that happens as seldom as `guarantee` says."""
    odds = _odds_of_truncation(search.trial)
    free = replace(search, trial=tuple(replace(phase, batch_limit=None) for phase in search.trial))
    spared = _SPARED * delta if odds > 0 else 0.0
    epsilon = _rdp(free).get_epsilon(delta - spared)
    lost = (1 + math.exp(min(epsilon, 700))) * odds * search.mean_trials
    limits = [phase.batch_limit for phase in search.trial]
    require(lost <= spared, "batch_limit", limits, "be None, or so large that hardly a batch ever reaches it")
    return free, delta - spared


def _odds_of_truncation(parts: Sequence[Plan]) -> float:
    """A bound on the probability that any batch of these phases exceeds its limit: the sum over their steps."""
    from scipy import stats

    limited = [part for part in parts if part.batch_limit is not None]
    return sum(p.steps * float(stats.binom.sf(p.batch_limit, p.num_rows, p.sampling_prob)) for p in limited)


def _bare(search: Search) -> Search:
    return replace(search, trial=tuple(replace(phase, clip_norm=1.0, unit="row") for phase in search.trial))


def _priced(plan: Phases) -> tuple[Plan, ...]:
    """The phases, bare of what their price does not depend on."""
    require(len(phases(plan)) > 0, "plan", plan, "have at least one phase")
    for name in ("relation", "unit"):
        several = {getattr(part, name) for part in phases(plan)}
        require(len(several) == 1, "plan", plan, f"have phases of one {name}: they do not add up")
    parts = [replace(part, clip_norm=1.0, unit="row") for part in phases(plan)]
    whole = {"num_rows": 1, "batch_limit": None}
    every = [part.sampling == "poisson" and part.batch_limit in (None, part.num_rows) for part in parts]
    return tuple(replace(p, **whole) if all_rows else p for p, all_rows in zip(parts, every, strict=True))


def _description(phase: Plan) -> str:
    if phase.sampling == "one row":
        return f"{phase.steps} × one of {phase.num_rows} rows, Gaussian({phase.noise_multiplier})"
    limit = "" if phase.batch_limit is None else f", at most {phase.batch_limit} of {phase.num_rows}"
    sampled = f"Poisson({phase.sampling_prob}{limit}) " if phase.sampling_prob < 1 or limit else ""
    return f"{phase.steps} × {sampled}{phase.noise_kind.capitalize()}({phase.noise_multiplier})"


def _has_rdp(phase: Plan) -> bool:
    return phase.batch_limit is None and (phase.noise_kind == "gaussian" or phase.sampling_prob == 1)


def _intervals(priced: Sequence[Plan]) -> tuple[float, ...]:
    """The discretisation intervals worth evaluating, coarse to fine.

    With sd = κ √expm1(1/σ²), one step's spread (Gaussian), they are clip(sd/10, 1e-5, 1e-4) and finer ones of 3e-5 and
    1e-5 down to sd/40; finer still gains at most 5e-4 of ε. From sd = .01 on sd/100 is enough (1e-5 of ε).
    No grid is so large that it takes minutes; noise near 0 has no interval at all. Half of a Laplace step's
    probability is at its largest loss: intervals are shortened to meet it.
    """
    parts = [_loss(phase) for phase in priced if phase.noise_multiplier > 0]
    total = sum(count * variance for count, variance, _ in parts)
    spread = math.sqrt(total / max(1, sum(count for count, _, _ in parts)))
    least = (20 * math.sqrt(total) + 5 * sum(reach for _, _, reach in parts)) / 1e6
    rule = max(least, min(spread / 100, 0.1), min(max(spread / 10, _INTERVALS[-1]), _INTERVALS[0]))
    found = () if rule > 100 else (rule, *(h for h in _INTERVALS if max(spread / 40, least) <= h < rule))
    top = max((_own_epsilon(p) for p in priced if p.noise_kind == "laplace" and p.noise_multiplier > 0), default=0.0)
    return tuple(top / math.ceil(top / h) if top > h else h for h in found)


def _loss(phase: Plan) -> tuple[int, float, float]:
    """Count, variance and reach of the privacy losses composed; T unsampled Gaussian steps are one Gaussian."""
    rate = phase.sampling_prob
    if phase.noise_kind == "laplace":
        most, small = 1 / phase.noise_multiplier, min(1 / phase.noise_multiplier, 700)
        chi = (2 * math.expm1(small) + math.expm1(-2 * small)) / 3
        return phase.steps, min(rate**2 * chi, rate * most**2), _own_epsilon(phase)
    sampled = rate < 1 or phase.batch_limit is not None
    count, merged = (phase.steps, 1) if sampled else (1, phase.steps)
    inverse = merged / phase.noise_multiplier**2
    variance = min(rate**2 * math.expm1(min(inverse, 700)), rate * inverse * (1 + inverse / 4))
    return count, variance, max(0.0, 10 * math.sqrt(inverse) + inverse / 2 + math.log(rate))


def _own_epsilon(phase: Plan) -> float:
    """The ε of one step of Laplace noise at δ = 0."""
    most = 1 / phase.noise_multiplier
    return math.log1p(phase.sampling_prob * math.expm1(min(most, 700))) + max(0.0, most - 700)


def _bound(priced: Sequence[Plan], delta: float, intervals: Sequence[float]) -> tuple[float, str, list[Any]]:
    """The smallest valid ε, the accountant that gave it, and the PLD at each interval (or what gives δ instead)."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import PLDAccountant

    if priced[0].sampling == "one row":
        rdp = _rdp(priced)
        return float(rdp.get_epsilon(delta)), "RDP", [_told_apart(rdp)]
    relation, spent = NeighboringRelation.REPLACE_SPECIAL, event(priced)
    losses = [PLDAccountant(relation, interval).compose(spent) for interval in intervals]
    usable = delta - _ROUNDING * sum(phase.steps for phase in priced)
    bounds = [(float(loss.get_epsilon(usable)), "PLD") for loss in losses if usable > 0]
    if all(map(_has_rdp, priced)):
        bounds.append((rdp_epsilon(priced, delta), "RDP"))
    if all(phase.noise_kind == "laplace" and phase.noise_multiplier > 0 for phase in priced):
        bounds.append((sum(phase.steps * _own_epsilon(phase) for phase in priced), "sum of ε"))
    epsilon, accountant = min(bounds, default=(math.inf, "PLD"))
    return epsilon, accountant, losses


def _told_apart(rdp: Any) -> Any:
    """δ(ε) of an RDP accountant, which is loose near ε = 0: the (ε, δ) that it implies at larger ε say more there."""
    implied = [(min(float(rdp.get_epsilon(delta)), 700), delta) for delta in (1e-4, 1e-3, 0.01, 0.03, 0.1, 0.2)]

    def get_delta(at: float) -> float:
        gaps = [(max(0.0, math.exp(most) - math.exp(at)) / (1 + math.exp(most)), delta) for most, delta in implied]
        return min(float(rdp.get_delta(at)), *(delta + (1 - delta) * gap for gap, delta in gaps))

    return SimpleNamespace(get_delta=get_delta)


def _evaluate(priced: Sequence[Plan] | Search, delta: float) -> Guarantee:
    if isinstance(priced, Search):
        for phase in priced.trial:
            laplace = "be gaussian: sampled Laplace noise has no price in a search"
            require(_has_rdp(replace(phase, batch_limit=None)), "noise_kind", phase.noise_kind, laplace)
        free, usable = _seldom_truncated(priced, delta)
        rdp, parts = _rdp(free), priced.trial
        epsilon, accountant, losses = float(rdp.get_epsilon(usable)), "RDP", [_told_apart(rdp)]
        rounding = delta - usable
    else:
        epsilon, accountant, losses = _bound(priced, delta, _intervals(priced))
        parts, rounding = priced, _ROUNDING * sum(phase.steps for phase in priced)

    def excess(at: float) -> float:  # the coarsest is the fastest, and valid
        return min([1.0, *(rounding + float(loss.get_delta(at)) for loss in losses[:1])])

    software, spent = f"dp-accounting {version('dp-accounting')}", " + ".join(map(_description, parts))
    if isinstance(priced, Search):
        spent = f"the best of {priced.mean_trials:g} trials on average ({priced.law}), each {spent}"
    attack = (excess(0.0), _true_positives(excess, 0.01))
    return Guarantee(epsilon, delta, accountant, software, spent, *attack, relation=parts[0].relation)


def _true_positives(excess: Callable[[float], float], rate: float) -> float:
    """1 − β(α) at α = rate, where β(α) = max over ε ≥ 0 of (0, 1 − δ(ε) − e^ε α, e^−ε (1 − δ(ε) − α))."""
    from scipy.optimize import minimize_scalar

    def lowest(term: Callable[[float], float]) -> float:  # any ε is valid: an inexact optimum is only looser
        found: Any = minimize_scalar(term, bounds=(0.0, -math.log(rate)), method="bounded")
        return float(found.fun)

    steep = lowest(lambda at: excess(at) + math.exp(at) * rate)
    flat = lowest(lambda at: 1 - math.exp(-at) * (1 - excess(at) - rate))
    return min(1.0, excess(0.0) + rate, steep, flat)


def _least_noise(plan: Plan, epsilon: float, delta: float) -> dict:
    """The search takes the finest interval alone; `guarantee` takes the minimum over it and more."""
    from dp_accounting import get_sigma_gaussian

    (phase,) = _priced(plan)
    least = 0.0 if phase.batch_limit is None else _ROUNDING * phase.steps
    require(delta > least, "delta", delta, f"exceed {least:.1e}, or batch_limit be None")

    def bound(multiplier: float) -> float:
        trial = (replace(phase, noise_multiplier=multiplier),)
        return _bound(trial, delta, _intervals(trial)[-1:])[0]

    scale = float(get_sigma_gaussian(epsilon, delta)) * phase.sampling_prob * math.sqrt(phase.steps)
    guess = scale if phase.sampling_prob == 1 else math.log1p(scale**-2) ** -0.5
    if phase.noise_kind == "laplace":
        each = min(epsilon / phase.steps, 700)
        guess = min(guess, 1 / math.log1p(math.expm1(each) / phase.sampling_prob))
    return {"noise_multiplier": _smallest(bound, epsilon, guess, _LEAST_NOISE[phase.noise_kind])}


def _smallest(bound: Callable[[float], float], target: float, x: float, least: float) -> float:
    """The smallest x ≥ least with bound(x) ≤ target, to 2e-4 in the bound or 2e-5 in x; x was evaluated."""
    low, high = None, None
    for attempt in range(1, 100):
        x = max(least, _up(x, 6))
        value = bound(x)
        if target * (1 - 2e-4) <= value <= target or (value <= target and x == least):
            return x
        gap = min(max(math.log(max(value, 1e-300) / target) + 1e-4, -1.4), 1.4)
        low, high = ((x, gap), high) if value > target else (low, (x, gap))
        x *= math.exp(gap)
        if low and high:
            if high[0] < low[0] * 1.00002:
                return high[0]
            share = 0.5 if attempt % 3 == 0 else low[1] / (low[1] - high[1])
            x = low[0] * (high[0] / low[0]) ** share
    raise ValueError(f"epsilon={target} needs noise_multiplier > {x:.3g}; raise epsilon or delta")


def _remembered(key: tuple, decode: Callable[[dict], Any], compute: Callable[[], Any]) -> Any:
    """What was computed under this key, from disk if it is there; an entry that does not decode is not."""
    name = hashlib.sha256(repr(("format 1", version("dp-accounting"), *key)).encode()).hexdigest()
    path = cache_folder() / f"{name}.json"
    with suppress(OSError, ValueError, TypeError, LookupError):
        return decode(json.loads(path.read_text()))
    value = compute()
    with suppress(OSError, TypeError), new_file(path) as scratch:
        scratch.write_text(json.dumps(value.to_dict()))
    return value


def _up(value: float, digits: int) -> float:
    """The value rounded up to a few digits: a printed bound is still a bound."""
    return float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(value))))
