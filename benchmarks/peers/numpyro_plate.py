"""NumPyro's SVI with a subsampling plate. Not private: no clipping, no noise.

Batches of fixed size without replacement, drawn by the plate in every step. The K draws stand in a plate of their own
with scale 1/K: the ELBO is that of Trace_ELBO(num_particles=K), but all draws share a batch, whereas particles draw a
batch each, which takes four times as long with ten draws.
"""

from functools import cache

from _common import FEATURES, LEARNING_RATE, ROWS, START_MEAN, START_SCALE, seconds, serve, starting, table

with starting("numpyro_plate"):
    import jax
    import jax.numpy as jnp
    import numpyro
    from numpyro.distributions import Bernoulli, Normal, constraints
    from numpyro.infer import SVI, Trace_ELBO


def plates(draws, batch):
    """Shared draws, averaged, and a batch of rows."""
    return numpyro.plate("draws", draws, dim=-2), numpyro.plate("rows", ROWS, batch, dim=-1)


def model(features, labels, draws, batch):
    """Logistic regression, once for each draw."""
    shared, rows = plates(draws, batch)
    with shared, numpyro.handlers.scale(scale=1 / draws):
        weights = numpyro.sample("weights", Normal(0, 1).expand([FEATURES]).to_event(1))
        with rows as indices:
            logits = weights[:, 0] @ features[indices].T
            numpyro.sample("label", Bernoulli(logits=logits), obs=labels[indices])


def guide(features, labels, draws, batch):
    """N(m, diag(softplus(s)²)), drawn from `draws` times."""
    mean = numpyro.param("mean", jnp.full(FEATURES, START_MEAN))
    start = jax.nn.softplus(jnp.full(FEATURES, START_SCALE))
    sd = numpyro.param("sd", start, constraint=constraints.softplus_positive)
    with plates(draws, batch)[0], numpyro.handlers.scale(scale=1 / draws):
        numpyro.sample("weights", Normal(mean, sd).to_event(1))


@cache
def prepared(rate, draws, steps):
    """A function of a seed that returns the state of the optimiser, with φ unconstrained, after the steps."""
    features, labels = map(jnp.asarray, table())
    svi = SVI(
        model, guide, numpyro.optim.SGD(LEARNING_RATE * rate), Trace_ELBO(), draws=draws, batch=round(rate * ROWS)
    )

    @jax.jit
    def run(state, features, labels):
        return jax.lax.scan(lambda state, _: svi.update(state, features, labels), state, length=steps)[0]

    first = svi.init(jax.random.key(0), features, labels)
    return lambda seed: jax.block_until_ready(
        run(first._replace(rng_key=jax.random.key(seed)), features, labels).optim_state
    )


def time_steps(rate, draws, steps):
    """Seconds of the steps."""
    return seconds(prepared(rate, draws, steps))


if __name__ == "__main__":
    serve("numpyro_plate", ["numpyro", "jax", "jaxlib", "numpy"], time_steps)
