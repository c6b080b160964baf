"""NA-DPVI's theory as numbers: how good the linear trace model is, what it can learn, and which rates suit it.

κ is `sampling_prob`, σC the plan's `noise_std`, A the `curvature` of the loss L of all rows: a symmetric matrix, or
its eigenvalues. Rates are of SGD on batch sums. Where the paper and its proof or a simulation disagree, this is what
the proof or the simulation says.
"""

import numpy as np
from scipy import linalg, optimize

from discreet.plan import Plan, require
from discreet.posterior.trace import TraceError


def approximation_error(
    *, sampling_prob: float, subsampling_error: float, taylor_error: float, radius: float, biased: bool = False
) -> float:
    """Theorem 1: the most that a batch sum is from κA(φ − φ*), as a root mean square: √(e_sub² + (κ·e_tay·r)²).

    It holds on average, not batch by batch as in the proof's first line: the cross term vanishes only in the mean, as
    batch sums are unbiased for κ∇L. Clipped rows or a batch limit make them `biased`: then it is e_sub + κ·e_tay·r.

    >>> approximation_error(sampling_prob=0.1, subsampling_error=3.0, taylor_error=20.0, radius=2.0)
    5.0
    """
    require(0 < sampling_prob <= 1, "sampling_prob", sampling_prob, "lie in (0, 1]")
    _not_negative("subsampling_error", subsampling_error)
    _not_negative("taylor_error", taylor_error)
    _positive("radius", radius)
    curved = sampling_prob * taylor_error * radius
    return float(subsampling_error + curved if biased else np.hypot(subsampling_error, curved))


def largest_subsampling_error(plan: Plan) -> float:
    """The largest e_sub of rows within the clip norm: C√(κ(1 − κ)N), a root mean square over Poisson batches.

    >>> largest_subsampling_error(Plan(100, 1, sampling_prob=0.5, clip_norm=2.0, noise_multiplier=1.0))
    10.0
    """
    kept = plan.sampling_prob
    return float(plan.clip_norm * np.sqrt(kept * (1 - kept) * plan.num_rows))


def curvature_sd(plan: Plan, squares: float | np.ndarray) -> np.ndarray:
    """The sd of each coordinate's least-squares curvature, from `squares` = Σ_t (φ_t − φ*)² (A16): σC / (κ√squares).

    A16 takes the iterates as given, but SGD's iterates hold the same noise: over n steps of rate λ the estimate is too
    high by about 2/(nλκ), and by 4/(nλκ) where φ* is estimated too.

    >>> curvature_sd(Plan(100, 50, sampling_prob=0.5, clip_norm=1.0, noise_multiplier=3.0), np.array([4.0, 9.0]))
    array([3., 2.])
    """
    squares = np.asarray(squares, np.float64)
    require(bool((squares > 0).all()), "squares", squares, "be positive: a coordinate that never moved shows nothing")
    return plan.noise_std / (plan.sampling_prob * np.sqrt(squares))


def curvature_sd_floor(plan: Plan, *, radius: float, dim: int, retained: int) -> float:
    """Theorem 2: the largest `curvature_sd` of any `retained` iterates within `radius` of φ* is at least this.

    radius × sd ≥ (σC/κ)√(d/n). The paper prints the variance in place of the sd: its proof bounds the sd, and the
    variance can be lower.

    >>> plan = Plan(100, 50, sampling_prob=0.5, clip_norm=1.0, noise_multiplier=3.0)
    >>> curvature_sd_floor(plan, radius=2.0, dim=1, retained=9)
    1.0
    """
    _positive("radius", radius)
    _whole("dim", dim)
    _whole("retained", retained)
    require(retained <= plan.steps, "retained", retained, f"be at most the plan's steps={plan.steps}")
    return float(plan.noise_std / plan.sampling_prob * np.sqrt(dim / retained) / radius)


def ou_spread(plan: Plan, rate: float, curvature: float | np.ndarray) -> float:
    """The stationary mean of ‖φ − φ*‖² by the Ornstein-Uhlenbeck law: λσ²C²/(2κ) · tr A⁻¹ (A32), for any symmetric A.

    >>> ou_spread(Plan(100, 50, sampling_prob=0.5, clip_norm=1.0, noise_multiplier=3.0), 0.1, np.array([1.0, 3.0]))
    1.2
    """
    _positive("rate", rate)
    return float(rate * plan.noise_std**2 / (2 * plan.sampling_prob) * (1 / _eigenvalues(curvature)).sum())


def stationary_spread(plan: Plan, rate: float, curvature: float | np.ndarray) -> float:
    """The stationary mean of ‖φ − φ*‖² of the steps themselves: (λσ²C²/κ) · Σ 1/(2l − λκl²) over eigenvalues l of A.

    Appendix F prints λl², without κ: that is infinite at κ times the rate where steps explode, and then negative.

    >>> plan = Plan(100, 50, sampling_prob=0.5, clip_norm=1.0, noise_multiplier=3.0)
    >>> stationary_spread(plan, 2.0, 1.0)
    36.0
    """
    _positive("rate", rate)
    values = _eigenvalues(curvature)
    turn = rate * plan.sampling_prob * values
    if turn.max() >= 2:
        raise TraceError(
            f"the steps explode: rate × sampling_prob × the largest curvature is {turn.max():.3g}; "
            "below 2 they settle: lower the rate"
        )
    return float(rate * plan.noise_std**2 / plan.sampling_prob * (1 / (values * (2 - turn))).sum())


def ou_rate_limit(plan: Plan, *, curvature: float | np.ndarray, radius: float) -> float:
    """Theorem 3: the rate whose `ou_spread` is radius²: 2κr² / (σ²C² tr A⁻¹).

    It keeps the mean square within the radius, not the iterates: a third of them (one coordinate) to a half (many) are
    outside at any time.

    >>> plan = Plan(100, 50, sampling_prob=0.5, clip_norm=1.0, noise_multiplier=3.0)
    >>> round(ou_rate_limit(plan, curvature=np.array([1.0, 3.0]), radius=1.2**0.5), 12)
    0.1
    """
    _positive("radius", radius)
    _noisy(plan)
    return float(2 * plan.sampling_prob * radius**2 / (plan.noise_std**2 * (1 / _eigenvalues(curvature)).sum()))


def stationary_rate_limit(plan: Plan, *, curvature: float | np.ndarray, radius: float) -> float:
    """The rate whose `stationary_spread` is radius²: less than `ou_rate_limit`, and than 2/(κl), where steps explode.

    For equal curvatures l it is half the harmonic mean of these two; otherwise it lies between that and the smaller.

    >>> plan = Plan(100, 50, sampling_prob=0.5, clip_norm=1.0, noise_multiplier=3.0)
    >>> round(stationary_rate_limit(plan, curvature=1.0, radius=6.0), 9)
    2.0
    """
    ou, values = ou_rate_limit(plan, curvature=curvature, radius=radius), _eigenvalues(curvature)
    explodes = 2 / (plan.sampling_prob * values.max())
    smaller, trace = min(ou, explodes), (1 / values).sum()

    def excess(rate):
        """The rate less what its own damping allows: no pole where steps explode, so all the way can be searched."""
        damping = np.maximum(1 - rate * plan.sampling_prob * values / 2, 0)
        with np.errstate(divide="ignore"):
            return rate - ou * trace / (1 / (values * damping)).sum()

    bracket = (0.4 * smaller, min(2 * ou, explodes))
    return float(optimize.root_scalar(excess, bracket=bracket, method="brentq", xtol=1e-15 * smaller).root)


def gradients_of(iterates: np.ndarray, rate: float | np.ndarray) -> np.ndarray:
    """The noisy gradients behind SGD's iterates (T + 1, d): y_t = (φ_t − φ_{t+1}) / λ, shape (T, d).

    Of SGD alone: Adam's steps are not λ times a gradient. `rate` is a number or one for each coordinate; it includes
    whatever else the step was multiplied by, such as the β of a preconditioned run.

    >>> gradients_of(np.array([[1.0], [0.5], [0.75]]), 0.5)
    array([[ 1. ],
           [-0.5]])
    """
    iterates = _table(iterates)
    return -np.diff(iterates, axis=0) / _rates(rate, iterates.shape[1])


def step_log_likelihood(
    iterates: np.ndarray,
    rate: float | np.ndarray,
    *,
    sampling_prob: float,
    curvature: np.ndarray,
    optimum: np.ndarray,
    noise: np.ndarray,
) -> float:
    """Log density of SGD's iterates given the first: φ_{t+1} ~ N(φ_t − λκA(φ_t − φ*), λ²Σ) (A8), `noise` = Σ.

    Of `gradients_of` these iterates the trace model has the same log density plus T·Σ_i log λ_i: a constant, so both
    models have the same posterior. Like the gradients, it is for SGD alone. `curvature` may be any matrix.

    >>> one = np.eye(1)
    >>> steps = np.array([[1.0], [0.0]])
    >>> step_log_likelihood(steps, 1.0, sampling_prob=1.0, curvature=one, optimum=np.zeros(1), noise=one)
    -0.918...
    """
    iterates, noise = _table(iterates), np.asarray(noise, np.float64)
    rates = _rates(rate, iterates.shape[1])
    require(np.linalg.eigvalsh(noise).min() > 0, "noise", noise, "be a covariance, positive definite")
    drift = sampling_prob * (iterates[:-1] - optimum) @ np.asarray(curvature, np.float64).T
    residual = np.diff(iterates, axis=0) + rates * drift
    factor = np.linalg.cholesky(noise * np.outer(rates, rates))
    squares = (linalg.solve_triangular(factor, residual.T, lower=True) ** 2).sum()
    return float(-squares / 2 - len(residual) * np.log(np.sqrt(2 * np.pi) * np.diag(factor)).sum())


def convergence_bound(
    plan: Plan,
    rate: float,
    *,
    dim: int,
    smoothness: float,
    gap: float,
    subsampling_error: float = 0.0,
    gradient_norm: float = 0.0,
) -> float:
    """Theorem 4 (A11): the most that ‖∇L(φ_t)‖² can be on average over T steps from φ₀, and over the noise.

    gap/(Tλκ) + (Hλ/2κ)(e_sub² + κ²G² + σ²C²d), with `gap` = L(φ₀) − inf L, `smoothness` = H, the Lipschitz constant of
    ∇L, and `gradient_norm` = G. The paper's G is the largest ‖∇L‖ anywhere, infinite for a quadratic; the proof needs
    no more than G² ≥ E‖∇L(φ_t)‖² at every step of the run.

    >>> plan = Plan(100, 50, sampling_prob=0.5, clip_norm=1.0, noise_multiplier=3.0)
    >>> convergence_bound(plan, 0.1, dim=1, smoothness=2.0, gap=5.0)
    3.8
    """
    _positive("rate", rate)
    power = _power(plan, dim, subsampling_error, gradient_norm)
    _positive("smoothness", smoothness)
    _not_negative("gap", gap)
    kept = plan.sampling_prob
    return float(gap / (plan.steps * rate * kept) + smoothness * rate / (2 * kept) * power)


def optimal_rate(
    plan: Plan,
    *,
    dim: int,
    smoothness: float,
    gap: float,
    subsampling_error: float = 0.0,
    gradient_norm: float = 0.0,
) -> float:
    """The rate that makes `convergence_bound` least: λ_opt = √(2·gap / (HT(e_sub² + κ²G² + σ²C²d))).

    With e_sub = G = 0 it is `methods.elbo.heuristic_rate` with the factor √(gap / H).

    >>> plan = Plan(100, 50, sampling_prob=0.5, clip_norm=1.0, noise_multiplier=3.0)
    >>> optimal_rate(plan, dim=1, smoothness=2.0, gap=9.0)
    0.1414...
    """
    power = _power(plan, dim, subsampling_error, gradient_norm)
    require(power > 0, "e_sub² + κ²G² + σ²C²d", power, "be positive: without noise no rate is best by the bound")
    _positive("smoothness", smoothness)
    _positive("gap", gap)
    return float(np.sqrt(2 * gap / (smoothness * plan.steps * power)))


def _power(plan: Plan, dim: int, subsampling_error: float, gradient_norm: float) -> float:
    """The most that a noisy batch sum's squared norm can be on average."""
    _whole("dim", dim)
    _not_negative("subsampling_error", subsampling_error)
    _not_negative("gradient_norm", gradient_norm)
    return subsampling_error**2 + (plan.sampling_prob * gradient_norm) ** 2 + plan.noise_std**2 * dim


def _eigenvalues(curvature: float | np.ndarray) -> np.ndarray:
    """Eigenvalues of a symmetric matrix; a number or a vector is its own."""
    values = np.atleast_1d(np.asarray(curvature, np.float64))
    if values.ndim == 2:
        square = values.shape[0] == values.shape[1]
        require(square and np.allclose(values, values.T, rtol=1e-9), "curvature", curvature, "be symmetric and finite")
        values = np.linalg.eigvalsh(values)
    low, high = values.min(), values.max()
    require(0 < low <= high < np.inf, "curvature", curvature, f"be positive and finite; an eigenvalue is {low:.3g}")
    return values


def _table(iterates: np.ndarray) -> np.ndarray:
    iterates = np.asarray(iterates, np.float64)
    require(iterates.ndim == 2 and len(iterates) > 1, "shape of iterates", iterates.shape, "be (at least 2, dim)")
    return iterates


def _rates(rate: float | np.ndarray, dim: int) -> np.ndarray:
    rates = np.asarray(rate, np.float64)
    require(rates.shape in ((), (dim,)), "shape of rate", rates.shape, f"be () or ({dim},)")
    require(bool(((rates > 0) & (rates < np.inf)).all()), "rate", rate, "be positive and finite")
    return np.broadcast_to(rates, dim)


def _noisy(plan: Plan) -> None:
    require(plan.noise_multiplier > 0, "noise_multiplier", plan.noise_multiplier, "be positive: it sets the spread")


def _positive(name: str, value: float) -> None:
    require(0 < value < np.inf, name, value, "be positive and finite")


def _not_negative(name: str, value: float) -> None:
    require(0 <= value < np.inf, name, value, "be ≥ 0 and finite")


def _whole(name: str, value: int) -> None:
    require(isinstance(value, int | np.integer) and value >= 1, name, value, "be a whole number ≥ 1")
