"""From a release to a posterior: which meaning of the answers is used, in one place."""

from typing import Literal, get_args

import numpy as np

from discreet.accounting import Guarantee
from discreet.methods.elbo import described_family
from discreet.model import Model
from discreet.posterior import averaging, dense, exact, naive
from discreet.posterior.trace import tail, tail_mean
from discreet.posterior.types import Posterior, from_draws, through_q
from discreet.release import Release
from discreet.schema import Schema

Reading = Literal["noise-aware", "iterate average", "last iterate"]
FAR = 3.0


def read(
    release: Release,
    model: Model,
    guarantee: Guarantee,
    how: Reading = "noise-aware",
    *,
    schema: Schema | None = None,
    draws: int = 4000,
) -> Posterior:
    """The posterior that a release of `fit` stands for; costs no privacy, however often it is read.

    Noise-aware readings use a dense curvature where the release kept its trace and its noise is the same at every step,
    else a diagonal one. The iterate average is DPVIm's: converged tails, with the noise left in their means.
    """
    check_reading(how)
    rng = np.random.default_rng()
    family, warnings = described_family(release.settings), far_from_prior(release, model)
    if how == "last iterate":
        method, z = how, through_q(rng, naive.last_iterate(release, draws), family)
    elif how == "iterate average":
        window = averaging.average(release)
        method, z = how, through_q(rng, averaging.noise_aware(rng, release, draws, window=window), family)
        warnings += averaging.unsettled(window)
    elif release.trace is not None and not np.ptp(release.trace.scale[:, : model.dim], axis=0).any():
        method, z = "noise-aware, dense curvature", dense.noise_aware(rng, release, public_prior(release), draws).z
    else:
        method, z = "noise-aware, diagonal curvature", through_q(rng, _diagonal(rng, release, model, draws), family)
    info = {
        "method": method,
        "plan": release.plan.to_dict(),
        "reasons": list(release.settings.get("reasons", ())),
        "warnings": warnings,
    }
    return from_draws(z, model, guarantee, info=info, schema=schema, release=release)


def check_reading(how: str) -> None:
    """Refuse a reading that is not one, before anything is spent on it."""
    if how not in get_args(Reading):
        raise ValueError(f"reading={how!r} must be one of {', '.join(get_args(Reading))}")


def _diagonal(rng: np.random.Generator, release: Release, model: Model, draws: int) -> np.ndarray:
    """Draws of φ* with a diagonal curvature; coordinates that rows were not asked about stand at their tail mean."""
    answered = release.blocks.mean_x.shape[-1]
    spread = np.ones(answered)
    spread[: model.dim] = public_prior(release).sd
    phi = exact.noise_aware(
        rng, release, draws, centre=np.asarray(release.settings["start"])[:answered], centre_sd=spread
    )
    rest = tail_mean(release)[answered:]
    return np.concatenate([phi, np.broadcast_to(rest, (draws, len(rest)))], -1)


def naive_posterior(posterior: Posterior) -> Posterior:
    """The same release read as if its last iterate had no noise: for comparison, not for use."""
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
    prior = public_prior(release)
    settled = tail(release).mean_x[: model.dim]
    distance = np.abs(settled - prior.mean) / prior.sd
    names = model.labels.get("coefficients", ())
    return [
        f"{names[place] if place < len(names) else f'z[{place}]'}: the steps settled {distance[place]:.1f} prior sds "
        "from the prior's centre, so its prior is too narrow for this table and its interval may miss; widen the prior"
        for place in np.flatnonzero(distance > FAR)
    ]


def public_prior(release: Release) -> dense.Prior:
    """What the release says was known of each parameter before any row was asked."""
    if "prior" not in release.settings:
        raise ValueError(
            "this release does not say what its prior was: read it with posterior.dense or posterior.exact"
        )
    return dense.Prior(**{name: np.asarray(values) for name, values in release.settings["prior"].items()})
