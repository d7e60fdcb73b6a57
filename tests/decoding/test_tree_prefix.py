"""Beginnings of sentences: against all sentences, a chart from right to left, and the laws of probability."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from rankfold import BinaryCPD, BinaryDense, Branch, DomainError, TreePotentials, UnsupportedError, prefix, rank_space
from rankfold.recursions import tree
from rankfold.recursions.tree.termination import mass
from tests.decoding.grammars import N, P, V, emission, normalised, root
from tests.oracles import prefix as oracle
from tests.recursions.build import pad_with_nan, seeded
from tests.recursions.trees import KINDS as BY_CHILD
from tests.recursions.trees import potentials, shapes

KINDS = ["dense", "shared", "shared log", "matricised", "cpd identity"]
TOO_MANY = 0.6  # leaves weigh so little that trees may grow for ever


def sentences(strings: list[list[int]], words: Tensor) -> dict[str, Tensor]:
    """Their leaves, NaN beyond a length."""
    lengths = [len(x) for x in strings]
    ids = torch.tensor([x + [0] * (max(lengths) - len(x)) for x in strings])
    return {"log_leaf": pad_with_nan(words.T[ids], lengths), "lengths": torch.tensor(lengths)}


def as_oracle(rules: Branch, log_root: Tensor, log_root_leaf: Tensor | None, words: Tensor) -> dict[str, Any]:
    return {
        "emission": words.exp().tolist(),
        "rules": {kind: rule.to_dense().tolist() for kind, rule in zip(BY_CHILD, rules, strict=True)},
        "root": log_root.exp().tolist(),
        "root_leaf": [0.0] * len(words) if log_root_leaf is None else log_root_leaf.exp().tolist(),
    }


@pytest.mark.parametrize("leaf", [3.0, TOO_MANY])
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_equals_the_chart_from_right_to_left(name: str, single: bool, leaf: float) -> None:
    rules, words = normalised(name, leaf=leaf), emission()
    log_root = root()[:N] if single else root()[:N].log_softmax(-1)
    ends = root()[N:] if single else None
    strings = [[0, 1, 1, 0, 1], [1], [1, 0, 0]]
    p = TreePotentials(rules=rules, log_root=log_root, log_root_leaf=ends, **sentences(strings, words))
    found = prefix(p)
    given = as_oracle(rules, log_root, ends, words)
    for b, string in enumerate(strings):
        for k in range(len(string) + 1):
            wanted = oracle.prefix(string[:k], **given)
            assert float(found.log_prefix[b, k].exp()) == pytest.approx(wanted, rel=1e-10, abs=0)
        assert (found.log_prefix[b, len(string) + 1 :] == float("-inf")).all()
    finite = found.log_prefix[0, 0].exp()
    assert (finite < 0.999) == (leaf == TOO_MANY)


@pytest.mark.parametrize("name", [*KINDS, "ranked"])
def test_a_beginning_is_a_sentence_or_goes_on(name: str) -> None:
    """prefix(x) = p(x) + sum over words of prefix(x, word), and log_next says the same by symbol."""
    rules, words = normalised(name, leaf=TOO_MANY if name == "dense" else 2.0), emission()
    log_root, ends = root()[:N], root()[N:]
    if name == "ranked":
        rules, log_root = rank_space(rules, log_root)
    strings = [list(x) for length in (1, 2, 3, 4) for x in itertools.product(range(V), repeat=length)]
    p = TreePotentials(rules=rules, log_root=log_root, log_root_leaf=ends, **sentences(strings, words))
    found = prefix(p)
    of = {tuple(x): found.log_prefix[b, len(x)].exp() for b, x in enumerate(strings)}
    whole = tree.log_z(p).exp()
    for b, string in enumerate(strings):
        length = len(string)
        torch.testing.assert_close(found.log_whole[b, length].exp(), whole[b], rtol=1e-12, atol=0)
        after = (found.log_next[b, length, :, None] + words).logsumexp(0).exp()  # "v"
        torch.testing.assert_close(of[tuple(string)], whole[b] + after.sum(), rtol=1e-12, atol=0)
        if length < 4:
            for word in range(V):
                torch.testing.assert_close(after[word], of[(*string, word)], rtol=1e-12, atol=0)


def finite_grammar() -> tuple[Branch, Tensor, Tensor]:
    """Four symbols that lead to later ones only: every tree ends, and all sentences can be listed."""
    n, g = 4, seeded(5)
    tables = [torch.rand(s, generator=g, dtype=torch.float64) for s in shapes(n, P)]
    later = torch.ones(n, n).triu(1).double()
    tables = [
        tables[0] * later[:, :, None] * later[:, None],
        tables[1] * later[:, :, None],
        tables[2] * later[:, None],
        tables[3],
    ]
    total = sum(x.sum((1, 2)) for x in tables)
    log_root = torch.randn(n + P, generator=g, dtype=torch.float64).log_softmax(-1)
    return Branch(*(BinaryDense(x / total[:, None, None]) for x in tables)), log_root[:n], log_root[n:]


def test_equals_the_sum_of_all_sentences() -> None:
    rules, log_root, ends = finite_grammar()
    words = emission()
    every = oracle.sentences(**as_oracle(rules, log_root, ends, words))
    assert sum(every.values()) == pytest.approx(1.0, abs=1e-12)
    string = [1, 0, 0, 1, 1, 0]
    found = prefix(
        TreePotentials(rules=rules, log_root=log_root, log_root_leaf=ends, **sentences([string], words))
    ).log_prefix[0]
    for k in range(len(string) + 1):
        wanted = sum(share for sentence, share in every.items() if sentence[:k] == tuple(string[:k]))
        assert float(found[k].exp()) == pytest.approx(wanted, rel=1e-11)


def test_rules_of_their_own() -> None:
    """Rules that differ by sentence are as those sentences one by one."""
    one, other, words = normalised("dense", leaf=TOO_MANY), normalised("dense", leaf=3.0), emission()
    both = Branch(*(BinaryDense(torch.stack([x.to_dense(), y.to_dense()])) for x, y in zip(one, other, strict=True)))
    strings, log_root = [[0, 1, 0], [0, 1, 0]], root()[:N]
    found = prefix(TreePotentials(rules=both, log_root=log_root, **sentences(strings, words)))
    for b, rules in enumerate((one, other)):
        alone = prefix(TreePotentials(rules=rules, log_root=log_root, **sentences(strings[:1], words)))
        for x, y in zip(found, alone, strict=True):
            torch.testing.assert_close(x[b], y[0], rtol=1e-12, atol=0)


def test_far_below_what_a_double_holds() -> None:
    """Three hundred improbable words: the factor of each is there in the end, and shows in no other figure."""
    rules, words = normalised("shared", leaf=2.0), emission()
    string = [[0, 1, 1] * 20]
    near = prefix(TreePotentials(rules=rules, log_root=root()[:N], **sentences(string, words)))
    far = prefix(TreePotentials(rules=rules, log_root=root()[:N], **sentences(string, words - 20.0)))
    less = 20.0 * torch.arange(61, dtype=torch.float64)
    assert far.log_prefix[0, -1] < -1200
    torch.testing.assert_close(far.log_prefix[0], near.log_prefix[0] - less, rtol=1e-12, atol=0)
    torch.testing.assert_close(far.log_next[0], near.log_next[0] - less[:, None], rtol=1e-12, atol=0)


def test_small_corners_are_as_exact_as_large_ones() -> None:
    """Only a symbol that is reached with probability e-40 can say the word."""
    tiny = 1e-40
    tables = [torch.zeros(s, dtype=torch.float64) for s in shapes(2, 2)]
    tables[0][0, 0, 0], tables[1][0, 1, 0], tables[3][0, 0, 0] = 0.3, tiny, 0.7
    tables[3][1, 1, 0] = 1.0
    words = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64).log()
    log_root = torch.tensor([1.0, 0.0], dtype=torch.float64).log()
    rules = Branch(*(BinaryDense(x) for x in tables))
    found = prefix(TreePotentials(rules=rules, log_root=log_root, **sentences([[1, 0, 0]], words))).log_prefix[0]
    # The root's way down to the left: any number of itself, then the second symbol once.
    assert float(found[1].exp()) == pytest.approx(tiny / 0.7, rel=1e-12)


@pytest.mark.parametrize(
    ("spans", "wanted"),
    [(0.3, 1.0), (0.5, 1.0), (0.7, 3 / 7), (0.9, 1 / 9), (1.0, 0.0)],
)
def test_mass_of_one_symbol(spans: float, wanted: float) -> None:
    """A -> A A with some probability, else two words: x = s x^2 + (1 - s); on the brink half of the digits are lost."""
    tables = [torch.zeros(s, dtype=torch.float64) for s in shapes(1, 1)]
    tables[0][...], tables[3][...] = spans, 1 - spans
    found = mass(Branch(*(BinaryDense(x) for x in tables)))
    assert float(found) == pytest.approx(wanted, abs=1e-7 if spans == 0.5 else 1e-14)


def test_a_symbol_that_never_ends() -> None:
    """A -> A word for ever is no part of any sentence, nor in the way of others."""
    tables = [torch.zeros(s, dtype=torch.float64) for s in shapes(2, 1)]
    tables[1][1, 1, 0] = 1.0
    tables[0][0, 1, 0], tables[3][0, 0, 0] = 0.4, 0.6
    rules, words = Branch(*(BinaryDense(x) for x in tables)), torch.zeros(1, 1, dtype=torch.float64)
    log_root = torch.tensor([1.0, 0.0], dtype=torch.float64).log()
    found = prefix(TreePotentials(rules=rules, log_root=log_root, **sentences([[0, 0, 0]], words))).log_prefix[0]
    torch.testing.assert_close(found.exp(), torch.tensor([0.6, 0.6, 0.6, 0.0], dtype=torch.float64))


def table(n: int, p: int, rules: dict[tuple[int, int, int], float], dtype: torch.dtype = torch.float64) -> Branch:
    """Rules by (parent, left, right), words counted after the n symbols of spans."""
    whole = torch.zeros(n, n + p, n + p, dtype=dtype)
    for at, share in rules.items():
        whole[at] = share
    spans, leaves = slice(None, n), slice(n, None)
    kinds = (spans, spans), (spans, leaves), (leaves, spans), (leaves, leaves)
    return Branch(*(BinaryDense(whole[:, left, right].contiguous()) for left, right in kinds))


def beginnings(rules: Branch, num_words: int = 4, num_leaves: int = 1, root: int = 0) -> list[float]:
    """P(a sentence has at least k words), of grammars with one word."""
    dtype = rules.factors()[0].dtype
    log_root = torch.full((rules.span_span.shape[0],), float("-inf"), dtype=dtype)
    log_root[root] = 0.0
    leaf = torch.zeros(1, num_words, num_leaves, dtype=dtype)
    found: list[float] = prefix(TreePotentials(leaf, rules, log_root)).log_prefix[0].exp().tolist()
    return found


def test_a_share_that_never_ends() -> None:
    """A -> B A | C C | w w, B -> A A, C -> C C: C is lost, and of two solutions for the rest the smaller one counts."""
    rules = table(3, 1, {(0, 1, 0): 0.3, (0, 2, 2): 0.6, (0, 3, 3): 0.1, (1, 0, 0): 1.0, (2, 2, 2): 1.0})
    b_then_a = 0.1
    for _ in range(200):
        b_then_a = 0.3 * b_then_a**3 + 0.1
    assert mass(rules)[0].tolist() == pytest.approx([b_then_a, b_then_a**2, 0.0], rel=1e-14)
    assert beginnings(rules, 3) == pytest.approx([b_then_a, b_then_a, b_then_a, b_then_a - 0.1], rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("rare", [1e-3, 1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize("left", [True, False])
def test_hardly_ever_an_end(rare: float, left: bool, dtype: torch.dtype) -> None:
    """A -> A w, or w A, and rarely w w: lengths are geometric, all trees end, and no digit of `rare` is lost."""
    rules = table(1, 1, {(0, 0, 1) if left else (0, 1, 0): 1 - rare, (0, 1, 1): rare}, dtype)
    kind = 1 if left else 2
    again = rules[kind].to_dense().double().sum() / sum(x.to_dense().double().sum() for x in rules)
    assert beginnings(rules, 5) == pytest.approx([1, 1, 1, *(float(again) ** k for k in (1, 2, 3))], rel=1e-11)


def test_one_symbol_that_is_hardly_ever_left_hurts_no_other() -> None:
    """B -> w B alone, to the last digit of float32, and never reached."""
    rules = table(2, 2, {(0, 2, 3): 1.0, (1, 2, 1): 1.0, (1, 2, 2): 1e-9}, torch.float32)
    assert beginnings(rules, 3, 2)[:3] == [1.0, 1.0, 1.0]


def test_small_masses_are_as_exact_as_large_ones() -> None:
    """A -> B B; B -> B B, or two words with probability e-17: B ends so often, A by its square."""
    rules = table(2, 1, {(0, 1, 1): 1.0, (1, 1, 1): 1.0, (1, 2, 2): 1e-17})
    assert mass(rules)[0].tolist() == pytest.approx([1e-34, 1e-17], rel=1e-12)


@pytest.mark.parametrize("depth", [1, 3, 8])
def test_on_the_brink_one_after_the_other(depth: int) -> None:
    """Each A -> A A half of the time, else the next one and a word: every tree ends, though none has a mean size."""
    half = {(i, i, i): 0.5 for i in range(depth)}
    rules = table(depth, 1, half | {(i, min(i + 1, depth), depth): 0.5 for i in range(depth)})
    assert mass(rules)[0].tolist() == [1.0] * depth
    words = {(2 * i + 1, 2 * i + 2 if i < depth - 1 else 2 * depth, 2 * depth): 1 / 3 for i in range(depth)}
    more = {(2 * i + 1, 2 * depth, 2 * i + 2 if i < depth - 1 else 2 * depth): 2 / 3 for i in range(depth - 1)}
    again = {(2 * i, 2 * i, 2 * i): 0.5 for i in range(depth)} | {
        (2 * i, 2 * i + 1, 2 * depth): 0.5 for i in range(depth)
    }
    last = {(2 * depth - 1, 2 * depth, 2 * depth): 1.0}
    assert mass(table(2 * depth, 1, again | words | more | last))[0].tolist() == [1.0] * (2 * depth)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("scale", [2.0, 5.0, 12.0])
def test_sharp_rules_in_float32(scale: float, seed: int) -> None:
    """Softmax of large logits, whose sums are off 1 in the last digits: masses are probabilities, words sum to them."""
    g, n, p = seeded(seed), 6, 8
    whole = (scale * torch.randn(n, (n + p) ** 2, generator=g)).softmax(-1).reshape(n, n + p, n + p)
    spans, leaves = slice(None, n), slice(n, None)
    kinds = (spans, spans), (spans, leaves), (leaves, spans), (leaves, leaves)
    rules = Branch(*(BinaryDense(whole[:, left, right].contiguous()) for left, right in kinds))
    words = torch.randn(p, 5, generator=g).log_softmax(-1)
    found = prefix(TreePotentials(words.T[torch.tensor([[0, 3, 1]])], rules, torch.full((n,), 1 / n).log()))
    assert (found.log_prefix <= 1e-12).all()
    after = (found.log_next.unsqueeze(-1) + words.double()).logsumexp((-2, -1)).exp()
    torch.testing.assert_close(after + found.log_whole.exp(), found.log_prefix.exp(), rtol=1e-5, atol=1e-30)


def test_rules_that_hardly_differ_from_endless_ones() -> None:
    """A -> w A to the last digit of a double, else two words or endless C, equally often; then A by way of B."""
    rules = table(2, 1, {(0, 2, 0): 1.0, (0, 2, 2): 1e-17, (0, 1, 1): 1e-17, (1, 1, 1): 1.0})
    assert mass(rules)[0].tolist() == pytest.approx([0.5, 0.0], rel=1e-14)
    assert beginnings(rules) == pytest.approx([0.5] * 5, rel=1e-14)
    rare = {(0, 3, 3): 1e-17, (0, 2, 2): 1e-17, (2, 2, 2): 1.0}
    rules = table(3, 1, {(0, 3, 1): 1.0, (1, 3, 0): 1.0, **rare})
    assert mass(rules)[0].tolist() == pytest.approx([0.5, 0.5, 0.0], rel=1e-12)


@pytest.mark.parametrize(("pairs", "words"), [(1e-12, 1e-13), (1e-20, 1e-21), (1e-8, 0.5e-8), (1e-13, 1e-12)])
def test_rare_pairs_and_rarer_words(pairs: float, words: float) -> None:
    """A -> A A and w w, both rare, else A w: the mass is their ratio, if that is below 1."""
    rules = table(1, 1, {(0, 0, 0): pairs, (0, 1, 1): words, (0, 0, 1): 1 - pairs - words})
    assert mass(rules).item() == pytest.approx(min(1.0, words / pairs), rel=1e-12)


@pytest.mark.parametrize("more", [1e-7, 1e-9, 1e-11, 2e-13])
def test_hardly_above_the_brink(more: float) -> None:
    """What is missing of 1 has its digits, too; four symbols on the brink above make it large."""
    pairs, words = 0.5 + more, 0.5 - more
    lost = (pairs - words) / pairs
    rules = table(1, 1, {(0, 0, 0): pairs, (0, 1, 1): words})
    assert 1 - mass(rules).item() == pytest.approx(lost, rel=1e-3 if more < 1e-12 else 1e-4, abs=1e-16)
    half = {(i, i, i): 0.5 for i in range(4)} | {(i, i + 1, 5): 0.5 for i in range(4)}
    wanted = [lost]
    for _ in range(4):  # y = y below / 2 + y - y^2 / 2
        wanted.insert(0, wanted[0] ** 0.5)
    found = mass(table(5, 1, {**half, (4, 4, 4): pairs, (4, 5, 5): words}))[0]
    assert (1 - found).tolist() == pytest.approx(wanted, rel=1e-3)


def test_rules_of_their_own_for_one_kind_of_children() -> None:
    rules, words = normalised("dense"), emission()
    given = sentences([[0, 1, 0], [1, 1, 0]], words)
    wanted = prefix(TreePotentials(rules=rules, log_root=root()[:N], **given))
    own = BinaryDense(rules.span_span.to_dense().expand(2, -1, -1, -1).contiguous())
    found = prefix(TreePotentials(rules=rules._replace(span_span=own), log_root=root()[:N], **given))
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=0)


def test_what_a_double_cannot_hold_is_said() -> None:
    """Only symbols 800 nats down can say the sentence."""
    rules = normalised("dense")
    leaf = torch.zeros(1, 2, P, dtype=torch.float64)
    dense = [x.to_dense().clone() for x in rules]
    dense[3][:, 1:, 1:] = 0.0
    dense[3][:, 0, 0] += 1 - sum(x.sum((1, 2)) for x in dense)
    leaf[0, 0] = torch.tensor([-800.0, 0.0, 0.0])
    leaf[0, 1] = torch.tensor([0.0, -float("inf"), -float("inf")])
    found = prefix(TreePotentials(leaf, Branch(*(BinaryDense(x) for x in dense)), root()[:N]))
    assert found.log_prefix[0, 2] >= found.log_whole[0, 2] > -1000
    leaf[0, 0, 0] = -500.0
    found = prefix(TreePotentials(leaf, Branch(*(BinaryDense(x) for x in dense)), root()[:N]))
    assert found.log_prefix[0, 2] >= found.log_whole[0, 2] > -700
    far = torch.tensor([[400.0, -400.0]], dtype=torch.float64)  # of ranks, which cancel
    none, any_word = torch.full_like(far, -float("inf")), torch.zeros_like(far)
    head = far + torch.tensor(0.5, dtype=torch.float64).log()
    sides = (none, none), (none, any_word), (-far, none), (-far, any_word)
    rules = Branch(*(BinaryCPD.from_log(head, left, right) for left, right in sides))
    with pytest.raises(DomainError, match=r"cannot be told in float64.*\n.*below 1e-16"):
        prefix(TreePotentials(leaf[..., :1] * 0, rules, leaf[0, 0, 1:2]))


def test_in_inference_mode_and_float32() -> None:
    rules, words = normalised("shared"), emission()
    given = sentences([[0, 1, 0]], words)
    log_root = root()[:N]
    wanted = prefix(TreePotentials(rules=rules, log_root=log_root, **given))
    with torch.inference_mode():
        asleep = prefix(TreePotentials(rules=rules, log_root=log_root.clone(), **sentences([[0, 1, 0]], words)))
    torch.testing.assert_close(asleep.log_prefix, wanted.log_prefix, rtol=0, atol=0)
    factors = {id(x): x.float() for x in rules.factors()}
    single = rules.with_factors(*(factors[id(x)] for x in rules.factors()))
    rough = prefix(TreePotentials(given["log_leaf"].float(), single, log_root.float(), lengths=given["lengths"]))
    assert rough.log_prefix.dtype == torch.float64
    torch.testing.assert_close(rough.log_prefix, wanted.log_prefix, rtol=1e-5, atol=1e-6)


def test_refusals() -> None:
    p = potentials("shared")
    with pytest.raises(UnsupportedError, match="log_span weighs brackets of whole sentences"):
        prefix(p)
    with pytest.raises(DomainError, match=r"(?s)rules of symbol 0 sum to .*must sum to 1"):
        prefix(p._replace(log_span=None))
    one = torch.ones(2, 1, dtype=torch.float64)
    half = BinaryCPD(torch.tensor([[0.25], [0.125]], dtype=torch.float64), one, one)
    zeros = [BinaryDense(torch.zeros(s, dtype=torch.float64)) for s in shapes(2, 2)[1:]]
    leaf = torch.zeros(1, 2, 2, dtype=torch.float64)
    with pytest.raises(DomainError, match=r"rules of symbol 1 sum to 0\.5,"):
        prefix(TreePotentials(leaf, Branch(half, *zeros), leaf[0, 0]))
