import dataclasses
import math

import pytest

from discreet.plan import Plan, default_batch_limit, non_private, phases

PLAN = Plan(num_rows=500, steps=100, sampling_prob=0.1, clip_norm=2.0, noise_multiplier=3.0, batch_limit=80)


@pytest.mark.parametrize(
    "bad",
    [
        {"num_rows": 0},
        {"num_rows": 10.0},
        {"num_rows": True},
        {"steps": 0},
        {"steps": 1e3},
        {"sampling_prob": 0.0},
        {"sampling_prob": 1.1},
        {"sampling_prob": math.nan},
        {"clip_norm": 0.0},
        {"clip_norm": math.inf},
        {"clip_norm": math.nan},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": math.inf},
        {"noise_multiplier": math.nan},
        {"batch_limit": 0},
        {"batch_limit": 501},
        {"batch_limit": 80.0},
    ],
    ids=str,
)
def test_what_no_mechanism_can_run_is_refused_by_name_and_value(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=rf"{name}={value} must "):
        dataclasses.replace(PLAN, **bad)


def test_a_non_private_plan_has_no_noise_and_a_hundredfold_clip_norm():
    found = non_private(PLAN)
    assert (found.noise_multiplier, found.noise_std, found.clip_norm) == (0, 0, 200)
    assert dataclasses.replace(found, noise_multiplier=3.0, clip_norm=2.0) == PLAN
    assert PLAN.noise_std == 6


def test_one_plan_is_one_phase():
    assert phases(PLAN) == (PLAN,)
    assert phases([PLAN, PLAN]) == (PLAN, PLAN)


def test_the_default_limit_is_never_beyond_the_table():
    assert default_batch_limit(10, 0.9) == 10
    assert default_batch_limit(1, 1.0) == 1
    assert 500 < default_batch_limit(5000, 0.1) < 5000
