"""A mixture of Gaussians whose means alone are unknown: what DP-EM and the sites of DP-SEP know."""

from typing import NamedTuple

import numpy as np


class Mixture(NamedTuple):
    """Rows from Σ_j weights_j N(μ_j, sd²I) over `columns`; before that μ_j ~ N(mean_j, prior_sd²I).

    `mean` has shape (components, columns).
    """

    columns: tuple[str, ...]
    weights: np.ndarray
    sd: float
    mean: np.ndarray
    prior_sd: float

    @property
    def shape(self) -> tuple[int, int]:
        """(components, columns)."""
        return len(self.weights), len(self.columns)

    def describe(self) -> dict:
        """Plain values, for a release."""
        return {name: np.asarray(value).tolist() for name, value in self._asdict().items()}


def check(mixture: Mixture) -> None:
    """Refuse what is no mixture."""
    if np.shape(mixture.mean) != mixture.shape:
        raise ValueError(f"mean has shape {np.shape(mixture.mean)}; these components and columns need {mixture.shape}")
    if not (np.min(mixture.weights) > 0 and np.isclose(np.sum(mixture.weights), 1)):
        raise ValueError(f"weights={list(mixture.weights)} must be positive and sum to 1")
    for name in ("sd", "prior_sd"):
        value = getattr(mixture, name)
        if not (np.isfinite(value) and value > 0):
            raise ValueError(f"{name}={value} must be positive and finite")
