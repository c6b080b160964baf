"""The trace model, one straight line for each coordinate: y_t = κa(x_t − φ*) + noise.

The noise of step t has variance scale_t²·w: the answer's own noise w, undone by the method's public scale, which may
change along the trace. w is what the plan added and, where rows are sampled, what sampling adds to it (Σ_sub, in units
of the answer). Every solver with a diagonal curvature solves this model and sees nothing but it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from discreet.model import softplus_inverse
from discreet.posterior import averaging
from discreet.posterior.trace import Moments, after, check_release, halves, moments
from discreet.query import Numbers
from discreet.release import Release

WEAK = 10.0
BurnIn = float | Literal["converged"]
Subsampling = float | np.ndarray | Literal["none", "learned"]


class TracePrior(NamedTuple):
    """Priors of the trace model: v ~ N(curvature_mean, curvature_sd²), a = softplus(v); φ* ~ N(centre, centre_sd²)."""

    curvature_mean: np.ndarray
    curvature_sd: np.ndarray
    centre: np.ndarray
    centre_sd: np.ndarray


class TraceModel(NamedTuple):
    """What a solver is given; arrays have shape (…, d).

    rate      κ
    known     variance of an answer that is known: the plan's noise, and Σ_sub where it was declared
    learned   whether more variance may lie on top, with density ∝ 1/w for w above `known`
    variance  the best guess of w: the variance around the fitted line where it is learned
    """

    moments: Moments
    rate: float
    known: np.ndarray
    learned: bool
    variance: np.ndarray
    prior: TracePrior


class Solution(NamedTuple):
    """Draws (…, draws, d) of the optimum φ*, of the curvature a at it and of the variance w; `report` says how well."""

    optimum: np.ndarray
    curvature: np.ndarray
    variance: np.ndarray
    report: Mapping[str, Any]


def solution(parts: Iterable[np.ndarray], report: Mapping[str, Any]) -> Solution:
    """A solution from draws of φ*, a and w with the axis of draws in front."""
    optimum, curvature, variance = (np.moveaxis(part, 0, -2) for part in parts)
    return Solution(optimum, curvature, variance, report)


def trace_model(
    release: Release,
    *,
    burn_in: BurnIn = 0.2,
    prior: str | TracePrior = "H.3",
    centre: np.ndarray | None = None,
    centre_sd: float | np.ndarray | None = None,
    subsampling: Subsampling = "learned",
) -> TraceModel:
    """The model of a release's trace.

    `burn_in` is the share of steps left out, or "converged": each coordinate's own window, by the test of iterate
    averaging. `prior` is a name from `PRIORS`; `centre` and `centre_sd` replace its prior of φ* where the public knows
    better. `subsampling` is Σ_sub: "none", a known sd in units of the answer, or "learned" from the residuals.
    """
    check_release(release)
    check_choices(burn_in, prior, subsampling)
    blocks = release.blocks
    inside = averaging.inside(release) if burn_in == "converged" else after(blocks, burn_in)
    source, used = halves(blocks, inside) if prior == "cross-fitted" else (inside, inside)
    known, learned = noise_of(release, subsampling)
    rate, seen = release.plan.sampling_prob, moments(blocks, used)
    known = np.broadcast_to(known, seen.xx.shape)
    variance = residual_variance(seen, known) if learned else known
    if isinstance(prior, str):
        early = seen if source is used else moments(blocks, source)
        prior = PRIORS[prior](early, rate, residual_variance(early, known) if learned else known)
    if centre is not None:
        prior = prior._replace(centre=np.asarray(centre, float))
    if centre_sd is not None:
        prior = prior._replace(centre_sd=np.asarray(centre_sd, float))
    prior = TracePrior(*(np.broadcast_to(part, seen.xx.shape) for part in prior))
    _check_prior(prior)
    return TraceModel(seen, rate, known, learned, variance, prior)


def check_choices(burn_in: BurnIn, prior: str | TracePrior, subsampling: Subsampling) -> None:
    """Refuse choices that no release could be read with."""
    if burn_in != "converged" and not (isinstance(burn_in, int | float) and 0 <= burn_in < 1):
        raise ValueError(f"burn_in={burn_in!r} must lie in [0, 1), or be 'converged'")
    if isinstance(prior, str) and prior not in PRIORS:
        raise ValueError(f"prior={prior!r} must be one of {', '.join(PRIORS)}")
    if isinstance(subsampling, str) and subsampling not in ("none", "learned"):
        raise ValueError(f"subsampling={subsampling!r} must be none, learned or an sd in units of the answer")


def residual_variance(seen: Moments, known: np.ndarray | float) -> np.ndarray:
    """Variance of an answer around the fitted line, or what is known of it where that is more."""
    return np.maximum(known, (seen.yy - seen.xy**2 / seen.xx) / np.maximum(seen.steps - 2, 1))


def estimate(seen: Moments, rate: float, variance) -> tuple[np.ndarray, np.ndarray]:
    """Least squares estimate of the curvature and its sd (A16)."""
    return seen.xy / (rate * seen.xx), np.sqrt(variance / seen.xx) / rate


def log_joint(model: TraceModel, v: Numbers, phi: Numbers, variance: Numbers) -> Numbers:
    """log p(v, φ*, trace | w) of each coordinate, up to a constant."""
    seen, prior = model.moments, model.prior
    slope = model.rate * jnp.logaddexp(0.0, v)
    rss = seen.yy - 2 * slope * seen.xy + slope**2 * seen.xx
    offset = seen.mean_y - slope * (seen.mean_x - phi)
    fit = -(rss + seen.weight * offset**2) / (2 * variance) - 0.5 * seen.steps * jnp.log(variance)
    of_v, of_phi = (v - prior.curvature_mean) / prior.curvature_sd, (phi - prior.centre) / prior.centre_sd
    return fit - 0.5 * (of_v**2 + of_phi**2)


def optimum_given(model: TraceModel, a, variance) -> tuple[Any, Any]:
    """Mean and precision of φ* given curvature and variance."""
    seen, prior = model.moments, model.prior
    slope = model.rate * a
    information = seen.weight * slope / variance
    precision = prior.centre_sd**-2.0 + information * slope
    return (
        prior.centre / prior.centre_sd**2 + information * (slope * seen.mean_x - seen.mean_y)
    ) / precision, precision


def coordinates(model: TraceModel) -> dict[str, np.ndarray]:
    """The unknowns of `potential`, each (…, d), at the prior's means and the best guess of w."""
    start = {"v": model.prior.curvature_mean, "shift": np.zeros_like(model.known)}
    return start | {"excess": np.zeros_like(model.known)} if model.learned else start


def place(model: TraceModel, at: Mapping[str, Any]) -> tuple[Any, Any, Any, Any]:
    """φ*, a and w at these coordinates, and the log Jacobian of the way there, from v.

    φ* is `shift` sds from where a and w would have it: a small curvature leaves φ* anywhere, and in these coordinates
    that funnel is straight. w = known + guess·e^excess.
    """
    a, variance, log_jacobian = jnp.logaddexp(0.0, at["v"]), model.known, 0.0
    if model.learned:
        added = model.variance * jnp.exp(at["excess"])
        variance, log_jacobian = model.known + added, jnp.log(added)
    mean, precision = optimum_given(model, a, variance)
    return mean + at["shift"] / jnp.sqrt(precision), a, variance, log_jacobian - 0.5 * jnp.log(precision)


def potential(model: TraceModel, at: Mapping[str, Any]) -> Any:
    """−log p(v, φ*, w | trace) in these coordinates, summed over them, up to a constant."""
    optimum, _, variance, log_jacobian = place(model, at)
    log_prior = -jnp.log(variance) if model.learned else 0.0
    return -(log_joint(model, at["v"], optimum, variance) + log_prior + log_jacobian).sum()


def flattened(model: TraceModel) -> TraceModel:
    """The same with all leading axes and coordinates in one: they are independent."""
    shape = model.moments.xx.shape

    def flat(part):
        return np.broadcast_to(part, shape).reshape(-1)

    return model._replace(
        moments=Moments(*map(flat, model.moments)),
        known=flat(model.known),
        variance=flat(model.variance),
        prior=TracePrior(*map(flat, model.prior)),
    )


def coordinate(model: TraceModel, spot: int) -> TraceModel:
    """One coordinate of a flattened model."""
    return model._replace(
        moments=Moments(*(part[spot] for part in model.moments)),
        known=model.known[spot],
        variance=model.variance[spot],
        prior=TracePrior(*(part[spot] for part in model.prior)),
    )


def _h3(seen: Moments, rate: float, variance) -> TracePrior:
    """NA-DPVI's priors, with v centred at softplus⁻¹(â) and its delta-method sd; they use the trace twice."""
    curvature, sd = estimate(seen, rate, variance)
    curvature = np.maximum(np.abs(curvature), 1e-3 * sd)
    return TracePrior(softplus_inverse(curvature), sd / -np.expm1(-curvature), seen.mean_x, np.ones(1))


def _paper(seen: Moments, rate: float, variance) -> TracePrior:
    """The same as printed: v centred at the estimate of a, which is biased for a below 3."""
    curvature, sd = estimate(seen, rate, variance)
    return TracePrior(np.abs(curvature), sd, seen.mean_x, np.ones(1))


def _weak(seen: Moments, rate: float, variance) -> TracePrior:
    """`WEAK` times as wide as what is to be found: only orders of magnitude are taken from the trace."""
    curvature, sd = estimate(seen, rate, variance)
    return TracePrior(np.zeros(1), WEAK * (np.abs(curvature) + sd), seen.mean_x, np.full(1, WEAK))


PRIORS: dict[str, Callable[[Moments, float, Any], TracePrior]] = {
    "H.3": _h3,
    "paper": _paper,
    "cross-fitted": _h3,  # from the first half; the likelihood is of the second
    "weak": _weak,
}


def noise_of(release: Release, subsampling: Subsampling) -> tuple[Any, bool]:
    """The known variance of an answer, and whether there may be more."""
    plan = release.plan.noise_std**2
    if isinstance(subsampling, str):
        if subsampling == "none" and plan == 0:
            raise ValueError("subsampling='none' without noise leaves no variance at all: use 'learned'")
        return plan, subsampling == "learned"
    sd = np.asarray(subsampling, float)
    if not (np.isfinite(sd).all() and (sd >= 0).all() and (plan + sd**2 > 0).all()):
        raise ValueError(
            f"subsampling={subsampling} must be a finite sd that is not negative, and positive without noise"
        )
    return plan + sd**2, False


def _check_prior(prior: TracePrior) -> None:
    for name, value in prior._asdict().items():
        bad = ~np.isfinite(value) | ((value <= 0) & name.endswith("_sd"))
        if bad.any():
            place = tuple(np.argwhere(bad)[0])
            raise ValueError(f"the prior's {name}{list(place)}={value[place]} must be finite, and positive if an sd")
