"""Sharpness: a prior is calibrated too, so width stands beside coverage."""

import numpy as np


def sd_ratio(draws: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Mean over data sets of posterior sd ÷ reference sd, per coordinate; both have shape (K, draws, d)."""
    return (draws.std(1) / reference.std(1)).mean(0)


def normal_log_score(draws: np.ndarray, truth: np.ndarray) -> float:
    """Mean log density of the truth under a normal with each posterior's own moments (higher is better)."""
    centre, spread = draws.mean(1), draws.std(1)
    return float(np.mean(-0.5 * ((truth - centre) / spread) ** 2 - np.log(spread) - 0.5 * np.log(2 * np.pi)))
