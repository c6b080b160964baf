"""JAX Privacy as its documentation has it: its batch selection on the host, a loop in Python, one compiled step.

Poisson batches from `CyclicPoissonSampling`, truncated and padded at five standard deviations above the mean. Rows stay
on the device and are picked there, twice as fast as picking them on the host. `nan_safe` stays on, as its guarantee
asks.
"""

import sys
from functools import cache, partial

from _common import CLIP_NORM, FEATURES, NOISE_MULTIPLIER, ROWS, batch_limit, seconds, serve, starting, table

FORM = sys.argv[1]

with starting("jax_privacy_loop"):
    import jax
    import jax.numpy as jnp
    from _in_jax import FORMS, moved, start
    from jax_privacy import clipped_grad
    from jax_privacy.batch_selection import CyclicPoissonSampling, pad_to_multiple_of
    from jax_privacy.noise_addition import gaussian_privatizer

    privatizer = partial(gaussian_privatizer, stddev=CLIP_NORM * NOISE_MULTIPLIER)


@cache
def compiled(rate, draws):
    """One step: from (φ, memory of the noise, key), the table and a padded batch of indices to the next state."""
    clipped = clipped_grad(FORMS[FORM].row_loss, l2_clip_norm=CLIP_NORM, batch_argnums=(1, 2), keep_batch_dim=False)
    private = privatizer(prng_key=0)

    @jax.jit
    def step(state, features, labels, indices):
        phi, memory, key = state
        key, for_eta = jax.random.split(key)
        eta = jax.random.normal(for_eta, (draws, FEATURES))
        total = clipped(phi, features[indices], labels[indices], eta, is_padding_example=indices < 0)
        answer, memory = private.update(total, memory)
        return moved(phi, answer, eta, rate), memory, key

    return step


@cache
def prepared(rate, draws, steps):
    """A function of a seed that returns φ after the steps."""
    features, labels = map(jnp.asarray, table())
    step, limit = compiled(rate, draws), batch_limit(rate)
    sampling = CyclicPoissonSampling(rate, steps, truncated_batch_size=limit)

    def run(seed):
        for_noise, key = jax.random.split(jax.random.key(seed))
        state = start(), privatizer(prng_key=for_noise).init(start()), key
        for indices in sampling.batch_iterator(ROWS, seed):
            state = step(state, features, labels, pad_to_multiple_of(indices, limit))
        return jax.block_until_ready(state)[0]

    return run


def time_steps(rate, draws, steps):
    """Seconds of the steps."""
    return seconds(prepared(rate, draws, steps))


if __name__ == "__main__":
    serve(f"jax_privacy_loop {FORM}", ["jax-privacy", "jax", "jaxlib", "numpy"], time_steps)
