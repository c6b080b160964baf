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
        {"noise_kind": "cauchy"},
        {"noise_kind": "Laplace"},
        {"noise_kind": None},
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


def test_the_kind_of_noise_decides_which_norm_and_which_standard_deviation():
    laplace = dataclasses.replace(PLAN, batch_limit=None, noise_kind="laplace")
    assert (PLAN.noise_kind, PLAN.norm_order, PLAN.noise_scale, PLAN.noise_std) == ("gaussian", 2, 6.0, 6.0)
    assert (laplace.norm_order, laplace.noise_scale) == (1, 6.0)
    assert laplace.noise_std == pytest.approx(math.sqrt(2) * 6)
    assert non_private(laplace).noise_kind == "laplace"
    assert Plan(**laplace.to_dict()) == laplace


def test_truncated_batches_with_laplace_noise_are_refused_with_a_remedy():
    with pytest.raises(ValueError, match=r"batch_limit=80 must be None or num_rows=500: nobody can price"):
        dataclasses.replace(PLAN, noise_kind="laplace")
    assert dataclasses.replace(PLAN, noise_kind="laplace", batch_limit=500).batch_limit == 500


def test_a_plan_written_before_there_were_kinds_is_gaussian():
    written = PLAN.to_dict()
    del written["noise_kind"], written["sampling"], written["unit"]
    assert Plan(**written) == PLAN
    assert Plan(*written.values()) == PLAN


def test_one_plan_is_one_phase():
    assert phases(PLAN) == (PLAN,)
    assert phases([PLAN, PLAN]) == (PLAN, PLAN)


def test_the_default_limit_is_never_beyond_the_table():
    assert default_batch_limit(10, 0.9) == 10
    assert default_batch_limit(1, 1.0) == 1
    assert 500 < default_batch_limit(5000, 0.1) < 5000
