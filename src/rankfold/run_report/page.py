"""The HTML of a report: one file, nothing fetched, no script, light and dark; every text is escaped."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rankfold.errors import expect_absent
from rankfold.files import read_head, write_text
from rankfold.version import __version__

MARK = "<!-- a report by rankfold -->"
STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #5c5c5c; --line: #dcdcdc; --back: #ffffff; --panel: #f6f6f4;
  --train: #0072B2; --valid: #D55E00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e6e3; --soft: #a8a5a0; --line: #3c3c3c; --back: #161616; --panel: #202020;
    --train: #56B4E9; --valid: #E69F00; } }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem 1.2rem 4rem; background: var(--back); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p { margin: .4rem 0; } .soft { color: var(--soft); } .note { background: var(--panel); padding: .6rem .8rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .92rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.w { overflow-wrap: anywhere; min-width: 12rem; } tr.own td { font-weight: 600; }
svg { max-width: 100%; height: auto; } svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .soft { fill: var(--soft); } svg .grid { stroke: var(--line); } svg .axis { stroke: var(--soft); }
svg .train { stroke: var(--train); fill: none; stroke-width: 1.5; } svg .valid { stroke: var(--valid); fill: none;
  stroke-width: 2; } svg .dot { fill: var(--valid); } svg .base { stroke: var(--soft); stroke-dasharray: 6 4; }
svg .strip:hover { stroke: var(--ink); stroke-width: 2; }
pre { background: var(--panel); padding: .6rem .8rem; overflow-x: auto; }
"""


class Section(NamedTuple):
    """A part of a page: its title, and its content as HTML."""

    title: str
    content: str


class Cell(NamedTuple):
    """The content of a cell as HTML, and its kind: "n" a number, "w" a text that may be long."""

    content: str
    kind: str = ""


def escape(text: Any) -> str:
    """A text as HTML shows it; control characters are written as escapes."""
    plain = "".join(x if x.isprintable() or x in "\n\t" else ascii(x)[1:-1] for x in str(text))
    return html.escape(plain, quote=True)


def word(text: str) -> str:
    """A word or phrase, which may be written from right to left without turning its neighbours."""
    return f"<bdi>{escape(text)}</bdi>"


def number(text: Any) -> Cell:
    """A cell with a number."""
    return Cell(escape(text), "n")


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    own = f' class="{kind}"' if kind else ""
    return f"<p{own}>{escape(text)}</p>"


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]], own: int | None = None) -> str:
    """A table; the kinds of the first row are those of the head. `own`: the row that is set in bold."""
    kinds = [cell.kind for cell in rows[0]] if rows else [""] * len(head)
    lines = ["".join(f"<th{_kind(kind)}>{escape(name)}</th>" for name, kind in zip(head, kinds, strict=True))]
    body = [
        f"<tr{_kind('own' if i == own else '')}>"
        + "".join(f"<td{_kind(cell.kind)}>{cell.content}</td>" for cell in row)
        + "</tr>"
        for i, row in enumerate(rows)
    ]
    return f'<div class="scroll"><table><tr>{lines[0]}</tr>\n' + "\n".join(body) + "\n</table></div>"


def _kind(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def make_page(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """The whole page. Its policy forbids scripts and every request."""
    parts = [f"<section>\n<h2>{escape(x.title)}</h2>\n{x.content}\n</section>" for x in sections]
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return "\n".join(
        [
            "<!DOCTYPE html>",
            MARK,
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            paragraph(subtitle, "soft"),
            *parts,
            paragraph(f"Written by rankfold {__version__}.", "soft"),
            "</body></html>",
            "",
        ]
    )


def expect_report(path: Path) -> None:
    """Raise unless a report may be written there: nothing is there, or a report of ours."""
    if MARK.encode() not in read_head(path, 200):
        expect_absent(path, "a report that rankfold wrote")


def write_page(path: Path, page: str) -> Path:
    """Write a page, whole or not at all; another report is replaced, any other file refused."""
    expect_report(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)
    return path
