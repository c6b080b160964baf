"""How far an iterate is from the non-private optimum."""

import numpy as np


def mpae(iterate: np.ndarray, optimum: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Mean proportional absolute error: mean of |ξ_t − ξ*| / |ξ_0 − ξ*| over coordinates; leading axes are kept.

    0 is the optimum, 1 as far as the start. A coordinate that starts at its optimum has no scale and is refused.

    >>> float(mpae(np.array([1.0, 4.0]), np.array([0.0, 4.0]), np.array([2.0, 3.0])))
    0.25
    """
    distance = np.abs(np.asarray(start) - optimum)
    still = np.flatnonzero((distance == 0).any(axis=tuple(range(distance.ndim - 1))))
    if len(still):
        raise ValueError(f"coordinates {still.tolist()} start at their optimum: MPAE divides by that distance")
    return (np.abs(np.asarray(iterate) - optimum) / distance).mean(-1)


def l2(iterate: np.ndarray, optimum: np.ndarray) -> np.ndarray:
    """Euclidean distance over the last axis.

    >>> float(l2(np.array([3.0, 4.0]), np.zeros(2)))
    5.0
    """
    return np.linalg.norm(np.asarray(iterate) - optimum, axis=-1)
