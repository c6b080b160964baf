"""The last iterate taken at its word: what DPVI reports when it does not know about its noise."""

import numpy as np

from discreet.posterior.trace import TraceError
from discreet.release import Release


def last_iterate(release: Release, draws: int = 4000) -> np.ndarray:
    """φ_T as if it were the optimum, repeated `draws` times, shape (…, draws, d)."""
    if not np.isfinite(release.last).all():
        raise TraceError("the last iterate is not finite: the steps diverged; lower the learning rate")
    return np.repeat(release.last[..., None, :], draws, axis=-2)
