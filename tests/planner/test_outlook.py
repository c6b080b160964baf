"""What a budget will buy: rows that would be enough, what is said aloud, and widths against ε and rows."""

import json
import math
from functools import partial

import numpy as np
import pytest

from discreet import planner
from discreet.families.glm import Priors, glm
from discreet.plan import Plan
from discreet.planner import outlook
from discreet.schema import Categorical, Schema

COIN = Schema((Categorical("x", ("no", "yes")),))
BERNOULLI = glm("logistic", "x", [], COIN, priors=Priors(1.0, 0.5))
NAMES = ("Intercept", "age", "sex[m]")


def made_up(num_rows, *widths):
    """A choice that predicts these widths and says nothing else."""
    predicted = np.array(widths) if widths else None
    return planner.Choice(Plan(num_rows, 10, 0.1, 1.0, 1.0), None, None, (), predicted)


def chooser(law, asked=None):
    """(num_rows, ε) → a choice of widths law(num_rows, ε); `asked` gets what was."""

    def choose(num_rows, epsilon):
        if asked is not None:
            asked.append((num_rows, epsilon))
        return made_up(num_rows, *np.atleast_1d(law(num_rows, epsilon)))

    return choose


def noisy(share):
    """width² = 1 + share/(N·ε²): without privacy, and the noise on top."""
    return lambda num_rows, epsilon: np.sqrt(1 + np.asarray(share) / (num_rows * epsilon**2))


@pytest.mark.parametrize("power", [0.3, 0.5, 1.0])
def test_rows_that_are_enough_are_exact_where_widths_are_a_power_of_rows(power):
    """width = 2·(12345/N)^p is 2 at 12345 rows, however many there are to begin with."""
    for num_rows in (100, 999, 12_000):
        found = outlook.enough_rows(chooser(lambda n, _: 2 * (12_345 / n) ** power), num_rows, 1.0, 0)
        assert found == pytest.approx(12_345, rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("share", [2e3, 2e4, 1e5])
def test_rows_that_are_enough_follow_the_law_of_the_noise(share, epsilon):
    """4 = 1 + c/(N·ε²) at N = c/(3ε²); between two quadruples a line misses that by a tenth at most."""
    law, exact = noisy(share), share / (3 * epsilon**2)
    found = outlook.enough_rows(chooser(law), 300, epsilon, 0)
    assert found == pytest.approx(max(300, exact), rel=0.1)
    assert law(found, epsilon) < 2.1


def test_rows_at_hand_that_are_enough_are_returned_and_no_more_are_tried():
    asked = []
    assert outlook.enough_rows(chooser(lambda *_: 2.0, asked), 500, 0.7, 0) == 500
    assert asked == [(500, 0.7)]


def test_nothing_helps_where_widths_do_not_fall():
    """Tried up to 4⁸ times the rows, and in whole numbers of them."""
    asked = []
    assert outlook.enough_rows(chooser(lambda *_: 5.0, asked), 7, 1.0, 0) == math.inf
    assert [num_rows for num_rows, _ in asked] == [7 * 4**k for k in range(9)]
    assert all(isinstance(num_rows, int) for num_rows, _ in asked)


def test_the_most_rows_that_are_tried_may_be_enough():
    """width = 2·√(most/N) is met by exactly 4⁸ times as many rows, and a little more is not."""
    most = 10 * 4**8
    for times, expected in ((0.999, 0.999 * most), (1.001, math.inf)):
        law = chooser(lambda n, _, times=times: 2 * math.sqrt(times * most / n))
        assert outlook.enough_rows(law, 10, 1.0, 0) == pytest.approx(expected)


def test_only_the_parameter_that_is_asked_for_counts():
    choose = chooser(noisy([3e3, 3e5, 0.0]))
    assert outlook.enough_rows(choose, 1000, 1.0, 0) == 1000
    assert outlook.enough_rows(choose, 1000, 1.0, 1) == pytest.approx(1e5, rel=0.1)
    assert outlook.enough_rows(choose, 1000, 1.0, 2) == 1000


@pytest.mark.parametrize("widths", [(1.0, 1.0, 1.0), (2.9, 3.0, 1.2)])
def test_widths_up_to_three_are_no_reason_to_speak(widths):
    """And nothing is planned to find that out."""
    choose = chooser(lambda *_: pytest.fail("something was planned"))
    assert outlook.warnings(choose, made_up(1000, *widths), 1.0, NAMES) == []


def test_a_warning_names_the_worst_parameter_the_budget_and_the_remedy():
    """age is 7 times as wide: c = 48·N·ε², and 16 times the rows would do."""
    choose = chooser(noisy(np.array([0.5, 48.0, 24.0]) * 1000 * 0.25**2))
    (said,) = outlook.warnings(choose, choose(1000, 0.25), 0.25, NAMES)
    assert said.startswith("noise drowns the signal: at ε = 0.25 with 1000 rows the interval for age will be 7 times")
    assert "(1 more are above 3)" in said
    assert "about 2e+04 rows would do, or a larger ε" in said


def test_a_warning_counts_no_others_where_there_are_none_and_promises_no_rows_that_do_not_help():
    choose = chooser(lambda *_: np.array([1.0, 2.0, 3.5]))
    (said,) = outlook.warnings(choose, choose(200, 1.0), 1.0, NAMES)
    assert "for sex[m] will be 3.5 times the non-private one; no number of rows would do, or a larger ε" in said
    assert "more are above" not in said


def test_curves_are_of_a_quarter_the_same_and_four_times_the_rows_and_of_all_ε_in_order():
    """Each entry is the mean over parameters at its own (rows, ε)."""
    law = noisy([1e3, 5e3])
    found = outlook.curves(chooser(law), 1000, 0.5, [3.0, 0.1, 0.5, 1.0])
    assert found.rows == (250, 1000, 4000)
    assert found.epsilons == (0.1, 0.5, 1.0, 3.0)
    expected = [[law(num_rows, epsilon).mean() for epsilon in found.epsilons] for num_rows in found.rows]
    np.testing.assert_array_equal(found.widths, expected)


def test_the_asked_ε_is_always_among_them():
    assert outlook.curves(chooser(noisy(1e3)), 1000, 0.7, [1.0]).epsilons == (0.7, 1.0)
    assert outlook.curves(chooser(noisy(1e3)), 1000, 0.7, []).epsilons == (0.7,)


@pytest.mark.parametrize(("num_rows", "rows"), [(1, (1, 2, 4)), (2, (2, 8)), (5, (2, 5, 20))])
def test_a_quarter_of_few_rows_is_two(num_rows, rows):
    assert outlook.curves(chooser(noisy(1.0)), num_rows, 1.0, []).rows == rows


def test_curves_as_plain_values_survive_json():
    found = outlook.curves(chooser(noisy([1e3, 5e3])), 1000, 1.0, [0.1])
    facts = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert facts == {"rows": [250, 1000, 4000], "epsilons": [0.1, 1.0], "widths": found.widths.tolist()}


@pytest.mark.parametrize(
    "look",
    [
        lambda choose: outlook.curves(choose, 100, 1.0, []),
        lambda choose: outlook.enough_rows(choose, 100, 1.0, 0),
    ],
)
def test_a_choice_without_prediction_is_refused_by_name(look):
    with pytest.raises(
        ValueError, match="predicts no width for this method: choose method='one-step', 'dpvi' or 'score'"
    ):
        look(lambda num_rows, epsilon: made_up(num_rows))


def test_nothing_is_said_of_a_choice_without_prediction():
    assert outlook.warnings(lambda num_rows, epsilon: made_up(num_rows), made_up(100), 1.0, NAMES) == []


@pytest.mark.parametrize("method", [planner.choose_onestep, partial(planner.choose_score, steps=100)])
def test_the_planner_expects_less_width_of_a_larger_ε_and_of_more_rows(method):
    """Of a coin. At the small ε the prior bounds widths, so that more rows need not help there."""
    found = outlook.curves(lambda rows, epsilon: method(BERNOULLI, COIN, rows, epsilon, 1e-5), 400, 0.1, [1.0])
    assert (np.diff(found.widths, axis=1) < 0).all()
    assert (np.diff(found.widths[:, 1]) < 0).all()
    assert (found.widths >= 1).all()
