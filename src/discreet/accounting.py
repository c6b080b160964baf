"""What a plan costs: its event, its guarantee, and the noise that meets a budget.

The relation is zero-out: one row's contribution is replaced by nothing, the number of rows is public. Every ε
reported here is an upper bound; several valid bounds are computed and the smallest is reported.
"""

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import ROUND_CEILING, Context
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from discreet.plan import Plan, phases

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Noise = Literal["secure", "simulated", "unstated"]

_INTERVALS = (1e-4, 3e-5, 1e-5)  # below 1e-5 floating point costs more than the finer grid gains
_MOST_POINTS = 1e6  # a privacy loss grid of this size takes seconds
_ROUNDING = 1e-15  # δ that the Fourier transform's rounding may hide, per step (1e-16 at most was seen)
_ORDERS = (*range(2, 65), *(int(2 ** (k / 2)) for k in range(13, 25)))
_LEAST_NOISE = 0.45
_TIGHT = 1e-4
_FORMAT = 1


@dataclass(frozen=True)
class Guarantee:
    """What a release promises: (ε, δ)-differential privacy under `relation`, if its noise is secure.

    `advantage` bounds (true positives − false positives) of any membership attack on one row, and
    `tpr_at_fpr_01` its true positives at 1 % false positives.

    >>> promise = Guarantee(0.99994, 1e-5, "PLD", "dp-accounting 0.6.0", "...", 0.1065, 0.0195)
    >>> print(promise)
    (ε = 1, δ = 1e-05), zero-out, PLD; a membership attacker gains at most .107 over guessing
    (2.0 % true positives at 1 % false)
    >>> Guarantee.from_dict(promise.to_dict()) == promise
    True
    >>> promise.private
    False
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

    def __post_init__(self):
        """Refuse what is no guarantee."""
        _require(self.epsilon >= 0, "epsilon", self.epsilon, "be ≥ 0, or inf for no guarantee")
        _require(0 < self.delta < 1, "delta", self.delta, "lie in (0, 1)")
        _require(0 <= self.advantage <= 1, "advantage", self.advantage, "lie in [0, 1]")
        _require(0 <= self.tpr_at_fpr_01 <= 1, "tpr_at_fpr_01", self.tpr_at_fpr_01, "lie in [0, 1]")
        kinds = ("secure", "simulated", "unstated")
        _require(self.noise in kinds, "noise", self.noise, f"be one of {', '.join(kinds)}")

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
        gain = f"{_round_up(self.advantage, 3):.3f}".removeprefix("0")
        warning = "NOT PRIVATE: simulated noise; with secure noise " if self.noise == "simulated" else ""
        return (
            f"{warning}(ε = {_digits_up(self.epsilon, 4)}, δ = {_digits_up(self.delta, 3)}), {self.relation}, "
            f"{self.accountant}; a membership attacker gains at most {gain} over guessing "
            f"({100 * _round_up(self.tpr_at_fpr_01, 3):.1f} % true positives at 1 % false)"
        )


def event(plan: Plan | Sequence[Plan]) -> "DpEvent":
    """The plan's event: its phases composed, each a step composed with itself `steps` times.

    A `batch_limit` below `num_rows` is charged as truncated Poisson sampling, also at sampling_prob = 1, where
    the bound is valid but loose (it charges a random subset for swapping a row: sensitivity 2).

    >>> event(Plan(num_rows=50, steps=3, sampling_prob=1.0, clip_norm=1.0, noise_multiplier=2.0))
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=3)
    """
    import dp_accounting

    events = [_phase_event(phase) for phase in _priced(plan)]
    return events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)


def guarantee(plan: Plan | Sequence[Plan], delta: float, noise: Noise = "unstated") -> Guarantee:
    """The plan's guarantee at `delta`: the smallest of the valid upper bounds on ε.

    Guarantee: PLD bounds at every interval of `_intervals`, each charged for the rounding of its Fourier
    transforms, and the RDP bound of an untruncated plan; the attack risk is from the same PLDs.

    >>> plan = Plan(num_rows=50, steps=4, sampling_prob=1.0, clip_norm=1.0, noise_multiplier=2 * 3.7306317)
    >>> round(guarantee(plan, 1e-5).epsilon, 4)
    1.0
    """
    _require(0 < delta < 1, "delta", delta, "lie in (0, 1), well below 1 / num_rows")
    priced, delta = _priced(plan), float(delta)
    key = _cache_key("guarantee", priced, delta)
    found = _as_guarantee(_recall(key))
    if found is None or (found.delta, found.event) != (delta, _description(priced)):
        found = _evaluate(priced, delta)
        _remember(key, found.to_dict())
    return replace(found, noise=noise)


def calibrate(plan: Plan, epsilon: float, delta: float) -> Plan:
    """The plan with the smallest noise multiplier, to about 4 digits, that meets (epsilon, delta).

    Guarantee: `guarantee(calibrate(plan, epsilon, delta), delta).epsilon <= epsilon`, evaluated, not
    extrapolated. The plan's own noise multiplier is ignored. The result is never below 0.45.

    >>> plan = Plan(num_rows=50, steps=4, sampling_prob=1.0, clip_norm=1.0, noise_multiplier=0.0)
    >>> round(calibrate(plan, 1.0, 1e-5).noise_multiplier / 2, 2)
    3.73
    """
    _require(isinstance(plan, Plan), "plan", plan, "be one Plan: calibrate the phases one by one")
    _require(0 < epsilon < math.inf, "epsilon", epsilon, "be positive and finite, e.g. 1.0")
    _require(0 < delta < 1, "delta", delta, "lie in (0, 1), well below 1 / num_rows")
    epsilon, delta = float(epsilon), float(delta)
    (priced,) = _priced(replace(plan, noise_multiplier=0.0))
    key = _cache_key("calibrate", (priced,), delta, epsilon)
    found = _as_noise_multiplier(_recall(key))
    if found is None or guarantee(replace(plan, noise_multiplier=found), delta).epsilon > epsilon:
        found = _least_noise(priced, epsilon, delta)
        _remember(key, {"noise_multiplier": found})
    return replace(plan, noise_multiplier=found)


def rdp_epsilon(plan: Plan | Sequence[Plan], delta: float) -> float:
    """The RDP upper bound on ε, a cross-check of untruncated plans (RDP cannot price truncation).

    >>> plan = Plan(num_rows=50, steps=4, sampling_prob=1.0, clip_norm=1.0, noise_multiplier=7.461264)
    >>> rdp_epsilon(plan, 1e-5) > guarantee(plan, 1e-5).epsilon
    True
    """
    from dp_accounting import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant

    for phase in _priced(plan):
        limit = phase.batch_limit
        _require(limit is None, "batch_limit", limit, "be None or num_rows: RDP cannot price truncation")
    accountant = RdpAccountant(_ORDERS, NeighboringRelation.REPLACE_SPECIAL)
    return float(accountant.compose(event(plan)).get_epsilon(delta))


def _priced(plan: Plan | Sequence[Plan]) -> tuple[Plan, ...]:
    """The phases, stripped of what their price does not depend on."""
    parts = phases(plan)
    _require(len(parts) > 0, "plan", plan, "have at least one phase")
    return tuple(_stripped(part) for part in parts)


def _stripped(phase: Plan) -> Plan:
    limited = phase.batch_limit is not None and phase.batch_limit < phase.num_rows
    return Plan(
        num_rows=phase.num_rows if limited else 1,
        steps=phase.steps,
        sampling_prob=float(phase.sampling_prob),
        clip_norm=1.0,
        noise_multiplier=float(phase.noise_multiplier),
        batch_limit=phase.batch_limit if limited else None,
    )


def _phase_event(phase: Plan) -> "DpEvent":
    import dp_accounting as dpa

    rate, multiplier, limit = phase.sampling_prob, phase.noise_multiplier, phase.batch_limit
    if multiplier == 0:
        return dpa.NonPrivateDpEvent()
    if limit is not None:
        step = dpa.TruncatedSubsampledGaussianDpEvent(phase.num_rows, rate, limit, multiplier)
    elif rate < 1:
        step = dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(multiplier))
    else:
        step = dpa.GaussianDpEvent(multiplier)
    return dpa.SelfComposedDpEvent(step, phase.steps)


def _description(priced: Sequence[Plan]) -> str:
    def one(phase: Plan) -> str:
        limit = "" if phase.batch_limit is None else f", at most {phase.batch_limit} of {phase.num_rows}"
        sampled = f"Poisson({phase.sampling_prob}{limit}) " if phase.sampling_prob < 1 or limit else ""
        return f"{phase.steps} × {sampled}Gaussian({phase.noise_multiplier})"

    return " + ".join(map(one, priced))


def _intervals(priced: Sequence[Plan]) -> tuple[float, ...]:
    """The discretisation intervals worth evaluating, coarse to fine.

    With sd = κ √expm1(1/σ²), the privacy loss's spread per step, they are clip(sd/10, 1e-5, 1e-4) and the finer
    ones of {1e-4, 3e-5, 1e-5} down to sd/100: a coarser one is looser, a finer one gains less than 1e-5 of ε.
    None may need more than a million points.
    """
    counts = [phase.steps if _sampled(phase) else 1 for phase in priced]
    total = sum(count * _loss_variance(phase) for count, phase in zip(counts, priced, strict=True))
    spread = math.sqrt(total / sum(counts))
    rule = min(max(spread / 10, _INTERVALS[-1]), _INTERVALS[0])
    least = 20 * math.sqrt(total) / _MOST_POINTS
    finer = [interval for interval in _INTERVALS if max(spread / 100, least) <= interval < rule]
    return (max(rule, least), *finer)


def _sampled(phase: Plan) -> bool:
    return phase.sampling_prob < 1 or phase.batch_limit is not None


def _loss_variance(phase: Plan) -> float:
    """κ² expm1(1/σ²); steps without sampling are one Gaussian of variance T/σ², and large values grow slowly."""
    if phase.noise_multiplier == 0:
        return 0.0
    inverse = 1 / phase.noise_multiplier**2
    if not _sampled(phase):
        return inverse * phase.steps * (1 + inverse * phase.steps)
    return phase.sampling_prob**2 * math.expm1(inverse) if inverse < 4 else inverse * (1 + inverse)


def _composed(priced: Sequence[Plan], interval: float) -> Any:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import PLDAccountant

    return PLDAccountant(NeighboringRelation.REPLACE_SPECIAL, interval).compose(event(priced))


def _bound(accountants: Sequence[Any], priced: Sequence[Plan], delta: float) -> tuple[float, str]:
    """The smallest valid ε, and the accountant that gave it."""
    usable = delta - _ROUNDING * sum(phase.steps for phase in priced)
    bounds = [(float(one.get_epsilon(usable)), "PLD") for one in accountants if usable > 0]
    if all(phase.batch_limit is None for phase in priced):
        bounds.append((rdp_epsilon(priced, delta), "RDP"))
    return min(bounds, default=(math.inf, "PLD"))


def _evaluate(priced: Sequence[Plan], delta: float) -> Guarantee:
    accountants = [_composed(priced, interval) for interval in _intervals(priced)]
    epsilon, accountant = _bound(accountants, priced, delta)
    rounding = _ROUNDING * sum(phase.steps for phase in priced)

    def excess(at: float) -> float:
        return min(1.0, rounding + min(float(one.get_delta(at)) for one in accountants))

    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
        version=f"dp-accounting {version('dp-accounting')}",
        event=_description(priced),
        advantage=excess(0.0),
        tpr_at_fpr_01=_true_positives(excess, 0.01),
    )


def _true_positives(excess: Callable[[float], float], rate: float) -> float:
    """1 − β(α) at α = rate, where β(α) = max over ε ≥ 0 of (0, 1 − δ(ε) − e^ε α, e^−ε (1 − δ(ε) − α)).

    Each ε gives a valid bound, so an inexact minimum is only a looser one.
    """
    from scipy.optimize import minimize_scalar

    def steep(at: float) -> float:
        return excess(at) + math.exp(at) * rate

    def flat(at: float) -> float:
        return 1 - math.exp(-at) * (1 - excess(at) - rate)

    bounds = (0.0, -math.log(rate))
    best = [minimize_scalar(f, bounds=bounds, method="bounded", options={"xatol": 1e-3}) for f in (steep, flat)]
    return min(1.0, excess(0.0) + rate, *(float(one.fun) for one in best))


def _least_noise(phase: Plan, epsilon: float, delta: float) -> float:
    """The noise multiplier of `calibrate`, by secants in log σ – log ε from the central limit's guess.

    The search evaluates the finest interval alone; `guarantee` takes the minimum over more, so it is no larger.
    """
    rounding = _ROUNDING * phase.steps
    if phase.batch_limit is not None and delta <= rounding:
        remedy = f"exceed {rounding:.1e} for {phase.steps} truncated steps; raise it or drop batch_limit"
        raise ValueError(f"delta={delta} must {remedy}")

    def bound(multiplier: float) -> float:
        trial = (replace(phase, noise_multiplier=multiplier),)
        return _bound([_composed(trial, _intervals(trial)[-1])], trial, delta)[0]

    return _smallest(bound, epsilon, _guess(phase, epsilon, delta))
