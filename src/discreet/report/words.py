"""The words and numbers around an estimate: what a coefficient means, and how many digits it has."""

import math
from collections.abc import Iterable

from discreet.posterior.types import Posterior
from discreet.schema import Categorical, Numeric, Schema


def meaning(posterior: Posterior) -> str:
    """One line on what the coefficients of a regression are; empty for any other model."""
    model, schema = posterior.model, posterior.schema
    if model is None or schema is None or model.description.get("family") not in _SCALES:
        return ""
    outcome = schema[model.description["outcome"]]
    columns = [schema[name] for name in model.description["covariates"]]
    units = ["per unit of a numeric column"] if any(isinstance(column, Numeric) for column in columns) else []
    levels = ", ".join(f"{column.name} = {column.levels[0]}" for column in columns if isinstance(column, Categorical))
    against = [f"levels against {levels}"] if levels else []
    scale = _SCALES[model.description["family"]](outcome)
    return f"Coefficients are {'; '.join([scale, *units, *against])}. Intercept: at mid-bounds and first levels."


def modelled_level(outcome: Numeric | Categorical) -> object:
    """The level whose odds a logistic regression models: the second."""
    return outcome.levels[1] if isinstance(outcome, Categorical) else 1


def description(posterior: Posterior) -> dict:
    """The model as plain values, with the modelled level of a logistic outcome."""
    facts = dict(posterior.model.description) if posterior.model else {}
    if facts.get("family") == "logistic" and isinstance(posterior.schema, Schema):
        facts["modelled_level"] = modelled_level(posterior.schema[facts["outcome"]])
    return facts


def rounded(values: Iterable[float], sd: float) -> list[str]:
    """The values to the second digit of their sd: what lies beyond is noise.

    >>> rounded([-0.74712, 0.00367, -0.0001], 0.0437)
    ['-0.747', '0.004', '0.000']
    """
    if not (math.isfinite(sd) and 1e-7 < sd < 1e7):
        return [f"{value:.4g}" for value in values]
    places = max(0, 1 - math.floor(math.log10(sd)))
    return [f"{round(value, places) + 0.0:.{places}f}" for value in values]


def _log_odds(outcome: Numeric | Categorical) -> str:
    other = outcome.levels[0] if isinstance(outcome, Categorical) else 0
    return f"log odds of {outcome.name} = {modelled_level(outcome)} against {other}"


_SCALES = {
    "gaussian": lambda outcome: f"changes of the mean of {outcome.name}",
    "logistic": _log_odds,
    "poisson": lambda outcome: f"changes of the log mean of {outcome.name}",
}
