"""What a budget will buy, before it is spent: widths to expect for other budgets and other numbers of rows."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from discreet.planner.prior_rows import Choice

DROWNED, ENOUGH, MOST_TIMES = 3.0, 2.0, 4.0**8

Chooser = Callable[[int, float], Choice]
"""(num_rows, ε) → the choice that would be made."""


class Curves(NamedTuple):
    """Mean widths ÷ non-private to expect: (rows, ε)."""

    rows: tuple[int, ...]
    epsilons: tuple[float, ...]
    widths: np.ndarray

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"rows": list(self.rows), "epsilons": list(self.epsilons), "widths": self.widths.tolist()}


def curves(choose: Chooser, num_rows: int, epsilon: float, epsilons: Sequence[float]) -> Curves:
    """Widths for these ε and the asked one, with this number of rows, a quarter and four times of them."""
    rows = tuple(sorted({max(2, num_rows // 4), num_rows, 4 * num_rows}))
    every = tuple(sorted({epsilon, *epsilons}))
    return Curves(rows, every, np.array([[_predicted(choose(n, e)).mean() for e in every] for n in rows]))


def enough_rows(choose: Chooser, num_rows: int, epsilon: float, parameter: int) -> float:
    """About how many rows would make this parameter's interval at most twice as wide as without privacy.

    Rows are quadrupled until they are enough, and what lies between is interpolated; infinite if 4⁸ times as many are
    not.
    """
    rows, width = float(num_rows), _predicted(choose(num_rows, epsilon))[parameter]
    while width > ENOUGH:
        if rows >= MOST_TIMES * num_rows:
            return np.inf
        more = _predicted(choose(int(4 * rows), epsilon))[parameter]
        if more <= ENOUGH:
            passed = np.log(width / ENOUGH) / np.log(width / more)
            return float(rows * 4**passed)
        rows, width = 4 * rows, more
    return rows


def warnings(choose: Chooser, choice: Choice, epsilon: float, names: Sequence[str]) -> list[str]:
    """What of a plan should be said aloud: the parameter whose signal drowns most, and how many rows would do."""
    if choice.predicted is None:
        return []
    predicted, num_rows = choice.predicted, choice.plan.num_rows
    worst = int(predicted.argmax())
    if predicted[worst] <= DROWNED:
        return []
    needed = enough_rows(choose, num_rows, epsilon, worst)
    remedy = f"about {needed:.1g} rows would do" if needed < np.inf else "no number of rows would do"
    others = int((predicted > DROWNED).sum()) - 1
    further = f" ({others} more are above {DROWNED:g})" if others else ""
    return [
        f"noise drowns the signal: at ε = {epsilon:g} with {num_rows} rows the interval for {names[worst]} will be "
        f"{predicted[worst]:.2g} times the non-private one{further}; {remedy}, or a larger ε"
    ]


def _predicted(choice: Choice) -> np.ndarray:
    if choice.predicted is None:
        raise ValueError("the planner predicts no width for this method: choose method='one-step', 'dpvi' or 'score'")
    return choice.predicted
