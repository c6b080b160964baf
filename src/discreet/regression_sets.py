"""Public schemas of DP-SEP's six regression sets; `datasets.regression` has their rows, and says where they are from.

Features first, the column `target` last. The bounds are public: documented ranges, physics, or published tables of the
columns, rounded outwards.
"""

import math
from collections.abc import Mapping

from discreet.schema import Numeric, Schema


def _schema(features: Mapping[str, tuple[float, float]], target: Numeric) -> Schema:
    return Schema((*(Numeric(name, low, high) for name, (low, high) in features.items()), target))


NAVAL = _schema(
    {
        "lp": (1, 10),
        "v": (0, 30),
        "GTT": (0, 80_000),
        "GTn": (1_000, 4_000),
        "GGn": (6_000, 10_000),
        "Ts": (0, 700),
        "Tp": (0, 700),
        "T48": (400, 1_200),
        "T1": (273, 303),
        "T2": (500, 800),
        "P48": (1, 5),
        "P1": (0.9, 1.1),
        "P2": (5, 25),
        "Pexh": (1, 1.1),
        "TIC": (0, 100),
        "mf": (0, 2),
    },
    Numeric("target", 0.95, 1),
)
KIN8NM = _schema(
    {f"theta{joint}": (-math.pi / 2, math.pi / 2) for joint in range(1, 9)},
    Numeric("target", 0, 1.6),
)
POWER = _schema(
    {"AT": (1, 38), "V": (25, 82), "AP": (992, 1034), "RH": (25, 101)},
    Numeric("target", 420, 496),
)
WINE = _schema(
    {
        "fixed acidity": (4, 16),
        "volatile acidity": (0, 2),
        "citric acid": (0, 1),
        "residual sugar": (0, 16),
        "chlorides": (0, 0.7),
        "free sulfur dioxide": (0, 75),
        "total sulfur dioxide": (0, 300),
        "density": (0.99, 1.005),
        "pH": (2.5, 4.5),
        "sulphates": (0, 2),
        "alcohol": (8, 15),
    },
    Numeric("target", 0, 10, integer=True),
)
PROTEIN = _schema(
    {
        "F1": (2_000, 41_000),
        "F2": (400, 16_000),
        "F3": (0, 0.6),
        "F4": (10, 400),
        "F5": (300_000, 5_500_000),
        "F6": (30, 600),
        "F7": (0, 110_000),
        "F8": (0, 350),
        "F9": (15, 56),
    },
    Numeric("target", 0, 21),
)

_MOST_AVERAGE = (70, 400, 350, 350, 300, 200, 200, 150, 150, 70, 100, 100)
_MOST_SD = (30, 300, 200, 200, 150, 150, 120, 120, 120, 70, 100, 120)


def _timbre() -> dict[str, tuple[float, float]]:
    """Bounds of twelve averages and 78 covariances: at most the product of two sds (Cauchy and Schwarz).

    The covariances come diagonal by diagonal, variances first. The first timbre is loudness, which is not negative.
    Averages are rounded outwards from a published table of all rows, sds from one of the training rows.
    """
    averages = [(-most if order else 0, most) for order, most in enumerate(_MOST_AVERAGE)]
    pairs = [(_MOST_SD[i], _MOST_SD[i + gap], gap) for gap in range(12) for i in range(12 - gap)]
    covariances = [(-one * other if gap else 0, one * other) for one, other, gap in pairs]
    return {
        **{f"TimbreAvg{order}": bounds for order, bounds in enumerate(averages, 1)},
        **{f"TimbreCovariance{order}": bounds for order, bounds in enumerate(covariances, 1)},
    }


YEAR = _schema(_timbre(), Numeric("target", 1922, 2011, integer=True))

REGRESSION: Mapping[str, Schema] = {
    "naval": NAVAL,
    "kin8nm": KIN8NM,
    "power": POWER,
    "wine": WINE,
    "protein": PROTEIN,
    "year": YEAR,
}
