"""JAX Privacy's `clipped_grad` and Gaussian privatizer, all steps in one scan.

Its batch selection runs on the host, so batches are drawn as in vmap_grad: Poisson, padded, made ahead within the timed
program; padding is passed as `is_padding_example`. `nan_safe` stays on, as its guarantee asks.
"""

import sys
from functools import cache

from _common import CLIP_NORM, NOISE_MULTIPLIER, seconds, serve, starting, table

FORM = sys.argv[1]

with starting("jax_privacy_scan"):
    import jax
    import jax.numpy as jnp
    from _in_jax import FORMS, chances, moved, start
    from jax_privacy import clipped_grad
    from jax_privacy.noise_addition import gaussian_privatizer


@cache
def prepared(rate, draws, steps):
    """A function of a seed that returns φ after the steps."""
    features, labels = map(jnp.asarray, table())
    clipped = clipped_grad(FORMS[FORM].row_loss, l2_clip_norm=CLIP_NORM, batch_argnums=(1, 2), keep_batch_dim=False)

    @jax.jit
    def run(key, features, labels):
        for_chances, for_noise = jax.random.split(key)
        privatizer = gaussian_privatizer(stddev=CLIP_NORM * NOISE_MULTIPLIER, prng_key=for_noise)

        def step(state, chance):
            (phi, memory), (indices, present, eta) = state, chance
            total = clipped(phi, features[indices], labels[indices], eta, is_padding_example=~present)
            answer, memory = privatizer.update(total, memory)
            return (moved(phi, answer, eta, rate), memory), None

        state = start(), privatizer.init(start())
        return jax.lax.scan(step, state, chances(FORMS[FORM], for_chances, rate, draws, steps))[0][0]

    return lambda seed: jax.block_until_ready(run(jax.random.key(seed), features, labels))


def time_steps(rate, draws, steps):
    """Seconds of the steps."""
    return seconds(prepared(rate, draws, steps))


if __name__ == "__main__":
    serve(f"jax_privacy_scan {FORM}", ["jax-privacy", "jax", "jaxlib", "numpy"], time_steps)
