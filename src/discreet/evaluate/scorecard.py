"""What a study keeps of each posterior once its draws are gone, and what a table says of all of them.

Draws of a thousand posteriors do not fit in memory; their scores do. Everything a table prints is computed from these.
"""

from typing import Any

import numpy as np

from discreet.evaluate import ranks, sharpness, tarp
from discreet.evaluate.study import Part

REPETITIONS = 20


def score(rng: np.random.Generator, draws: np.ndarray, truth: np.ndarray, reference_sd: np.ndarray) -> Part:
    """Scores of K posteriors, `draws` (K, M, d), of `truth` (K, d), beside non-private sds (K, d).

    joint     (K, 20)     TARP shares, one column for each set of references
    marginal  (K, 20, d)  the same, each coordinate alone
    below     (K, d)      share of draws below the truth
    ratio     (K, d)      posterior sd ÷ non-private sd
    log       (K,)        log density of the truth under a normal with each posterior's moments, mean of coordinates
    energy    (K,)        energy score of the truth in units of the non-private sds; lower is better

    A posterior with draws that are not finite has failed: its scores are NaN.
    """
    good = np.isfinite(draws).all((1, 2))
    if not good.all():
        scores = _failed(*truth.shape)
        if good.any():
            for name, values in score(rng, draws[good], truth[good], reference_sd[good]).items():
                scores[name][good] = values
        return scores
    return {
        "joint": tarp.repeated_fractions(rng, draws, truth, REPETITIONS),
        "marginal": tarp.repeated_fractions(rng, draws, truth, REPETITIONS, marginal=True),
        "below": ranks.ranks(draws, truth) / draws.shape[1],
        "ratio": sharpness.moments(draws).sd / reference_sd,
        "log": sharpness.log_scores(draws, truth).mean(1),
        "energy": sharpness.energy_scores(rng, draws / reference_sd[:, None], truth / reference_sd),
    }


def _failed(count: int, dim: int) -> Part:
    shapes = {"joint": (REPETITIONS,), "marginal": (REPETITIONS, dim), "below": (dim,), "ratio": (dim,)}
    return {name: np.full((count, *shapes.get(name, ())), np.nan) for name in (*shapes, "log", "energy")}


def summary(scores: Part, cells: int = 1) -> dict[str, Any]:
    """One line of a table, for a table of `cells` such lines that are judged.

    The bounds are the 1 − .05/cells quantiles of the same statistics under perfect posteriors; the marginal one is for
    the worst of d coordinates. A fit without a posterior has a share of 1: its region is empty and covers nothing.
    """
    count, dim = scores["below"].shape
    joint, marginal = (np.nan_to_num(scores[name], nan=1.0) for name in ("joint", "marginal"))
    good = np.isfinite(scores["log"])
    prob = 1 - 0.05 / cells
    at_most = tarp.null_band(count, prob, dim=dim, repetitions=REPETITIONS)[1]
    enough = int(max(20_000, 20 * 20 * cells * dim))  # 20 beyond the quantile
    each = tarp.null_band(count, 1 - 0.05 / (cells * dim), repetitions=REPETITIONS, simulations=enough)[1]
    by_coordinate = np.mean(tarp.rmse(marginal), 0)
    ends = np.abs(np.nan_to_num(scores["below"], nan=1.0) - 0.5)
    return {
        "TARP RMSE": float(np.mean(tarp.rmse(joint))),
        "± references": float(np.std(tarp.rmse(joint))),
        "band": at_most,
        "worst marginal": float(by_coordinate.max()),
        "marginal band": each,
        "in 90 %": float((ends < 0.45).mean()),
        "width ÷ non-private": float(scores["ratio"][good].mean(0).mean()) if good.any() else None,
        "log score": float(scores["log"][good].mean()) if good.any() else None,
        "energy score": float(scores["energy"][good].mean()) if good.any() else None,
        "failed": int((~good).sum()),
        "data sets": count,
        "marginal RMSEs": by_coordinate.tolist(),
        "widths ÷ non-private": scores["ratio"][good].mean(0).tolist() if good.any() else None,
    }


def calibrated(line: dict[str, Any], marginal: bool = True) -> bool:
    """Whether a line of `summary` lies inside its bands."""
    return line["TARP RMSE"] <= line["band"] and (not marginal or line["worst marginal"] <= line["marginal band"])
