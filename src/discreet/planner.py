"""Public choices from the model's prior and the schema alone: they cost no privacy and never see rows."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np
from scipy import stats

from discreet.accounting import calibrate
from discreet.methods import elbo, sep, sites
from discreet.methods.gaussian import antithetic
from discreet.model import Model, prior_moments, simulate_table
from discreet.plan import Plan, default_batch_limit
from discreet.posterior import full
from discreet.posterior.reading import SITES
from discreet.schema import Categorical, Numeric, Schema

TABLES, ROWS_PER_TABLE = 64, 512
STEPS, SAMPLING_PROB, BATCH = 10_000, 0.1, 1000
CLIPPED_SHARE, TABLES_HELD, BIAS_WEIGHT = 0.01, 0.8, 4.0
SCALE_SHARE, WANDER, CLOSING = 0.5, 2.0, 0.1
MOST_VARIED = 1e6
UNIT_SEED = 4
SELDOM = 1e-24
SITE_STEPS, SITE_CLOSING, SITE_POWER, SITE_FLOOR, SITES_HELD = 2000, 0.03, 3.0, 2.0, 0.995


class Choice(NamedTuple):
    """A plan, what is asked under it, what is known of each parameter in public, and the reasons."""

    plan: Plan
    settings: elbo.Settings | sep.Settings
    prior: full.Prior
    reasons: tuple[str, ...]

    @property
    def family(self) -> str:
        """The name of the variational family, or that rows answer with sites."""
        return SITES if isinstance(self.settings, sep.Settings) else self.settings.family.name

    def facts(self) -> dict:
        """What a release should say about the choice, as plain values."""
        known = {name: values for name, values in self.prior._asdict().items() if values is not None}
        prior = {name: np.asarray(values).tolist() for name, values in known.items()}
        return {"prior": prior, "reasons": list(self.reasons)}


class PriorRows(NamedTuple):
    """What rows look like before any data is seen: prior draws z, simulated rows, and each row's or unit's gradient."""

    z: np.ndarray
    rows: dict[str, np.ndarray]
    gradients: np.ndarray


def choose(
    model: Model,
    schema: Schema,
    num_rows: int,
    epsilon: float,
    delta: float,
    *,
    steps: int = STEPS,
    draws: int = 10,
) -> Choice:
    """The default rule: κ = .1 or a batch of 1000, whichever is smaller; 10⁴ steps; everything else by simulation.

    Rows are simulated from the prior, with covariates that vary from table to table within what the schema declares.
    Per-coordinate Fisher information F from them gives the starting sd 1/√(N·F + prior precision) and the
    preconditioner. The clip norm holds 99 % of preconditioned row gradients in four of five tables, and more where so
    many rows make the bias of clipping larger than the noise. The step is NA-DPVI's λ_heur in units of the prior (left
    alone, the noise of all steps would wander two prior sds), and short enough to be stable where noise is small.
    """
    simulated = simulate_rows(model, schema)
    prior, information = _known(model, simulated, num_rows)
    prior_mean, prior_sd, sd = prior.mean, prior.sd, prior.curvature**-0.5
    precondition = _precondition(information, sd, draws)
    plan = _plan(schema, num_rows, steps, epsilon, delta)
    values = _by_unit(schema, _row_values(model, plan, simulated, sd, precondition, draws))
    plan = replace(plan, clip_norm=_clip_norm(plan, values, precondition, prior_sd))
    learning_rate = _learning_rate(plan, simulated, precondition, prior_sd, sd)
    settings = elbo.Settings(
        elbo.start_at(model, sd, prior_mean), learning_rate, "preconditioned", precondition, draws=draws
    )
    reasons = (
        f"clip_norm {plan.clip_norm:.4g}: 99 % or more of row gradients are shorter, in four of five simulated tables",
        f"learning rate: λ_heur with λ_c = √{model.dim}, in units of {WANDER:g} prior sds",
    )
    return Choice(plan, settings, prior, (*_reasons(plan), *reasons))


def choose_sites(
    model: Model, schema: Schema, num_rows: int, epsilon: float, delta: float, *, steps: int = SITE_STEPS
) -> Choice:
    """The same for DP-SEP: the clip norm holds 99.5 % of simulated sites, in four of five tables.

    φ starts at the precision that simulated rows lead one to expect: with less, the first noisy steps would go far. The
    first step closes 3 % of any distance and step t about 3/t, so that φ arrives, forgets where it came from, and then
    averages. Eigenvalues of its precision stay above the norm of a matrix of φ's own noise after a fifth of the steps:
    a step divides by them. The noise of an average answer falls by a hundredth if 2000 steps become 10⁴: 2000 it is.
    """
    site = sites.linear(model)
    sites.check(site, schema)
    simulated = simulate_rows(model, schema)
    prior, _ = _known(model, simulated, num_rows)
    plan = _plan(schema, num_rows, steps, epsilon, delta)
    lengths = np.linalg.norm(_by_unit(schema, _sites(site, simulated, prior)), axis=-1)
    clip_norm = np.quantile(np.quantile(lengths, SITES_HELD, axis=1), TABLES_HELD)
    plan = replace(plan, clip_norm=float(f"{clip_norm:.4g}"))
    gamma = SITE_CLOSING * num_rows / plan.sampling_prob
    rows = np.diag(prior.curvature - prior.sd**-2)[None]
    with jax.enable_x64(True):
        start = np.asarray(site.shape.pack(rows @ prior.mean, rows))
    least = 1 + SITE_FLOOR * np.sqrt(model.dim) * _noise_of_precision(plan) * float((prior.sd**2).max())
    settings = sep.Settings(gamma, least, start, slowing=SITE_CLOSING / SITE_POWER, centred=True)
    reasons = (
        f"clip_norm {plan.clip_norm:.4g}: {SITES_HELD:.1%} of sites are shorter, in four of five simulated tables",
        f"gamma {gamma:.4g}: the first step closes {SITE_CLOSING:.0%} of any distance, step t {SITE_POWER:g}/t",
    )
    return Choice(plan, settings, prior, (*_reasons(plan), *reasons))


METHODS: dict[str, Callable[[Model, Schema, int, float, float], Choice]] = {"dpvi": choose, "sep": choose_sites}
"""By the name of a method, what makes its public choices."""


def of_method(name: str) -> Callable[[Model, Schema, int, float, float], Choice]:
    """What makes the public choices of the method of this name."""
    if name not in METHODS:
        raise ValueError(f"method={name!r} must be one of {', '.join(METHODS)}")
    return METHODS[name]


def roomy(choice: Choice) -> Choice:
    """The choice with a batch limit that is met once in 10²⁴ steps, for accounts whose Rényi filter must pay for it.

    That is ten sds above the mean where the default is five, and costs no more: fewer batches are truncated.
    """
    plan = choice.plan
    if plan.batch_limit is None:
        return choice

    def seldom(limit: int) -> bool:
        return bool(stats.binom.sf(limit, plan.num_rows, plan.sampling_prob) <= SELDOM)

    limit = max(plan.batch_limit, bisect_left(range(plan.num_rows), True, key=seldom))
    return choice._replace(plan=replace(plan, batch_limit=limit))


def _plan(schema: Schema, num_rows: int, steps: int, epsilon: float, delta: float) -> Plan:
    rate = min(SAMPLING_PROB, BATCH / num_rows) if num_rows > 1 else 1.0
    limit = None if schema.held_as_counts(num_rows) else default_batch_limit(num_rows, rate)
    unit = "row" if schema.unit is None else schema.unit.column
    return calibrate(Plan(num_rows, steps, rate, 1.0, 1.0, limit, unit=unit), epsilon, delta)


def _by_unit(schema: Schema, values: np.ndarray) -> np.ndarray:
    """What made-up units answer, from what rows do: (tables, rows, size) → (tables, units, size)."""
    if schema.unit is None:
        return values
    finite = np.where(np.isfinite(values).all(-1, keepdims=True), values, 0.0)
    return schema.unit.made_up(np.random.default_rng(UNIT_SEED), values.shape[1]) @ finite


def _known(model: Model, simulated: PriorRows, num_rows: int) -> tuple[full.Prior, np.ndarray]:
    """What is known of each parameter before any row is asked, and the Fisher information of a row."""
    mean, sd = prior_moments(model)
    information = _information(simulated)
    return full.Prior(mean, sd, num_rows * information + sd**-2), information


def _noise_of_precision(plan: Plan) -> float:
    """sd of the noise in an entry of φ after a fifth of the steps, each of them closing the share that is due then."""
    closing = SITE_CLOSING / (1 + SITE_CLOSING / SITE_POWER * plan.steps / 5)
    return plan.noise_std / plan.sampling_prob * np.sqrt(closing / 2)


def _sites(site: sites.Site, simulated: PriorRows, prior: full.Prior) -> np.ndarray:
    """Each simulated row's site about the truth it came from; (tables, rows, size)."""
    cov = np.diag(1 / prior.curvature)[None]

    def table(z, rows):
        around = sites.cavity(site.shape, site.shape.of_moments(z[None], cov))
        return jax.vmap(lambda row: site.shape.about(site.of_row(around, row), around.mean))(rows)

    with jax.enable_x64(True):
        return np.asarray(jax.jit(jax.vmap(table))(simulated.z, simulated.rows))


def simulate_rows(model: Model, schema: Schema, seed: int = 0) -> PriorRows:
    """Rows drawn from the prior predictive, `ROWS_PER_TABLE` for each of `TABLES` prior draws."""
    rng = np.random.default_rng(seed)
    shaped = {column.name: varied_column(rng, column) for column in schema.columns}
    keys = jax.random.split(jax.random.key(seed), TABLES)

    def table(key, rows):
        z, rows = simulate_table(model, key, rows)
        return z, rows, jax.vmap(lambda row: jax.grad(model.log_likelihood)(z, row))(rows)

    with jax.enable_x64(True):
        z, rows, gradients = jax.jit(jax.vmap(table))(keys, shaped)
    rows = {name: np.asarray(values) for name, values in rows.items()}
    for name in model.outcome:
        _check_outcome(schema[name], rows[name])
    return PriorRows(np.asarray(z), rows, _by_unit(schema, np.asarray(gradients)))


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


def varied_column(rng: np.random.Generator, column: Numeric | Categorical) -> np.ndarray:
    """Values of one column in each of `TABLES` tables, each table with its own made-up distribution.

    Real columns seldom fill their bounds evenly; a plan made for uniform ones would clip them.
    """
    if isinstance(column, Categorical):
        shares = rng.dirichlet(np.ones(len(column.levels)), TABLES)
        return np.stack([rng.choice(len(column.levels), ROWS_PER_TABLE, p=share) for share in shares]).astype(np.int32)
    mean, size = rng.uniform(0.05, 0.95, (TABLES, 1)), rng.uniform(1, 8, (TABLES, 1))
    share = rng.beta(mean * size, (1 - mean) * size, (TABLES, ROWS_PER_TABLE))
    values = column.low + (column.high - column.low) * share
    return np.round(values) if column.integer else values


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


def _precondition(information: np.ndarray, sd: np.ndarray, draws: int) -> np.ndarray:
    """β: location gradients at equal size, scale gradients at `SCALE_SHARE` of that."""
    location = 1 / np.sqrt(information)
    location = location / location.min()
    slope = -np.expm1(-sd)  # T′(s) where T(s) = sd
    scale_size = np.sqrt(information) * slope * np.sqrt(1 / draws)
    return np.concatenate([location, SCALE_SHARE * location * np.sqrt(information) / scale_size])


def _row_values(model: Model, plan: Plan, simulated: PriorRows, sd, precondition, draws: int) -> np.ndarray:
    """What each simulated row would answer, at the truth it came from, with the starting sd; (tables, rows, 2·dim)."""
    settings = elbo.Settings(np.zeros_like(precondition), 1.0, "preconditioned", precondition, draws=draws)
    query = elbo.query(model, plan, settings)

    def value(key, z, row):
        phi = settings.family.pack(z, sd)
        return query.row_value(elbo.question_at(settings, phi, antithetic(key, draws, model.dim)), row)

    def table(inputs):
        key, z, rows = inputs
        keys = jax.random.split(key, ROWS_PER_TABLE)
        return jax.vmap(value, in_axes=(0, None, 0))(keys, z, rows)

    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(1), TABLES)
        values = np.asarray(jax.jit(lambda *inputs: jax.lax.map(table, inputs))(keys, simulated.z, simulated.rows))
    return np.where(np.isfinite(values).all(-1, keepdims=True), values, 0.0)


def _clip_norm(plan: Plan, values: np.ndarray, precondition: np.ndarray, prior_sd: np.ndarray) -> float:
    """The norm that rows exceed in 1 % of the rows of a table, in four of five tables, or more if bias asks for it.

    Tables come first: a prior that allows a few tables with enormous gradients should not set the noise of all. Among
    larger norms the one is taken that minimises 4·bias² + noise variance, in units of the non-private posterior's
    variance and again in four of five tables.
    """
    norms = np.linalg.norm(values, axis=-1)
    least = np.quantile(np.quantile(norms, 1 - CLIPPED_SHARE, axis=1), TABLES_HELD)
    if least <= 0:
        raise ValueError("rows simulated from the prior have no finite gradient: check the model, or give choice=")
    most = max(least, 1.2 * np.quantile(norms.max(1), TABLES_HELD))
    dim = len(prior_sd)
    gradients, beta = values[..., :dim], precondition[:dim]
    curvature = plan.num_rows * ((gradients / beta) ** 2).mean(1) + prior_sd**-2
    noise = plan.noise_multiplier**2 / (beta**2 * 0.8 * plan.steps * plan.sampling_prob**2 * curvature)

    def loss(clip_norm):
        lost = (gradients * np.maximum(0, 1 - clip_norm / np.maximum(norms, 1e-300))[..., None]).mean(1)
        bias = plan.num_rows * lost / beta / np.sqrt(curvature)
        return np.quantile((BIAS_WEIGHT * bias**2 + noise * clip_norm**2).mean(1), TABLES_HELD)

    return float(f"{min(np.geomspace(least, most, 24), key=loss):.4g}")


def _learning_rate(plan: Plan, simulated: PriorRows, precondition, prior_sd, sd) -> np.ndarray:
    """λ_heur in units of the prior, shortened so that a step closes at most `CLOSING` of any distance.

    For means that is the largest eigenvalue of step × curvature in the typical simulated table; for a scale the
    curvature to expect is 2(T′/T)². A tenth leaves room for tables with ten times the typical curvature.
    """
    dim = len(sd)
    heuristic = elbo.heuristic_rate(plan, 2 * dim, np.sqrt(dim))
    step = WANDER * prior_sd * heuristic * precondition[:dim]
    gradients = np.nan_to_num(simulated.gradients, posinf=0, neginf=0)
    information = np.einsum("tri,trj->tij", gradients, gradients) / gradients.shape[1]
    curvature = plan.sampling_prob * (plan.num_rows * information + np.diag(prior_sd**-2))
    closing = np.linalg.eigvalsh(curvature * np.sqrt(np.outer(step, step)))[:, -1]
    location = step * min(1.0, CLOSING / np.median(closing)) / precondition[:dim]
    shape = 2 * plan.sampling_prob * (np.expm1(-sd) / sd) ** 2 * precondition[dim:]
    return np.concatenate([location, np.minimum(heuristic, CLOSING / shape)])


def _reasons(plan: Plan) -> tuple[str, ...]:
    return (
        f"sampling_prob {plan.sampling_prob:.4g}: a tenth of the rows, at most {BATCH} a step",
        f"noise_multiplier {plan.noise_multiplier:.4g}: the least that meets the budget over {plan.steps} steps",
    )
