"""The trace model with a dense curvature: y_t = κA(x_t − φ*) + noise, A symmetric, for the location block.

Honest where parameters are correlated. Everything but A is Gaussian and is integrated out. A itself has a Gaussian
density in its entries, cut where A is no curvature, times the evidence of the mean answer: elliptical slice steps draw
from that product. Given A and φ*, z is Gaussian around φ* with precision A, for that is a Gaussian family's covariance
at its optimum; no scale of the iterates enters.

Public knowledge keeps weak directions in place: A is around its expected value (prior precision plus N times the Fisher
information of simulated rows) times an unknown factor, since real covariates seldom fill their bounds; it is at least
the prior's precision; and φ* and z together are distributed like the prior before anything is seen. None of it is taken
from the trace, so nothing is used twice.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg, stats

from discreet.methods.natural import triangle_places
from discreet.posterior.sums import Sums, in_units, location_sums, residual_variance
from discreet.posterior.trace_model import BurnIn, Subsampling, noise_of
from discreet.release import Release

MOST_PARAMETERS = 100
FACTORS = 2.0 ** np.arange(-5, 3)
ERRORS = ((1.0, 0.9), (3.0, 0.1))
CHAINS, WARM_UP, MOST_WORK = 100, 60, 400
SMALLEST, AT_ONCE, OFF_EDGE = 1e-6, 2**22, 0.1


class Prior(NamedTuple):
    """What is known in public: each parameter's prior mean and sd, and the curvature to expect.

    `curvature` (d,) is A's diagonal where covariates fill their bounds; its size and A's other entries are unknown.
    With `curvature_cov` (m, m) the covariates' law is known, too: the m = d(d + 1) / 2 entries of A's upper triangle,
    in the order of `numpy.triu_indices`, have that covariance around those of `curvature` (d, d). With `error` each
    entry has an sd of that share of its row's and column's size instead, or, one to nine, of three times as much; and
    `chance` (d, d) is the sd that it has on top of that.
    """

    mean: np.ndarray
    sd: np.ndarray
    curvature: np.ndarray
    curvature_cov: np.ndarray | None = None
    error: float | None = None
    chance: np.ndarray | None = None


class Draws(NamedTuple):
    """Joint draws, shape (draws, dim): the optimum φ* that the rows have, and parameters z around it."""

    optimum: np.ndarray
    z: np.ndarray
    report: Mapping[str, Any]


class Belief(NamedTuple):
    """What is known in public of the upper triangle of A: Gaussian with this centre and precision, and how likely."""

    centre: np.ndarray
    precision: np.ndarray
    log_det: float
    odds: float = 1.0


class Entries(NamedTuple):
    """Gaussian posterior of the upper triangle of A under one belief, uncut.

    `precision` is held as its Cholesky factor; `log_evidence` is that of the trace, up to a constant.
    """

    mean: np.ndarray
    precision: np.ndarray
    log_evidence: float


def solve(
    rng: np.random.Generator,
    release: Release,
    prior: Prior,
    draws: int = 4000,
    *,
    burn_in: BurnIn = 0.2,
    subsampling: Subsampling = "learned",
    least: float = 1.0,
    arrived: bool = False,
) -> Draws:
    """Draws of φ* and of z from a release that kept its trace or its products.

    `least` is the least curvature there can be, in units of the prior's precision: 1 where the likelihood of every row
    is log-concave, 0 where A is known to be positive definite and no more. `arrived` says that the steps before
    `burn_in` are publicly known to end near φ*, whatever A is: they close any distance many times over. Where that is
    not certain, nothing is said: a slow direction that has not arrived would be believed to have.

    The report has the `drift` of the chains, and p-values of what was declared: `contradiction`, of the trace's slopes
    under `curvature_cov`, and `arrival`, of the mean answers if iterates have arrived.
    """
    dim, rate = len(prior.mean), release.plan.sampling_prob
    noise, learned = noise_of(release, subsampling)
    sums = in_units(location_sums(release, dim, burn_in, noise), prior.mean, prior.sd)
    variance = residual_variance(sums) if learned else sums.known
    known = beliefs(prior)
    slopes = _slopes(sums, rate, variance)
    found = draw(rng, slopes, known, sums, rate, variance, draws, least=least, arrived=arrived)
    optimum, z = (prior.mean + prior.sd * part for part in found[:2])
    report = dict(found.report)
    if prior.curvature_cov is not None:
        report["contradiction"] = _contradiction(*slopes, known[0])
    if arrived:
        report["arrival"] = _arrival(sums, variance, release.settings.get("rest", 0.0))
    return Draws(optimum, z, report)


def draw(
    rng: np.random.Generator,
    slopes: tuple[np.ndarray, np.ndarray],
    known: list[Belief],
    sums: Sums,
    rate: float,
    variance: np.ndarray,
    draws: int,
    *,
    least: float = 1.0,
    arrived: bool = False,
) -> Draws:
    """Draws of φ* and z in units of the prior, from what is seen of A's entries (`slopes`: their precision, and
    precision × estimate), what is `known` of them, and the means in `sums`.
    """
    dim = len(variance)
    found = [_given(*slopes, belief) for belief in known]
    evidence = np.array([np.log(belief.odds) + one.log_evidence for belief, one in zip(known, found, strict=True)])
    weights = np.exp(evidence - evidence.max())
    chains = rng.multinomial(min(draws, CHAINS), weights / weights.sum())
    count = min(draws, -(-draws * MOST_WORK // dim**2))
    mean_answer = _evidence_of_mean(sums, rate, variance, least, arrived)
    entries, drift = _draw_entries(rng, found, chains, count, max(least, SMALLEST), mean_answer)
    chosen = rng.permutation(np.resize(rng.permutation(len(entries)), draws))
    parts = []
    for portion in np.array_split(entries[chosen], -(-draws * dim**2 // AT_ONCE)):
        curvatures = portion[:, triangle_places(dim)]
        optimum = _draw_optima(rng, curvatures, sums, rate, variance, least)
        parts.append((optimum, optimum + _draw_around(rng, curvatures)))
    optimum, z = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Draws(optimum, z, {"drift": drift})


def beliefs(prior: Prior) -> list[Belief]:
    """One belief where the law of A is known, else one for each size that its errors may have, or for each factor that
    the expected diagonal may be off by.

    Parameters are in units of their sds. Where only a diagonal is expected, they may be as correlated as can be.
    """
    upper = np.triu_indices(len(prior.mean))
    units = np.outer(prior.sd, prior.sd)[upper]
    if prior.curvature_cov is not None:
        factor = linalg.cholesky(prior.curvature_cov * np.outer(units, units), lower=True)
        precision = linalg.cho_solve((factor, True), np.eye(len(units)))
        return [Belief(prior.curvature[upper] * units, precision, -2 * float(np.log(np.diag(factor)).sum()))]
    error = prior.error
    expected = (prior.curvature if error is None else np.diag(prior.curvature)) * prior.sd**2
    spread = np.sqrt(np.outer(expected, expected))[upper]
    if error is None:
        return [_independent(f * np.diag(expected)[upper], f * spread) for f in FACTORS]
    chance = 0.0 if prior.chance is None else prior.chance[upper] * units
    sds = [np.hypot(chance, f * error * spread) for f, _ in ERRORS]
    return [_independent(prior.curvature[upper] * units, sd, odds) for sd, (_, odds) in zip(sds, ERRORS, strict=True)]


def _independent(centre: np.ndarray, sd: np.ndarray, odds: float = 1.0) -> Belief:
    return Belief(centre, np.diag(sd**-2.0), -2 * float(np.log(sd).sum()), odds)


def _slopes(sums: Sums, rate: float, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The regression of y on κx with a symmetric slope matrix: precision of its upper triangle, and precision × it."""
    places = triangle_places(len(variance))
    count = places.max() + 1
    seen, shift = np.zeros((count, count)), np.zeros(count)
    for row, spots in enumerate(places):
        seen[np.ix_(spots, spots)] += rate**2 * sums.xx[row % len(sums.xx)] / variance[row]
        shift[spots] += rate * sums.yx[row] / variance[row]
    return seen, shift


def _contradiction(seen: np.ndarray, shift: np.ndarray, belief: Belief) -> float:
    """p-value of the trace's slopes under what was believed of A: small where the declared law cannot be right."""
    gap, cov = shift - seen @ belief.centre, linalg.inv(belief.precision)
    spread = seen + seen @ cov @ seen
    return float(stats.chi2.sf(gap @ linalg.pinvh(spread) @ gap, np.linalg.matrix_rank(seen, hermitian=True)))


def _given(seen: np.ndarray, shift: np.ndarray, belief: Belief) -> Entries:
    """Posterior and evidence of entries with this belief and Gaussian likelihood (seen, shift)."""
    before = belief.precision @ belief.centre
    factor = linalg.cholesky(seen + belief.precision, lower=True)
    mean = linalg.cho_solve((factor, True), shift + before)
    fit = (factor.T @ mean) @ (factor.T @ mean) - belief.centre @ before
    return Entries(mean, factor, float(0.5 * (fit + belief.log_det) - np.log(np.diag(factor)).sum()))


def _arrival(sums: Sums, variance: np.ndarray, rest: Any) -> float:
    """p-value of mean answers that are noise alone, as they are where iterates have arrived.

    Entries that rested at first are left out: they arrive in the steps that are looked at.
    """
    moving = np.resize(rest, max(np.size(rest), len(variance)))[: len(variance)] == 0
    return float(stats.chi2.sf((sums.mean_y**2 * sums.weight / variance)[moving].sum(), moving.sum()))


def _evidence_of_mean(
    sums: Sums, rate: float, variance: np.ndarray, least: float, arrived: bool
) -> Callable[[np.ndarray], np.ndarray]:
    """log p(mean answer | A), φ* ~ N(0, I − least·A⁻¹) integrated out; −∞ where A is less than `least`.

    With least = 1 that prior is what makes z ~ N(φ*, A⁻¹) distributed like the model's prior when nothing was learned.
    If iterates have `arrived`, the density's determinant is left out. It would call it a coincidence that they are near
    φ*, the likelier the flatter A is in every direction; but they went there, in the steps that were left out.
    """
    own, identity = np.diag(variance / sums.weight), np.eye(len(variance))

    def evidence(curvatures):
        total = np.full(len(curvatures), -np.inf)
        good = _positive(curvatures - max(least, SMALLEST) * identity)
        a = curvatures[good]
        offset = sums.mean_y - rate * (a * sums.mean_x).sum(-1)
        factor = np.linalg.cholesky(own + rate**2 * a @ (a - least * identity))
        scaled = np.linalg.solve(factor, offset[..., None])[..., 0]
        total[good] = -0.5 * (scaled**2).sum(-1)
        if not arrived:
            total[good] -= np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(-1)
        return total

    return evidence


def _draw_entries(rng, found: list[Entries], chains: np.ndarray, draws: int, least: float, evidence):
    """At least `draws` draws of the upper triangle of A, `chains` short chains for each factor; and their drift.

    Chains start at draws of the uncut Gaussian whose eigenvalues were folded into the cone and kept off its edge, where
    in many dimensions hardly any direction is free. The drift is that of the mean of log det A over the second half of
    the warm-up, in sds of log det A.
    """
    used = [(entries, int(number)) for entries, number in zip(found, chains, strict=True) if number]
    mean = np.concatenate([np.tile(entries.mean, (number, 1)) for entries, number in used])
    dim = int(np.sqrt(2 * mean.shape[1]))
    places = triangle_places(dim)

    def noise():
        normals = [rng.standard_normal((mean.shape[1], number)) for _, number in used]
        solved = [
            linalg.solve_triangular(entries.precision, normal, trans=1, lower=True)
            for (entries, _), normal in zip(used, normals, strict=True)
        ]
        return np.concatenate(solved, 1).T

    def height(moved, which):
        return evidence((mean[which] + moved)[:, places])

    values, vectors = np.linalg.eigh((mean + noise())[:, places])
    inside = least + np.hypot(values - least, OFF_EDGE * np.abs(values).mean(1, keepdims=True))
    start = (vectors * inside[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    moved = start[(slice(None), *np.triu_indices(dim))] - mean
    level, kept, sizes = height(moved, slice(None)), [], []
    for step in range(WARM_UP + -(-draws // len(mean))):
        if step in (WARM_UP // 2, WARM_UP):
            sizes.append(np.linalg.slogdet((mean + moved)[:, places])[1])
        moved, level = _slice_step(rng, moved, level, noise(), height)
        if step >= WARM_UP:
            kept.append(mean + moved)
    drift = abs(sizes[1].mean() - sizes[0].mean()) / max(sizes[1].std(), 1e-300) if len(mean) > 1 else 0.0
    return np.concatenate(kept), float(drift)


def _positive(matrices: np.ndarray) -> np.ndarray:
    """Which matrices are positive definite.

    One factorisation each is ten times quicker than eigenvalues where the calls are not what takes the time.
    """
    if matrices.shape[-1] <= 16:
        return np.linalg.eigvalsh(matrices)[:, 0] > 0
    (factorise,) = linalg.get_lapack_funcs(("potrf",), (matrices,))
    return np.array([factorise(matrix, lower=1)[1] == 0 for matrix in matrices], bool)


def _slice_step(rng, moved, level, noise, height):
    """One elliptical slice step (Murray, Adams and MacKay, 2010) of every chain; N(0, Σ)·e^height stays as it is."""
    chains = len(moved)
    threshold = level + np.log(rng.random(chains))
    angle = rng.uniform(0, 2 * np.pi, chains)
    low, high = angle - 2 * np.pi, angle.copy()
    new, new_level = moved.copy(), level.copy()
    pending = np.arange(chains)
    while len(pending):
        turn = angle[pending, None]
        proposal = moved[pending] * np.cos(turn) + noise[pending] * np.sin(turn)
        reached = height(proposal, pending)
        good = reached > threshold[pending]
        done, pending, rest = pending[good], pending[~good], angle[pending[~good]]
        new[done], new_level[done] = proposal[good], reached[good]
        low[pending], high[pending] = np.where(rest < 0, rest, low[pending]), np.where(rest >= 0, rest, high[pending])
        angle[pending] = rng.uniform(low[pending], high[pending])
    return new, new_level


def _draw_optima(rng, curvatures: np.ndarray, sums: Sums, rate: float, variance: np.ndarray, least: float):
    """φ* given A: mean_y = κA(mean_x − φ*) + noise, and before that φ* ~ N(0, I − least·A⁻¹)."""
    identity = np.eye(len(variance))
    b = rate * curvatures
    weighted = b * (sums.weight / variance)
    prior = identity + least * np.linalg.inv(curvatures - least * identity)
    precision = prior + weighted @ b
    offset = rate * (curvatures * sums.mean_x).sum(-1) - sums.mean_y
    mean = np.linalg.solve(precision, (weighted @ offset[..., None]))[..., 0]
    factor = np.linalg.cholesky((precision + np.swapaxes(precision, 1, 2)) / 2)
    return mean + np.linalg.solve(np.swapaxes(factor, 1, 2), rng.standard_normal((*mean.shape, 1)))[..., 0]


def _draw_around(rng, curvatures: np.ndarray) -> np.ndarray:
    """z − φ* ~ N(0, A⁻¹)."""
    factor = np.linalg.cholesky(curvatures)
    normal = rng.standard_normal((*curvatures.shape[:2], 1))
    return np.linalg.solve(np.swapaxes(factor, 1, 2), normal)[..., 0]
