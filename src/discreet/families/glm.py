"""Generalised linear models from a column list: Gaussian, logistic and Poisson regression.

Numeric covariates are scaled to [−1, 1] by their declared bounds, categorical ones are coded against their first
level: public facts only. Priors are weakly informative on that scale. Parameters are reported in the columns' own
units; the intercept is the linear predictor at mid-bounds and first levels.

The Gaussian family works with τ = 1/σ and α = coefficients·τ, where the log-likelihood log τ − ½(τy − α·x)² is concave
and a row's gradient does not grow as σ shrinks, so one clip norm serves every σ.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from discreet.model import Model, Row
from discreet.schema import Categorical, Numeric, Schema


class Priors(NamedTuple):
    """Normal priors on the scaled problem: sds of slopes and intercept, and moments of softplus⁻¹(1/σ).

    A Gaussian outcome is scaled to [−1, 1] too, and its slopes are in residual sds. A Poisson intercept is centred a
    third of the way up to the declared bound on the log scale.
    """

    slope_sd: float
    intercept_sd: float
    inverse_sigma: tuple[float, float] = (6.0, 2.0)


PRIORS = {"gaussian": Priors(1.5, 2.0), "logistic": Priors(2.0, 2.0), "poisson": Priors(0.5, 1.0)}


def glm(family: str, outcome: str, covariates: Sequence[str], schema: Schema, priors: Priors | None = None) -> Model:
    """The regression of `outcome` on `covariates`, for rows that follow `schema`.

    >>> schema = Schema((Numeric("age", 20, 60), Categorical("sex", ("f", "m")), Categorical("ill", ("no", "yes"))))
    >>> model = glm("logistic", "ill", ["age", "sex"], schema)
    >>> model.labels["coefficients"]
    ('Intercept', 'age', 'sex[m]')
    """
    _check(family, outcome, covariates, schema)
    priors = priors or PRIORS[family]
    columns = [schema[name] for name in covariates]
    labels = ("Intercept", *(label for column in columns for label in _labels(column)))
    scale, centre = _outcome_units(family, schema[outcome])
    units = scale / np.concatenate([[1.0], *(_half_ranges(column) for column in columns)])
    mean, sd = _prior_moments(family, priors, schema[outcome], len(labels))

    def linear_predictor(z: Array, row: Row) -> Array:
        parts = [_features(column, row[column.name]) for column in columns]
        return jnp.dot(z[: len(labels)], jnp.concatenate([jnp.ones(1, z.dtype), *parts]))

    def log_likelihood(z, row):
        return _LOG_LIKELIHOODS[family](z, linear_predictor(z, row), (row[outcome] - centre) / scale)

    def constrain(z):
        shift = np.zeros(len(labels))
        shift[0] = centre
        if family != "gaussian":
            return {"coefficients": z * units}
        sigma = 1 / jax.nn.softplus(z[-1])
        return {"coefficients": z[:-1] * sigma * units + shift, "sigma": sigma * scale}

    def simulate(key, z, row):
        value = _SIMULATORS[family](key, z, linear_predictor(z, row)) * scale + centre
        return {outcome: _clamp(value, schema[outcome])}

    return Model(
        dim=len(mean),
        log_prior=lambda z: -0.5 * jnp.sum(((z - mean) / sd) ** 2),
        log_likelihood=log_likelihood,
        constrain=constrain,
        sample_prior=lambda key: jnp.asarray(mean) + sd * jax.random.normal(key, mean.shape),
        columns=(*covariates, outcome),
        outcome=(outcome,),
        simulate=simulate,
        mean=lambda z, row: _MEANS[family](z, linear_predictor(z, row)) * scale + centre,
        labels={"coefficients": labels},
        description={"family": family, "outcome": outcome, "covariates": list(covariates)},
    )


def _gaussian(z, predictor, y):
    tau = jax.nn.softplus(z[-1])
    return jnp.log(tau) - 0.5 * (tau * y - predictor) ** 2


def _logistic(z, predictor, y):
    del z
    return y * predictor - jax.nn.softplus(predictor)


def _poisson(z, predictor, y):
    del z
    return y * predictor - jnp.exp(predictor) - jax.scipy.special.gammaln(y + 1)


_LOG_LIKELIHOODS = {"gaussian": _gaussian, "logistic": _logistic, "poisson": _poisson}
_MEANS = {
    "gaussian": lambda z, u: u / jax.nn.softplus(z[-1]),
    "logistic": lambda z, u: jax.nn.sigmoid(u),
    "poisson": lambda z, u: jnp.exp(u),
}
_SIMULATORS = {
    "gaussian": lambda key, z, u: (u + jax.random.normal(key)) / jax.nn.softplus(z[-1]),
    "logistic": lambda key, z, u: jax.random.bernoulli(key, jax.nn.sigmoid(u)).astype(u.dtype),
    "poisson": lambda key, z, u: jax.random.poisson(key, jnp.exp(jnp.minimum(u, 20.0))).astype(u.dtype),
}


def _labels(column) -> list[str]:
    if isinstance(column, Categorical):
        return [f"{column.name}[{level}]" for level in column.levels[1:]]
    return [column.name]


def _half_ranges(column) -> np.ndarray:
    if isinstance(column, Categorical):
        return np.ones(len(column.levels) - 1)
    return np.array([(column.high - column.low) / 2])


def _features(column, value) -> Array:
    if isinstance(column, Categorical):
        return (value == jnp.arange(1, len(column.levels))).astype(float)
    half = (column.high - column.low) / 2
    return jnp.reshape((value - column.low) / half - 1, (1,))


def _outcome_units(family: str, column) -> tuple[float, float]:
    if family != "gaussian":
        return 1.0, 0.0
    return (column.high - column.low) / 2, (column.high + column.low) / 2


def _prior_moments(family: str, priors: Priors, outcome, terms: int) -> tuple[np.ndarray, np.ndarray]:
    mean, sd = np.zeros(terms), np.full(terms, priors.slope_sd)
    sd[0] = priors.intercept_sd
    if family == "poisson":
        mean[0] = np.log(outcome.high) / 3
    if family == "gaussian":
        mean, sd = np.append(mean, priors.inverse_sigma[0]), np.append(sd, priors.inverse_sigma[1])
    return mean, sd


def _clamp(value: Array, column) -> Array:
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
    counts = isinstance(column, Numeric) and column.integer and column.low >= 0
    fits = {"logistic": _is_binary(column), "poisson": counts, "gaussian": isinstance(column, Numeric)}
    if not fits[family]:
        has = ", ".join(f"{key} = {value}" for key, value in column.to_dict().items())
        raise ValueError(f"outcome={outcome!r} must be {_OUTCOMES[family]} for family={family!r}; it has {has}")
    labels = ["Intercept", "sigma", *(label for name in covariates for label in _labels(schema[name]))]
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated:
        raise ValueError(f"{repeated} would name two parameters each: rename those columns")


_OUTCOMES = {
    "gaussian": "a numeric column",
    "logistic": "a column of two levels (or an integer with bounds 0 and 1)",
    "poisson": "an integer column with bounds ≥ 0",
}


def _is_binary(column) -> bool:
    if isinstance(column, Categorical):
        return len(column.levels) == 2
    return column.integer and (column.low, column.high) == (0, 1)
