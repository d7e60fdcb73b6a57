"""Costs are those of the steps that are carried out; plans and explanations follow from them."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rankfold import BinaryCPD, Branch, TreePotentials
from rankfold.__main__ import main
from rankfold.errors import ShapeError, UnsupportedError
from rankfold.fgg import (
    Factored,
    Grammar,
    conjoin,
    cost,
    decompose,
    explain,
    library,
    library_text,
    marginals,
    merge,
    plan,
    rank_space,
    recompose,
    string_query,
    sum_product,
)
from rankfold.fgg.contraction import REAL, Linear, Step
from rankfold.fgg.inference.solve import solve_plain
from rankfold.recursions import tree
from tests.fgg.cases import CPD_HMM, TD_PCFG, TEXTS, asked, constrained, undecided
from tests.fgg.plain import PCFG, example, plain
from tests.oracles import fgg as oracle

GRAMMARS: dict[str, Callable[[], Grammar]] = {
    **{name: (lambda name=name: asked(name)) for name in TEXTS},
    "automaton": constrained,
    "no query": undecided,
    "ranks, many words": lambda: conjoin(
        rank_space(example(TD_PCFG.replace("V = 5", "V = 50"))), string_query([[0, 11, 2, 43], [1, 1, 30, 1]])
    ),
    "ranks of a merged factor, many words": lambda: conjoin(
        rank_space(merge(example(MERGED), rules=["X.2"])), string_query([7, 30, 7])
    ),
    "ranks": lambda: conjoin(rank_space(example(TD_PCFG)), string_query([[0, 1, 2, 3], [1, 1, 1, 1]])),
}


MERGED = """
domain Z = 3; rank R = 2; observed V = 50
S() -> initial(z) X(z)
X(z: Z) -> u(z, r: R) emit(r, w: V) v(y: Z, r) X(y)
X(z) -> last(z) leave(z, w: V)
"""


@pytest.mark.parametrize("name", GRAMMARS)
def test_costs_are_what_is_carried_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    g = GRAMMARS[name]()
    done = 0
    product = Linear.product

    def counted(self: Linear, step: Step, left: Tensor, right: Tensor | None) -> Tensor:
        nonlocal done
        sizes = dict(zip(step.left_axes, left.shape, strict=True))
        sizes |= {} if right is None else dict(zip(step.right_axes, right.shape, strict=True))
        done += int(torch.Size(sizes.values()).numel())
        return product(self, step, left, right)

    monkeypatch.setattr(Linear, "product", counted)
    solve_plain(g, REAL)
    assert done > 0
    assert cost(g).multiply_adds == done


def big() -> tuple[Grammar, Grammar, Grammar, TreePotentials, Tensor]:
    """A PCFG of 30 / 60 symbols, rank 16: dense, in rank space, and for the fast recursion, with 16 x 20 words."""
    generator = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> Tensor:
        x = torch.rand(shape, generator=generator, dtype=torch.float64)
        return x / x.sum(-1, keepdim=True)

    u, v, w = rand(30, 16), rand(16, 90).mT, rand(16, 90).mT
    root, emit, words = rand(30), rand(60, 50), torch.randint(50, (16, 20), generator=generator)
    g = library("pcfg", N=30, P=60, V=50).with_factors({"root": root, "emit": emit})
    query = string_query(words)
    dense = conjoin(g.with_factors({"rule": torch.einsum("ar,br,cr->abc", u, v, w)}), query)
    factored = decompose(g, {"rule": (u, v, w)})
    (vn, vp), (wn, wp) = v.split([30, 60]), w.split([30, 60])
    rules = Branch(BinaryCPD(u, vn, wn), BinaryCPD(u, vn, wp), BinaryCPD(u, vp, wn), BinaryCPD(u, vp, wp))
    fast = TreePotentials(emit.log().mT[words], rules, root.log())
    return dense, conjoin(rank_space(factored), query), conjoin(factored, query), fast, words


def test_rank_space_is_cheaper_and_faster_than_dense_and_near_the_fast_recursion() -> None:
    dense, ranked, factored, fast, _ = big()
    assert cost(dense).multiply_adds > 100 * cost(ranked).multiply_adds
    assert cost(factored).multiply_adds > 9 * cost(ranked).multiply_adds  # children's sums shared in both
    torch.testing.assert_close(sum_product(ranked), tree.log_z(fast), rtol=1e-10, atol=0)
    torch.testing.assert_close(sum_product(ranked), sum_product(dense), rtol=1e-10, atol=0)
    # Measured 20 to 30 and 2; the bounds leave room for a machine that does other things.
    seconds = {
        name: timed(ask) for name, ask in (("rank", lambda: sum_product(ranked)), ("fast", lambda: tree.log_z(fast)))
    }
    seconds["dense"] = timed(lambda: sum_product(dense), repeats=2)
    assert seconds["dense"] > 3 * seconds["rank"]
    assert seconds["rank"] < 5 * seconds["fast"]


def timed(ask: Callable[[], object], repeats: int = 9) -> float:
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        ask()
        taken.append(time.perf_counter() - begin)
    return min(taken) if repeats < 3 else statistics.median_low(sorted(taken)[: repeats // 2 + 1])


def test_a_plan_takes_the_cheapest_form() -> None:
    u, v, w = (torch.rand(n, 3, dtype=torch.float64) for n in (2, 4, 4))
    g = conjoin(example(PCFG).with_factors({"rule": Factored.cpd(u, v, w)}), string_query([[0] * 8] * 8))
    found = plan(g)
    assert set(found.costs) == {"dense", "factored", "rank"}
    assert found.inference == min(found.costs, key=lambda name: found.costs[name].multiply_adds) == "rank"
    wanted = sum_product(g)
    for name in ("dense", "factored", "rank"):
        form = plan(g, inference=name)
        assert form.inference == name
        torch.testing.assert_close(sum_product(form.grammar), wanted, rtol=1e-11, atol=0)
    assert plan(asked("hmm")).inference in {"dense", "factored"}
    assert "'X.1[" in plan(asked("hmm")).refused["rank"]
    with pytest.raises(UnsupportedError, match=r"ties its external node"):
        plan(asked("hmm"), inference="rank")
    with pytest.raises(UnsupportedError, match=r"'fast' is unknown"):
        plan(g, inference="fast")  # type: ignore[arg-type]


def test_large_ranks_are_not_worth_it() -> None:
    text = CPD_HMM.replace("R = 2", "R = 40")
    g = conjoin(example(text), string_query([0] * 5))
    assert cost(rank_space(g)).multiply_adds > cost(g).multiply_adds
    assert plan(g).inference != "rank"


def test_an_explanation_names_rules_letters_and_what_was_won() -> None:
    text = explain(library("pcfg", N=30, P=60, V=100), 20, batch=16, rank=16)
    assert re.search(r"X\(n\) -> rule\(n, l, r\) Y\(l\) Y\(r\) +O\(n\^2 N \(N\+P\)\^2\) +1,330", text)
    assert re.search(r"X'\(q\) -> Y\[rule_1\]\(q\) Y\[rule_2\]\(q\) +O\(n\^3 R\[rule\]\)", text)
    assert text.count("derived once") == 5
    before, after = (int(x.replace(",", "")) for x in re.findall(r"in all ([\d,]+) multiply-adds", text))
    assert f"{before / after:,.3g} times fewer" in text
    assert explain(library("hmm", Z=3, V=4)).startswith("as written: one use of each rule, Z = 3, V = 4")
    assert "--rank 16, takes next as given by parts" in explain(library("hmm", Z=3, V=4), 5)
    with pytest.raises(ShapeError, match=r"size of domain 'Z'"):
        explain(library("hmm"), 5)


def test_the_command_explains_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "g.fgg"
    path.write_text(library_text("td_pcfg"))
    sizes = [x for name in ("N=30", "P=60", "V=10", "R=4") for x in ("--set", name)]
    assert main(["explain", str(path), "--length", "12", "--batch", "1", *sizes]) == 0
    assert "in rank space: 1 sentence of 12 words" in capsys.readouterr().out
    assert main(["explain", str(path), "--length", "12", *sizes]) == 0
    assert "as written: 1 sentence of 12 words" in capsys.readouterr().out
    assert main(["explain", str(path), "--length", "12", "--batch", "3", *sizes]) == 0
    assert "as written: 3 sentences of 12 words" in capsys.readouterr().out
    assert main(["explain", str(path), "--batch", "0", *sizes]) == 2
    assert "--batch is 0" in capsys.readouterr().err
    assert main(["explain", str(path), "--length", "12", "--json", *sizes]) == 0
    assert '"multiply_adds"' in capsys.readouterr().out
    assert main(["explain", str(path), "--set", "N=many"]) == 2
    assert "not a size of a domain" in capsys.readouterr().err
    assert main(["explain", str(tmp_path / "none.fgg")]) == 2
    assert "no such file; a grammar was expected" in capsys.readouterr().err
    assert main(["explain", "small-lhmm", "--rank", "3"]) == 2
    assert "--rank is for grammars" in capsys.readouterr().err


def test_each_childs_sum_over_ranks_is_taken_once() -> None:
    """Equation 10: X(n) -> u(n, q) Y[v](q) Y[w](q), with Y[v](q) -> v(l, q) Y(l) once a span, whoever reads it."""
    tree = library("td_pcfg", N=30, P=60, R=16, V=100)
    text = explain(tree, length=20)
    assert re.search(r"X\(n\) -> u\(n, q\) Y\[v\]\(q\) Y\[w\]\(q\) .* 112,480\n", text)
    assert re.search(r"Y\[v\]\(q\) -> v\(l, q\) Y\(l\) +O\(n\^2 \(N\+P\) R\) +190 +273,600\n", text)
    spans, splits = 190, 1330  # of 20 words: those of two or more, and the ways to split them
    by_hand = splits * 16 + spans * 30 * 16 + 2 * spans * 90 * 16  # products of ranks, u, then v and w
    inclusions = 30 + 189 * 30 * 90 + 20 * 90 * 60  # root, and nonterminals and preterminals among all symbols
    assert f"in all {by_hand + inclusions:,} multiply-adds" in text
    assert text.endswith("3.03 times fewer multiply-adds (1,278,010 as written, 422,288 in rank space)")


@pytest.mark.parametrize(("rank", "best_form"), [(16, "rank"), (500, "factored")])
def test_the_plan_knows_the_shared_sums(rank: int, best_form: str) -> None:
    g = library("td_pcfg", N=30, P=60, R=rank, V=100)
    shapes = {label.name: [g.size(domain) for domain in label.type] for label in g.labels if label.is_terminal}
    g = g.with_factors({name: torch.ones(shape) for name, shape in shapes.items() if not name.startswith("in[")})
    found = plan(conjoin(g, string_query([1] * 20)))
    assert found.inference == best_form
    if rank == 500:  # 21 million against 106 million
        assert found.costs["rank"].multiply_adds > 4.9 * found.costs["factored"].multiply_adds


def test_shared_sums_change_no_answer() -> None:
    small = TD_PCFG.replace("N = 3", "N = 2").replace("P = 4", "P = 2")
    g = conjoin(example(small), string_query([[0, 3, 1], [2, 2, 0]]))
    found = marginals(g)
    assert not any("[v]" in name or "[w]" in name for name in (*found.nonterminals, *found.rules))
    for sentence in range(2):
        truth = oracle.total(*plain(g, sentence))
        assert float(found.log_z[sentence]) == pytest.approx(math.log(truth), abs=1e-12)
    whole = next(rule.name for rule in g.rules if rule.name.startswith("X.1[0,1,3]"))
    nodes = marginals(g, [(whole, "l"), (whole, "q")]).nodes
    for node in "lq":
        torch.testing.assert_close(nodes[whole, node].sum(-1), found.rules[whole], rtol=1e-12, atol=1e-14)
    assert sum_product(g, "counting").tolist() == [
        oracle.count(*plain(recompose(g, "counts"), sentence)) for sentence in range(2)
    ]
