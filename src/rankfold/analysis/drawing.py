"""Sentences that a grammar makes up, with the trees that made them.

Read next: `decoding/tree_generate.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from rankfold.data.trees import Tree
from rankfold.decoding.tree_generate import Generated, generate_trees
from rankfold.errors import UnsupportedError
from rankfold.models.catalog import AnyModel
from rankfold.models.pcfg import PCFG
from rankfold.queries.tree import as_tree, written


class Drawn(NamedTuple):
    """Sentences, their trees with the grammar's symbols, and how many were thrown away because they were too long."""

    words: list[list[str]]
    trees: list[Tree]
    rejected: int


def draw_sentences(model: AnyModel, num: int = 5, *, max_length: int = 40, generator: torch.Generator) -> Drawn:
    """Independent sentences of at most `max_length` words, exactly as the grammar has them given that length."""
    if not isinstance(model, PCFG):
        raise UnsupportedError(
            f'sentences cannot be drawn from the family "{model.config.family}" yet: each has a grammar of its own.\n'
            "  npcfg, tnpcfg, rankpcfg, lpcfg and spcfg can."
        )
    assert model.vocabulary is not None
    with torch.no_grad():
        parts = model.parts()
        found: Generated = generate_trees(
            parts.rules,
            parts.log_root,
            parts.emission.log_rows,
            num,
            max_length=max_length,
            log_root_leaf=parts.log_root_leaf,
            generator=generator,
        )
    words = [model.vocabulary.decode(row) for row in found.words]
    trees = [as_tree(tree, list(map(written, row))) for tree, row in zip(found.trees, words, strict=True)]
    assert all(tree is not None for tree in trees)
    return Drawn(words, [tree for tree in trees if tree is not None], found.rejected)
