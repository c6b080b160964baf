"""NumPyro's SVI on batches drawn beforehand. Not private: no clipping, no noise.

Batches of fixed size with replacement; the indices of all steps are drawn before the clock starts. The K draws are
Trace_ELBO's vectorised particles, and share the step's batch.
"""

from functools import cache

from _common import FEATURES, LEARNING_RATE, ROWS, START_MEAN, START_SCALE, seconds, serve, starting, table

with starting("numpyro_outside"):
    import jax
    import jax.numpy as jnp
    import numpyro
    from numpyro.distributions import Bernoulli, Normal
    from numpyro.infer import SVI, Trace_ELBO, init_to_value
    from numpyro.infer.autoguide import AutoDiagonalNormal


def model(features, labels):
    """Logistic regression; a batch stands for the table."""
    weights = numpyro.sample("weights", Normal(0, 1).expand([FEATURES]).to_event(1))
    with numpyro.plate("rows", len(features)), numpyro.handlers.scale(scale=ROWS / len(features)):
        numpyro.sample("label", Bernoulli(logits=features @ weights), obs=labels)


def inference(rate, draws):
    """SVI whose loss is the problem's divided by `rate`, which the learning rate makes up for."""
    at_start = init_to_value(values={"weights": jnp.full(FEATURES, START_MEAN)})
    guide = AutoDiagonalNormal(model, init_loc_fn=at_start, init_scale=float(jax.nn.softplus(START_SCALE)))
    return SVI(model, guide, numpyro.optim.SGD(LEARNING_RATE * rate), Trace_ELBO(num_particles=draws))


@cache
def prepared(rate, draws, steps):
    """A function of a seed that returns the state of the optimiser, with φ unconstrained, after the steps."""
    features, labels = map(jnp.asarray, table())
    batches = jax.random.randint(jax.random.key(0), (steps, round(rate * ROWS)), 0, ROWS)
    svi = inference(rate, draws)

    @jax.jit
    def run(state, features, labels, batches):
        def step(state, indices):
            return svi.update(state, features[indices], labels[indices])

        return jax.lax.scan(step, state, batches)[0]

    first = svi.init(jax.random.key(0), features[batches[0]], labels[batches[0]])
    return lambda seed: jax.block_until_ready(
        run(first._replace(rng_key=jax.random.key(seed)), features, labels, batches).optim_state
    )


def time_steps(rate, draws, steps):
    """Seconds of the steps."""
    return seconds(prepared(rate, draws, steps))


if __name__ == "__main__":
    serve("numpyro_outside", ["numpyro", "jax", "jaxlib", "numpy"], time_steps)
