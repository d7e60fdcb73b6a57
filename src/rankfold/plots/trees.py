"""Trees for the terminal, one constituent per line, and as SVG files: words on one line, constituents above them.

Brackets that another tree lacks are marked. In a picture a predicted tree may hang below the gold one, over the same
words. Plain text is written here: no other package is needed.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from rankfold.data.trees import Span, Tree
from rankfold.errors import DataError
from rankfold.plots.picture import SVG_MARK, expect_picture

MARK = " *"
# A branch with more to come, the last branch, the line past the subtree of a branch, and the link of a unary chain.
_BOXES = ("\u251c\u2500 ", "\u2514\u2500 ", "\u2502  ", " \u2500 ")
_ASCII = ("+- ", "`- ", "|  ", " - ")

SIZE = 14  # of the letters, in pixels
LETTER = 8.0  # the width of one letter: wider than the average one of a sans serif font at this size
GAP = 16.0
LEVEL = 38.0
MARGIN = 24.0
INK, TAG_INK = "#222222", "#666666"
ONLY_GOLD, ONLY_PREDICTED = "#c1440e", "#1f5fbf"  # told apart by people who confuse red and green, too


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


@dataclass
class _Node:
    """A constituent, tag or word, placed: `level` is its distance from the words."""

    text: str
    x: float
    level: int
    kind: str  # "word", "tag" or "constituent"
    start: int
    end: int
    below: list[_Node]


def save_tree(tree: Tree, file: str | Path, *, predicted: Tree | None = None, title: str = "") -> Path:
    """Write the picture of a tree, as `tree_svg` gives it, into a file; its folders are made. Returns the path.

    A picture of ours is replaced, any other file refused.
    """
    text = tree_svg(tree, predicted=predicted, title=title)
    file = Path(file)
    expect_picture(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def tree_svg(tree: Tree, *, predicted: Tree | None = None, title: str = "") -> str:
    """The picture of a tree as SVG text; with `predicted`, a tree over the same words, that tree hangs below it."""
    only_gold = lacking_brackets(tree, predicted) if predicted is not None else set()
    only_predicted = lacking_brackets(predicted, tree) if predicted is not None else set()
    centres, width = _centres(tree, predicted)
    above = _place(tree, centres)
    below = _place(predicted, centres) if predicted is not None else None
    top = MARGIN + (2 * SIZE if title else 0) + (2 * SIZE if predicted is not None else 0)
    baseline = top + above.level * LEVEL
    height = baseline + (below.level * LEVEL if below is not None else 0) + MARGIN
    parts = _frame(width, height, title, " ".join(tree.words), marked=predicted is not None)
    parts += _draw(above, baseline, -LEVEL, only_gold, ONLY_GOLD)
    if below is not None:
        parts += _draw(below, baseline, LEVEL, only_predicted, ONLY_PREDICTED)
    words = [node for node in _all(above) if node.kind == "word"]
    parts += [_text(node.text, node.x, baseline, INK, 'font-weight="600"') for node in words]
    return "\n".join([*parts, "</svg>", ""])


def _frame(width: float, height: float, title: str, words: str, *, marked: bool) -> list[str]:
    """The opening tags, the background, the title, and what the colours mean."""
    key = [("only in the gold tree (above)", ONLY_GOLD), ("only in the predicted tree (below)", ONLY_PREDICTED)]
    needed = max([len(title)] + [len(text) + 1 for text, _ in key] * marked) * LETTER + 2 * MARGIN
    if marked:
        needed = max(needed, sum(len(text) + 4 for text, _ in key) * LETTER + 2 * MARGIN)
    width = max(width, needed)
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    font = f'font-family="Helvetica, Arial, sans-serif" font-size="{SIZE}"'
    parts = [
        f'{SVG_MARK} xmlns="http://www.w3.org/2000/svg" {size} {font} role="img">',
        f"<title>{_safe(title or words)}</title>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
    ]
    y = MARGIN
    if title:
        parts.append(_text(title, MARGIN, y, INK, 'font-weight="600"', anchor="start"))
        y += 2 * SIZE
    x = MARGIN
    for text, colour in key if marked else []:
        parts.append(_text(text, x, y, colour, anchor="start"))
        x += (len(text) + 4) * LETTER
    return parts


def _centres(tree: Tree, predicted: Tree | None) -> tuple[list[float], float]:
    """Where the middle of each word goes, with space for its tags, and the width of the picture."""
    tag_lists = [tree.tags] + ([predicted.tags] if predicted is not None else [])
    x, centres = MARGIN, []
    for i, word in enumerate(tree.words):
        width = max(_width(word), *(_width(tags[i] or "") for tags in tag_lists))
        centres.append(x + width / 2)
        x += width + GAP
    return centres, x - GAP + MARGIN


def _width(text: str) -> float:
    """The width of a text: letters of East Asian scripts are twice as wide."""
    return LETTER * sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _place(tree: Tree, centres: list[float]) -> _Node:
    words = iter(enumerate(centres))

    def of_word(word: str) -> _Node:
        at, x = next(words)
        return _Node(word, x, 0, "word", at, at + 1, [])

    def of_tree(node: Tree, below: list[_Node]) -> _Node:
        x = (below[0].x + below[-1].x) / 2
        level = 1 + max(child.level for child in below)
        kind = "tag" if node.is_tag else "constituent"
        return _Node(node.label, x, level, kind, below[0].start, below[-1].end, below)

    return tree.fold(of_word, of_tree)


def _all(root: _Node) -> list[_Node]:
    found, pending = [], [root]
    while pending:
        node = pending.pop()
        found.append(node)
        pending += reversed(node.below)
    return found


def _draw(root: _Node, baseline: float, step: float, lacking: set[tuple[int, int]], colour: str) -> list[str]:
    """Lines first, so that labels stand over them; `step` is one level, negative upwards."""
    lines, labels = [], []
    towards_words = 1 if step < 0 else -1
    for node in _all(root):
        if node.kind == "word":
            continue
        y = baseline + node.level * step
        marked = (node.start, node.end) in lacking and node.kind == "constituent"
        ink = colour if marked else TAG_INK if node.kind == "tag" else INK
        style = f'stroke="{ink}" stroke-width="{1.6 if marked else 1}"' + (' stroke-dasharray="5 3"' if marked else "")
        for child in node.below:
            ends = (y + towards_words * 0.6 * SIZE, baseline + child.level * step - towards_words * 0.6 * SIZE)
            lines.append(f'<line x1="{node.x:.1f}" y1="{ends[0]:.1f}" x2="{child.x:.1f}" y2="{ends[1]:.1f}" {style}/>')
        labels.append(_text(node.text, node.x, y, ink))
    return lines + labels


def _text(text: str, x: float, y: float, colour: str, more: str = "", *, anchor: str = "middle") -> str:
    """A text whose middle is at height `y`, on a white ground that keeps lines behind it away.

    A rectangle, not an edge painted below the letters (`paint-order`): programs that do not know that order paint the
    edge over them, and show nothing.
    """
    width, height = _width(text), 1.1 * SIZE
    left = x - width / 2 if anchor == "middle" else x
    ground = f'<rect x="{left:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" height="{height:.1f}" fill="white"/>'
    place = f'x="{x:.1f}" y="{y + 0.35 * SIZE:.1f}" text-anchor="{anchor}" fill="{colour}"'
    return ground + f"<text {place} {more}>{_safe(text)}</text>".replace(" >", ">")


def _safe(text: str) -> str:
    """The text as XML allows it: control characters, which XML 1.0 has no way to write, as U+FFFD."""
    return escape("".join(c if c >= " " and c not in "\ufffe\uffff" else "\ufffd" for c in text))
