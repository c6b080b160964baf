"""From a release to a posterior: which meaning of the answers is used, in one place."""

from typing import Literal

import numpy as np

from discreet.accounting import Guarantee
from discreet.model import Model
from discreet.posterior import dense, exact, naive
from discreet.posterior.trace import tail
from discreet.posterior.types import Posterior, from_draws, through_q
from discreet.release import Release
from discreet.schema import Schema

Reading = Literal["noise-aware", "last iterate"]
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

    Noise-aware readings use a dense curvature where the release kept its trace, else a diagonal one.
    """
    rng = np.random.default_rng()
    if how == "last iterate":
        method, z = how, through_q(rng, naive.last_iterate(release, draws))
    elif release.trace is not None:
        method, z = "noise-aware, dense curvature", dense.noise_aware(rng, release, public_prior(release), draws).z
    else:
        start, spread = np.asarray(release.settings["start"]), np.ones(2 * model.dim)
        spread[: model.dim] = public_prior(release).sd
        phi = exact.noise_aware(rng, release, draws, centre=start, centre_sd=spread)
        method, z = "noise-aware, diagonal curvature", through_q(rng, phi)
    info = {
        "method": method,
        "plan": release.plan.to_dict(),
        "reasons": list(release.settings.get("reasons", ())),
        "warnings": far_from_prior(release, model),
    }
    return from_draws(z, model, guarantee, info=info, schema=schema, release=release)


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
