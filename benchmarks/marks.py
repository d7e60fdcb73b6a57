"""Parts of the pages of results that are written by commands: what stands between two marks of a page.

`<!-- KIND NAME -->` opens such a part, `<!-- end of KIND -->` closes it; what is outside is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path


def replace(folder: Path, pages: Iterable[str], kind: str, made: Callable[[Path, str], str]) -> int:
    """Put `made(folder, NAME)` between the marks of a kind on the pages that exist; how many parts there were."""
    mark = re.compile(rf"<!-- {kind} (?P<name>[\w-]+) -->.*?<!-- end of {kind} -->", re.DOTALL)
    num = 0
    for page in pages:
        path = folder / page
        if not path.exists():
            continue
        text = path.read_text(encoding="utf-8")
        num += len(mark.findall(text))
        path.write_text(mark.sub(lambda m: _between(kind, m["name"], made(folder, m["name"])), text), encoding="utf-8")
    return num


def table(head: Sequence[str], lines: Iterable[Sequence[str]], *, left: int) -> str:
    """A table whose first `left` columns are aligned to the left, the others to the right."""
    rule = "|" + "---|" * left + "---:|" * (len(head) - left)
    return "\n".join([_row(head), rule, *(_row(line) for line in lines)])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _between(kind: str, name: str, body: str) -> str:
    return f"<!-- {kind} {name} -->\n\n{body}\n\n<!-- end of {kind} -->"
