"""Sentences that a grammar makes up, with the trees that made them.

Read next: `decoding/tree_generate.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from rankfold.data.text import escaped
from rankfold.data.trees import Tree
from rankfold.decoding.parsed_tree import as_tree
from rankfold.errors import UnsupportedError
from rankfold.models.catalog import AnyModel
from rankfold.models.compound_pcfg import CompoundPCFG
from rankfold.models.pcfg import PCFG


class Drawn(NamedTuple):
    """Sentences, their trees with the grammar's symbols, and how many were thrown away because they were too long."""

    words: list[list[str]]
    trees: list[Tree]
    rejected: int


def draw_sentences(model: AnyModel, num: int = 5, *, max_length: int = 40, generator: torch.Generator) -> Drawn:
    """Independent sentences of at most `max_length` words, exactly as the grammar has them given that length.

    Those of a compound PCFG each under a vector of its own.
    """
    if not isinstance(model, PCFG | CompoundPCFG):
        raise UnsupportedError(f'"{model.config.family}" is no family of grammars: there are no trees to draw.')
    assert model.vocabulary is not None
    found = model.generate_trees(num, max_length=max_length, generator=generator)
    words = [model.vocabulary.decode(row) for row in found.words]
    trees = [as_tree(tree, list(map(escaped, row))) for tree, row in zip(found.trees, words, strict=True)]
    assert all(tree is not None for tree in trees)
    return Drawn(words, [tree for tree in trees if tree is not None], found.rejected)
