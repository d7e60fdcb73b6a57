"""A small grammar of English whose trees are known: what a demonstration induces, and a test can check.

Every sentence has one tree. What can be found without trees is there to be found: articles agree with their nouns, noun
phrases stand where names do, verb phrases also after "who" and "and", clauses also after "that".
Read next: `analysis/bracketing.py`, which compares trees.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from rankfold.data.text import write_new
from rankfold.data.trees import Tree
from rankfold.errors import DomainError

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
WORDS = """
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
    for line in (RULES + WORDS).strip().splitlines():
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
    """The first name of every so-manieth sentence that has one becomes a name of its own, made of four syllables."""
    names, syllables = {choice.parts[0] for choice in grammar()["NAME"]}, ("ba", "do", "ki", "lu", "me")
    named = [words for words in sentences if names & set(words)]
    for i, words in enumerate(named[::every]):
        place = next(place for place, word in enumerate(words) if word in names)
        words[place] = "".join(syllables[i // 5**k % 5] for k in range(4)) + ("" if i < 625 else str(i // 625))
    return sentences


def _draw(symbol: str, rules: dict[str, list[Choice]], generator: torch.Generator, room: list[int]) -> Tree | None:
    """A tree under a symbol; None once it has more words than there is room for."""
    choices = rules[symbol]
    weights = torch.tensor([choice.weight for choice in choices], dtype=torch.float32)
    parts = choices[int(torch.multinomial(weights, 1, generator=generator))].parts
    if parts[0] not in rules:
        room[0] -= 1
        return Tree(symbol, parts) if room[0] >= 0 else None
    children = []
    for part in parts:
        child = _draw(part, rules, generator, room)
        if child is None:
            return None
        children.append(child)
    return Tree(symbol, tuple(children))
