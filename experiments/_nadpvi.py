"""What the tables of NA-DPVI share: how each method reads a study's releases, and how a posterior is scored."""

import time
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from harness import FULL, finish, picture

from discreet.accounting import calibrate
from discreet.evaluate import scorecard, study, tarp
from discreet.methods import elbo
from discreet.methods.elbo import described_family
from discreet.model import prior_moments
from discreet.plan import Plan, default_batch_limit
from discreet.posterior import averaging, exact, full, laplace, naive, nuts
from discreet.posterior.trace import TraceError
from discreet.posterior.trace_model import trace_model
from discreet.posterior.types import through_q

DELTA, STEPS, RATE, ROWS = 1e-5, 10_000, 0.1, 5000
DRAWS = 2000
by_chains = partial(nuts.solve, kept=DRAWS // nuts.CHAINS)  # the paper keeps 4000 of each


def plan_for(schema, num_rows, clip_norm, epsilon):
    """The papers' schedule on a table of this size, calibrated."""
    limit = None if schema.held_as_counts(num_rows) else default_batch_limit(num_rows, RATE)
    return calibrate(Plan(num_rows, STEPS, RATE, clip_norm, 1.0, limit), epsilon, DELTA)


def scored(rng, name, draws, truth, reference_sd):
    """{name/score: values}: what a part of a study keeps of these posteriors."""
    return {f"{name}/{key}": values for key, values in scorecard.score(rng, draws, truth, reference_sd).items()}


def of_method(parts, name):
    """The scores of one method over all parts."""
    every = [{key: part[key] for key in part if key.startswith(f"{name}/")} for part in parts]
    joined = study.joined([part for part in every if part])
    return {key.removeprefix(f"{name}/"): values for key, values in joined.items()}


def methods(parts):
    """The names of the methods that the parts hold, in order."""
    return list(dict.fromkeys(key.split("/")[0] for part in parts for key in part if "/" in key))


def of_finite(read):
    """The reading of the replicas whose steps are finite; NaN for those that diverged, which count as failed."""

    def reading(rng, release, *args, **options):
        good = ~study.diverged(release)
        if good.all():
            return read(rng, release, *args, **options)
        drawn = read(rng, study.chosen(release, good), *args, **options)
        every = np.full((len(good), *drawn.shape[1:]), np.nan)
        every[good] = drawn
        return every

    return reading


@of_finite
def diagonal(rng, release, solve=exact.solve, **options):
    """Noise-aware draws of z with a diagonal curvature."""
    return through_q(rng, solve(rng, trace_model(release, **options), DRAWS).optimum)


def dense(rng, release, prior, **options):
    """Noise-aware draws of z with a dense curvature; NaN for a release that cannot be read so."""
    return dense_and_reports(rng, release, prior, **options)[0]


def dense_and_reports(rng, release, prior, **options):
    """The same, and what the solver reports of each."""
    drawn, reports = np.full((len(release.last), DRAWS, len(prior.mean)), np.nan), []
    for place in range(len(drawn)):
        try:
            found = full.solve(rng, study.chosen(release, place), prior, DRAWS, **options)
        except TraceError:  # stays NaN: counted as failed
            reports.append({})
            continue
        drawn[place] = found.z
        reports.append(found.report)
    return drawn, reports


@of_finite
def last_iterate(rng, release):
    return through_q(rng, naive.last_iterate(release, DRAWS), described_family(release.settings))


@of_finite
def iterate_average(rng, release, noise_aware=False):
    """The converged windows' mean; that of the last 80 % where no window has converged. With DPVIm's noise added."""
    window, tail = averaging.average(release), averaging.tail_average(release, 0.2)
    mean, mean_sd = (np.where(window.converged, getattr(window, n), getattr(tail, n)) for n in ("mean", "mean_sd"))
    family = described_family(release.settings)
    dim = family.dim(mean)
    phi = np.repeat(mean[..., None, :], DRAWS, axis=-2)
    if noise_aware:
        phi[..., :dim] += mean_sd[..., None, :dim] * rng.standard_normal((*phi.shape[:-1], dim))
    return through_q(rng, phi, family)


def paper_readings(rng, release, aligned, public, few):
    """The paper's readings of its releases (`aligned` is DPVIm's), and `full`; what is slow, of the `few` first."""
    readings = {
        "noise-aware, exact": diagonal(rng, release),
        "noise-aware, Laplace": diagonal(rng, release, laplace.solve),
        "last iterate": last_iterate(rng, release),
        "iterate average": iterate_average(rng, release),
        "DPVIm": iterate_average(rng, aligned, noise_aware=True),
    }
    if not few:
        return readings
    some = study.chosen(release, slice(few))
    slow = {
        "noise-aware, NUTS": diagonal(rng, some, by_chains),
        "noise-aware, full": dense(rng, some, unknown_covariates(public.prior)),
    }
    return slow | readings


def scores_of(rng, drawn, truth, sds):
    """What a part keeps: scores of all draws by method; a method may have read the first data sets alone."""
    kept = {}
    for method, draws in drawn.items():
        kept |= scored(rng, method, draws, truth[: len(draws)], sds[: len(draws)])
    return kept


class Public(NamedTuple):
    """What rows simulated from the prior say before any data: `prior` for `full`, and each simulated row's gradient.

    `gradients` (tables, rows, d) are those of log p(row | z) at the truth of each table.
    """

    prior: full.Prior
    gradients: np.ndarray


def simulate_public(model, schema, num_rows, covariates=None, tables=64, rows=4096):
    """The mean and covariance of N·(Fisher information) + the prior's precision over tables simulated from the prior.

    The covariates' law is public here: there are none, or the model declares it. To each entry's variance is added that
    of 5 % of the geometric mean of the diagonal entries.
    """

    def gradients(z, rows):
        return jax.vmap(lambda row: jax.grad(model.log_likelihood)(z, row))(rows)

    truth, columns = study.simulate_tables(0, model, schema, rows, tables, covariates)
    with jax.enable_x64(True):
        found = np.asarray(jax.jit(jax.vmap(gradients))(truth, columns))
    return Public(_curvature_law(*prior_moments(model), num_rows, found, found), found)


def _curvature_law(mean, sd, num_rows, answers, gradients):
    products = np.einsum("tri,trj->tij", answers, gradients) / answers.shape[1]
    products = (products + np.swapaxes(products, 1, 2)) / 2
    curvature = num_rows * products.mean(0) + np.diag(sd**-2)
    upper = np.triu_indices(len(mean))
    scale = np.sqrt(np.diag(curvature))
    floor = 0.05 * np.outer(scale, scale)[upper]
    spread = np.cov(num_rows * products[:, *upper], rowvar=False).reshape(len(floor), -1) + np.diag(floor**2)
    return full.Prior(mean, sd, curvature, spread)


def whitening(public, num_rows):
    """β = 1/√(Fisher information) of one row, coordinate by coordinate."""
    return 1 / np.sqrt(np.diag(public.prior.curvature) / num_rows)


def whitened(model, public, plan, closing, decay=1.0, rest=0.0):
    """Our own settings: what rows are asked is in units of the curvature that simulations expect.

    β (`whitening`) makes all coordinates of a row's answer alike. Rows answer about locations alone, for
    one shared draw; the scales of q stay where simulations put them, for z's spread is read from the curvature. The
    first step closes `closing` (a number, or one for each parameter) of any distance to the optimum, the last one
    `decay` of that: iterates that wander far bend the line, and where a variance is a parameter, inflate it. For a
    share `rest` of the steps, a parameter stays where it starts.
    """
    prior, beta = public.prior, whitening(public, plan.num_rows)
    rate = closing * beta / (plan.sampling_prob * plan.num_rows)
    return elbo.Settings(
        elbo.start_at(model, np.diag(prior.curvature) ** -0.5, prior.mean),
        np.concatenate([rate, np.full(model.dim, 1e-12)]),
        "aligned preconditioned",
        np.concatenate([beta, np.ones(model.dim)]),
        draws=1,
        decay=decay,
        rest=np.concatenate([np.broadcast_to(rest, model.dim), np.zeros(model.dim)]),
    )


def whitened_clip(public, num_rows, prob):
    """The norm that a share `prob` of simulated rows' whitened gradients do not exceed."""
    norm = np.linalg.norm(public.gradients * whitening(public, num_rows), axis=-1)
    return float(f"{np.quantile(norm, prob):.3g}")


def through_clip(public, num_rows, clip_norm):
    """`public.prior` with the curvature that clipped answers have: N·E[clip(g)·gᵀ], a little less than N·E[g·gᵀ].

    By this much the mean answer moves with the parameters; a larger curvature would make the noise seem smaller.
    """
    prior = public.prior
    norm = np.linalg.norm(public.gradients * whitening(public, num_rows), axis=-1, keepdims=True)
    answers = public.gradients * np.minimum(1, clip_norm / norm)
    return _curvature_law(prior.mean, prior.sd, num_rows, answers, public.gradients)


def unknown_covariates(prior):
    """The same for `full` where the covariates' law is not public: an expected diagonal, its size unknown."""
    return prior._replace(curvature=np.diag(prior.curvature), curvature_cov=None)


def settings(plan, start, beta=None, factor=1.0):
    """The papers': SGD on sums with λ_heur. With β NA-DPVI's ten draws; without it DPVIm's aligned single draw."""
    start, rate = np.asarray(start, float), elbo.heuristic_rate(plan, len(start)) * np.asarray(factor)
    if beta is None:
        return elbo.Settings(start, rate, "aligned", draws=1)
    return elbo.Settings(start, rate, "preconditioned", np.repeat([1.0, beta], len(start) // 2), draws=10)


def finish_table(name, records, first_seed, jobs, began, *, hidden=()):
    """`finish` for records of `scorecard.summary`: what is long, or of no use to readers, is in the JSON alone."""
    hidden = ("marginal RMSEs", "widths ÷ non-private", "± references", *hidden)
    columns = dict.fromkeys(column for record in records for column in record if column not in hidden)
    finish(
        name,
        records,
        {"parts": [first_seed, first_seed + jobs - 1]},
        columns=list(columns),
        target=FULL,
        notes=[f"{time.time() - began:.0f} s in this run; parts that were done before were not repeated."],
    )


def coverage_picture(name, panels, shown):
    """The paper's figure: expected coverage above, its error below; lines are means over references, bars their sd.

    `panels` maps a title to parts and the coordinate whose marginal is shown, or None for all of them jointly.
    """
    colours = dict(
        zip(shown, ("#0a7d5a", "#c2344b", "#7a4fbf", "#c47a00", "#777777", "#1f77b4", "#8c564b"), strict=False)
    )
    with picture(name, columns=len(panels), rows=2, size=(4.0, 3.2)) as axes:
        for column, (title, (parts, coordinate)) in enumerate(panels.items()):
            for method in shown:
                scores = of_method(parts, method)
                shares = scores["joint"] if coordinate is None else scores["marginal"][..., coordinate]
                curves = tarp.coverage(np.nan_to_num(shares, nan=1.0))
                mean, spread = curves.mean(1), curves.std(1)
                style = {"color": colours[method], "linewidth": 1.2, "elinewidth": 0.6}
                axes[0][column].errorbar(tarp.LEVELS, mean, spread, label=method, **style)
                axes[1][column].errorbar(tarp.LEVELS, mean - tarp.LEVELS, spread, **style)
            axes[0][column].plot([0, 1], [0, 1], "k--", linewidth=0.7)
            axes[1][column].axhline(0, color="k", linestyle="--", linewidth=0.7)
            axes[0][column].set(title=title, ylabel="coverage" if column == 0 else None)
            axes[1][column].set(xlabel="level", ylabel="error" if column == 0 else None)
        axes[0][0].legend(fontsize="x-small")
