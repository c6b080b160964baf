"""Public tables with public schemas, for the demo and the experiments."""

from importlib import import_module
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
BREAST_CANCER = Schema(
    (
        Numeric("mean radius", 5, 30),
        Numeric("mean texture", 5, 40),
        Numeric("mean smoothness", 0.05, 0.2),
        Numeric("mean symmetry", 0.1, 0.35),
        Categorical("target", (0, 1)),
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
    return _sklearn("diabetes", scaled=False), DIABETES


def breast_cancer() -> tuple["pandas.DataFrame", Schema]:
    """Breast tumours, malignant (0) or benign (1) (Street et al. 1993): 569 rows, four features, scikit-learn."""
    return _sklearn("breast_cancer"), BREAST_CANCER


def _sklearn(name: str, **options: Any) -> "pandas.DataFrame":
    return getattr(_package("sklearn.datasets", name, "scikit-learn"), f"load_{name}")(as_frame=True, **options).frame


def _statsmodels(name: str) -> "pandas.DataFrame":
    return getattr(_package("statsmodels.datasets", name, "statsmodels"), name).load_pandas().data


def _package(module: str, table: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ValueError(f"the table {table!r} comes with {package}: pip install 'discreet[demo]'") from None
