"""Regression networks with one hidden layer of ReLU units: y = w·relu(W·x) + noise.

Covariates and the outcome are measured in public units: mid-bounds and half the range, or others that are given. Each
layer gets a one besides what is below it, and is divided by the root of how many it gets, so that weights of any layer
are of one size. The likelihood is written with τ = 1/sd of the noise and outer weights times τ, as that of `glm`: a
row's gradient does not grow as the noise shrinks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from discreet.families.glm import clamp, options, refuse_repeated, terms_of, unit_of
from discreet.model import Linear, Model, Row, softplus_inverse
from discreet.schema import Numeric, Schema

MOST_WEIGHTS = 100_000
Numbers = Array | np.ndarray


class Priors(NamedTuple):
    """NumPyro distributions of a number: each weight of a layer, and the precision of the noise in the outcome's units.

    With `shared`, weights are those of their layer's distribution over √λ, and λ has this distribution. Without being
    given weights are N(0, 1), and the precision is Gamma(6, 6).
    """

    hidden: Any = None
    outer: Any = None
    precision: Any = None
    shared: Any = None


PRIORS = Priors()


@dataclass(frozen=True)
class Layers:
    """What a network is made of, in public: its columns, their units, and how many hidden units there are."""

    covariates: tuple[str, ...]
    outcome: str
    hidden: int
    labels: tuple[str, ...]
    of_row: Callable[[Row], Array]
    centre: float
    scale: float
    coding: str
    units: Mapping[str, tuple[float, float]]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a row must have."""
        return (*self.covariates, self.outcome)

    @property
    def inputs(self) -> int:
        """How many numbers a hidden unit gets."""
        return len(self.labels)

    @property
    def weights(self) -> int:
        """How many weights there are: the hidden layer's, unit by unit, and then the outer ones."""
        return self.hidden * self.inputs + self.hidden + 1

    @property
    def roots(self) -> np.ndarray:
        """Of each weight, the root of how many numbers its layer gets."""
        return np.repeat([self.inputs**0.5, (self.hidden + 1) ** 0.5], [self.hidden * self.inputs, self.hidden + 1])

    def features(self, row: Row) -> Array:
        """What hidden units get of a row."""
        return self.of_row(row) / np.sqrt(self.inputs)

    def target(self, row: Row) -> Array:
        """The outcome of a row."""
        return (row[self.outcome] - self.centre) / self.scale

    def split(self, weights: Any) -> tuple[Any, Any]:
        """The hidden layer's weights (hidden, inputs), and the outer ones (hidden + 1,)."""
        cut = self.hidden * self.inputs
        return weights[:cut].reshape(self.hidden, self.inputs), weights[cut:]

    def above(self, predictors: Numbers) -> Array:
        """What the outer weights are multiplied by."""
        return jnp.append(jax.nn.relu(predictors), 1.0) / np.sqrt(self.hidden + 1)

    def random_weights(self, seed: int) -> np.ndarray:
        """Weights with sds of one over the root of what a layer gets."""
        rng = np.random.default_rng([31, seed])
        return rng.standard_normal(self.weights) / self.roots

    def describe(self) -> dict[str, Any]:
        """Plain public values."""
        shown = {"outcome": self.outcome, "covariates": list(self.covariates), "hidden": self.hidden}
        return {"family": "network", **shown, **options(self.coding, self.units)}


def layers(
    outcome: str,
    covariates: Sequence[str],
    schema: Schema,
    hidden: int = 50,
    *,
    coding: str = "reference",
    units: Mapping[str, tuple[float, float]] | None = None,
) -> Layers:
    """The layers of a network, for rows that follow `schema`; `units` may name the outcome, too."""
    units = dict(units or {})
    if not isinstance(hidden, int) or isinstance(hidden, bool) or hidden < 1:
        raise ValueError(f"hidden={hidden!r} must be a whole number of units, at least 1")
    if outcome in covariates:
        raise ValueError(f"outcome={outcome!r} is also a covariate: remove it from the covariates")
    if not covariates or len(set(covariates)) != len(covariates):
        raise ValueError(f"covariates={list(covariates)} must be names of columns, at least one, and none twice")
    schema.select([*covariates, outcome])
    column = schema[outcome]
    if not isinstance(column, Numeric):
        raise ValueError(f"outcome={outcome!r} must be a numeric column: a network of this family is a regression")
    centre, scale = unit_of(column, units)
    own = {name: unit for name, unit in units.items() if name != outcome}
    terms = terms_of([schema[name] for name in covariates], coding, own)
    labels = ("Intercept", *(label for term in terms for label in term.labels))
    refuse_repeated(labels)

    def of_row(row):
        return jnp.concatenate([jnp.ones(1), *(term.features(row[term.name]) for term in terms)])

    made = Layers(tuple(covariates), outcome, hidden, labels, of_row, centre, scale, coding, units)
    if made.weights > MOST_WEIGHTS:
        raise ValueError(f"hidden={hidden} has {made.weights} weights on these columns, more than {MOST_WEIGHTS}")
    return made


def network(
    outcome: str,
    covariates: Sequence[str],
    schema: Schema,
    hidden: int = 50,
    priors: Priors = PRIORS,
    *,
    coding: str = "reference",
    units: Mapping[str, tuple[float, float]] | None = None,
    frozen: int | None = None,
) -> Model:
    """A regression of `outcome` on `covariates` by a network with one layer of `hidden` units.

    `coding` is that of `glm`; `units` maps numeric columns, the outcome among them, to public constants (centre, scale)
    that replace mid-bounds and half the range. With `frozen` the hidden layer is drawn from its prior, by this public
    seed, and then known: what is left is linear in its parameters, and few of them.

    >>> schema = Schema((Numeric("age", 20, 60), Numeric("dose", 0, 2), Numeric("pressure", 80, 200)))
    >>> model = network("pressure", ["age", "dose"], schema, hidden=10)
    >>> model.dim, {name: values.shape for name, values in model.constrain(jnp.zeros(42)).items()}
    (42, {'hidden': (10, 3), 'outer': (11,), 'sigma': ()})
    >>> network("pressure", ["age", "dose"], schema, hidden=10, frozen=1).dim
    12
    """
    made = layers(outcome, covariates, schema, hidden, coding=coding, units=units)
    known = _laws(priors)
    if frozen is None:
        return _learned(made, schema, priors, known)
    if priors.shared is not None:
        raise ValueError("frozen hidden weights share no precision with the others: leave priors.shared out")
    return _frozen(made, schema, priors, known, frozen)


class _Laws(NamedTuple):
    """The priors, none missing but perhaps `shared`, and the map to its unconstrained coordinate."""

    hidden: Any
    outer: Any
    precision: Any
    shared: Any
    to_shared: Any


def _laws(priors: Priors) -> _Laws:
    import numpyro.distributions as dist
    from numpyro.distributions.transforms import biject_to

    usual = (dist.Normal(0.0, 1.0), dist.Normal(0.0, 1.0), dist.Gamma(6.0, 6.0), None)
    given = Priors(*(one if own is None else own for own, one in zip(priors, usual, strict=True)))
    for name, law in given._asdict().items():
        if law is None:
            continue
        if not isinstance(law, dist.Distribution) or law.batch_shape or law.event_shape or law.is_discrete:
            raise ValueError(f"priors.{name}={law!r} must be a continuous NumPyro distribution of one number")
        wanted = "positive" if name in ("precision", "shared") else "real"
        if (law.support is dist.constraints.real) != (wanted == "real") or (
            wanted == "positive" and law.support is not dist.constraints.positive
        ):
            raise ValueError(f"priors.{name}={type(law).__name__} must have the {wanted} numbers as its support")
    return _Laws(*given, to_shared=biject_to(dist.constraints.positive))


def _learned(made: Layers, schema: Schema, priors: Priors, laws: _Laws) -> Model:
    """z: hidden weights, τ × outer ones, softplus⁻¹(τ), and with a shared precision log λ."""
    cut, last = made.hidden * made.inputs, made.weights
    dim = last + 1 + (laws.shared is not None)

    def parts(z):
        tau = jax.nn.softplus(z[last])
        return z[:cut].reshape(made.hidden, made.inputs), z[cut:last] / tau, tau

    def log_prior(z):
        hidden, outer, tau = parts(z)
        scale, more = 1.0, 0.0
        if laws.shared is not None:
            shared = laws.to_shared(z[last + 1])
            scale = jnp.sqrt(shared)
            jacobian = laws.to_shared.log_abs_det_jacobian(z[last + 1], shared)
            more = laws.shared.log_prob(shared) + jacobian + made.weights * jnp.log(scale)
        found = laws.hidden.log_prob(hidden * scale).sum() + laws.outer.log_prob(outer * scale).sum() + more
        return found + _of_tau(laws, z[last], tau) - len(outer) * jnp.log(tau)

    def of_predictor(u, rest, row):
        return _log_density(
            rest[made.hidden + 1], jnp.dot(rest[: made.hidden + 1], made.above(jnp.atleast_1d(u))), made.target(row)
        )

    def constrain(z):
        hidden, outer, tau = parts(z)
        found = {"hidden": hidden, "outer": outer, "sigma": made.scale / tau}
        return found if laws.shared is None else {**found, "precision": laws.to_shared(z[last + 1])}

    def sample_prior(key):
        keys = jax.random.split(key, 4)
        shared = None if laws.shared is None else laws.shared.sample(keys[3])
        scale = 1.0 if shared is None else jnp.sqrt(shared)
        tau = jnp.sqrt(laws.precision.sample(keys[2]))
        outer = laws.outer.sample(keys[1], (made.hidden + 1,)) / scale
        beside = [softplus_inverse(tau, jnp), *([] if shared is None else [laws.to_shared.inv(shared)])]
        return jnp.concatenate([laws.hidden.sample(keys[0], (cut,)) / scale, outer * tau, jnp.stack(beside)])

    def output(z, row):
        hidden, outer, tau = parts(z)
        return outer @ made.above(hidden @ made.features(row).astype(z.dtype)), tau

    return _model(
        made,
        schema,
        dim,
        log_prior,
        Linear(made.features, of_predictor, made.hidden),
        constrain,
        sample_prior,
        output,
        {"priors": _described(priors)},
    )


def _frozen(made: Layers, schema: Schema, priors: Priors, laws: _Laws, seed: int) -> Model:
    """z: τ × outer weights, and softplus⁻¹(τ)."""
    with jax.enable_x64(True):
        drawn = np.asarray(laws.hidden.sample(jax.random.key(seed), (made.hidden, made.inputs)), float)

    def features(row):
        return made.above(drawn @ made.features(row))

    def parts(z):
        tau = jax.nn.softplus(z[-1])
        return z[:-1] / tau, tau

    def log_prior(z):
        outer, tau = parts(z)
        return laws.outer.log_prob(outer).sum() + _of_tau(laws, z[-1], tau) - len(outer) * jnp.log(tau)

    def sample_prior(key):
        first, second = jax.random.split(key)
        tau = jnp.sqrt(laws.precision.sample(first))
        return jnp.append(laws.outer.sample(second, (made.hidden + 1,)) * tau, softplus_inverse(tau, jnp))

    def output(z, row):
        outer, tau = parts(z)
        return outer @ features(row).astype(z.dtype), tau

    def constrain(z):
        outer, tau = parts(z)
        return {"outer": outer, "sigma": made.scale / tau}

    linear = Linear(features, lambda u, rest, row: _log_density(rest[0], u, made.target(row)))
    said = {"priors": _described(priors), "frozen": seed}
    return _model(made, schema, made.hidden + 2, log_prior, linear, constrain, sample_prior, output, said)


def _model(
    made: Layers, schema: Schema, dim: int, log_prior, log_likelihood, constrain, sample_prior, output, said
) -> Model:
    """The model around the `output` of a network: (mean, τ) of a row's outcome."""

    def simulate(key, z, row):
        centre, tau = output(z, row)
        value = (centre + jax.random.normal(key) / tau) * made.scale + made.centre
        return {made.outcome: clamp(value, schema[made.outcome])}

    return Model(
        dim=dim,
        log_prior=log_prior,
        log_likelihood=log_likelihood,
        constrain=constrain,
        sample_prior=sample_prior,
        columns=made.columns,
        outcome=(made.outcome,),
        simulate=simulate,
        mean=lambda z, row: output(z, row)[0] * made.scale + made.centre,
        description={**made.describe(), **said},
    )


def _of_tau(laws: _Laws, raw: Array, tau: Array) -> Array:
    """log density of softplus⁻¹(τ), whose square has the precision's prior."""
    return laws.precision.log_prob(tau**2) + jnp.log(2 * tau) + jax.nn.log_sigmoid(raw)


def _log_density(raw: Array, predictor: Array, y: Array) -> Array:
    """Of a Gaussian outcome, its mean times τ the predictor."""
    tau = jax.nn.softplus(raw)
    return jnp.log(tau) - 0.5 * (tau * y - predictor) ** 2


def _described(priors: Priors) -> dict[str, Any]:
    """Each prior by its name and numbers."""
    return {
        name: None
        if law is None
        else [type(law).__name__, {p: float(getattr(law, p)) for p in law.reparametrized_params or law.arg_constraints}]
        for name, law in priors._asdict().items()
    }


def priors_of(described: Mapping[str, Any]) -> Priors:
    """The priors that a description names."""
    import numpyro.distributions as dist

    return Priors(**{name: one and getattr(dist, one[0])(**one[1]) for name, one in described.items()})
