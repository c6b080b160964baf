"""The words and numbers around an estimate: what a coefficient means, and how many digits it has."""

import math
from collections.abc import Iterable

from discreet.posterior.types import Posterior
from discreet.schema import Categorical, Numeric, Schema


def meaning(posterior: Posterior) -> str:
    """What the coefficients of a regression are, and where its intercept stands; empty for any other model."""
    model, schema = posterior.model, posterior.schema
    if model is None or schema is None or model.description.get("family") not in _SCALES:
        return ""
    facts = model.description
    columns = [schema[name] for name in facts["covariates"]]
    numeric = [column.name for column in columns if isinstance(column, Numeric)]
    first = [f"{column.name} = {column.levels[0]}" for column in columns if isinstance(column, Categorical)]
    units, every = facts.get("units", {}), facts.get("coding") == "every level"
    are, stands = [_SCALES[facts["family"]](schema[facts["outcome"]])], []
    if numeric:
        are.append("per unit of a numeric column")
        others = [] if len(units) == len(numeric) else ["mid-bounds of the others" if units else "mid-bounds"]
        stands.append("at " + ", ".join([*(f"{name} = {centre:g}" for name, (centre, _) in units.items()), *others]))
    if first:
        are.append("one for each level, none of them a reference" if every else f"levels against {', '.join(first)}")
        stands.append("without any level's coefficient" if every else "at first levels")
    return f"Coefficients are {'; '.join(are)}." + (f" Intercept: {' and '.join(stands)}." if stands else "")


def modelled_level(outcome: Numeric | Categorical) -> object:
    """The level whose probability a logistic or probit regression models: the second."""
    return outcome.levels[1] if isinstance(outcome, Categorical) else 1


def description(posterior: Posterior) -> dict:
    """The model as plain values, with the modelled level of a binary outcome."""
    facts = dict(posterior.model.description) if posterior.model else {}
    if facts.get("family") in ("logistic", "probit") and isinstance(posterior.schema, Schema):
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


def _quantiles(outcome: Numeric | Categorical) -> str:
    return f"changes of the normal quantile of P({outcome.name} = {modelled_level(outcome)})"


_SCALES = {
    "gaussian": lambda outcome: f"changes of the mean of {outcome.name}",
    "logistic": _log_odds,
    "probit": _quantiles,
    "poisson": lambda outcome: f"changes of the log mean of {outcome.name}",
}
