"""The report as one page that stands alone (no script, nothing fetched, figures in it), and as Markdown."""

import base64
import itertools
import re
from collections.abc import Sequence
from html import escape

from lightning_lift.compare.report.figures import DPI, Picture
from lightning_lift.compare.report.sections import Block, Content, Listing, Text, Verbatim
from lightning_lift.compare.report.tables import Table

FIGURES = "figures"
_STYLE = """
:root { --ink: #1b1f24; --soft: #57606a; --paper: #ffffff; --card: #f6f8fa; --line: #d5dae0; --link: #0b5cad;
  --bad-ink: #7a1f00; --bad: #fff1e8; --bad-line: #d55e00; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --soft: #a2abb5; --paper: #14181d; --card: #1d2329;
  --line: #353d46; --link: #79b8ff; --bad-ink: #ffd8c2; --bad: #3a2115; --bad-line: #e8833a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI",
  Roboto, "Liberation Sans", Arial, sans-serif; overflow-wrap: break-word; }
main { max-width: 70rem; margin: 0 auto; padding: 1.25rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0.4rem 0 0.6rem; }
h2 { font-size: 1.3rem; line-height: 1.25; margin: 2.6rem 0 0.6rem; padding-top: 0.9rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.6rem 0 0.4rem; }
p, ul { margin: 0.6rem 0; max-width: 48rem; }
ul { padding-left: 1.2rem; } li { margin: 0.3rem 0; }
a { color: var(--link); }
nav { display: flex; flex-wrap: wrap; gap: 0.25rem 1rem; font-size: 0.92rem; margin: 0.8rem 0 0; }
.lead, .note, figcaption { color: var(--soft); } .note, figcaption { font-size: 0.88rem; }
.warning { background: var(--bad); color: var(--bad-ink); border-left: 4px solid var(--bad-line);
  padding: 0.6rem 0.8rem; border-radius: 4px; font-weight: 600; }
#conclusions { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 0.2rem 1rem 0.7rem;
  margin-top: 1.3rem; }
#conclusions h2 { border: 0; margin: 0.4rem 0 0.2rem; padding-top: 0.3rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; max-width: 100%; }
.scroll:focus-visible { outline: 2px solid var(--link); }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.4rem 0.7rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { background: var(--card); font-weight: 600; } tbody tr:last-child > * { border-bottom: 0; }
tbody th { font-weight: 600; background: var(--paper); position: sticky; left: 0; min-width: 5.5rem; max-width: 13rem; }
td { white-space: nowrap; } td.long { white-space: normal; min-width: 16rem; overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem;
  margin: 1rem 0; } .figures > :only-child { max-width: 34rem; }
figure { margin: 0; } figure img { display: block; width: 100%; height: auto; background: #fff; border-radius: 6px;
  border: 1px solid var(--line); } figcaption { margin-top: 0.35rem; }
details { margin: 0.6rem 0; } summary { cursor: pointer; color: var(--link); }
pre { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 0.7rem;
  font-size: 0.8rem; line-height: 1.4; }
@media (max-width: 30rem) { body { font-size: 15px; } h1 { font-size: 1.4rem; } tbody th { max-width: 8rem; } }
@media print { :root { --ink: #000; --soft: #444; --paper: #fff; --card: #fff; --line: #bbb; color-scheme: light; }
  nav { display: none; } main { max-width: none; padding: 0; } .scroll { overflow: visible; border: 0; }
  table { font-size: 0.7rem; } td { white-space: normal; } figure, tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; } .figures { grid-template-columns: 1fr 1fr; } }
"""


def to_html(content: Content) -> str:
    """The whole page.

    Args:
        content: of the report.
    """
    links = "".join(f'<a href="#{escape(one.name)}">{escape(one.title)}</a>' for one in content.sections)
    body = "\n".join(
        f'<section id="{escape(one.name)}"><h2>{escape(one.title)}</h2>\n{_blocks(one.blocks)}</section>'
        for one in content.sections
    )
    # The empty icon keeps a browser from asking the server for one.
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(content.title)}</title>
<link rel="icon" href="data:,">
<style>{_STYLE}</style>
</head>
<body>
<main>
<header><h1>{escape(content.title)}</h1>
<p class="lead">{escape(content.lead)}</p>
<nav aria-label="Sections">{links}</nav></header>
{body}
</main>
</body>
</html>
"""


def _blocks(blocks: Sequence[Block]) -> str:
    """Neighbouring pictures share a row where the window is wide enough."""
    parts: list[str] = []
    for in_row, run in itertools.groupby(blocks, lambda block: isinstance(block, Picture)):
        pieces = [_block(block) for block in run]
        parts += [f'<div class="figures">{"".join(pieces)}</div>'] if in_row else pieces
    return "\n".join(parts) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Text):
        # Not by colour alone: the word stands there too.
        return (
            f'<p class="warning" role="note">Warning: {escape(block.text)}</p>'
            if block.kind == "warning"
            else f"<p>{escape(block.text)}</p>"
        )
    if isinstance(block, Listing):
        return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in block.items) + "</ul>"
    if isinstance(block, Verbatim):
        return f"<details><summary>{escape(block.title)}</summary><pre>{escape(block.text)}</pre></details>"
    return _picture(block) if isinstance(block, Picture) else _table(block)


def _table(table: Table) -> str:
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in table.columns)
    rows = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(_cell(cell) for cell in row[1:]) + "</tr>"
        for row in table.rows
    )
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    # A box that scrolls must be reachable by the keyboard.
    return (
        f'<h3>{escape(table.title)}</h3><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(table.title)}"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>{note}'
    )


def _cell(text: str) -> str:
    return f'<td class="long">{escape(text)}</td>' if len(text) > 34 else f"<td>{escape(text)}</td>"


def _picture(picture: Picture) -> str:
    width, height = (round(DPI * inches) for inches in picture.figure.get_size_inches())
    data = base64.b64encode(picture.png).decode()
    return (
        f'<figure><img alt="{escape(picture.alt)}" width="{width}" height="{height}" '
        f'src="data:image/png;base64,{data}"><figcaption>{escape(picture.caption)}</figcaption></figure>'
    )


def to_markdown(content: Content) -> str:
    """The report as Markdown with tables; figures are links into ``figures``.

    Args:
        content: of the report.
    """
    parts = [f"# {_plain(content.title)}", _plain(content.lead)]
    for section in content.sections:
        parts += [f"## {_plain(section.title)}", *[_markdown(block) for block in section.blocks]]
    return "\n\n".join(parts) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Text):
        return f"> **Warning:** {_plain(block.text)}" if block.kind == "warning" else _plain(block.text)
    if isinstance(block, Listing):
        return "\n".join(f"- {_plain(item)}" for item in block.items)
    if isinstance(block, Picture):
        return f"![{_plain(block.alt)}]({FIGURES}/{block.name}.png)\n\n*{_plain(block.caption)}*"
    if isinstance(block, Verbatim):
        return f"{_plain(block.title)}: in report.html."
    return _markdown_table(block)


def _markdown_table(table: Table) -> str:
    lines = [list(table.columns), ["---"] * len(table.columns), *table.rows]
    text = "\n".join("| " + " | ".join(_plain(cell) for cell in line) + " |" for line in lines)
    return f"### {_plain(table.title)}\n\n{text}" + (f"\n\n{_plain(table.note)}" if table.note else "")


def _plain(text: str) -> str:
    """On one line, with the signs that Markdown or HTML would read out of it."""
    return re.sub(r"([\\`*\[\]<>|~])", r"\\\1", " ".join(text.split()))
