"""Ready models from what they say of themselves, so that a saved run can be read with its model."""

from collections.abc import Callable, Mapping
from typing import Any

from discreet.families import components, exponential
from discreet.families.glm import PRIORS, Priors, glm
from discreet.families.mixture import mixture
from discreet.families.network import network, priors_of
from discreet.model import Model
from discreet.schema import Schema


def described(description: Mapping[str, Any] | None, schema: Schema) -> Model | None:
    """The ready model of this `Model.description`; None if it is of no ready family, such as a NumPyro function.

    Priors of a GLM are not described: it gets the default ones, so do not fit it again.

    >>> from discreet.schema import Categorical
    >>> model = exponential.beta_bernoulli(1, 1, "ill")
    >>> described(model.description, Schema((Categorical("ill", ("no", "yes")),))).description == model.description
    True
    """
    facts = dict(description or {})
    family = facts.pop("family", None)
    if not isinstance(family, str) or family not in _MAKERS:
        return None
    try:
        return _MAKERS[family](family, facts, schema)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"the model {description} has no meaning here ({error}): it was changed") from None


def _glm(family: str, facts: dict[str, Any], schema: Schema) -> Model:
    return glm(family, facts.pop("outcome"), facts.pop("covariates"), schema, **facts)


def _mixture(family: str, facts: dict[str, Any], schema: Schema) -> Model:
    regression, priors = facts.pop("regression", {}), dict(facts.pop("priors"))
    outcome = priors.pop("outcome")
    if outcome is not None:
        outcome = Priors(**{**outcome, "inverse_sigma": tuple(outcome["inverse_sigma"])})
    chosen = components.Priors(**{**priors, "inverse_scale": tuple(priors["inverse_scale"])}, outcome=outcome)
    coding = regression.get("coding", "reference")
    return mixture(
        schema.select(facts.pop("columns")),
        facts.pop("components"),
        regression.get("outcome"),
        regression.get("family"),
        coding=coding,
        priors=chosen,
        **facts,
    )


def _network(family: str, facts: dict[str, Any], schema: Schema) -> Model:
    columns = facts.pop("outcome"), facts.pop("covariates")
    return network(*columns, schema, facts.pop("hidden"), priors_of(facts.pop("priors")), **facts)


def _with(make: Callable[..., Model]) -> Callable[..., Model]:
    """Of a family that takes its own description, and no schema."""
    return lambda family, facts, schema: make(**facts)


_MAKERS: dict[str, Callable[..., Model]] = dict.fromkeys(PRIORS, _glm) | {
    "mixture": _mixture,
    "network": _network,
    "gamma-exponential": _with(exponential.gamma_exponential),
    "beta-bernoulli": _with(exponential.beta_bernoulli),
    "dirichlet-categorical": _with(exponential.dirichlet_categorical),
}
