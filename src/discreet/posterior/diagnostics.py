"""What a person should know before believing a noise-aware posterior. It is read from the release, so it is public."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from discreet.posterior import averaging
from discreet.posterior.trace import TraceError, after, check_release, moments, retained_points
from discreet.posterior.trace_model import estimate, residual_variance
from discreet.release import Blocks, Release

SEEN, FEWEST_INDEPENDENT, FALSE_ALARM, FEWEST_PIECES = 2.0, 5.0, 1e-3, 12
ROUNDING = 1e-12


class Diagnosis(NamedTuple):
    """One number for each coordinate that rows answered, shape (…, d).

    curvature         least squares estimate of a, and its sd
    independent       effective number of independent steps: iterates have a memory
    time_constant     that memory, in steps
    extra_noise       variance of the answers around the line ÷ what the plan added: 1 where the model is right
    bend              p-value of a straight line against one with a bend, over the retained steps
    approach          the same over the whole run: small where the gradient saturates on the way
    """

    curvature: np.ndarray
    curvature_sd: np.ndarray
    independent: np.ndarray
    time_constant: np.ndarray
    extra_noise: np.ndarray
    bend: np.ndarray
    approach: np.ndarray


class _Pieces(NamedTuple):
    """Parts of the trace that are looked at as one: a step, or a block of steps. Shapes (…, pieces, d).

    `before` is an iterate that the noise of the piece has not moved: a step's own, or the mean of the block before.
    """

    before: np.ndarray
    weight: np.ndarray
    x: np.ndarray
    y: np.ndarray
    xx: np.ndarray
    xy: np.ndarray


def diagnose(release: Release, burn_in: float = 0.2, among: int | None = None) -> Diagnosis:
    """The diagnosis of the steps after the first share `burn_in`.

    `among` is the number of first coordinates whose answers depend on one another (the location block): where the trace
    was kept, their bend is looked for in what a dense curvature leaves over. A bend is seen only where the trace has
    been: clipping that shifts the optimum without bending the line there cannot be seen.
    """
    check_release(release)
    blocks, plan = release.blocks, release.plan
    inside = after(blocks, burn_in)
    seen = moments(blocks, inside)
    known = plan.noise_std**2
    variance = residual_variance(seen, known)
    curvature, sd = estimate(seen, plan.sampling_prob, variance)
    window = averaging.tail_average(release, burn_in)
    answered = seen.xx.shape[-1]
    steps, spread, mean_sd = (part[..., :answered] for part in (window.steps, window.sd, window.mean_sd))
    independent = np.minimum(steps, (spread / np.maximum(mean_sd, 1e-300)) ** 2)
    with np.errstate(divide="ignore"):
        extra = np.divide(variance, known) if known else np.full_like(variance, np.inf)
    return Diagnosis(
        curvature=curvature,
        curvature_sd=sd,
        independent=independent,
        time_constant=steps / (2 * independent),
        extra_noise=extra,
        bend=_bend(release, inside[:, 0], among),
        approach=_bend(release, np.full(len(inside), True), among),
    )


def warnings(found: Diagnosis, names: Sequence[str], public_curvature: bool = False) -> list[str]:
    """What of it should be said aloud, in words; `names` are the parameters that the first coordinates belong to.

    With `public_curvature` (the solver `full`) what the trace hardly shows of a curvature is filled in by public
    knowledge: that is in the records, and no reason for alarm.
    """
    _check_one(found)
    said = []
    hidden = named(found.curvature < SEEN * found.curvature_sd, names)
    if hidden and not public_curvature:
        said.append(
            f"curvature not identified: the answers hardly depend on the iterates of {hidden}, so the prior of the "
            "trace model decides how wide they are; plan more steps or a larger learning rate"
        )
    slow = named(found.independent < FEWEST_INDEPENDENT, names)
    if slow and not public_curvature:
        said.append(
            f"few independent steps: the retained iterates of {slow} are worth fewer than {FEWEST_INDEPENDENT:g} "
            "independent ones; plan more steps or a larger learning rate"
        )
    bent = named(found.bend < FALSE_ALARM / max(len(names), 1), names)
    if bent:
        said.append(
            f"not a straight line: the answers about {bent} bend with the iterate, so the optimum read from them is "
            "off; clipping may be strong or the loss far from quadratic: raise clip_norm or lower the learning rate"
        )
    return said


def records(found: Diagnosis, names: Sequence[str]) -> list[dict[str, float | str | None]]:
    """One plain record for each named coordinate; None stands for what is not finite."""
    _check_one(found)
    return [
        {"parameter": str(name), **{field: _plain(part[place]) for field, part in found._asdict().items()}}
        for place, name in enumerate(names)
    ]


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _check_one(found: Diagnosis) -> None:
    if found.curvature.ndim != 1:
        raise TraceError("a diagnosis is put into words for one release at a time: this one has replicas")


def named(which: np.ndarray, names: Sequence[str]) -> str:
    """The names of the parameters that are meant, at most five of them."""
    places = np.flatnonzero(which[: len(names)])
    return ", ".join(str(names[place]) for place in places[:5]) + (
        f" and {len(places) - 5} more" if len(places) > 5 else ""
    )


def _bend(release: Release, inside: np.ndarray, among: int | None) -> np.ndarray:
    """p-value of each coordinate's bend: does y need x² or x³ beside x? 1 where there is too little to tell."""
    if release.trace is not None:
        pieces, variance = _steps(release, inside, among), None
    else:
        pieces = _blocks(release.blocks, inside)
        variance = residual_variance(moments(release.blocks, inside[:, None]), release.plan.noise_std**2)
    count = pieces.x.shape[-2]
    if count < FEWEST_PIECES:
        return np.ones((*pieces.x.shape[:-2], pieces.x.shape[-1]))
    line, bent, total = _explained(pieces)
    variance = (total - bent) / (count - 4) if variance is None else variance
    return stats.chi2.sf((bent - line) / np.maximum(variance, ROUNDING * total / count + 1e-300), 2)


def _blocks(blocks: Blocks, inside: np.ndarray) -> _Pieces:
    """The retained blocks but the first of all, which has none before it."""
    kept = np.flatnonzero(inside)
    kept = kept[kept > 0]
    fields = (np.asarray(getattr(blocks, name))[..., kept, :] for name in _BLOCK_FIELDS)
    return _Pieces(np.asarray(blocks.mean_x)[..., kept - 1, :], *fields)


def _steps(release: Release, inside: np.ndarray, among: int | None) -> _Pieces:
    """The retained steps one by one; what the first `among` coordinates say of one another is taken out."""
    x, y, scale = retained_points(release, inside)
    if among and x.shape[-2] > 2 * among:
        dx, dy = (part[..., :among] - part[..., :among].mean(-2, keepdims=True) for part in (x, y))
        slopes = np.linalg.pinv(dx) @ dy
        others = slopes * (1 - np.eye(among))
        y = np.concatenate([y[..., :among] - dx @ others, y[..., among:]], -1)
    return _Pieces(x, scale**-2.0, x, y, np.zeros_like(x), np.zeros_like(x))


def _explained(pieces: _Pieces) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Squares of y that a line in x explains, that a line with u², u³ explains, and all of them; shape (…, d).

    u is the standardised `before`: noise moves the iterates of its own block, and with them it would bend the line.
    """
    before, weight, x, y, xx, xy = (np.swapaxes(part, -1, -2) for part in pieces)
    total = weight.sum(-1, keepdims=True)
    centre, mean = ((weight * part).sum(-1, keepdims=True) / total for part in (x, y))
    unit = np.sqrt((weight * (x - centre) ** 2 + xx).sum(-1, keepdims=True) / total)
    u, y = (before - centre) / unit, y - mean
    design = np.stack([np.ones_like(u), (x - centre) / unit, u**2, u**3], -1)
    gram = np.einsum("...ri,...r,...rj->...ij", design, weight, design)
    shift = np.einsum("...ri,...r->...i", design, weight * y)
    gram[..., 1, 1] += (xx / unit**2).sum(-1)
    shift[..., 1] += (xy / unit).sum(-1)
    line, bent = (_squares(gram[..., :terms, :terms], shift[..., :terms]) for terms in (2, 4))
    return line, np.maximum(bent, line), (weight * y**2).sum(-1)


def _squares(gram: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """shiftᵀ gram⁻¹ shift."""
    return np.einsum("...i,...ij,...j->...", shift, np.linalg.pinv(gram, hermitian=True), shift)


_BLOCK_FIELDS = ("weight", "mean_x", "mean_y", "xx", "xy")
