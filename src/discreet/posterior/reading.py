"""From a release to a posterior: which meaning of the answers is used, in one place."""

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from discreet.accounting import Guarantee
from discreet.methods.elbo import described_family
from discreet.model import Model
from discreet.posterior import averaging, clip_bias, diagnostics, exact, full, laplace, naive, nuts, onestep, score, sep
from discreet.posterior.sums import noise_changes
from discreet.posterior.trace import TraceError, tail
from discreet.posterior.trace_model import BurnIn, Solution, Subsampling, TracePrior, check_choices, trace_model
from discreet.posterior.types import Posterior, from_draws, through_q
from discreet.release import Release
from discreet.schema import Schema

Reading = Literal["noise-aware", "iterate average", "last iterate"]
Solver = Literal["full", "exact", "nuts", "laplace"]
SITES, SCORES, ONE_STEP = "sites", "scores", "one step"
DIAGONAL = {"exact": exact.solve, "nuts": nuts.solve, "laplace": laplace.solve}
_NO_DIAGONAL = (
    "solver='{}' has a diagonal curvature, and the scales of a {} family have none: keep the trace and use "
    "solver='full', which reads their covariance from the locations"
)
_MIXTURE = (
    "a mixture of {} parameters, read without a dense curvature: where this was measured (103 parameters, 5000 rows, "
    "ε = 1), 90 % intervals held 73 % of coefficients; take fewer components, or join levels, so that "
    f"{full.MOST_PARAMETERS} parameters or fewer are asked in one step"
)
FAR, LARGEST_R_HAT, LARGEST_DRIFT, NOT_ARRIVED, LEAST_EFFICIENCY = 3.0, 1.05, 1.0, 0.01, 0.02


class Options(NamedTuple):
    """How the trace model is set up and solved; see `trace_model` and `full.solve`.

    Without `solver`: "full" where the release kept what it needs, else "exact". Without `prior`: H.3's curvature, and
    the model's own prior for φ*; "full" has its own and takes none.
    """

    solver: Solver | None = None
    burn_in: BurnIn = 0.2
    prior: str | TracePrior | None = None
    subsampling: Subsampling = "learned"


DEFAULTS = Options()


def read(
    release: Release,
    model: Model,
    guarantee: Guarantee,
    how: Reading = "noise-aware",
    *,
    options: Options = DEFAULTS,
    schema: Schema | None = None,
    draws: int = 4000,
) -> Posterior:
    """The posterior that a release of `fit` stands for; costs no privacy, however often it is read.

    Noise-aware readings solve the trace model as `options` say. The iterate average is DPVIm's: converged tails, with
    the noise left in their means.
    """
    of_other = {"sep": (SITES, _of_sites), "score": (SCORES, _of_scores), "one-step": (ONE_STEP, _of_one_step)}
    family, meaning = of_other.get(release.settings.get("method", ""), (None, _of_gradients))
    check_reading(how, options, family or described_family(release.settings).name)
    method, z, said, facts = meaning(np.random.default_rng(), release, model, how, options, draws)
    known = family in (SCORES, ONE_STEP)  # the bias is taken out of these
    if schema is not None and model.simulate is not None and not known:
        bias = clip_bias.clip_bias(model, schema, release, z)
        said += clip_bias.warnings(bias, parameter_names(model))
        facts["clip_bias"] = [float(value) for value in bias]
    info = {
        "method": method,
        "model": _plain(model.description),
        "schema": None if schema is None else schema.to_dict(),
        "plan": release.plan.to_dict(),
        "before": [plan.to_dict() for plan in release.plans[:-1]],
        "reasons": list(release.settings.get("reasons", ())),
        "warnings": said,
        **facts,
    }
    return from_draws(z, model, guarantee, info=info, schema=schema, release=release)


def _plain(described: Mapping[str, Any]) -> dict[str, Any]:
    """A model's description, if files can hold it: what was paid for is not lost for the sake of a name."""
    try:
        return json.loads(json.dumps(dict(described)))
    except (TypeError, ValueError):
        return {}


def check_reading(how: str, options: Options = DEFAULTS, family: str = "mean-field") -> None:
    """Refuse a reading that is not one, or that the family has no use for, before anything is spent on it.

    `family` is the name of the variational family, or `SITES`, `SCORES` or `ONE_STEP`.
    """
    if how not in get_args(Reading):
        raise ValueError(f"reading={how!r} must be one of {', '.join(get_args(Reading))}")
    if options.solver not in (None, *get_args(Solver)):
        raise ValueError(f"solver={options.solver!r} must be one of {', '.join(get_args(Solver))}")
    if options.solver and how != "noise-aware":
        raise ValueError(f"solver={options.solver!r} is for noise-aware readings; the {how} solves nothing")
    if options.solver == "full" and options.prior is not None:
        raise ValueError("solver='full' has the public prior of the release and takes no prior of the trace model")
    if family == SITES and (how == "iterate average" or options.solver in DIAGONAL or options.prior is not None):
        asked = how if how == "iterate average" else f"solver={options.solver!r}, prior={options.prior!r}"
        raise ValueError(f"sites are read noise-aware by solver='full', or as their last iterate; not with {asked}")
    if family == SCORES and (how != "noise-aware" or options.solver in DIAGONAL or options.prior is not None):
        asked = how if how != "noise-aware" else f"solver={options.solver!r}, prior={options.prior!r}"
        raise ValueError(f"scores are read noise-aware by solver='full', which knows their curvature; not with {asked}")
    if family == ONE_STEP and (how == "iterate average" or options != DEFAULTS):
        raise ValueError("one step is read noise-aware, or as if it had no noise (last iterate); it has no options")
    if family == SCORES and options.burn_in == "converged":
        raise ValueError(
            "burn_in='converged': scores are read from where their steps have fallen; give a share of them"
        )
    if options.solver in DIAGONAL and family not in ("mean-field", SITES):
        raise ValueError(_NO_DIAGONAL.format(options.solver, family))
    check_choices(options.burn_in, options.prior or "H.3", options.subsampling)


def default_solver(release: Release, model: Model) -> Solver:
    """ "full" where the release kept what it needs and the model is small enough, else "exact"."""
    steps, weight = (np.asarray(part) for part in (release.blocks.steps, release.blocks.weight))
    kept = release.trace is not None or (release.cross is not None and not noise_changes(steps, weight))
    return "full" if kept and model.dim <= full.MOST_PARAMETERS else "exact"


def parameter_names(model: Model) -> list[str]:
    """A name for each coordinate of z."""
    names = model.coordinates or model.labels.get("coefficients", ())
    return [str(names[place]) if place < len(names) else f"z[{place}]" for place in range(model.dim)]


def naive_posterior(posterior: Posterior) -> Posterior:
    """The same release read as if what it told had no noise: for comparison, not for use."""
    if posterior.release is None or posterior.model is None:
        raise ValueError("this posterior was loaded without its release: there is no last iterate to read")
    draws = posterior.z.shape[0] * posterior.z.shape[1]
    return read(
        posterior.release, posterior.model, posterior.guarantee, "last iterate", schema=posterior.schema, draws=draws
    )


def far_from_prior(release: Release, model: Model) -> list[str]:
    """A warning for each parameter whose steps settled more than `FAR` prior sds from the prior's centre.

    There the prior and the table disagree, and where privacy leaves little of the table, the prior wins.
    """
    return _far(tail(release).mean_x[: model.dim], public_prior(release), model)


def _far(settled: np.ndarray, prior: full.Prior, model: Model) -> list[str]:
    distance, names = np.abs(settled - prior.mean) / prior.sd, parameter_names(model)
    return [
        f"{names[place]}: the steps settled {distance[place]:.1f} prior sds from the prior's centre, so its prior is "
        "too narrow for this table and its interval may miss; widen the prior"
        for place in np.flatnonzero(distance > FAR)
    ]


def of_mixture(model: Model, solver: str | None = None) -> list[str]:
    """A warning where a mixture is read from gradients without a dense curvature; `solver` is None for the average."""
    if solver == "full" or model.description.get("family") != "mixture":
        return []
    return [_MIXTURE.format(model.dim)]


def public_prior(release: Release) -> full.Prior:
    """What the release says was known of each parameter before any row was asked."""
    if "prior" not in release.settings:
        raise ValueError("this release does not say what its prior was: read it with posterior.full or posterior.exact")
    known: dict[str, Any] = {name: np.asarray(values) for name, values in release.settings["prior"].items()}
    return full.Prior(**known)


def around_locations(rng: np.random.Generator, found: Solution, prior_sd: np.ndarray) -> np.ndarray:
    """Draws of z from draws of its location and curvature: at a mean-field optimum sd = a^−½, and never above the
    prior's.
    """
    sd = np.minimum(found.curvature**-0.5, prior_sd)
    return found.optimum + sd * rng.standard_normal(sd.shape)


class _Meaning(NamedTuple):
    """What a release was found to say: by which method, draws of z, warnings, and facts for the posterior's info."""

    method: str
    z: np.ndarray
    said: list[str]
    facts: dict[str, Any]


def _of_gradients(rng, release: Release, model: Model, how: Reading, options: Options, draws: int) -> _Meaning:
    family, said = described_family(release.settings), far_from_prior(release, model)
    if how == "last iterate":
        return _Meaning(how, through_q(rng, naive.last_iterate(release, draws), family), said, {})
    if how == "iterate average":
        window = averaging.average(release)
        z = through_q(rng, averaging.noise_aware(rng, release, draws, window=window), family)
        return _Meaning(how, z, of_mixture(model) + said + averaging.unsettled(window), {})
    options = options._replace(solver=options.solver or default_solver(release, model))
    method, z, report = _noise_aware(rng, release, model, options, draws)
    found = diagnostics.diagnose(release, among=model.dim)
    said += diagnostics.warnings(found, parameter_names(model), options.solver == "full") + of_solver(report)
    facts = {"diagnostics": diagnostics.records(found, parameter_names(model))}
    return _Meaning(method, z, of_mixture(model, options.solver) + said, facts)


def _of_sites(rng, release: Release, model: Model, how: Reading, options: Options, draws: int) -> _Meaning:
    prior = public_prior(release)
    if how == "last iterate":
        method, z, said = f"DP-SEP, {how}", sep.last_iterate(rng, release, draws), []
    else:
        read_as = {"burn_in": options.burn_in, "subsampling": options.subsampling}
        found = sep.solve(rng, release, draws, prior=prior, **read_as)
        method, z, said = "DP-SEP, noise-aware", found.z, of_solver(found.report)
    return _Meaning(method, z, said + _far(z.mean(0), prior, model), {})


def _of_scores(rng, release: Release, model: Model, how: Reading, options: Options, draws: int) -> _Meaning:
    del how
    prior, burn_in = public_prior(release), options.burn_in
    given = None if burn_in == DEFAULTS.burn_in or isinstance(burn_in, str) else burn_in
    found = score.solve(rng, release, model, prior, draws, burn_in=given, subsampling=options.subsampling)
    return _Meaning("score, noise-aware", found.z, of_solver(found.report) + _far(found.z.mean(0), prior, model), {})


def _of_one_step(rng, release: Release, model: Model, how: Reading, options: Options, draws: int) -> _Meaning:
    del options
    found = onestep.solve(rng, release, model, draws, noisy=how == "noise-aware")
    said = []
    if found.report["efficiency"] < LEAST_EFFICIENCY:
        said.append(
            f"draws of the posterior are rough (efficiency {found.report['efficiency']:.2g}): the steps ended "
            f"{found.report['far']:.1f} of its sds from it; a larger ε or more rows would bring them closer"
        )
    facts = {"one step": {name: float(value) for name, value in found.report.items()}}
    return _Meaning(f"one step, {how}", found.z, said + _far(found.z.mean(0), public_prior(release), model), facts)


def _noise_aware(rng, release: Release, model: Model, options: Options, draws: int) -> tuple[str, np.ndarray, Any]:
    """The method's name, draws of z, and the solver's report."""
    if options.solver == "full":
        found = full.solve(
            rng, release, public_prior(release), draws, burn_in=options.burn_in, subsampling=options.subsampling
        )
        return "noise-aware, dense curvature", found.z, found.report
    return _diagonal(rng, release, model, options, draws)


def _diagonal(rng, release: Release, model: Model, options: Options, draws: int) -> tuple[str, np.ndarray, Any]:
    """The same with a diagonal curvature.

    Where rows answered about locations alone (aligned), no trace speaks of the scales: at a mean-field optimum they are
    known all the same, because there 1/sd² is the curvature of the location.
    """
    family, prior, solver = described_family(release.settings), public_prior(release), options.solver or "exact"
    if family.name != "mean-field":
        raise TraceError(_NO_DIAGONAL.format(solver, family.name))
    answered = release.blocks.mean_x.shape[-1]
    spread = np.ones(answered)
    spread[: model.dim] = prior.sd
    problem = trace_model(
        release,
        burn_in=options.burn_in,
        prior=options.prior or "H.3",
        centre=np.asarray(release.settings["start"])[:answered],
        centre_sd=spread,
        subsampling=options.subsampling,
    )
    found = DIAGONAL[solver](rng, problem, draws)
    name = f"noise-aware, diagonal curvature{'' if solver == 'exact' else f' ({solver})'}"
    if answered > model.dim:
        return name, through_q(rng, found.optimum, family), found.report
    return name, around_locations(rng, found, prior.sd), found.report


def of_solver(report: Any) -> list[str]:
    """What of a solver's report should be said aloud."""
    said = []
    if report.get("contradiction", 1.0) < diagnostics.FALSE_ALARM:
        said.append(
            "the curvature in the trace contradicts what was declared of it (p < .001): the covariates follow another "
            "law, or clipping is stronger than it knows; declare less (no curvature_cov)"
        )
    if report.get("arrival", 1.0) < NOT_ARRIVED:
        said.append(
            "the iterates were declared to have arrived, but the answers still pull at them (p < .01): some direction "
            "is slower than was thought, as with correlated covariates; plan more steps, or read without arrived"
        )
    if report.get("r_hat", 1.0) > LARGEST_R_HAT:
        said.append(
            f"the solver's chains disagree (R̂ = {report['r_hat']:.2f}): its intervals are rough; use solver='exact'"
        )
    if report.get("drift", 0.0) > LARGEST_DRIFT:
        said.append(f"the solver's chains had not settled (drift {report['drift']:.1f} sds): its intervals are rough")
    return said
