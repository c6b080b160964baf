"""An audit of the claim: the mechanism that runs fits, on made-up rows, measured from outside.

What a guarantee leans on is measured one by one, with the user's own query and plan: how far one row moves a sum, how
much noise there is and of which shape, who takes part in a step, and whether sums are of rows. From the measured noise,
rate and reach follows the least ε that the mechanism can have; if that exceeds the claim, the claim is wrong. Attacks
on outputs alone would need many more runs to say as much; this trusts that the law is of the family that was tested.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from discreet.accounting import guarantee
from discreet.evaluate import study
from discreet.plan import Plan
from discreet.query import Point, Query
from discreet.schema import Numeric, Schema, Unit

ROWS, DRAWS, MEMBERS, ROUNDS = 24, 10**6, 16, 40_000
FALSE_ALARM = 1e-5
PRESENT, LOUD = "present", 1e9
CANARY, MOST_CANARIES = "canary", 1000
LAWS = {"gaussian": stats.norm(), "laplace": stats.laplace(scale=0.5**0.5)}  # of sd 1


class Check(NamedTuple):
    """One thing that was measured: what, its value, what it may be at most, and whether it is."""

    name: str
    measured: float
    at_most: float

    @property
    def holds(self) -> bool:
        """Whether the measured value is allowed; one that is no number is not."""
        return bool(self.measured <= self.at_most)


class Audit(NamedTuple):
    """All checks, the claimed ε and the least that was measured."""

    checks: tuple[Check, ...]
    claimed: float
    lower: float
    delta: float

    @property
    def holds(self) -> bool:
        """Whether nothing contradicts the claim."""
        return all(check.holds for check in self.checks) and self.lower <= self.claimed


def audit(query: Query, plan: Plan, schema: Schema, delta: float, seed: int = 0) -> Audit:
    """The audit of `plan` with `query` on rows that are made up from `schema`.

    Statistical checks have a false alarm rate of 10⁻⁵ each; `lower` exceeds the claim of an honest mechanism as seldom.
    """
    with_rows, loud = _reach(query, plan, schema, seed), _reach(_louder(query), plan, schema, seed)
    noise = _noise(query, plan, schema, seed)
    members = _members(plan, seed)
    checks = (
        Check("one row moves a sum by, in clip norms", with_rows, 1.0 + 1e-9),
        Check("a row that is clipped moves it by, in clip norms", loud, 1.0 + 1e-9),
        Check("a sum differs from that of the rows by, in grid units a row", _inexact(query, plan, schema, seed), 1.0),
        Check("a sum is beside the grid by, in grid units", _off_grid(query, plan, schema, seed), 1e-3),
        Check("answers beyond those that were asked for", float(len(noise) - _silent(query, plan).steps), 0.0),
        *_z_scores("noise", _of_noise(noise, plan)),
        *_z_scores("sampling", _of_members(members, plan)),
    )
    return Audit(checks, guarantee(plan, delta).epsilon, _lower(plan, delta, loud, noise, members), delta)


class Canaries(NamedTuple):
    """What one whole run told of `canaries`, made-up rows that were in it or not: `right` of so many `guesses`.

    `lower` is the least ε at `delta` that explains so many right guesses, but for one run in 10⁵; `claimed` is the
    plan's own.
    """

    canaries: int
    guesses: int
    right: int
    lower: float
    claimed: float
    delta: float

    @property
    def holds(self) -> bool:
        """Whether the run does not contradict the claim."""
        return self.lower <= self.claimed


def one_run(query: Query, plan: Plan, schema: Schema, delta: float, seed: int = 0, progress=iter) -> Canaries:
    """One run of `plan`, with the query's own questions and steps, on a table in which some rows are canaries.

    A fair coin decides of each canary whether it is there. All that a canary answers is one clip norm along a
    coordinate of its own, beside those of the query, so that nothing hides it but sampling and noise. Whoever scores
    highest is guessed to be in, whoever scores lowest to be out; how many are guessed is decided before the run. The
    bound is Steinke, Nasr and Jagielski's (2023, Theorem 5.2). Their δ counts for each canary, so that it is taken
    at 10⁻¹⁰ or below: the claim there is larger. An honest run shows a part of its ε at best.
    """
    count = min(MOST_CANARIES, plan.num_rows // 2)
    if count < 10:
        raise ValueError(f"num_rows={plan.num_rows} are too few: half are canaries, and it takes ten to say anything")
    delta = min(delta, 1e-10)
    rng = np.random.default_rng(seed)
    there = rng.random(count) < 0.5
    present = np.concatenate([there, np.ones(plan.num_rows - count)])[None]
    tables = _made_up(schema, seed, present)
    most = tables[PRESENT].shape[1] // plan.num_rows
    tables[CANARY] = np.where(np.arange(plan.num_rows) < count, np.arange(plan.num_rows), -1.0).repeat(most)[None]
    marked = replace(schema, columns=(*schema.columns, Numeric(PRESENT, 0, 1), Numeric(CANARY, -1, count)))
    release = study.fit_tables(seed, marked, plan, _with_canaries(query, plan, count), tables, progress)
    blocks = release.blocks
    scores = (np.asarray(blocks.steps) * np.asarray(blocks.mean_y))[0].sum(0)
    claimed = guarantee(plan, delta).epsilon
    guesses = _enough_guesses(plan, count, delta, claimed)
    order = np.argsort(scores)
    right = int((~there[order[: guesses // 2]]).sum() + there[order[count - (guesses - guesses // 2) :]].sum())
    return Canaries(count, guesses, right, _least_epsilon(count, guesses, right, delta), claimed, delta)


def _with_canaries(query: Query, plan: Plan, count: int) -> Query:
    """The same query, of rows of which some answer along `count` further coordinates; what is told is those."""

    def row_value(question, row):
        usual = query.row_value(question, {name: row[name] for name in query.columns})
        mine = plan.clip_norm * (jnp.arange(count) == row[CANARY])
        own = row[CANARY] >= 0
        value = jnp.concatenate([jnp.where(own, 0.0, usual), jnp.where(own, mine, 0.0)])
        return jnp.where(row[PRESENT] > 0, value, 0.0)

    def update(state, question, answer):
        return query.update(state, question, answer[: query.size])[0], _point(answer[query.size :])

    columns = (*query.columns, PRESENT, CANARY)
    return query._replace(row_value=row_value, update=update, size=query.size + count, columns=columns, settings={})


def _enough_guesses(plan: Plan, count: int, delta: float, claimed: float) -> int:
    """Of a few numbers the one that would tell most if scores are as far apart as the plan lets them be.

    Where that is possible, so many that they would contradict the claim if all were right.
    """
    reach = plan.sampling_prob * math.sqrt(plan.steps) / max(plan.noise_multiplier, 1e-12)

    def expected(guesses: int) -> float:
        cut = stats.norm.isf(0.5 * guesses / count) if guesses < count else 0.0
        odds = stats.norm.sf(cut - reach / 2) / (stats.norm.sf(cut - reach / 2) + stats.norm.sf(cut + reach / 2))
        return _least_epsilon(count, guesses, int(guesses * odds), delta)

    options = [max(2, count // part) for part in (50, 20, 10, 5, 3, 2, 1)]
    telling = [guesses for guesses in options if _least_epsilon(count, guesses, guesses, delta) > claimed]
    return max(telling or options, key=expected)


def _least_epsilon(count: int, guesses: int, right: int, delta: float) -> float:
    """The largest ε under which so many right guesses have a probability of at most `FALSE_ALARM`, or 0."""

    def probability(epsilon: float) -> float:
        odds = 1 / (1 + math.exp(-epsilon))
        fewer = np.cumsum(stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, odds))
        worst = (fewer / np.arange(1, right + 1)).max(initial=0.0)
        return float(stats.binom.sf(right - 1, guesses, odds) + 2 * count * delta * worst)

    if probability(0.0) > FALSE_ALARM:
        return 0.0
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if probability(middle) <= FALSE_ALARM else (low, middle)
    return low


def _z_scores(what: str, found: dict[str, float]) -> list[Check]:
    most = float(stats.norm.isf(FALSE_ALARM / 2))
    return [Check(f"{what}: {name}, in standard errors", abs(float(z)), most) for name, z in found.items()]


def _lower(plan: Plan, delta: float, reach: float, noise: np.ndarray, members: np.ndarray) -> float:
    """ε with as much noise and as few members as the measurements allow for."""
    scaled, law = noise / plan.noise_std, LAWS[plan.noise_kind]
    spread = math.sqrt((float(law.stats("k")) + 2) / scaled.size)
    most = math.sqrt(np.mean(scaled**2) * (1 + stats.norm.isf(FALSE_ALARM) * spread))
    quiet = replace(plan, noise_multiplier=plan.noise_multiplier * most / max(reach, 1e-12))
    if plan.sampling != "poisson" or members.all():
        return guarantee(quiet, delta).epsilon
    least = stats.beta.ppf(FALSE_ALARM, members.sum(), members.size - members.sum() + 1)
    return guarantee(replace(quiet, sampling_prob=float(least), batch_limit=None), delta).epsilon


def _reach(query: Query, plan: Plan, schema: Schema, seed: int) -> float:
    """The most that any of `ROWS` rows moves a sum by when it is left out."""
    bare = replace(_every_row(plan), steps=1, noise_multiplier=0.0)
    present = np.concatenate([np.ones((1, ROWS)), 1 - np.eye(ROWS)])
    told = _told(_recorded(query, seed), bare, schema, _made_up(schema, seed, present), seed)
    gaps = np.linalg.norm(told[1:] - told[:1], plan.norm_order, axis=-1)
    return float(gaps.max() / plan.clip_norm)


def _off_grid(query: Query, plan: Plan, schema: Schema, seed: int) -> float:
    """How far a sum without noise is from a whole number of grid units: sums of anything else round."""
    bare = replace(_every_row(plan), steps=1, noise_multiplier=0.0)
    told = _told(_recorded(query, seed), bare, schema, _made_up(schema, seed, np.ones((1, ROWS))), seed)
    units = told / (plan.clip_norm / 2**20)
    return float(np.abs(units - np.round(units)).max())


def _inexact(query: Query, plan: Plan, schema: Schema, seed: int) -> float:
    """By how much a sum without clip and noise differs from the sum of what rows answer, in grid units for each row."""
    free = replace(_every_row(plan), steps=1, noise_multiplier=0.0, clip_norm=1e4 * plan.clip_norm)
    tables = _made_up(schema, seed, np.ones((1, ROWS)))
    key = jax.random.key(seed)
    asked = _recorded(query, seed)
    told = _told(asked, free, schema, tables, seed)
    with jax.enable_x64(True):
        rows = {name: values[0] for name, values in tables.items() if values.ndim > 1}
        question = asked.ask(asked.chance(key), asked.init(key))
        values = np.asarray(jax.jit(jax.vmap(lambda row: asked.row_value(question, row)))(rows))
    whole = np.where(np.isfinite(values).all(1, keepdims=True), values, 0.0).sum(0)
    return float(np.abs(told[0, 0] - whole).max() / (free.clip_norm / 2**20) / ROWS)


def _noise(query: Query, plan: Plan, schema: Schema, seed: int) -> np.ndarray:
    """Answers when nobody is there: the noise alone, (steps, size)."""
    alone = _silent(query, plan)
    return _told(_recorded(query, seed), alone, schema, _made_up(schema, seed, np.zeros((1, 1))), seed)[0]


def _silent(query: Query, plan: Plan) -> Plan:
    return replace(_every_row(plan, 1), steps=-(-DRAWS // query.size))


def _of_noise(noise: np.ndarray, plan: Plan) -> dict[str, float]:
    """z-scores that are normal for noise of the plan's scale and shape, independent from step to step."""
    scaled, law = noise / plan.noise_std, LAWS[plan.noise_kind]
    shape = stats.kstest(scaled.ravel()[: 10**5], law.cdf).pvalue
    found = {
        "variance": (np.mean(scaled**2) - 1) * math.sqrt(scaled.size / (float(law.stats("k")) + 2)),
        "mean": scaled.mean() * math.sqrt(scaled.size),
        "one step and the next": (scaled[1:] * scaled[:-1]).sum() / math.sqrt(scaled[1:].size),
        "one coordinate and the next": (scaled[:, 1:] * scaled[:, :-1]).sum() / math.sqrt(max(scaled[:, 1:].size, 1)),
        "shape": stats.norm.isf(max(shape, 1e-300) / 2),
    }
    return {name: float(z) for name, z in found.items()}


def _members(plan: Plan, seed: int) -> np.ndarray:
    """Who took part in which step, (steps, members): each answers with a coordinate of its own, in each of its rows."""
    whom = np.arange(MEMBERS)
    schema, units = Schema((Numeric("who", 0, MEMBERS),)), {}
    if plan.unit != "row":
        whom = whom.repeat(2)
        schema, units = replace(schema, unit=Unit(plan.unit, most=2, typical=2)), {plan.unit: whom}
    plan = replace(_every_row(plan, MEMBERS), sampling_prob=_rate(plan), sampling=plan.sampling)
    plan = replace(plan, steps=ROUNDS, noise_multiplier=0.0, clip_norm=1.0)
    query = Query(
        init=lambda key: jnp.zeros(MEMBERS),
        ask=lambda chance, state: state,
        row_value=lambda question, row: question + (jnp.arange(MEMBERS) == row["who"]),
        update=lambda state, question, answer: (state, _point(answer)),
        last=lambda state: state,
        size=MEMBERS,
        columns=("who",),
        settings={},
    )
    return _told(query, plan, schema, {"who": whom.astype(float)[None], **units}, seed)[0] > 0.5


def _of_members(members: np.ndarray, plan: Plan) -> dict[str, float]:
    """z-scores of how often rows take part, alone, in pairs and in consecutive steps."""
    rate = _rate(plan)
    if rate == 1:
        return {"rate": 0.0 if members.all() else math.inf}
    scaled = (members - rate) / math.sqrt(rate * (1 - rate))
    pairs = scaled[:, 1:] * scaled[:, :-1]
    found = {"one step and the next": (scaled[1:] * scaled[:-1]).sum() / math.sqrt(scaled[1:].size)}
    if plan.sampling == "poisson":  # of one row a step, pairs exclude each other
        found["one row and the next"] = pairs.sum() / math.sqrt(pairs.size)
        found["rate"] = scaled.sum() / math.sqrt(scaled.size)
    else:
        found["rows in a step"] = 0.0 if (members.sum(1) == 1).all() else math.inf
    return found


def _rate(plan: Plan) -> float:
    return plan.sampling_prob if plan.sampling == "poisson" else 1 / MEMBERS


def _every_row(plan: Plan, num_rows: int = ROWS) -> Plan:
    """The plan for a small table of which every row takes part."""
    return replace(plan, num_rows=num_rows, sampling_prob=1.0, batch_limit=None, sampling="poisson")


def _recorded(query: Query, seed: int) -> Query:
    """The same question again and again, of rows that may be absent; what is told is the answer itself."""
    key = jax.random.key(seed)

    def row_value(question, row):
        value = query.row_value(question, {name: row[name] for name in query.columns})
        return jnp.where(row[PRESENT] > 0, value, jnp.zeros_like(value))

    return query._replace(
        init=lambda _: query.init(key),
        chance=lambda _: query.chance(key),
        row_value=row_value,
        update=lambda state, question, answer: (state, _point(answer)),
        columns=(*query.columns, PRESENT),
        settings={},
    )


def _louder(query: Query) -> Query:
    return query._replace(row_value=lambda question, row: LOUD * query.row_value(question, row))


def _point(answer) -> Point:
    return Point(answer, answer, answer, jnp.ones_like(answer))


def _made_up(schema: Schema, seed: int, present: np.ndarray) -> dict[str, np.ndarray]:
    """The same random rows in every table (tables, rows), present or not; units have as many as they can."""
    most = 1 if schema.unit is None else schema.unit.most
    present = present.repeat(most, axis=1)
    rows = schema.sample(np.random.default_rng(seed), present.shape[1])
    units = {} if schema.unit is None else {schema.unit.column: np.arange(present.shape[1]) // most}
    return {name: np.tile(values, (len(present), 1)) for name, values in rows.items()} | {PRESENT: present} | units


def _told(query: Query, plan: Plan, schema: Schema, tables: dict[str, np.ndarray], seed: int) -> np.ndarray:
    """The answers of a run on these tables, shape (tables, steps, size)."""
    added = replace(schema, columns=(*schema.columns, Numeric(PRESENT, 0, 1))) if PRESENT in tables else schema
    release = study.fit_tables(seed, added, plan, query, tables, keep="trace")
    assert release.trace is not None
    return np.asarray(release.trace.y)
