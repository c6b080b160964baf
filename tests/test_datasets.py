"""The public tables fit their public schemas."""

import hashlib
import io
import re
import sys
import threading
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pandas as pd
import pytest

from discreet import atomic, datasets
from discreet.regression_sets import REGRESSION, YEAR
from discreet.schema import Categorical

ROWS = {"fair": 6366, "anes96": 944, "randhie": 20190, "diabetes": 442}


@pytest.mark.parametrize("name", ROWS)
def test_every_table_encodes_under_its_schema(name):
    table, schema = getattr(datasets, name)()
    columns = schema.encode(table)
    assert len(table) == ROWS[name]
    assert tuple(columns) == schema.names
    for column in schema.columns:
        values = columns[column.name]
        assert values.shape == (ROWS[name],)
        if isinstance(column, Categorical):
            assert set(np.unique(values)) == set(range(column.size))  # every declared level occurs
        else:
            assert column.low <= values.min() < values.max() <= column.high


@pytest.mark.parametrize("name", ROWS)
def test_the_declared_bounds_hold_the_values(name):
    """Public bounds from codebooks: clamping changes next to nothing."""
    table, schema = getattr(datasets, name)()
    for column in schema.columns:
        if not isinstance(column, Categorical):
            outside = (table[column.name] < column.low) | (table[column.name] > column.high)
            assert outside.mean() < 0.005, column.name


def test_fair_counts_affairs_as_the_survey_did():
    """2053 of the 6366 women reported an affair (Fair 1978)."""
    table, schema = datasets.fair()
    assert schema.encode(table)["affair"].sum() == 2053


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("fair", "statsmodels.datasets", "statsmodels"),
        ("diabetes", "sklearn.datasets", "scikit-learn"),
        ("adult", "pandas", "pandas"),
    ],
)
def test_a_missing_package_is_named_with_its_remedy(name, module, package, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=rf"'{name}' needs {package}: pip install 'discreet\[demo\]'"):
        getattr(datasets, name)()


COMPLETE = {"train": 30162, "test": 15060}
MD5 = {"adult.data": "5d7c39d7b8804f071cdd1f2a7c460872", "adult.test": "35238206dfdf7f1fe215bbb874adecdc"}
"""Of UCI's files, as several public projects pin them."""


@pytest.fixture(scope="module")
def parquet():
    """Every row of both splits, read without the loader."""
    for folder in datasets._folders():
        paths = {split: folder / f"adult_{split}.parquet" for split in COMPLETE}
        if all(path.is_file() for path in paths.values()):
            return {split: pd.read_parquet(path) for split, path in paths.items()}
    pytest.skip("adult_train.parquet and adult_test.parquet are not here: set DISCREET_DATA")


@pytest.fixture(scope="module")
def raw(parquet):
    """UCI's two files byte by byte, written from the Parquet files."""
    lines = {
        split: [
            ", ".join("?" if pd.isna(value) else str(value) for value in row) for row in table.itertuples(index=False)
        ]
        for split, table in parquet.items()
    }
    test = ["|1x3 Cross validator", *(f"{line}." for line in lines["test"])]
    return {"adult.data": text(lines["train"]), "adult.test": text(test)}


def text(lines):
    return ("\n".join(lines) + "\n\n").encode()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that does not exist yet, the only one where tables are looked for."""
    monkeypatch.setenv("DISCREET_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def fill(folder, files):
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("split", COMPLETE)
def test_adult_is_the_complete_rows_of_a_split_and_encodes_unclamped(split, parquet):
    table, schema = datasets.adult(split)
    expected = parquet[split].dropna().reset_index(drop=True)
    assert len(table) == COMPLETE[split]
    pd.testing.assert_frame_equal(table, expected[list(schema.names)])
    columns = schema.encode(table)
    for column in schema.columns:
        assert list(column.decode(columns[column.name])) == list(table[column.name])


def test_adult_has_the_share_of_high_incomes_that_uci_documents(parquet):
    """24.78 % of the complete rows, says adult.names."""
    codes = np.concatenate([schema.encode(table)["income"] for table, schema in map(datasets.adult, COMPLETE)])
    assert round(100 * codes.mean(), 2) == 24.78


def test_adult_declares_the_98_levels_that_complete_training_rows_have(parquet):
    table, schema = datasets.adult()
    levels = {column.name: column.levels for column in schema.columns if isinstance(column, Categorical)}
    assert {name: set(table[name]) for name in levels} == {name: set(declared) for name, declared in levels.items()}
    assert levels.pop("income") == ("<=50K", ">50K")
    assert sum(map(len, levels.values())) == 98


def test_uci_files_give_the_same_tables_as_parquet(raw, folder, monkeypatch):
    assert {name: hashlib.md5(content, usedforsecurity=False).hexdigest() for name, content in raw.items()} == MD5
    fill(folder, raw)
    from_raw = {split: datasets.adult(split)[0] for split in COMPLETE}
    monkeypatch.undo()
    for split, table in from_raw.items():
        pd.testing.assert_frame_equal(table, datasets.adult(split)[0])


def test_the_checkout_is_looked_at_before_the_cache(raw, tmp_path, monkeypatch):
    monkeypatch.delenv("DISCREET_DATA", raising=False)
    monkeypatch.setenv("DISCREET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets, "_CHECKOUT", tmp_path / "checkout")
    fill(tmp_path / "cache" / "data", raw)
    assert len(datasets.adult("test")[0]) == COMPLETE["test"]
    fill(tmp_path / "shared" / "data", {"adult.test": b"other"})
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "shared" / "data" / "adult.test"))):
        datasets.adult("test")


def test_a_named_folder_has_no_substitute(folder):
    with pytest.raises(ValueError) as refusal:
        datasets.adult()
    for words in (
        f"no adult_train.parquet or adult.data in {folder};",
        "set DISCREET_DATA to a folder that has it",
        "call discreet.datasets.download('adult')",
        f"unpack https://archive.ics.uci.edu/static/public/2/adult.zip into {folder} by hand",
    ):
        assert words in str(refusal.value)


def test_without_a_named_folder_both_others_are_listed(tmp_path, monkeypatch):
    monkeypatch.delenv("DISCREET_DATA", raising=False)
    monkeypatch.delenv("DISCREET_CACHE", raising=False)
    monkeypatch.setattr(atomic, "user_cache_dir", lambda name: str(tmp_path / "cache" / name))
    monkeypatch.setattr(datasets, "_CHECKOUT", tmp_path / "checkout")
    places = f"in {tmp_path / 'shared' / 'data'} or {tmp_path / 'cache' / 'discreet' / 'data'};"
    with pytest.raises(ValueError, match=re.escape(places)):
        datasets.adult("test")


@pytest.mark.parametrize("name", ["adult_train.parquet", "adult.data"])
def test_other_bytes_are_refused_before_they_are_parsed(name, folder):
    fill(folder, {name: b"39, State-gov"})
    with pytest.raises(
        ValueError, match=f"{re.escape(str(folder / name))} is not the published file .*: remove it; set"
    ):
        datasets.adult()


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match=r"split='validation' must be one of \['train', 'test'\]"):
        datasets.adult("validation")


@contextmanager
def served(content, monkeypatch):
    """The address of a server on this machine that gives `content` for /adult.zip."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/adult.zip" else 404)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/adult.zip"
        finally:
            server.shutdown()
            thread.join()


def zipped(files):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in files.items():
            archive.writestr(name, member)
    return content.getvalue()


def test_a_download_is_found_again(raw, folder, monkeypatch):
    with served(zipped({"Index": b"", **raw}), monkeypatch) as url:
        assert datasets.download("adult", url=url) == folder
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == raw
    assert len(datasets.adult("train")[0]) == COMPLETE["train"]


JUNK = {"adult.data": bytes(10**5), "adult.test": bytes(10**5)}
BAD = {
    "a page": (b"<html>moved</html>", "is not a zip archive with adult.data"),
    "a half": (zipped(JUNK)[:150], "is not a zip archive with adult.data"),
    "a member short": (zipped({"adult.data": b""}), "is not a zip archive with adult.test"),
    "damaged": (zipped(JUNK).replace(b"adult.data", b"adult.date", 1), "is not a zip archive with adult.data"),
    "other members": (zipped(JUNK), "adult.data in http.* is not the published file"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_download_is_refused_and_leaves_nothing(bad, tmp_path, monkeypatch):
    content, message = BAD[bad]
    remedy = f"unpack https://archive.ics.uci.edu/static/public/2/adult.zip into {tmp_path / 'new' / 'data'} by hand"
    with (
        served(content, monkeypatch) as url,
        pytest.raises(ValueError, match=f"{message}.*: give another url, or {re.escape(remedy)}"),
    ):
        datasets.download("adult", tmp_path / "new" / "data", url)
    assert not list(tmp_path.iterdir())


def test_one_bad_member_keeps_the_good_one_out_and_old_files_in(raw, folder, monkeypatch):
    fill(folder, {"adult.data": b"old", "adult.test": b"old"})
    with (
        served(zipped({**raw, "adult.test": raw["adult.test"][:-1]}), monkeypatch) as url,
        pytest.raises(ValueError, match=r"adult\.test in http.* is not the published file"),
    ):
        datasets.download("adult", folder, url)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"adult.data": b"old", "adult.test": b"old"}


def test_a_file_that_cannot_be_written_keeps_the_other_out(raw, folder, monkeypatch):
    (folder / "adult.test").mkdir(parents=True)
    with served(zipped(raw), monkeypatch) as url, pytest.raises(OSError, match=r"adult\.test"):
        datasets.download("adult", folder, url)
    assert [path.name for path in folder.iterdir()] == ["adult.test"]


def test_no_answer_is_named_with_its_remedy(tmp_path, monkeypatch):
    with served(b"no", monkeypatch) as url:
        for wrong in (url + "x", re.sub(r":\d+", ":1", url)):
            with pytest.raises(ConnectionError, match=f"{wrong} could not be fetched .*: give another url, or unpack"):
                datasets.download("adult", tmp_path, wrong)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["fair", "naval"])
def test_only_published_archives_can_be_downloaded(name):
    with pytest.raises(ValueError, match=rf"name='{name}' must be one of \['adult', 'census1990', 'year'\]: no other"):
        datasets.download(name)


@pytest.fixture(scope="module")
def census():
    """The first 1000 rows of the census, read without the loader."""
    for folder in datasets._folders():
        path = folder / "census1990_head1000.parquet"
        if path.is_file():
            return pd.read_parquet(path)
    pytest.skip("census1990_head1000.parquet is not here: set DISCREET_DATA")


@pytest.mark.usefixtures("census")
def test_of_the_census_those_stay_who_served():
    """135 of the first 1000 rows, 10.4 % of them poor, as the note on these rows says."""
    table, schema = datasets.census1990("head")
    assert len(table) == 135
    assert round(100 * table["poor"].mean(), 1) == 10.4
    columns = schema.encode(table)
    for name in schema.names:
        assert list(schema[name].decode(columns[name])) == list(table[name])


def test_the_whole_census_is_read_from_the_published_text(census, folder, monkeypatch):
    """Row for row what the Parquet file gives, if there are as many rows as were published."""
    fill(folder, {"USCensus1990.data.txt": census.to_csv(index=False).encode()})
    with pytest.raises(ValueError, match=r"has 1000 rows, and the published file 2458285$"):
        datasets.census1990()
    monkeypatch.setattr(datasets, "CENSUS_ROWS", 1000)
    found, _ = datasets.census1990()
    served = census[~census["iMilitary"].isin((0, 4))].reset_index(drop=True)
    pd.testing.assert_frame_equal(found.drop(columns="poor"), served[list(found.columns[:-1])])
    np.testing.assert_array_equal(found["poor"], served["dPoverty"] < 2)


def test_another_text_is_not_the_census(folder):
    fill(folder, {"USCensus1990.data.txt": b"caseid,dAge\n1,2\n"})
    with pytest.raises(ValueError, match=r"USCensus1990.data.txt is not the published file"):
        datasets.census1990()


SPLITS = {"naval": 20, "kin8nm": 20, "power": 20, "wine": 20, "protein": 5, "year": 1}
SHAPES = {
    "naval": (11934, 17),
    "kin8nm": (8192, 9),
    "power": (9568, 5),
    "wine": (1599, 12),
    "protein": (45730, 10),
    "year": (515345, 91),
}
TARGET_MEANS = {"kin8nm": 0.7143, "power": 454.365, "wine": 5.636, "protein": 7.7485}
"""As the note on these files says, some checked against what UCI documents."""


def present(name, split="whole"):
    """Skip the test unless a file of the set is in one of the folders."""
    files = datasets._PUBLISHED[name].splits[split]
    if not any((folder / file).is_file() for folder in datasets._folders() for file in files):
        pytest.skip(f"{' and '.join(files)} is not here: set DISCREET_DATA")


@pytest.mark.parametrize("name", REGRESSION)
def test_a_regression_set_lies_within_its_public_bounds(name):
    """Every value: an encoded table is the table, so nothing was clamped."""
    present(name)
    table, schema = datasets.regression(name)
    assert table.shape == SHAPES[name]
    assert tuple(table.columns) == schema.names
    columns = schema.encode(table)
    for column in schema.columns:
        np.testing.assert_array_equal(columns[column.name], table[column.name], err_msg=column.name)


@pytest.mark.parametrize("name", TARGET_MEANS)
def test_the_targets_have_the_means_that_are_known(name):
    present(name)
    table, _ = datasets.regression(name)
    assert table["target"].mean() == pytest.approx(TARGET_MEANS[name], abs=5e-4)


def test_naval_has_two_constants_and_a_column_twice():
    """Which is why the bounds of T1 and P1 are physics, and not what occurs."""
    present("naval")
    table, schema = datasets.regression("naval")
    for name, value in (("T1", 288), ("P1", 0.998)):
        assert set(table[name]) == {value}
        assert schema[name].low < value < schema[name].high
    assert (table["Ts"] == table["Tp"]).all()
    assert table["target"].nunique() == 51


@pytest.mark.parametrize("name", SPLITS)
def test_a_split_tests_on_a_tenth_of_the_rows_and_no_two_are_alike(name):
    if name != "year":
        present(name, "splits")
    tested = datasets.splits(name)
    assert tested.dtype == bool
    assert tested.shape == (SPLITS[name], SHAPES[name][0])
    np.testing.assert_allclose(tested.mean(axis=1), 0.1, atol=4e-4)
    assert len(np.unique(tested, axis=0)) == SPLITS[name]


def test_the_year_is_tested_on_its_last_rows():
    (tested,) = datasets.splits("year")
    assert tested.sum() == 51630
    assert tested[-51630:].all()


@pytest.mark.parametrize("ask", [datasets.regression, datasets.splits])
def test_an_unknown_regression_set_is_refused(ask):
    with pytest.raises(ValueError, match=r"name='boston' must be one of \['naval', 'kin8nm', .*'year'\]"):
        ask("boston")


@pytest.mark.parametrize(
    ("ask", "file"), [(datasets.regression, "wine_red.parquet"), (datasets.splits, "wine_red_splits.parquet")]
)
def test_a_regression_set_that_is_absent_or_another_is_refused_with_its_remedy(ask, file, folder):
    remedy = "set DISCREET_DATA to a folder that has it: it cannot be downloaded"
    with pytest.raises(ValueError, match=re.escape(f"'wine' is not here: no {file} in {folder}; {remedy}")):
        ask("wine")
    fill(folder, {file: b"PAR1"})
    with pytest.raises(ValueError, match=rf"{file} is not the published file .*: remove it; {remedy}"):
        ask("wine")


def test_an_absent_year_names_its_archive(folder):
    with pytest.raises(ValueError, match=r"no YearPredictionMSD.txt in .*download\('year'\), or unpack https:.*203"):
        datasets.regression("year")


def songs(rows):
    """A made-up table in UCI's format: the year first, no header, five decimals."""
    made = YEAR.sample(np.random.default_rng(0), rows)
    table = pd.DataFrame({name: np.round(YEAR[name].decode(values), 5) for name, values in made.items()})
    table = table.astype({"target": int})
    return table, table[["target", *YEAR.names[:-1]]].to_csv(index=False, header=False).encode()


def test_the_year_is_read_from_the_published_text(folder, monkeypatch):
    """If there are as many rows as were published."""
    table, text = songs(50)
    fill(folder, {"YearPredictionMSD.txt": text})
    with pytest.raises(ValueError, match=r"has 50 rows, and the published file 515345$"):
        datasets.regression("year")
    monkeypatch.setattr(datasets, "YEAR_ROWS", 50)
    found, schema = datasets.regression("year")
    pd.testing.assert_frame_equal(found, table)
    assert tuple(found.columns) == schema.names


@pytest.mark.parametrize("other", [b"", b"2001,49.9\n", b"label,a\n2001,49.9\n", songs(2)[1].replace(b"\n", b",1\n")])
def test_another_text_is_not_the_year(other, folder, monkeypatch):
    monkeypatch.setattr(datasets, "YEAR_ROWS", 2)
    fill(folder, {"YearPredictionMSD.txt": other})
    with pytest.raises(ValueError, match=r"YearPredictionMSD.txt is not the published file"):
        datasets.regression("year")


def test_a_downloaded_year_is_found_again(folder, monkeypatch):
    _, text = songs(3)
    monkeypatch.setattr(datasets, "YEAR_ROWS", 3)
    with served(zipped({"YearPredictionMSD.txt": text}), monkeypatch) as url:
        datasets.download("year", url=url)
    assert len(datasets.regression("year")[0]) == 3


def test_the_bounds_of_the_year_hold_the_covariances_that_are_possible():
    """Of any twelve series within the declared sds, in the order in which UCI lists them: diagonal by diagonal."""
    rng = np.random.default_rng(1)
    most = [np.sqrt(YEAR[f"TimbreCovariance{order}"].high) for order in range(1, 13)]
    for mixing in rng.normal(size=(100, 12, 2)):
        covariance = mixing @ mixing.T
        sds = np.sqrt(np.diag(covariance))
        covariance *= np.outer(most / sds, most / sds)
        flat = np.concatenate([np.diag(covariance, gap) for gap in range(12)])
        bounds = [YEAR[f"TimbreCovariance{order}"] for order in range(1, 79)]
        assert all(c.low - 1e-6 <= value <= c.high + 1e-6 for c, value in zip(bounds, flat, strict=True))
