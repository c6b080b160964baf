"""What the DP-SEP paper proves of one step: what clipping and noise cost in KL divergence (appendix A, theorem 4.1)."""

from typing import NamedTuple

import numpy as np


def clipping_kl(eta: np.ndarray, precision: np.ndarray, clip_norm: float) -> float:
    """KL(q ‖ p) where p's η and Λ are q's, each shortened to `clip_norm`; ‖Λ‖ is Frobenius' norm.

    ½[d/c + (b²/c)·ηᵀΛ⁻¹η − d + d·log c] with c = max(1, ‖Λ‖/C) and b = c / max(1, ‖η‖/C) − 1: appendix A prints d·c for
    d/c, and the norm of Σ for that of Λ in the logarithm.

    >>> clipping_kl(np.array([1.0, 0.0]), np.eye(2), 10.0)
    0.0
    """
    dim = len(eta)
    c = max(1.0, float(np.linalg.norm(precision)) / clip_norm)
    b = c / max(1.0, float(np.linalg.norm(eta)) / clip_norm) - 1
    return float(0.5 * (dim / c + b**2 / c * eta @ np.linalg.solve(precision, eta) - dim + dim * np.log(c)))


class NoiseBound(NamedTuple):
    """A bound on the expected KL divergence, infinite where the theorem says nothing, and the probability with which it
    is claimed: 0 where that is vacuous.
    """

    kl: float
    probability: float


def noise_kl_bound(
    eta: np.ndarray, precision: np.ndarray, eta_sd: float, precision_sd: float, most: float, least: float
) -> NoiseBound:
    """Theorem 4.1 for q = (η, Λ) and p = (η + e, Λ + E + (ρ − λ_min(Λ + E))·I) with normal e and symmetric E.

    `most` is the theorem's M, a bound on the eigenvalues of E, `least` its ρ. Its h = 1 + (ρ − 2M − λ_min)/λ_i must be
    positive for every eigenvalue λ_i of Λ; with the smallest that means ρ > 2M, which p seldom has. The term written
    aᵀ(…) is read as ‖a‖²(…), as the proof has it.
    """
    values, vectors = np.linalg.eigh(precision)
    dim, smallest = len(values), values[0]
    variance = precision_sd**2 * dim  # ‖Σ_k σ²B_kB_kᵀ‖ of a symmetric matrix with independent upper entries
    probability = max(0.0, 1 - dim * np.exp(-(most**2) / (2 * variance))) if variance else 1.0
    spread = np.sqrt(2 * variance * np.log(dim))
    low, high = (1 + (least + sign * 2 * most - smallest) / values for sign in (-1, 1))
    if low.min() <= 0:
        return NoiseBound(np.inf, probability)
    inverse = (low + high - 1 + (smallest + spread - least) / values) / (low * high)
    lift = least - smallest + spread
    mean, scaled = vectors.T @ eta / values, vectors.T @ eta / np.sqrt(values)
    kl = lift * (1 / values).sum() + eta_sd**2 / smallest * inverse.sum() + (scaled**2 * (inverse - 1)).sum()
    kl += (mean**2).sum() * lift + np.log(inverse).sum()
    return NoiseBound(float(0.5 * kl), float(probability))
