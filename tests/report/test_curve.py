"""The picture of what a budget buys: well-formed, a line for each number of rows, one red dot."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from discreet.planner.outlook import Curves
from discreet.report.curve import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, draw_curve

EPSILONS = (0.1, 0.3, 1.0, 3.0)
ROWS = (250, 1000, 4000)
WIDTHS = np.array([[9.0, 4.0, 2.0, 1.2], [5.0, 2.5, 1.4, 1.1], [3.0, 1.6, 1.1, 1.0]])
CURVES = Curves(ROWS, EPSILONS, WIDTHS)


def drawn(path, curves=CURVES, num_rows=1000, epsilon=1.0):
    """The root element of the picture that was written."""
    draw_curve(path / "curve.svg", curves, num_rows, epsilon)
    return ElementTree.fromstring((path / "curve.svg").read_bytes())


def every(root, tag):
    return root.findall(f"{{http://www.w3.org/2000/svg}}{tag}")


def points(line):
    return [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]


def dots(root):
    return [(float(dot.get("cx")), float(dot.get("cy"))) for dot in every(root, "circle")]


def written(root):
    return [text.text for text in every(root, "text")]


def test_the_picture_is_an_svg_file_of_its_size(tmp_path):
    root = drawn(tmp_path)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert (float(root.get("width")), float(root.get("height"))) == (WIDTH, HEIGHT)
    assert [path.name for path in tmp_path.iterdir()] == ["curve.svg"]


def test_each_number_of_rows_has_a_line_through_its_dots(tmp_path):
    root = drawn(tmp_path)
    lines = [points(line) for line in every(root, "polyline")]
    assert [len(line) for line in lines] == [4, 4, 4]
    assert dots(root) == [point for line in lines for point in line]
    assert [text for text in written(root) if text.endswith(" rows")] == ["250 rows", "1,000 rows", "4,000 rows"]


def test_one_dot_is_red_and_it_is_the_one_that_was_asked_for(tmp_path):
    root = drawn(tmp_path, num_rows=4000, epsilon=0.3)
    red = [place for place, dot in enumerate(every(root, "circle")) if dot.get("class") == "asked"]
    assert red == [2 * 4 + 1]
    style = every(root, "style")[0].text
    assert re.search(r"\.asked\{fill:#c1121f\}", style)


def test_ε_goes_right_and_width_goes_up_by_their_logarithms(tmp_path):
    """Equal ratios are equal distances, to the tenth of a pixel that is written."""
    lines = np.array([points(line) for line in every(drawn(tmp_path), "polyline")])
    for places, values in ((lines[..., 0], np.broadcast_to(EPSILONS, (3, 4))), (-lines[..., 1], WIDTHS)):
        slope, offset = np.polyfit(np.log(values).ravel(), places.ravel(), 1)
        assert slope > 0
        np.testing.assert_allclose(places, offset + slope * np.log(values), atol=0.11)


@pytest.mark.parametrize(
    "curves",
    [
        CURVES,
        Curves((2, 8), (1e-3, 50.0), np.array([[1e4, 700.0], [3.0, 1.0]])),
        Curves((10**6,), EPSILONS, np.ones((1, 4))),
        Curves(ROWS, (0.7,), WIDTHS[:, :1]),
    ],
)
def test_everything_stays_on_the_canvas(tmp_path, curves):
    """Huge widths, none above one, a single line, a single ε."""
    root = drawn(tmp_path, curves, curves.rows[0], curves.epsilons[0])
    assert len(every(root, "polyline")) == len(curves.rows)
    assert len([dot for dot in every(root, "circle") if dot.get("class")]) == 1
    for x, y in dots(root):
        assert LEFT <= x <= RIGHT
        assert TOP <= y <= BOTTOM
    for line in every(root, "line"):
        assert TOP <= float(line.get("y1")) == float(line.get("y2")) <= BOTTOM
    assert "nan" not in ElementTree.tostring(root, "unicode")


def test_a_single_ε_stands_in_the_middle_and_is_named(tmp_path):
    root = drawn(tmp_path, Curves(ROWS, (0.7,), WIDTHS[:, :1]), 1000, 0.7)
    assert {x for x, _ in dots(root)} == {(LEFT + RIGHT) / 2}
    assert "0.7" in written(root)


def test_axes_say_what_they_are_and_the_grid_ends_where_widths_do(tmp_path):
    found = written(drawn(tmp_path))
    assert {"ε", "width ÷ non-private", "0.1", "0.3", "1", "3"} <= set(found)
    grid = [text for text in found if re.fullmatch(r"[\d.]+", text)]
    assert grid == ["1", "1.5", "2", "3", "5", "0.1", "0.3", "1", "3"]


def test_the_same_curves_are_the_same_file(tmp_path):
    for name in ("one.svg", "other.svg"):
        draw_curve(tmp_path / name, CURVES, 1000, 1.0)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()


def test_curves_that_cannot_be_drawn_leave_no_file(tmp_path):
    """A row of widths is missing."""
    with pytest.raises(ValueError):
        draw_curve(tmp_path / "deep" / "curve.svg", CURVES._replace(widths=WIDTHS[:2]), 1000, 1.0)
    assert list(tmp_path.iterdir()) == []
