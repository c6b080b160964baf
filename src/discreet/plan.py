"""The mechanism as frozen public values: everything in a plan may be printed in a paper."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

NORM_ORDERS = {"gaussian": 2, "laplace": 1}
SAMPLINGS = {"poisson": "zero-out", "one row": "replace-one"}
TRIAL_LAWS = {"logarithmic": 0.0, "geometric": 1.0}
_SDS = {"gaussian": 1.0, "laplace": math.sqrt(2)}  # of a standard draw, that is one of scale 1


@dataclass(frozen=True)
class Plan:
    """`steps` noisy sums over Poisson batches of `num_rows` rows.

    Each step every row takes part with probability `sampling_prob`; if more than `batch_limit` rows do, a
    uniformly random subset of that size stays (`None`: no limit). Each row's vector is clipped to norm `clip_norm`,
    and each coordinate of the sum gets noise of scale `noise_multiplier * clip_norm`. `noise_kind` says which norm and
    which noise: "gaussian" is the Euclidean norm and a normal with that standard deviation; "laplace" is the L1 norm
    and the density exp(−|x| / scale) / (2 scale).

    With `sampling` = "one row" a step sees exactly one row, drawn at random from all: DP-SEP's own sampler. Nobody can
    be left out of it, only replaced, and that moves an answer by 2 `clip_norm`: the relation is replace-one.

    `unit` says whom all this protects: a row, or everything a person has in a table with several rows for each
    (`Schema.unit`). Sampling, clipping and `num_rows` then go by unit, and a unit's vector is the sum over its rows.

    >>> plan = Plan(num_rows=5000, steps=100, sampling_prob=0.1, clip_norm=2.0, noise_multiplier=37.5)
    >>> plan.noise_scale, plan.noise_std
    (75.0, 75.0)
    >>> plan = replace(plan, noise_kind="laplace")
    >>> plan.noise_scale, round(plan.noise_std, 3)
    (75.0, 106.066)
    """

    num_rows: int
    steps: int
    sampling_prob: float
    clip_norm: float
    noise_multiplier: float
    batch_limit: int | None = None
    noise_kind: str = "gaussian"
    sampling: str = "poisson"
    unit: str = "row"

    def __post_init__(self):
        """Refuse what no mechanism can run."""
        require(
            _is_whole(self.num_rows) and self.num_rows >= 1,
            "num_rows",
            self.num_rows,
            "be a whole number ≥ 1",
        )
        require(_is_whole(self.steps) and self.steps >= 1, "steps", self.steps, "be a whole number ≥ 1")
        require(0 < self.sampling_prob <= 1, "sampling_prob", self.sampling_prob, "lie in (0, 1]")
        require(0 < self.clip_norm < math.inf, "clip_norm", self.clip_norm, "be positive and finite")
        require(
            0 <= self.noise_multiplier < math.inf,
            "noise_multiplier",
            self.noise_multiplier,
            "be ≥ 0 and finite",
        )
        limit = self.batch_limit
        require(
            limit is None or (_is_whole(limit) and 1 <= limit <= self.num_rows),
            "batch_limit",
            limit,
            f"be None or a whole number between 1 and num_rows={self.num_rows}",
        )
        require(
            isinstance(self.noise_kind, str) and self.noise_kind in NORM_ORDERS,
            "noise_kind",
            self.noise_kind,
            f"be one of {', '.join(NORM_ORDERS)}",
        )
        require(
            self.noise_kind == "gaussian" or limit in (None, self.num_rows),
            "batch_limit",
            limit,
            f"be None or num_rows={self.num_rows}: nobody can price truncated batches with {self.noise_kind} noise",
        )
        require(self.sampling in SAMPLINGS, "sampling", self.sampling, f"be one of {', '.join(SAMPLINGS)}")
        require(isinstance(self.unit, str) and self.unit != "", "unit", repr(self.unit), "be row, or a column's name")
        if self.sampling == "one row":
            alone = math.isclose(self.sampling_prob * self.num_rows, 1)
            require(alone, "sampling_prob", self.sampling_prob, f"be 1/num_rows = {1 / self.num_rows:g} for one row")
            require(limit is None, "batch_limit", limit, "be None: there is always one row")
            require(self.noise_kind == "gaussian", "noise_kind", self.noise_kind, "be gaussian for one row")

    @property
    def norm_order(self) -> int:
        """Which norm of a row's vector `clip_norm` bounds: 2 is Euclidean, 1 the sum of absolute values."""
        return NORM_ORDERS[self.noise_kind]

    @property
    def relation(self) -> str:
        """What may happen to a row: its contribution is zeroed, or the row is replaced by another."""
        return SAMPLINGS[self.sampling]

    @property
    def noise_scale(self) -> float:
        """What a standard draw of the plan's kind is multiplied by, before it is added to an answer."""
        return self.noise_multiplier * self.clip_norm

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each coordinate of an answer."""
        return self.noise_scale * _SDS[self.noise_kind]

    def to_dict(self) -> dict:
        """The plan as plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Search:
    """A random number of trials, of which the best alone is told. Each trial is `trial`: phases of one price.

    The number is drawn from `law`, with mean `mean_trials`, and never told: knowing that it was large would tell more.
    "logarithmic" has probabilities ∝ q^k / k and costs the least; "geometric" ∝ q^k has shorter tails.

    >>> search = Search((Plan(50, 4, 0.5, clip_norm=1.0, noise_multiplier=7.0),), mean_trials=3.0)
    >>> search.unit, search.relation, search.num_rows
    ('row', 'zero-out', 50)
    """

    trial: tuple[Plan, ...]
    mean_trials: float = 10.0
    law: str = "logarithmic"

    def __post_init__(self):
        """Refuse what no search can be."""
        require(len(self.trial) > 0, "trial", self.trial, "have at least one phase")
        object.__setattr__(self, "trial", tuple(self.trial))
        require(1 < self.mean_trials < math.inf, "mean_trials", self.mean_trials, "exceed 1: one trial is no search")
        require(self.law in TRIAL_LAWS, "law", self.law, f"be one of {', '.join(TRIAL_LAWS)}")
        for name in ("num_rows", "relation", "unit"):
            several = {getattr(phase, name) for phase in self.trial}
            require(len(several) == 1, "trial", self.trial, f"have phases of one {name}")

    @property
    def num_rows(self) -> int:
        """Of the table that every trial asks."""
        return self.trial[0].num_rows

    @property
    def relation(self) -> str:
        """What may happen to a row, in every trial."""
        return self.trial[0].relation

    @property
    def unit(self) -> str:
        """Whom every trial protects."""
        return self.trial[0].unit

    def to_dict(self) -> dict:
        """The search as plain values, for JSON."""
        return {**asdict(self), "trial": [phase.to_dict() for phase in self.trial]}


Charge = Plan | Search | tuple[Plan, ...]
"""What a ledger is charged with: a plan, the plans of several phases, or a search."""


def to_plain(plan: Charge) -> Any:
    """Plain values, for JSON; a tuple of phases is a list."""
    return [phase.to_dict() for phase in plan] if isinstance(plan, tuple) else plan.to_dict()


def from_plain(values: Any) -> Charge:
    """What `to_plain` wrote."""
    if isinstance(values, list):
        return tuple(Plan(**phase) for phase in values)
    if "trial" not in values:
        return Plan(**values)
    return Search(**{**values, "trial": tuple(Plan(**phase) for phase in values["trial"])})


def phases(plan: Plan | Sequence[Plan]) -> tuple[Plan, ...]:
    """The plan as a sequence of phases: one plan is a fit of one phase."""
    return (plan,) if isinstance(plan, Plan) else tuple(plan)


def non_private(plan: Plan) -> Plan:
    """The same plan without noise, and with a clip norm that clips nobody who is not 100 times the planned norm.

    The kind of noise stays, and with it the norm that is clipped. A reference through the same code: its guarantee is
    ε = ∞, and it runs on simulated noise only. Answers are still rounded, to 10⁻⁴ of the planned norm: plan for the
    gradient variant that will be asked.

    >>> non_private(Plan(50, 4, 0.5, clip_norm=1.0, noise_multiplier=7.0)).noise_std
    0.0
    """
    return replace(plan, noise_multiplier=0.0, clip_norm=100 * plan.clip_norm)


def default_batch_limit(num_rows: int, sampling_prob: float) -> int:
    """Mean + 5 sd of the batch size, at most `num_rows`: truncation there costs no measurable ε.

    >>> default_batch_limit(5000, 0.1)
    607
    """
    mean = num_rows * sampling_prob
    return min(num_rows, math.ceil(mean + 5 * math.sqrt(mean * (1 - sampling_prob))))


def _is_whole(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def require(ok: bool, name: str, value: object, remedy: str) -> None:
    """Refuse a public value at the door, with its name and what it must be."""
    if not ok:
        raise ValueError(f"{name}={value} must {remedy}")
