"""The trace model by NUTS (NumPyro), as in NA-DPVI; on sufficient statistics, so a gradient does not see the trace.

`exact` solves the same model without chains; this checks it, and serves models that have no grid.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from discreet.posterior.trace_model import Solution, TraceModel, coordinates, flattened, place, potential, solution

CHAINS, WARM_UP, KEPT = 4, 1000, 4000


def solve(
    rng: np.random.Generator,
    model: TraceModel,
    draws: int = 4000,
    *,
    chains: int = CHAINS,
    warm_up: int = WARM_UP,
    kept: int = KEPT,
) -> Solution:
    """`draws` of the `chains` × `kept` draws, shape (…, draws, d), with the worst R̂ and effective number of draws.

    Coordinates are independent, but share one step size and one tree, as in the paper.
    """
    if draws > chains * kept:
        raise ValueError(f"draws={draws} exceeds the {chains} chains × {kept} draws that are kept: keep more")
    shape = model.moments.xx.shape
    with jax.enable_x64(True):
        found, report = _chains(int(rng.integers(2**31)), flattened(model), chains, warm_up, kept)
    chosen = rng.choice(chains * kept, draws, replace=False)
    parts = (part[chosen].reshape(draws, *shape) for part in found)
    return solution(parts, report)


def _chains(seed: int, model: TraceModel, chains: int, warm_up: int, kept: int):
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
    from numpyro.infer import MCMC, NUTS

    sampler = MCMC(
        NUTS(potential_fn=partial(potential, model)),
        num_warmup=warm_up,
        num_samples=kept,
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    start = {name: jnp.tile(part, (chains, 1)) for name, part in coordinates(model).items()}
    sampler.run(jax.random.key(seed), init_params=start)
    at = sampler.get_samples(group_by_chain=True)
    places = [np.asarray(part) for part in jax.vmap(jax.vmap(partial(place, model)))(at)[:3]]
    watched = places if model.learned else places[:2]
    report = {
        "chains": chains,
        "r_hat": float(max(np.max(split_gelman_rubin(part)) for part in watched)),
        "effective_draws": float(min(np.min(effective_sample_size(part)) for part in watched)),
    }
    return [part.reshape(chains * kept, -1) for part in places], report
