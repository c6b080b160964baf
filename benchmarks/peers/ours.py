"""discreet itself, by the peers' protocol: `ours.py single vanilla simulated`, or double, aligned, secure.

Poisson batches, noise and sums as every fit has them. Rows are encoded and features made before the clock starts: the
time of a run is the difference of a long and a short one.
"""

import sys
from functools import cache

import numpy as np
from _common import (
    CLIP_NORM,
    FEATURES,
    LEARNING_RATE,
    NOISE_MULTIPLIER,
    ROWS,
    START_MEAN,
    START_SCALE,
    batch_limit,
    seconds,
    serve,
    starting,
    table,
)

PRECISION, VARIANT, NOISE = sys.argv[1:]
NAMES = tuple(f"x{place}" for place in range(FEATURES))
LONGER = 5

with starting(f"discreet {' '.join(sys.argv[1:])}"):
    import jax
    import jax.numpy as jnp

    from discreet.families.glm import softplus
    from discreet.fitting import encode, run, secure, simulated
    from discreet.methods import elbo
    from discreet.model import Linear, Model
    from discreet.plan import Plan
    from discreet.schema import Numeric, Schema


SCHEMA = Schema((*(Numeric(name, -1, 1) for name in NAMES), Numeric("y", 0, 1)))
MODEL = Model(
    dim=FEATURES,
    log_prior=lambda z: -0.5 * jnp.sum(z**2),
    log_likelihood=Linear(
        lambda row: jnp.stack([row[name] for name in NAMES]), lambda u, rest, row: row["y"] * u - softplus(u)
    ),
    constrain=lambda z: {"w": z},
    sample_prior=lambda key: jax.random.normal(key, (FEATURES,)),
    columns=(*NAMES, "y"),
)


@cache
def rows():
    """The table, encoded."""
    features, labels = table()
    return encode({**dict(zip(NAMES, features.T.astype(float), strict=True)), "y": labels.astype(float)}, SCHEMA)


@cache
def prepared(rate, draws, steps):
    """A function of a seed that runs so many steps."""
    plan = Plan(ROWS, steps, rate, CLIP_NORM, NOISE_MULTIPLIER, batch_limit(rate))
    start = np.repeat([START_MEAN, START_SCALE], FEATURES)
    query = elbo.query(MODEL, plan, elbo.Settings(start, LEARNING_RATE, VARIANT, draws=draws))
    stream = {"secure": lambda seed: secure(), "simulated": simulated}[NOISE]
    return lambda seed: run(stream(seed), plan, query, rows(), precision=PRECISION)


def time_steps(rate, draws, steps):
    """Seconds of the steps, without what a run does before its first."""
    short, long = (seconds(prepared(rate, draws, count)) for count in (steps, LONGER * steps))
    return (long - short) / (LONGER - 1)


if __name__ == "__main__":
    serve(f"discreet {' '.join(sys.argv[1:])}", ["discreet", "jax", "jaxlib", "numpy"], time_steps)
