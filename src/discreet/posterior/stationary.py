"""Where noisy steps settle on a quadratic: φ ← φ − Λ(H(φ − φ*) + noise), noise ~ N(0, Q), forever."""

import numpy as np
from scipy import linalg

from discreet.posterior.trace import TraceError


def stationary_covariance(step: float | np.ndarray, curvature: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Covariance of the iterates: Σ = (I − ΛH)Σ(I − ΛH)ᵀ + ΛQΛᵀ, the discrete (Stein) equation.

    `step` is Λ: a number, one for each coordinate, or a matrix. `curvature` is H = κA.

    >>> stationary_covariance(0.5, np.eye(1), np.eye(1)).round(4)
    array([[0.3333]])
    """
    step, moved = _parts(step, curvature)
    largest = np.abs(np.linalg.eigvals(moved)).max()
    if largest >= 1:
        raise TraceError(
            f"the steps explode: the largest |eigenvalue| of I − step × curvature is {largest:.3g}; "
            "below 1 they settle: lower the step"
        )
    return linalg.solve_discrete_lyapunov(moved, step @ np.atleast_2d(noise) @ step.T)


def ou_covariance(step: float | np.ndarray, curvature: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Covariance of the Ornstein-Uhlenbeck process that replaces short steps: ΛHΣ + ΣHᵀΛᵀ = ΛQΛᵀ (Lyapunov).

    DPVIm's E.7. It is the limit of `stationary_covariance` as Λ → 0 and too small at any other step.

    >>> ou_covariance(0.5, np.eye(1), np.eye(1)).round(4)
    array([[0.25]])
    """
    step, moved = _parts(step, curvature)
    pull = np.eye(len(moved)) - moved
    if np.linalg.eigvals(pull).real.min() <= 0:
        raise TraceError("step × curvature has an eigenvalue that is not positive: nothing pulls the iterates back")
    return linalg.solve_continuous_lyapunov(pull, step @ np.atleast_2d(noise) @ step.T)


def _parts(step: float | np.ndarray, curvature: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Λ as a matrix, and I − ΛH."""
    curvature = np.atleast_2d(np.asarray(curvature, np.float64))
    dim = len(curvature)
    step = np.asarray(step, np.float64)
    step = step if step.ndim == 2 else np.diag(np.broadcast_to(step, dim))
    return step, np.eye(dim) - step @ curvature
