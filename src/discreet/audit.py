"""An audit of the claim: the mechanism that runs fits, on made-up rows, measured from outside.

What a guarantee leans on is measured one by one, with the user's own query and plan: how far one row moves a sum, how
much noise there is and of which shape, who takes part in a step, and whether sums are of rows. Made-up rows are held as
the fit's will be, one by one or as counts of cells, so that the code is the same. From the measured noise, rate and
reach follows the least ε that the mechanism can have; if that exceeds the claim, the claim is wrong. Attacks on outputs
alone would need many more runs to say as much; this trusts that the law is of the family that was tested.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from discreet.accounting import guarantee
from discreet.evaluate import study
from discreet.model import Model
from discreet.plan import Plan
from discreet.query import Phase, Point, Query
from discreet.schema import MOST_CELLS, Numeric, Schema, Unit

ROWS, DRAWS, MEMBERS, ROUNDS = 24, 10**6, 16, 40_000
LIMIT, LEAST_RATE, MOST_IN_CELL = 4, 1 / 16, 10**4
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


class Made(NamedTuple):
    """Made-up tables under `schema`, of `num_rows` rows or units; `fixed` are the values of columns it has not."""

    schema: Schema
    tables: dict[str, np.ndarray]
    fixed: dict[str, np.generic]
    num_rows: int


def audit(query: Query, plan: Plan, schema: Schema, delta: float, seed: int = 0, model: Model | None = None) -> Audit:
    """The audit of `plan` with `query` on rows that are made up from `schema`.

    With the `model` that it is of, a DPVI query is also asked whether answer and public part are the gradient of the
    ELBO. DP-SEP's sites have no such density to compare with: of them only the sum over rows is checked.

    Statistical checks have a false alarm rate of 10⁻⁵ each; `lower` exceeds the claim of an honest mechanism as seldom.
    """
    sums, loud = _sums(query, plan, schema, seed), _reach(_sums(_louder(query), plan, schema, seed), plan)
    noise = _noise(query, plan, schema, seed)
    people = _people(plan, schema)
    members = _members(_small(plan, people), people, _held_as_counts(plan, schema), seed)
    checks = [
        Check("one row moves a sum by, in clip norms", _reach(sums, plan), 1.0 + 1e-9),
        Check("a row that is clipped moves it by, in clip norms", loud, 1.0 + 1e-9),
        Check("a sum differs from that of the rows by, in grid units a row", _inexact(query, plan, schema, seed), 1.0),
        Check("a sum is beside the grid by, in grid units", _off_grid(sums, plan), 1e-3),
        Check("answers beyond those that were asked for", float(len(noise) - _silent(query, plan).steps), 0.0),
        Check("one row takes part in a step, times", float((members / people).max()), 1.0),
        *_z_scores("noise", _of_noise(noise, plan)),
        *_z_scores("sampling", _of_members(members, people, plan)),
    ]
    if plan.batch_limit not in (None, plan.num_rows):
        checks += _of_full_batches(plan, seed)
    if model is not None and query.settings.get("method") == "elbo":
        wrong = _beside_the_gradient(query, plan, schema, model, seed)
        checks.append(Check("a step is beside the ELBO's gradient by, in grid units a row", wrong, 1.0))
    lower = _lower(plan, delta, loud, noise, int(members.sum()), len(members) * int(people.sum()))
    return Audit(tuple(checks), guarantee(plan, delta).epsilon, lower, delta)


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


def audit_phases(
    asked: Sequence[Phase], schema: Schema, delta: float, *, model: Model | None = None, seed: int = 0
) -> Audit:
    """The audits of several phases as one: what any of them shows is a bound for all of them together."""
    found = [audit(phase.query, phase.plan, schema, delta, model=model, seed=seed) for phase in asked]
    if len(found) == 1:
        return found[0]
    checks = [
        check._replace(name=f"phase {number}: {check.name}")
        for number, one in enumerate(found, 1)
        for check in one.checks
    ]
    claimed = guarantee([phase.plan for phase in asked], delta).epsilon
    return Audit(tuple(checks), claimed, max(one.lower for one in found), delta)


def one_run(query: Query, plan: Plan, schema: Schema, delta: float, seed: int = 0, progress=iter) -> Canaries:
    """One run of `plan`, with the query's own questions and steps, on a table in which some rows are canaries.

    A fair coin decides of each canary whether it is there. All that a canary answers is one clip norm along a
    coordinate of its own, beside those of the query, so that nothing hides it but sampling and noise. Whoever scores
    highest is guessed to be in, whoever scores lowest to be out; how many are guessed is decided before the run. The
    bound is Steinke, Nasr and Jagielski's (2023, Theorem 5.2). Their δ counts for each canary, so that it is taken
    at 10⁻¹⁰ or below: the claim there is larger. An honest run shows a part of its ε at best. Rows are held one by one,
    also where the fit's will be counts: canaries would be too many cells.
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


def _lower(plan: Plan, delta: float, reach: float, noise: np.ndarray, members: int, chances: int) -> float:
    """ε with as much noise and as few members, of all who might have been, as the measurements allow for."""
    scaled, law = noise / plan.noise_std, LAWS[plan.noise_kind]
    spread = math.sqrt((float(law.stats("k")) + 2) / scaled.size)
    most = math.sqrt(np.mean(scaled**2) * (1 + stats.norm.isf(FALSE_ALARM) * spread))
    quiet = replace(plan, noise_multiplier=plan.noise_multiplier * most / max(reach, 1e-12))
    if plan.sampling != "poisson" or members == chances:
        return guarantee(quiet, delta).epsilon
    least = stats.beta.ppf(FALSE_ALARM, members, chances - members + 1)
    return guarantee(replace(quiet, sampling_prob=float(least), batch_limit=None), delta).epsilon


def _sums(query: Query, plan: Plan, schema: Schema, seed: int) -> np.ndarray:
    """Sums without noise over `ROWS` rows, and over all but each of them; (1 + ROWS, size)."""
    made = _made(plan, schema, seed, np.concatenate([np.ones((1, ROWS)), 1 - np.eye(ROWS)]))
    return np.asarray(_told(_recorded(query, made, seed), _bare(plan, made), made, seed).y[:, 0])


def _reach(sums: np.ndarray, plan: Plan) -> float:
    """The most that any row moves a sum by when it is left out."""
    return float(np.linalg.norm(sums[1:] - sums[:1], plan.norm_order, axis=-1).max() / plan.clip_norm)


def _off_grid(sums: np.ndarray, plan: Plan) -> float:
    """How far sums without noise are from a whole number of grid units: sums of anything else round."""
    units = sums / (plan.clip_norm / 2**20)
    return float(np.abs(units - np.round(units)).max())


def _inexact(query: Query, plan: Plan, schema: Schema, seed: int) -> float:
    """By how much a sum without clip and noise differs from the sum of what rows answer, in grid units for each row."""
    made = _made(plan, schema, seed, np.ones((1, ROWS)))
    free = replace(_bare(plan, made), clip_norm=1e4 * plan.clip_norm)
    key = jax.random.key(seed)
    asked = _recorded(query, made, seed)
    told = _told(asked, free, made, seed).y
    with jax.enable_x64(True):
        question = asked.ask(asked.chance(key), asked.init(key))
        values = _of_rows(lambda row: asked.row_value(question, row), made)
    return float(np.abs(told[0, 0] - values.sum(0)).max() / (free.clip_norm / 2**20) / ROWS)


def _beside_the_gradient(query: Query, plan: Plan, schema: Schema, model: Model, seed: int) -> float:
    """By how much a step of every row, without noise and clip, misses the gradient of the negative ELBO.

    In grid units for each row, of which rounding explains one; of a step without rows, in 10⁻⁹ of the largest entry.
    Prior and entropy have the weight that the plan's sampling gives them, and q is about a draw from the prior: at its
    centre an omitted prior would not show.
    """
    made = _made(plan, schema, seed, np.stack([np.ones(ROWS), np.zeros(ROWS)]))
    first, second = jax.random.split(jax.random.key(seed))
    with jax.enable_x64(True):
        state = query.init(first)
        state = state._replace(phi=state.phi.at[: model.dim].set(model.sample_prior(second)))
        asked = _recorded(query, made, seed)._replace(init=lambda _: state, update=query.update)
        question = asked.ask(asked.chance(first), state)
        of_row, of_all = _negative_elbo(model, query, question)
        of_rows = _of_rows(jax.grad(lambda row, phi: of_row(phi, row), 1), made, question.phi).sum(0)
        public = plan.sampling_prob * np.asarray(jax.grad(of_all)(question.phi))
        answers = _of_rows(lambda row: asked.row_value(question, row), made)
    longest = float(np.linalg.norm(answers, plan.norm_order, axis=1).max())
    free = replace(_bare(plan, made), clip_norm=2 * max(longest, 1e-300))
    told = _told(asked, free, made, seed)
    of_rows, public = of_rows[: told.y.shape[-1]], public[: told.y.shape[-1]]
    rounding = math.sqrt(query.size) * told.scale[0, 0] * free.clip_norm / 2**20 * ROWS
    errors = np.abs(told.y[:, 0] - np.stack([of_rows + public, public]))
    slack = 1e-9 * np.stack([np.abs(of_rows) + np.abs(public), np.full(len(public), np.abs(public).max())])
    return float((errors / (slack + np.stack([rounding, 0 * rounding]) + 1e-300)).max())


def _negative_elbo(model: Model, query: Query, question) -> tuple[Callable, Callable]:
    """A row's part of the negative ELBO at the question's draws η, and the part of prior and entropy; functions of φ.

    Written from the model's densities and the definition of q alone: z = m + Lη, log q = −log det L + constant.
    """
    dim, eta = model.dim, question.eta
    positive = {"softplus": jax.nn.softplus, "exp": jnp.exp}[query.settings["positive"]]

    def factor(phi):
        diagonal = jnp.diag(positive(phi[dim : 2 * dim]))
        dense = query.settings["family"] == "full-rank"
        return diagonal.at[np.tril_indices(dim, -1)].set(phi[2 * dim :]) if dense else diagonal

    def average(log_density, phi):
        return jax.vmap(log_density)(phi[None, :dim] + eta @ factor(phi).T).mean()

    def of_row(phi, row):
        row = {name: row[name] for name in model.columns}
        return -average(lambda z: model.log_likelihood(z, row), phi)

    def public(phi):
        return -average(model.log_prior, phi) - jnp.log(jnp.diagonal(factor(phi))).sum()

    return of_row, public


def _of_rows(value: Callable, made: Made, *public) -> np.ndarray:
    """`value` of each row of the first table, summed by unit; zero if it is absent or not finite."""
    rows = {name: jnp.asarray(values[0]) for name, values in made.tables.items() if values.ndim > 1}
    each = jax.jit(jax.vmap(lambda row: value({**row, **made.fixed}, *public)))(rows)
    there = np.asarray(rows[PRESENT] > 0)[:, None]
    values = np.where(there, np.asarray(each), 0.0).reshape(made.num_rows, -1, each.shape[-1]).sum(1)
    return np.where(np.isfinite(values).all(1, keepdims=True), values, 0.0)


def _noise(query: Query, plan: Plan, schema: Schema, seed: int) -> np.ndarray:
    """Answers when nobody is there: the noise alone, (steps, size)."""
    made = _made(plan, schema, seed, np.zeros((1, 1)), most_cells=2)
    alone = replace(_silent(query, plan), num_rows=made.num_rows)
    return np.asarray(_told(_recorded(query, made, seed), alone, made, seed).y[0])


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


def _members(plan: Plan, people: np.ndarray, counted: bool, seed: int) -> np.ndarray:
    """How many of each cell's `people` took part in which step, (steps, cells): a cell answers with its coordinate.

    Rows that are not `counted` are cells of one, and units have two rows each.
    """
    cells, whom = len(people), np.arange(len(people)).repeat(people)
    schema, units = Schema((Numeric("who", 0, cells - 1, integer=counted),)), {}
    if plan.unit != "row":
        whom = whom.repeat(2)
        schema, units = replace(schema, unit=Unit(plan.unit, most=2, typical=2)), {plan.unit: whom}
    query = Query(
        init=lambda key: jnp.zeros(cells),
        ask=lambda chance, state: state,
        row_value=lambda question, row: question + (jnp.arange(cells) == row["who"]),
        update=lambda state, question, answer: (state, _point(answer)),
        last=lambda state: state,
        size=cells,
        columns=("who",),
        settings={},
    )
    made = Made(schema, {"who": whom.astype(float)[None], **units}, {}, plan.num_rows)
    return np.rint(_told(query, plan, made, seed).y[0])


def _small(plan: Plan, people: np.ndarray) -> Plan:
    """The plan for so many people, sampled as the plan says, and neither noise nor limit."""
    plan = replace(_every_row(plan, int(people.sum())), sampling_prob=_rate(plan), sampling=plan.sampling)
    return replace(plan, steps=ROUNDS, noise_multiplier=0.0, clip_norm=1.0)


def _people(plan: Plan, schema: Schema) -> np.ndarray:
    """How many stand behind each cell: one, and of counts in half of the cells a quarter of the table."""
    people = np.ones(MEMBERS, int)
    if _held_as_counts(plan, schema):
        people[MEMBERS // 2 :] = min(MOST_IN_CELL, max(1, plan.num_rows // 4))
    return people


def _of_members(members: np.ndarray, people: np.ndarray, plan: Plan) -> dict[str, float]:
    """z-scores of how often rows take part, alone, in pairs and in consecutive steps; all from binomial laws."""
    rate = _rate(plan)
    if rate == 1:
        return {"rate": 0.0 if (members == people).all() else math.inf}
    mean, law = rate * people, stats.binom(people, rate)
    many, odds = members > np.floor(mean), np.broadcast_to(law.sf(np.floor(mean)), members.shape)  # of one: is it in?
    found = {"one step and the next": _in_pairs(many.T, odds.T)}
    if plan.sampling != "poisson":  # of one row a step, pairs exclude each other
        return found | {"rows in a step": 0.0 if (members.sum(1) == 1).all() else math.inf}
    found["one row and the next"] = _in_pairs(many, odds)
    found["rate"] = _z(_two_sided(members.sum(), len(members) * people.sum(), rate))
    if people.max() > 1:
        reach = np.sqrt(mean * (1 - rate))
        far = law.cdf(np.ceil(mean - reach) - 1) + law.sf(np.floor(mean + reach))
        found["people above a cell's mean"] = _z(_rarest(many, odds))
        found["people far from it"] = _z(_rarest(np.abs(members - mean) > reach, np.broadcast_to(far, members.shape)))
    return found


def _of_full_batches(plan: Plan, seed: int) -> list[Check]:
    """A plan with a limit, on a table so small that a limit of `LIMIT` is met often: who stays is a uniform subset.

    Rates below a sixteenth are raised to it, so that every row has a coordinate of its own.
    """
    rate = max(plan.sampling_prob, LEAST_RATE)
    people = np.ones(max(2 * LIMIT, math.ceil(LIMIT / rate)), int)
    small = replace(_small(plan, people), sampling_prob=rate, batch_limit=LIMIT)
    members = _members(small, people, False, seed)
    sizes, rows = members.sum(1), len(people)
    full = members[sizes >= LIMIT]
    spread = max(len(full), 1) * LIMIT / rows * (1 - LIMIT / rows) * rows / (rows - 1)
    uneven = ((full.sum(0) - full.sum(0).mean()) ** 2).sum() / spread
    found = {
        "how often": _z(_two_sided(len(full), len(members), float(stats.binom.sf(LIMIT - 1, rows, rate)))),
        "who stays": _z(float(stats.chi2.sf(uneven, rows - 1))),
    }
    return [
        Check("a row takes part in a batch with a limit, times", float(members.max()), 1.0),
        Check("rows in a batch beyond its limit", float(sizes.max() - LIMIT), 0.0),
        *_z_scores("full batches", found),
    ]


def _in_pairs(hits: np.ndarray, odds: np.ndarray) -> float:
    """z-score of how often a column and the next are hit together; pairs that overlap are counted apart."""
    both, expected = hits[:, 1:] & hits[:, :-1], odds[:, 1:] * odds[:, :-1]
    return _z(2 * min(_rarest(both[:, first::2], expected[:, first::2]) for first in (0, 1)))


def _rarest(hits: np.ndarray, odds: np.ndarray) -> float:
    """Of the groups of equal odds the one with the most surprising number of hits: its p-value, for all of them."""
    groups = {float(value): hits[odds == value] for value in np.unique(odds)}
    found = [_two_sided(group.sum(), group.size, value) for value, group in groups.items()]
    return len(found) * min(found)


def _two_sided(hits: float, trials: int, odds: float) -> float:
    law = stats.binom(trials, odds)
    return 2 * float(min(law.cdf(hits), law.sf(hits - 1)))


def _z(pvalue: float) -> float:
    return float(stats.norm.isf(min(max(pvalue, 1e-300), 1.0) / 2))


def _rate(plan: Plan) -> float:
    return plan.sampling_prob if plan.sampling == "poisson" else 1 / MEMBERS


def _held_as_counts(plan: Plan, schema: Schema) -> bool:
    """Whether the fit's rows will be; where a plan cannot ask counts, a fit refuses it before any row is asked."""
    whole = plan.sampling == "poisson" and plan.batch_limit in (None, plan.num_rows)
    return whole and schema.held_as_counts(plan.num_rows)


def _every_row(plan: Plan, num_rows: int) -> Plan:
    """The plan for a small table of which every row takes part."""
    return replace(plan, num_rows=num_rows, sampling_prob=1.0, batch_limit=None, sampling="poisson")


def _bare(plan: Plan, made: Made) -> Plan:
    """One step of every row that was made, without noise."""
    return replace(_every_row(plan, made.num_rows), steps=1, noise_multiplier=0.0)


def _recorded(query: Query, made: Made, seed: int) -> Query:
    """The same question again and again, of rows that may be absent; what is told is the answer itself."""
    key = jax.random.key(seed)

    def present(row, value):
        return jnp.where(row[PRESENT] > 0, value, jnp.zeros_like(value))

    def own(row):
        known = {**row, **made.fixed}
        return {name: known[name] for name in query.columns if name in known}

    return _changed(query, present, own)._replace(
        init=lambda _: query.init(key),
        chance=lambda _: query.chance(key),
        update=lambda state, question, answer: (state, _point(answer)),
        columns=tuple(name for name in made.schema.names if name in (*query.columns, PRESENT)),
        settings={},
    )


def _louder(query: Query) -> Query:
    return _changed(query, lambda row, value: LOUD * value)


def _changed(query: Query, change: Callable, seen: Callable = lambda row: row) -> Query:
    """The query whose rows, as they are `seen`, answer change(row, value), row by row or by matrix products alike."""
    products = query.products

    def row_value(question, row):
        return change(row, query.row_value(question, seen(row)))

    if products is None or products.row_value is not query.row_value:
        return query._replace(row_value=row_value, products=None)

    def slopes(u, rest, row):
        return tuple(change(row, part) for part in products.slopes(u, rest, seen(row)))

    by_products = products._replace(
        row_value=row_value, features=lambda row: products.features(seen(row)), slopes=slopes
    )
    return query._replace(row_value=row_value, products=by_products)


def _point(answer) -> Point:
    return Point(answer, answer, answer, jnp.ones_like(answer))


def _made_up(schema: Schema, seed: int, present: np.ndarray) -> dict[str, np.ndarray]:
    """The same random rows in every table (tables, rows), present or not; units have as many as they can."""
    most = 1 if schema.unit is None else schema.unit.most
    present = present.repeat(most, axis=1)
    rows = schema.sample(np.random.default_rng(seed), present.shape[1])
    units = {} if schema.unit is None else {schema.unit.column: np.arange(present.shape[1]) // most}
    return {name: np.tile(values, (len(present), 1)) for name, values in rows.items()} | {PRESENT: present} | units


def _made(plan: Plan, schema: Schema, seed: int, present: np.ndarray, most_cells: int = MOST_CELLS) -> Made:
    """Made-up tables (tables, rows) whose rows are present or not, and are held as the fit's will be.

    For counts there are at least as many rows as cells: those that were not asked for are absent. Columns that would
    make the cells too many are left out, with a value that is the same for all rows.
    """
    if not _held_as_counts(plan, schema):
        marked = replace(schema, columns=(*schema.columns, Numeric(PRESENT, 0, 1)))
        return Made(marked, _made_up(schema, seed, present), {}, present.shape[1])
    counted = Schema((Numeric(PRESENT, 0, 1, integer=True),))
    for column in schema.columns:
        more = Schema((*counted.columns, column))
        counted = more if (more.cells or 0) <= most_cells else counted
    absent = max(0, (counted.cells or 0) - present.shape[1])
    tables = _made_up(schema, seed, np.pad(present, ((0, 0), (0, absent))))
    fixed = {name: values[0, 0] for name, values in tables.items() if name not in counted}
    return Made(counted, tables, fixed, present.shape[1] + absent)


def _told(query: Query, plan: Plan, made: Made, seed: int) -> Point:
    """The points of a run on these tables, each of shape (tables, steps, size)."""
    release = study.fit_tables(seed, made.schema, plan, query, made.tables, keep="trace")
    assert release.trace is not None
    return Point(*map(np.asarray, release.trace))
