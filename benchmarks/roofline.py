"""A whole step beside the least it must do: pick the batch's rows, and two matrix products of the same shape.

30 000 rows, 100 features, rate .1, single and double precision, one draw and ten, in one process and in turn.
The bare kernel picks rows by the same indices, multiplies them with one column for each draw, and the result's slopes
with the rows again; it samples nothing, clips nothing, adds no noise and keeps no trace.

Criterion (written before the run): a step in single precision takes at most twice as long as the bare kernel.
"""

import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from harness import finish

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
sys.argv[1:] = ["single", "vanilla", "simulated"]
import ours  # noqa: E402
from _common import batch_limit, table  # noqa: E402

REPEATS, STEPS, RATE = 7, 400, 0.1


def bare(draws, kind):
    """Seconds a step of the bare kernel: a function without arguments."""
    rng = np.random.default_rng(1)
    limit = batch_limit(RATE)
    features = jnp.asarray(table()[0], kind)
    indices = jnp.asarray(np.sort(rng.integers(0, len(features), (STEPS, limit)), axis=1), jnp.int32)
    points = jnp.asarray(rng.standard_normal((STEPS, draws, features.shape[1])), kind)

    def step(total, inputs):
        place, z = inputs
        x = features.at[place].get(mode="promise_in_bounds")
        return total + jax.nn.sigmoid(x @ (z + 1e-9 * total).T).T @ x, None

    run = jax.jit(lambda: jax.lax.scan(step, jnp.zeros_like(points[0]), (indices, points))[0])
    return lambda: clock(lambda: run().block_until_ready()) / STEPS


def clock(function):
    """Seconds of a call."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def main():
    """Time both in turn, and judge the ratio of medians."""
    records = []
    for precision in ("single", "double"):  # in this order: JAX 0.10 mixes up constants of the two
        ours.PRECISION = precision
        for draws in (1, 10):
            with jax.enable_x64(precision == "double"):
                kernel = bare(draws, np.float32 if precision == "single" else np.float64)
                kernel()
            ours.prepared.cache_clear()
            ours.time_steps(RATE, draws, STEPS)
            times = []
            for _ in range(REPEATS):
                with jax.enable_x64(precision == "double"):
                    least = kernel()
                times.append((ours.time_steps(RATE, draws, STEPS) / STEPS, least))
            step, least = np.median(times, axis=0)
            records.append(
                {
                    "precision": precision,
                    "draws": draws,
                    "µs a step": 1e6 * step,
                    "µs of the kernel": 1e6 * least,
                    "ratio": step / least,
                    "verdict": bool(step <= 2 * least) if precision == "single" else None,
                }
            )
    finish("roofline", records, {"table": 0}, columns=list(records[0]), kind="bench")


if __name__ == "__main__":
    main()
