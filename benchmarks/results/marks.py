"""Parts of the pages of results that are written by commands: what stands between two marks of a page.

`<!-- KIND NAME -->` opens such a part, `<!-- end of KIND -->` closes it; what is outside is left alone. A kind with one
part has no name; a name may have several words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path


def pages_of(folder: Path, page: str) -> list[str]:
    """A page of the folder and its appendices, whose names begin with its own: `music.md`, `music-runs.md`."""
    return [page, *sorted(path.name for path in folder.glob(f"{page.removesuffix('.md')}-*.md"))]


def find(path: Path, kind: str) -> list[str]:
    """The names of a page's parts of a kind, in order."""
    return [found["name"] or "" for found in _pattern(kind).finditer(path.read_text(encoding="utf-8"))]


def replace(folder: Path, pages: Iterable[str], kind: str, made: Callable[[str], str]) -> int:
    """Put `made(NAME)` between the marks of a kind on the pages that exist; how many parts there were."""
    num = 0
    for path in (folder / page for page in pages if (folder / page).exists()):
        num += len(find(path, kind))
        text = path.read_text(encoding="utf-8")
        path.write_text(_pattern(kind).sub(lambda m: _between(m, made(m["name"] or "")), text), encoding="utf-8")
    return num


def table(head: Sequence[str], lines: Iterable[Sequence[str]], *, left: Container[int]) -> str:
    """A table; columns whose numbers are in `left` are aligned to the left, the others to the right."""
    rule = "|" + "".join("---|" if i in left else "---:|" for i in range(len(head)))
    return "\n".join([_row(head), rule, *(_row(line) for line in lines)])


def number_notes(notes: Iterable[str]) -> str:
    """Notes below a table, one per line."""
    return "\n".join(f"{i}. {note}" for i, note in enumerate(notes, 1))


def join(*blocks: str) -> str:
    """Blocks of a page with an empty line between them; empty ones are left out."""
    return "\n\n".join(block for block in blocks if block)


def _pattern(kind: str) -> re.Pattern[str]:
    return re.compile(
        rf"(?P<start><!-- {kind}(?: (?P<name>[\w-]+(?: [\w-]+)*))? -->).*?(?P<end><!-- end of {kind} -->)", re.DOTALL
    )


def _between(mark: re.Match[str], body: str) -> str:
    return f"{mark['start']}\n\n{body}\n\n{mark['end']}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
