"""Public tables with public schemas, for the demo and the experiments."""

import hashlib
import os
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from http.client import HTTPException
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from discreet.atomic import cache_folder, new_file
from discreet.regression_sets import REGRESSION, YEAR
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


def _levels(name: str, documented: str) -> Categorical:
    return Categorical(name, tuple(documented.split(", ")))


ADULT = Schema(
    (
        Numeric("age", 17, 90, integer=True),
        _levels(
            "workclass",
            "Private, Self-emp-not-inc, Self-emp-inc, Federal-gov, Local-gov, State-gov, Without-pay",
        ),
        Numeric("fnlwgt", 0, 1_500_000, integer=True),
        _levels(
            "education",
            "Bachelors, Some-college, 11th, HS-grad, Prof-school, Assoc-acdm, Assoc-voc, 9th, 7th-8th, 12th, Masters, "
            "1st-4th, 10th, Doctorate, 5th-6th, Preschool",
        ),
        _levels(
            "marital-status",
            "Married-civ-spouse, Divorced, Never-married, Separated, Widowed, Married-spouse-absent, Married-AF-spouse",
        ),
        _levels(
            "occupation",
            "Tech-support, Craft-repair, Other-service, Sales, Exec-managerial, Prof-specialty, Handlers-cleaners, "
            "Machine-op-inspct, Adm-clerical, Farming-fishing, Transport-moving, Priv-house-serv, Protective-serv, "
            "Armed-Forces",
        ),
        _levels("relationship", "Wife, Own-child, Husband, Not-in-family, Other-relative, Unmarried"),
        _levels("race", "White, Asian-Pac-Islander, Amer-Indian-Eskimo, Other, Black"),
        _levels("sex", "Female, Male"),
        Numeric("capital-gain", 0, 99_999, integer=True),
        Numeric("capital-loss", 0, 5_000, integer=True),
        Numeric("hours-per-week", 1, 99, integer=True),
        _levels(
            "native-country",
            "United-States, Cambodia, England, Puerto-Rico, Canada, Germany, Outlying-US(Guam-USVI-etc), India, Japan, "
            "Greece, South, China, Cuba, Iran, Honduras, Philippines, Italy, Poland, Jamaica, Vietnam, Mexico, "
            "Portugal, Ireland, France, Dominican-Republic, Laos, Ecuador, Taiwan, Haiti, Columbia, Hungary, "
            "Guatemala, Nicaragua, Scotland, Thailand, Yugoslavia, El-Salvador, Trinadad&Tobago, Peru, Hong, "
            "Holand-Netherlands",
        ),
        _levels("income", "<=50K, >50K"),
    )
)


def _codes(name: str, first: int, last: int) -> Categorical:
    return Categorical(name, tuple(range(first, last + 1)))


CENSUS1990 = Schema(
    (
        _codes("dAncstry1", 0, 11),
        _codes("dAncstry2", 0, 12),
        _codes("iMarital", 0, 4),
        _codes("dAge", 0, 7),
        _codes("iFertil", 0, 13),
        _codes("iEnglish", 0, 4),
        _codes("iImmigr", 0, 10),
        _codes("iYearsch", 0, 17),
        _codes("iSex", 0, 1),
        _codes("iVietnam", 0, 1),
        _codes("iKorean", 0, 1),
        _codes("iMobillim", 1, 2),
        Numeric("poor", 0, 1, integer=True),
    )
)
CENSUS_ROWS = 2_458_285
YEAR_ROWS, YEAR_TRAIN_ROWS = 515_345, 463_715


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


def adult(split: str = "train") -> tuple["pandas.DataFrame", Schema]:
    """Adult: who of the 1994 US census earns over 50 000 dollars (Becker & Kohavi 1996), "train" or "test" of UCI.

    doi:10.24432/C5XW20, CC BY 4.0. The 30 162 and 15 060 rows without missing values; education-num is left out, as it
    repeats education. Levels are those of UCI's adult.names without Never-worked, which no such row has. Bounds are the
    survey's codes (age, gain, hours) or rounded outwards from the published table, which is taken as public.

    The file is the first of `adult_train.parquet` and UCI's `adult.data` (`adult_test.parquet`, `adult.test`) in the
    folder DISCREET_DATA; without that variable, in `shared/data` beside the checkout, then where `download` writes.
    """
    return _published("adult", split).dropna(ignore_index=True).drop(columns="education-num"), ADULT


def census1990(split: str = "whole") -> tuple["pandas.DataFrame", Schema]:
    """US census of 1990, those who served in the armed forces, and who of them is poor (Meek et al. 2001, DPVIm).

    doi:10.24432/C5VP42, CC BY 4.0. Rows whose iMilitary is neither 0 nor 4, twelve of the coded columns, and `poor`,
    which is dPoverty below 2. Levels are the survey's codes, those that no such row has among them. "whole" reads
    UCI's `USCensus1990.data.txt`; DPVIm says that 320 754 of its 2 458 285 rows stay. "head" is its first 1000 rows, of
    which 135 stay: enough to try the loader, and no random sample. Places are those of `adult`.
    """
    table = _published("census1990", split)
    served = table[~table["iMilitary"].isin((0, 4))]
    poor = (served["dPoverty"] < 2).astype(np.int64)
    return served.assign(poor=poor).reset_index(drop=True).filter(list(CENSUS1990.names)), CENSUS1990


def regression(name: str) -> tuple["pandas.DataFrame", Schema]:
    """A regression set, features first and `target` last: "naval", "kin8nm", "power", "wine", "protein" or "year".

    - naval: compressor decay of a simulated gas turbine, 11 934 rows (Coraddu et al. 2014), doi:10.24432/C5K31K, CC BY
      4.0 says UCI, an older notice in the archive is against commercial use. T1 and P1 are constant, and Ts is Tp.
      Bounds: documented speeds and decay, physics, the published table of columns.
    - kin8nm: reach of a simulated arm with eight joints, 8192 rows (DELVE, Rasmussen et al. 1996), without a stated
      licence. Bounds: angles within π/2; the published range of the target.
    - power: megawatts of a power plant, 9568 rows (Tüfekci & Kaya 2014), doi:10.24432/C5002N, CC BY 4.0. Bounds: UCI's.
    - wine: scores of red wines, 1599 rows (Cortez et al. 2009), doi:10.24432/C56S3T, CC BY 4.0. Bounds: the scale of
      scores, and a published table of columns.
    - protein: RMSD of decoys in ångström, 45 730 rows (Rana 2013), doi:10.24432/C5QW3H, CC BY 4.0. Bounds: the
      published table of columns, which is taken as public.
    - year: years of songs, 515 345 rows (Bertin-Mahieux 2011), doi:10.24432/C50K61, CC BY 4.0. Bounds: UCI's years,
      published ranges of averages and variances, and what these imply for covariances. They were set without the file.

    All but the year are `NAME.parquet` (`wine_red.parquet`) with verified checksums, in the folders of `adult`, and are
    not downloaded. The year is UCI's `YearPredictionMSD.txt`, which is known by its columns and rows.
    """
    return _published(_known(name), "whole"), REGRESSION[name]


def splits(name: str) -> np.ndarray:
    """(splits, rows): which rows of `regression(name)` each split tests on, a tenth of them.

    Those of Hernández-Lobato & Adams (2015), 20 and for protein 5, from `NAME_splits.parquet`. The year has one, UCI's:
    the last 51 630 rows, whose artists are in no other row.
    """
    if _known(name) == "year":
        return (np.arange(YEAR_ROWS) >= YEAR_TRAIN_ROWS)[None]
    return np.ascontiguousarray(_published(name, "splits").to_numpy(bool).T)


def download(name: str, folder: str | os.PathLike | None = None, url: str | None = None) -> Path:
    """The folder where the publisher's files of table `name` are now: all of them, with verified checksums.

    The census and the year are without a checksum here: their files are known by columns and rows, when they are read.

    By default it is where `adult` looks last: DISCREET_DATA if set, else `data` in the user's cache. `url` names
    another copy of the publisher's zip archive. What is refused or interrupted leaves nothing behind.
    """
    archives = {name: source.url for name, source in _PUBLISHED.items() if source.url}
    if name not in archives:
        raise ValueError(f"name={name!r} must be one of {sorted(archives)}: no other table is downloaded")
    source, folder = _PUBLISHED[name], Path(folder or _folders()[-1])
    url, remedy = url or archives[name], f"give another url, or unpack {source.url} into {folder} by hand"
    try:
        with urllib.request.urlopen(url, timeout=60) as reply:
            archive = reply.read(_MOST_BYTES)
    except (OSError, HTTPException) as error:
        raise ConnectionError(f"{url} could not be fetched ({error}): {remedy}") from None
    digests = {file: digest for files in source.splits.values() for file, digest in files.items() if _is_raw(file)}
    contents = {file: _member(archive, file, url, remedy) for file in digests}
    for file, content in contents.items():
        _verify(content, digests[file], f"{file} in {url}", remedy)
    with ExitStack() as all_or_none:
        for file, content in contents.items():
            all_or_none.enter_context(new_file(folder / file)).write_bytes(content)
    return folder


def _published(name: str, split: str) -> "pandas.DataFrame":
    """A split of a published table, parsed from the very bytes whose checksum was verified."""
    source, folders = _PUBLISHED[name], _folders()
    if split not in source.splits:
        raise ValueError(f"split={split!r} must be one of {list(source.splits)}")
    pandas, files = _package("pandas", name, "pandas"), source.splits[split]
    remedy = "set DISCREET_DATA to a folder that has it" + (
        f", call discreet.datasets.download({name!r}), or unpack {source.url} into {folders[-1]} by hand"
        if source.url
        else ": it cannot be downloaded"
    )
    path = next((folder / file for folder in folders for file in files if (folder / file).is_file()), None)
    if path is None:
        places = " or ".join(map(str, folders))
        raise ValueError(f"the table {name!r} is not here: no {' or '.join(files)} in {places}; {remedy}")
    content = path.read_bytes()
    _verify(content, files[path.name], path, f"remove it; {remedy}")
    return (source.parse if _is_raw(path.name) else _parse_parquet)(pandas, content)


def _known(name: str) -> str:
    if name not in REGRESSION:
        raise ValueError(f"name={name!r} must be one of {list(REGRESSION)}")
    return name


def _folders() -> tuple[Path, ...]:
    if named := os.environ.get("DISCREET_DATA"):
        return (Path(named),)  # and no other, so that a wrong one is noticed
    cache = cache_folder()
    return _CHECKOUT.parent / "shared" / "data", cache / "data"


def _is_raw(file: str) -> bool:
    return not file.endswith(".parquet")


def _verify(content: bytes, digest: str | None, origin: object, remedy: str) -> None:
    if digest is None:
        return
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise ValueError(f"{origin} is not the published file (SHA-256 {found}, not {digest}): {remedy}")


def _member(archive: bytes, file: str, url: str, remedy: str) -> bytes:
    try:
        with zipfile.ZipFile(BytesIO(archive)) as opened, opened.open(file) as member:
            return member.read(_MOST_BYTES)
    except Exception:  # a damaged archive raises whatever its decoder raises
        raise ValueError(f"{url} is not a zip archive with {file}: {remedy}") from None


def _parse_parquet(pandas: Any, content: bytes) -> "pandas.DataFrame":
    return pandas.read_parquet(BytesIO(content))


def _parse_adult(pandas: Any, content: bytes) -> "pandas.DataFrame":
    names = list(ADULT.names)
    names.insert(names.index("education") + 1, "education-num")
    form = {"skipinitialspace": True, "comment": "|", "na_values": "?", "keep_default_na": False}
    table = pandas.read_csv(BytesIO(content), header=None, names=names, **form)
    return table.assign(income=table["income"].str.rstrip("."))


def _parse_census1990(pandas: Any, content: bytes) -> "pandas.DataFrame":
    """The columns that are used; refused unless it has as many rows as were published."""
    wanted = [*CENSUS1990.names[:-1], "iMilitary", "dPoverty"]
    try:
        table = pandas.read_csv(BytesIO(content), usecols=wanted, dtype=np.int16)
    except ValueError as error:
        raise ValueError(f"USCensus1990.data.txt is not the published file: {error}") from None
    return _counted(table, "USCensus1990.data.txt", CENSUS_ROWS)


def _parse_year(pandas: Any, content: bytes) -> "pandas.DataFrame":
    """The year last; refused unless it has as many columns of numbers and as many rows as were published."""
    *features, target = YEAR.names
    types = {0: np.int64, **dict.fromkeys(range(1, len(YEAR.names)), np.float64)}
    try:
        table = pandas.read_csv(BytesIO(content), header=None, dtype=types).set_axis([target, *features], axis=1)
    except ValueError as error:
        raise ValueError(f"YearPredictionMSD.txt is not the published file: {error}") from None
    return _counted(table, "YearPredictionMSD.txt", YEAR_ROWS).filter(list(YEAR.names))


def _counted(table: "pandas.DataFrame", file: str, rows: int) -> "pandas.DataFrame":
    if len(table) != rows:
        raise ValueError(f"{file} has {len(table)} rows, and the published file {rows}")
    return table


class _Published(NamedTuple):
    """A table in files: the publisher's archive, its raw format, and for each split its files with their SHA-256.

    Where no checksum is given it is None, and `parse` must know the file by what is in it. Where no archive is read the
    url is None.
    """

    url: str | None
    parse: Callable[[Any, bytes], "pandas.DataFrame"]
    splits: Mapping[str, Mapping[str, str | None]]


def _parquet(stem: str, table: str, splits: str) -> _Published:
    files = {"whole": {f"{stem}.parquet": table}, "splits": {f"{stem}_splits.parquet": splits}}
    return _Published(None, _parse_parquet, files)


_CHECKOUT = Path(__file__).resolve().parent.parent.parent
_MOST_BYTES = 2**29  # what is read of an archive or member before its checksum is known
_PUBLISHED = {
    "adult": _Published(
        "https://archive.ics.uci.edu/static/public/2/adult.zip",
        _parse_adult,
        {
            "train": {
                "adult_train.parquet": "ba071968d16e82a3b856df26e3f3c9968a926b4da9a5174030d1d265ecc817d6",
                "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
            },
            "test": {
                "adult_test.parquet": "cd445c15f75c4bbeb0c47d1806ba24f17e9a58228f76ea4278b09674690f3c36",
                "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
            },
        },
    ),
    "census1990": _Published(
        "https://archive.ics.uci.edu/static/public/116/us+census+data+1990.zip",
        _parse_census1990,
        {
            "whole": {"USCensus1990.data.txt": None},
            "head": {"census1990_head1000.parquet": "cf41c53b89f1d3c6333e59fa0552459c3df8e5440a19e3173cfe1d865a076249"},
        },
    ),
    "naval": _parquet(
        "naval",
        "7f2c4c35dbbb44ddac77935ec4315c098c72c6a3a20ea6981267d5d607410849",
        "7d87b6c049dd2b2f5e13574da9033285df34cab6478fb8380141a41bbc482226",
    ),
    "kin8nm": _parquet(
        "kin8nm",
        "43366e42ee61e63a46d791c3bc55d88b32abe12552ade703ca52916df38d23a9",
        "2c13ec992c192c8637ac12b10258cf5a10505c84eefe50c946cacf2fdae9d00c",
    ),
    "power": _parquet(
        "power",
        "a77752fade1eed12568e6bdbac0e310016e854c7499bc1508e253268b717d450",
        "842074a5e1708baa60642dae8509ea8d40934b7c5fc9a578af6618623fd63696",
    ),
    "wine": _parquet(
        "wine_red",
        "f55f4fd767f516676c125b0cd5e133a342faa8afcb9f516c52b430a2c8536172",
        "23fb7c96a77f23b00d5140520806a3bc5c4362eee38b7e04206a63fcf1fe7391",
    ),
    "protein": _parquet(
        "protein",
        "42d7e9ca561f58c9880cbf32d134c389ad514c33a76e0a9e873668e94ac2d000",
        "0dd3d5ae475766e0c4ddba744a54ff683530c942a3440cc0ff33416070ba8cda",
    ),
    "year": _Published(
        "https://archive.ics.uci.edu/static/public/203/yearpredictionmsd.zip",
        _parse_year,
        {"whole": {"YearPredictionMSD.txt": None}},
    ),
}


def _sklearn(name: str, **options: Any) -> "pandas.DataFrame":
    return getattr(_package("sklearn.datasets", name, "scikit-learn"), f"load_{name}")(as_frame=True, **options).frame


def _statsmodels(name: str) -> "pandas.DataFrame":
    return getattr(_package("statsmodels.datasets", name, "statsmodels"), name).load_pandas().data


def _package(module: str, table: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ValueError(f"the table {table!r} needs {package}: pip install 'discreet[demo]'") from None
