"""The composition root: the one place where the private and the public half meet."""

from collections.abc import Callable, Iterable

import numpy as np

from discreet import planner
from discreet.accounting import guarantee
from discreet.mechanism import loop
from discreet.mechanism import noise as streams
from discreet.mechanism.rows import Rows, encode
from discreet.methods import elbo
from discreet.model import Model
from discreet.posterior import dense, exact, naive
from discreet.posterior.types import Posterior, from_draws, through_q

simulated = streams.simulated

__all__ = ["Rows", "encode", "fit", "naive_posterior", "simulated"]


def fit(
    model: Model,
    rows: Rows,
    *,
    epsilon: float,
    delta: float,
    choice: planner.Choice | None = None,
    noise: streams.Noise | None = None,
    draws: int = 4000,
    progress: Callable[[range], Iterable[int]] = iter,
) -> Posterior:
    """The noise-aware posterior of `model` given `rows`, at most (epsilon, delta) under zero-out adjacency.

    Everything that is not given is chosen in public by `planner.choose`. Without `noise` the stream is secure; a
    simulated stream is for studies, and the posterior's guarantee then says that it is not private.
    """
    choice = choice or planner.choose(model, rows.schema, rows.num_rows, epsilon, delta)
    noise = noise or streams.secure()
    paid = guarantee(choice.plan, delta, noise.kind)
    if paid.epsilon > epsilon:
        raise ValueError(f"this plan costs ε = {paid.epsilon:.4g}, more than epsilon={epsilon}: calibrate it first")
    query = elbo.query(model, choice.plan, choice.settings)
    dense_enough = model.dim <= dense.MOST_PARAMETERS
    release = loop.run(noise, choice.plan, query, rows, keep_trace=dense_enough, progress=progress)
    rng = np.random.default_rng()
    if dense_enough:
        z = dense.noise_aware(rng, release, choice.prior, draws).z
    else:
        spread = np.concatenate([choice.prior.sd, np.ones(model.dim)])
        z = through_q(rng, exact.noise_aware(rng, release, draws, centre=choice.settings.start, centre_sd=spread))
    method = f"noise-aware, {'dense' if dense_enough else 'diagonal'} curvature"
    info = {"method": method, "plan": choice.plan.to_dict(), "reasons": list(choice.reasons)}
    return from_draws(z, model, paid, info=info, schema=rows.schema, release=release)


def naive_posterior(posterior: Posterior) -> Posterior:
    """The same release read as if its last iterate had no noise: for comparison, not for use."""
    if posterior.release is None or posterior.model is None:
        raise ValueError("this posterior was loaded without its release: there is no last iterate to read")
    phi = naive.last_iterate(posterior.release, posterior.z.shape[0] * posterior.z.shape[1])
    info = {**posterior.info, "method": "last iterate"}
    z = through_q(np.random.default_rng(), phi)
    return from_draws(
        z, posterior.model, posterior.guarantee, info=info, schema=posterior.schema, release=posterior.release
    )
