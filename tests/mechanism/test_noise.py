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


def test_a_float64_normal_has_no_visible_grid():
    """Unlike a float32 generator, a million draws have no repeats."""
    assert len(np.unique(noise.simulated(2).normals(0, (1_000_000,)))) == 1_000_000


def test_odd_shapes_and_nothing_at_all():
    stream = noise.simulated(3)
    assert stream.normals(0, (3, 5)).shape == (3, 5)
    assert stream.normals(0, (0, 5)).shape == (0, 5)


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
