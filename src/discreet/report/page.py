"""One self-contained HTML page per fit."""

from collections.abc import Mapping, Sequence
from html import escape
from string import Template
from typing import TYPE_CHECKING

from discreet.posterior.types import Posterior
from discreet.report.forest import forest_svg

if TYPE_CHECKING:
    import pandas

_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
body{font:16px/1.5 system-ui,sans-serif;color:#1f2430;max-width:56rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin-bottom:.2rem} h2{font-size:1.1rem;margin-top:2rem}
.guarantee{background:#eef5fb;border-left:4px solid #0b5cad;padding:.7rem 1rem}
.warning{background:#fdecee;border-left:4px solid #c1121f;color:#8d0d18;padding:.7rem 1rem;font-weight:600}
table{border-collapse:collapse;font-variant-numeric:tabular-nums} th,td{padding:.25rem .8rem;text-align:right}
th{border-bottom:1px solid #c4c9d1;font-weight:600} th:first-child,td:first-child{text-align:left}
tr:nth-child(even) td{background:#f7f8fa} svg{width:100%;height:auto} .wide{overflow-x:auto} small{color:#5b6474}
</style></head><body>
<h1>$title</h1><p><small>$subtitle</small></p>
$banner
<p>$line</p>
<h2>Estimates</h2>$plot
<div class="wide">$table</div>
<h2>What was asked of the rows</h2><div class="wide">$plan</div><ul>$reasons</ul>
<h2>What this page reveals</h2>
<p>Everything here was computed from the noisy release, or is public: the number of rows, the schema and the plan.
No losses, gradient norms, clipped shares or batch sizes were recorded.$extra</p>
</body></html>
""")


def page(title: str, posterior: Posterior, others: Mapping[str, "pandas.DataFrame"], line: str = "", extra: str = "") -> str:
    """The report of `posterior`, with other summaries beside it and `line` as the one thing to remember."""
    summaries = {posterior.info["method"]: posterior.summary(), **others}
    plan = posterior.info["plan"]
    return _PAGE.substitute(
        title=escape(title),
        subtitle=escape(f"{plan['num_rows']} rows · {posterior.info['method']}"),
        banner=_banner(posterior),
        line=escape(line),
        plot=forest_svg(summaries),
        table=_estimates(summaries),
        plan=_table(["setting", "value"], [[name, f"{value:.6g}" if value is not None else "none"] for name, value in plan.items()]),
        reasons="".join(f"<li>{escape(reason)}</li>" for reason in posterior.info.get("reasons", ())),
        extra=escape(f" {extra}" if extra else ""),
    )


def _banner(posterior: Posterior) -> str:
    kind = "guarantee" if posterior.guarantee.private else "warning"
    return f'<p class="{kind}">{escape(str(posterior.guarantee))}</p>'


def _estimates(summaries: Mapping[str, "pandas.DataFrame"]) -> str:
    first = next(iter(summaries.values()))
    header = ["parameter", *(f"{name}: {column}" for name in summaries for column in ("mean", "sd", "interval"))]
    rows = []
    for label in first.index:
        cells = [str(label)]
        for table in summaries.values():
            mean, sd, low, high = table.loc[label]
            cells += [f"{mean:.3g}", f"{sd:.2g}", f"[{low:.3g}, {high:.3g}]"]
        rows.append(cells)
    return _table(header, rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
