"""Texts for demonstrations: the docstrings of Python's standard library, and sentences of a small grammar of English.

Source files are parsed, never imported; examples, tables and code are left out. Of the grammar's sentences the trees
are known, one each, and can be found without them: articles agree with their nouns, noun phrases stand where names do.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from rankfold.data.text import write_new
from rankfold.data.trees import Tree
from rankfold.errors import DataError, DomainError

LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__", "turtledemo"}
SHORTEST, LONGEST = 3, 60  # tokens of a sentence

# A word or a dotted name, perhaps hyphenated or with an apostrophe inside; a number; one sign of punctuation.
TOKEN = re.compile(r"\.?[A-Za-z_]\w*(?:\.\w+)*(?:[-'][A-Za-z]+)*|\d+(?:[.,:]\d+)*|--|[.,;:!?()]")
# A name that only code has: an underscore, dot or digit inside, a capital after a small letter.
CODE = re.compile(r"(?!\d)\w*(?:[_\d]|\.\w)|.*[a-z][A-Z]")
# Marks around words and after calls, which are dropped while the word stays.
MARKS = re.compile(r"""[`"*]+|(?<!\w)'|'(?!\w)|(?<=\w)\(\)""")
ABBREVIATION = re.compile(r"\b(?:e\.?g|i\.?e|etc|vs|cf|resp|approx)\.(?=[,)]|\s+[^A-Z\s])")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z(])|(?<=[.!?]\))\s+(?=[A-Z(])")
DOCTEST = re.compile(r"\s*(?:>>>|\.\.\.(?:\s|$))")
# An item of a list, a field, the name that a description follows: each starts a line of its own.
ITEM = re.compile(
    r"\s*(?:[-*o+]\s+|:\w[^:]*:\s+|\(?(?:\d+|[a-z])[.)]\s+|[\w.*]+(?:\(.*\))?\s+(?:--?|=|:)\s+|[\w.*]+:\s+)"
)
# Every sentence has one of these: the others are headings, lists of names and remains of code.
WORDS = (
    "a an the of to in is are be was it this that these if for with on by not or and as from at can may must should "
    "will when which no any all each only there does do has have you your we use used than into then but"
)
COMMON = frozenset(WORDS.split())


@dataclass(frozen=True)
class DocstringText:
    """The sentences of all docstrings, the number of files read, and the files that could not be read or parsed."""

    modules: dict[str, list[list[str]]]  # by module at the top, such as json or xml, with all that is below it
    num_files: int
    skipped: list[Path]

    @property
    def sentences(self) -> list[list[str]]:
        """Those of all modules."""
        return [sentence for sentences in self.modules.values() for sentence in sentences]


def docstring_sentences(folder: str | Path | None = None) -> list[list[str]]:
    """The sentences of `read_docstrings` alone."""
    return read_docstrings(folder).sentences


def read_docstrings(folder: str | Path | None = None) -> DocstringText:
    """Every different sentence of the docstrings below a folder, files in the order of their names.

    Without a folder: this Python's standard library, without its tests. Tokens are words in lower case, names and
    punctuation; numbers are `N`. A sentence has 3 to 60 tokens, begins with a capital, has at least one common word
    of English, and at most a fifth of it are names of code; any sign that prose does not have drops it whole.
    A sentence of several modules counts for the first of them.
    """
    root = Path(sysconfig.get_path("stdlib") if folder is None else folder)
    paths = sorted(_files(root), key=lambda path: path.relative_to(root).as_posix())
    if not paths:
        raise DataError(f"{root}: no Python files; the standard library may be installed without its sources.")
    modules: dict[str, list[list[str]]] = {}
    seen: set[tuple[str, ...]] = set()
    skipped = []
    for path in paths:
        tree = _parsed(path)
        if tree is None:
            skipped.append(path)
            continue
        said = dict.fromkeys(tokens for docstring in _docstrings(tree) for tokens in _sentences(docstring))
        module = path.relative_to(root).parts[0].removesuffix(".py")
        modules.setdefault(module, []).extend(list(tokens) for tokens in said if tokens not in seen)
        seen.update(said)
    return DocstringText({name: said for name, said in modules.items() if said}, len(paths) - len(skipped), skipped)


def split(
    modules: Mapping[str, Sequence[list[str]]], *, valid: float = 0.06, test: float = 0.06
) -> dict[str, list[list[str]]]:
    """Train, valid and test, each module as a whole in one of them, so that held-out text is of modules never seen.

    In an order that a hash of their names gives, modules fill test and then valid, up to these shares of the sentences.
    A module larger than a quarter of a share is passed over, unless it is of one sentence: held-out text is of many
    modules. The rest is train.
    """
    if not (valid >= 0 and test >= 0 and valid + test < 1):
        raise DomainError(f"valid is {valid} and test is {test}, but they are shares, at least 0 and below 1 together.")
    total = sum(map(len, modules.values()))
    waiting = sorted(modules, key=lambda name: hashlib.sha256(name.encode()).digest())
    taken: dict[str, list[str]] = {}
    for part, share in (("test", test), ("valid", valid)):
        room = share * total
        taken[part] = []
        for name in waiting:
            if len(modules[name]) <= min(room, max(1, share * total / 4)):
                taken[part].append(name)
                room -= len(modules[name])
        waiting = [name for name in waiting if name not in taken[part]]
    taken["train"] = waiting
    return {
        part: [sentence for name in sorted(taken[part]) for sentence in modules[name]]
        for part in ("train", "valid", "test")
    }


def write_corpus(folder: str | Path, *, source: str | Path | None = None) -> dict[str, Path]:
    """Write `train.txt`, `valid.txt` and `test.txt`, one sentence per line; files that hold the same stay untouched.

    No two of them share a sentence or a module. A file of that name that holds anything else is never written over:
    `DataError`, and nothing is written.
    """
    texts = {
        Path(folder) / f"{name}.txt": "".join(" ".join(sentence) + "\n" for sentence in sentences)
        for name, sentences in split(read_docstrings(source).modules).items()
    }
    write_new(texts)
    return {path.stem: path for path in texts}


def _files(root: Path) -> Iterator[Path]:
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in LEFT_OUT]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _parsed(path: Path) -> ast.AST | None:
    """The syntax tree of a file; None if it is not a regular file (a pipe, say) or not Python."""
    if not path.is_file():
        return None
    try:
        with warnings.catch_warnings():  # of odd strings and the like in code that is not run
            warnings.simplefilter("ignore")
            return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # MemoryError: nested too deep
        return None


def _docstrings(tree: ast.AST) -> Iterator[str]:
    """The docstrings of a module, its classes and functions, in the order of the file."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                yield docstring
        if isinstance(node, ast.stmt | ast.Module | ast.ExceptHandler):  # expressions hold no definitions
            todo.extend(reversed(list(ast.iter_child_nodes(node))))


def _sentences(docstring: str) -> Iterator[tuple[str, ...]]:
    for chunk, complete in _chunks(inspect.cleandoc(docstring).splitlines()):
        chunk = ABBREVIATION.sub(lambda found: found[0].replace(".", ""), MARKS.sub("", chunk)).strip()
        sentences = SENTENCE_END.split(chunk)
        if not complete and not chunk.endswith((".", "!", "?", ":", ")")):
            del sentences[-1]  # its other half was no prose
        for sentence in sentences:
            if tokens := _tokens(sentence):
                yield tokens


def _chunks(lines: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Lines that belong together, joined, and whether they end where a paragraph or an item does."""
    chunk: list[str] = []
    depth, example = 0, False
    for line in [*lines, ""]:
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        example = bool(text) and (example or bool(DOCTEST.match(line)))  # what it prints follows, up to a blank line
        item = ITEM.match(line)
        prose = not example and _is_prose(text)
        if chunk and (not prose or item or indent < depth):
            yield " ".join(chunk), prose or not text
            chunk = []
        if prose:
            chunk.append(line[item.end() :].strip() if item else text)
            depth = indent


def _is_prose(line: str) -> bool:
    """Whether a line is mostly letters, in one column."""
    bare = MARKS.sub("", line)
    letters = sum(letter.isalpha() or letter == " " for letter in bare)
    return letters > 0.75 * len(bare) and not re.search(r"[^.!?:]\s{2,}", line)


def _tokens(sentence: str) -> tuple[str, ...]:
    """The tokens of a sentence, or none where it is not one."""
    if not sentence[:1].isupper() or not sentence.isascii() or re.search(r"\w\(|--\w", sentence):
        return ()
    if TOKEN.sub("", sentence).strip():  # a sign that prose does not have
        return ()
    words = TOKEN.findall(sentence)
    if not SHORTEST <= len(words) <= LONGEST or sum(bool(CODE.match(word)) for word in words) > len(words) / 5:
        return ()
    tokens = tuple("N" if word[0].isdigit() else word.lower() for word in words)
    cut_short = tokens[-1] in COMMON or tokens[-1] in (",", ";", "--") or words.count("(") != words.count(")")
    return () if cut_short or not COMMON.intersection(tokens) else tokens


# One line a symbol: choices apart by |, each of symbols and its weight. Symbols without a line of their own are tags.
RULES = """
S    : NP VP 6 | NAME VP 4 | NP VI 1 | NAME VI 1
NP   : DS N 4 | DP NS 4 | NB OFP 1 | NB REL 1
NB   : DS N 1 | DP NS 1
OFP  : OF NB 2 | OF NAME 1
REL  : WHO VP 3 | WHO VI 1
VP   : VT NP 4 | VT NAME 3 | VC PP 3 | VI PP 2 | VS THAT 3 | VC ANDV 2
VC   : VT NB 2 | VT NAME 1
ANDV : AND VC 3 | AND VI 1
THAT : COMP S 1
PP   : P NB 2 | P NAME 1
"""
LEXICON = """
DS   : a 3 | every 2 | this 2
DP   : two 1 | many 1 | these 1
N    : dog cat child teacher farmer horse
NS   : dogs cats children teachers farmers horses
NAME : mary john alice peter anna
OF   : of
WHO  : who
P    : in near behind under
VT   : saw found liked carried followed
VI   : slept laughed waited sang
VS   : said knew thought
COMP : that
AND  : and
"""


class Choice(NamedTuple):
    """What a symbol may become, with its weight."""

    parts: tuple[str, ...]
    weight: float


def grammar() -> dict[str, list[Choice]]:
    """The choices of every symbol; those of tags are single words."""
    rules: dict[str, list[Choice]] = {}
    for line in (RULES + LEXICON).strip().splitlines():
        if not line.strip():
            continue
        symbol, _, choices = line.partition(":")
        found = []
        for choice in choices.split("|"):
            *parts, last = choice.split()
            if last.isdigit():
                found.append(Choice(tuple(parts), float(last)))
            else:
                found += [Choice((word,), 1.0) for word in (*parts, last)]
        rules[symbol.strip()] = found
    return rules


def draw_trees(num: int, *, seed: int, max_words: int = 14) -> list[Tree]:
    """Trees drawn from the grammar, each a sentence of two to `max_words` words; longer ones are drawn again."""
    if num < 1 or max_words < 3:
        raise DomainError(f"num is {num} and max_words {max_words}, but must be at least 1 and 3.")
    generator, rules = torch.Generator().manual_seed(seed), grammar()
    trees: list[Tree] = []
    while len(trees) < num:
        tree = _draw("S", rules, generator, [max_words])
        if tree is not None:
            trees.append(tree)
    return trees


def write_toy_corpus(folder: str | Path, *, num: int = 4000, num_held_out: int = 300, seed: int = 1) -> None:
    """`train.txt` and `valid.txt`, sentences alone, and `test.trees`, sentences not among them with their trees.

    Of the former, every 40th with a name has one that stands nowhere else, so that `data.min_count = 2` trains `<unk>`.
    Files that hold the same stay untouched; where one holds anything else, `DataError`, and nothing is written.
    """
    drawn = draw_trees(num + num_held_out, seed=seed)
    seen = {tuple(tree.words) for tree in drawn}
    fresh = [tree for tree in draw_trees(4 * num_held_out, seed=seed + 1) if tuple(tree.words) not in seen]
    test = list({tuple(tree.words): tree for tree in fresh}.values())[:num_held_out]
    texts = {"test.trees": "".join(f"{tree}\n" for tree in test)}
    lines = [" ".join(words) + "\n" for words in _with_rare_names([list(tree.words) for tree in drawn])]
    texts |= {"train.txt": "".join(lines[:num]), "valid.txt": "".join(lines[num:])}
    write_new({Path(folder) / name: text for name, text in texts.items()})


def _with_rare_names(sentences: list[list[str]], every: int = 40) -> list[list[str]]:
    """In every n-th sentence with a name, the first name becomes a name of its own, made of four syllables."""
    names, syllables = {choice.parts[0] for choice in grammar()["NAME"]}, ("ba", "do", "ki", "lu", "me")
    named = [words for words in sentences if names & set(words)]
    for i, words in enumerate(named[::every]):
        place = next(place for place, word in enumerate(words) if word in names)
        words[place] = "".join(syllables[i // 5**k % 5] for k in range(4)) + ("" if i < 625 else str(i // 625))
    return sentences


def _draw(symbol: str, rules: dict[str, list[Choice]], generator: torch.Generator, left: list[int]) -> Tree | None:
    """A tree under a symbol; None once it has more words than `left[0]` allows."""
    choices = rules[symbol]
    weights = torch.tensor([choice.weight for choice in choices], dtype=torch.float32)
    parts = choices[int(torch.multinomial(weights, 1, generator=generator))].parts
    if parts[0] not in rules:
        left[0] -= 1
        return Tree(symbol, parts) if left[0] >= 0 else None
    children = []
    for part in parts:
        child = _draw(part, rules, generator, left)
        if child is None:
            return None
        children.append(child)
    return Tree(symbol, tuple(children))
