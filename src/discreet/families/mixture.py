"""Mixtures of whole rows: components in which columns are independent, and one regression of an outcome on the others.

Such a model makes every column of a schema, so that tables can be drawn from its posterior. Components can be swapped
without changing any density: what a posterior says of one of them is of one labelling.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from discreet.families import components as within
from discreet.families.components import Priors
from discreet.families.glm import glm
from discreet.model import Linear, Model, Row
from discreet.schema import Categorical, Schema

MOST_PARAMETERS = 10_000
NUMERIC = ("binned", "gaussian")
PRIORS = Priors()
_TAKEN = ("unconstrained", "chain", "draw")  # by what a posterior is saved as


def mixture(
    schema: Schema,
    components: int = 16,
    outcome: str | None = None,
    family: str | None = None,
    *,
    numeric: str = "binned",
    bins: int = 16,
    coding: str = "reference",
    priors: Priors = PRIORS,
    missing: Mapping[str, Any] | None = None,
) -> Model:
    """p(row) = Σ_k weights_k Π_j p(x_j | k) over the columns of a schema; an `outcome` is a regression on the others.

    Categorical columns, and integer ones of at most 32 values, have a probability for each value. Other numbers are
    "binned", with a density that is even within each of `bins` equal bins between the bounds: the default, because what
    a row answers is then bounded wherever z is, so that one clip norm fits. Or they are "gaussian": a value at a bound
    counts as that value, although the table may have clamped it there, and simulated values are clamped.

    `missing` names, by column, the declared level that stands for "not observed". A row with it counts by the sum over
    all other levels, which is right if values are missing at random, and no row is simulated with it. Without being
    named here it is a level like any other. `family` and `coding` are those of `glm`.

    >>> from discreet.schema import Numeric
    >>> sex, smokes = Categorical("sex", ("f", "m")), Categorical("smokes", ("no", "yes", "?"), missing="?")
    >>> schema = Schema((sex, smokes, Numeric("visits", 0, 40, integer=True)))
    >>> model = mixture(schema, 4, "visits", "poisson")
    >>> model.dim, model.outcome
    (19, ('sex', 'smokes', 'visits'))
    >>> {name: values.shape for name, values in model.constrain(jnp.zeros(19)).items()}
    {'coefficients': (4,), 'weights': (4,), 'sex': (4, 2), 'smokes': (4, 3)}
    >>> mixture(schema.select(["sex", "smokes"]), 4, missing={"smokes": "?"}).constrain(jnp.zeros(11))["smokes"].shape
    (4, 2)
    """
    missing = dict(missing or {})
    _check_numbers(components, numeric, bins, priors)
    covariates = _covariates(schema, outcome, family)
    _check_missing(schema, outcome, missing)
    laid = within.layout(schema.select(covariates).columns, components, numeric, bins, missing)
    model = _of_columns(laid, priors, tuple(covariates))
    if outcome is not None and family is not None:
        regression = glm(family, outcome, covariates, schema, priors.outcome, coding=coding)
        model = _joined(regression, model, schema.names)
    if model.dim > MOST_PARAMETERS:
        raise ValueError(
            f"components={components} have {model.dim} parameters on these columns, more than {MOST_PARAMETERS}: take "
            "fewer components or bins, or join levels"
        )
    _refuse_repeated(laid, model)
    options = {"components": components, "numeric": numeric, "bins": bins, "missing": missing}
    return replace(model, description={**_description(schema, priors, model), **options})


def _of_columns(laid: within.Layout, priors: Priors, names: tuple[str, ...]) -> Model:
    """The mixture alone."""

    def joint(of_binned: Array | float, parts: within.Parts, row: Row) -> Array:
        of_numbers = within.of_numbers(laid, parts, row) if laid.smooth else 0.0
        return jax.nn.logsumexp(within.log_weights(parts) + of_binned + of_numbers)

    def log_likelihood(z: Array, row: Row) -> Array:
        parts = within.split(laid, z)
        return joint(within.of_binned(laid, parts, row) if laid.binned else 0.0, parts, row)

    def of_predictor(u: Array, rest: Array, row: Row) -> Array:
        behind = within.split(laid, jnp.concatenate([jnp.zeros(laid.ends[0], rest.dtype), rest]))
        density = within.density_of(laid, row, rest.dtype) if laid.uneven else 0.0
        return joint(jnp.atleast_1d(u), behind, row) + density

    linear = Linear(
        partial(within.indicators, laid), of_predictor, laid.components, partial(within.log_partition, laid)
    )

    def simulate(key: Array, z: Array, row: Row) -> dict[str, Array]:
        del row
        made = within.simulated(laid, within.split(laid, z), key)
        return {name: made[name] for name in names}

    return Model(
        dim=laid.ends[-1],
        log_prior=lambda z: within.log_prior(laid, priors, within.split(laid, z)),
        log_likelihood=linear if laid.binned and not laid.absent else log_likelihood,
        constrain=lambda z: within.named(laid, within.split(laid, z)),
        sample_prior=lambda key: within.prior_draw(laid, priors, key),
        columns=names,
        outcome=names,
        simulate=simulate,
        coordinates=within.coordinates(laid),
    )


def _joined(regression: Model, own: Model, names: tuple[str, ...]) -> Model:
    """Rows of `own`, with the outcome that the regression makes of them; z ends with the regression's."""
    cut, likelihood = own.dim, own.log_likelihood
    make, make_outcome, mean = own.simulate, regression.simulate, regression.mean
    assert make is not None
    assert make_outcome is not None
    assert mean is not None

    def log_likelihood(z: Array, row: Row) -> Array:
        return own.log_likelihood(z[:cut], row) + regression.log_likelihood(z[cut:], row)

    def of_predictor(u: Array, rest: Array, row: Row) -> Array:
        assert isinstance(likelihood, Linear)
        behind = len(rest) - regression.dim
        return likelihood.of_predictor(u, rest[:behind], row) + regression.log_likelihood(rest[behind:], row)

    def sample_prior(key: Array) -> Array:
        first, second = jax.random.split(key)
        return jnp.concatenate([own.sample_prior(second), regression.sample_prior(first)])

    def simulate(key: Array, z: Array, row: Row) -> dict[str, Array]:
        first, second = jax.random.split(key)
        made = make(first, z[:cut], row)
        made |= make_outcome(second, z[cut:], made)
        return {name: made[name] for name in names}

    return Model(
        dim=cut + regression.dim,
        log_prior=lambda z: own.log_prior(z[:cut]) + regression.log_prior(z[cut:]),
        log_likelihood=replace(likelihood, of_predictor=of_predictor)
        if isinstance(likelihood, Linear)
        else log_likelihood,
        constrain=lambda z: {**regression.constrain(z[cut:]), **own.constrain(z[:cut])},
        sample_prior=sample_prior,
        columns=names,
        outcome=names,
        simulate=simulate,
        mean=lambda z, row: mean(z[cut:], row),
        labels=regression.labels,
        coordinates=(*own.coordinates, *_names_of(regression)),
        description={"regression": dict(regression.description)},
    )


def _names_of(regression: Model) -> tuple[str, ...]:
    names = regression.labels["coefficients"]
    return (*names, *("softplus⁻¹(1/sigma)" for _ in range(regression.dim - len(names))))


def _description(schema: Schema, priors: Priors, model: Model) -> dict[str, Any]:
    chosen = {**priors._asdict(), "outcome": priors.outcome and priors.outcome._asdict()}
    return {"family": "mixture", "columns": list(schema.names), "priors": chosen, **model.description}


def _covariates(schema: Schema, outcome: str | None, family: str | None) -> list[str]:
    if (outcome is None) != (family is None):
        raise ValueError(f"outcome={outcome!r} and family={family!r} belong together: give both, or neither")
    if outcome is not None:
        schema[outcome]
    covariates = [name for name in schema.names if name != outcome]
    if not covariates:
        raise ValueError(f"outcome={outcome!r} is the schema's only column: a mixture needs others to be one of")
    return covariates


def _check_numbers(components: int, numeric: str, bins: int, priors: Priors) -> None:
    for name, value, least in (("components", components, 1), ("bins", bins, 2)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name}={value!r} must be a whole number, at least {least}")
    if numeric not in NUMERIC:
        raise ValueError(f"numeric={numeric!r} must be one of {list(NUMERIC)}")
    mean, sd = priors.inverse_scale
    positive = {name: getattr(priors, name) for name in ("weights", "levels", "location_sd")}
    for name, value in {**positive, "inverse_scale[1]": sd}.items():
        if not 0 < value < math.inf:
            raise ValueError(f"priors.{name}={value} must be positive and finite")
    if not math.isfinite(mean):
        raise ValueError(f"priors.inverse_scale[0]={mean} must be finite")


def _check_missing(schema: Schema, outcome: str | None, missing: Mapping[str, Any]) -> None:
    for name, level in missing.items():
        column = schema[name]
        if outcome is not None:
            remedy = "leave it out of missing, so that it is a level like any other"
            raise ValueError(f"missing names {name!r}, which the regression of {outcome!r} needs: {remedy}")
        if not within.is_listed(column):
            most = f"integer columns of at most {within.MOST_VALUES} values"
            raise ValueError(f"missing names {name!r}: only categorical and {most} can have a value that is missing")
        values = list(
            column.levels if isinstance(column, Categorical) else range(int(column.low), int(column.high) + 1)
        )
        if level not in values:
            raise ValueError(f"missing[{name!r}]={level!r} must be one of the declared values {values}")
        if len(values) < 3:
            raise ValueError(f"missing[{name!r}]={level!r} leaves one value: leave the column out of the schema")


def _refuse_repeated(laid: within.Layout, model: Model) -> None:
    """Columns must not be named like other parameters, nor like what a posterior is saved with."""
    own = [cut.column.name for cut in laid.binned]
    own += [f"{column.name}.{part}" for column in laid.smooth for part in ("location", "scale")]
    others = ["weights", *(("coefficients", "sigma") if model.labels else ()), *_TAKEN]
    saved = [name.replace("/", ".") for name in (*own, *others)]
    repeated = sorted({name for name in saved if saved.count(name) > 1})
    if repeated:
        raise ValueError(f"{repeated} would name two parameters each: rename those columns")
