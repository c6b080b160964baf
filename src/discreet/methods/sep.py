"""DP-SEP: rows answer with the natural parameters of their sites; one average site stands for them all.

Stochastic expectation propagation keeps θ = θ₀ + φ, where φ = N·θ_f is N times the average site. Every row of a batch
is matched against the same cavity θ − θ_f, and answers with its own site. The step is φ ← φ + (γ/N)(answer − κφ). Steps
that grow shorter like one over their number average the answers, so that φ is not much noisier than what is read of it:
a noisy φ has its mean far from the posterior's, and there the sites are others.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from discreet.accounting import guarantee
from discreet.methods.natural import shortened
from discreet.methods.sites import Site, SiteError, cavity
from discreet.plan import Plan, require
from discreet.query import Numbers, Point, Query


class Settings(NamedTuple):
    """The public choices of a DP-SEP run.

    A step closes the share `gamma`·κ/N of the distance: the paper's γ, 1 there, and N for SEP's own speed. Eigenvalues
    of the precision of φ are kept at `least` prior precisions or more: 1 where every row's likelihood is log-concave,
    and more where noise would take it there; if rows are `centred`, that only shortens steps. `start` is φ₀, or zero:
    the prior. A mixture needs one that tells its components apart. Step t is divided by 1 + `slowing`·t; zero is the
    paper's. `centred` rows answer about the cavity's mean, which is public: the noise of Λ then hardly moves the mean
    Λ⁻¹η, and the trace is that of a gradient; the paper's rows answer about zero. A prior with unknowns of its own is
    refined every `refine` steps, if that is not zero.
    """

    gamma: float
    least: float = 1.0
    start: np.ndarray | None = None
    slowing: float = 0.0
    centred: bool = False
    refine: int = 0


class State(NamedTuple):
    """φ, the number of steps that were taken, and θ₀."""

    phi: Array
    step: Array
    prior: Array


def closing(plan: Plan, settings: Settings) -> float:
    """The share of any distance that the first step closes."""
    return settings.gamma * plan.sampling_prob / plan.num_rows


def query(site: Site, plan: Plan, settings: Settings) -> Query:
    """Ask rows for their sites.

    The trace is y = κφ − answer against x = φ: at a fixed point of SEP it is zero in the mean, and its slope is
    κ(I − ∂Σ sites/∂φ), a matrix that is not symmetric and far from κI where parameters are far from zero. Where rows
    answer about the cavity's mean m, the η part is y = κΛ(m − m*) against x = m instead, m* and Λ the posterior's: the
    trace of a gradient.

    Guarantee: one row moves an answer by at most the plan's clip norm, in the Euclidean norm of η and the upper
    triangle of Λ together, both about the same public origin. That φ is kept in bounds and the precision positive
    definite comes after the noise.
    """
    start = check(site, plan, settings)

    shape, means = site.shape, site.shape.means

    def ask(chance, state):
        del chance
        return cavity(shape, without_one(plan, state.phi, state.prior))

    def origin(question):
        return question.mean if settings.centred else jnp.zeros_like(question.mean)

    def update(state, question, answer):
        phi, rate, around = state.phi, plan.sampling_prob, origin(question)
        x, y = phi, rate * phi - answer
        if settings.centred:
            pull = rate * shape.about(state.prior, around) + answer
            x, y = x.at[:means].set(around.ravel()), y.at[:means].set(-pull[:means])
        slower = settings._replace(gamma=settings.gamma / (1 + settings.slowing * state.step))
        moved = advance(site, plan, slower, shape.about(phi, around), answer, shape.about(state.prior, around))
        phi, step = shape.about(moved, -around), state.step + 1
        return State(phi, step, refined(site, settings, state.prior, phi, step)), Point(
            state.phi, x, y, jnp.ones_like(y)
        )

    return Query(
        init=lambda key: State(jnp.asarray(start), jnp.zeros(()), jnp.asarray(site.first)),
        ask=ask,
        row_value=lambda question, row: shape.about(site.of_row(question, row), origin(question)),
        update=update,
        last=lambda state: state.phi,
        size=shape.size,
        columns=site.columns,
        settings=describe(site, settings),
    )


def without_one(plan: Plan, phi: Numbers, prior: Numbers) -> Array:
    """θ of the cavity: the prior and all average sites but one."""
    return jnp.asarray(prior) + (1 - 1 / plan.num_rows) * phi


def refined(site: Site, settings: Settings, prior: Array, phi: Array, step: Array) -> Array:
    """θ₀ after so many steps."""
    if not settings.refine:
        return prior
    assert site.refined is not None
    return jax.lax.cond(step % settings.refine == 0, site.refined, lambda phi, prior: prior, phi, prior)


def advance(site: Site, plan: Plan, settings: Settings, phi: Array, answer: Array, prior: Numbers) -> Array:
    """φ after a step: θ_f no longer than a row's site may be, and the precision lifted where it fell too low.

    φ, answer and prior are about the same origin.
    """
    moved = phi + settings.gamma / plan.num_rows * (answer - plan.sampling_prob * phi)
    moved = shortened(moved, plan.num_rows * plan.clip_norm)
    return site.shape.lifted(prior + moved, site.prior, settings.least) - prior


def paper_accounts(num_rows: int, passes: int, sigma: float, delta: float) -> dict[str, float]:
    """Three ε of the paper's schedule: `passes` over the rows in random order, noise of `sigma` sensitivities 2γC/N.

    "nominal" is what the paper charges, every step a Poisson sample of rate 1/N; "one row" what independent draws of
    one row cost under replace-one; "passes" what the algorithm as written costs, where every row is seen once a pass.

    >>> {name: round(value, 2) for name, value in paper_accounts(1000, 100, 1.36, 1e-5).items()}
    {'nominal': 1.01, 'one row': 2.35, 'passes': 57.61}
    """
    steps = passes * num_rows
    plans = {
        "nominal": Plan(num_rows, steps, 1 / num_rows, 1.0, sigma),
        "one row": Plan(num_rows, steps, 1 / num_rows, 1.0, 2 * sigma, sampling="one row"),
        "passes": Plan(num_rows, passes, 1.0, 1.0, sigma),
    }
    return {name: guarantee(plan, delta).epsilon for name, plan in plans.items()}


def describe(site: Site, settings: Settings) -> dict[str, Any]:
    """Plain values of the settings and the site, for the release."""
    start = None if settings.start is None else np.asarray(settings.start).tolist()
    shape = {**site.shape._asdict(), "prior_theta": site.prior.tolist()}
    return {"method": "sep", **settings._asdict(), "start": start, **shape, **site.description}


def check(site: Site, plan: Plan, settings: Settings) -> np.ndarray:
    """φ₀, once the settings were found to fit the site and the plan."""
    require(settings.gamma > 0, "gamma", settings.gamma, "be positive: 1 is the paper's, num_rows is SEP's own speed")
    share = closing(plan, settings)
    require(
        share < 2,
        "gamma",
        settings.gamma,
        f"stay below 2N/κ = {2 * plan.num_rows / plan.sampling_prob:g}, where steps diverge; N/κ is quickest",
    )
    require(
        0 <= settings.slowing <= share,
        "slowing",
        settings.slowing,
        f"lie between 0 and {share:.4g}, the share that the first step closes; there φ is the answers' plain average",
    )
    require(0 < settings.least < np.inf, "least", settings.least, "be positive: eigenvalues in units of the prior's")
    whole = isinstance(settings.refine, int) and settings.refine >= 0
    require(whole, "refine", settings.refine, "be a number of steps, or 0: never")
    require(
        site.refined is not None or not settings.refine, "refine", settings.refine, "be 0: this prior has no unknowns"
    )
    require(plan.norm_order == 2, "noise_kind", plan.noise_kind, "be gaussian: sites are clipped in the Euclidean norm")
    start = np.zeros(site.shape.size) if settings.start is None else np.asarray(settings.start, float)
    if start.shape != (site.shape.size,):
        raise SiteError(f"start has shape {start.shape}; these sites need ({site.shape.size},)")
    if not np.isfinite(start).all():
        raise SiteError("start must be finite")
    with jax.enable_x64(True):
        smallest = float(site.shape.smallest(without_one(plan, start, site.first), site.prior))
    if not smallest > 0:
        raise SiteError(
            f"the cavity at start is not positive definite (smallest eigenvalue {smallest:.3g} prior precisions)"
        )
    return start
