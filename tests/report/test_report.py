import dataclasses
import json
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from discreet.accounting import Guarantee
from discreet.families.glm import glm
from discreet.posterior.reading import naive_posterior
from discreet.posterior.types import Posterior, from_draws
from discreet.release import Release
from discreet.report.folder import NAMES, save_run
from discreet.report.forest import axis, forest, interval_name
from discreet.report.page import page
from discreet.report.words import description, meaning, rounded
from discreet.schema import Categorical, Numeric, Schema
from tests import tiny

PROMISE = Guarantee(0.5, 1e-5, "PLD", "dp-accounting 0.6.0", "3 × Gaussian(2.0)", 0.1, 0.02, "secure")
PLAN = {
    "num_rows": 300,
    "steps": 3,
    "sampling_prob": 0.1,
    "clip_norm": 1.0,
    "noise_multiplier": 2.0,
    "batch_limit": None,
}
NASTY = "<b>'$x_{\" & \\]>"
VOID = {"meta", "line", "circle", "br"}


def made(family="logistic", covariates=("age", "sex"), schema=tiny.SCHEMA, outcome="ill", guarantee=PROMISE, **options):
    model = glm(family, outcome, list(covariates), schema, **options)
    z = np.random.default_rng(0).normal(size=(200, model.dim))
    info = {"method": "made <up>", "plan": PLAN, "reasons": ["because 1 < 2 & 3"]}
    return from_draws(z, model, guarantee, info=info, schema=schema)


class Strict(HTMLParser):
    """Every element is closed in order, no element loads or runs anything, and text is collected."""

    def __init__(self, text):
        super().__init__()
        self.open, self.text, self.tags = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "link", "img", "iframe", "object", "embed", "base", "form", "b")
        assert not {"src", "href", "srcset", "action", "onload", "xlink:href"} & {name for name, _ in attrs}
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text.append(data)


def test_the_page_is_well_formed_and_asks_nobody_for_anything():
    html = page("Title", made(), line="One line.")
    found = Strict(html)
    assert html.startswith("<!doctype html>")
    assert "default-src 'none'" in html
    assert not re.search(r"https?://|url\(|@import", html)
    assert "One line." in found.text


def test_phases_stand_side_by_side_and_one_alone_has_no_number():
    alone = made()
    assert "phase" not in page("t", alone)
    several = alone.info | {"before": [PLAN | {"clip_norm": 7.25}]}
    text = Strict(page("t", dataclasses.replace(alone, info=several))).text
    text = [part for part in text if part.strip()]
    assert text[text.index("setting") :][:3] == ["setting", "phase 1", "phase 2"]
    assert text[text.index("clip_norm") :][:3] == ["clip_norm", "7.25", "1"]


def test_all_text_of_the_user_is_escaped():
    schema = Schema(
        (Numeric(NASTY, 0, 1), Categorical("s", (NASTY, "<i>")), Categorical("<u>", ("<script>", "</script>")))
    )
    posterior = made(covariates=(NASTY, "s"), schema=schema, outcome="<u>")
    found = Strict(page(NASTY, posterior, line=NASTY, extra=NASTY))
    text = "".join(found.text)
    assert text.count(NASTY) >= 6
    for part in ("s[<i>]", "<u> = </script> against <script>", "made <up>", "because 1 < 2 & 3"):
        assert part in text


def test_a_private_page_has_no_warning_and_a_simulated_one_has():
    assert 'class="warning"' not in page("t", made())
    loud = page("t", made(guarantee=dataclasses.replace(PROMISE, noise="simulated")))
    assert '<div class="warning"><p>NOT PRIVATE: simulated noise' in loud
    assert 'class="guarantee"' not in loud


NO_BOUND = {"epsilon": float("inf"), "advantage": 1.0}


@pytest.mark.parametrize(
    "change",
    [{"noise": "unstated"}, *({**NO_BOUND, "noise": noise} for noise in ("unstated", "simulated", "secure"))],
)
def test_whatever_is_not_private_says_so(change):
    assert '<div class="warning"><p>NOT PRIVATE' in page("t", made(guarantee=dataclasses.replace(PROMISE, **change)))


def test_a_delta_of_one_row_in_the_table_is_a_warning():
    useless = page("t", made(guarantee=dataclasses.replace(PROMISE, delta=1 / 300)))
    assert 'class="warning"' in useless
    assert "1/300" in useless


def test_the_page_shows_every_number_of_the_summary():
    posterior = made()
    text = Strict(page("t", posterior)).text
    for _, (mean, sd, low, high) in posterior.summary().iterrows():
        for cell in rounded((mean, sd, low, high), sd):
            assert cell.replace("-", "−") in text


def test_a_noise_aware_page_shows_how_the_answers_were_read(tmp_path):
    """With a picture where the release is at hand, and not for readings that fit no line."""
    posterior = tiny.posterior()
    html = page("t", posterior)
    Strict(html)
    assert "<h2>How the answers were read</h2>" in html
    assert html.count("<figure>") == 3
    loaded = page("t", Posterior.load(posterior.save(tmp_path / "p.nc"), posterior.model, posterior.schema))
    Strict(loaded)
    assert "independent steps" in loaded
    assert "<figure>" not in loaded
    for other in (made(), naive_posterior(posterior)):
        assert "How the answers were read" not in page("t", other)


def test_several_readings_stand_side_by_side():
    summaries = {"first": made().summary(), "second": made().summary() * 1.1}
    text = Strict(page("t", made(), summaries)).text
    assert text.count("first") == text.count("second") == 3
    assert [part.strip() for part in text].count("first") == 4


def table(*rows):
    return pd.DataFrame(rows, columns=["mean", "sd", "5%", "95%"], index=[f"p{i}" for i in range(len(rows))])


def test_each_parameter_has_its_own_axis():
    """Marks of parameters whose sizes differ by 10⁹ take the same places."""
    small, large = np.array([1.0, 0.5, 0.2, 1.8]), 1e9 * np.array([1.0, 0.5, 0.2, 1.8])
    html = forest({"a": table(small, large)})
    places = re.findall(r'<circle cx="([\d.]+%)" cy="7"', html)
    assert len(places) == 2
    assert places[0] == places[1]


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize(("low", "high"), [(-3, 5), (0.1, 0.2), (-9, -1), (100, 101), (0, 1), (2, 2), (0, 0)])
def test_an_axis_holds_its_values_and_a_few_ticks(low, high, scale):
    found = axis(scale * np.array([low, high], float))
    assert found.low <= scale * low <= scale * high <= found.high
    assert found.low < found.high
    assert 1 <= len(found.ticks) <= 6
    assert all(found.low - 1e-9 * scale <= tick <= found.high + 1e-9 * scale for tick in found.ticks)
    assert 5 <= float(found.place(scale * low).rstrip("%")) <= 95


def test_zero_is_on_the_axis_unless_it_is_far_away():
    assert axis(np.array([1.0, 2.0])).low == 0
    assert axis(np.array([-2.0, -1.0])).high == 0
    assert axis(np.array([100.0, 101.0])).low == 100


def test_numbers_that_are_not_finite_do_not_lose_the_page():
    html = forest({"a": table([np.nan, np.nan, np.nan, np.nan], [1, np.inf, -np.inf, np.inf], [1, 1, 0, 2])})
    Strict(html)
    assert html.count("not finite") == 2
    broken = made()
    broken = dataclasses.replace(broken, draws={"coefficients": np.full((1, 9, 3), np.nan)})
    Strict(page("t", broken))


def test_the_interval_is_named_by_its_probability():
    assert interval_name(made().summary(0.95)) == "95 %"
    assert interval_name(made().summary()) == "90 %"


@pytest.mark.parametrize(
    ("family", "column", "words", "level"),
    [
        ("logistic", Categorical("y", ("no", "yes")), "log odds of y = yes against no", "yes"),
        ("logistic", Numeric("y", 0, 1, integer=True), "log odds of y = 1 against 0", 1),
        ("probit", Categorical("y", ("no", "yes")), "changes of the normal quantile of P(y = yes)", "yes"),
        ("poisson", Numeric("y", 0, 9, integer=True), "log mean of y", None),
        ("gaussian", Numeric("y", -3, 3), "mean of y", None),
    ],
)
def test_coefficients_say_what_they_are(family, column, words, level):
    schema = Schema((Numeric("age", 0, 9), Categorical("sex", ("f", "m")), column))
    found = made(family, ("age", "sex"), schema, "y")
    assert words in meaning(found)
    assert "levels against sex = f" in meaning(found)
    assert meaning(found) in "".join(Strict(page("t", found)).text)
    assert description(found).get("modelled_level") == level


WIDE = Schema((Numeric("age", 20, 60), Numeric("bmi", 10, 50), *tiny.SCHEMA.columns[1:]))
EVERY = {"coding": "every level"}


@pytest.mark.parametrize(
    ("covariates", "options", "line"),
    [
        (("age", "bmi", "sex"), {}, "at mid-bounds and at first levels"),
        (("age", "bmi"), {}, "at mid-bounds"),
        (("sex",), {}, "at first levels"),
        (("sex",), EVERY, "without any level's coefficient"),
        (("age", "sex"), EVERY, "at mid-bounds and without any level's coefficient"),
        (("age", "bmi"), {"units": {"bmi": (25.5, 5)}}, "at bmi = 25.5, mid-bounds of the others"),
        (("age", "sex"), {"units": {"age": (39, 13.6)}}, "at age = 39 and at first levels"),
        (
            ("age", "bmi", "sex"),
            {"units": {"bmi": (25.5, 5), "age": (39, 13.6)}, **EVERY},
            "at bmi = 25.5, age = 39 and without any level's coefficient",
        ),
    ],
)
def test_the_intercept_says_where_it_stands(covariates, options, line):
    """And levels are said to be against a reference only where there is one."""
    words = meaning(made(covariates=covariates, schema=WIDE, **options))
    assert words.endswith(f" Intercept: {line}.")
    coded_against = "sex" in covariates and "coding" not in options
    assert ("levels against sex = f" in words) == coded_against
    assert ("one for each level, none of them a reference" in words) == ("sex" in covariates and not coded_against)
    assert ("per unit of a numeric column" in words) == (covariates != ("sex",))


def test_an_intercept_alone_stands_nowhere():
    assert meaning(made(covariates=())) == "Coefficients are log odds of ill = yes against no."


def test_other_models_have_no_such_line():
    found = made()
    assert meaning(dataclasses.replace(found, model=None)) == ""
    assert meaning(dataclasses.replace(found, model=dataclasses.replace(found.model, description={}))) == ""


def test_numbers_end_at_the_second_digit_of_their_sd():
    assert rounded([1234.567, -0.4], 25.0) == ["1235", "0"]
    assert rounded([0.1234567], 0.00123) == ["0.1235"]
    assert rounded([1.23456e-9], 1e-10) == ["1.235e-09"]
    assert rounded([float("nan")], float("nan")) == ["nan"]


def test_the_folder_of_a_run_holds_all_that_may_be_handed_on(tmp_path):
    posterior = tiny.posterior()
    folder = save_run(tmp_path / "deep" / "run", posterior, "<p>ε")
    assert sorted(path.name for path in folder.iterdir()) == sorted(NAMES)
    assert json.loads((folder / "guarantee.json").read_text(encoding="utf-8")) == posterior.guarantee.to_dict()
    assert Schema.load(folder / "schema.toml") == posterior.schema
    assert (folder / "report.html").read_text(encoding="utf-8") == "<p>ε"
    np.testing.assert_array_equal(Release.load(folder / "release").last, posterior.release.last)
    np.testing.assert_array_equal(Posterior.load(folder / "posterior.nc").z, posterior.z)
    save_run(folder, posterior, "again")
    assert (folder / "report.html").read_text() == "again"


def test_a_run_that_cannot_be_written_leaves_nothing(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        save_run(tmp_path / "deep" / "run", tiny.posterior(), "\ud800")
    assert list(tmp_path.iterdir()) == []


def test_a_run_never_replaces_anything_but_a_run(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="thesis"):
        save_run(tmp_path, tiny.posterior(), "")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
