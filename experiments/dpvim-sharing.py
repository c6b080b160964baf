"""DPVIm, Figures 1 to 4: a mixture with a regression is learned, and tables are drawn from it, on three tables.

"biobank": 58 261 simulated rows, seven categorical columns and a rare count, as the paper's (which is not public).
"census": 320 754 simulated rows of the census's 13 columns. "adult": Adult, the real one, with the income as outcome.
A mixture of 16 components makes the covariates, a Poisson (Adult: logistic) regression the outcome; priors are the
paper's. Both simulated tables come from a mixture of four. MPAE is of the regression's parameters, against their
non-private optimum, which the mixture's part does not move. Simulated noise, Adam 10⁻³, κ = .01, δ = 1/N, one draw.

Figure 1: initial sds, biobank, ε = 1. Figure 2: run lengths. Figure 3: 100 tables from the last iterate, and from
averages over windows; regressions on them, pooled, beside that on the table itself. Figure 4: MPAE along the run.

Synthetic tables have as many rows as the table, 58 261 at most. Quick: 20 000 rows, 60 epochs, 20 tables, 2 seeds.
FULL=1: 1000 epochs (census: 100), up to 8000 in Figure 2, 4000 in Figure 3, 10 seeds: a day on two cores, so that
SEEDS, EPSILONS, MODELS="biobank adult" and LONGEST=2000 (epochs) choose parts; what was done for fewer seeds is kept.

Criterion (written before the run): the aligned variant's error in the scales is below vanilla's in every seed, at every
initial sd, ε and table.
"""

import os
import time
from functools import cache, partial
from typing import NamedTuple

import jax
import numpy as np
from _adult import features
from _dpvim import COLOURS, VARIANTS, clipped, optimum, plan_for, train
from _sharing import regression
from harness import FULL, claim, epsilons, finish, picture, run_parts, seeds

from discreet import datasets, synth
from discreet.accounting import guarantee
from discreet.evaluate import study
from discreet.evaluate.distance import mpae
from discreet.families.components import Priors
from discreet.families.glm import Priors as Slopes
from discreet.families.glm import glm
from discreet.families.mixture import mixture
from discreet.methods import elbo
from discreet.methods.gaussian import MEAN_FIELD
from discreet.posterior import averaging
from discreet.posterior.types import from_draws, through_q
from discreet.schema import Categorical, Numeric, Schema

SEED, COMPONENTS, TRUE_COMPONENTS, PROB = 1700, 16, 4, 0.9
CLIP = dict(zip(VARIANTS, (2.0, 4.0, 0.1, 2.0, 0.1), strict=True))
EPOCHS, CENSUS_EPOCHS = (1000, 100) if FULL else (60, 60)
STARTS = (0.01, 0.032, 0.1, 0.316, 1.0)
LONGEST = int(os.environ.get("LONGEST") or 8000)
LENGTHS = tuple(n for n in (200, 1000, 2000, 4000, 8000) if n <= max(LONGEST, EPOCHS)) if FULL else (30, 60, 120)
AVERAGED_EPOCHS, TABLES = (min(4000, LENGTHS[-1]), 100) if FULL else (120, 20)
MOST_ROWS = 58_261
EPSILONS = epsilons(1.0, 2.0, 4.0, 10.0)
SEEDS = seeds(10, 2)
LEVELS = (2, 3, 5, 4, 6, 2, 5)
BIOBANK = Schema(
    (
        *(Categorical(f"x{place}", tuple(map(str, range(levels)))) for place, levels in enumerate(LEVELS)),
        Numeric("y", 0, 20, integer=True),
    )
)
READINGS = ("last iterate", "average, last tenth", "average, last half", "average, last 80 %", "average, flat windows")
AWARE = "noise-aware average"


class Table(NamedTuple):
    """What is learned from, and what an analyst asks of synthetic rows: a regression on `asked`."""

    schema: Schema
    outcome: str
    family: str
    intercept: float
    num_rows: int
    asked: tuple[str, ...]
    epochs: int = EPOCHS


CENSUS_ASKED = ("dAge", "iSex", "iVietnam", "iKorean", "iMobillim")
TABLES_OF = {
    "biobank": Table(BIOBANK, "y", "poisson", -4.0, 58_261 if FULL else 20_000, BIOBANK.names[:-1]),
    "census": Table(
        datasets.CENSUS1990, "poor", "poisson", -2.5, 320_754 if FULL else 20_000, CENSUS_ASKED, CENSUS_EPOCHS
    ),
    "adult": Table(datasets.ADULT, "income", "logistic", 0.0, 30_162, ("age", "hours-per-week", "sex", "race")),
}
MODELS = os.environ.get("MODELS", "").split() or list(TABLES_OF)


def models(name, components=COMPONENTS):
    """(the mixture with its regression, that regression alone, the analyst's) of a table."""
    table = TABLES_OF[name]
    slopes = Slopes(1.0, 1.0, intercept=0.0)
    whole = mixture(table.schema, components, table.outcome, table.family, priors=Priors(outcome=slopes))
    covariates = [column for column in table.schema.names if column != table.outcome]
    part, asked = (glm(table.family, table.outcome, names, table.schema, slopes) for names in (covariates, table.asked))
    return whole, part, asked


@cache
def columns_of(name):
    """(encoded columns, the regression's coefficients where the table is simulated)."""
    table = TABLES_OF[name]
    if name == "adult":
        return table.schema.encode(datasets.adult()[0]), None
    model, part, _ = models(name, TRUE_COMPONENTS)
    rng = np.random.default_rng(SEED)
    truth = np.array(model.sample_prior(jax.random.key(SEED)), float)
    truth[-part.dim :] = np.concatenate([[table.intercept], rng.normal(0, 0.4, part.dim - 1)])
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(SEED), table.num_rows)
        made = jax.jit(jax.vmap(lambda key: model.simulate(key, truth, {})))(keys)
    rows = {column: np.asarray(values) for column, values in made.items()}
    y, column = rows[table.outcome], table.schema[table.outcome]
    return rows | {table.outcome: np.clip(y, column.low, column.high)}, truth[-part.dim :]


@cache
def target(name):
    """φ* of the regression's part."""
    _, part, _ = models(name)
    return optimum(part, columns_of(name)[0], elbo.start_at(part, 0.1, np.zeros(part.dim)))


def analysed(name, columns):
    """What an analyst's regression finds in encoded columns: estimates and variances."""
    table, asked = TABLES_OF[name], models(name)[2]
    each = [np.unique(columns[column], return_inverse=True) for column in table.asked]
    cells = np.ravel_multi_index([place for _, place in each], [len(values) for values, _ in each])
    _, first, place = np.unique(cells, return_index=True, return_inverse=True)
    x = features(asked, {column: values[first] for column, values in columns.items()})
    count, total = (np.bincount(place, weights, len(first)) for weights in (None, columns[table.outcome]))
    return regression(x, total, count, table.family)


class Job(NamedTuple):
    """One run; `downstream` says that tables are drawn from it."""

    variant: str
    epsilon: float
    sd: float
    epochs: int
    seed: int
    downstream: bool = False


def jobs_of(name):
    """The runs on a table, seed by seed, the short ones first."""
    return [job for seed in SEEDS for job in jobs_of_seed(name, seed)]


def jobs_of_seed(name, seed):
    usual = TABLES_OF[name].epochs
    jobs = [Job(v, e, 1.0, usual, seed) for e in EPSILONS for v in VARIANTS]
    if name == "biobank" and 1.0 in EPSILONS:
        jobs += [Job(v, 1.0, sd, usual, seed) for sd in STARTS[:-1] for v in VARIANTS]
        jobs += [Job(v, 1.0, 1.0, n, seed) for n in LENGTHS if n != usual for v in VARIANTS]
    epochs = AVERAGED_EPOCHS if name == "biobank" else usual
    jobs += [Job("aligned", e, 1.0, epochs, seed, True) for e in EPSILONS]
    return sorted(jobs, key=lambda job: job.epochs)


def readings(release):
    """{reading: one φ, or draws of it}: the last iterate, and averages over windows of DPVIm's trace."""
    window = averaging.average(release)
    tails = {share: averaging.tail_average(release, 1 - share) for share in (0.1, 0.5, 0.8)}
    flat, tail = window.converged, tails[0.8]
    mean, mean_sd = (np.where(flat, getattr(window, part), getattr(tail, part)) for part in ("mean", "mean_sd"))
    rng, dim = np.random.default_rng(SEED), MEAN_FIELD.dim(mean)
    aware = np.tile(mean, (TABLES, 1))
    aware[:, :dim] += mean_sd[:dim] * rng.standard_normal((TABLES, dim))
    every = (release.last, tails[0.1].mean, tails[0.5].mean, tails[0.8].mean, mean)
    return dict(zip(READINGS, every, strict=True)) | {AWARE: aware}


def downstream(name, release, model, columns):
    """{reading/…: values}: pooled estimates of the analyst's regression, their intervals, and how alike tables are."""
    table, found = TABLES_OF[name], {}
    every_row = len(columns[table.outcome])
    num_rows = min(every_row, MOST_ROWS)
    own, _ = analysed(name, columns)
    for reading, phi in readings(release).items():
        z = through_q(np.random.default_rng(SEED), np.broadcast_to(phi, (TABLES, phi.shape[-1])))
        promise = guarantee(release.plan, 1 / every_row, "simulated")
        posterior = from_draws(z, model, promise, info={"method": reading}, schema=table.schema)
        drawn = synth.synthesize(posterior, num_rows, TABLES, seed=SEED, naive=True)
        each = [analysed(name, table.schema.encode(one)) for one in drawn]
        estimates, variances = (np.stack(part) for part in zip(*each, strict=True))
        pooled = synth.rubin(estimates, variances, n=num_rows, num_rows=every_row, prob=PROB)
        found[f"{reading}/error"] = np.sqrt(np.mean((pooled.estimate - own) ** 2))
        truth = columns_of(name)[1]
        if truth is not None and len(truth) == len(own):
            found[f"{reading}/held"] = np.mean((pooled.low < truth) & (truth < pooled.high))
        if name == "adult":
            some = list(synth.synthesize(posterior, num_rows, min(TABLES, 5), seed=SEED, naive=True))
            alike = synth.utility(some, table.schema.decode(columns), table.schema)
            margins, pairs = ([one for one in alike if (one.measure == "total variation") == own] for own in (1, 0))
            found[f"{reading}/margins"] = np.mean([one.difference for one in margins])
            found[f"{reading}/pairs"] = np.mean([abs(one.difference) for one in pairs])
            found[f"{reading}/associations"] = np.mean([abs(one.truth) for one in pairs])
    return found


def run(name, index):
    """MPAE of means and of s along the run, block by block, and at its end; and what tables say."""
    job = jobs_of(name)[index]
    model, part, _ = models(name)
    columns, _ = columns_of(name)
    rows = study.stored(TABLES_OF[name].schema, columns)
    mean = np.random.default_rng([9, job.seed]).uniform(-1, 1, model.dim)
    start = elbo.start_at(model, job.sd, mean)
    plan = clipped(plan_for(rows, job.epochs, job.epsilon), CLIP[job.variant])
    release = train(model, rows, job.variant, plan, job.seed, start)
    path = np.concatenate([release.blocks.mean, release.last[None]])
    each = zip(*(np.split(value, 2, -1) for value in (path, start)), np.split(target(name), 2), strict=True)
    errors = np.stack([mpae(p[:, -part.dim :], best, s[-part.dim :]) for p, s, best in each])
    return {"path": errors} | (downstream(name, release, model, columns) if job.downstream else {})


def collected(name):
    """{job: what it gave}."""
    jobs = jobs_of(name)
    facts = {"jobs": jobs_of_seed(name, 0), "table": TABLES_OF[name]._replace(schema=None), "tables": TABLES}
    facts |= {"seed": SEED, "version": 1}
    return dict(zip(jobs, run_parts(f"dpvim-sharing-{name}", partial(run, name), len(jobs), facts), strict=True))


class Runs:
    """All runs of a table, asked by what they are."""

    def __init__(self, name):
        self.name, self.found = name, collected(name)

    def path(self, variant, epsilon=1.0, sd=1.0, epochs=None):
        """(seeds, 2, blocks + 1)."""
        epochs = epochs or TABLES_OF[self.name].epochs
        return np.stack([self.found[Job(variant, epsilon, sd, epochs, seed)]["path"] for seed in SEEDS])

    def end(self, *args, **options):
        """(seeds, 2): MPAE of the means and of s."""
        return self.path(*args, **options)[..., -1]

    def tables(self, epsilon, reading, part):
        """(seeds,), or None if that was not asked of this table."""
        found = [self.found[job] for job in self.found if job.downstream and job.epsilon == epsilon]
        return np.array([f[key] for f in found]) if (key := f"{reading}/{part}") in found[0] else None


def mpae_record(figure, runs, variant, **chosen):
    end, vanilla = runs.end(variant, **chosen), runs.end("vanilla", **chosen)
    better = int((end[:, 1] < vanilla[:, 1]).sum())
    setting = {"epsilon": 1.0, "sd": 1.0, "epochs": TABLES_OF[runs.name].epochs} | chosen
    return {
        "figure": figure,
        "table": runs.name,
        "variant": variant,
        "ε": setting["epsilon"],
        "initial sd": setting["sd"],
        "epochs": setting["epochs"],
        "MPAE of means": float(end[:, 0].mean()),
        "MPAE of s": float(end[:, 1].mean()),
        "s nearer than vanilla's": None if variant == "vanilla" else f"{better} of {len(end)}",
        "verdict": better == len(end) if variant == "aligned" else None,
    }


def table_record(runs, epsilon, reading):
    error = runs.tables(epsilon, reading, "error")
    parts = {part: runs.tables(epsilon, reading, part) for part in ("held", "margins", "pairs", "associations")}
    return {
        "figure": "3",
        "table": runs.name,
        "variant": f"aligned, {reading}",
        "ε": epsilon,
        "initial sd": 1.0,
        "epochs": AVERAGED_EPOCHS if runs.name == "biobank" else TABLES_OF[runs.name].epochs,
        "RMSE of coefficients": float(error.mean()),
        "its sd over seeds": float(error.std(ddof=1)) if len(error) > 1 else None,
        "verdict": None,
    } | {_NAMES[part]: None if values is None else float(values.mean()) for part, values in parts.items()}


_NAMES = {
    "held": "truths in pooled 90 %",
    "margins": "margins' total variation",
    "pairs": "pairs' |difference|",
    "associations": "pairs' |association|",
}


def draw(every):
    """The paper's four figures, of the tables that were run."""
    biobank = every.get("biobank")
    if biobank and 1.0 in EPSILONS:
        with picture("dpvim-sharing-start", columns=2) as axes:
            for variant in VARIANTS:
                points = np.array([biobank.end(variant, sd=sd).mean(0) for sd in STARTS])
                axes[0].plot(*points.T, color=COLOURS[variant], label=variant, linewidth=0.7)
                axes[0].scatter(*points.T, s=[10 + 14 * place for place in range(len(STARTS))], color=COLOURS[variant])
            axes[0].set(
                xlabel="MPAE of means", ylabel="MPAE of s", title="larger dots: larger initial sds", yscale="log"
            )
            axes[0].legend(fontsize="small")
            lengths(axes[1], biobank)
    with picture("dpvim-sharing-path", columns=len(every), rows=2) as axes:
        for column, runs in zip(np.asarray(axes).T, every.values(), strict=True):
            for part, axis in enumerate(column):
                for variant in VARIANTS:
                    path = runs.path(variant, epsilon=EPSILONS[0])[:, part]
                    axis.plot(
                        np.linspace(0, TABLES_OF[runs.name].epochs, path.shape[1]),
                        path.mean(0),
                        color=COLOURS[variant],
                        label=variant,
                    )
                axis.set(
                    ylim=(0, 1.5 if part else None),
                    xlabel="epochs",
                    title=f"{runs.name}: MPAE of {('means', 's')[part]}",
                )
        axes[0][0].legend(fontsize="small")
    with picture("dpvim-sharing-tables", columns=len(every)) as axes:
        for axis, runs in zip(axes, every.values(), strict=True):
            for reading in (*READINGS, AWARE):
                values = [runs.tables(epsilon, reading, "error") for epsilon in EPSILONS]
                axis.errorbar(
                    EPSILONS, [v.mean() for v in values], [v.std() for v in values], marker="o", label=reading
                )
            axis.set(xscale="log", xlabel="ε", ylim=(0, None), title=f"{runs.name}: RMSE of coefficients")
            axis.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
            axis.minorticks_off()
        axes[0].legend(fontsize="x-small")


def lengths(axis, runs):
    for variant in VARIANTS:
        values = [runs.end(variant, epochs=epochs)[:, 1] for epochs in LENGTHS]
        error = [value.std() / np.sqrt(len(value)) for value in values]
        axis.errorbar(LENGTHS, [v.mean() for v in values], error, marker="o", color=COLOURS[variant], label=variant)
    axis.set(xscale="log", ylim=(0, None), xlabel="epochs, each at ε = 1", title="MPAE of s, initial sd 1")


def claims_of(every):
    """What the paper says of these figures."""
    found, biobank = [], every.get("biobank")
    if biobank and 1.0 in EPSILONS:
        both = {v: np.mean([biobank.end(v, sd=sd).mean(0).sum() for sd in STARTS]) for v in VARIANTS}
        order = sorted(VARIANTS, key=both.get)
        said = "means + s, mean over starts: " + ", ".join(f"{v} {both[v]:.3f}" for v in order)
        found.append(claim("aligned has small errors in means and s at once (1a)", "best", said, order[0] == "aligned"))
        longest = {v: biobank.end(v, epochs=LENGTHS[-1]).mean(0) for v in ("vanilla", "aligned")}
        found.append(
            claim(
                "however long the run, vanilla's scales are worse; the means' gap closes (2)",
                "aligned ahead at 8000 epochs",
                f"{LENGTHS[-1]} epochs: "
                + "; ".join(f"{v} s {error[1]:.3f}, means {error[0]:.3f}" for v, error in longest.items()),
                all(
                    biobank.end("aligned", epochs=n)[:, 1].mean() < biobank.end("vanilla", epochs=n)[:, 1].mean()
                    for n in LENGTHS
                ),
            )
        )
    for name, runs in every.items():
        last, averaged = (runs.tables(EPSILONS[0], reading, "error") for reading in (READINGS[0], READINGS[-1]))
        found.append(
            claim(
                f"{name}: averages over flat windows err less than last iterates, and vary less (3)",
                "less, but for an initial sd of .1",
                f"RMSE at ε = {EPSILONS[0]:g}: last {last.mean():.3f} ± {last.std():.3f}, "
                f"averaged {averaged.mean():.3f} ± {averaged.std():.3f}",
                bool(averaged.mean() < last.mean() and averaged.std() <= last.std()),
            )
        )
    if "census" in every:
        quarter = {v: every["census"].path(v, epsilon=EPSILONS[0])[:, 1, 25].mean() for v in VARIANTS}
        said = "MPAE of s after a quarter of the run: " + ", ".join(f"{v} {quarter[v]:.3f}" for v in VARIANTS)
        found.append(
            claim(
                "census: aligned learns s faster than the others (4)",
                "fastest",
                said,
                min(quarter, key=quarter.get) == "aligned",
            )
        )
    return found


def main():
    began = time.time()
    every = {name: Runs(name) for name in MODELS}
    records = [
        mpae_record("1a, H.1", every["biobank"], v, sd=sd)
        for sd in STARTS[:-1]
        for v in VARIANTS
        if "biobank" in every and 1.0 in EPSILONS
    ]
    records += [
        mpae_record("2", every["biobank"], v, epochs=n)
        for n in LENGTHS
        for v in VARIANTS
        if n != EPOCHS and "biobank" in every and 1.0 in EPSILONS
    ]
    records += [mpae_record("1, 4", runs, v, epsilon=e) for runs in every.values() for e in EPSILONS for v in VARIANTS]
    records += [table_record(runs, e, r) for runs in every.values() for e in EPSILONS for r in (*READINGS, AWARE)]
    draw(every)
    names = list(dict.fromkeys(name for record in records for name in record if name != "verdict"))
    finish(
        "dpvim-sharing",
        records,
        {"table": SEED, "runs": f"0 to {len(SEEDS) - 1}"},
        columns=[*names, "verdict"],
        claims=claims_of(every),
        target=FULL,
        notes=[
            ", ".join(f"{n}: {TABLES_OF[n].num_rows} rows, {models(n)[0].dim} parameters" for n in every)
            + f"; κ = .01, Adam 10⁻³, δ = 1/N, m₀ uniform on ±1, {TABLES} tables; {time.time() - began:.0f} s with "
            "what was kept of earlier runs.",
            "Not comparable number by number with the paper: its biobank is not public, and both large ones are made.",
        ],
    )


if __name__ == "__main__":
    main()
