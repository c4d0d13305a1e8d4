"""`report.html`: one file that opens anywhere, offline, light or dark. No script, no font, nothing fetched."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape

from dutyfree.report.figures import Drawn
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
h1 { font-size: 1.7rem; margin: 0 0 .25rem; } h2 { font-size: 1.25rem; margin: 2.75rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.75rem 0 .4rem; }
p { margin: .5rem 0; max-width: 60rem; } .soft, figcaption, .note { color: var(--soft); font-size: .9rem; }
.tiles { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.25rem 0; }
.tile { background: var(--panel); border: 1px solid var(--line); border-radius: .5rem; padding: .7rem 1rem; min-width: 11rem; }
.tile b { display: block; font-size: 1.35rem; } .tile span { color: var(--soft); font-size: .85rem; }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; color: var(--ink); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
th { color: var(--soft); font-weight: 600; } th:first-child, td:first-child, .left td, .left th { text-align: left; }
td { white-space: nowrap; } .left td { white-space: normal; }
.warn { border-left: 3px solid #d55e00; padding: .1rem 0 .1rem .9rem; } code { font-size: .9em; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; font-size: .9rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
</style>
</head>
<body>
<h1>Rollout infrastructure tax</h1>
<p class="soft">{{ host.cpu }}, {{ host.cpus }} cores, {{ host.memory_gib }} GiB, Linux {{ host.kernel }},
measured {{ created_at }}</p>
<div class="tiles">{% for value, label in tiles %}<div class="tile"><b>{{ value }}</b><span>{{ label }}</span></div>{% endfor %}</div>
<p>{{ overhead | code }}</p>
{% if warnings %}<h2>Before you rely on this</h2>
<div class="warn">{% for line in warnings %}<p>{{ line | code }}</p>{% endfor %}</div>{% endif %}
<h2>Figures</h2>
{% for figure in figures %}<figure><h3>Figure {{ figure.number }}. {{ figure.title }}</h3>
{% if figure.svg %}{{ figure.svg }}{% else %}<p class="soft">Not drawn: its data was not measured in this run.</p>{% endif %}
<figcaption>{{ figure.caption }}</figcaption></figure>
{% endfor %}
<h2>Tables</h2>
{% for table in tables %}<h3>{{ table.title }}</h3>
{% if table.rows %}<div class="wide"><table{% if table.left %} class="left"{% endif %}><thead><tr>{% for c in table.columns %}<th>{{ c | code }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in table.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody></table></div>{% endif %}

{% if table.note %}<p class="note">{{ table.note | code }}</p>{% endif %}
{% endfor %}
<h2>Protocol</h2>
<dl>{% for name, text in protocol %}<dt>{{ name }}</dt><dd>{{ text }}</dd>{% endfor %}</dl>
</body>
</html>
"""

_QUOTED = re.compile(r"`([^`]+)`")
_PROSE = ("Table 1", "The study", "Does the ranking", "Costs that", "Containment")


def render(
    manifest: Mapping[str, Any],
    tables: Sequence[Table],
    figures: Sequence[Drawn],
    *,
    warnings: Sequence[str],
    overhead: str,
    tiles: Sequence[tuple[str, str]],
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
        tiles=tiles,
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
    """Text with what stands in backquotes set as code; escaped first."""
    return Markup(_QUOTED.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704
