"""Laws between the gradient variants (DPVIm §3): what aligning and natural steps change, and what they must not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from discreet.mechanism import loop, noise
from discreet.mechanism.clipping import GRID, bounded_sum, privatize
from discreet.mechanism.rows import store
from discreet.methods import elbo
from discreet.methods.gaussian import Family
from discreet.plan import Plan
from tests.guarantees.mechanisms import MODELS, Recipe, make
from tests.methods.oracles import LINE, SCHEMA, TRANSFORMS, cholesky, fisher_information, line_posterior, points

NARROW, WIDE = Family(), Family("full-rank")
PLAN = Plan(num_rows=30, steps=1, sampling_prob=1.0, clip_norm=1.0, noise_multiplier=1.0)


def line_query(variant, family=NARROW, sd=0.3, draws=1, plan=PLAN):
    """A query of the line at the origin, with steps of length one."""
    start = elbo.start_at(LINE, sd, np.zeros(2), family)
    return elbo.query(LINE, plan, elbo.Settings(start, 1.0, variant, family=family, draws=draws))


# Aligned and vanilla are two ways to the same gradient


@pytest.mark.parametrize("draws", [1, 4])
@pytest.mark.parametrize("family", [NARROW, Family("full-rank", "exp")], ids="-".join)
def test_without_noise_and_clipping_aligned_steps_are_vanilla_steps(family, draws):
    """Twenty steps on the same batches with the same draws; no row of the table reaches a clip norm of 8.

    Rounding moves a gradient by half a unit per row of the batch in vanilla, and by that times at most
    Σ_k max(1, |η_k|) < 5K in aligned. Twenty steps add this up; curvature times step is below 10⁻³, so what was
    added before grows by less than a tenth.
    """
    traces = []
    for variant in ("vanilla", "aligned"):
        plan, query, rows = make(
            "logistic", Recipe(variant, family, "sgd", draws), steps=20, clip_norm=8.0, noise_multiplier=0.0
        )
        traces.append(loop.run(noise.simulated(7), plan, query, rows, keep="trace"))
    vanilla, aligned = traces
    gap = np.abs(vanilla.trace.iterate - aligned.trace.iterate).max(0)
    limit = 1.1 * 20 * 1e-4 * plan.batch_limit * (8.0 / GRID) / 2 * (1 + 5 * draws)
    assert (gap <= limit).all()
    dim = MODELS["logistic"].dim
    for part in np.split(np.ptp(vanilla.trace.iterate, axis=0), [dim, 2 * dim])[: 2 + (family.name == "full-rank")]:
        assert part.max() > 10 * limit, "every part of φ moves by more than the limit"
    np.testing.assert_allclose(aligned.trace.y, vanilla.trace.y[:, :dim], atol=limit / 1e-4)
    np.testing.assert_allclose(aligned.trace.x, vanilla.trace.x[:, :dim], atol=limit)


def test_rows_of_an_aligned_query_answer_the_same_in_both_families():
    """They are asked about z alone. In vanilla, full rank adds entries and changes none."""
    row = {"x": jnp.asarray(0.7), "y": jnp.asarray(-1.2)}
    with jax.enable_x64(True):
        eta = np.random.default_rng(0).normal(size=(3, 2))
        for variant, shared in (("aligned", 6), ("vanilla", 4)):
            answers = []
            for family in (NARROW, WIDE):
                query = line_query(variant, family, draws=3)
                answers.append(np.asarray(query.row_value(query.ask(eta, query.init(None)), row)))
            np.testing.assert_allclose(answers[0], answers[1][:shared], rtol=1e-13)
            assert len(answers[1]) == (6 if variant == "aligned" else 5)


@pytest.mark.parametrize("positive", TRANSFORMS)
def test_the_steepness_takes_the_slope_out_of_what_rows_answer(positive):
    """T′-preconditioned rows answer with g and η∘g, by hand, however narrow q is; full rank adds g_i·η_j as it is."""
    x, y, eta = 0.7, -1.2, np.random.default_rng(1).normal(size=(3, 2))
    for sd in (1e-4, 0.3):
        query = line_query("T′-preconditioned", Family("full-rank", positive), sd, 3)
        with jax.enable_x64(True):
            answer = np.asarray(query.row_value(query.ask(eta, query.init(None)), {"x": x, "y": y}))
        z = sd * eta
        g = -(y - z[:, :1] - z[:, 1:] * x) * np.array([1.0, x])
        expected = [*g.mean(0), *(eta * g).mean(0), (g[:, 1] * eta[:, 0]).mean()]
        np.testing.assert_allclose(answer, expected, rtol=1e-9)


# Natural is Fisher⁻¹ times vanilla


@pytest.mark.parametrize("positive", TRANSFORMS)
@pytest.mark.parametrize(("natural", "plain"), [("natural", "vanilla"), ("aligned natural", "aligned")])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_natural_step_is_the_inverse_fisher_information_times_the_plain_one(natural, plain, positive, seed):
    """Rows' answers too, where they are about φ; an aligned row answers with the location's part."""
    rng = np.random.default_rng(seed)
    mean, sd, family = rng.normal(size=2), np.exp(rng.uniform(-4, 1, 2)), Family(positive=positive)
    eta, row = rng.normal(size=(3, 2)), {"x": rng.normal(), "y": rng.normal()}
    with jax.enable_x64(True):
        phi = elbo.start_at(LINE, sd, mean, family)
        inverse = np.linalg.inv(fisher_information(positive, phi))
        found = {name: _one_step(name, phi, family, eta, row) for name in (natural, plain)}
    steps, answers = ({name: value[part] for name, value in found.items()} for part in (0, 1))
    np.testing.assert_allclose(steps[natural], inverse @ steps[plain], rtol=1e-9)
    if plain == "vanilla":
        np.testing.assert_allclose(answers[natural], inverse @ answers[plain], rtol=1e-9)
    else:
        by_draw = answers[plain].reshape(3, 2) @ inverse[:2, :2]
        np.testing.assert_allclose(answers[natural].reshape(3, 2), by_draw, rtol=1e-9)


def _one_step(variant, phi, family, eta, row):
    """How far one row, answering without clip or noise, moves φ; and the answer."""
    query = elbo.query(LINE, PLAN, elbo.Settings(phi, 1.0, variant, family=family, draws=len(eta)))
    state = query.init(None)
    question = query.ask(eta, state)
    answer = query.row_value(question, row)
    after, _ = query.update(state, question, answer)
    return np.asarray(phi - query.last(after)), np.asarray(answer)


# Theorem 3.1 of DPVIm: the variance of the scale gradient


def scale_gradients(variant, family, sd, draws, clip_norm, multiplier, count=20_000):
    """`count` scale gradients of one batch of 30 rows, (count, 2), each with its own η and noise ψ."""
    plan = Plan(30, 1, 1.0, clip_norm, multiplier)
    query = line_query(variant, family, sd, draws, plan=plan)

    def one(eta, normal):
        state = query.init(None)
        question = query.ask(eta, state)
        total = bounded_sum(query.row_value, question, columns, jnp.ones(30), jnp.asarray(clip_norm))
        answer = privatize(total, normal, jnp.asarray(plan.noise_std), jnp.asarray(clip_norm))
        return (state.phi - query.update(state, question, answer)[0].phi)[2:4]

    with jax.enable_x64(True):
        columns = jax.tree.map(jnp.asarray, points(30))
        eta = jax.vmap(query.chance)(jax.random.split(jax.random.key(1), count))
        normal = noise.simulated(["vanilla", "aligned"].index(variant)).normals(0, (count, query.size))
        return np.asarray(jax.jit(jax.vmap(one))(eta, normal))


def extra_variance(*arguments):
    """Variance of vanilla's scale gradient minus aligned's, and its standard error; both see the same η."""
    squares = [(g - g.mean(0)) ** 2 for g in (scale_gradients(name, *arguments) for name in ("vanilla", "aligned"))]
    difference = squares[0] - squares[1]
    return difference.mean(0), difference.std(0) / np.sqrt(len(difference))


@pytest.mark.parametrize(
    ("positive", "sd", "draws"),
    [
        ("softplus", 0.05, 1),
        ("softplus", 1.0, 1),
        ("exp", 2.0, 1),
        ("exp", 0.7, 4),
    ],
)
def test_aligning_saves_noise_where_the_slope_is_small(positive, sd, draws):
    """At equal clip norm vanilla's scale gradient has more variance than aligned's by (1 − K·T′²)(σC)².

    This is theorem 3.1 for K = 1 and T′ ≤ 1. "Strictly smaller" is a matter of degree: with softplus and a wide q, T′
    is 1 − e^(−sd) and nothing is saved; with exp, T′ = sd, and beyond one the vanilla gradient is the better one. With
    K released gradients the saving needs T′ < 1/√K, or the √K smaller clip norm that their 1/K allows.
    Nobody is clipped: answers stay below 600. Two z-scores below 5: false alarms 1.2e-6 a case.
    """
    clip_norm, multiplier = 4000.0, 0.05
    slope = TRANSFORMS[positive][1](_inverse(positive, sd))
    found, error = extra_variance(Family(positive=positive), sd, draws, clip_norm, multiplier)
    expected = (1 - draws * slope**2) * (multiplier * clip_norm) ** 2
    assert (np.abs(found - expected) < 5 * error).all()
    assert (np.sign(found) == np.sign(expected)).all()
    assert (5 * error < abs(expected)).all(), "the simulation could have seen the opposite"


def _inverse(positive, sd):
    return np.log(sd) if positive == "exp" else np.log(np.expm1(sd))


def test_the_saving_is_of_noise_alone():
    """Where clipping rules, vanilla's scale gradient varies less, because its rows share one clip with the location.

    The theorem's proof leaves clipping out. A clip norm that every row exceeds, hardly any noise, T′ = .63: aligned
    rows keep η·T′·C where vanilla rows keep η·T′·C/√(1 + η²T′²). False alarms below 6e-7.
    """
    found, error = extra_variance(NARROW, 1.0, 1, 0.01, 1e-3)
    assert (found < -5 * error).all()


# The trace


@pytest.mark.parametrize(
    ("variant", "family", "draws"),
    [("vanilla", NARROW, 1), ("vanilla", WIDE, 4), ("aligned", NARROW, 1), ("aligned", WIDE, 1), ("aligned", WIDE, 4)],
    ids=lambda part: part.name if isinstance(part, Family) else str(part),
)
def test_on_a_quadratic_loss_the_trace_has_the_plans_noise_and_no_other(variant, family, draws):
    """y − A(x − φ*) is noise of sd scale × σC, where x is the mean draw, even if there is only one draw.

    Against the mean m of q the draws' own scatter A·Lη is added to it, with covariance ALLᵀA. Every row is in every
    batch. χ² of 2·400 residuals between its 10⁻⁶ quantiles: false alarms 2·10⁻⁶ a sum.
    """
    columns = points(30)
    optimum, curvature = line_posterior(columns)
    plan = Plan(30, 400, 1.0, clip_norm=64.0, noise_multiplier=0.1)
    start = np.array(elbo.start_at(LINE, 0.4, optimum + 0.1, family))
    start[4:] = 0.2
    query = elbo.query(LINE, plan, elbo.Settings(start, 1e-4, variant, family=family, draws=draws))
    trace = loop.run(noise.simulated(8), plan, query, store(SCHEMA, columns), keep="trace").trace
    np.testing.assert_allclose(trace.scale, np.sqrt(draws) if variant == "aligned" else 1.0, rtol=1e-14)

    def chi_square(x):
        residual = trace.y[:, :2] - (x[:, :2] - optimum) @ curvature
        return ((residual / (trace.scale[:, :2] * plan.noise_std)) ** 2).sum()

    def whitened(y, phi):
        scatter = curvature @ cholesky(family, phi)
        covariance = plan.noise_std**2 * np.eye(2) + scatter @ scatter.T
        residual = y - curvature @ (phi[:2] - optimum)
        return residual @ np.linalg.solve(covariance, residual)

    low, high = stats.chi2(800).ppf([1e-6, 1 - 1e-6])
    assert low < chi_square(trace.x) < high
    if draws == 1:
        assert chi_square(trace.iterate) > 2 * high
        assert low < sum(map(whitened, trace.y[:, :2], trace.iterate)) < high
    else:
        assert low < chi_square(trace.iterate) < high


@pytest.mark.parametrize("draws", [1, 2, 9])
def test_the_released_location_gradient_of_k_draws_has_the_noise_of_k_answers(draws):
    """Its K·n entries have sd σC each; added up, √K·σC. χ² of 2·4000: false alarms 2·10⁻⁶."""
    query = line_query("aligned", draws=draws)
    assert query.size == 2 * draws

    def gradient(answer):
        state = query.init(None)
        return query.update(state, query.ask(jnp.asarray(eta), state), answer)[1].y

    with jax.enable_x64(True):
        eta = np.random.default_rng(draws).normal(size=(draws, 2))
        answers = 3.0 * noise.simulated(draws).normals(0, (4001, 2 * draws))
        answers[0] = 0.0
        silent, *noisy = np.asarray(jax.jit(jax.vmap(gradient))(answers))
    total = (((noisy - silent) / (np.sqrt(draws) * 3.0)) ** 2).sum()
    low, high = stats.chi2(8000).ppf([1e-6, 1 - 1e-6])
    assert low < total < high
