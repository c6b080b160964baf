import numpy as np
import pytest

from discreet.evaluate.distance import l2, mpae

OPTIMUM, START = np.array([1.0, -2.0, 0.5]), np.array([0.0, 2.0, 1.0])


def test_mpae_is_zero_at_the_optimum_and_one_at_the_start():
    assert mpae(OPTIMUM, OPTIMUM, START) == 0
    assert mpae(START, OPTIMUM, START) == 1
    assert mpae(2 * OPTIMUM - START, OPTIMUM, START) == 1  # as far on the other side


def test_mpae_has_no_units():
    iterate, units = np.array([0.7, -1.0, 0.9]), np.array([3.0, 0.01, 1e6])
    assert mpae(units * iterate, units * OPTIMUM, units * START) == pytest.approx(mpae(iterate, OPTIMUM, START))


def test_leading_axes_are_kept():
    iterates = np.random.default_rng(0).normal(size=(4, 5, 3))
    for found, one in ((mpae(iterates, OPTIMUM, START), mpae), (l2(iterates, OPTIMUM), l2)):
        assert found.shape == (4, 5)
        rest = (START,) if one is mpae else ()
        assert found[2, 3] == pytest.approx(one(iterates[2, 3], OPTIMUM, *rest))
    starts = np.stack([START, 2 * START + 3])
    np.testing.assert_allclose(
        mpae(iterates[0, :2], OPTIMUM, starts), [mpae(iterates[0, i], OPTIMUM, starts[i]) for i in range(2)]
    )


def test_a_coordinate_that_starts_at_its_optimum_is_refused():
    start = START.copy()
    start[1] = OPTIMUM[1]
    with pytest.raises(ValueError, match=r"coordinates \[1\] start at their optimum"):
        mpae(OPTIMUM, OPTIMUM, start)
    with pytest.raises(ValueError, match=r"coordinates \[1\] start"):
        mpae(OPTIMUM, OPTIMUM, np.stack([START, start]))


def test_l2_is_a_distance():
    rng = np.random.default_rng(1)
    a, b, c = rng.normal(size=(3, 100, 4))
    np.testing.assert_allclose(l2(a, b), np.sqrt(((a - b) ** 2).sum(-1)))
    np.testing.assert_allclose(l2(a, b), l2(b, a))
    assert not l2(a, a).any()
    assert (l2(a, c) <= l2(a, b) + l2(b, c)).all()
