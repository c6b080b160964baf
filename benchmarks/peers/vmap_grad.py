"""Plain JAX: vmap(grad) for each row, clip, sum, noise from `jax.random`; all steps in one scan.

Poisson batches padded to five standard deviations above the mean. Batches, draws and noise of all steps are made ahead,
within the timed program.
"""

import sys
from functools import cache

from _common import CLIP_NORM, FEATURES, NOISE_MULTIPLIER, seconds, serve, starting, table

FORM = sys.argv[1]

with starting("vmap_grad"):
    import jax
    import jax.numpy as jnp
    from _in_jax import FORMS, chances, moved, start


def clipped_sum(phi, features, labels, present, eta):
    """The sum of the rows' gradients, each clipped to CLIP_NORM; rows that are not present add zero."""
    gradients = jax.vmap(jax.grad(FORMS[FORM].row_loss), (None, 0, 0, None))(phi, features, labels, eta)
    norms = jnp.sqrt(sum(jnp.sum(part**2, -1) for part in gradients))
    weights = present * jnp.minimum(1, CLIP_NORM / norms)
    return tuple(weights @ part for part in gradients)


@cache
def prepared(rate, draws, steps):
    """A function of a seed that returns φ after the steps."""
    features, labels = map(jnp.asarray, table())

    @jax.jit
    def run(key, features, labels):
        def step(phi, chance):
            (indices, present, eta), noise = chance
            total = clipped_sum(phi, features[indices], labels[indices], present, eta)
            answer = jax.tree.map(lambda part, of_part: part + of_part, total, tuple(noise))
            return moved(phi, answer, eta, rate), None

        for_chances, for_noise = jax.random.split(key)
        noise = CLIP_NORM * NOISE_MULTIPLIER * jax.random.normal(for_noise, (steps, 2, FEATURES))
        return jax.lax.scan(step, start(), (chances(FORMS[FORM], for_chances, rate, draws, steps), noise))[0]

    return lambda seed: jax.block_until_ready(run(jax.random.key(seed), features, labels))


def time_steps(rate, draws, steps):
    """Seconds of the steps."""
    return seconds(prepared(rate, draws, steps))


if __name__ == "__main__":
    serve(f"vmap_grad {FORM}", ["jax", "jaxlib", "numpy"], time_steps)
