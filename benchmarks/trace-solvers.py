"""What the noise-aware posterior costs after the run, from sums, and what it would cost from the trace.

Criteria (written before the run): `exact` for 1000 coordinates and 10⁵ steps in under 1 s for 4000 draws, with Σ_sub
known and with Σ_sub learned; the release it reads has the same size for 10⁴ and for 10⁵ steps; a gradient of `nuts`
costs at most a hundredth on sums of what it costs on the trace (20 coordinates, 10⁵ steps), both compiled, in one run.
"""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from _quadratics import blocks_of
from harness import finish

from discreet.plan import Plan
from discreet.posterior import exact, laplace
from discreet.posterior.trace_model import coordinates, place, potential, trace_model
from discreet.query import Point
from discreet.release import Release

SEED, DRAWS, BLOCKS = 3, 4000, 100


def trace_of(rng, steps, dim):
    """SGD on quadratics, all coordinates at once."""
    plan = Plan(5000, steps, 0.1, 2.0, 300.0)
    curvature, optimum = rng.uniform(500, 5000, dim), rng.standard_normal(dim)
    step = 100 / (steps * plan.sampling_prob * curvature)
    x, y = np.empty((2, steps, dim), np.float64)
    phi = np.zeros(dim)
    for start in range(0, steps, 1000):
        noise = plan.noise_std * rng.standard_normal((1000, dim))
        for now in range(1000):
            x[start + now] = phi
            y[start + now] = plan.sampling_prob * curvature * (phi - optimum) + noise[now]
            phi = phi - step * y[start + now]
    return plan, Point(x, x, y, np.ones((1, dim)))


def release_of(plan, points):
    """The release of these points in `BLOCKS` blocks."""
    return Release(plan, "simulated", {}, blocks_of(points.x, points.y, plan.steps // BLOCKS), points.x[-1])


def seconds(function, repeats=3):
    """Median time of a call, after a first one that compiles."""
    function()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return float(np.median(times))


def potential_on_trace(plan, x, y, model, at):
    """The same density as `potential`, from every point."""
    optimum, curvature, variance, log_jacobian = place(model, at)
    gap = y - plan.sampling_prob * curvature[None] * (x - optimum[None])
    fit = -(gap**2 / (2 * variance[None]) + 0.5 * jnp.log(variance)[None]).sum(0)
    prior = ((at["v"] - model.prior.curvature_mean) / model.prior.curvature_sd) ** 2
    prior = prior + ((optimum - model.prior.centre) / model.prior.centre_sd) ** 2
    return -(fit - 0.5 * prior - jnp.log(variance) + log_jacobian).sum()


def per_gradient(loss, start, count):
    """Seconds of one gradient inside a compiled loop, as a sampler would run it."""

    @jax.jit
    def walk(at):
        def step(_, at):
            slope = jax.grad(loss)(at)
            return {name: part + 1e-9 * slope[name] for name, part in at.items()}

        return jax.lax.fori_loop(0, count, step, at)

    return seconds(lambda: jax.block_until_ready(walk(start))) / count


def main():
    """Time the solvers, and judge them."""
    rng = np.random.default_rng(SEED)
    plan, points = trace_of(rng, 100_000, 1000)
    release = release_of(plan, points)
    short = release_of(Plan(5000, 10_000, 0.1, 2.0, 300.0), Point(*(part[:10_000] for part in points)))
    sizes = [sum(np.asarray(part).nbytes for part in one.blocks) for one in (short, release)]
    timings = {
        f"exact, Σ_sub {sub}": seconds(
            partial(lambda sub: exact.solve(rng, trace_model(release, subsampling=sub), DRAWS), sub)
        )
        for sub in ("none", "learned")
    }
    records = [
        {"what": f"{name}, 1000 coordinates, 10⁵ steps, {DRAWS} draws", "seconds": took, "verdict": took < 1.0}
        for name, took in timings.items()
    ]
    records.append(
        {
            "what": "laplace, the same, once compiled",
            "seconds": seconds(lambda: laplace.solve(rng, trace_model(release), DRAWS), 1),
            "verdict": None,
        }
    )
    records.append(
        {
            "what": f"bytes of its sums: {sizes[0]} for 10⁴ steps, {sizes[1]} for 10⁵ (trace: {2 * points.x.nbytes})",
            "seconds": None,
            "verdict": sizes[0] == sizes[1],
        }
    )

    with jax.enable_x64(True):
        few = Point(*(np.ascontiguousarray(part[:, :20]) for part in points))
        model = trace_model(release_of(plan, few))
        start = {name: jnp.asarray(part) + 0.3 for name, part in coordinates(model).items()}
        x, y = (jnp.asarray(part[plan.steps // 5 :]) for part in (few.x, few.y))
        on_trace = partial(potential_on_trace, plan, x, y, model)
        slopes = [jax.grad(loss)(start) for loss in (partial(potential, model), on_trace)]
        gap = max(
            float(np.abs(1 - one / other).max()) for one, other in zip(*map(jax.tree.leaves, slopes), strict=True)
        )
        fast = per_gradient(partial(potential, model), start, 10_000)
        slow = per_gradient(on_trace, start, 30)
    records += [
        {"what": "one gradient of nuts on sums, 20 coordinates", "seconds": fast, "verdict": None},
        {"what": "one gradient of nuts on the trace, 8·10⁴ retained steps", "seconds": slow, "verdict": None},
        {"what": f"ratio (the two gradients agree to {gap:.1g})", "seconds": slow / fast, "verdict": slow > 100 * fast},
    ]
    finish("trace-solvers", records, {"all": SEED}, columns=list(records[0]), kind="bench")


if __name__ == "__main__":
    main()
