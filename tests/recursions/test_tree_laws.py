"""Laws of trees: what must hold whatever the numbers are."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from rankfold import BinaryCPD, BinaryDense, BinaryMatricised, Branch, TreePotentials, posterior
from rankfold.recursions.tree import chart, log_z
from tests.recursions.trees import EVERY, INF, leaves, potentials, shapes

NEAR = {"rtol": 1e-11, "atol": 1e-11}
every_grammar = pytest.mark.parametrize("name", EVERY)


def random(*shape: int, seed: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def proper(n: int, p: int, v: int, stop: float, seed: int) -> tuple[Branch, Tensor, Tensor]:
    """A grammar whose rules sum to 1 by parent, words' probabilities "p v" and roots "n".

    A parent makes two leaves with probability `stop`, else one leaf and one span, on either side, or two spans.
    """
    kinds = dict(zip(("ss", "sl", "ls", "ll"), shapes(n, p), strict=True))
    share = {"ll": stop, "sl": 0.5 * (1 - stop), "ls": 0.4 * (1 - stop), "ss": 0.1 * (1 - stop)}
    rules = []
    for i, (kind, shape) in enumerate(kinds.items()):
        weight = random(*shape, seed=seed + i)
        rules.append(BinaryDense(share[kind] * weight / weight.sum((1, 2), keepdim=True)))
    words = random(p, v, seed=seed + 8)
    roots = random(n, seed=seed + 9)
    return Branch(*rules), words / words.sum(-1, keepdim=True), roots / roots.sum()


def probability_of_lengths(stop: float, longest: int) -> list[float]:
    """P(length = T) of the grammar above: a branching process, symbols do not matter. Index 0 and 1 are 0."""
    found = [0.0, 0.0]
    for t in range(2, longest + 1):
        pairs = sum(found[k] * found[t - k] for k in range(2, t - 1))
        found.append((stop if t == 2 else 0.0) + (1 - stop) * (0.9 * found[t - 1] + 0.1 * pairs))
    return found


@pytest.mark.parametrize("num_words", [2, 3, 4, 5])
def test_all_sentences_of_a_length_have_the_probability_of_the_length(num_words: int) -> None:
    rules, words, roots = proper(2, 3, 2, 0.6, seed=0)
    sentences = torch.tensor(list(itertools.product(range(2), repeat=num_words)))
    found = log_z(TreePotentials(words.log().T[sentences], rules, roots.log())).exp().sum()
    assert float(found) == pytest.approx(probability_of_lengths(0.6, num_words)[num_words], rel=1e-12)


def test_all_sentences_together_have_probability_one() -> None:
    """One word in the vocabulary, so that a length is a sentence; a grammar that stops soon."""
    rules, words, roots = proper(2, 2, 1, 0.9, seed=20)
    longest = 24
    log_leaf = words.log().T[torch.zeros(longest - 1, longest, dtype=torch.int64)]
    lengths = torch.arange(2, longest + 1)
    found = log_z(TreePotentials(log_leaf, rules, roots.log(), lengths=lengths)).exp()
    wanted = torch.tensor(probability_of_lengths(0.9, longest)[2:], dtype=torch.float64)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0.0)
    # 0.1 a word or so: what is longer than 24 words has a probability of e-18.
    assert float(found.sum()) == pytest.approx(1.0, abs=1e-14)


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("mixed", "one head")])
def test_a_factor_of_all_rules(name: str) -> None:
    p = potentials(name, (4, 1, 3), seed=1)
    moved = [x + 0.7 if "log" in name else x * math.exp(0.7) for x in p.rules.factors()]
    number = {len(rule.factors()) for rule in p.rules}
    assert len(number) == 1
    shift = 0.7 * number.pop() * torch.tensor([3.0, 0.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(log_z(p._replace(rules=p.rules.with_factors(*moved))), log_z(p) + shift, **NEAR)


def test_factors_of_words_roots_and_brackets() -> None:
    p = potentials("shared", (5, 1, 3), seed=2)
    assert p.log_span is not None
    assert p.log_root_leaf is not None
    base = log_z(p)
    lengths = torch.tensor([5.0, 1.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(log_z(p._replace(log_leaf=p.log_leaf + 0.3)), base + 0.3 * lengths, **NEAR)
    torch.testing.assert_close(log_z(p._replace(log_span=p.log_span + 0.3)), base + 0.3 * (lengths - 1), **NEAR)
    more = p._replace(log_root=p.log_root + 0.3, log_root_leaf=p.log_root_leaf + 0.3)
    torch.testing.assert_close(log_z(more), base + 0.3, **NEAR)


@pytest.mark.parametrize("arithmetic", ["scaled", "log"])
def test_names_of_symbols_do_not_matter(arithmetic: str) -> None:
    p = potentials("dense", (5, 1, 3), n=3, p=4, seed=3)
    assert p.log_root_leaf is not None
    spans, words = torch.tensor([2, 0, 1]), torch.tensor([1, 3, 0, 2])
    kinds = ((spans, spans), (spans, words), (words, spans), (words, words))
    rules = Branch(
        *(BinaryDense(rule.to_dense()[spans][:, a][:, :, b]) for rule, (a, b) in zip(p.rules, kinds, strict=True))
    )
    renamed = p._replace(
        log_leaf=p.log_leaf[..., words],
        rules=rules,
        log_root=p.log_root[spans],
        log_root_leaf=p.log_root_leaf[words],
    )
    torch.testing.assert_close(log_z(renamed, arithmetic), log_z(p, arithmetic), **NEAR)


@pytest.mark.parametrize("arithmetic", ["scaled", "log"])
def test_a_sentence_in_the_mirror(arithmetic: str) -> None:
    lengths = (5, 2, 4)
    p = potentials("dense", lengths, seed=4)
    assert p.log_span is not None
    log_leaf, log_span = p.log_leaf.clone(), torch.zeros_like(p.log_span)
    for b, t in enumerate(lengths):
        log_leaf[b, :t] = p.log_leaf[b, :t].flip(0)
        log_span[b, : t + 1, : t + 1] = p.log_span[b, : t + 1, : t + 1].flip(0, 1).T
    ss, sl, ls, ll = (BinaryDense(rule.to_dense().mT.contiguous()) for rule in p.rules)
    mirrored = p._replace(log_leaf=log_leaf, rules=Branch(ss, ls, sl, ll), log_span=log_span)
    torch.testing.assert_close(log_z(mirrored, arithmetic), log_z(p, arithmetic), **NEAR)
    found = posterior(mirrored).span
    for b, t in enumerate(lengths):
        mirror = found[b, : t + 1, : t + 1].flip(0, 1).T
        torch.testing.assert_close(mirror, posterior(p).span[b, : t + 1, : t + 1], **NEAR)


def test_low_rank_at_full_rank_is_dense() -> None:
    """Any tensor is a CPD with a rank for every pair of children, and a product of parents and pairs by parents."""
    p = potentials("dense", (5, 3), seed=5)
    cpd, matricised = [], []
    for rule in p.rules:
        weight = rule.to_dense()
        a, n, m = weight.shape
        left, right = torch.eye(n).repeat_interleave(m, 1), torch.eye(m).repeat(1, n)
        cpd.append(BinaryCPD(weight.reshape(a, n * m), left.double(), right.double()))
        matricised.append(BinaryMatricised(torch.eye(a, dtype=torch.float64), weight.permute(1, 2, 0).contiguous()))
    for rules in (Branch(*cpd), Branch(*matricised)):
        torch.testing.assert_close(log_z(p._replace(rules=rules)), log_z(p), **NEAR)
        torch.testing.assert_close(posterior(p._replace(rules=rules)).span, posterior(p).span, **NEAR)


@every_grammar
def test_posteriors_add_up(name: str) -> None:
    at = leaves(potentials(name, (5, 2, 4), seed=7, dtype=torch.float32))
    grads = torch.autograd.grad(log_z(at.potentials).sum(), [at.fields["log_leaf"], at.fields["log_span"]])
    lengths = torch.tensor([5, 2, 4])
    inside = (torch.arange(5) < lengths[:, None]).float()
    torch.testing.assert_close(grads[0].sum(-1), inside, rtol=0.0, atol=1e-5)
    torch.testing.assert_close(grads[1].sum((1, 2)), lengths - 1.0, rtol=1e-5, atol=0.0)
    for b, t in enumerate(lengths):
        assert float(grads[1][b, 0, t]) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("name", ["dense", "shared", "mixed", "matricised batched"])
def test_the_chart_has_the_log_z_of_every_stretch_of_words(name: str) -> None:
    """Each entry is log Z of its words by themselves, with a root that is its label alone."""
    lengths = (4, 2, 5)
    p = potentials(name, lengths, seed=11)
    assert p.log_span is not None
    p.log_span[2, 1, 4] = -INF
    p.log_leaf[0, 1, 0] = -INF
    found = chart(p)
    seen = torch.full_like(found, -INF)
    for i, j in itertools.combinations(range(6), 2):
        here = torch.tensor([b for b, length in enumerate(lengths) if j <= length])
        if j - i == 1 or not len(here):
            continue
        rules = Branch(*(rule.take(here) for rule in p.rules))
        words, brackets = p.log_leaf[here, i:j], p.log_span[here, i : j + 1, i : j + 1]
        for a in range(2):
            root = torch.eye(2, dtype=torch.float64)[a].log()
            seen[here, i, j, a] = log_z(TreePotentials(words, rules, root, log_span=brackets))
    torch.testing.assert_close(found, seen, **NEAR)
    tops = torch.stack([found[b, 0, length] for b, length in enumerate(lengths)])
    torch.testing.assert_close((tops + p.log_root).logsumexp(-1), log_z(p), **NEAR)


def bracketings(i: int, j: int) -> list[frozenset[tuple[int, int]]]:
    if j - i == 1:
        return [frozenset()]
    return [
        frozenset({(i, j)}) | left | right
        for k in range(i + 1, j)
        for left, right in itertools.product(bracketings(i, k), bracketings(k, j))
    ]


@pytest.mark.parametrize("arithmetic", ["scaled", "log"])
@pytest.mark.parametrize("name", ["dense", "shared log"])
def test_forbidding_all_but_one_bracketing_leaves_it(name: str, arithmetic: str) -> None:
    """The bracketings' own sums make up log Z, and each alone has its own brackets for sure."""
    shapes_of_five = bracketings(0, 5)
    assert len(shapes_of_five) == 14
    p = potentials(name, (5,) * 14, seed=8)
    free = p._replace(log_leaf=p.log_leaf[:1], log_span=None, lengths=None)
    log_span = torch.full((14, 6, 6), -INF, dtype=torch.float64)
    for b, brackets in enumerate(shapes_of_five):
        for i, j in brackets:
            log_span[b, i, j] = 0.0
    log_span.requires_grad_()
    only = p._replace(log_leaf=p.log_leaf[:1].expand(14, 5, 3), log_span=log_span)
    found = log_z(only, arithmetic)
    torch.testing.assert_close(found.detach().logsumexp(0, keepdim=True), log_z(free, arithmetic), **NEAR)
    (posterior,) = torch.autograd.grad(found.sum(), log_span)
    torch.testing.assert_close(posterior, (log_span.detach() == 0).double(), **NEAR)


def test_a_forbidden_bracket_has_no_weight() -> None:
    p = potentials("shared", (5, 4), seed=9)
    assert p.log_span is not None
    before = posterior(p).span
    assert (before[:, 1, 3] > 1e-3).all()
    p.log_span[:, 1, 3] = -INF
    after = posterior(p).span
    assert not after[:, 1, 3].any()
    torch.testing.assert_close(after.sum((1, 2)), torch.tensor([4.0, 3.0], dtype=torch.float64), **NEAR)


@pytest.mark.parametrize("followed", [False, True])
@pytest.mark.parametrize("name", ["dense", "shared"])
def test_a_sentence_whose_own_bracket_is_forbidden_has_no_posteriors(name: str, *, followed: bool) -> None:
    at = leaves(potentials(name, (4, 3, 4), seed=10))
    fields = [at.fields["log_leaf"], at.fields["log_span"]]
    before = torch.autograd.grad(log_z(at.potentials).sum(), fields)
    with torch.no_grad():
        at.fields["log_span"][1, 0, 3] = -INF
    found = log_z(at.potentials)
    assert (found == -INF).tolist() == [False, True, False]
    after = torch.autograd.grad(found, fields, torch.ones_like(found), create_graph=followed)
    for one, other in zip(after, before, strict=True):
        assert not one[1].any()
        torch.testing.assert_close(one[[0, 2]], other[[0, 2]], **NEAR)
