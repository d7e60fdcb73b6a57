"""Trees for the terminal: one constituent a line, branches as box-drawing characters.

    S
    |-- NP
    |   |-- DT the
    ...

Lines grow with the words and not with the width, so that sentences of any length can be read.
"""

from __future__ import annotations

from rankfold.data.trees import Span, Tree
from rankfold.errors import DataError

MARK = " *"
# A branch with more to come, the last branch, the line past what is below a branch, and the link of a unary chain.
_BOXES = ("\u251c\u2500 ", "\u2514\u2500 ", "\u2502  ", " \u2500 ")
_ASCII = ("+- ", "`- ", "|  ", " - ")


def tree_text(tree: Tree, *, against: Tree | None = None, ascii_only: bool = False) -> str:
    """The tree, a line for each constituent and word; a unary chain shares its line: `S - VP - VB go`.

    With `against`, a tree over the same words, constituents over two words or more that it lacks end in ` *`. Branches
    are Unicode box-drawing characters, or `|`, `+` and `-` if `ascii_only`.
    """
    lacking = lacking_brackets(tree, against) if against is not None else set()
    middle, last, through, dash = _ASCII if ascii_only else _BOXES
    lines: list[str] = []
    pending: list[tuple[Tree | str, str, str]] = [(tree, "", "")]  # what, before it, before what is below it
    position = 0
    widths = _widths(tree)
    while pending:
        node, before, below = pending.pop()
        chain: list[str] = []
        mark = ""
        while isinstance(node, Tree) and not node.is_tag:
            if (position, position + widths[id(node)]) in lacking:
                mark = MARK
            chain.append(node.label)
            if len(node.children) > 1:
                break
            node = node.children[0]
        if isinstance(node, str) or node.is_tag:
            chain.append(node if isinstance(node, str) else f"{node.label} {node.children[0]}")
            position += 1
        else:
            parts = [(child, below + middle, below + through) for child in node.children[:-1]]
            pending += [(node.children[-1], below + last, below + "   "), *reversed(parts)]
        lines.append(before + dash.join(chain) + mark)
    return "\n".join(lines)


def lacking_brackets(tree: Tree, other: Tree) -> set[tuple[int, int]]:
    """The brackets of a tree over two words or more that another tree over the same words does not have."""
    if tree.words != other.words:
        raise DataError(
            f"the two trees are over different words: {' '.join(tree.words[:12])!r} and {' '.join(other.words[:12])!r}."
        )
    return _brackets(tree.spans()) - _brackets(other.spans())


def _brackets(spans: list[Span]) -> set[tuple[int, int]]:
    return {(span.start, span.end) for span in spans if span.end - span.start > 1}


def _widths(tree: Tree) -> dict[int, int]:
    """How many words each subtree has, by its identity."""
    widths: dict[int, int] = {}

    def of_tree(node: Tree, below: list[int]) -> int:
        widths[id(node)] = sum(below)
        return sum(below)

    tree.fold(lambda word: 1, of_tree)
    return widths
