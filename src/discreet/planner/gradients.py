"""The public choices of DPVI."""

from dataclasses import replace

import jax
import numpy as np

from discreet.methods import elbo
from discreet.methods.gaussian import antithetic
from discreet.model import Model
from discreet.plan import Plan
from discreet.planner.prior_rows import (
    ROWS_PER_TABLE,
    STEPS,
    TABLES,
    TABLES_HELD,
    Choice,
    PriorRows,
    by_unit,
    known,
    plan_for,
    reasons_of,
    simulate_rows,
    widths,
)
from discreet.schema import Schema

CLIPPED_SHARE, BIAS_WEIGHT = 0.01, 4.0
SCALE_SHARE, WANDER, CLOSING, READ = 0.5, 2.0, 0.1, 0.8


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
    prior, information = known(model, simulated, num_rows)
    prior_mean, prior_sd, sd = prior.mean, prior.sd, prior.curvature**-0.5
    precondition = _precondition(information, sd, draws)
    plan = plan_for(schema, num_rows, steps, epsilon, delta)
    values = by_unit(schema, _row_values(model, plan, simulated, sd, precondition, draws))
    plan = replace(plan, clip_norm=_clip_norm(plan, values, precondition, prior_sd))
    learning_rate = _learning_rate(plan, simulated, precondition, prior_sd, sd)
    settings = elbo.Settings(
        elbo.start_at(model, sd, prior_mean), learning_rate, "preconditioned", precondition, draws=draws
    )
    reasons = (
        f"clip_norm {plan.clip_norm:.4g}: 99 % or more of row gradients are shorter, in four of five simulated tables",
        f"learning rate: λ_heur with λ_c = √{model.dim}, in units of {WANDER:g} prior sds",
        "widths are at least as predicted: what is not known of the covariates comes on top",
    )
    predicted = _widths(plan, simulated, prior_sd, precondition[: model.dim])
    return Choice(plan, settings, prior, (*reasons_of(plan), *reasons), predicted)


def _widths(plan: Plan, simulated: PriorRows, prior_sd: np.ndarray, precondition: np.ndarray) -> np.ndarray:
    """How many times as wide as without privacy each parameter's posterior is at least, in a typical table.

    The noise of the mean answer over the steps that are read, through the curvature of simulated tables; what is not
    known of that curvature comes on top.
    """
    gradients = np.nan_to_num(simulated.gradients, posinf=0, neginf=0)
    information = np.swapaxes(gradients, 1, 2) @ gradients / gradients.shape[1]
    curvature = plan.num_rows * information + np.diag(prior_sd**-2)
    noise = np.diag((plan.noise_std / plan.sampling_prob / precondition) ** 2 / (READ * plan.steps))
    return widths(curvature, curvature, noise, prior_sd)


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
    information = np.swapaxes(gradients, 1, 2) @ gradients / gradients.shape[1]
    curvature = plan.sampling_prob * (plan.num_rows * information + np.diag(prior_sd**-2))
    closing = np.linalg.eigvalsh(curvature * np.sqrt(np.outer(step, step)))[:, -1]
    location = step * min(1.0, CLOSING / np.median(closing)) / precondition[:dim]
    shape = 2 * plan.sampling_prob * (np.expm1(-sd) / sd) ** 2 * precondition[dim:]
    return np.concatenate([location, np.minimum(heuristic, CLOSING / shape)])
