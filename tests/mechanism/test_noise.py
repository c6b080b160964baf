import pickle

import numpy as np
import pytest
from scipy import stats

from discreet.mechanism import noise


def test_normals_are_normal_far_into_the_tails():
    """KS p-value above 10⁻⁶, and 4-sigma tails within 5 sd of their expected count."""
    draws = noise.simulated(1).normals(0, (2_000_000,))
    assert stats.kstest(draws[:200_000], "norm").pvalue > 1e-6
    expected = 2 * stats.norm.sf(4) * len(draws)
    assert abs((np.abs(draws) > 4).sum() - expected) < 5 * np.sqrt(expected)


def test_laplaces_are_laplace_far_into_the_tails():
    """KS p-value above 10⁻⁶, and the counts beyond 10 scales and at each sign within 5 sd."""
    draws = noise.simulated(1).laplaces(0, (2_000_000,))
    assert stats.kstest(draws[:200_000], "laplace").pvalue > 1e-6
    expected = np.exp(-10) * len(draws)
    assert abs((np.abs(draws) > 10).sum() - expected) < 5 * np.sqrt(expected)
    assert abs(np.sign(draws).sum()) < 5 * np.sqrt(len(draws))


@pytest.mark.parametrize("sign", [0, 1])
def test_laplace_tails_are_as_fine_as_the_middle_and_end_where_they_say(sign, monkeypatch):
    """Words chosen by hand: at 36 scales draws are still closer than 2⁻²⁰, a unit at b = 1; the last is 72.8."""

    def at(high, low):
        words = np.array([high << 12 | sign, low << 12], np.uint64)
        monkeypatch.setattr(noise.Noise, "words", lambda *_: words)
        return (1 - 2 * sign) * noise.simulated(0).laplaces(0, (1,))[0]

    top = 2**52 - 1
    assert 36 < at(0, top) < at(0, top - 2**10) < at(0, top) + 2.0**-20
    assert at(0, 0) == pytest.approx(105 * np.log(2))
    assert at(top, top) == pytest.approx(0, abs=1e-15)
    assert at(2**51, 0) == pytest.approx(np.log(2))


def test_each_kind_has_its_own_draws():
    stream = noise.simulated(4)
    np.testing.assert_array_equal(stream.draw("gaussian", 3, (2, 5)), stream.normals(3, (2, 5)))
    np.testing.assert_array_equal(stream.draw("laplace", 3, (2, 5)), stream.laplaces(3, (2, 5)))
    assert not np.intersect1d(stream.words(noise.NORMAL, 3, 100), stream.words(noise.LAPLACE, 3, 100)).size


def test_a_float64_normal_has_no_visible_grid():
    """Unlike a float32 generator, a million draws have no repeats."""
    for kind in ("gaussian", "laplace"):
        assert len(np.unique(noise.simulated(2).draw(kind, 0, (1_000_000,)))) == 1_000_000


def test_odd_shapes_and_nothing_at_all():
    stream = noise.simulated(3)
    for kind in ("gaussian", "laplace"):
        assert stream.draw(kind, 0, (3, 5)).shape == (3, 5)
        assert stream.draw(kind, 0, (0, 5)).shape == (0, 5)


def test_simulated_noise_repeats_and_secure_noise_does_not():
    first, again, other = (noise.simulated(seed).normals(7, (50,)) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
    assert (noise.secure().normals(0, (50,)) != noise.secure().normals(0, (50,))).all()


def test_uniforms_stay_inside_the_open_interval():
    ends = noise.uniforms(np.array([0, 2**64 - 1], np.uint64))
    assert 0 < ends[0] < ends[1] < 1


def test_the_key_cannot_leave():
    stream = noise.secure()
    with pytest.raises(TypeError, match="secret"):
        pickle.dumps(stream)
    assert repr(stream) == "Noise(secure)"


def test_public_keys_are_independent_of_the_noise():
    assert noise.simulated(1).public_key() == noise.simulated(1).public_key()
    assert noise.simulated(1).public_key() != noise.simulated(2).public_key()
