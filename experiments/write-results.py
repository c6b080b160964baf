"""docs/results.md from results/*.json: the papers' tables as measured here, and the benchmarks, with pictures."""

import json

from harness import RESULTS

from discreet.atomic import new_file

ROOT = RESULTS.parent
ORDER = (
    ("na-dpvi-table1", "NA-DPVI, Table 1 and Figure 2: three conjugate models"),
    ("na-dpvi-table2", "NA-DPVI, Table 2 and Figure 3: linear regression on 10 covariates"),
    ("na-dpvi-table3", "NA-DPVI, Table 3 and Figure 4: Adult, predictive calibration"),
    ("adult-coefficients", "Adult, coefficient by coefficient"),
    ("stress", "Where honesty ends: Tables 1 and 2 made difficult"),
    ("dp-sep-table1", "DP-SEP, Table 1 and Figure 1: a mixture of Gaussians"),
    ("dp-sep-networks", "DP-SEP, Tables 3, 4, 5, 8 and 9: networks"),
    ("sep-comparison", "DPVI and DP-SEP, each naive and noise-aware: logistic regression at equal ε"),
    ("sep-clipping", "DP-SEP and its clip norm"),
    ("na-dpvi-figure1", "NA-DPVI, Figure 1: answers against iterates"),
    ("trace-coverage", "The trace model where it is true"),
    ("trace-variants", "The trace model under every gradient variant"),
    ("planner", "The planner against tuning by hand"),
    ("planner-adult", "The default fit on Adult"),
    ("planner-safety", "The planner where the world is not as it was told"),
    ("planner-public", "Fits without a choice on public tables, and refits of their posteriors"),
    ("dpvim-sharing", "DPVIm, Figures 1 to 4: data sharing"),
    ("sharing-coverage", "Synthetic tables: do pooled intervals hold the truth?"),
    ("sharing-solvers", "Mixtures of whole rows by DPVI: which reading is honest?"),
    ("default-fit", "DPVI's default plan on public tables"),
    ("dpvim-adult", "DPVIm, Figure 5a: gradient variants on Adult"),
    ("full-rank", "DPVIm: full rank"),
    ("robustness", "DPVIm: robustness"),
    ("noise-from-trace", "DPVIm: noise read from the trace"),
    ("mutants", "Do the tests notice a wrong mechanism?"),
    ("speed", "Steps per second beside every peer"),
    ("roofline", "A step beside the least that it must do"),
    ("scale", "What tables, features and runs cost as they grow"),
    ("studies", "Five hundred fits at once"),
    ("startup", "How long one waits"),
    ("sharing", "What data sharing takes"),
    ("networks", "What networks cost"),
    ("sep-throughput", "A step of DP-SEP beside one of DPVI"),
    ("trace-solvers", "Reading a trace"),
)
LONG = 60


def cell(value):
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "holds" if value else "**FAILS**"
    return f"{value:.3g}" if isinstance(value, float) else str(value).replace("|", "\\|")


def shown(records):
    """The columns that are single values, in order of appearance."""
    names = dict.fromkeys(name for record in records for name in record)
    plain = (str, int, float, bool, type(None))
    return [
        name
        for name in names
        if all(isinstance(record.get(name), plain) and len(cell(record.get(name))) < LONG for record in records)
    ]


def table(records):
    columns = shown(records)
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(record.get(name)) for name in columns) + " |" for record in records]
    return "\n".join(lines)


def section(name, title):
    """The full run, then the quick one, which says so."""
    paths = [path for path in (RESULTS / f"{name}-full.json", RESULTS / f"{name}.json") if path.is_file()]
    runs = [run(path, title) for path in paths] or [f"Not run yet: `make experiment NAME={name}`."]
    return "\n\n".join([f"## {title}", *runs]) + "\n"


def run(path, title):
    facts = json.loads(path.read_text())
    parts = [f"`{facts['command']}`" + ("" if facts["target"] else " (quick: not the target)")]
    parts += [table(records) for records in (facts["records"], facts.get("claims")) if records]
    full = path.stem.endswith("-full")
    pictures = sorted(
        p.name for p in RESULTS.glob(f"{path.stem.removesuffix('-full')}*.png") if ("-full" in p.stem) == full
    )
    parts += [*facts["notes"], *(f"![{title}](../results/{picture})" for picture in pictures)]
    return "\n\n".join(parts)


introduction = """# Results

What was measured here, with the command that made it; `make results` writes this page from `results/*.json`, which
also hold versions and seeds.

**How to read the tables.** *TARP RMSE* is the distance of the coverage curve from the diagonal, mean over 20 sets
of references; *band* is its 1 − .05/c quantile for perfect posteriors over as many data sets, c the number of cells
that are judged. *Worst marginal* is the same for the worst single coordinate, with its own band. A prior is
calibrated, too: so *width ÷ non-private* (mean posterior sd over that of the exact posterior without privacy), the
log score of the truth (higher is better) and the energy score in units of the non-private sds (lower is better)
stand beside it. *Failed* fits count as covering nothing.
"""
page = introduction + "\n" + "\n".join(section(*entry) for entry in ORDER)
with new_file(ROOT / "docs" / "results.md") as scratch:
    scratch.write_text(page)
print("docs/results.md")
