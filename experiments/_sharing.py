"""What the studies of data sharing share: the analyst's regression, by maximum likelihood."""

import numpy as np
from scipy.special import expit

MEANS = {"poisson": lambda predictor: np.exp(np.clip(predictor, -20, 20)), "logistic": expit}
VARIANCES = {"poisson": lambda mean: mean, "logistic": lambda mean: mean * (1 - mean)}
LINKS = {"poisson": np.log, "logistic": lambda share: np.log(share / (1 - share))}
STEPS, LEAST = 50, 1e-3


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
