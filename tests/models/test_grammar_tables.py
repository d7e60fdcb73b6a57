"""Grammars of known probabilities: the same numbers back, zeros that stay, and tables that are refused."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from rankfold import BinaryCPD, BinaryDense, Branch, DomainError, ShapeError, UnsupportedError
from rankfold.data.batch import Batch
from rankfold.models import PCFG, GrammarConfig, build_model
from tests.models.grammar_cases import enumerated
from tests.params.build import EXACT, seeded


def distributions(*shape: int, seed: int = 0, dim: int = -1) -> Tensor:
    x = torch.rand(*shape, generator=seeded(seed), dtype=torch.float64) + 0.05
    return x / x.sum(dim, keepdim=True)


def tables(n: int = 2, p: int = 3, v: int = 4, *, single: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    rules = distributions(n, (n + p) ** 2, seed=1).view(n, n + p, n + p)
    return distributions(n + p if single else n), rules, distributions(p, v, seed=2)


def sentences(length: int, num_words: int) -> Batch:
    words = torch.tensor(list(itertools.product(range(num_words), repeat=length)))
    return Batch(words, torch.full((len(words),), length))


@pytest.mark.parametrize("single", [False, True])
def test_a_grammar_has_the_tables_it_was_made_of(single: bool) -> None:
    given = tables(single=single)
    model = PCFG.from_tables(*given)
    assert model.config.single_words == single
    assert (model.config.num_nonterminals, model.config.num_preterminals, model.num_words) == (2, 3, 4)
    for found, expected in zip(model.to_tables(), given, strict=True):
        torch.testing.assert_close(found, expected, **EXACT)
    words = [1, 3, 0]
    found = model.log_likelihood(model.batch(torch.tensor([words])))
    assert float(found.detach()) == pytest.approx(math.log(enumerated(model, words)), abs=1e-10)
    one_word = model.log_likelihood(model.batch(torch.tensor([[2]]))).exp()
    expected = float(given[0][2:] @ given[2][:, 2]) if single else 0.0
    assert float(one_word.detach()) == pytest.approx(expected, abs=1e-12)


def test_rules_by_kind_are_the_same_rules() -> None:
    root, rules, emission = tables()
    kinds = Branch(*map(BinaryDense, (rules[:, :2, :2], rules[:, :2, 2:], rules[:, 2:, :2], rules[:, 2:, 2:])))
    one, other = PCFG.from_tables(root, rules, emission), PCFG.from_tables(root, kinds, emission)
    for x, y in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(x, y)


def test_factors_are_their_product() -> None:
    n, p, rank = 3, 2, 4
    head, left, right = distributions(n, rank), distributions(n + p, rank, dim=0), distributions(n + p, rank, dim=0)
    root, emission = distributions(n), distributions(p, 4, seed=9)
    dense = torch.einsum("ak,lk,rk->alr", head, left, right)
    factored, written = PCFG.from_factors(root, head, left, right, emission), PCFG.from_tables(root, dense, emission)
    assert factored.config.family == "tnpcfg"
    batch = sentences(4, 4)
    for plan in ("state", "rank"):
        found = factored.log_z(factored.potentials(batch, plan=plan))
        torch.testing.assert_close(found, written.log_likelihood(batch), **EXACT)
    torch.testing.assert_close(factored.to_tables().rules, dense, **EXACT)


def test_a_simple_grammar_has_independent_children() -> None:
    n, p = 3, 2
    left, right = distributions(n + p, n, dim=0), distributions(n + p, n, seed=3, dim=0)
    model = PCFG.from_factors(distributions(n), None, left, right, distributions(p, 2))
    assert model.config.family == "spcfg"
    torch.testing.assert_close(model.to_tables().rules, torch.einsum("la,ra->alr", left, right), **EXACT)


def stopping() -> PCFG:
    """S -> A t or t t, A -> t t: sentences of two or three words, and nothing else."""
    rules = torch.zeros(2, 4, 4, dtype=torch.float64)
    rules[0, 1, 2:], rules[0, 3, 2] = 0.3, 0.4
    rules[1, 2:, 2:] = 0.25
    root = torch.tensor([1.0, 0.0], dtype=torch.float64)
    return PCFG.from_tables(root, rules, distributions(2, 3))


def test_a_grammar_that_must_stop_has_probability_one() -> None:
    model = stopping()
    shares = [float(model.log_likelihood(sentences(length, 3)).exp().sum().detach()) for length in (1, 2, 3, 4)]
    assert shares == pytest.approx([0, 0.4, 0.6, 0], abs=1e-12)


def test_zeros_stay_zero_in_training() -> None:
    model = stopping()
    before = model.to_tables()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    batch = model.batch(torch.tensor([[0, 1, 2], [1, 1, 0]]), torch.tensor([3, 2]))
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = -model.log_likelihood(batch).sum()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    after = model.to_tables()
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old == 0, new == 0)
        assert new.isfinite().all()
    assert losses[-1] < losses[0]
    assert not torch.equal(before.rules, after.rules)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda r, t, e: (r * 2, t, e), DomainError, "root sums to 2"),
        (lambda r, t, e: (r, t * torch.tensor([[[1.0]], [[0.5]]]), e), DomainError, r"row 1 of rules sums to 0\.5"),
        (lambda r, t, e: (r, t, -e), DomainError, "emission"),
        (lambda r, t, e: (r, t[:, :3], e), ShapeError, "rules.*l = 5"),
        (lambda r, t, e: (torch.ones(4) / 4, t, e), ShapeError, "root has 4 entries.*\n.*Give 2, or 5"),
        (lambda r, t, e: (r.float(), t, e), UnsupportedError, "root is torch.float32"),
        (lambda r, t, e: (r, t.tolist(), e), UnsupportedError, "rules is a list"),
    ],
)
def test_refused(change, error: type[ValueError], text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=text):
        PCFG.from_tables(*change(*tables()))


def test_factors_that_are_refused() -> None:
    n, p = 2, 2
    root, head, side, emission = distributions(n), distributions(n, 3), distributions(4, 3, dim=0), distributions(p, 2)
    PCFG.from_factors(root, head, side, side, emission)
    with pytest.raises(DomainError, match="row 0 of head sums to 2"):
        PCFG.from_factors(root, 2 * head, side, side, emission)
    with pytest.raises(DomainError, match="of right, transposed, sums to"):
        PCFG.from_factors(root, head, side, side.roll(1, 1) * 2, emission)
    with pytest.raises(ShapeError, match=r"left.*l = 5"):
        PCFG.from_factors(root, None, side, side, emission)
    with pytest.raises(ShapeError, match="right"):
        PCFG.from_factors(root, head, side, side[:3], emission)


def test_grammars_too_large_to_write_out() -> None:
    with torch.device("meta"):
        model = build_model(GrammarConfig(family="rankpcfg", num_nonterminals=900, num_preterminals=1800, rank=2), 3)
    with pytest.raises(UnsupportedError, match=r"900 nonterminals.*6,561,000,000 rules"):
        model.to_tables()


def test_branches_of_factors_are_written_out() -> None:
    head, left, right = distributions(2, 3), distributions(5, 3, dim=0), distributions(5, 3, dim=0)
    sides = [(x, y) for x in (left[:2], left[2:]) for y in (right[:2], right[2:])]
    model = PCFG.from_tables(distributions(2), Branch(*(BinaryCPD(head, x, y) for x, y in sides)), distributions(3, 2))
    torch.testing.assert_close(model.to_tables().rules, torch.einsum("ak,lk,rk->alr", head, left, right), **EXACT)
