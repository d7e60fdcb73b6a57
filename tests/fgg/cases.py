"""Grammars of several kinds, with a query, small enough to be enumerated."""

from __future__ import annotations

from rankfold.fgg import Grammar, automaton_query, conjoin, string_query
from tests.fgg.plain import HMM, PCFG, example

PCFG_5_8 = PCFG.replace("N = 2", "N = 5").replace("P = 2", "P = 8").replace("V = 3", "V = 4")

HSMM = """
domain Z = 2; domain D = 3; observed V = 3
factor duration: Z, D
factor emit: Z, V
S() -> initial(z) X(z)
X(z: Z) -> duration(z, 0) emit(z, a) Next(z)
X(z) -> duration(z, 1) emit(z, a) emit(z, b) Next(z)
X(z) -> duration(z, 2) emit(z, a) emit(z, b) emit(z, c) Next(z)
Next(z: Z) -> next(z, y: Z) X(y) | 1
"""

# A constituent with two heads: one is handed to each child, a word is written by both, and a node stands alone.
TWO_HEADS = """
domain A = 2; domain B = 3; observed V = 2
factor both: A, B, V
S() -> start(a, b) H(a, b)
H(a: A, b: B) -> split(a, b, c: A, d: B) H(a, d) H(c, b)
H(a, b) -> both(a, b, w)
H(a, b) -> both(a, b, w) same(a, a) both(a, b, x)
"""

TEXTS = {"hmm": HMM, "pcfg": PCFG, "hsmm": HSMM, "two heads": TWO_HEADS}

TD_PCFG = """
domain N = 3; domain P = 4; rank R = 2; observed V = 5
factor v: N+P, R
factor w: N+P, R
factor emit: P, V
S() -> root(n) X(n)
X(n: N) -> u(n: N, q: R) v(l, q) w(r, q) Y(l) Y(r)
Y(y: N+P) -> X(y) | emit(y, o)
"""

CPD_HMM = """
domain Z = 4; rank R = 2; observed V = 3
S() -> initial(z) X(z)
X(z: Z) -> u(z, r: R) emit(r, w: V) v(y: Z, r) X(y)
X(z) -> u(z, r) emit(r, w)
"""


def asked(name: str) -> Grammar:
    """A grammar of the list with random factors and a batch of two sentences."""
    return conjoin(example(TEXTS[name]), string_query([[0, 1, 1], [1, 1, 0]]))


def constrained() -> Grammar:
    """A grammar under an automaton that takes strings of two or three words."""
    arcs = [(0, 1, [0, 2]), (1, 2, None), (1, 3, [1]), (2, 3, None)]
    return conjoin(example(PCFG), automaton_query(arcs, finals=[3]))


def undecided() -> Grammar:
    """A grammar that is acyclic without a query, with constants, equal rules, and edges that attach to a node twice."""
    return example(
        """
        domain A = 2; domain B = 3
        factor g: A, B
        factor at: B, A
        S() -> X(a) Y(b, b) | X(a) Y(b, b) | Y(b, c) at(c, 1)
        X(a: A) -> f(a) | g(a, 1) Z()
        Y(b: B, c: B) -> h(b, c, b)
        Z() -> k() | k()
        """
    )
