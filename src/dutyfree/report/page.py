"""`report.html`: one file that opens anywhere, offline, light or dark. No script, no font, nothing fetched."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape

from dutyfree.report.figures import Drawn
from dutyfree.report.front import Front
from dutyfree.report.style import inline
from dutyfree.report.text import Table

_TEMPLATE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Rollout infrastructure tax</title>
<style>
:root { --ink: #1a1b1c; --soft: #5c5f62; --paper: #fff; --panel: #f5f6f7; --line: #dcdfe2; --accent: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e9ea; --soft: #a3a7ab; --paper: #16181a; --panel: #1f2225; --line: #35393d; --accent: #56b4e9; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 72rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.25rem; margin: 2.75rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.75rem 0 .4rem; }
p { margin: .5rem 0; max-width: 60rem; } .soft, figcaption, .note { color: var(--soft); font-size: .9rem; }
.finding { font-size: 1.2rem; line-height: 1.45; margin: 1.1rem 0 .4rem; }
.chart { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: .55rem .9rem; margin: .8rem 0; font-size: .9rem; }
.chart .who { text-align: right; } .chart .bar { display: flex; height: 1.05rem; } .chart .bar i { display: block; height: 100%; }
.chart .says { font-size: .82rem; color: var(--soft); } .chart b { color: var(--ink); }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .85rem; color: var(--soft); }
.legend i { display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem; vertical-align: -.08rem; }
figure { margin: 1rem 0; overflow-x: auto; } figure svg { max-width: 100%; min-width: 34rem; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
th { color: var(--soft); font-weight: 600; } th:first-child, td:first-child, .left td, .left th { text-align: left; }
td { white-space: nowrap; } .left td { white-space: normal; }
.warn { border-left: 3px solid #d55e00; padding: .1rem 0 .1rem .9rem; } .warn > div { margin: .5rem 0; } .note { margin: .4rem 0; }
.command { display: inline; } .command summary { display: inline; color: var(--accent); } .command code { display: block; margin: .3rem 0; }
button { font: inherit; font-size: .8rem; padding: 0 .5rem; } code { font-size: .9em; overflow-wrap: anywhere; }
summary { cursor: pointer; }
dl { display: grid; grid-template-columns: minmax(5rem, max-content) 1fr; gap: .2rem 1.2rem; font-size: .9rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 30rem) { body { padding: 1.2rem .8rem 3rem; } dl { grid-template-columns: 1fr; } dt { margin-top: .5rem; }
  .chart { grid-template-columns: 1fr; gap: .1rem; } .chart .who { text-align: left; margin-top: .5rem; } }
</style>
</head>
<body>
<h1>Rollout infrastructure tax</h1>
<p class="soft">{{ host.cpu }}, {{ host.cpus }} cores, {{ host.memory_gib }} GiB, Linux {{ host.kernel }},
measured {{ created_at }}</p>
<p class="finding">{{ front.sentence }}</p>
{% if front.bars %}<h3>{{ front.chart }}</h3>
<div class="legend">{% for name, shade in front.legend %}<span><i style="background:{{ shade }}"></i>{{ name }}</span>{% endfor %}</div>
<div class="chart">{% for bar in front.bars %}<div class="who">{{ bar.name }}</div>
<div><div class="bar">{% for name, shade, share in bar.segments %}<i style="width:{{ share }}%;background:{{ shade }}" title="{{ name }}"></i>{% endfor %}</div>
<div class="says"><b>{{ bar.time }}</b> ({{ bar.number }}); {{ bar.note }}</div></div>
{% endfor %}</div>{% endif %}
<p>{{ front.saving }}</p>
<p class="soft">A <b>rollout</b> is one attempt of an agent: a sandbox is created, prepared, used by a number of actions (commands), and
removed. The <b>tax</b> is what a substrate adds to the same rollout run straight on the machine (<code>host</code>). A <b>tier</b> is a kind of task: T0
minimal commands, T1 reading a repository, T2 repairing a bug in one. <b>Dispatch</b> is the part of an action that is not the command's own.
In brackets are 95 % intervals; n is the number of trials.</p>
{% if warnings %}<h2>Before you rely on this</h2>
<div class="warn">{% for line in warnings[:6] %}<div>{{ line | code }}</div>{% endfor %}</div>
{% if warnings[6:] %}<details class="warn"><summary>{{ warnings[6:] | length }} more</summary>{% for line in warnings[6:] %}<div>{{ line | code }}</div>{% endfor %}</details>{% endif %}{% endif %}
<div>{{ overhead | code }}</div>
<h2>Figures</h2>
{% for figure in figures %}<figure><h3>Figure {{ figure.number }}. {{ figure.title }}</h3>
{% if figure.svg %}{{ figure.svg }}{% else %}<p class="soft">Not drawn: its data was not measured in this run.</p>{% endif %}
<figcaption>{{ figure.caption }}</figcaption></figure>
{% endfor %}
<h2>Tables</h2>
{% for table in tables %}<h3>{{ table.title }}</h3>
{% if table.rows %}<div class="wide"><table{% if table.left %} class="left"{% endif %}><thead><tr>{% for c in table.columns %}<th>{{ c | code }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in table.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody></table></div>{% endif %}

{% if table.note %}<div class="note">{{ table.note | code }}</div>{% endif %}
{% endfor %}
<h2>Protocol</h2>
<dl>{% for name, text in protocol %}<dt>{{ name }}</dt><dd>{% if text | length > 160 %}<details><summary>{{ text[:120] }}…</summary>{{ text }}</details>{% else %}{{ text }}{% endif %}</dd>{% endfor %}</dl>
</body>
</html>
"""

_QUOTED = re.compile(r"`([^`]+)`")
FOLDED = 110
"""Letters from which on a command is folded away."""
_PROSE = ("Table 1", "The study", "Does the ranking", "Costs that", "Containment")


def render(
    manifest: Mapping[str, Any],
    tables: Sequence[Table],
    figures: Sequence[Drawn],
    *,
    warnings: Sequence[str],
    overhead: str,
    front: Front,
    protocol: Sequence[tuple[str, str]],
) -> str:
    """The page as text. Everything from records is escaped: a failure's message is somebody else's output."""
    environment = Environment(autoescape=True, trim_blocks=True)
    environment.filters["code"] = _code
    template = environment.from_string(_TEMPLATE)
    return template.render(
        host=manifest["host"],
        created_at=manifest["created_at"],
        warnings=warnings,
        overhead=overhead,
        front=front,
        protocol=protocol,
        figures=[
            {
                "number": f.number,
                "title": f.title,
                "caption": f.caption,
                # Ours, drawn a moment ago; names in it were escaped by the library that drew them.
                "svg": Markup(inline(f.path)) if f.path else "",  # noqa: S704
            }
            for f in figures
        ],
        tables=[
            {
                "title": t.title,
                "columns": t.columns,
                "rows": t.rows,
                "note": t.note,
                "left": t.title.startswith(_PROSE),
            }
            for t in tables
        ],
    )


def _code(text: str) -> Markup:
    """Text with what stands in backquotes set as code, long commands folded; escaped first."""
    return Markup(_QUOTED.sub(_quoted, str(escape(text))))  # noqa: S704


def _quoted(match: re.Match[str]) -> str:
    if len(match[1]) < FOLDED:
        return f"<code>{match[1]}</code>"
    copy = "navigator.clipboard.writeText(this.nextElementSibling.textContent)"
    return (
        f'<details class="command"><summary>the command</summary> <button onclick="{copy}">copy</button>'
        f"<code>{match[1]}</code></details>"
    )
