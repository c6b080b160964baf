"""The command line: thin words around the library."""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import pandas

app = typer.Typer(
    help="Bayesian inference that keeps secrets and admits its noise.", no_args_is_help=True, add_completion=False
)
_out, _err = Console(), Console(stderr=True)


def main() -> None:
    """Run the command line; errors are one line on standard error, never a traceback."""
    try:
        app(standalone_mode=False)
    except typer.Exit as done:
        sys.exit(done.exit_code)
    except (ValueError, OSError) as error:
        _fail(str(error), 2)
    except KeyboardInterrupt:
        _fail("interrupted: nothing was written; what had been released is spent", 130)
    except Exception as error:
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        sys.exit(getattr(error, "exit_code", 2))


@app.command()
def schema(
    table: Annotated[Path, typer.Argument(help="a CSV or Parquet file")],
    out: Annotated[Path | None, typer.Option(help="where to write it; standard output if not given")] = None,
):
    """Draft a schema of TABLE. Every bound in it is guessed from the data and must be confirmed by you."""
    from discreet.schema import draft

    drafted = draft(table)
    if out is None:
        print(drafted.to_toml(), end="")
    else:
        if out.exists():
            raise ValueError(f"{out} exists: choose another --out, so that confirmed bounds are not lost")
        drafted.save(out)
        _err.print(f"wrote {out}: replace each guess by what is known without the data, then delete `confirmed = false`")


@app.command()
def account(
    epsilon: Annotated[float, typer.Option(help="the ε to meet")],
    delta: Annotated[float, typer.Option(help="the δ to meet")],
    sampling: Annotated[float, typer.Option(help="probability that a row takes part in a step")],
    steps: Annotated[int, typer.Option(help="number of steps")],
    rows: Annotated[int | None, typer.Option(help="number of rows; charges the batch limit that a run would have")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
):
    """Print the noise multiplier σ that meets a budget, and the attack risk that is left."""
    from discreet.accounting import calibrate, guarantee
    from discreet.plan import Plan, default_batch_limit

    limit = None if rows is None else default_batch_limit(rows, sampling)
    plan = calibrate(Plan(rows or 1, steps, sampling, 1.0, 0.0, limit), epsilon, delta)
    found = guarantee(plan, delta)
    if as_json:
        print(json.dumps({"noise_multiplier": plan.noise_multiplier, **found.to_dict()}, ensure_ascii=False))
    else:
        _out.print(f"σ = {plan.noise_multiplier:.6g} (noise multiplier)", highlight=False, soft_wrap=True)
        _out.print(str(found), highlight=False, soft_wrap=True)


@app.command()
def fit(
    table: Annotated[Path, typer.Argument(help="a CSV or Parquet file")],
    schema: Annotated[Path, typer.Option(help="the schema, a TOML file")],
    outcome: Annotated[str, typer.Option(help="the column to explain")],
    family: Annotated[str, typer.Option(help="gaussian, logistic or poisson")],
    epsilon: Annotated[float, typer.Option(help="privacy budget ε")],
    delta: Annotated[float, typer.Option(help="privacy budget δ, well below one over the number of rows")],
    out: Annotated[Path, typer.Option(help="folder for the results; must not exist")],
    covariates: Annotated[str | None, typer.Option(help="comma-separated; all other columns if not given")] = None,
    simulate: Annotated[int | None, typer.Option(help="a seed: a rehearsal with known noise, NOT private")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
):
    """Fit a regression with differential privacy and write the posterior, the release and a report to OUT."""
    from discreet.families.glm import glm
    from discreet.fitting import encode, simulated
    from discreet.fitting import fit as run_fit
    from discreet.report.folder import save_run
    from discreet.report.page import page
    from discreet.schema import Schema

    if out.exists():
        raise ValueError(f"{out} exists: choose another --out, so that nothing is overwritten")
    declared = Schema.load(schema)
    names = covariates.split(",") if covariates else [name for name in declared.names if name != outcome]
    model = glm(family, outcome, names, declared)
    rows = encode(table, declared.select(model.columns))
    noise = None if simulate is None else simulated(simulate)
    posterior = run_fit(model, rows, epsilon=epsilon, delta=delta, noise=noise, progress=_progress("asking"))
    title = f"{family.capitalize()} regression of {outcome}"
    save_run(out, posterior, page(title, posterior, {}))
    summary = posterior.summary()
    if as_json:
        facts = {"guarantee": posterior.guarantee.to_dict(), "summary": json.loads(summary.to_json(orient="index")), "out": str(out)}
        print(json.dumps(facts, ensure_ascii=False))
    else:
        _show({posterior.info["method"]: summary})
        _out.print(str(posterior.guarantee), highlight=False, soft_wrap=True, style=None if posterior.guarantee.private else "bold red")
        _out.print(f"wrote {out}/: posterior.nc, release/, guarantee.json, schema.toml, report.html", highlight=False, soft_wrap=True)


@app.command()
def demo(out: Annotated[Path, typer.Option(help="folder for the results; replaced")] = Path("out/demo")):
    """Fit a sensitive survey at ε = 1: private and noise-aware, private and naive, and non-private, side by side."""
    from discreet.demo import run_demo

    result = run_demo(out, _progress("asking 6366 people, privately"))
    _show(result.summaries)
    _out.print(result.line, highlight=False, soft_wrap=True)
    _out.print(str(result.posterior.guarantee), highlight=False, soft_wrap=True)
    _out.print(f"wrote {out}/: posterior.nc, release/, guarantee.json, schema.toml, report.html", highlight=False, soft_wrap=True)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="print the version")] = False):
    if version:
        from importlib.metadata import version as installed

        print(installed("discreet"))
        raise typer.Exit()


def _progress(label: str) -> Callable[[range], Iterable[int]]:
    from rich.progress import track

    return lambda blocks: track(blocks, description=label, console=_err, disable=not _err.is_terminal)


def _show(summaries: "dict[str, pandas.DataFrame]") -> None:
    table = Table()
    table.add_column("parameter")
    for name, summary in summaries.items():
        low, high = summary.columns[2:4]
        table.add_column(f"{name}\nmean [{low}, {high}]", justify="right")
    for label in next(iter(summaries.values())).index:
        cells = [f"{m:.3g} \\[{low:.3g}, {high:.3g}]" for m, _, low, high in (s.loc[label] for s in summaries.values())]
        table.add_row(str(label).replace("[", "\\["), *cells)
    console = _out if _out.is_terminal else Console(width=120)
    console.print(table)


def _fail(message: str, code: int) -> None:
    _err.print(f"error: {message}", style="bold red", highlight=False, markup=False)
    sys.exit(code)


if __name__ == "__main__":
    main()
