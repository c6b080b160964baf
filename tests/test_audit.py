"""The audit as a product: an honest mechanism passes and nearly shows its price; each seeded fault is caught."""

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from discreet import audit as module
from discreet import cli, planner
from discreet.accounting import calibrate
from discreet.audit import audit
from discreet.families.glm import glm
from discreet.fitting import question
from discreet.mechanism import clipping, loop, noise, products, sampling
from discreet.methods import elbo
from discreet.methods.gaussian import Family
from discreet.plan import Plan
from discreet.schema import Categorical, Numeric, Schema, Unit
from tests import tiny

DELTA = 1e-5
COUNTED = Schema(
    (Categorical("sex", ("f", "m")), Numeric("age", 3, 7, integer=True), Categorical("ill", ("no", "yes")))
)
COUNTED_MODEL = glm("logistic", "ill", ["sex", "age"], COUNTED)
TRUNCATED = Plan(300, 2, 0.1, 1.0, 2.0, batch_limit=60)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(module, "DRAWS", 10**5)
    monkeypatch.setattr(module, "ROUNDS", 4000)


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
        TRUNCATED,
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
    monkeypatch.setattr(products, "_reach", lambda *_: (1e12, 1e12))
    monkeypatch.setattr(clipping, "clip_to_grid", lambda values, norm, order: np.float64(clipping.GRID) / norm * values)


def forgotten_sampling(monkeypatch):
    honest = sampling.draw_batches

    def everyone(stream, index, plan, *given):
        return honest(stream, index, replace(plan, sampling_prob=1.0), *given)

    monkeypatch.setattr(loop, "draw_batches", everyone)


def one_step_more(monkeypatch):
    honest = loop.chunks_of
    monkeypatch.setattr(loop, "chunks_of", lambda *given: [*honest(*given), loop.Chunk(1, 1)])


def float_sum(monkeypatch):
    monkeypatch.setattr(products, "_whole", lambda units: units)

    def clipped(values, norm, order):
        lengths = jnp.linalg.norm(values, order, axis=1, keepdims=True)
        return values * jnp.minimum(1.0, norm / lengths) * (clipping.GRID / norm)

    monkeypatch.setattr(clipping, "clip_to_grid", clipped)


def clip_of_another_plan(monkeypatch):
    honest = loop.Scales
    monkeypatch.setattr(loop, "Scales", lambda clip, scale: honest(2 * clip, scale))


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
    "float sum": (float_sum, "a sum is beside the grid"),
    "clipped to twice the plan's norm": (clip_of_another_plan, "a row that is clipped"),
    "one step more": (one_step_more, "answers beyond"),
    "noise of another clip norm": (noise_of_another_clip_norm, "noise: variance"),
}


@pytest.mark.parametrize(
    ("fault", "by_products"),
    [(fault, True) for fault in FAULTS] + [(fault, False) for fault in ("no clip", "float sum")],
)
def test_each_seeded_fault_is_caught(fault, by_products, monkeypatch):
    """In sums by matrix products, and row by row where sums are what is wrong."""
    plant, caught_by = FAULTS[fault]
    monkeypatch.setattr(module, "DRAWS", 10**6 if fault == "noise × .99" else 10**5)
    monkeypatch.setattr(module, "ROUNDS", 4000)
    plant(monkeypatch)
    query = asked() if by_products else asked()._replace(products=None)
    found = audit(query, Plan(300, 1, 0.2, 1.0, 1.0), tiny.SCHEMA, DELTA)
    assert not found.holds
    assert any(check.name.startswith(caught_by) for check in found.checks if not check.holds)
    if fault in ("noise × .5", "noise × .9"):
        assert found.lower > found.claimed


# The layout that the fit will have: rows as counts of cells, and batches with a limit.


def audit_of_counts(rate=0.2):
    plan = Plan(300, 1, rate, 1.0, 1.0)
    assert COUNTED.held_as_counts(plan.num_rows)
    query = elbo.query(COUNTED_MODEL, plan, elbo.Settings(elbo.start_at(COUNTED_MODEL, 0.3), 1e-3, draws=2))
    return audit(query, plan, COUNTED, DELTA, model=COUNTED_MODEL)


@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_counts_are_audited_as_counts(rate, quick, monkeypatch):
    """An honest sampler of counts holds; without one, none of what touches rows can be measured at all."""
    found = audit_of_counts(rate)
    assert found.holds, found
    assert 0.9 * found.claimed <= found.lower <= found.claimed
    monkeypatch.setattr(sampling, "_walk", None)
    assert audit_of_counts(rate) == found
    monkeypatch.setattr(sampling, "_binomial_cells", None)
    with pytest.raises(TypeError, match="not callable"):
        audit_of_counts(rate)


def biased_counts(monkeypatch):
    honest = sampling._binomial
    monkeypatch.setattr(sampling, "_binomial", lambda words, trials, prob: honest(words, trials, min(1, 1.1 * prob)))


def counts_without_chance(monkeypatch):
    honest = sampling._binomial

    def mean_of_many(words, trials, prob):
        return honest(words, trials, prob) if trials < 2 else np.full(words.shape, round(trials * prob))

    monkeypatch.setattr(sampling, "_binomial", mean_of_many)


def one_draw_for_all_cells(monkeypatch):
    def shared(stream, chunk, plan, steps, counts):
        draws = noise.uniforms(stream.words(noise.SAMPLING, chunk, steps))
        each = [sampling._binomial(draws, int(count), plan.sampling_prob) for count in counts.flat]
        return np.moveaxis(np.reshape(each, (*counts.shape, steps)), -1, -2)

    monkeypatch.setattr(sampling, "_binomial_cells", shared)


def somebody_in_empty_cells(monkeypatch):
    honest = sampling._binomial
    monkeypatch.setattr(sampling, "_binomial", lambda words, trials, prob: np.maximum(honest(words, trials, prob), 1))


COUNT_FAULTS = {
    "rate × 1.1": (biased_counts, "sampling: rate"),
    "no chance": (counts_without_chance, "sampling: people far"),
    "one draw for all": (one_draw_for_all_cells, "sampling: one row and the next"),
    "somebody in empty cells": (somebody_in_empty_cells, "a sum differs"),
}


@pytest.mark.parametrize("fault", COUNT_FAULTS)
def test_each_fault_of_counts_is_caught(fault, quick, monkeypatch):
    plant, caught_by = COUNT_FAULTS[fault]
    plant(monkeypatch)
    found = audit_of_counts()
    assert any(check.name.startswith(caught_by) for check in found.checks if not check.holds), found


def test_columns_whose_cells_are_too_many_are_fixed():
    """4096 cells, and twice as many with the mark of who is there: one column is the same for all, the rest is held."""
    wide = Schema(tuple(Categorical(f"c{number}", ("no", "yes")) for number in range(12)))
    made = module._made(Plan(5000, 1, 0.2, 1.0, 1.0), wide, 0, np.ones((1, 24)))
    assert made.schema.cells == made.num_rows == 4096
    assert made.schema.held_as_counts(made.num_rows)
    assert set(made.fixed) | set(made.schema.names) == {*wide.names, "present"}
    assert len(made.fixed) == 1


def first_rows_stay(monkeypatch):
    monkeypatch.setattr(sampling, "_walk_on", lambda *_: None)


def one_row_stays_often(monkeypatch):
    honest = sampling._walk_on

    def again(*given):
        honest(*given)
        given[-1][0] = given[-1][-1]

    monkeypatch.setattr(sampling, "_walk_on", again)


LIMIT_FAULTS = {
    "the last rows are dropped": (first_rows_stay, "full batches: who stays"),
    "a row that stays stays twice": (one_row_stays_often, "a row takes part in a batch with a limit"),
}


@pytest.mark.parametrize("rate", [0.1, 0.002, 1.0])
def test_full_batches_of_an_honest_sampler_hold(rate, quick):
    found = module._of_full_batches(replace(TRUNCATED, sampling_prob=rate), 0)
    assert all(check.holds for check in found), found


@pytest.mark.parametrize("fault", LIMIT_FAULTS)
def test_each_fault_of_full_batches_is_caught(fault, quick, monkeypatch):
    plant, caught_by = LIMIT_FAULTS[fault]
    plant(monkeypatch)
    found = audit(asked(), TRUNCATED, tiny.SCHEMA, DELTA)
    failed = [check.name for check in found.checks if not check.holds]
    assert failed
    assert all(name.startswith(("full batches", caught_by)) for name in failed)
    assert any(name.startswith(caught_by) for name in failed)


def test_a_batch_beyond_its_limit_is_caught(quick, monkeypatch):
    honest = module._members
    monkeypatch.setattr(module, "_members", lambda plan, *given: honest(replace(plan, batch_limit=None), *given))
    failed = [check.name for check in module._of_full_batches(TRUNCATED, 0) if not check.holds]
    assert "rows in a batch beyond its limit" in failed


@pytest.mark.parametrize("rate", [0.3, 0.01, 1e-4])
def test_honest_sampling_is_no_alarm_at_any_rate(rate):
    """400 honest samples of 16 rows: three checks each at 10⁻⁵, so that the false alarm is about 10⁻²."""
    rng, people, plan = np.random.default_rng(5), np.ones(16, int), Plan(20_000, 1, rate, 1.0, 1.0)
    for _ in range(400):
        members = (rng.random((2000, 16)) < rate).astype(float)
        assert max(module._of_members(members, people, plan).values()) < stats.norm.isf(0.5e-5)


# Exactness: what is asked is the gradient of the model's ELBO.


def beside_the_gradient(settings, fault=lambda query, model, plan: query, unit=None):
    plan = Plan(300, 1, 0.2, 1.0, 1.0, unit="row" if unit is None else unit.column)
    query = fault(elbo.query(tiny.MODEL, plan, settings), tiny.MODEL, plan)
    return module._beside_the_gradient(query, plan, replace(tiny.SCHEMA, unit=unit), tiny.MODEL, 0)


def simple(family=elbo.MEAN_FIELD, **changes):
    return elbo.Settings(elbo.start_at(tiny.MODEL, 0.3, family=family), 1e-3, family=family, **changes)


@pytest.mark.parametrize(
    ("settings", "unit"),
    [
        (simple(), Unit("person", 3, 2)),
        (simple(variant="aligned natural", draws=4), None),
        (simple(Family("full-rank", "exp"), variant="T′-preconditioned", draws=1), None),
    ],
    ids=["vanilla, by unit", "aligned natural", "full rank"],
)
def test_a_step_is_the_gradient_of_the_elbo(settings, unit):
    assert beside_the_gradient(settings, unit=unit) <= 1.0


def prior_at_half_its_weight(query, model, plan):
    return query._replace(init=elbo.query(model, replace(plan, sampling_prob=0.1), simple()).init)


def forgotten_prior(query, model, plan):
    flat = replace(model, log_prior=lambda z: 0.0 * z.sum())
    return query._replace(update=elbo.query(flat, plan, simple()).update)


def misscaled_rows(query, model, plan):
    del model, plan
    return query._replace(row_value=lambda question, row: 1.001 * query.row_value(question, row))


@pytest.mark.parametrize("fault", [prior_at_half_its_weight, forgotten_prior, misscaled_rows])
def test_a_step_beside_the_gradient_is_caught(fault):
    assert beside_the_gradient(simple(), fault) > 1.0


def test_the_command_prints_the_claim_and_fails_when_it_is_wrong(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(module, "DRAWS", 10**5)
    monkeypatch.setattr(module, "ROUNDS", 4000)
    monkeypatch.setitem(planner.METHODS, "dpvi", lambda *_: tiny.choice())
    tiny.SCHEMA.save(tmp_path / "s.toml")
    given = ["audit", "--schema", str(tmp_path / "s.toml"), "--outcome", "ill", "--family", "logistic"]
    given += ["--epsilon", "1", "--delta", "1e-4", "--rows", "300", "--method", "dpvi"]
    with pytest.raises(SystemExit) as done:
        cli.run(given)
    out = capsys.readouterr().out
    assert done.value.code == 0
    assert "claimed ε = 0.99" in out
    assert "full batches: who stays" in out
    assert "a step is beside the ELBO's gradient" in " ".join(out.split())
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


@pytest.mark.usefixtures("quick")
def test_the_command_audits_every_phase_of_the_default_method(tmp_path, capsys, monkeypatch):
    """Noise that is too little is shown by the last one, which has most of the budget."""
    tiny.SCHEMA.save(tmp_path / "s.toml")
    given = ["audit", "--json", "--schema", str(tmp_path / "s.toml"), "--outcome", "ill", "--family", "logistic"]
    given += ["--epsilon", "1", "--delta", "1e-4", "--rows", "300"]

    def facts():
        with pytest.raises(SystemExit) as done:
            cli.run(given)
        return done.value.code, json.loads(capsys.readouterr().out)

    code, found = facts()
    assert (code, found["holds"]) == (0, True)
    assert {check["name"].split(":")[0] for check in found["checks"]} == {f"phase {number}" for number in range(1, 5)}
    assert 0.5 < found["lower"] <= found["claimed"] <= 1
    less_noise(0.5)(monkeypatch)
    code, found = facts()
    assert (code, found["holds"]) == (1, False)
    assert found["lower"] > found["claimed"]


# One whole run, with canaries.


def one_run_at(epsilon, seed=0, **changes):
    plan = replace(calibrate(Plan(400, 300, 0.3, 1.0, 0.0, batch_limit=180), epsilon, DELTA), **changes)
    return module.one_run(asked(), plan, tiny.SCHEMA, DELTA, seed)


def test_canaries_in_one_run_show_a_part_of_the_price_and_never_more():
    """False alarm 10⁻⁵; that something is shown is seen at this seed, and was at each of ten others."""
    found = one_run_at(10.0)
    assert found.canaries == 200
    assert 1.0 < found.lower <= found.claimed
    assert found.delta == 1e-10
    assert found.holds


def quiet(monkeypatch):
    less_noise(0.02)(monkeypatch)


def forgotten_noise(monkeypatch):
    monkeypatch.setattr(loop, "privatize", lambda total, noise, scale, clip: total * (clip / clipping.GRID) + 0 * noise)


@pytest.mark.parametrize("plant", [quiet, forgotten_noise])
def test_canaries_show_a_run_that_hides_nobody(plant, monkeypatch):
    plant(monkeypatch)
    found = one_run_at(1.0)
    assert not found.holds
    assert found.right == found.guesses


def test_canaries_are_whole_units():
    schema = replace(tiny.SCHEMA, unit=Unit("person", 3, 2))
    plan = replace(calibrate(Plan(400, 200, 0.3, 1.0, 0.0), 10.0, DELTA), unit="person")
    found = module.one_run(asked(), plan, schema, DELTA)
    assert 0.5 < found.lower <= found.claimed


def test_a_table_too_small_for_canaries_is_refused():
    with pytest.raises(ValueError, match="num_rows=15 are too few"):
        module.one_run(asked(), Plan(15, 2, 0.3, 1.0, 3.0), tiny.SCHEMA, DELTA)


def test_the_bound_of_one_run_is_that_of_randomised_response():
    """At δ = 0 it is where Binomial(guesses, e^ε / (1 + e^ε)) has so many right with probability 10⁻⁵; δ lowers it."""
    exact = module._least_epsilon(1000, 100, 90, 0.0)
    odds = 1 / (1 + np.exp(-exact))
    assert stats.binom.sf(89, 100, odds) == pytest.approx(1e-5, rel=1e-6)
    assert 0 < module._least_epsilon(1000, 100, 90, 1e-8) < exact
    assert module._least_epsilon(1000, 100, 55, 0.0) == 0.0
    assert module._least_epsilon(1000, 100, 0, 0.0) == 0.0


def test_right_guesses_are_no_more_than_the_bound_allows():
    """Randomised response at ε = 2 is the worst case: of 2000 runs the bound exceeds 2 in none; 10⁻⁵ are allowed."""
    rng = np.random.default_rng(3)
    right = rng.binomial(200, 1 / (1 + np.exp(-2.0)), 2000)
    assert max(module._least_epsilon(200, 200, int(count), 0.0) for count in set(right)) <= 2.0


def test_the_slow_audit_tells_of_its_canaries(tmp_path, monkeypatch, capsys):
    tiny.SCHEMA.save(tmp_path / "s.toml")
    monkeypatch.setattr(module, "DRAWS", 10**5)
    monkeypatch.setitem(planner.METHODS, "dpvi", lambda *_: tiny.choice())
    options = ["--schema", str(tmp_path / "s.toml"), "--outcome", "ill", "--family", "logistic", "--epsilon", "1"]
    with pytest.raises(SystemExit) as done:
        cli.run(["audit", *options, "--delta", "1e-4", "--rows", "300", "--slow"])
    out = capsys.readouterr().out
    assert done.value.code == 0, out
    assert "canaries were right: ε is at least" in out
