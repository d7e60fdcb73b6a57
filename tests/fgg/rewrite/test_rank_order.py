"""Rank space keeps the order of a string, whichever places its rules write their words at, and takes odd fragments."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from rankfold.fgg import Factored, Grammar, conjoin, decompose, plan, rank_space, string_query, sum_product
from tests.fgg.plain import example

HEAD = "domain Z = 3; observed V = 3\nS() -> f(z: Z) T(z)\n"
ODD = {
    "a word after the child": "T(z: Z) -> d(z, x: Z) T(x) e(z, w: V) | e(z, w: V)",
    "words on both sides": "T(z: Z) -> l(z, w: V) d(z, x: Z) T(x) r(z, y: V) | l(z, w)",
    "a word between children": "T(z: Z) -> c(z, l: Z, r: Z) T(l) m(z, w: V) T(r) | m(z, w)",
    "words around two children": "T(z: Z) -> c(z, l: Z, r: Z) k(y: V) T(l) m(z, w: V) T(r) m(z, v: V) | m(z, w)",
    "no factor on the external node": "T(z: Z) -> e(w: V)",
    "no factor on it above a child": "T(z: Z) -> b(y: Z) T(y) e(w: V) | k(z, w: V)",
    "a rank of the state alone": "T(z: Z) -> a(z) s(z, z) b(y: Z, w: V) T(y) | e(z, w: V)",
    "a rank of a child's state alone": "T(z: Z) -> a(z) e(z, w: V) s(y: Z, y) T(y) | e(z, w)",
}


def forms(name: str) -> tuple[Grammar, Grammar]:
    """A grammar with `b`, `c`, `d` and `s` by ranks, and without."""
    g = example(HEAD + ODD[name])
    parts = {}
    for label in g.labels:
        if label.name in set("bcds") and label.arity > 1:
            sizes = [g.size(domain) for domain in label.type]
            parts[label.name] = tuple(torch.rand(n, 2, dtype=torch.float64) + 0.1 for n in sizes)
    return decompose(g, parts), g.with_factors({k: Factored.cpd(*own).to_dense() for k, own in parts.items()})


@pytest.mark.parametrize("name", ODD)
def test_words_keep_their_order_in_rank_space(name: str) -> None:
    given, dense = forms(name)
    before = rank_space(given)
    some = 0.0
    for length in (1, 2, 3, 4):
        for words in list(product(range(3), repeat=length))[:: max(1, 3 ** (length - 2))]:
            query = string_query(list(words))
            wanted = sum_product(conjoin(dense, query), "real")
            some += float(wanted)
            for form in (
                conjoin(before, query),
                rank_space(conjoin(given, query)),
                conjoin(plan(given, "rank").grammar, query),
            ):
                torch.testing.assert_close(sum_product(form, "real"), wanted, rtol=1e-12, atol=0)
    assert some > 0
