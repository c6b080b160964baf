"""The command line: thin words around the library."""

import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from discreet.atomic import cache_folder

if TYPE_CHECKING:
    import numpy
    import pandas

    from discreet.fitting import Rows
    from discreet.ledger import Account
    from discreet.model import Model
    from discreet.planner.outlook import Chooser, Curves
    from discreet.posterior.types import Posterior
    from discreet.schema import Schema

# Tracebacks stay plain: Typer's own can print local variables, and those may be rows.
app = typer.Typer(
    help="Bayesian inference that keeps secrets and admits its noise.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
_out, _err = Console(), Console(stderr=True)
INTERRUPTED, ASKED = 130, "asked.json"
_JSON = Annotated[bool, typer.Option("--json", help="print JSON")]
_METHOD = Annotated[str | None, typer.Option(help="one-step, dpvi, sep or score; the planner chooses if not given")]
_SAMPLE = Annotated[
    Path | None, typer.Option(help="a PUBLIC table whose covariates follow the same law; makes fits sharper")
]
_COVARIATES = Annotated[str | None, typer.Option(help="comma-separated; all other columns if not given")]
_COMPONENTS = Annotated[
    int | None,
    typer.Option(help="model whole rows, a mixture of so many components, so that synthetic tables can be drawn"),
]
_FAMILY = Annotated[str, typer.Option(help="gaussian, logistic, probit or poisson")]
_OUTCOME = Annotated[str, typer.Option(help="the column to explain")]
_SCHEMA = Annotated[Path, typer.Option(help="the schema, a TOML file")]
_TABLE = Annotated[Path, typer.Argument(help="a CSV or Parquet file, or a folder that discreet encode wrote")]
_EPSILON = Annotated[float, typer.Option(help="privacy budget ε")]
_DELTA = Annotated[float, typer.Option(help="privacy budget δ, well below one over the number of rows")]
_ROWS = Annotated[int, typer.Option(help="number of rows of the table that will be asked")]
_OUT = Annotated[Path, typer.Option(help="folder for the results; must not exist")]
_LEDGER_OPTION = Annotated[Path | None, typer.Option(help="the ledger that keeps the data set's budget")]
_DATASET = Annotated[str | None, typer.Option(help="the data set's name in the ledger")]
# What a fit was asked, as its checkpoint keeps it.
_ASKED: dict[str, Any] = dict.fromkeys(("table", "schema", "out", "outcome", "family", "reading"), str)
_ASKED |= dict.fromkeys(("ledger", "covariates", "sample", "method", "solver", "dataset"), str | None)
_ASKED |= {"epsilon": float | int, "delta": float | int, "simulate": int | None, "components": int | None}
_SIMULATE = Annotated[int | None, typer.Option(help="a seed: a rehearsal with known noise, NOT private")]


def main() -> NoReturn:
    """Run the installed command."""
    try:
        run()
    except SystemExit as done:
        if done.code == INTERRUPTED:  # XLA may still be at work, and would crash an orderly exit
            sys.stdout.flush()
            os._exit(INTERRUPTED)
        raise


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit; a refusal is one line on standard error and code 2."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # an ε that a terminal cannot show must not end a run
            stream.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_folder() / "compiled"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("NPROC", "1")  # XLA's threads: a step is so short that waking a second one costs more
    try:
        code = app(arguments, standalone_mode=False) or 0
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except (ValueError, OSError) as error:
        _fail(_in_words(error))
    except Exception as error:
        usage = getattr(error, "format_message", None)
        if usage is None:
            raise
        _fail(f"{usage()} Try --help.")
    if code == INTERRUPTED:
        _fail("interrupted: no results were written; if rows had been asked, that is spent: see discreet resume", code)
    sys.exit(code)


@app.command()
def schema(
    table: _TABLE,
    unit: Annotated[str | None, typer.Option(help="the column that says whose row it is, if not one each")] = None,
    out: Annotated[Path | None, typer.Option(help="where to write it; standard output if not given")] = None,
):
    """Draft a schema of TABLE. Every bound in it is guessed from the data and must be confirmed by you."""
    from discreet.schema import draft

    if out is None:
        typer.echo(draft(table, unit=unit).to_toml().encode(), nl=False)
        return
    _refuse_unwritable(out)
    draft(table, unit=unit).save(out)
    advice = "replace each guess by what is known without the data, then delete its `confirmed = false`"
    _say(_err, f"wrote {out}: {advice}")


@app.command()
def account(
    epsilon: Annotated[float, typer.Option(help="the ε to meet")],
    delta: Annotated[float, typer.Option(help="the δ to meet")],
    sampling: Annotated[float, typer.Option(help="probability that a row takes part in a step")],
    steps: Annotated[int, typer.Option(help="number of steps")],
    rows: Annotated[int | None, typer.Option(help="number of rows; charges the batch limit of a run")] = None,
    as_json: _JSON = False,
):
    """Print the noise multiplier σ that meets a budget, and the attack risk that is left."""
    from discreet.accounting import calibrate, guarantee
    from discreet.plan import Plan, default_batch_limit

    plan = Plan(1 if rows is None else rows, steps, sampling, 1.0, 0.0)
    if rows is not None:
        plan = replace(plan, batch_limit=default_batch_limit(rows, sampling))
    plan = calibrate(plan, epsilon, delta)
    found = guarantee(plan, delta)
    _warn_of_delta(delta, rows or 1)
    if as_json:
        typer.echo(json.dumps({"noise_multiplier": plan.noise_multiplier, **found.to_dict()}))
    else:
        _say(_out, f"σ = {plan.noise_multiplier:.6g} (noise multiplier)")
        _say(_out, str(found))


@app.command()
def encode(
    table: _TABLE,
    schema: _SCHEMA,
    out: Annotated[Path, typer.Option(help="folder for the encoded rows; must not exist")],
):
    """Encode a table that does not fit into memory, once: `discreet fit OUT …` reads batches from OUT as it needs them.

    OUT holds the rows: only its owner can read it, and it is as secret as TABLE.
    """
    from discreet.fitting import encode as to_rows
    from discreet.schema import Schema

    with _err.status("encoding"):
        rows = to_rows(table, Schema.load(schema), out)
    _say(_err, f"{rows.num_rows} rows in {out}")


@app.command()
def fit(
    table: _TABLE,
    schema: _SCHEMA,
    outcome: _OUTCOME,
    family: _FAMILY,
    epsilon: _EPSILON,
    delta: _DELTA,
    out: _OUT,
    covariates: _COVARIATES = None,
    components: _COMPONENTS = None,
    sample: _SAMPLE = None,
    method: _METHOD = None,
    reading: Annotated[str, typer.Option(help="noise-aware, iterate average or last iterate")] = "noise-aware",
    solver: Annotated[str | None, typer.Option(help="full, exact, nuts or laplace; chosen if not given")] = None,
    ledger: _LEDGER_OPTION = None,
    dataset: _DATASET = None,
    simulate: _SIMULATE = None,
    as_json: _JSON = False,
):
    """Fit a regression with differential privacy and write the posterior, the release and a report to OUT.

    A logistic or probit regression models the second level of OUTCOME. With --components the covariates are modelled,
    too, and `discreet synth` can draw whole tables. A run that is cut short goes on with `discreet resume
    OUT.checkpoint`.
    """
    _refuse_unwritable(out)
    folder = _checkpoint_of(out)
    if os.path.lexists(folder):
        raise ValueError(
            f"{folder} is of a run that was cut short: go on with discreet resume, or choose another --out"
        )
    paths = {"table": table, "schema": schema, "out": out, "ledger": ledger, "sample": sample}
    values = {"outcome": outcome, "family": family, "epsilon": epsilon, "delta": delta, "covariates": covariates}
    values["components"] = components
    choices = {"method": method, "reading": reading, "solver": solver, "dataset": dataset, "simulate": simulate}
    asked = {name: None if path is None else os.path.abspath(path) for name, path in paths.items()} | values | choices
    _fit(asked, out, as_json)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="the checkpoint that a run has left: OUT.checkpoint")],
    as_json: _JSON = False,
):
    """Go on with a fit that was cut short: the same noise, the same charge, the same results as if nothing had been.

    If only its end is missing, because OUT was saved already, its entry is committed and the checkpoint removed.
    """
    try:
        asked = json.loads((folder / ASKED).read_text())
    except (OSError, ValueError, RecursionError):
        asked = None
    began_before = {"sample": None, "components": None}  # a run may be older than these
    asked = {**began_before, **asked} if isinstance(asked, dict) else {}
    if not all(name in asked and isinstance(asked[name], kind) for name, kind in _ASKED.items()):
        raise ValueError(f"{folder} is not the checkpoint of a fit: give the folder OUT.checkpoint")
    out = Path(asked["out"])
    if os.path.abspath(folder) != os.path.abspath(_checkpoint_of(out)):
        raise ValueError(f"{folder} was moved: a run goes on where it began, as {_checkpoint_of(out)}")
    if os.path.lexists(out) and _finish(asked, out, as_json):
        return
    _refuse_unwritable(out)
    _fit(asked, out, as_json)


def _finish(asked: Mapping[str, Any], out: Path, as_json: bool) -> bool:
    """End a run whose results were saved before it was cut short; whether they were, and are this run's own."""
    from discreet.fitting import Checkpoint
    from discreet.report.folder import load_run

    checkpoint = Checkpoint(_checkpoint_of(out), _account(asked))
    try:
        posterior = load_run(out)
    except (OSError, ValueError):
        return False
    if posterior.release is None or not checkpoint.has_told(posterior.release):
        return False
    checkpoint.finish()
    _say(_err, f"{out} was saved before the run was cut short: only its end was missing, and nothing was asked again")
    _show_fit(posterior, out, as_json)
    return True


def _fit(asked: Mapping[str, Any], out: Path, as_json: bool) -> None:
    """The fit that was asked for, from its checkpoint if there is one; it is saved before it is committed."""
    from discreet.fitting import Checkpoint, simulated
    from discreet.fitting import fit as run_fit
    from discreet.posterior.reading import Options

    account, model, rows = _given(asked)
    budget = {name: asked[name] for name in ("epsilon", "delta", "method", "reading")}
    budget["sample"] = None if asked["sample"] is None else Path(asked["sample"])
    options = Options(solver=asked["solver"])
    noise = None if asked["simulate"] is None else simulated(asked["simulate"])
    title = _title(asked)
    with Checkpoint(_checkpoint_of(out), account, title, {ASKED: json.dumps(asked, indent=1)}) as checkpoint:
        posterior = run_fit(
            model, rows, **budget, options=options, noise=noise, checkpoint=checkpoint, progress=_progress("asking")
        )
        _save(out, posterior, title, as_json, f", or make room and go on with discreet resume {checkpoint.folder}")
    _show_fit(posterior, out, as_json)


@app.command()
def tune(
    table: _TABLE,
    schema: _SCHEMA,
    outcome: _OUTCOME,
    family: _FAMILY,
    epsilon: _EPSILON,
    delta: _DELTA,
    out: _OUT,
    covariates: _COVARIATES = None,
    sample: _SAMPLE = None,
    method: _METHOD = None,
    clip: Annotated[str, typer.Option(help="candidates: clip norms, as multiples of the planned one")] = "0.5,1,2",
    trials: Annotated[float, typer.Option(help="how many to try, on average; how many it were is never told")] = 10,
    law: Annotated[str, typer.Option(help="of the number of trials: logarithmic or geometric")] = "logarithmic",
    ledger: _LEDGER_OPTION = None,
    dataset: _DATASET = None,
    simulate: _SIMULATE = None,
    as_json: _JSON = False,
):
    """Search for the best clip norm on the private rows; the whole search costs (ε, δ), stated before it runs.

    Planning on simulated rows is free, and is what `discreet fit` does. Search only where that is not enough: each
    trial gets a part of the budget. How long the search takes tells how many trials there were: keep that to yourself.
    """
    from discreet.fitting import Checkpoint
    from discreet.tune import prepare
    from discreet.tune import tune as run_search

    _refuse_unwritable(out)
    asked = {"table": table, "schema": schema, "ledger": ledger, "outcome": outcome, "family": family}
    asked |= {"delta": delta, "covariates": covariates, "components": None, "dataset": dataset}
    factors = _numbers("clip", clip)
    account, model, rows = _given(asked)
    method = method or ("dpvi" if sample is None else "score")  # one step has nothing to search for
    choice = _chooser(model, rows.schema, _public(model, rows.schema, sample), method, delta)(rows.num_rows, epsilon)
    candidates = {
        f"clip norm × {factor:g}": choice._replace(plan=replace(choice.plan, clip_norm=factor * choice.plan.clip_norm))
        for factor in factors
    }
    ready = prepare(model, candidates, epsilon=epsilon, delta=delta, trials=trials, law=law)
    _say(_err, f"before it runs: {ready}")
    title = _title(asked)
    kept = Checkpoint(None, account, f"{title}: search over {', '.join(candidates)}")
    try:
        with kept:
            with _err.status("searching"):
                posterior = run_search(ready, rows, seed=simulate, checkpoint=kept)
            _save(out, posterior, title, as_json)
    except KeyboardInterrupt:
        written = f"{out} was written" if out.exists() else "no results were written"
        _fail(f"interrupted: {written}; a search cannot be resumed: {_spent(account, kept.run)}", INTERRUPTED)
    _say(_err, f"chosen: {posterior.info['search']['chosen']}")
    _show_fit(posterior, out, as_json)


def _spent(account: "Account | None", run: str) -> str:
    """What an interrupted search has cost."""
    if account is None:
        return "if rows had been asked, that is spent"
    return "it stays charged" if any(entry.run == run for entry in account.entries()) else "it was not charged"


def _given(asked: Mapping[str, Any]) -> "tuple[Account | None, Model, Rows]":
    """The account, the model and the rows that a command asks for."""
    from discreet.fitting import encode

    account = _account(asked)
    named = [asked[name] for name in ("schema", "outcome", "family", "covariates", "components")]
    model, declared = _declared(*named)
    rows = encode(Path(asked["table"]), declared)
    _warn_of_delta(asked["delta"], rows.num_rows)
    return account, model, rows


def _declared(
    schema: str | Path, outcome: str, family: str, covariates: str | None, components: int | None = None
) -> "tuple[Model, Schema]":
    """The model of a regression, or of whole rows with one, and the schema of its columns."""
    from discreet.families.glm import glm
    from discreet.families.mixture import mixture
    from discreet.schema import Schema

    declared = Schema.load(schema)
    names = _covariates(covariates, outcome, declared)
    if components is None:
        model = glm(family, outcome, names, declared)
    else:
        model = mixture(declared.select([*names, outcome]), components, outcome, family)
    return model, declared.select(model.columns)


def _public(model: "Model", declared: "Schema", sample: Path | None) -> "Mapping[str, numpy.ndarray] | None":
    """The encoded covariates of the public table, if there is one."""
    from discreet.planner import public_sample

    return None if sample is None else public_sample(model, declared, sample)


def _chooser(
    model: "Model", declared: "Schema", public: "Mapping[str, numpy.ndarray] | None", method: str | None, delta: float
) -> "Chooser":
    """(num_rows, ε) → what the planner would choose."""
    from discreet.planner import of_method

    choose = of_method(method, public)
    return lambda rows, epsilon: choose(model, declared, rows, epsilon, delta)


def _account(asked: Mapping[str, Any]) -> "Account | None":
    from discreet.ledger import Account

    if (asked["ledger"] is None) != (asked["dataset"] is None):
        raise ValueError("--ledger and --dataset go together: which ledger, and under which name the data set is there")
    return None if asked["ledger"] is None else Account(Path(asked["ledger"]), asked["dataset"])


def _title(asked: Mapping[str, Any]) -> str:
    title, components = f"{asked['family'].capitalize()} regression of {asked['outcome']}", asked.get("components")
    return title if components is None else f"{title}, and a mixture of {components} for the rest"


def _save(out: Path, posterior: "Posterior", title: str, as_json: bool, remedy: str = "") -> None:
    """The folder of a run; where it cannot be written, what was paid for is at least shown."""
    from discreet.report.folder import save_run
    from discreet.report.page import page

    try:
        save_run(out, posterior, page(title, posterior))
    except (OSError, ValueError) as error:
        _show_fit(posterior, None, as_json)
        _fail(f"{_in_words(error)}; the budget is spent: keep the numbers printed above{remedy}", 1)


def _numbers(name: str, text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{name}={text!r} must be numbers, separated by commas") from None
    if not all(0 < number < float("inf") for number in found) or len(set(found)) < len(found):
        raise ValueError(f"{name}={text!r} must be distinct positive numbers")
    return found


def _checkpoint_of(out: Path) -> Path:
    return out.with_name(out.name + ".checkpoint")


@app.command()
def plan(
    schema: _SCHEMA,
    outcome: _OUTCOME,
    family: _FAMILY,
    epsilon: _EPSILON,
    delta: _DELTA,
    rows: _ROWS,
    covariates: _COVARIATES = None,
    components: _COMPONENTS = None,
    sample: _SAMPLE = None,
    method: _METHOD = None,
    rehearsals: Annotated[int, typer.Option(help="made-up tables to fit; 0 for none")] = 20,
    curve: Annotated[str | None, typer.Option(help="further ε, such as .1,.3,1,3: widths against ε and rows")] = None,
    out: Annotated[Path | None, typer.Option(help="where to draw the curve, an SVG file; must not exist")] = None,
    as_json: _JSON = False,
):
    """Say what a fit would do, and why, before anything is spent: its plan, the widths to expect, coverage, run time.

    No table is read. Widths are those of the private posterior over the non-private one's. Coverage, run time and the
    widths beside the predicted ones are of made-up tables, whose rows follow the model.
    """
    from discreet.planner import outlook
    from discreet.posterior.reading import parameter_names
    from discreet.rehearsal import rehearse
    from discreet.report.curve import draw_curve

    if out is not None:
        _refuse_unwritable(out)
        if curve is None:
            raise ValueError("--out is for the picture of a curve: give --curve .1,.3,1,3, too")
    if rehearsals < 0:
        raise ValueError(f"rehearsals={rehearsals} must not be negative")
    model, declared = _declared(schema, outcome, family, covariates, components)
    public, names = _public(model, declared, sample), parameter_names(model)
    choose = _chooser(model, declared, public, method, delta)
    _warn_of_delta(delta, rows)
    with _err.status("planning"):
        choice = choose(rows, epsilon)
        said = outlook.warnings(choose, choice, epsilon, names)
        curves = None if curve is None else outlook.curves(choose, rows, epsilon, _numbers("curve", curve))
    tried = None
    if rehearsals:
        track = _progress(f"rehearsing {rehearsals} fits")
        tried = rehearse(model, declared, choice, rehearsals, delta=delta, sample=public, progress=track)
    if out is not None and curves is not None:
        draw_curve(out, curves, rows, epsilon)
    if as_json:
        before = [phase.to_dict() for phase in choice.before]
        facts: dict[str, Any] = {"plan": choice.plan.to_dict(), "before": before, **choice.facts(), "warnings": said}
        facts |= {"family": choice.family, "parameters": names, "rehearsed": None if tried is None else tried.to_dict()}
        typer.echo(json.dumps(facts | {"curves": None if curves is None else curves.to_dict()}))
        return
    for reason in choice.reasons:
        _say(_out, f"· {reason}")
    table = Table("parameter", "width ÷ non-private, predicted", *(["rehearsed"] if tried else []))
    for place, name in enumerate(names):
        numbers = [choice.predicted[place]] if choice.predicted is not None else [float("nan")]
        numbers += [tried.widths[place]] if tried else []
        table.add_row(Text(name), *(f"{number:.2f}" for number in numbers))
    _out.print(table)
    if curves is not None:
        _out.print(_of_curves(curves))
    if tried is not None:
        share = f"{tried.coverage:.0%}" + ("" if tried.error is None else f" ± {tried.error:.0%}")
        fits = "a rehearsal" if rehearsals == 1 else f"{rehearsals} rehearsals"
        _say(_out, f"90 % intervals held {share} of the truths of {fits}; a fit took {tried.seconds:.1f} s")
    for text in said:
        _say(_err, f"warning: {text}", "bold yellow")
    if out is not None:
        _say(_err, f"wrote {out}")


def _of_curves(curves: "Curves") -> Table:
    table = Table("mean width ÷ non-private", *(f"ε = {epsilon:g}" for epsilon in curves.epsilons))
    for rows, widths in zip(curves.rows, curves.widths, strict=True):
        table.add_row(f"{rows} rows", *(f"{width:.2f}" for width in widths))
    return table


@app.command()
def audit(
    schema: _SCHEMA,
    outcome: _OUTCOME,
    family: _FAMILY,
    epsilon: _EPSILON,
    delta: _DELTA,
    rows: _ROWS,
    covariates: _COVARIATES = None,
    components: _COMPONENTS = None,
    sample: _SAMPLE = None,
    method: _METHOD = None,
    slow: Annotated[
        bool, typer.Option("--slow", help="also one run of the (last) question with canaries among the rows")
    ] = False,
    as_json: _JSON = False,
):
    """Test the claim of a fit on made-up rows: what a row can move, the noise, the sampling, and the least ε there is.

    Exits with 1 if anything contradicts the claim. No table is read.
    """
    from discreet.audit import audit_phases, one_run
    from discreet.rehearsal import rehearsed_phases

    model, declared = _declared(schema, outcome, family, covariates, components)
    choice = _chooser(model, declared, _public(model, declared, sample), method, delta)(rows, epsilon)
    asked = rehearsed_phases(model, declared, choice)
    found = audit_phases(asked, declared, delta, model=model)
    canaries = None
    if slow:
        last = asked[-1]
        canaries = one_run(last.query, last.plan, declared, delta, progress=_progress("one run with canaries"))
    if as_json:
        checks = [{**check._asdict(), "holds": check.holds} for check in found.checks]
        facts = {"claimed": found.claimed, "lower": found.lower, "holds": found.holds, "checks": checks}
        typer.echo(json.dumps(facts | ({} if canaries is None else {"canaries": canaries._asdict()})))
    else:
        table = Table("what was measured", "value", "at most", "")
        for check in found.checks:
            verdict = Text("holds") if check.holds else Text("FAILS", "bold red")
            table.add_row(Text(check.name), f"{check.measured:.4g}", f"{check.at_most:.4g}", verdict)
        _out.print(table)
        _say(_out, f"claimed ε = {found.claimed:.4g}; measured, it is at least {found.lower:.4g} (δ = {found.delta:g})")
        if canaries is not None:
            told = f"{canaries.right} of {canaries.guesses} guesses about {canaries.canaries} canaries were right"
            bound = f"ε is at least {canaries.lower:.4g}; claimed {canaries.claimed:.4g} (δ = {canaries.delta:g})"
            _say(_out, f"one whole run: {told}: {bound}")
    if not found.holds or (canaries is not None and not canaries.holds):
        _fail("the measurements contradict the claim: do not publish what this mechanism releases", 1)


@app.command()
def synth(
    folder: Annotated[Path, typer.Argument(help="the folder that a fit has written")],
    n: Annotated[int, typer.Option("-n", help="rows of each table; those of the fit or more")],
    m: Annotated[int, typer.Option("-m", help="how many tables; 50 or more, if they are to be pooled")],
    out: Annotated[Path, typer.Option(help="folder for the tables; must not exist")],
    kind: Annotated[str, typer.Option("--format", help="csv or parquet")] = "csv",
    covariates: Annotated[
        Path | None, typer.Option(help="for a regression: a PUBLIC table of its covariates, CSV or Parquet")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="to make the same tables again; any is safe, none is needed")] = None,
    as_json: _JSON = False,
):
    """Draw synthetic tables from the posterior in FOLDER: to share and analyse, at no further privacy cost.

    Analyse each table as if it were real, and put the results together with `discreet pool`.
    """
    from discreet.report.folder import load_run
    from discreet.synth import LABEL, advice, read_label, save

    _refuse_unwritable(out)
    asked = {"covariates": covariates, "seed": seed, "progress": _progress("drawing")}
    save(out, load_run(folder), n, m, kind=kind, **asked)
    label = read_label(out)
    for text in (*label["warnings"], *advice(label)):
        _say(_err, f"warning: {text}", "bold yellow")
    if as_json:
        typer.echo(json.dumps({**label, "out": str(out)}))
        return
    _say(_out, label["says"], None if label["private"] else "bold red")
    _say(_out, f"wrote {out}/: {m} tables of {n} rows, {LABEL}")


@app.command()
def pool(
    results: Annotated[list[Path], typer.Argument(help="CSV files: table, term, estimate, variance (or std_error)")],
    tables: Annotated[Path | None, typer.Option(help="the folder of discreet synth that they are of")] = None,
    prob: Annotated[float, typer.Option(help="probability of the intervals")] = 0.9,
    n: Annotated[int | None, typer.Option("-n", help="rows of each synthetic table, if no --tables are given")] = None,
    rows: Annotated[int | None, typer.Option(help="rows of the private table, likewise")] = None,
    as_json: _JSON = False,
):
    """Put together what was estimated on each of several synthetic tables: one estimate and interval for each term.

    Valid only for tables that were drawn from a noise-aware posterior; --tables checks it.
    """
    from discreet.synth import read_results, records, rubin, told

    if tables is not None:
        if (n, rows) != (None, None):
            raise ValueError("--tables says how many rows there are: leave -n and --rows out")
        n, rows = told(tables)
    estimates, variances = read_results(results)
    found = records(rubin(estimates, variances, n=n, num_rows=rows, prob=prob))
    m = len(next(iter(estimates.values())))
    made_up = [record["term"] for record in found if record["adjusted"]]
    if made_up:
        makeshift = "their intervals are a makeshift that does not see privacy's noise; make larger tables, or more"
        _say(_err, f"warning: {', '.join(made_up)}: the pooled variance was not positive: {makeshift}", "bold yellow")
    if as_json:
        typer.echo(json.dumps({"m": m, "prob": prob, "terms": found}))
        return
    table = Table("term", "estimate", "std error", f"{prob:.0%} interval", "df")
    for record in found:
        low, high = ("∞" if record[end] is None else f"{record[end]:.4g}" for end in ("low", "high"))
        numbers = (f"{record['estimate']:.4g}", f"{record['std_error']:.4g}", f"[{low}, {high}]", f"{record['df']:.3g}")
        table.add_row(Text(record["term"]), *map(Text, numbers))
    _out.print(table)
    _say(_out, f"pooled over {m} synthetic tables")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="folder for the results; an earlier run is replaced")] = Path("out/demo"),
):
    """Fit a sensitive survey at ε = 1: private and noise-aware, private and naive, and non-private, side by side."""
    from discreet.atomic import refuse_loss
    from discreet.demo import run_demo
    from discreet.report.folder import NAMES
    from discreet.report.words import meaning

    refuse_loss(out, NAMES)
    _rehearse(out)
    result = run_demo(out, _progress("asking 6366 people, privately"))
    _show(result.summaries)
    for line in (meaning(result.posterior), result.line, str(result.posterior.guarantee), _wrote(out)):
        _say(_out, line)


ledgers = typer.Typer(help="Budgets of data sets: what each may spend, and what it has.", no_args_is_help=True)
app.add_typer(ledgers, name="ledger")
_LEDGER = Annotated[Path, typer.Argument(help="the ledger, an SQLite file")]


@ledgers.command("init")
def ledger_init(
    path: _LEDGER,
    dataset: Annotated[str, typer.Argument(help="a name for the data set")],
    epsilon: Annotated[float, typer.Option(help="all that may ever be spent: ε")],
    delta: Annotated[float, typer.Option(help="and δ")],
    rows: Annotated[int | None, typer.Option(help="its number of rows; plans for others are refused")] = None,
    relation: Annotated[str, typer.Option(help="zero-out or replace-one")] = "zero-out",
    adaptive: Annotated[bool, typer.Option(help="what was learned may decide how much is spent next")] = False,
    unit: Annotated[str, typer.Option(help="whom it protects: row, or the unit of the schema")] = "row",
):
    """Open an account for a data set, in a new ledger or in one that is there."""
    from discreet.ledger import Budget, open_account

    account = open_account(path, dataset, Budget(epsilon, delta, relation, rows, adaptive, unit))
    _say(_out, f"{account.name}: ε = {epsilon:g}, δ = {delta:g} for each {unit}, {relation}; nothing spent")
    adapts = "adaptive: results may decide how much is spent next, no search is charged, and fits cost a little more"
    fixed = "not adaptive: decide how much each fit spends before its results, or those of others, are seen"
    _say(_out, adapts if adaptive else fixed)


@ledgers.command("show")
def ledger_show(path: _LEDGER, as_json: _JSON = False):
    """Print what each data set may spend and has spent."""
    from discreet.ledger import accounts

    found = [(account, account.spent(), account.entries()) for account in accounts(path)]
    if as_json:
        facts = [{"name": a.name, **a.budget._asdict(), "spent": spent, "fits": len(e)} for a, spent, e in found]
        typer.echo(json.dumps(facts))
        return
    table = Table("data set", "spent ε", "of", "δ", "relation", "for each", "fits", "not committed")
    for account, spent, entries in found:
        budget, unfinished = account.budget, sum(entry.state == "intent" for entry in entries)
        numbers = (f"{spent:.4g}", f"{budget.epsilon:g}", f"{budget.delta:g}")
        whom = (budget.relation, Text(budget.unit))
        table.add_row(Text(account.name), *numbers, *whom, str(len(entries)), str(unfinished))
    _out.print(table)


@ledgers.command("history")
def ledger_history(path: _LEDGER, dataset: Annotated[str, typer.Argument(help="the data set's name")]):
    """Print every charge of a data set, oldest first, and what they cost together."""
    from discreet.accounting import guarantee
    from discreet.ledger import Account
    from discreet.plan import Search

    account = Account(path, dataset)
    table = Table("charged", "purpose", "state", "ε alone")
    for entry in account.entries():
        alone = guarantee(entry.plan, account.budget.delta).epsilon
        table.add_row(entry.charged, Text(entry.purpose), entry.state, f"{alone:.4g}")
    _out.print(table)
    searched = any(isinstance(entry.plan, Search) for entry in account.entries())
    how = "searches and all fits each with their share of δ, added up" if searched else "composed, not added up"
    _say(_out, f"together ε = {account.spent():.4g} of {account.budget.epsilon:g}: {how}")


@ledgers.command("export")
def ledger_export(
    path: _LEDGER,
    out: Annotated[Path | None, typer.Option(help="where to write it; standard output if not given")] = None,
):
    """Write the whole ledger as JSON."""
    from discreet.atomic import new_file
    from discreet.ledger import export

    text = json.dumps(export(path), indent=1)
    if out is None:
        typer.echo(text)
        return
    _refuse_unwritable(out)
    with new_file(out) as scratch:
        scratch.write_text(text + "\n")
    _say(_err, f"wrote {out}")


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="print the version")] = False,
):
    if version:
        from importlib.metadata import version as installed

        typer.echo(installed("discreet"))
        raise typer.Exit()
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _covariates(text: str | None, outcome: str, declared: "Schema") -> list[str]:
    """The names in `text`, which is one line of CSV; every column but the outcome if there is no text."""
    if text is None:
        return [name for name in declared.names if name != outcome]
    try:
        names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
    except csv.Error as error:
        raise ValueError(f"covariates={text!r} is not a line of CSV ({error}): separate names by commas") from None
    if not any(names):
        raise ValueError(f"covariates={text!r} names no column: leave --covariates out to use all others")
    known = {name.strip(): name for name in declared.names}
    return [name if name in declared else known.get(name, name) for name in names]


def _refuse_unwritable(out: Path) -> None:
    if os.path.lexists(out):
        raise ValueError(f"out={out} exists: choose another, so that nothing is overwritten")
    _rehearse(out)


def _rehearse(out: Path) -> None:
    from discreet.atomic import rehearse

    try:
        rehearse(out)
    except OSError as error:
        raise ValueError(f"out={out} cannot be written ({error.strerror}): choose another place") from None


def _warn_of_delta(delta: float, num_rows: int) -> None:
    if delta * num_rows >= 1:
        advice = f"choose one well below it, such as {0.01 / num_rows:.1g}"
        _say(_err, f"warning: delta={delta:g} is at least 1/{num_rows} and so protects nobody: {advice}", "bold yellow")


def _progress(label: str) -> Callable[[range], Iterable[int]]:
    from rich.progress import track

    return lambda blocks: track(blocks, description=label, console=_err, disable=not _err.is_terminal)


def _show_fit(posterior: "Posterior", out: Path | None, as_json: bool) -> None:
    from discreet.report.words import description, meaning

    summary, promise = posterior.summary(), posterior.guarantee
    for text in posterior.info["warnings"]:
        _say(_err, f"warning: {text}", "bold yellow")
    if as_json:
        facts = {
            "private": promise.private,
            "guarantee": promise.to_dict(),
            "model": description(posterior),
            "summary": summary.to_dict(orient="index"),
            "warnings": posterior.info["warnings"],
            "out": None if out is None else str(out),
        }
        typer.echo(json.dumps(facts))
        return
    _show({posterior.info["method"]: summary})
    _say(_out, meaning(posterior))
    _say(_out, str(promise), None if promise.private else "bold red")
    if out is not None:
        _say(_out, _wrote(out))


def _show(summaries: "Mapping[str, pandas.DataFrame]") -> None:
    from discreet.report.words import rounded

    table = Table()
    table.add_column("parameter")
    tables = list(summaries.values())
    for name, summary in summaries.items():
        table.add_column(Text(f"{name}\nmean [{', '.join(summary.columns[2:4])}]"), justify="right")
    for place, label in enumerate(tables[0].index):
        readings = [summary.iloc[place].to_numpy(float) for summary in tables]
        finest = min(sd for _, sd, _, _ in readings)
        cells = [rounded((mean, low, high), finest) for mean, _, low, high in readings]
        table.add_row(Text(str(label)), *(Text(f"{mean} [{low}, {high}]") for mean, low, high in cells))
    console = _out if _out.is_terminal else Console(width=1000)
    console.print(table)


def _wrote(out: Path) -> str:
    from discreet.report.folder import NAMES

    return f"wrote {out}/: {', '.join(NAMES)}"


def _say(console: Console, text: str, style: str | None = None) -> None:
    if text:
        console.print(text, style=style, highlight=False, markup=False, emoji=False, soft_wrap=True)


def _in_words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'a file'}: {error.strerror}: check the path, its permissions and the space left"
    return str(error)


def _fail(message: str, code: int = 2) -> NoReturn:
    _say(_err, f"error: {' '.join(message.split())}", "bold red")
    sys.exit(code)


if __name__ == "__main__":
    main()
