"""Factor graph grammars: the first sum of a new length, and a gradient step next to the recursion over trees.

`python -m benchmarks fgg [N P b n] [--json FILE]`, on a GPU where there is one. Both steps sum the same
trees: log Z is compared before anything is timed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

import rankfold
from benchmarks.steps.timed import Timed, tree_step, write
from rankfold import fgg
from rankfold.operators.binary import Branch
from rankfold.operators.binary_dense import BinaryDense

WORDS, REPEATS = 50, 5


def main(given: Sequence[str] = ()) -> int:
    """Print the times; 1 if both sums differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks fgg", description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, metavar="N P b n", help="symbols, batch, length (5 8 4 40)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the row, for `structures`")
    args = parser.parse_args(given)
    num_n, num_p, batch, length = args.sizes or (5, 8, 4, 40)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    sizes = {"root": (num_n,), "rule": (num_n, num_n + num_p, num_n + num_p), "emit": (num_p, WORDS)}
    factors = {
        k: torch.rand(s, generator=generator).div(num_n + num_p).to(device).requires_grad_() for k, s in sizes.items()
    }
    g = fgg.library("pcfg", N=num_n, P=num_p, V=WORDS).with_factors(factors)
    words = torch.randint(WORDS, (batch, length), generator=generator).to(device)

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

    first = _seconds(by_grammar, device)
    if not torch.allclose(by_grammar(), by_trees(), rtol=1e-5):
        print("the two sums differ")
        return 1
    ours, trees = (_gradient_seconds(f, device) for f in (by_grammar, by_trees))
    print(f"{device}, {num_n} / {num_p} symbols, {batch} x {length}, float32, the best of {REPEATS}")
    print(
        f"first sum {first:.3f} s; gradient step {1e3 * ours:.1f} ms, trees {1e3 * trees:.1f} ms: {ours / trees:.1f}x"
    )
    if args.json is not None:
        name, size = f"pcfg as a grammar of one's own, {num_n} / {num_p} symbols", f"{batch} x {length}"
        work = tree_step(batch, length, num_n, num_p)
        own = Timed("Factor graph grammars", name, size, "float32", 1e3 * ours, *work, "trees", 1e3 * trees)
        write(args.json, "python -m benchmarks fgg", [own])
    return 0


def _seconds(call: Callable[[], object], device: str) -> float:
    begin = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def _gradient_seconds(total: Callable[[], torch.Tensor], device: str) -> float:
    return min(_seconds(lambda: total().sum().backward(), device) for _ in range(REPEATS))
