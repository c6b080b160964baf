"""One self-contained HTML page per fit."""

from collections.abc import Mapping, Sequence
from html import escape
from string import Template
from typing import TYPE_CHECKING

from discreet.posterior.types import Posterior
from discreet.report.forest import forest
from discreet.report.lines import how_read
from discreet.report.words import meaning, rounded

if TYPE_CHECKING:
    import pandas

_STYLE = """
:root{color-scheme:light}
body{font:16px/1.55 system-ui,sans-serif;color:#1f2430;background:#fff;max-width:46rem;margin:2.5rem auto;
  padding:0 1.1rem;overflow-wrap:anywhere}
h1{font-size:1.6rem;line-height:1.25;margin:0} h2{font-size:1.1rem;margin:2.4rem 0 .6rem}
small,.sub{color:#5b6474;font-size:.875rem} .sub{margin:.3rem 0 1.4rem}
.guarantee,.warning{border-left:4px solid #0b5cad;background:#eef5fb;padding:.7rem 1rem;margin:1rem 0}
.guarantee p,.warning p{margin:0} .guarantee p+p,.warning p+p{margin-top:.35rem;font-size:.875rem}
.warning{border-color:#c1121f;background:#fdecee;color:#8d0d18} .warning p:first-child{font-weight:700}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1.4rem;padding:0;margin:.6rem 0 1rem;font-size:.9rem}
.row{display:grid;grid-template-columns:minmax(0,10rem) minmax(0,1fr);gap:0 1rem;align-items:start;margin:.3rem 0}
.row span{text-align:right;font-size:.9rem;line-height:1.3} .row svg{overflow:visible;display:block}
.row line{stroke-width:2.5} .row line.axis{stroke:#d5d9e0;stroke-width:1} .row line.zero{stroke:#9aa3b2;stroke-width:1}
.row text{font-size:11px;fill:#5b6474;text-anchor:middle}
.wide{overflow-x:auto} table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}
th,td{padding:.22rem .9rem .22rem 0;text-align:right;white-space:nowrap;overflow-wrap:normal}
th{border-bottom:1px solid #9aa3b2;font-weight:600} .text{text-align:left} tr.next td{border-top:1px solid #e3e6eb}
.doubts th{white-space:normal;min-width:4.2rem;vertical-align:bottom;line-height:1.3}
td.doubt{color:#c1121f;font-weight:700}
.lines{display:grid;grid-template-columns:repeat(auto-fill,minmax(max(10rem,28%),1fr));gap:1rem;margin:1rem 0}
.lines figure{margin:0} .lines figcaption{font-size:.9rem;line-height:1.3}
.lines svg{display:block;width:100%;overflow:visible}
.lines text{font-size:9.5px;fill:#5b6474;text-anchor:middle} .lines text.y{text-anchor:end}
.lines .axis{stroke:#d5d9e0} .lines .bar{stroke:#1f2430} .lines .interval{stroke:#0b5cad;stroke-width:4}
.lines .fit,.lines .zero{stroke:#c2410c;stroke-width:1.6} .lines .zero{stroke-dasharray:3 2}
.haze{fill:#6b7280;fill-opacity:.3} .group,.blocks{fill:#1f2430} .blocks{fill-opacity:.4}
ul.reasons{padding-left:1.2rem;font-size:.9rem}
@media(max-width:36rem){.row{grid-template-columns:minmax(0,1fr)} .row span{text-align:left;font-weight:600}
  .lines text{font-size:12px}}
"""

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>$title</title>
<style>$style</style>
</head>
<body>
<h1>$title</h1>
<p class="sub">$subtitle</p>
$banner
$line
<h2>Estimates</h2>
$meaning
$plot
<div class="wide">$estimates</div>
<h2>What was asked of the rows</h2>
<div class="wide">$plan</div>
$reasons
$reading
<h2>What this page reveals</h2>
<p>Everything here was computed from the noisy release, or is public: the number of rows, the schema and the plan.
No losses, gradient norms, clipped shares or batch sizes were recorded. $extra</p>
</body>
</html>
""")


def page(
    title: str,
    posterior: Posterior,
    summaries: "Mapping[str, pandas.DataFrame] | None" = None,
    line: str = "",
    extra: str = "",
) -> str:
    """The report of `posterior`, with `summaries` side by side and `line` as the one thing to remember.

    Without `summaries` it shows the posterior's own.
    """
    summaries = summaries or {posterior.info["method"]: posterior.summary()}
    plan = posterior.info["plan"]
    whom = "rows" if posterior.guarantee.unit == "row" else f"units ({posterior.guarantee.unit})"
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in posterior.info.get("reasons", ()))
    return _PAGE.substitute(
        style=_STYLE,
        title=escape(title),
        subtitle=escape(f"{plan['num_rows']} {whom} · {posterior.info['method']}"),
        banner=_banner(posterior, plan["num_rows"])
        + "".join(_box("warning", text, "") for text in posterior.info.get("warnings", ())),
        line=_paragraph(line),
        meaning=_paragraph(meaning(posterior)),
        plot=forest(summaries),
        estimates=_estimates(summaries),
        plan=_plans([*posterior.info.get("before", ()), plan]),
        reasons=f'<ul class="reasons">{reasons}</ul>' if reasons else "",
        reading=how_read(posterior),
        extra=escape(extra),
    )


def _banner(posterior: Posterior, num_rows: int) -> str:
    promise = posterior.guarantee
    spent = f"{promise.relation.capitalize()} adjacency; {promise.event}; {promise.version}."
    if not promise.private:
        text = str(promise)
        text = text if text.startswith("NOT PRIVATE") else f"NOT PRIVATE: {promise.noise} noise; {text}"
        return _box("warning", text, f"Do not hand this page on if the table is secret. {spent}")
    if promise.delta * num_rows >= 1:
        useless = f"δ = {promise.delta:g} is not below 1/{num_rows}: such a δ lets a whole {promise.unit} be published."
        return _box("warning", str(promise), f"{useless} {spent}")
    return _box("guarantee", str(promise), spent)


def _box(kind: str, first: str, second: str) -> str:
    return f'<div class="{kind}">{_paragraph(first)}{_paragraph(second)}</div>'


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>" if text else ""


def _plans(plans: Sequence[Mapping[str, float | str | None]]) -> str:
    """The settings of each phase, side by side."""
    names = ["value"] if len(plans) == 1 else [f"phase {number}" for number in range(1, len(plans) + 1)]
    rows = [[setting, *(_setting(plan[setting]) for plan in plans)] for setting in plans[0]]
    return _table(["setting", *names], [rows], 1)


def _setting(value: float | str | None) -> str:
    return "none" if value is None else value if isinstance(value, str) else f"{value:.6g}"


def _estimates(summaries: Mapping[str, "pandas.DataFrame"]) -> str:
    """One group of lines per parameter, one line per reading; all of a group to the same digit."""
    several, first = len(summaries) > 1, next(iter(summaries.values()))
    header = ["parameter", *(["reading"] if several else []), *map(str, first.columns)]
    groups = []
    for place, label in enumerate(first.index):
        finest = min(float(table.iloc[place, 1]) for table in summaries.values())  # pyright: ignore[reportArgumentType]
        group = []
        for order, (name, table) in enumerate(summaries.items()):
            cells = [cell.replace("-", "−") for cell in rounded(table.iloc[place].to_numpy(float), finest)]
            group.append([str(label) if order == 0 else "", *([name] if several else []), *cells])
        groups.append(group)
    return _table(header, groups, 1 + several)


def _table(header: Sequence[str], groups: Sequence[Sequence[Sequence[str]]], texts: int) -> str:
    """A table whose first `texts` columns are text and whose other columns are numbers."""

    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = [' class="text"' if place < texts else "" for place in range(len(row))]
        return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True))

    lines = [
        f"<tr{' class=next' if order == 0 else ''}>{cells('td', row)}</tr>"
        for group in groups
        for order, row in enumerate(group)
    ]
    return f"<table><thead><tr>{cells('th', header)}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
