"""The composition root: the one place where the private and the public half meet."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from discreet import planner
from discreet.accounting import Guarantee, calibrate, guarantee
from discreet.ledger import Account
from discreet.mechanism import loop
from discreet.mechanism import noise as streams
from discreet.mechanism.checkpoint import Checkpoint
from discreet.mechanism.rows import Rows, encode
from discreet.methods import elbo, law, onestep, score, sep, sites
from discreet.model import Model
from discreet.plan import Plan
from discreet.posterior import full
from discreet.posterior.reading import DEFAULTS, ONE_STEP, Options, Reading, check_reading, naive_posterior, read
from discreet.posterior.sums import fewest_steps
from discreet.posterior.trace import TraceError
from discreet.posterior.types import Posterior
from discreet.query import Phase, Query
from discreet.release import Release
from discreet.schema import Numeric, Schema

run = loop.run
run_phases = loop.run_phases
secure = streams.secure
simulated = streams.simulated

MOST_POINTS = 2**26

__all__ = [
    "Checkpoint",
    "Rows",
    "encode",
    "fit",
    "naive_posterior",
    "paid_units",
    "phase_of",
    "question",
    "run",
    "run_phases",
    "secure",
    "simulated",
]


def fit(
    model: Model,
    rows: Rows,
    *,
    epsilon: float,
    delta: float,
    method: str | None = None,
    sample: Any = None,
    values: Mapping[str, Any] | None = None,
    choice: planner.Choice | None = None,
    noise: streams.Noise | None = None,
    account: Account | None = None,
    checkpoint: Checkpoint | None = None,
    reading: Reading = "noise-aware",
    options: Options = DEFAULTS,
    draws: int = 4000,
    progress: Callable[[range], Iterable[int]] = iter,
) -> Posterior:
    """The posterior of `model` given `rows`, noise-aware by default, at most (epsilon, delta) under zero-out adjacency.

    Everything that is not given is chosen in public by the planner, and the release says why. `method` is "one-step"
    (a share of the budget finds a good place, most of it asks rows once for their gradient there), "score" (rows answer
    with gradients at the iterate itself, step by step; where the law of the covariates is public), "dpvi" (with
    gradients of an ELBO) or "sep" (with the natural parameters of their sites, for GLMs without further parameters);
    without it the planner takes the sharpest that stays calibrated. `sample` is a public table, raw, whose covariates
    follow the same law as those of the rows: of another year or place, say; without it one step buys that law. `values`
    override what was planned, by name: "clip_norm", "steps", "sampling_prob", or a field of the method's settings. A
    `choice` that is given has its method and values.
    Without `noise` the stream is secure; a simulated stream is for studies, and the
    posterior's guarantee then says that it is not private. Where the trace cannot be read as asked, the release is not
    lost: the `TraceError` has it as `release`.

    An `account` of the ledger is charged before the first row is asked, and committed after the last. A `checkpoint`
    keeps the run where it is, so that it can go on if it is cut short; it has an account of its own.
    """
    if account is not None and checkpoint is not None:
        raise ValueError("give the account to the checkpoint: it is charged once for a run, however often that goes on")
    if choice is None:
        public = None if sample is None else planner.public_sample(model, rows.schema, sample)
        why = _why_not_one_step(rows, reading, options) if method is None else None
        choose = planner.of_method(method, public) if why is None else planner.of_method("dpvi")
        choice = choose(model, rows.schema, rows.num_rows, epsilon, delta)
        if why is not None:
            choice = choice._replace(reasons=(f"method dpvi: {why}", *choice.reasons))
        choice = planner.changed(choice, epsilon, delta, values or {})
        payer = account or (checkpoint and checkpoint.account)
        if isinstance(payer, Account) and payer.budget.adaptive:
            choice = planner.roomy(choice)
    elif method is not None or sample is not None or values is not None:
        raise ValueError("a choice has its own method, sample and values: leave method=, sample= and values= out")
    check(model, choice, reading, options)
    kept = checkpoint or Checkpoint(None, account, "fit")
    stream = kept.noise(noise or streams.secure())
    if kept.account is not None and stream.kind != "secure":
        raise ValueError("simulated noise protects nobody, so no budget pays for it: leave the account out")
    paid = guarantee(choice.plans, delta, stream.kind)
    if not paid.epsilon <= epsilon:  # so that nan is refused, too
        raise ValueError(f"this plan costs ε = {paid.epsilon:.4g}, more than epsilon={epsilon}: calibrate it first")
    asked = phase_of(model, rows.schema, choice)
    release = run_phases(stream, choice.plans, asked, rows, progress=progress, checkpoint=kept)
    if checkpoint is None:
        kept.finish()
    if noise is None:
        stream.forget()
    try:
        return read(release, model, paid, reading, options=options, schema=rows.schema, draws=draws)
    except (ValueError, ArithmeticError) as error:  # numpy's LinAlgError is a ValueError
        unread = TraceError(f"{error}. The budget is spent, but this error keeps its .release: read it another way")
        unread.release = release
        raise unread from error


def paid_units(
    rows: Rows,
    columns: Sequence[str],
    *,
    epsilon: float,
    delta: float,
    bins: int = 16,
    noise: streams.Noise | None = None,
    account: Account | None = None,
) -> tuple[dict[str, tuple[float, float]], Guarantee]:
    """Units (centre, scale) of numeric columns for `glm` and `network`, and what they cost; bounds cost nothing.

    Every row is counted once, in one bin of each column. The centre is the median and the scale half of what lies
    between 16 % and 84 %, of noisy counts. What a fit then costs comes on top: a ledger's `account` adds it up.
    """
    if rows.schema.unit is not None:
        raise ValueError(
            f"{rows.schema.unit.column!r} may have several rows, and these are counted one by one: give units"
        )
    chosen = rows.schema.select(columns).columns
    wrong = [column.name for column in chosen if not isinstance(column, Numeric)]
    if wrong or not chosen:
        raise ValueError(f"columns={list(columns)} must be numeric, and at least one: {wrong} have no units")
    if not isinstance(bins, int) or bins < 2:
        raise ValueError(f"bins={bins!r} must be a whole number, at least 2")
    plan = calibrate(Plan(rows.num_rows, 1, 1.0, law.count_norm(chosen), 1.0), epsilon, delta)
    stream = noise or streams.secure()
    if account is not None and stream.kind != "secure":
        raise ValueError("simulated noise protects nobody, so no budget pays for it: leave the account out")
    kept = Checkpoint(None, account, "units")
    release = run(stream, plan, law.ask_counts(chosen, bins, plan), rows, checkpoint=kept)
    kept.finish()
    if noise is None:
        stream.forget()
    return law.units(chosen, bins, law.heard(release)), guarantee(plan, delta, stream.kind)


def check(model: Model, choice: planner.Choice, reading: Reading = "noise-aware", options: Options = DEFAULTS) -> None:
    """Refuse a choice whose release could not be read so, while nothing is spent."""
    check_reading(reading, options, choice.family)
    if not choice.before and 0.8 * choice.plan.steps < fewest_steps(model.dim):
        raise ValueError(f"steps={choice.plan.steps} are too few to read {model.dim} parameters from: plan more steps")


def _why_not_one_step(rows: Rows, reading: Reading, options: Options) -> str | None:
    """Why these rows are not asked once, or not read so: what a planner, which sees neither, does not know."""
    if rows.on_disk:
        return "rows are on disk, and one step asks all of them at once; a public sample is not used"
    try:
        check_reading(reading, options, ONE_STEP)
    except ValueError:
        return "one step has no trace to be read as asked; a public sample is not used"
    return None


def phase_of(model: Model, schema: Schema, choice: planner.Choice) -> Callable[[Sequence[Release]], Phase]:
    """What rows are asked in each phase, given the releases of those before; its settings say how it was chosen."""
    if not isinstance(choice.settings, onestep.Settings):
        only = Phase(choice.plan, question(model, schema, choice), _keep(model, choice))
        return lambda told: only
    asked = onestep.phase(model, schema, choice.plans, choice.settings)

    def with_facts(told):
        plan, query, keep = asked(told)
        return Phase(plan, query._replace(settings={**query.settings, **choice.facts()}), keep)

    return with_facts


def question(model: Model, schema: Schema, choice: planner.Choice) -> Query:
    """What rows are asked where there is one phase; its settings say how it was chosen."""
    if isinstance(choice.settings, sep.Settings):
        site = sites.linear(model)
        sites.check(site, schema)
        query = sep.query(site, choice.plan, choice.settings)
    elif isinstance(choice.settings, score.Settings):
        query = score.query(model, choice.plan, choice.settings)
    else:
        assert isinstance(choice.settings, elbo.Settings), "a question of several phases is `phase_of`'s"
        query = elbo.query(model, choice.plan, choice.settings)
    return query._replace(settings={**query.settings, **choice.facts()})


def _keep(model: Model, choice: planner.Choice) -> str:
    """What a dense curvature needs of the trace: every point, or products of coordinates where points are too many."""
    if isinstance(choice.settings, score.Settings):  # no other solver reads them, and their noise changes
        return "trace"
    if isinstance(choice.settings, sep.Settings) or model.dim > full.MOST_PARAMETERS:
        return "blocks"
    assert isinstance(choice.settings, elbo.Settings)
    points = choice.plan.steps * 4 * choice.settings.family.size(model.dim)
    return "trace" if points <= MOST_POINTS else "cross"
