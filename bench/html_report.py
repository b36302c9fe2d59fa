"""A bench result as one self-contained HTML page that a manager can read: plots as inline SVG, no scripts, no network.

Light and dark follow the reader's system; printing gives black on white. Everything shown is in the JSON beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["bars", "line_plot", "page", "render", "section_of"]

_WIDE, _FEW = 8, 6
"""A table with more columns than this and no more rows than that is turned."""

_STYLE = """
:root{--ink:#1b1f24;--soft:#5b6470;--paper:#fff;--line:#d8dde3;--accent:#0b6bcb;--other:#8a94a0;--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--ink:#e8ebee;--soft:#9aa4af;--paper:#15181c;--line:#343a42;--accent:#58a6ff;--other:#7d8792;--bad:#ff7b72}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0 0 .25rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}p.lead{font-size:1.1rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .6rem;border-bottom:1px solid var(--line);text-align:right}
th:first-child,td:first-child{text-align:left}th{font-weight:600;color:var(--soft)}
svg{width:100%;height:auto}svg text{fill:var(--ink);font:12px system-ui,sans-serif}svg .soft{fill:var(--soft)}
.note{color:var(--soft)}.bad{color:var(--bad)}section{break-inside:avoid}
@media print{:root{--ink:#000;--soft:#444;--paper:#fff;--line:#bbb;--accent:#000;--other:#777;--bad:#000}}
@media print{body{margin:0;max-width:none;font-size:11px}table{font-size:9px}th,td{padding:.15rem .3rem}}
"""


def render(result: Mapping[str, Any]) -> str:
    """Return the page of a result that `bench.result` wrote."""
    sections = []
    summary = result.get("summary") or {}
    if summary:
        short = {key: value for key, value in summary.items() if not isinstance(value, list | dict)}
        sections.append(_table("In short", [{"": key.replace("_", " "), "value": value} for key, value in short.items()]))
    rows = [dict(row) for row in result["rows"]]
    sections += _plots(result["bench"], rows)
    sections.append(
        _table("All figures", [{key: value for key, value in row.items() if not isinstance(value, list | dict)} for row in rows])
    )
    sections += _condition_tables(result)
    sections.append(_conditions(result))
    return page(f"headway bench {result['bench']}", sections, lead=_lead(result))


def section_of(name: str, text: str) -> str:
    """Return what `render` put into the body of a page, under a name, as a part of a larger page."""
    return f'<h1 id="{escape(name)}">{escape(name)}</h1>' + text.split("<body>")[1].split("</body>")[0].partition("</h1>")[2]


def page(title: str, sections: Sequence[str], *, lead: str = "") -> str:
    """Return a whole page around finished sections."""
    body = "\n".join(f"<section>{section}</section>" for section in sections if section)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><h1>{escape(title)}</h1><p class=lead>{lead}</p>{body}</body></html>\n"
    )


def bars(title: str, values: Sequence[tuple[str, float, float, float]], *, unit: str, strong: str = "") -> str:
    """Return horizontal bars of (name, value, low, high), longest first; `strong` names the one to stand out."""
    if not values:
        return ""
    ordered = sorted(values, key=lambda item: -item[1])
    most = max(high for _, _, _, high in ordered) or 1.0
    height, parts = 26, []
    for place, (name, value, low, high) in enumerate(ordered):
        y, wide = place * height, 420 * value / most
        colour = "var(--accent)" if name == strong else "var(--other)"
        parts.append(f'<text x="220" y="{y + 17}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="230" y="{y + 4}" width="{wide:.1f}" height="16" fill="{colour}" rx="2"/>')
        if high > low:
            left, right = 230 + 420 * low / most, 230 + 420 * high / most
            parts.append(f'<path d="M{left:.1f} {y + 12}H{right:.1f}" stroke="var(--ink)" stroke-width="1.5"/>')
        beside = 238 + 420 * max(value, high) / most
        parts.append(f'<text class="soft" x="{beside:.1f}" y="{y + 17}">{_number(value)} {escape(unit)}</text>')
    label = f"{title}: " + ", ".join(f"{name} {_number(value)}" for name, value, _, _ in ordered)
    return _svg(title, len(ordered) * height + 6, parts, label)


def line_plot(title: str, lines: Mapping[str, Sequence[float]], *, unit: str) -> str:
    """Return one plot of several series over their index."""
    series = {name: list(values) for name, values in lines.items() if len(values) > 1}
    if not series:
        return ""
    most = max(max(values) for values in series.values()) or 1.0
    parts = [
        f'<text class="soft" x="0" y="12">{_number(most)} {escape(unit)}</text>',
        '<path d="M0 180H800" stroke="var(--line)"/>',
    ]
    for place, (name, values) in enumerate(series.items()):
        step = 800 / (len(values) - 1)
        points = " ".join(f"{i * step:.1f},{180 - 160 * value / most:.1f}" for i, value in enumerate(values))
        colour = "var(--accent)" if place == 0 else "var(--other)"
        dash = "" if place < 2 else f' stroke-dasharray="{2 * place} 3"'
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"{dash}/>')
        parts.append(f'<text class="soft" x="{10 + 140 * place}" y="198">{escape(name)}</text>')
    return _svg(title, 204, parts, title)


def _svg(title: str, height: int, parts: Sequence[str], label: str) -> str:
    drawing = f'<svg viewBox="0 0 800 {height}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    return f"<h2>{escape(title)}</h2>{drawing}"


def _plots(bench: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if bench == "peers":
        workloads = dict.fromkeys(str(row.get("workload", "")) for row in rows)
        return [
            bars(
                f"{workload}: samples per second",
                [_with_spread(row) for row in rows if row.get("workload", "") == workload and row.get("samples_per_s")],
                unit="samples/s",
                strong="headway",
            )
            for workload in workloads
        ]
    if bench == "node":
        ranks = [row for row in rows if "rank" in row]
        return [
            line_plot(
                "Rate of each rank over the run", {f"rank {row['rank']}": row.get("rates", ()) for row in ranks}, unit="samples/s"
            ),
            _stage_waits(ranks),
            line_plot(
                "Seconds of input ready ahead", {f"rank {row['rank']}": row.get("headways_s", ()) for row in ranks}, unit="s"
            ),
            line_plot("Wait of each step", {f"rank {row['rank']}": row.get("waits_ms", ()) for row in ranks}, unit="ms"),
            bars("Memory of each rank", [_plain(f"rank {row['rank']}", row.get("pss_mib")) for row in ranks], unit="MiB"),
        ]
    if bench == "consumer":
        rates = [_plain(str(row["case"]), row.get("samples_per_s")) for row in rows if row.get("samples_per_s")]
        steps = [_plain(str(row["case"]), row.get("step_p50_ms")) for row in rows if row.get("steps_per_s")]
        return [bars("What the loader delivers", rates, unit="samples/s"), bars("How long a step takes", steps, unit="ms")]
    if bench == "resume":
        named = [(f"{row['peer']} at {row['share']:.0%}", row) for row in rows if row.get("first_batch_s") is not None]
        times = [_plain(name + ("" if row["exact"] else ", not exact"), row["first_batch_s"]) for name, row in named]
        return [bars("From restoring to the next batch", times, unit="s")]
    if bench == "startup":
        times = [_plain(f"{row['items']:,} items, {_workers(row['threads'])}", row["first_batch_s"]) for row in rows]
        return [bars("From opening the set to the first batch", times, unit="s")]
    return []


def _plain(name: str, value: float | None) -> tuple[str, float, float, float]:
    value = float(value or 0.0)
    return name, value, value, value


def _workers(threads: int | None) -> str:
    return "own choice" if threads is None else f"{threads} workers"


def _stage_waits(ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return what the ranks waited for, all together, by what the awaited batch was in."""
    total: dict[str, float] = {}
    for row in ranks:
        for stage, seconds in row.get("waits_by_stage_s", {}).items():
            total[stage] = total.get(stage, 0.0) + seconds
    return bars("Seconds waited, by what the batch was in", [_plain(stage, value) for stage, value in total.items()], unit="s")


def _with_spread(row: Mapping[str, Any]) -> tuple[str, float, float, float]:
    value, spread = float(row["samples_per_s"]), float(row.get("spread") or 1.0)
    half = spread**0.5
    return str(row["peer"]), value, value / half, value * half


def _lead(result: Mapping[str, Any]) -> str:
    machine = result.get("machine") or {}
    quiet = result.get("quiet")
    cpu, cores = escape(str(machine.get("cpu", "?"))), machine.get("cores_usable", "?")
    text = f"Measured {escape(str(result['started']))} on {cpu}, {cores} cores"
    if quiet is False:
        text += '. <span class="bad">Others used the machine meanwhile: take ratios, not rates.</span>'
    return text


def _conditions(result: Mapping[str, Any]) -> str:
    plain = {key: value for key, value in (result.get("conditions") or {}).items() if not _is_table(value)}
    items = {"command": " ".join(result["command"]), **plain, **(result.get("versions") or {})}
    listed = "".join(f"<tr><td>{escape(str(key))}</td><td>{escape(_number(value))}</td></tr>" for key, value in items.items())
    return f"<h2>Conditions</h2><table>{listed}</table>"


def _condition_tables(result: Mapping[str, Any]) -> list[str]:
    """Return the conditions that are tables themselves: ceilings, and the stages that lead from the roof to what was measured."""
    conditions = result.get("conditions") or {}
    sections = []
    stages = conditions.get("stages")
    if stages and _is_table(stages):
        measured = (result.get("summary") or {}).get("samples_per_s")
        rates = {str(row.get("stage") or row.get("what")): row.get("samples_per_s_alone") for row in stages}
        shown = [_plain(name, 100 * measured / rate) for name, rate in rates.items() if rate and measured]
        sections.append(bars("How much of each limit was reached", shown, unit="%"))
    return sections + [_table(key.capitalize(), value) for key, value in conditions.items() if _is_table(value)]


def _is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if len(columns) > _WIDE and len(rows) <= _FEW:  # stands better than it lies, above all on paper
        return _table(
            title,
            [{"": name.replace("_", " "), **_numbered(row.get(name) for row in rows)} for name in columns],
        )
    head = "".join(f"<th>{escape(column.replace('_', ' '))}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_number(row.get(column)))}</td>" for column in columns) + "</tr>" for row in rows
    )
    return f'<h2>{escape(title)}</h2><div style="overflow-x:auto"><table><tr>{head}</tr>{body}</table></div>'


def _numbered(values: Iterable[object]) -> dict[str, object]:
    return {str(number): value for number, value in enumerate(values, 1)}


def _number(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
