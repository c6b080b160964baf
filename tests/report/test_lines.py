"""The picture of the trace and the table of doubts: they show what the release says, on the canvas."""

import re
from dataclasses import replace

import numpy as np
import pytest

from discreet.posterior.diagnostics import FALSE_ALARM, FEWEST_INDEPENDENT, Diagnosis, diagnose, records, warnings
from discreet.report.lines import DOTS, HEIGHT, LEFT, MOST_PANELS, RIGHT, WIDTH, Axis, figure, how_read, panels, table
from tests import tiny
from tests.posterior.traces import quadratic
from tests.report.test_report import NASTY, Strict

OPTIMUM = np.array([1.0, -300.0, 2e-4])
CURVATURE = np.array([50.0, 0.5, 5e9])


def released(dim=3, steps=2000, **options):
    """Independent quadratics whose optima and curvatures differ by orders of magnitude."""
    rng, parts = np.random.default_rng(0), []
    for place in range(dim):
        curvature, optimum = CURVATURE[place % 3], OPTIMUM[place % 3 : place % 3 + 1]
        parts.append(quadratic(rng, curvature, optimum, steps=steps, step_size=2000 / (steps * curvature), **options))
    blocks, trace = (join([getattr(part, name) for part in parts]) for name in ("blocks", "trace"))
    return replace(parts[0], blocks=blocks._replace(steps=parts[0].blocks.steps), trace=trace)


def join(parts):
    """The same fields, coordinates side by side."""
    return type(parts[0])(*(np.concatenate(field, -1) for field in zip(*parts, strict=True)))


def drawn_from(release, draws=500):
    """Draws of z around the iterates' mean."""
    mean, sd = release.trace.x.mean(0), release.trace.x.std(0)
    return mean + sd * np.random.default_rng(1).standard_normal((1, draws, len(mean)))


def shown(html):
    """The SVG elements of each panel, as (tag, attributes)."""
    return [
        [
            (tag, dict(re.findall(r'([\w-]+)="([^"]*)"', rest)))
            for tag, rest in re.findall(r"<(line|circle|text)([^>]*)", svg)
        ]
        for svg in re.findall(r"<svg.*?</svg>", html)
    ]


def lines_of(panel, kind):
    return [
        {key: float(attrs[key]) for key in ("x1", "x2", "y1", "y2")}
        for tag, attrs in panel
        if attrs.get("class") == kind
    ]


def test_the_line_is_that_of_the_quadratic():
    """Its zero is known to σ/(κa√n) and its slope to the curvature's sd; 5 of each, 6 numbers: 4e-6."""
    release = released()
    found = diagnose(release)
    for place, panel in enumerate(panels(release, drawn_from(release))):
        std = release.plan.noise_std
        np.testing.assert_allclose(panel.slope * std, 0.1 * found.curvature[place])
        assert abs(panel.slope * std / 0.1 - CURVATURE[place]) < 5 * found.curvature_sd[place]
        error = std / (0.1 * CURVATURE[place] * np.sqrt(0.8 * 2000))
        assert abs(panel.zero - OPTIMUM[place]) < 5 * error


def test_bars_hold_the_line_nine_times_in_ten():
    """120 bars at 90 %, sd .027: fewer than .77 of them once in 10⁶."""
    release = released(12)
    held = [
        np.abs(y - panel.slope * (x - panel.zero)) < bar
        for panel in panels(release, drawn_from(release))
        for x, y, bar in panel.groups
    ]
    assert 0.77 < np.mean(held) < 1


def test_groups_are_means_of_all_retained_answers():
    release = released()
    x, y = (part[400:] for part in release.trace[1:3])
    for place, panel in enumerate(panels(release, drawn_from(release))):
        assert panel.groups.shape == (10, 3)
        np.testing.assert_allclose(panel.groups[:, 0].mean(), x[:, place].mean())
        np.testing.assert_allclose(panel.groups[:, 1].mean() * release.plan.noise_std, y[:, place].mean())
        assert (np.diff(panel.groups[:, 0]) > 0).all()


@pytest.mark.parametrize("kept", ["trace", "blocks"])
def test_the_drawing_says_what_the_numbers_say(kept):
    """The line crosses the zero axis where the tick stands, and the bar is the interval; all to a tenth of a pixel."""
    release = released()
    z = drawn_from(release)
    release = release if kept == "trace" else replace(release, trace=None)
    for place, panel in enumerate(shown(figure(release, z, list("abc")))):
        (fit,), (zero,), (bar,) = (lines_of(panel, kind) for kind in ("fit", "zero", "interval"))
        assert (fit["x1"], fit["x2"]) == (LEFT, RIGHT)
        assert fit["y1"] > fit["y2"]
        crossing = LEFT + (RIGHT - LEFT) * (fit["y1"] - zero["y1"]) / (fit["y1"] - fit["y2"])
        assert abs(crossing - zero["x1"]) < 0.5
        low, high = np.quantile(z[0, :, place], [0.05, 0.95])
        at = panels(release, z)[place].zero
        assert abs((zero["x1"] - bar["x1"]) / (bar["x2"] - bar["x1"]) - (at - low) / (high - low)) < 0.01


@pytest.mark.parametrize("kept", ["trace", "blocks"])
@pytest.mark.parametrize("options", [{"steps": 60, "block": 3}, {"std": 0.01}, {"std": 1e-9, "start": [9.0]}, {}])
def test_everything_lies_on_the_canvas(options, kept):
    release = released(**options)
    z = drawn_from(release)
    z[..., 0], z[..., 1] = 1e9, np.nan
    html = figure(release if kept == "trace" else replace(release, trace=None), z, list("abc"))
    Strict(html)
    for panel in shown(html):
        numbers = [(key, float(value)) for _, attrs in panel for key, value in attrs.items() if key in _PLACES]
        assert all(0 <= value <= (WIDTH if "x" in key else HEIGHT) for key, value in numbers)
        assert len([tag for tag, _ in panel if tag == "text"]) >= 3
        small = [attrs for tag, attrs in panel if tag == "circle" and "class" not in attrs]
        assert 1 <= len(small) <= DOTS


_PLACES = ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy")


def test_without_a_trace_blocks_are_drawn_and_said_to_be():
    release = released()
    html = figure(replace(release, trace=None), drawn_from(release), list("abc"))
    assert all(len([tag for tag, _ in panel if tag == "circle"]) == 32 for panel in shown(html))
    assert "means of blocks of steps" in html
    assert "single answers" not in html
    assert "single answers" in figure(release, drawn_from(release), list("abc"))


def test_a_dozen_panels_and_the_number_of_those_left_out():
    release = released(15)
    html = figure(release, drawn_from(release), [f"parameter {place}" for place in range(15)])
    assert html.count("<figure>") == MOST_PANELS
    assert "3 more parameters are not drawn." in html
    assert "not drawn" not in figure(release, drawn_from(release)[..., :12], list("abcdefghijkl"))


def test_a_plan_without_noise_is_drawn_in_units_of_its_residuals():
    release = released()
    quiet = replace(release, plan=replace(release.plan, noise_multiplier=0.0))
    for mine, other in zip(panels(quiet, drawn_from(release)), panels(release, drawn_from(release)), strict=True):
        assert abs(mine.slope / other.slope - 1) < 0.2
        assert mine.zero == other.zero


def test_what_is_not_finite_is_not_drawn():
    release = released()
    release.trace.y[-1, 1] = np.nan
    html = figure(release, drawn_from(release), list("abc"))
    Strict(html)
    assert html.count("not finite") == 1


@pytest.mark.parametrize(
    ("low", "high"), [(-3, 5), (0.1, 0.2), (100, 101), (0, 1), (-1e-9, 1e-9), (-0.18, 0.18), (1, 1e6)]
)
def test_an_axis_has_two_to_five_ticks_within_it(low, high):
    found = Axis(low, high, 0, 100)
    assert 2 <= len(found.ticks()) <= 5
    assert all(low <= tick <= high for tick in found.ticks())
    assert (found.place(low), found.place(high), found.place(high + 1)) == (0, 100, 100)


RECORD = {
    "parameter": "age",
    "curvature": 386.2,
    "curvature_sd": 52.3,
    "independent": 22.1,
    "time_constant": 180.6,
    "extra_noise": 1.029,
    "bend": 0.565,
    "approach": 1e-80,
}


def test_the_table_is_readable():
    text = Strict(table([RECORD])).text
    for cell in ("age", "386 ± 52", "22", "181", "1.03", "0.56", "< 1e−6"):
        assert cell in text
    assert "–" in Strict(table([{**RECORD, "extra_noise": None}])).text
    assert "−0.20 ± 0.30" in Strict(table([{**RECORD, "curvature": -0.2, "curvature_sd": 0.3}])).text


MARKS = {
    "curvature": {"curvature": 90.0},
    "independent": {"independent": FEWEST_INDEPENDENT - 1},
    "bend": {"bend": FALSE_ALARM / 2.1},
}


@pytest.mark.parametrize("what", [None, *MARKS])
def test_what_a_warning_speaks_of_is_marked_and_nothing_else(what):
    """The marks and the warnings are decided in two places; they agree, at the limits too."""
    changed = {**RECORD, **MARKS.get(what, {})}
    found = Diagnosis(*(np.array([RECORD[field], changed[field]]) for field in Diagnosis._fields))
    rows = records(found, ["first", "second"])
    marked = re.findall(r'<td class="doubt">', table(rows))
    said = warnings(found, ["first", "second"])
    assert len(marked) == len(said) == (what is not None)
    assert all("second" in text and "first" not in text for text in said)
    if what:
        assert '<td class="text">second</td>' in table(rows).split('class="doubt"')[0]


def test_the_section_is_for_readings_that_were_diagnosed():
    posterior = tiny.posterior()
    whole = how_read(posterior)
    assert whole.count("<figure>") == whole.count("class=next") == 3
    loaded = how_read(replace(posterior, release=None))
    assert "<svg" not in loaded
    assert loaded.count("class=next") == 3
    info = {name: value for name, value in posterior.info.items() if name != "diagnostics"}
    assert how_read(replace(posterior, info=info)) == ""


def test_names_are_escaped():
    release = released(1)
    rows = records(diagnose(release), [NASTY])
    text = Strict(figure(release, drawn_from(release), [NASTY]) + table(rows)).text
    assert text.count(NASTY) == 2
