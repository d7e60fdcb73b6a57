"""Factor graph grammars: first answers at a new length, a batch of mixed lengths, and a gradient step next to trees.

`python -m benchmarks fgg [N P b n] [--json FILE]`, on a GPU where there is one. Both steps sum the same trees: log Z
is compared before anything is timed, and so is that of a mixed batch with the sentences one by one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import rankfold
from benchmarks.steps.timed import Timed, tree_step, write
from rankfold import fgg
from rankfold.operators.binary import Branch
from rankfold.operators.binary_dense import BinaryDense

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORDS, REPEATS = 50, 5
LONG = 60  # words of a first answer
SENTENCES, MIXED = 32, ((3, 20), (5, 40))  # of mixed lengths, from and to


def main(given: Sequence[str] = ()) -> int:
    """Print the times; 1 if both sums differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks fgg", description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, metavar="N P b n", help="symbols, batch, length (5 8 4 40)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the row, for `structures`")
    args = parser.parse_args(given)
    num_n, num_p, batch, length = args.sizes or (5, 8, 4, 40)
    g, _ = _grammar(num_n, num_p)
    found = record(num_n, num_p, batch, length)
    if not found["passed"]:
        print("the two sums differ")
        return 1
    print(f"{DEVICE}, {num_n} / {num_p} symbols, {batch} x {length}, float32, the best of {REPEATS}")
    print(
        f"first sum {found['first_s']:.3f} s; gradient step {found['ms']:.1f} ms, trees {found['trees_ms']:.1f} ms: "
        f"{found['ratio']:.1f}x"
    )
    if args.json is not None:
        work = tree_step(batch, length, num_n, num_p)
        row = found["row"], found["size"], "float32", found["ms"], *work, "trees", found["trees_ms"]
        write(args.json, "python -m benchmarks fgg", [Timed("Factor graph grammars", *row)])
    _first_answers(g, DEVICE)
    return max(_mixed(g, DEVICE, *ends) for ends in MIXED)


def _grammar(num_n: int, num_p: int) -> tuple[fgg.Grammar, dict[str, Tensor]]:
    """A PCFG of random weights that need gradients, and these."""
    generator = torch.Generator().manual_seed(0)
    sizes = {"root": (num_n,), "rule": (num_n, num_n + num_p, num_n + num_p), "emit": (num_p, WORDS)}
    factors = {
        k: torch.rand(s, generator=generator).div(num_n + num_p).to(DEVICE).requires_grad_() for k, s in sizes.items()
    }
    return fgg.library("pcfg", N=num_n, P=num_p, V=WORDS).with_factors(factors), factors


def record(num_n: int, num_p: int, batch: int, length: int) -> dict[str, Any]:
    """Times of a step by the grammar and by trees, of the same sums, and of the first sum."""
    g, factors = _grammar(num_n, num_p)
    words = torch.randint(WORDS, (batch, length), generator=torch.Generator().manual_seed(1)).to(DEVICE)

    def by_grammar() -> Tensor:
        return fgg.sum_product(fgg.conjoin(g, fgg.string_query(words)))

    def by_trees() -> Tensor:
        rule, n = factors["rule"], num_n
        branch = Branch(
            BinaryDense(rule[:, :n, :n]), BinaryDense(rule[:, :n, n:]),
            BinaryDense(rule[:, n:, :n]), BinaryDense(rule[:, n:, n:]),
        )  # fmt: skip
        leaf = factors["emit"].log()[:, words].movedim(0, -1)
        return rankfold.log_z(rankfold.TreePotentials(leaf, branch, factors["root"].log()))

    first = _seconds(by_grammar, DEVICE)
    passed = torch.allclose(by_grammar(), by_trees(), rtol=1e-5)
    ours, trees = (1e3 * _gradient_seconds(f, DEVICE) for f in (by_grammar, by_trees))
    return {
        "row": f"pcfg as a grammar of one's own, {num_n} / {num_p} symbols",
        "size": f"{batch} x {length}",
        "precision": "float32",
        "passed": passed,
        "first_s": first,
        "ms": ours,
        "trees_ms": trees,
        "ratio": ours / trees,
    }


def _first_answers(g: fgg.Grammar, device: str) -> None:
    """Print the time of each question's first answer, each at a length that none had before."""
    generator = torch.Generator(device).manual_seed(1)
    words = torch.randint(WORDS, (LONG + 8,), generator=torch.Generator().manual_seed(2)).to(device)
    brackets = [(1, 4), (10, LONG - 3)]
    ranked = _ranked(g, device)
    questions: dict[str, Callable[[Tensor], object]] = {
        "sum": lambda x: fgg.sum_product(fgg.conjoin(g, fgg.string_query(x))),
        "brackets": lambda x: fgg.sum_product(fgg.conjoin(g, fgg.string_query(x, brackets=brackets))),
        "shared sums": lambda x: fgg.sum_product(fgg.conjoin(ranked, fgg.string_query(x))),
        "posteriors": lambda x: fgg.marginals(fgg.conjoin(g, fgg.string_query(x))).spans["X"],
        "best": lambda x: fgg.best(fgg.conjoin(g, fgg.string_query(x))),
        "sample": lambda x: fgg.sample(fgg.conjoin(g, fgg.string_query(x)), generator=generator),
        "100 samples": lambda x: fgg.sample(fgg.conjoin(g, fgg.string_query(x)), num=100, generator=generator),
    }
    print(f"first answers at {LONG} words and a few more, s:", end="")
    for k, (name, question) in enumerate(questions.items()):
        own = words[: LONG + k]
        print(f" {name} {_seconds(lambda: question(own), device):.2f}", end=";" if k + 1 < len(questions) else "\n")  # noqa: B023


def _ranked(g: fgg.Grammar, device: str) -> fgg.Grammar:
    """A grammar whose rule is given by its ranks: each child's sum is shared by all its parents."""
    generator = torch.Generator().manual_seed(3)
    n, p, ranks = g.size("N"), g.size("P"), 4
    shapes = {"root": (n,), "u": (n, ranks), "v": (n + p, ranks), "w": (n + p, ranks), "emit": (p, WORDS)}
    found = fgg.library("td_pcfg", N=n, P=p, R=ranks, V=WORDS)
    return found.with_factors({k: torch.rand(x, generator=generator).div(ranks).to(device) for k, x in shapes.items()})


def _mixed(g: fgg.Grammar, device: str, shortest: int, longest: int) -> int:
    """Print the time of a gradient step of sentences of mixed lengths, together and one by one; 1 if sums differ."""
    generator = torch.Generator().manual_seed(4)
    lengths = torch.randint(shortest, longest + 1, (SENTENCES,), generator=generator).tolist()
    lengths[0] = longest
    sentences = [torch.randint(WORDS, (length,), generator=generator).tolist() for length in lengths]

    def together() -> Tensor:
        return fgg.sum_product(fgg.conjoin(g, fgg.string_query(sentences)))

    def one_by_one() -> Tensor:
        return torch.stack([fgg.sum_product(fgg.conjoin(g, fgg.string_query(words))) for words in sentences])

    if not torch.allclose(together(), one_by_one(), rtol=1e-5):
        print("the sums of a mixed batch differ from those of its sentences")
        return 1
    batch, alone = (_gradient_seconds(f, device) for f in (together, one_by_one))
    print(
        f"{SENTENCES} sentences of {shortest} to {longest} words, gradient step: together {1e3 * batch:.0f} ms, "
        f"one by one {1e3 * alone:.0f} ms: {alone / batch:.1f}x"
    )
    return 0


def _seconds(call: Callable[[], object], device: str) -> float:
    begin = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def _gradient_seconds(total: Callable[[], torch.Tensor], device: str) -> float:
    return min(_seconds(lambda: total().sum().backward(), device) for _ in range(REPEATS))
