"""The demo: a sensitive survey, fitted privately and, because it is public, also without privacy."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from discreet import datasets
from discreet.accounting import Guarantee
from discreet.evaluate.reference import non_private
from discreet.families.glm import glm
from discreet.fitting import encode, fit, naive_posterior
from discreet.posterior.types import Posterior, from_draws
from discreet.report.folder import save_run
from discreet.report.page import page

if TYPE_CHECKING:
    import pandas

EPSILON, DELTA = 1.0, 1e-5


class Demo(NamedTuple):
    """The private posterior, the summaries to show side by side, and the one line to remember."""

    posterior: Posterior
    summaries: "dict[str, pandas.DataFrame]"
    line: str


def run_demo(out: str | Path, progress: Callable[[range], Iterable[int]] = iter) -> Demo:
    """Fit `datasets.fair` at ε = 1 with secure noise and write the run's folder to `out`."""
    table, schema = datasets.fair()
    model = glm("logistic", "affair", [name for name in schema.names if name != "affair"], schema)
    posterior = fit(model, encode(table, schema), epsilon=EPSILON, delta=DELTA, progress=progress)
    laplace = non_private(model, schema.encode(table))
    draws = np.random.default_rng(0).multivariate_normal(laplace.mean, laplace.covariance, 4000)
    open_guarantee = Guarantee(np.inf, DELTA, "none", "none", "the table itself", 1.0, 1.0)
    open_posterior = from_draws(draws, model, open_guarantee, info={"method": "non-private"})
    summaries = {
        "private, noise-aware": posterior.summary(),
        "private, as if without noise": naive_posterior(posterior).summary(),
        "non-private": open_posterior.summary(),
    }
    line = what_it_shows(*summaries.values())
    title = "Who reports an affair? A 1974 survey, fitted with privacy"
    extra = "The non-private estimates are the exception: they are shown because this table is public."
    save_run(out, posterior, page(title, posterior, summaries, line, extra))
    return Demo(posterior, summaries, line)


def what_it_shows(aware: "pandas.DataFrame", naive: "pandas.DataFrame", truth: "pandas.DataFrame") -> str:
    """One line: how wide both readings' intervals are, and how many of the non-private estimates they contain."""
    wide, held = zip(*(_against(table, truth) for table in (aware, naive)), strict=True)
    return (
        f"The noise-aware intervals are {wide[0]:.1f} times as wide as the non-private ones, which is what privacy "
        f"costs; read as if without noise they are {wide[1]:.1f} times as wide and leave it out. "
        f"They contain {held[0]} and {held[1]} of the {len(truth)} non-private estimates."
    )


def _against(table: "pandas.DataFrame", truth: "pandas.DataFrame") -> tuple[float, int]:
    """Width of the intervals relative to the truth's, as a geometric mean, and how many of its means they contain."""
    (low, high), (least, most) = ((part.iloc[:, 2], part.iloc[:, 3]) for part in (table, truth))
    ratio = np.exp(np.mean(np.log((high - low) / (most - least))))
    return float(ratio), int(((low <= truth["mean"]) & (truth["mean"] <= high)).sum())
