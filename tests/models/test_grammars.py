"""What every grammar must do, for every case of `grammar_cases.py`: laws, and the enumeration of all trees."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rankfold import UnsupportedError
from rankfold.data.batch import Batch
from rankfold.models import PCFG, GrammarConfig, build_model, load_model
from rankfold.models.catalog import AnyModel
from rankfold.operators import BinaryCPD, BinaryDense, BinaryMatricised
from tests.models.grammar_cases import CASES, GrammarCase, all_sentences, enumerated, some_sentences
from tests.params.build import EXACT, seeded

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def rows_of(batch: Batch) -> list[list[int]]:
    return [row[:n] for row, n in zip(batch.values.tolist(), batch.lengths.tolist(), strict=True)]


@every_case
def test_every_distribution_sums_to_one(case: GrammarCase) -> None:
    """Rules over all pairs of children, of all four kinds together."""
    tables = case.build().to_tables()
    n, p = case.config.num_nonterminals, case.config.num_preterminals
    assert tables.rules.shape == (n, n + p, n + p)
    assert len(tables.root) == n + (p if case.config.single_words else 0)
    for table in (tables.root, tables.rules.flatten(1), tables.emission):
        torch.testing.assert_close(table.sum(-1), torch.ones(table.shape[:-1], dtype=torch.float64), **EXACT)
        assert (table > 0).all()


@every_case
def test_log_likelihood_is_the_sum_over_all_trees(case: GrammarCase) -> None:
    model = case.build()
    batch = some_sentences()
    expected = [math.log(enumerated(model, row)) for row in rows_of(batch)]
    found = model.log_likelihood(batch)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.detach(), torch.tensor(expected, dtype=torch.float64), **EXACT)


@every_case
def test_short_sentences_have_part_of_all_probability(case: GrammarCase) -> None:
    model = case.build()
    shares = [float(model.log_likelihood(all_sentences(length)).exp().sum().detach()) for length in (1, 2, 3, 4)]
    assert (shares[0] > 0) == case.config.single_words
    if case.config.single_words:
        root = model.to_tables().root
        assert shares[0] == pytest.approx(float(root[case.config.num_nonterminals :].sum()), abs=1e-12)
    assert all(share > 0 for share in shares[1:])
    assert sum(shares) < 1


@every_case
def test_log_arithmetic_says_the_same(case: GrammarCase) -> None:
    model = case.build()
    potentials = model.potentials(some_sentences())
    torch.testing.assert_close(model.log_z(potentials, "log"), model.log_z(potentials), **EXACT)


@every_case
def test_both_orders_of_summing_out_agree(case: GrammarCase) -> None:
    model, batch = case.build(), some_sentences()
    factored = case.config.family in ("tnpcfg", "rankpcfg")
    found, grads = [], []
    for plan in ("state", "rank"):
        p = model.potentials(batch, plan=plan)
        size = case.config.rank if factored and plan == "rank" else case.config.num_nonterminals
        assert p.rules.span_span.shape[0] == p.log_root.shape[0] == size
        found.append(model.log_z(p))
        grads.append(torch.autograd.grad(found[-1].sum(), tuple(model.parameters())))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-10)
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, **EXACT)


@every_case
def test_gradients_in_every_parameter(case: GrammarCase) -> None:
    model, batch = case.build(), some_sentences()

    def loss(*_: Tensor) -> Tensor:
        return model.log_likelihood(batch)

    assert torch.autograd.gradcheck(loss, tuple(model.parameters()), fast_mode=True, check_undefined_grad=False)
    model.log_likelihood(batch).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@every_case
def test_a_batch_is_its_sentences_and_padding_is_never_read(case: GrammarCase) -> None:
    model, batch = case.build(), some_sentences()
    whole = model.log_likelihood(batch)
    alone = [model.log_likelihood(Batch(torch.tensor([row]), torch.tensor([len(row)]))) for row in rows_of(batch)]
    torch.testing.assert_close(whole, torch.cat(alone), **EXACT)
    longer = model.batch(torch.cat([batch.values, torch.full((4, 2), -1)], 1), batch.lengths)
    torch.testing.assert_close(model.log_likelihood(longer), whole, **EXACT)


@every_case
def test_the_same_after_it_was_saved(case: GrammarCase, tmp_path: Path) -> None:
    for model in (case.build(), case.plain()):
        model.save_pretrained(tmp_path)
        again = load_model(tmp_path)
        assert type(again) is PCFG
        assert again.config == case.config
        assert torch.equal(again.log_likelihood(some_sentences()), model.log_likelihood(some_sentences()))


@every_case
def test_the_seed_decides_every_parameter(case: GrammarCase) -> None:
    state = torch.get_rng_state()
    one, two, other = case.plain(1), case.plain(1), case.plain(2)
    assert torch.equal(torch.get_rng_state(), state)
    for (name, x), y in zip(one.named_parameters(), two.parameters(), strict=True):
        assert torch.equal(x, y), name
    drawn = [(x, y) for x, y in zip(one.parameters(), other.parameters(), strict=True) if x.abs().sum() > 0]
    assert drawn
    assert not any(torch.equal(x, y) for x, y in drawn)


@every_case
def test_a_plan_without_memory_for_parameters(case: GrammarCase) -> None:
    with torch.device("meta"):
        model = build_model(case.config, 3)
    real = case.plain()
    assert [way.order for way in model.plan(2, 5).ways] == [way.order for way in real.plan(2, 5).ways]
    assert model.num_parameters == real.num_parameters


def test_evaluations_sum_the_parents_out_once() -> None:
    model = build_model(GrammarConfig(family="rankpcfg", num_nonterminals=5, rank=2, dim=3, plan="rank"), 3)
    with torch.no_grad():
        parts = model.parts()
        first, second = (model.potentials(some_sentences(), parts=parts) for _ in range(2))
    assert first.rules is second.rules
    assert len(parts.summed) == 1
    parts = model.parts()
    with torch.no_grad():
        model.potentials(some_sentences(), parts=parts)
    trained = model.potentials(some_sentences(), parts=parts)
    assert trained.rules.span_span.factors()[0].requires_grad


def test_auto_takes_the_cheaper_order() -> None:
    sizes = {"num_preterminals": 8, "dim": 2, "family": "rankpcfg"}
    many = build_model(GrammarConfig(num_nonterminals=600, rank=4, **sizes), 3)
    few = build_model(GrammarConfig(num_nonterminals=2, rank=400, **sizes), 3)
    batch = Batch(torch.zeros(4, 12, dtype=torch.int64), torch.full((4,), 12))
    assert many.potentials(batch).log_root.shape == (4,)
    assert few.potentials(batch).log_root.shape == (2,)


def test_kinds_of_rules_share_their_factors() -> None:
    """The recursion then makes each product once."""
    rules = build_model(GrammarConfig(family="tnpcfg", rank=2, dim=2), 3).parts().rules
    assert all(isinstance(rule, BinaryCPD) for rule in rules)
    assert len({id(x) for x in rules.factors()}) == 5
    simple = build_model(GrammarConfig(family="spcfg", dim=2), 3).parts().rules
    assert len({id(x) for x in simple.factors()}) == 4


def test_low_rank_where_it_is_asked_for() -> None:
    for kinds in ((), ("span_span",), ("leaf_leaf", "span_leaf"), ("span_span", "span_leaf", "leaf_span", "leaf_leaf")):
        rules = build_model(GrammarConfig(family="lpcfg", rank=3, dim=2, low_rank=kinds), 3).parts().rules
        for kind, rule in zip(rules._fields, rules, strict=True):
            assert type(rule) is (BinaryMatricised if kind in kinds else BinaryDense)
            if kind in kinds:
                assert rule.factors()[0].shape == (30, 3)


def test_preterminals_of_a_rank_space_have_one_embedding() -> None:
    names = {family: _names(family) for family in ("rankpcfg", "tnpcfg")}
    assert "emission.symbol" not in names["rankpcfg"]
    assert "emission.symbol" in names["tnpcfg"]


def _names(family: str) -> list[str]:
    model: AnyModel = build_model(GrammarConfig(family=family, dim=2), 3)  # type: ignore[arg-type]
    return [name for name, _ in model.named_parameters()]


def test_nothing_is_carried() -> None:
    model = build_model(GrammarConfig(family="npcfg", dim=2), 3)
    with pytest.raises(UnsupportedError, match="carries nothing"):
        model.potentials(some_sentences(), carried=torch.zeros(4, 3))


@pytest.mark.parametrize(
    ("init", "embedding", "layer"),
    [
        ("xavier", (6 / (400 + 100)) ** 0.5 / 3**0.5, (6 / 200) ** 0.5 / 3**0.5),
        ("xavier_normal", (2 / 500) ** 0.5, (2 / 200) ** 0.5),
        ("torch", 1.0, 0.1 / 3**0.5),
        ("spread", 1.0, (6 / 200) ** 0.5 / 3**0.5),
    ],
)
def test_how_parameters_begin(init: str, embedding: float, layer: float) -> None:
    config = GrammarConfig(family="rankpcfg", num_nonterminals=100, num_preterminals=300, dim=100, init=init)  # type: ignore[arg-type]
    rules = build_model(config, 3, seed=4).rules
    assert float(rules.symbol.detach().std()) == pytest.approx(embedding, rel=0.03)
    assert float(rules.parent[0].weight.detach().std()) == pytest.approx(layer, rel=0.03)
    assert (float(rules.parent[0].bias.detach().abs().max()) > 0) == (init == "torch")


def test_precision_and_seed_of_a_step_change_nothing() -> None:
    """Nothing is dropped in a grammar."""
    model = CASES[4].build()
    batch = some_sentences()
    assert torch.equal(model.log_likelihood(batch, generator=seeded(3)), model.log_likelihood(batch))
