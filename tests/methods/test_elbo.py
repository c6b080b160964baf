"""The DPVI query piece by piece against finite differences and closed forms, and as a whole against a known optimum."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import special

from discreet.families.exponential import beta_bernoulli
from discreet.mechanism import loop, noise
from discreet.mechanism.rows import store
from discreet.methods import elbo
from discreet.methods.gaussian import Family
from discreet.model import Model
from discreet.plan import Plan
from discreet.schema import Numeric, Schema
from tests.methods.oracles import LINE, SCHEMA, cholesky, line_posterior, points

PLAN = Plan(num_rows=20, steps=250, sampling_prob=0.25, clip_norm=64.0, noise_multiplier=2.0)
BETA = np.array([2.0, 50.0])
SETTINGS = elbo.Settings(np.array([0.4, -1.0]), np.array([0.02, 1e-3]), "preconditioned", BETA, draws=6)
VANILLA = SETTINGS._replace(variant="vanilla", precondition=None)
PRIOR_SD = 2.0

NORMAL = Model(
    dim=1,
    log_prior=lambda z: -0.5 * jnp.sum((z / PRIOR_SD) ** 2),
    log_likelihood=lambda z, row: -0.5 * (row["y"] - z[0]) ** 2,
    constrain=lambda z: {"centre": z[0]},
    sample_prior=lambda key: 3.0 + PRIOR_SD * jax.random.normal(key, (1,)),
    columns=("y",),
)


def first(query, key):
    """The first state, and the question that is asked of it."""
    state = query.init(key)
    return state, query.ask(query.chance(key), state)


@pytest.fixture(scope="module")
def asked():
    """The query on the normal model, its first state and question."""
    query = elbo.query(NORMAL, PLAN, SETTINGS)
    with jax.enable_x64(True):
        return query, *first(query, jax.random.key(1))


# What is asked, and what a row answers


def test_a_row_answers_with_the_preconditioned_gradient_of_its_expected_loss():
    """Central differences of the negative log pmf averaged over the question's own draws."""
    query = elbo.query(beta_bernoulli(2.0, 2.0), PLAN, SETTINGS)
    with jax.enable_x64(True):
        _, question = first(query, jax.random.key(2))
        answer = np.asarray(query.row_value(question, {"x": 1}))
    eta = np.asarray(question.eta)[:, 0]

    def loss(phi):
        return -np.log(special.expit(phi[0] + np.logaddexp(0, phi[1]) * eta)).mean()

    differences = [(loss(SETTINGS.start + h) - loss(SETTINGS.start - h)) / 2e-6 for h in 1e-6 * np.eye(2)]
    np.testing.assert_allclose(answer, BETA * differences, rtol=1e-6)


def test_the_question_is_public_and_the_same_for_every_row(asked):
    query, state, question = asked
    np.testing.assert_array_equal(question.phi, state.phi)
    assert question.eta.shape == question.draws.shape == (6, 1)
    with jax.enable_x64(True):
        other = query.ask(query.chance(jax.random.key(5)), state)
    assert not np.array_equal(other.eta, question.eta)


def test_one_draw_is_enough():
    """An odd number of draws has a public mean that is not zero, and x is that mean."""
    query = elbo.query(NORMAL, PLAN, SETTINGS._replace(draws=1))
    with jax.enable_x64(True):
        state, question = first(query, jax.random.key(6))
        value = np.asarray(query.row_value(question, {"y": jnp.asarray(2.0)}))
        _, point = query.update(state, question, jnp.zeros(2))
    z = 0.4 + np.logaddexp(0, -1.0) * float(question.eta[0, 0])
    np.testing.assert_allclose(value[0], BETA[0] * (z - 2.0), rtol=1e-12)
    np.testing.assert_allclose(point.x, [z, -1.0], rtol=1e-12)


# The step


def public_gradient(phi, eta):
    """∇(−E_q[log p(z)] − H(q)) for a normal prior, by hand."""
    (mean, scale), sd = phi, np.logaddexp(0, phi[1])
    slope = special.expit(scale)
    z = mean + sd * eta
    return np.array([z.mean(), slope * (z * eta).mean()]) / PRIOR_SD**2 - np.array([0, slope / sd])


def test_update_completes_the_answer_in_public_and_takes_a_preconditioned_step(asked):
    """y = answer/β + κ·public gradient; φ moves by −learning_rate·β·y; the noise of y has scale 1/β."""
    query, state, question = asked
    answer = np.array([3.0, -7.0])
    with jax.enable_x64(True):
        after, point = query.update(state, question, jnp.asarray(answer))
    y = answer / BETA + 0.25 * public_gradient(SETTINGS.start, np.asarray(question.eta)[:, 0])
    np.testing.assert_array_equal(point.iterate, SETTINGS.start)
    np.testing.assert_allclose(point.x, SETTINGS.start, rtol=1e-12)
    np.testing.assert_allclose(point.y, y, rtol=1e-12)
    np.testing.assert_allclose(point.scale, 1 / BETA, rtol=1e-15)
    np.testing.assert_allclose(query.last(after), SETTINGS.start - SETTINGS.learning_rate * BETA * y, rtol=1e-12)


def test_the_precondition_cancels_in_the_public_gradient(asked):
    """Rows' unclipped answers, divided by β, do not depend on β."""
    query, _, question = asked
    vanilla = elbo.query(NORMAL, PLAN, VANILLA)
    with jax.enable_x64(True):
        row = {"y": jnp.asarray(1.5)}
        one = question._replace(factor=jnp.ones(2))
        np.testing.assert_allclose(query.row_value(question, row) / BETA, vanilla.row_value(one, row), rtol=1e-12)


@pytest.mark.parametrize("rate", [0.02, np.array([0.02, 1e-3])], ids=["one rate", "one rate each"])
def test_adam_takes_the_steps_that_adam_takes(rate):
    """Against its formula, m/(√v + 10⁻⁸) with both moments freed of their start at zero, and against Optax itself."""
    query = elbo.query(NORMAL, PLAN, VANILLA._replace(optimiser="adam", learning_rate=rate))
    answers = np.array([[3.0, -7.0], [0.5, 11.0], [-2.0, 1.0]])
    phi, first_moment, second_moment = SETTINGS.start, np.zeros(2), np.zeros(2)
    with jax.enable_x64(True):
        state, question = first(query, jax.random.key(7))
        oracle, theirs = optax.adam(1.0), jnp.asarray(SETTINGS.start)
        memory = oracle.init(theirs)
        for count, answer in enumerate(answers, 1):
            gradient = answer + 0.25 * public_gradient(phi, np.asarray(question.eta)[:, 0])
            first_moment = 0.9 * first_moment + 0.1 * gradient
            second_moment = 0.999 * second_moment + 0.001 * gradient**2
            step = first_moment / (1 - 0.9**count) / (np.sqrt(second_moment / (1 - 0.999**count)) + 1e-8)
            phi = phi - rate * step
            change, memory = oracle.update(jnp.asarray(gradient), memory)
            theirs = theirs + rate * change
            state, _ = query.update(state, question, jnp.asarray(answer))
            np.testing.assert_allclose(query.last(state), phi, rtol=1e-10)
            np.testing.assert_allclose(query.last(state), theirs, rtol=1e-10)
            question = query.ask(question.eta, state)


def test_a_rate_for_each_coordinate_is_a_rate_for_each_coordinate():
    """SGD with (a, b) moves the first as with a and the second as with b."""
    moves = []
    with jax.enable_x64(True):
        for rate in (np.array([0.02, 1e-3]), 0.02, 1e-3):
            query = elbo.query(NORMAL, PLAN, VANILLA._replace(learning_rate=rate))
            state, question = first(query, jax.random.key(8))
            moves.append(np.asarray(query.last(query.update(state, question, jnp.array([3.0, -7.0]))[0])))
    np.testing.assert_array_equal(moves[0], [moves[1][0], moves[2][1]])


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_rates_fall_geometrically_and_what_rests_stays_at_its_start(optimiser):
    """At step 100 of 250 with decay .01 a step is .01^.4 of what it was; the second entry moves from step 125 on."""
    plain = VANILLA._replace(optimiser=optimiser)
    ways = (plain, plain._replace(decay=0.01), plain._replace(rest=np.array([0.0, 0.5])))
    moved = []
    with jax.enable_x64(True):
        for settings in ways:
            query = elbo.query(NORMAL, PLAN, settings)
            state, question = first(query, jax.random.key(9))
            at, phi = [], np.asarray(query.last(state))
            for _ in range(126):
                state, _ = query.update(state._replace(phi=jnp.asarray(phi)), question, jnp.array([3.0, -7.0]))
                at.append(np.asarray(query.last(state)) - phi)
            moved.append(np.array(at))
    always, falling, resting = moved
    left = 0.01 ** np.array([0.0, 0.4, 0.5])
    np.testing.assert_allclose((falling / always)[[0, 100, 125]], np.stack([left, left], 1), rtol=1e-9)
    np.testing.assert_array_equal(resting[:, 0], always[:, 0])
    assert (resting[:125, 1] == 0).all()
    np.testing.assert_array_equal(resting[125, 1], always[125, 1])


# The whole way down


def test_descent_without_noise_reaches_the_conjugate_posterior():
    """Every row in every batch: m goes to the posterior mean, T(s) to the posterior sd.

    The antithetic draws leave no noise in m, so it is exact up to the grid of the clip; s jitters with the second
    moment of ten draws, and its mean over the second half has an error of about 1 % (limit: 10 %).
    """
    schema = Schema((Numeric("y", -5, 5),))
    y = np.random.default_rng(3).normal(1.5, 1.0, 20).clip(-5, 5)
    plan = Plan(num_rows=20, steps=250, sampling_prob=1.0, clip_norm=64.0, noise_multiplier=0.0)
    settings = elbo.Settings(np.zeros(2), np.array([0.02, 0.01]), "preconditioned", np.array([1.0, 3.0]), draws=10)
    query = elbo.query(NORMAL, plan, settings)
    release = loop.run(noise.simulated(4), plan, query, store(schema, {"y": y}), keep="trace")
    precision = 20 + PRIOR_SD**-2
    assert release.last[0] == pytest.approx(y.sum() / precision, abs=1e-4)
    sd = np.logaddexp(0, release.trace.iterate[125:, 1]).mean()
    assert sd == pytest.approx(precision**-0.5, rel=0.1)


def test_full_rank_aligned_descent_finds_the_correlation_that_mean_field_cannot():
    """A line through points off centre: q goes to the posterior itself, its covariance included.

    m is exact up to the grid; the average LLᵀ of the second half is within 10 % of the largest entry, as above.
    """
    columns = points(20)
    mean, precision = line_posterior(columns)
    plan = Plan(num_rows=20, steps=300, sampling_prob=1.0, clip_norm=64.0, noise_multiplier=0.0)
    family = Family("full-rank")
    start = elbo.start_at(LINE, 0.2, np.zeros(2), family)
    settings = elbo.Settings(start, 0.01, "aligned", family=family, draws=10)
    release = loop.run(noise.simulated(4), plan, elbo.query(LINE, plan, settings), store(SCHEMA, columns), keep="trace")
    np.testing.assert_allclose(release.last[:2], mean, atol=1e-4)
    factors = np.stack([cholesky(family, phi) for phi in release.trace.iterate[150:]])
    covariance, expected = (factors @ factors.transpose(0, 2, 1)).mean(0), np.linalg.inv(precision)
    assert expected[0, 1] < -0.4 * np.sqrt(expected[0, 0] * expected[1, 1])
    np.testing.assert_allclose(covariance, expected, atol=0.1 * expected.max())


# Settings


def test_heuristic_rate_makes_the_noise_of_all_steps_wander_one_unit():
    """λ·σC·√T = √2·λ_c/√d in each coordinate: one unit in Euclidean norm if λ_c = √½, whatever the plan."""
    for plan in (PLAN, Plan(5000, 10_000, 0.1, 2.0, 307.8)):
        for size in (2, 8):
            rate = elbo.heuristic_rate(plan, size, np.sqrt(0.5))
            assert rate * plan.noise_std * np.sqrt(plan.steps * size) == pytest.approx(1)
    assert elbo.heuristic_rate(PLAN, 2, 3.0) == pytest.approx(3 * elbo.heuristic_rate(PLAN, 2))


def test_there_is_no_heuristic_rate_without_noise():
    with pytest.raises(ValueError, match=r"noise_multiplier=0.*give a learning rate"):
        elbo.heuristic_rate(Plan(20, 250, 0.25, 1.0, 0.0), 2)


@pytest.mark.parametrize("family", [Family(), Family("full-rank", "exp")], ids="-".join)
def test_a_start_has_the_mean_and_the_sds_that_were_asked_for(family):
    """One sd for all or one for each; without a mean, the prior's centre."""
    with jax.enable_x64(True):
        for sd in (0.3, np.array([0.3, 2.0])):
            start = elbo.start_at(LINE, sd, np.array([1.0, -2.0]), family)
            assert start.dtype == np.float64
            np.testing.assert_array_equal(family.mean(start), [1.0, -2.0])
            np.testing.assert_allclose(family.sd(start), np.broadcast_to(sd, 2), rtol=1e-12)
            assert not start[4:].any()
        centre = family.mean(elbo.start_at(NORMAL, 0.3, family=family))
    assert centre[0] == pytest.approx(3.0, abs=5 * 1.2533 * PRIOR_SD / 64)  # a median of 4096: false alarms 6e-7


@pytest.mark.parametrize("sd", [0.0, -0.5, np.nan, np.inf, np.array([0.3, 0.0])])
def test_a_start_without_width_is_refused(sd):
    with pytest.raises(ValueError, match=r"sd\[.\]=(0.0|-0.5|nan|inf) must be finite and positive"):
        elbo.start_at(LINE, sd, np.zeros(2))


def test_a_start_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"mean has shape \(3,\)"):
        elbo.start_at(LINE, 0.3, np.zeros(3))
    with pytest.raises(ValueError, match=r"sd has shape \(5,\)"):
        elbo.start_at(LINE, np.full(5, 0.3), np.zeros(2))


@pytest.mark.parametrize("variant", elbo.VARIANTS)
def test_the_release_can_hold_the_settings_as_plain_values(variant):
    """Whoever reads them back gets the family they are of."""
    given = variant in ("preconditioned", "aligned preconditioned")
    settings = (SETTINGS if given else VANILLA)._replace(variant=variant, learning_rate=0.1)
    settings = settings._replace(family=Family(positive="exp"), optimiser="adam")
    described = elbo.query(NORMAL, PLAN, settings).settings
    assert (described["method"], described["variant"], described["optimiser"]) == ("elbo", variant, "adam")
    assert (described["draws"], described["start"]) == (6, [0.4, -1.0])
    assert described["precondition"] == (BETA.tolist() if given else None)
    assert described["learning_rate"] == np.asarray(settings.learning_rate).tolist()
    assert elbo.described_family(described) == settings.family
    assert elbo.described_family({}) == Family()
    for value in described.values():
        assert isinstance(value, str | int | float | list | None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variant": "vanila"}, r"variant='vanila' must be one of vanilla, preconditioned, T′-preconditioned"),
        ({"optimiser": "sgdm"}, r"optimiser='sgdm' must be one of sgd, adam"),
        ({"family": Family("diagonal")}, r"family.name='diagonal' must be one of mean-field, full-rank"),
        ({"family": Family(positive="abs")}, r"family.positive='abs' must be one of softplus, exp"),
        ({"variant": "natural", "family": Family("full-rank")}, r"variant='natural' needs a mean-field family"),
        (
            {"variant": "aligned natural", "family": Family("full-rank")},
            r"variant='aligned natural' needs a mean-field",
        ),
        ({"precondition": BETA}, r"precondition \(β\) is given with variant='vanilla'"),
        ({"variant": "aligned", "precondition": BETA}, r"precondition \(β\) is given with variant='aligned'"),
        ({"variant": "preconditioned"}, r"precondition \(β\) is not given with variant='preconditioned'"),
        ({"draws": 0}, r"draws=0 must be a whole number, at least 1"),
        ({"draws": -3}, r"draws=-3 must be a whole number, at least 1"),
        ({"draws": 2.5}, r"draws=2.5 must be a whole number"),
        ({"decay": 0.0}, r"decay=0.0 must lie in \(0, 1\]"),
        ({"decay": 1.5}, r"decay=1.5 must lie in \(0, 1\]"),
        ({"rest": 1.0}, r"rest=1.0 must lie in \[0, 1\)"),
        ({"rest": np.array([0.5, -0.1])}, r"rest=.*-0.1.* must lie in \[0, 1\)"),
        ({"learning_rate": 0.0}, r"learning_rate\[0\]=.* must be finite and positive"),
        ({"learning_rate": -1e-3}, r"learning_rate\[0\]=.* must be finite and positive"),
        ({"learning_rate": np.nan}, r"learning_rate\[0\]=.* must be finite and positive"),
    ],
    ids=lambda part: str(part) if isinstance(part, dict) else "",
)
def test_settings_that_cannot_be_run_are_refused_with_a_remedy(change, message):
    with pytest.raises(ValueError, match=message):
        elbo.query(NORMAL, PLAN, VANILLA._replace(**change))


@pytest.mark.parametrize("name", ["start", "precondition", "learning_rate", "rest"])
def test_vectors_that_do_not_fit_the_model_are_refused(name):
    for value in (np.ones(1), np.ones(4), np.ones((1, 2))):
        with pytest.raises(ValueError, match=rf"{name} has shape \(.*need \(2,\)"):
            elbo.query(NORMAL, PLAN, SETTINGS._replace(**{name: value}))
    for value in (np.array([1.0, np.nan]), np.array([np.inf, 1.0])):
        with pytest.raises(ValueError, match=rf"{name}\[.*\]=.* must be finite"):
            elbo.query(NORMAL, PLAN, SETTINGS._replace(**{name: value}))


def test_a_start_of_another_family_is_refused():
    narrow, wide = (elbo.start_at(LINE, 0.1, np.zeros(2), family) for family in (Family(), Family("full-rank")))
    for start, family in ((narrow, Family("full-rank")), (wide, Family())):
        with pytest.raises(ValueError, match="start has shape"):
            elbo.query(LINE, PLAN, elbo.Settings(start, 0.1, family=family))


@pytest.mark.parametrize("name", ["precondition", "learning_rate"])
def test_what_divides_or_multiplies_a_step_is_positive(name):
    for bad in (0.0, -1.0):
        with pytest.raises(ValueError, match=rf"{name}\[.*\]=.* must be finite and positive"):
            elbo.query(NORMAL, PLAN, SETTINGS._replace(**{name: np.array([1.0, bad])}))
