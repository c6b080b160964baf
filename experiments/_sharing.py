"""What the studies of data sharing share: the analyst's regression, by maximum likelihood, and a survey."""

from itertools import combinations

import numpy as np
from scipy.special import expit

from discreet.families import glm
from discreet.families.components import Priors
from discreet.families.mixture import mixture
from discreet.schema import Categorical, Numeric, Schema

MEANS = {"poisson": lambda predictor: np.exp(np.clip(predictor, -20, 20)), "logistic": expit}
VARIANCES = {"poisson": lambda mean: mean, "logistic": lambda mean: mean * (1 - mean)}
LINKS = {"poisson": np.log, "logistic": lambda share: np.log(share / (1 - share))}
STEPS, LEAST = 50, 1e-3
LEVELS = {"age": 4, "sex": 2, "work": 3, "smokes": 2}
PAIRS = tuple(combinations(LEVELS, 2))
PRIORS = Priors(weights=3.0, levels=3.0, outcome=glm.Priors(0.5, 0.5, intercept=-2.0))
KINDS = ("coefficients", "shares", "pairs")


def regression(x, total, count=1.0, family="poisson"):
    """Estimates, and their variances, of a regression on the columns of x, the first of which is ones: Newton's method.

    Each line of x stands for `count` rows, whose outcomes add up to `total`.
    """
    beta, count = np.zeros(x.shape[1]), np.broadcast_to(count, len(x))
    beta[0] = LINKS[family](np.maximum(total.sum() / count.sum(), LEAST))
    for _ in range(STEPS):
        mean = MEANS[family](x @ beta)
        weight = count * VARIANCES[family](mean)
        inverse = np.linalg.inv((x * weight[:, None]).T @ x + 1e-9 * np.eye(len(beta)))
        step = inverse @ (x.T @ (total - count * mean))
        beta = beta + np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-8:
            break
    return beta, np.diag(inverse)


def survey(most=30):
    """The schema of four columns of levels and a rare count of at most `most`."""
    levels = {name: tuple(f"{name}-{level}" for level in range(count)) for name, count in LEVELS.items()}
    return Schema((*(Categorical(*one) for one in levels.items()), Numeric("events", 0, most, integer=True)))


def model_on(schema, components):
    """Components in which levels are independent, and a Poisson regression of the count on them."""
    return mixture(schema, components, "events", "poisson", priors=PRIORS)


def indicators(columns):
    """Levels of all covariates but each one's first, (rows, features), behind a column of ones."""
    parts = [columns[name][:, None] == np.arange(1, count) for name, count in LEVELS.items()]
    return np.concatenate([np.ones((len(parts[0]), 1)), *parts], axis=1).astype(float)


def shares(columns):
    """The share of each level but the first, and of the last levels of each pair of columns together."""
    found = {"shares": indicators(columns)[:, 1:].mean(0)}
    last = {name: columns[name] == count - 1 for name, count in LEVELS.items()}
    found["pairs"] = np.array([(last[one] & last[other]).mean() for one, other in PAIRS])
    return found


def in_endless_rows(parameters):
    """What the analysis would find in endless rows, by kind: of one draw of the model's parameters, or of many."""
    drawn = {name: np.asarray(values) for name, values in parameters.items()}
    weights = drawn["weights"]
    margins = [np.einsum("...k,...kl->...l", weights, drawn[name])[..., 1:] for name in LEVELS]
    last = {name: drawn[name][..., -1] for name in LEVELS}
    pairs = [(weights * last[one] * last[other]).sum(-1) for one, other in PAIRS]
    return {
        "coefficients": drawn["coefficients"],
        "shares": np.concatenate(margins, axis=-1),
        "pairs": np.stack(pairs, axis=-1),
    }
