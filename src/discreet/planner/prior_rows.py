"""What rows look like before any data is seen, by simulation from the prior, and what every choice has in common."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from discreet.accounting import calibrate
from discreet.methods import elbo, onestep, score, sep
from discreet.model import Model, prior_moments, simulate_table
from discreet.plan import Plan, default_batch_limit
from discreet.posterior import full
from discreet.posterior.reading import ONE_STEP, SCORES, SITES
from discreet.schema import Categorical, Numeric, Schema

TABLES, ROWS_PER_TABLE = 64, 512
STEPS, SAMPLING_PROB, BATCH = 10_000, 0.1, 1000
TABLES_HELD = 0.8
MOST_VARIED = 1e6
UNIT_SEED = 4


class Choice(NamedTuple):
    """A plan, what is asked under it, what is known of each parameter in public, and the reasons.

    `predicted` (d,) is how many times as wide as without privacy each parameter's interval is expected to be, in a
    typical table; None where that is not known. `before` are the plans of earlier phases, whose answers the question
    under `plan` depends on; its clip norm may change with them.
    """

    plan: Plan
    settings: elbo.Settings | sep.Settings | score.Settings | onestep.Settings
    prior: full.Prior
    reasons: tuple[str, ...]
    predicted: np.ndarray | None = None
    before: tuple[Plan, ...] = ()

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Of all phases, in order."""
        return (*self.before, self.plan)

    @property
    def family(self) -> str:
        """The name of the variational family, or that rows answer with sites, with scores, or with these once."""
        if isinstance(self.settings, elbo.Settings):
            return self.settings.family.name
        others = {sep.Settings: SITES, score.Settings: SCORES, onestep.Settings: ONE_STEP}
        return others[type(self.settings)]

    @property
    def width(self) -> float | None:
        """`predicted`, on average over parameters."""
        return None if self.predicted is None else float(np.mean(self.predicted))

    def facts(self) -> dict:
        """What a release should say about the choice, as plain values."""
        known = {name: values for name, values in self.prior._asdict().items() if values is not None}
        prior = {name: np.asarray(values).tolist() for name, values in known.items()}
        predicted = None if self.predicted is None else np.asarray(self.predicted).tolist()
        return {"prior": prior, "reasons": list(self.reasons), "predicted": predicted}


class PriorRows(NamedTuple):
    """What rows look like before any data is seen: prior draws z, simulated rows, and each row's or unit's gradient."""

    z: np.ndarray
    rows: dict[str, np.ndarray]
    gradients: np.ndarray


def simulate_rows(
    model: Model,
    schema: Schema,
    seed: int = 0,
    *,
    tables: int = TABLES,
    rows: int = ROWS_PER_TABLE,
    sample: Mapping[str, np.ndarray] | None = None,
    bounded: bool = True,
) -> PriorRows:
    """Rows drawn from the prior predictive, `rows` for each of `tables` prior draws.

    Covariates are those of a public `sample` of encoded columns, or made up for each table within what is declared.
    Outcomes that are mostly outside their bounds are refused, if they must be `bounded`: made-up covariates may be
    wilder than real ones. The last rows are kept: plans for several budgets look at the same.
    """
    frozen = tuple((name, column.dtype.str, column.tobytes()) for name, column in (sample or {}).items())
    return _simulated(model, schema, seed, (tables, rows), frozen, bounded)


@lru_cache(maxsize=1)
def _simulated(
    model: Model, schema: Schema, seed: int, shape: tuple[int, int], sample: tuple, bounded: bool
) -> PriorRows:
    rng = np.random.default_rng(seed)
    shaped = {column.name: varied_column(rng, column, *shape) for column in schema.columns}
    shaped |= score.resampled(rng, {name: np.frombuffer(column, kind) for name, kind, column in sample}, shape)
    keys = jax.random.split(jax.random.key(seed), shape[0])

    def table(key, rows):
        z, rows = simulate_table(model, key, rows)
        return z, rows, jax.vmap(lambda row: jax.grad(model.log_likelihood)(z, row))(rows)

    with jax.enable_x64(True):
        z, made, gradients = jax.jit(jax.vmap(table))(keys, shaped)
    made = {name: np.asarray(values) for name, values in made.items()}
    for name in model.outcome if bounded else ():
        _check_outcome(schema[name], made[name])
    return PriorRows(np.asarray(z), made, by_unit(schema, np.asarray(gradients)))


def _check_outcome(column: Numeric | Categorical, values: np.ndarray) -> None:
    """Refuse a prior under which most outcomes of most tables lie outside their declared bounds, or were clamped."""
    if isinstance(column, Categorical):
        return
    outside = (values < column.low) | (values > column.high) | ~np.isfinite(values)
    if not column.integer:
        outside |= (values == column.low) | (values == column.high)
    share = np.median(outside.mean(1))
    if share > 0.5:
        raise ValueError(
            f"the prior is too vague to plan with: {share:.0%} of a typical simulated table has {column.name!r} "
            f"outside its declared bounds [{column.low}, {column.high}]; give parameters narrower priors, or choice="
        )


def varied_column(
    rng: np.random.Generator, column: Numeric | Categorical, tables: int = TABLES, rows: int = ROWS_PER_TABLE
) -> np.ndarray:
    """Values of one column in each table, each table with its own made-up distribution.

    Real columns seldom fill their bounds evenly; a plan made for uniform ones would clip them.
    """
    if isinstance(column, Categorical):
        shares = rng.dirichlet(np.ones(len(column.levels)), tables)
        return np.stack([rng.choice(len(column.levels), rows, p=share) for share in shares]).astype(np.int32)
    mean, size = rng.uniform(0.05, 0.95, (tables, 1)), rng.uniform(1, 8, (tables, 1))
    share = rng.beta(mean * size, (1 - mean) * size, (tables, rows))
    values = column.low + (column.high - column.low) * share
    return np.round(values) if column.integer else values


def known(model: Model, simulated: PriorRows, num_rows: int) -> tuple[full.Prior, np.ndarray]:
    """What is known of each parameter before any row is asked, and the Fisher information of a row."""
    check_rows(num_rows)
    mean, sd = prior_moments(model)
    information = _information(simulated)
    return full.Prior(mean, sd, num_rows * information + sd**-2), information


def _information(simulated: PriorRows) -> np.ndarray:
    """Fisher information of a row, per coordinate: the median over prior draws, so that extremes do not rule."""
    squares = np.nan_to_num(simulated.gradients, posinf=0, neginf=0) ** 2
    low, high = np.quantile(squares.sum(-1).mean(1), [0.1, 0.9])
    if high > MOST_VARIED * low:
        raise ValueError(
            f"the prior is too vague to plan with: squared row gradients vary {high / max(low, 1e-300):.1g}-fold "
            "between tables simulated from it, so no clip norm fits; give scale parameters a narrower prior, or choice="
        )
    typical, average = np.median(squares.mean(1), axis=0), squares.mean((0, 1))
    floor = 1e-6 * max(average.max(), 1e-12)
    return np.maximum(np.where(typical > 0, typical, average), floor)


def plan_for(schema: Schema, num_rows: int, steps: int, epsilon: float, delta: float) -> Plan:
    """The papers' schedule for this many rows: a tenth of them a step, at most `BATCH`; the noise meets the budget."""
    check_rows(num_rows)
    rate = min(SAMPLING_PROB, BATCH / num_rows) if num_rows > 1 else 1.0
    limit = None if schema.held_as_counts(num_rows) else default_batch_limit(num_rows, rate)
    unit = "row" if schema.unit is None else schema.unit.column
    return calibrate(Plan(num_rows, steps, rate, 1.0, 1.0, limit, unit=unit), epsilon, delta)


def check_rows(num_rows: int) -> None:
    """Refuse a number of rows that is none."""
    if not num_rows >= 1:
        raise ValueError(f"num_rows={num_rows} must be at least 1: the number of rows of the table is public")


def kept_of(sample: Mapping[str, np.ndarray], names: Sequence[str], most: int) -> dict[str, np.ndarray]:
    """What of a public sample a release keeps: at most so many rows of these columns."""
    kept = {name: np.asarray(sample[name])[:most] for name in names}
    if any(len(column) == 0 for column in kept.values()):
        raise ValueError("the public sample has no rows: give some, or leave it out")
    return kept


def changed(choice: Choice, epsilon: float, delta: float, values: Mapping[str, Any]) -> Choice:
    """The choice with other values of its plan or settings, by name; its noise meets the budget again.

    What was predicted of it, is no longer. Where there are several phases, the plans stay as they are.
    """
    plan, settings = choice.plan, choice.settings
    own = set() if choice.before else {"steps", "sampling_prob", "clip_norm"}
    known = own | set(settings._fields)
    unknown = sorted(set(values) - known)
    if unknown:
        raise ValueError(f"values={unknown} are none of this choice's: it has {', '.join(sorted(known))}")
    if not values:
        return choice
    plan = replace(plan, **{name: value for name, value in values.items() if name in own})
    if plan.batch_limit is not None and "sampling_prob" in values:
        plan = replace(plan, batch_limit=default_batch_limit(plan.num_rows, plan.sampling_prob))
    if {"steps", "sampling_prob"} & set(values):
        plan = calibrate(plan, epsilon, delta)
    settings = settings._replace(**{name: value for name, value in values.items() if name not in own})
    stale = tuple(f"{name} " for name in (*values, *(() if choice.before else ("noise_multiplier",))))
    reasons = [reason for reason in choice.reasons if not reason.startswith(stale)]
    reasons += [] if choice.before else [_of_noise(plan)]
    reasons += [f"{name} {value}: given" for name, value in values.items()]
    return choice._replace(plan=plan, settings=settings, reasons=tuple(reasons), predicted=None)


def by_unit(schema: Schema, values: np.ndarray) -> np.ndarray:
    """What made-up units answer, from what rows do: (tables, rows, size) → (tables, units, size)."""
    if schema.unit is None:
        return values
    finite = np.where(np.isfinite(values).all(-1, keepdims=True), values, 0.0)
    return schema.unit.made_up(np.random.default_rng(UNIT_SEED), values.shape[1]) @ finite


def widths(seen: np.ndarray, whole: np.ndarray, noise: np.ndarray, prior_sd: np.ndarray) -> np.ndarray:
    """How many times as wide as without privacy each parameter's interval will be, in a typical table, (d,).

    `seen` (tables, d, d) is the curvature that answers show, `whole` what all rows and the prior have, and `noise` the
    covariance of the mean answer. No interval is wider than the prior's.
    """
    inverse, without = np.linalg.inv(seen), np.linalg.inv(whole)
    open_to_noise = np.diag(prior_sd**2) - inverse
    gain = open_to_noise @ np.linalg.inv(open_to_noise + inverse @ noise @ inverse)
    variance = inverse + open_to_noise - gain @ open_to_noise
    ratio = np.diagonal(variance, axis1=1, axis2=2) / np.diagonal(without, axis1=1, axis2=2)
    return np.median(np.sqrt(np.maximum(ratio, 1.0)), axis=0)


def reasons_of(plan: Plan) -> tuple[str, ...]:
    """Why a plan samples and adds noise as it does."""
    return (
        f"sampling_prob {plan.sampling_prob:.4g}: a tenth of the rows, at most {BATCH} a step",
        _of_noise(plan),
    )


def _of_noise(plan: Plan) -> str:
    return f"noise_multiplier {plan.noise_multiplier:.4g}: the least that meets the budget over {plan.steps} steps"
