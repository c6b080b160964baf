"""Public tables with public schemas, for the demo and the experiments."""

from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.schema import Categorical, Numeric, Schema

if TYPE_CHECKING:
    import pandas

FAIR = Schema(
    (
        Numeric("rate_marriage", 1, 5),
        Numeric("age", 17.5, 42),
        Numeric("yrs_married", 0.5, 23),
        Numeric("children", 0, 5.5),
        Numeric("religious", 1, 4),
        Numeric("educ", 9, 20),
        Categorical("affair", ("no", "yes")),
    )
)

ANES96 = Schema(
    (
        Numeric("TVnews", 0, 7),
        Numeric("selfLR", 1, 7),
        Numeric("PID", 0, 6),
        Numeric("age", 18, 100),
        Numeric("educ", 1, 7),
        Numeric("income", 1, 24),
        Categorical("vote", (0, 1)),
    )
)
RANDHIE = Schema(
    (
        Numeric("lncoins", 0, 4.62),
        Categorical("idp", (0, 1)),
        Numeric("lpi", 0, 7.5),
        Numeric("fmde", 0, 9),
        Numeric("physlm", 0, 1),
        Numeric("disea", 0, 60),
        Categorical("hlthg", (0, 1)),
        Categorical("hlthf", (0, 1)),
        Categorical("hlthp", (0, 1)),
        Numeric("mdvis", 0, 80, integer=True),
    )
)
DIABETES = Schema(
    (
        Numeric("age", 18, 90),
        Categorical("sex", (1, 2)),
        Numeric("bmi", 15, 50),
        Numeric("bp", 50, 150),
        Numeric("s1", 80, 350),
        Numeric("s3", 15, 120),
        Numeric("s5", 3, 7),
        Numeric("s6", 50, 150),
        Numeric("target", 20, 350),
    )
)


def fair() -> tuple["pandas.DataFrame", Schema]:
    """Redbook magazine's 1974 survey on extramarital affairs (Fair 1978): 6366 rows, from statsmodels.

    The bounds are the codes of the questionnaire, known without the answers.
    """
    table = _statsmodels("fair")
    return table.assign(affair=np.where(table["affairs"] > 0, "yes", "no")), FAIR


def anes96() -> tuple["pandas.DataFrame", Schema]:
    """American National Election Study 1996: 944 voters, Clinton or Dole, from statsmodels. Bounds: the codebook."""
    return _statsmodels("anes96"), ANES96


def randhie() -> tuple["pandas.DataFrame", Schema]:
    """RAND Health Insurance Experiment: 20 190 person-years, doctor visits `mdvis`, from statsmodels.

    The bounds are rounded outwards from the published codebook; coinsurance and incentive are on the log scale.
    """
    return _statsmodels("randhie"), RANDHIE


def diabetes() -> tuple["pandas.DataFrame", Schema]:
    """Diabetes progression after a year (Efron et al. 2004): 442 patients, from scikit-learn, unscaled.

    Clinical ranges as bounds. LDL (s2) and the ratio s4 are left out: they are functions of s1 and s3 within noise.
    """
    try:
        from sklearn.datasets import load_diabetes
    except ImportError:
        raise ValueError("the table 'diabetes' comes with scikit-learn: pip install 'discreet[demo]'") from None
    loaded: Any = load_diabetes(as_frame=True, scaled=False)
    return loaded.frame, DIABETES


def _statsmodels(name: str) -> "pandas.DataFrame":
    try:
        from statsmodels import datasets
    except ImportError:
        raise ValueError(f"the table {name!r} comes with statsmodels: pip install 'discreet[demo]'") from None
    return getattr(datasets, name).load_pandas().data
