"""d3p's DPSVI: NumPyro's SVI with per-example clipping and noise from a ChaCha stream.

It departs from the problem where its interface does. Every row has draws of its own (K particles of Trace_ELBO), not
shared ones. A row's clipped gradient includes its share 1/ROWS of prior and entropy. Batches have a fixed size, without
replacement, by d3p's own subsampling: it has no Poisson sampling.
"""

from functools import cache

from _common import (
    CLIP_NORM,
    FEATURES,
    LEARNING_RATE,
    NOISE_MULTIPLIER,
    ROWS,
    START_MEAN,
    START_SCALE,
    seconds,
    serve,
    starting,
    table,
)

with starting("d3p_svi"):
    import d3p.random
    import jax
    import jax.numpy as jnp
    import numpyro
    from d3p.minibatch import subsample_batchify_data
    from d3p.svi import DPSVI
    from numpyro.distributions import Bernoulli, Normal, constraints
    from numpyro.infer import Trace_ELBO


def model(features, labels):
    """Logistic regression; a batch stands for the table."""
    weights = numpyro.sample("weights", Normal(0, 1).expand([FEATURES]).to_event(1))
    with numpyro.plate("rows", ROWS, len(features)):
        numpyro.sample("label", Bernoulli(logits=features @ weights), obs=labels)


def guide(features, labels):
    """N(m, diag(softplus(s)²))."""
    mean = numpyro.param("mean", jnp.full(FEATURES, START_MEAN))
    start = jax.nn.softplus(jnp.full(FEATURES, START_SCALE))
    sd = numpyro.param("sd", start, constraint=constraints.softplus_positive)
    numpyro.sample("weights", Normal(mean, sd).to_event(1))


@cache
def prepared(rate, draws, steps):
    """A function of a seed that returns the state of the optimiser, with φ unconstrained, after the steps.

    DPSVI's gradient is the problem's divided by `rate`, which the learning rate makes up for.
    """
    optimiser, loss = numpyro.optim.SGD(LEARNING_RATE * rate), Trace_ELBO(num_particles=draws)
    svi = DPSVI(model, guide, optimiser, loss, clipping_threshold=CLIP_NORM, dp_scale=NOISE_MULTIPLIER)
    begin, batch = subsample_batchify_data(tuple(map(jnp.asarray, table())), q=rate)

    @jax.jit
    def run(state, sampling):
        return jax.lax.fori_loop(0, steps, lambda step, state: svi.update(state, *batch(step, sampling))[0], state)

    sampling = begin(d3p.random.PRNGKey(0))[1]
    first = svi.init(d3p.random.PRNGKey(0), *batch(0, sampling))
    return lambda seed: jax.block_until_ready(
        run(first._replace(rng_key=d3p.random.PRNGKey(seed)), d3p.random.PRNGKey(seed + 2**32)).optim_state
    )


def time_steps(rate, draws, steps):
    """Seconds of the steps."""
    return seconds(prepared(rate, draws, steps))


if __name__ == "__main__":
    serve("d3p_svi", ["d3p", "numpyro", "jax", "jaxlib", "numpy"], time_steps)
