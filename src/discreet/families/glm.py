"""Generalised linear models from a column list: Gaussian, logistic, probit and Poisson regression.

Numeric covariates are scaled to [−1, 1] by their declared bounds, or by other public units; categorical ones are coded
against their first level, or with one indicator per level: public facts only. Priors are weakly informative on that
scale. Parameters are reported in the columns' own units; the intercept is the linear predictor at mid-bounds (or the
centres of the units given) and first levels (or before any level's own coefficient is added).

The Gaussian family works with τ = 1/σ and α = coefficients·τ, where the log-likelihood log τ − ½(τy − α·x)² is concave
and a row's gradient does not grow as σ shrinks, so one clip norm serves every σ.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from discreet.model import Linear, Model, Row
from discreet.schema import Categorical, Numeric, Schema


class Priors(NamedTuple):
    """Normal priors on the scaled problem: sds of slopes and intercept, and moments of softplus⁻¹(1/σ).

    A Gaussian outcome is scaled to [−1, 1] too, and its slopes are in residual sds. The intercept is centred at
    `intercept`; without it at zero, and for a Poisson outcome a third of the way up to the declared bound on the log
    scale.
    """

    slope_sd: float
    intercept_sd: float
    inverse_sigma: tuple[float, float] = (6.0, 2.0)
    intercept: float | None = None


PRIORS = {
    "gaussian": Priors(1.5, 2.0),
    "logistic": Priors(2.0, 2.0),
    "probit": Priors(1.25, 1.25),
    "poisson": Priors(0.5, 1.0),
}
CODINGS = {"reference": 1, "every level": 0}
"""How a categorical covariate is coded, and the first of its levels to have an indicator."""


def glm(
    family: str,
    outcome: str,
    covariates: Sequence[str],
    schema: Schema,
    priors: Priors | None = None,
    *,
    coding: str = "reference",
    units: Mapping[str, tuple[float, float]] | None = None,
) -> Model:
    """The regression of `outcome` on `covariates`, for rows that follow `schema`.

    `coding` is "reference" (levels against the first) or "every level" (one indicator each, identified by the prior).
    `units` maps numeric covariates to public constants (centre, scale) that replace mid-bounds and half the range.

    >>> schema = Schema((Numeric("age", 20, 60), Categorical("sex", ("f", "m")), Categorical("ill", ("no", "yes"))))
    >>> model = glm("logistic", "ill", ["age", "sex"], schema)
    >>> model.labels["coefficients"]
    ('Intercept', 'age', 'sex[m]')
    >>> glm("logistic", "ill", ["age", "sex"], schema, coding="every level").labels["coefficients"]
    ('Intercept', 'age', 'sex[f]', 'sex[m]')
    """
    _check(family, outcome, covariates, schema)
    terms = terms_of([schema[name] for name in covariates], coding, units or {})
    labels = ("Intercept", *(label for term in terms for label in term.labels))
    refuse_repeated(labels)
    priors = priors or PRIORS[family]
    scale, centre = _outcome_units(family, schema[outcome])
    in_own_units = scale / np.array([1.0, *(term.scale for term in terms for _ in term.labels)])
    mean, sd = _prior_moments(family, priors, schema[outcome], len(labels))

    def features(row: Row) -> Array:
        parts = [term.features(row[term.name]) for term in terms]
        return jnp.concatenate([jnp.ones(1), *parts])

    def linear_predictor(z: Array, row: Row) -> Array:
        return jnp.dot(z[: len(labels)], features(row).astype(z.dtype))

    linear = Linear(features, lambda u, rest, row: _LOG_LIKELIHOODS[family](rest, u, (row[outcome] - centre) / scale))

    def constrain(z):
        shift = np.zeros(len(labels))
        shift[0] = centre
        if family != "gaussian":
            return {"coefficients": z * in_own_units}
        sigma = 1 / jax.nn.softplus(z[-1])
        return {"coefficients": z[:-1] * sigma * in_own_units + shift, "sigma": sigma * scale}

    def simulate(key, z, row):
        value = _SIMULATORS[family](key, z, linear_predictor(z, row)) * scale + centre
        return {outcome: clamp(value, schema[outcome])}

    return Model(
        dim=len(mean),
        log_prior=lambda z: -0.5 * jnp.sum(((z - mean.astype(z.dtype)) / sd.astype(z.dtype)) ** 2),
        log_likelihood=linear,
        constrain=constrain,
        sample_prior=lambda key: jnp.asarray(mean, float) + jnp.asarray(sd, float) * jax.random.normal(key, mean.shape),
        columns=(*covariates, outcome),
        outcome=(outcome,),
        simulate=simulate,
        mean=lambda z, row: _MEANS[family](z, linear_predictor(z, row)) * scale + centre,
        labels={"coefficients": labels},
        description={"family": family, "outcome": outcome, "covariates": list(covariates)} | options(coding, units),
    )


@jax.custom_jvp
def softplus(u: Array) -> Array:
    """log(1 + eᵘ), with its derivative as what it is: one exponential, where differentiating takes three functions."""
    return jax.nn.softplus(u)


softplus.defjvps(lambda tangent, _, u: tangent * jax.nn.sigmoid(u))


def _gaussian(z, predictor, y):
    tau = jax.nn.softplus(z[-1])
    return jnp.log(tau) - 0.5 * (tau * y - predictor) ** 2


def _logistic(z, predictor, y):
    del z
    return y * predictor - softplus(predictor)


def _probit(z, predictor, y):
    del z
    return jax.scipy.special.log_ndtr((2 * y - 1) * predictor)


def _poisson(z, predictor, y):
    del z
    return y * predictor - jnp.exp(predictor) - jax.scipy.special.gammaln(y + 1)


_LOG_LIKELIHOODS = {"gaussian": _gaussian, "logistic": _logistic, "probit": _probit, "poisson": _poisson}
_MEANS = {
    "gaussian": lambda z, u: u / jax.nn.softplus(z[-1]),
    "logistic": lambda z, u: jax.nn.sigmoid(u),
    "probit": lambda z, u: jax.scipy.special.ndtr(u),
    "poisson": lambda z, u: jnp.exp(u),
}
_SIMULATORS = {
    "gaussian": lambda key, z, u: (u + jax.random.normal(key)) / jax.nn.softplus(z[-1]),
    "logistic": lambda key, z, u: jax.random.bernoulli(key, jax.nn.sigmoid(u)).astype(u.dtype),
    "probit": lambda key, z, u: jax.random.bernoulli(key, jax.scipy.special.ndtr(u)).astype(u.dtype),
    "poisson": lambda key, z, u: jax.random.poisson(key, jnp.exp(jnp.minimum(u, 20.0))).astype(u.dtype),
}


class Term(NamedTuple):
    """A covariate's part of the linear predictor: the features of a value, each a change by `scale` in own units."""

    name: str
    labels: tuple[str, ...]
    scale: float
    features: Callable[[Array], Array]


def terms_of(columns: Sequence[Numeric | Categorical], coding: str, units: Mapping[str, Any]) -> list[Term]:
    """One term for each covariate."""
    if coding not in CODINGS:
        raise ValueError(f"coding={coding!r} must be one of {list(CODINGS)}")
    numeric = [column.name for column in columns if isinstance(column, Numeric)]
    for name in units:
        if name not in numeric:
            raise ValueError(f"units names {name!r}, but the numeric covariates are {numeric}: remove it")
    return [
        _indicators(column, CODINGS[coding]) if isinstance(column, Categorical) else _scaled(column, units)
        for column in columns
    ]


def _indicators(column: Categorical, first: int) -> Term:
    labels = tuple(f"{column.name}[{level}]" for level in column.levels[first:])
    return Term(column.name, labels, 1.0, lambda code: (code == jnp.arange(first, column.size)).astype(float))


def _scaled(column: Numeric, units: Mapping[str, Any]) -> Term:
    centre, scale = unit_of(column, units)
    return Term(column.name, (column.name,), scale, lambda value: jnp.reshape((value - centre) / scale, (1,)))


def unit_of(column: Numeric, units: Mapping[str, Any]) -> tuple[float, float]:
    """Centre and scale of a numeric column: the units given, else mid-bounds and half the range."""
    given = units.get(column.name, ((column.low + column.high) / 2, (column.high - column.low) / 2))
    try:
        centre, scale = map(float, given)
    except (TypeError, ValueError):
        centre = scale = math.nan
    if not (math.isfinite(centre) and 0 < scale < math.inf):
        raise ValueError(f"units[{column.name!r}]={given!r} must be (centre, scale): finite numbers, scale above 0")
    return centre, scale


def options(coding: str, units: Mapping[str, tuple[float, float]] | None) -> dict[str, Any]:
    """What a description says of coding and units, where they are not the default."""
    shown = {name: [float(value) for value in pair] for name, pair in (units or {}).items()}
    return ({"coding": coding} if coding != "reference" else {}) | ({"units": shown} if shown else {})


def _outcome_units(family: str, column) -> tuple[float, float]:
    if family != "gaussian":
        return 1.0, 0.0
    return (column.high - column.low) / 2, (column.high + column.low) / 2


def _prior_moments(family: str, priors: Priors, outcome, terms: int) -> tuple[np.ndarray, np.ndarray]:
    mean, sd = np.zeros(terms), np.full(terms, priors.slope_sd)
    sd[0] = priors.intercept_sd
    if priors.intercept is not None:
        mean[0] = priors.intercept
    elif family == "poisson":
        mean[0] = np.log(outcome.high) / 3
    if family == "gaussian":
        mean, sd = np.append(mean, priors.inverse_sigma[0]), np.append(sd, priors.inverse_sigma[1])
    return mean, sd


def clamp(value: Array, column: Numeric | Categorical) -> Array:
    """A simulated value as the schema would have encoded it: within bounds, whole, or a code."""
    if isinstance(column, Categorical):
        return value.astype(jnp.int32)
    value = jnp.clip(value, column.low, column.high)
    return jnp.round(value) if column.integer else value


def _check(family: str, outcome: str, covariates: Sequence[str], schema: Schema) -> None:
    if family not in PRIORS:
        raise ValueError(f"family={family!r} must be one of {sorted(PRIORS)}")
    if outcome in covariates:
        raise ValueError(f"outcome={outcome!r} is also a covariate: remove it from the covariates")
    if len(set(covariates)) != len(covariates):
        raise ValueError(f"covariates={list(covariates)} has a name twice")
    schema.select([*covariates, outcome])
    column = schema[outcome]
    counts, binary = isinstance(column, Numeric) and column.integer and column.low >= 0, _is_binary(column)
    fits = {"logistic": binary, "probit": binary, "poisson": counts, "gaussian": isinstance(column, Numeric)}
    if not fits[family]:
        has = ", ".join(f"{key} = {value}" for key, value in column.to_dict().items())
        raise ValueError(f"outcome={outcome!r} must be {_OUTCOMES[family]} for family={family!r}; it has {has}")


def refuse_repeated(coefficients: Sequence[str]) -> None:
    """Refuse columns whose names would be those of two parameters."""
    labels = ["sigma", *coefficients]
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated:
        raise ValueError(f"{repeated} would name two parameters each: rename those columns")


_BINARY = "a column of two levels (or an integer with bounds 0 and 1)"
_OUTCOMES = {
    "gaussian": "a numeric column",
    "logistic": _BINARY,
    "probit": _BINARY,
    "poisson": "an integer column with bounds ≥ 0",
}


def _is_binary(column) -> bool:
    if isinstance(column, Categorical):
        return len(column.levels) == 2
    return column.integer and (column.low, column.high) == (0, 1)
