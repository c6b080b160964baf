"""What DPVIm's experiments share: the five variants with the paper's clip norms, and its Adult regression."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from discreet import datasets, fitting
from discreet.accounting import calibrate
from discreet.families.glm import Priors, glm
from discreet.methods import elbo
from discreet.methods.gaussian import MEAN_FIELD
from discreet.model import Model
from discreet.plan import Plan, default_batch_limit, non_private

RATE, LEARNING_RATE = 0.01, 1e-3
VARIANTS = ("vanilla", "T′-preconditioned", "natural", "aligned", "aligned natural")
COLOURS = dict(zip(VARIANTS, ("#777777", "#c47a00", "#7a4fbf", "#0a7d5a", "#c2344b"), strict=True))
ADULT_CLIP = dict(zip(VARIANTS, (3.0, 4.0, 0.1, 3.0, 0.1), strict=True))
ADULT_UNITS = {  # the paper z-scores with the private rows' moments; these are declared, in round numbers
    "age": (38, 13),
    "fnlwgt": (190_000, 105_000),
    "capital-gain": (1100, 7400),
    "capital-loss": (90, 400),
    "hours-per-week": (41, 12),
}


def adult():
    """(model, rows, columns): logistic regression on all 103 features and an intercept, w ~ N(0, I)."""
    table, schema = datasets.adult()
    covariates = [name for name in schema.names if name != "income"]
    priors = Priors(slope_sd=1.0, intercept_sd=1.0)
    model = glm("logistic", "income", covariates, schema, priors, coding="every level", units=ADULT_UNITS)
    return model, fitting.encode(table, schema), schema.encode(table)


def plan_for(rows, epochs, epsilon):
    """κ = .01 and δ = 1/N, as in the paper, for a clip norm of 1; ε = ∞ is a plan without noise."""
    steps, limit = round(epochs / RATE), default_batch_limit(rows.num_rows, RATE)
    plan = Plan(rows.num_rows, steps, RATE, 1.0, 1.0, limit)
    return non_private(plan) if np.isinf(epsilon) else calibrate(plan, epsilon, 1 / rows.num_rows)


def clipped(plan, clip_norm):
    """The plan with its clip norm, and so its noise, times `clip_norm`: at the same price."""
    return replace(plan, clip_norm=clip_norm * plan.clip_norm)


def train(model, rows, variant, plan, seed, start, *, rate=LEARNING_RATE, draws=1, family=MEAN_FIELD, **options):
    """The release of one run with Adam and simulated noise."""
    settings = elbo.Settings(start, rate, variant, family=family, optimiser="adam", draws=draws)
    return fitting.run(fitting.simulated(seed), plan, elbo.query(model, plan, settings), rows, **options)


def optimum(model, columns, start):
    """φ* of mean-field VI for a logistic or Poisson GLM on public columns, by quadrature and L-BFGS: no sampling noise.

    Under q the linear predictor of a row is Gaussian, so its expected loss is a one-dimensional integral. Non-private
    stochastic steps take far longer than any run here to settle where levels are redundant (curvature 1 against N).
    """
    family, outcome = model.description["family"], columns[model.description["outcome"]]
    loss_at = {"logistic": jax.nn.softplus, "poisson": jnp.exp}[family]
    slope = {"logistic": 0.25, "poisson": 1.0}[family]  # of the mean at a predictor of 0
    node, weight = np.polynomial.hermite_e.hermegauss(20)
    weight = weight / weight.sum()

    def loss(phi):
        mean, sd = MEAN_FIELD.mean(phi), MEAN_FIELD.sd(phi)
        centre, spread = features @ mean, jnp.sqrt(features**2 @ sd**2)
        rows = loss_at(centre[:, None] + spread[:, None] * node[None]) @ weight - outcome * centre
        prior = (model.log_prior(mean + sd) + model.log_prior(mean - sd)) / 2  # E_q of it, as it is normal
        return rows.sum() - prior - MEAN_FIELD.entropy(phi)

    with jax.enable_x64(True):
        at_zero = jax.vmap(jax.grad(model.mean), in_axes=(None, 0))
        features = np.asarray(jax.jit(at_zero)(jnp.zeros(model.dim), columns)) / slope
        value = jax.jit(jax.value_and_grad(loss))
        options = {"maxiter": 5000, "maxfun": 10_000, "ftol": 1e-15, "gtol": 1e-3}
        found = minimize(
            lambda phi: tuple(map(np.asarray, value(phi))), start, jac=True, method="L-BFGS-B", options=options
        )
    if np.abs(found.jac).max() > 0.05:
        raise SystemExit(f"no optimum was found: the gradient is still {np.abs(found.jac).max():.2g}")
    return found.x


def linear_regression(names):
    """w ~ N(0, I), σ ~ Gamma(.1, .1), y ~ N(xw, σ²), in z = (w, log σ)."""
    dim = len(names)

    def log_likelihood(z, row):
        x = jnp.stack([row[name] for name in names])
        return -0.5 * ((row["y"] - x @ z[:dim]) * jnp.exp(-z[dim])) ** 2 - z[dim] - 0.5 * np.log(2 * np.pi)

    return Model(
        dim + 1,
        log_prior=lambda z: -0.5 * jnp.sum(z[:dim] ** 2) + 0.1 * z[dim] - 0.1 * jnp.exp(z[dim]),
        log_likelihood=log_likelihood,
        constrain=lambda z: {"w": z[:dim], "sigma": jnp.exp(z[dim])},
        sample_prior=lambda key: jnp.append(jax.random.normal(key, (dim,)), jnp.log(jax.random.gamma(key, 0.1) / 0.1)),
        columns=(*names, "y"),
    )


def means_and_sds(phi, family=MEAN_FIELD):
    """(m, sd) of q as NumPy arrays."""
    return np.asarray(family.mean(phi)), np.asarray(family.sd(phi))
