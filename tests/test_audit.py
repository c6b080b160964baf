"""The audit as a product: an honest mechanism passes and nearly shows its price; each seeded fault is caught."""

import json
from dataclasses import replace

import numpy as np
import pytest

from discreet import audit as module
from discreet import cli, planner
from discreet.accounting import calibrate
from discreet.audit import audit
from discreet.fitting import question
from discreet.mechanism import clipping, loop, noise, sampling
from discreet.plan import Plan
from tests import tiny

DELTA = 1e-5


def asked():
    return question(tiny.MODEL, tiny.SCHEMA, tiny.choice())


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 10.0])
def test_an_honest_mechanism_shows_nearly_all_of_its_price_and_never_more(epsilon):
    """False alarm below 10⁻⁴ a case: a dozen checks at 10⁻⁵ each."""
    found = audit(asked(), calibrate(Plan(300, 4, 0.3, 1.0, 0.0), epsilon, DELTA), tiny.SCHEMA, DELTA)
    assert found.holds, found
    assert 0.95 * epsilon <= found.lower <= found.claimed <= epsilon


@pytest.mark.parametrize(
    "plan",
    [
        Plan(300, 2, 0.1, 1.0, 2.0, batch_limit=60),
        Plan(300, 2, 0.2, 1.0, 2.0, noise_kind="laplace"),
        Plan(300, 2, 1 / 300, 1.0, 8.0, sampling="one row"),
    ],
    ids=["truncated", "Laplace", "one row"],
)
def test_other_plans_are_audited_too(plan, monkeypatch):
    monkeypatch.setattr(module, "DRAWS", 10**5)
    found = audit(asked(), plan, tiny.SCHEMA, DELTA)
    assert found.holds, found
    assert 0.9 * found.claimed <= found.lower <= found.claimed


def less_noise(factor):
    def plant(monkeypatch):
        draw = noise.Noise.draw
        monkeypatch.setattr(noise.Noise, "draw", lambda *given: factor * draw(*given))

    return plant


def reused_noise(monkeypatch):
    draw = noise.Noise.draw

    def again(self, kind, chunk, shape):
        drawn = draw(self, kind, chunk, shape)
        drawn[..., 1::2, :] = drawn[..., : shape[-2] - shape[-2] % 2 : 2, :]
        return drawn

    monkeypatch.setattr(noise.Noise, "draw", again)


def no_clip(monkeypatch):
    monkeypatch.setattr(clipping, "clip_to_grid", lambda values, norm, order: np.float64(clipping.GRID) / norm * values)


def forgotten_sampling(monkeypatch):
    honest = sampling.draw_batches

    def everyone(stream, index, plan, *given):
        return honest(stream, index, replace(plan, sampling_prob=1.0), *given)

    monkeypatch.setattr(loop, "draw_batches", everyone)


def one_step_more(monkeypatch):
    honest = loop.block_lengths
    monkeypatch.setattr(loop, "block_lengths", lambda *given: [*honest(*given), 1])


def noise_of_another_clip_norm(monkeypatch):
    monkeypatch.setattr(Plan, "noise_scale", property(lambda plan: plan.noise_multiplier * plan.clip_norm / 2))
    monkeypatch.setattr(Plan, "noise_std", property(lambda plan: plan.noise_multiplier * plan.clip_norm))


FAULTS = {
    "noise × .5": (less_noise(0.5), "noise: variance"),
    "noise × .9": (less_noise(0.9), "noise: variance"),
    "noise × .99": (less_noise(0.99), "noise: variance"),
    "reused noise": (reused_noise, "noise: one step and the next"),
    "no clip": (no_clip, "a row that is clipped"),
    "forgotten sampling": (forgotten_sampling, "sampling: rate"),
    "one step more": (one_step_more, "answers beyond"),
    "noise of another clip norm": (noise_of_another_clip_norm, "noise: variance"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_seeded_fault_is_caught(fault, monkeypatch):
    plant, caught_by = FAULTS[fault]
    monkeypatch.setattr(module, "DRAWS", 10**6 if fault == "noise × .99" else 10**5)
    monkeypatch.setattr(module, "ROUNDS", 4000)
    plant(monkeypatch)
    found = audit(asked(), Plan(300, 1, 0.2, 1.0, 1.0), tiny.SCHEMA, DELTA)
    assert not found.holds
    assert any(check.name.startswith(caught_by) for check in found.checks if not check.holds)
    if fault in ("noise × .5", "noise × .9"):
        assert found.lower > found.claimed


def test_the_command_prints_the_claim_and_fails_when_it_is_wrong(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(module, "DRAWS", 10**5)
    monkeypatch.setattr(module, "ROUNDS", 4000)
    monkeypatch.setitem(planner.METHODS, "dpvi", lambda *_: tiny.choice())
    tiny.SCHEMA.save(tmp_path / "s.toml")
    given = ["audit", "--schema", str(tmp_path / "s.toml"), "--outcome", "ill", "--family", "logistic"]
    given += ["--epsilon", "1", "--delta", "1e-4", "--rows", "300"]
    with pytest.raises(SystemExit) as done:
        cli.run(given)
    out = capsys.readouterr().out
    assert done.value.code == 0
    assert "claimed ε = 0.99" in out
    assert "FAILS" not in out
    less_noise(0.5)(monkeypatch)
    with pytest.raises(SystemExit) as done:
        cli.run([*given, "--json"])
    out, err = capsys.readouterr()
    facts = json.loads(out)
    assert done.value.code == 1
    assert not facts["holds"]
    assert facts["lower"] > facts["claimed"]
    assert "contradict the claim" in err
