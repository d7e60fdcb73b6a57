"""Every grammar the suites run on, tiny and in float64. A new family or size joins by adding a line to SIZES."""

import itertools
from typing import Any, NamedTuple

import torch

from rankfold.data.batch import Batch
from rankfold.models import GrammarConfig, build_model
from rankfold.models.config import KINDS
from rankfold.models.pcfg import PCFG
from tests.oracles import tree as oracle
from tests.params.build import stirred

NUM_WORDS = 3

# Family, then what differs from COMMON. Odd on purpose: one symbol, rank 1, rank above symbols, no layers.
SIZES: list[tuple[str, dict[str, Any]]] = [
    ("npcfg", {}),
    ("npcfg", {"num_nonterminals": 1, "num_preterminals": 1, "single_words": True}),
    ("tnpcfg", {"rank": 4}),
    ("tnpcfg", {"rank": 1, "single_words": True}),
    ("tnpcfg", {"rank": 3, "plan": "rank"}),
    ("rankpcfg", {"rank": 3}),
    ("rankpcfg", {"rank": 3, "released": True}),
    ("rankpcfg", {"rank": 2, "num_nonterminals": 3, "plan": "rank", "single_words": True, "num_layers": 0}),
    ("lpcfg", {"rank": 2}),
    ("lpcfg", {"rank": 3, "released": True, "low_rank": ("span_span", "span_leaf", "leaf_span")}),
    ("lpcfg", {"rank": 1, "low_rank": KINDS, "single_words": True}),
    ("lpcfg", {"rank": 2, "low_rank": ()}),
    ("spcfg", {}),
    ("spcfg", {"num_nonterminals": 1, "num_preterminals": 3, "single_words": True}),
]
COMMON: dict[str, Any] = {"num_nonterminals": 2, "num_preterminals": 2, "dim": 3, "num_layers": 1}


class GrammarCase(NamedTuple):
    """A named configuration."""

    name: str
    config: GrammarConfig

    def plain(self, seed: int = 0) -> PCFG:
        """The grammar as it is built."""
        model = build_model(self.config, NUM_WORDS, seed=seed)
        assert isinstance(model, PCFG)
        return model

    def build(self, seed: int = 0) -> PCFG:
        """The grammar in float64, no table of it nearly uniform."""
        return stirred(self.plain(seed), seed=seed + 1)


def _name(family: str, sizes: dict[str, Any], neural: bool) -> str:
    values = (value if not isinstance(value, tuple) else len(value) for value in sizes.values())
    return "-".join([family, "neural" if neural else "free", *map(str, values)])


CASES = [
    GrammarCase(_name(family, sizes, neural), GrammarConfig(family=family, neural=neural, **{**COMMON, **sizes}))
    for (family, sizes), neural in itertools.product(SIZES, (True, False))
    if neural or not sizes.get("released")
]


def some_sentences() -> Batch:
    """A ragged batch with padding that is a word like any other."""
    words = torch.tensor([[0, 2, 1, 1], [2, 2, 0, 0], [1, 0, 0, 2], [1, 1, 2, 2]])
    return Batch(words, torch.tensor([4, 2, 3, 2]))


def all_sentences(length: int) -> Batch:
    """Every sentence of a length."""
    words = torch.tensor(list(itertools.product(range(NUM_WORDS), repeat=length)))
    return Batch(words, torch.full((len(words),), length))


def enumerated(model: PCFG, words: list[int], widest: int = 99) -> float:
    """The probability of a sentence, summed over every tree by the oracle.

    `widest`: over trees whose constituents have at most so many words, or end the sentence.
    """
    tables = model.to_tables()
    n, rules = model.config.num_nonterminals, tables.rules
    span, leaf = slice(n), slice(n, None)
    kinds = {
        "ss": rules[:, span, span],
        "sl": rules[:, span, leaf],
        "ls": rules[:, leaf, span],
        "ll": rules[:, leaf, leaf],
    }
    root_leaf = tables.root[n:].tolist() or [0.0] * model.config.num_preterminals
    found = oracle.weights(
        tables.emission.mT[words].tolist(),
        {kind: table.tolist() for kind, table in kinds.items()},
        tables.root[:n].tolist(),
        root_leaf,
        {},
    )
    return sum(
        weight
        for tree, weight in found.items()
        if all(j - i <= widest or j == len(words) for i, j in oracle.brackets(tree))
    )
