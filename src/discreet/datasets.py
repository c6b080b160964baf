"""Public tables with public schemas, for the demo and the experiments."""

from typing import TYPE_CHECKING

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


def fair() -> tuple["pandas.DataFrame", Schema]:
    """Redbook magazine's 1974 survey on extramarital affairs (Fair 1978): 6366 rows, from statsmodels.

    The bounds are the codes of the questionnaire, known without the answers.
    """
    table = _statsmodels("fair")
    return table.assign(affair=(table["affairs"] > 0).map({True: "yes", False: "no"})), FAIR


def _statsmodels(name: str) -> "pandas.DataFrame":
    try:
        from statsmodels import datasets
    except ImportError:
        raise ValueError(f"the table {name!r} comes with statsmodels: pip install 'discreet[demo]'") from None
    return getattr(datasets, name).load_pandas().data
