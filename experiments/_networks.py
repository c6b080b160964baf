"""What DP-SEP's tables on networks share: tables and splits, units, every method as (predict, what it cost)."""

import time
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
from scipy import stats

from discreet import datasets, fitting
from discreet.accounting import calibrate, guarantee
from discreet.evaluate import ep, study
from discreet.families.glm import glm
from discreet.families.network import Priors, layers, network
from discreet.methods import collapsed, pbp, sep
from discreet.plan import Plan, default_batch_limit

DELTA, OF_UNITS, DRAWS, BATCH = 1e-5, 0.15, 200, 100
PASSES_OF_DP, RATE, CLOSING, CLIP, LEAST = 60, 0.2, 0.1, 1.0, 20.0
TABLE6 = {  # epochs, batch, Adam's rate, noise precision, prior precision, draws, weight of the divergence
    "naval": (100, 100, 1e-4, 20.0, 1.0, 10, 1.0),
    "kin8nm": (100, 100, 1e-3, 10.0, 100.0, 20, 0.01),
    "power": (200, 100, 9e-4, 18.0, 100.0, 10, 0.001),
    "wine": (40, 100, 1e-2, 2.0, 200.0, 20, 0.01),
    "protein": (100, 200, 1e-5, 50.0, 100.0, 20, 2.0),
}
CLIP_OF_DPVI = {"naval": 5.0, "kin8nm": 1.0, "power": 1.0, "wine": 5.0, "protein": 1.0}


MEASURES = ("rmse", "ll", "in 50 %", "in 90 %", "spent")


class Split(NamedTuple):
    """One split of a table: encoded columns to learn from, and to be tested on."""

    name: str
    place: int
    schema: object
    train: dict
    test: dict

    @property
    def covariates(self):
        return self.schema.names[:-1]

    @property
    def hidden(self):
        return 100 if self.name == "protein" else 50

    @property
    def num_rows(self):
        return len(self.train["target"])

    def layers(self, units):
        return layers("target", self.covariates, self.schema, self.hidden, units=units)

    @property
    def rows(self):
        return study.stored(self.schema, self.train)


@cache
def table_of(name):
    table, schema = datasets.regression(name)
    return schema, schema.encode(table), datasets.splits(name)


def split_of(name, place, most=None):
    """`most` rows to learn from, at most."""
    schema, columns, splits = table_of(name)
    out = splits[place]
    train = {column: np.asarray(values)[~out][:most] for column, values in columns.items()}
    return Split(name, place, schema, train, {column: np.asarray(values)[out] for column, values in columns.items()})


def private_units(split):
    """NOT PRIVATE: means and sds of the rows, as the papers have them. One for a constant column."""
    return {name: (values.mean(), values.std() or 1.0) for name, values in split.train.items()}


def paid_units(split, epsilon, seed):
    """Units for a share of the budget, and what is left of it: (units, ε, δ)."""
    if np.isinf(epsilon):
        return private_units(split), epsilon, DELTA
    own = {"epsilon": OF_UNITS * epsilon, "delta": OF_UNITS * DELTA}
    units, _ = fitting.paid_units(split.rows, split.schema.names, noise=fitting.simulated(seed), **own)
    return units, epsilon - own["epsilon"], DELTA - own["delta"]


class Moments(NamedTuple):
    """What is said of each test row: its mean, and the sd of its outcome."""

    mean: np.ndarray
    sd: np.ndarray


def scored(split, said, spent, began):
    """RMSE, log-likelihood, the share of outcomes in intervals of 50 and 90 %, ε, seconds."""
    missed, sd = split.test["target"] - said.mean, np.maximum(said.sd, 1e-12)
    held = {prob: np.abs(missed) < stats.norm.ppf((1 + prob) / 2) * sd for prob in (0.5, 0.9)}
    return {
        "rmse": np.sqrt(np.mean(missed**2)),
        "ll": stats.norm.logpdf(missed, 0, sd).mean(),
        "in 50 %": held[0.5].mean(),
        "in 90 %": held[0.9].mean(),
        "spent": spent,
        "seconds": time.perf_counter() - began,
    }


def of_weights(split, made, q):
    told = pbp.predict(made, q, split.test)
    return Moments(told.mean, told.sd)


def of_theta(split, made, site, theta):
    return of_weights(split, made, pbp.weights(site, theta))


def of_draws(split, model, draws):
    """Mean and sd of the outcome over draws of z and the noise."""
    z = jnp.asarray(draws[:: max(1, len(draws) // DRAWS)][:DRAWS])
    rows = {name: split.test[name] for name in split.covariates}
    with jax.enable_x64(True):
        each = jax.jit(lambda z: (jax.vmap(lambda row: model.mean(z, row))(rows), model.constrain(z)["sigma"]))
        means, sigmas = map(np.asarray, jax.lax.map(each, z))
    return Moments(means.mean(0), np.sqrt(means.var(0) + (sigmas**2).mean()))


def nonprivate(method):
    """ADF, EP, SEP and SEP with clipped sites, on the rows' own means and sds."""

    def run(split, job, passes):
        made = split.layers(private_units(split))
        site = pbp.sites(made, seed=split.place)
        speed = sep.Settings(split.num_rows, least=1e-6)
        if method == "PBP":
            found = ep.adf(site, split.train, passes=passes, seed=split.place)
        elif method == "EP":
            found = ep.ep(site, split.train, sweeps=passes // 4)
        else:
            clip = {} if method == "SEP" else {"clip_norm": job.clip}
            found = ep.sep(site, split.train, speed, passes=passes, seed=split.place, **clip)
        return of_theta(split, made, site, found.theta), np.inf

    return run


def with_limit(plan):
    return replace(plan, batch_limit=default_batch_limit(plan.num_rows, plan.sampling_prob))


def with_noise(plan, epsilon, delta):
    """The plan at this budget; at none without noise, but clipped as before."""
    return replace(plan, noise_multiplier=0.0) if np.isinf(epsilon) else calibrate(plan, epsilon, delta)


def asked_of(split, plan, query):
    """The last φ of a run on the split, with simulated noise."""
    return fitting.run(fitting.simulated(7000 + split.place), plan, query, split.rows).last


def dp_sep(split, job, passes):
    """Batched, rows answering about the cavity's mean, with units that are paid for."""
    del passes
    units, epsilon, delta = paid_units(split, job.epsilon, split.place)
    made = split.layers(units)
    site = pbp.sites(made, seed=split.place)
    steps = round(PASSES_OF_DP / RATE)
    plan = with_noise(with_limit(Plan(split.num_rows, steps, RATE, job.clip, 1.0)), epsilon, delta)
    gamma = job.closing * split.num_rows / RATE
    settings = sep.Settings(gamma, LEAST, slowing=job.closing / 3, centred=True, refine=1)
    phi = asked_of(split, plan, sep.query(site, plan, settings))
    spent = job.epsilon if np.isinf(job.epsilon) else guarantee(plan, delta).epsilon + job.epsilon - epsilon
    return of_theta(split, made, site, pbp.posterior(site, phi)), spent


def paper_form(gamma_of):
    """As published, one row a step, on private means and sds: its noise is that of a nominal ε, and it spends more."""

    def run(split, job, passes):
        made = split.layers(private_units(split))
        site = pbp.sites(made, seed=split.place)
        steps = passes * split.num_rows
        nominal = calibrate(Plan(split.num_rows, steps, 1 / split.num_rows, job.clip, 1.0), job.epsilon, DELTA)
        plan = replace(nominal, noise_multiplier=2 * nominal.noise_multiplier, sampling="one row", batch_limit=None)
        settings = sep.Settings(gamma_of(split), least=LEAST, refine=split.num_rows // 10)
        phi = asked_of(split, plan, sep.query(site, plan, settings))
        spent = sep.paper_accounts(split.num_rows, passes, nominal.noise_multiplier, DELTA)["passes"]
        return of_theta(split, made, site, pbp.posterior(site, phi)), spent

    return run


def variational(private):
    """Appendix D by Tables 6 and 7; the private one with the noise that its budget needs, and units paid for."""

    def run(split, job, passes):
        epochs, batch, rate, noise, prior, draws, weight = TABLE6[split.name]
        epochs = round(epochs * min(1.0, passes / 40))
        units, epsilon, delta = paid_units(split, job.epsilon if private else np.inf, split.place)
        made = split.layers(units)
        share = batch / split.num_rows
        clip = CLIP_OF_DPVI[split.name] if private else 1e6
        plan = with_limit(Plan(split.num_rows, round(epochs / share), share, clip, 1.0))
        plan = with_noise(plan, epsilon if private else np.inf, delta)
        settings = collapsed.Settings(rate, noise, prior, draws, weight, seed=split.place)
        phi = asked_of(split, plan, collapsed.query(made, plan, settings))
        spent = np.inf if np.isinf(epsilon) else guarantee(plan, delta).epsilon + job.epsilon - epsilon
        return of_weights(split, made, collapsed.weights(made, settings, phi)), spent

    return run


def fitted(make):
    """What `fit` says of a model, with units that are paid for."""

    def run(split, job, passes):
        del passes
        units, epsilon, delta = paid_units(split, job.epsilon, split.place)
        model = make(split, units)
        noise = fitting.simulated(8000 + split.place)
        found = fitting.fit(model, split.rows, epsilon=epsilon, delta=delta, noise=noise, draws=1000)
        spent = job.epsilon if np.isinf(job.epsilon) else found.guarantee.epsilon + job.epsilon - epsilon
        return of_draws(split, model, found.z.reshape(-1, model.dim)), spent

    return run


WIDE = Priors(precision=dist.Gamma(1.0, 0.1), outer=dist.Normal(0.0, 3.0))


def linear_model(split, units):
    own = {name: unit for name, unit in units.items() if name != "target"}
    return glm("gaussian", "target", split.covariates, split.schema, units=own)


def last_layer(split, units):
    return network("target", split.covariates, split.schema, 50, WIDE, units=units, frozen=split.place)


def whole_network(split, units):
    return network("target", split.covariates, split.schema, split.hidden, units=units)


def point_estimate(split, job, passes):
    """Weights by Adam on squared errors, without a prior; the noise's variance is that of the rows' own residuals.

    It is quick, so that it sees the rows five times as often as the others.
    """
    del job
    passes = 5 * passes
    made = split.layers(private_units(split))
    x = np.asarray(jax.vmap(made.features)({name: split.train[name] for name in made.covariates}))
    y = np.asarray(made.target(split.train))
    optimiser = optax.adam(optax.cosine_decay_schedule(1e-2, passes * (len(y) // BATCH)))

    def output(weights, x):
        hidden, outer = made.split(weights)
        return jax.vmap(lambda one: outer @ made.above(hidden @ one))(x)

    def step(state, places):
        weights, memory = state
        gradient = jax.grad(lambda w: jnp.mean((output(w, x[places]) - y[places]) ** 2))(weights)
        change, memory = optimiser.update(gradient, memory)
        return (weights + change, memory), None

    weights = jnp.asarray(made.random_weights(split.place)) * 3
    rng, x, y = np.random.default_rng(split.place), jnp.asarray(x), jnp.asarray(y)
    orders = [rng.permutation(len(y))[: len(y) // BATCH * BATCH].reshape(-1, BATCH) for _ in range(passes)]
    (weights, _), _ = jax.jit(lambda state, order: jax.lax.scan(step, state, order))(
        (weights, optimiser.init(weights)), np.concatenate(orders)
    )
    left = float(jnp.mean((output(weights, x) - y) ** 2))
    return of_weights(split, made, pbp.Weights(np.asarray(weights), np.full(len(weights), 1e-12), left)), np.inf


METHODS = {
    "PBP": nonprivate("PBP"),
    "EP": nonprivate("EP"),
    "SEP": nonprivate("SEP"),
    "SEP clipped": nonprivate("SEP clipped"),
    "VI": variational(private=False),
    "point estimate": point_estimate,
    "DP-SEP": dp_sep,
    "DP-SEP as published, γ = 1": paper_form(lambda split: 1.0),
    "DP-SEP as published, γ = N": paper_form(lambda split: split.num_rows),
    "DP-VI": variational(private=True),
    "NA-DPVI, same network": fitted(whole_network),
    "linear model": fitted(linear_model),
    "last layer": fitted(last_layer),
}


class Job(NamedTuple):
    """One run on one split."""

    method: str
    split: int
    epsilon: float = 1.0
    clip: float = CLIP
    closing: float = CLOSING


def run(name, most, passes, job):
    """What a run scored on its split; NaN where a fit was refused, before anything was spent on it."""
    began, split = time.perf_counter(), split_of(name, job.split, most)
    with jax.enable_x64(True):
        try:
            said, spent = METHODS[job.method](split, job, passes)
        except ValueError as refused:
            if "too vague to plan with" not in str(refused):
                raise
            scores = dict.fromkeys(MEASURES, np.nan) | {"seconds": time.perf_counter() - began}
        else:
            scores = scored(split, said, spent, began)
    return {key: np.asarray(value) for key, value in scores.items()}
