"""Sums in four semirings against enumeration; gradients; what underflow, zeros and bad questions do."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rankfold.errors import DomainError, UnsupportedError
from rankfold.fgg import Grammar, conjoin, count, marginals, parse, string_query, sum_product
from rankfold.fgg.contraction import LOGS, MAX, REAL, contract, greedy_order, plan_contraction
from rankfold.fgg.inference.executor import Execution
from tests.fgg.cases import PCFG_5_8, TEXTS, asked, constrained, undecided
from tests.fgg.plain import HMM, PCFG, example, plain
from tests.oracles import fgg as oracle

CASES: dict[str, Callable[[], Grammar]] = {
    **{name: (lambda name=name: asked(name)) for name in TEXTS},
    "automaton": constrained,
    "no query": undecided,
    "five and eight": lambda: conjoin(example(PCFG_5_8), string_query([0, 3])),
    "missing words": lambda: conjoin(example(PCFG), string_query([[0, None, 1], [2, 1, 0]])),
}


@pytest.mark.parametrize("name", CASES)
def test_sums_are_those_of_enumeration(name: str) -> None:
    g = CASES[name]()
    for sentence in range(g.batch or 1):
        rules, factors, start = plain(g, sentence)
        weights = list(oracle.scores(rules, factors, start))
        wanted = {
            "real": math.fsum(weights),
            "log": math.log(math.fsum(weights)),
            "max": math.log(max(weights)),
            "counting": sum(weight > 0 for weight in weights),
        }
        for semiring, value in wanted.items():
            found = sum_product(g, semiring=semiring)
            assert found.shape == (() if g.batch is None else (g.batch,))
            own = found if g.batch is None else found[sentence]
            assert float(own) == pytest.approx(value, rel=1e-12, abs=1e-12), semiring


def with_leaves(g: Grammar) -> tuple[Grammar, list[Tensor]]:
    """The grammar whose factors want gradients."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in g.factors.items()}
    return g.with_factors(leaves), list(leaves.values())


@pytest.mark.parametrize("name", ["hmm", "pcfg", "two heads", "no query"])
def test_gradients_pass_gradcheck_twice(name: str) -> None:
    g, leaves = with_leaves(CASES[name]() if name == "no query" else _shorter(name))
    labels = list(g.factors)

    def of(*tensors: Tensor) -> Tensor:
        return sum_product(g.with_factors(dict(zip(labels, tensors, strict=True))))

    assert torch.autograd.gradcheck(of, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(of, leaves, fast_mode=True)


def _shorter(name: str) -> Grammar:
    return conjoin(example(TEXTS[name]), string_query([[0, 1, 1], [1, 1, 0]]))


def test_gradients_are_right_where_weights_are_zero() -> None:
    """A word no symbol writes by itself, so that whole children vanish: Z is linear in the emission of one word."""
    g = example(PCFG)
    emit = g.tensor("emit").clone()
    emit[:, 1] = 0
    emit[0, 0] = 0
    emit.requires_grad_()
    h = conjoin(g.with_factors({"emit": emit}), string_query([0, 2, 2]))
    (found,) = torch.autograd.grad(sum_product(h, "real"), emit)
    (logs,) = torch.autograd.grad(sum_product(h), emit)
    z = sum_product(h, "real").item()
    rules, factors, start = plain(h)
    for p in range(2):
        moved = [list(row) for row in factors["emit"]]
        moved[p][0] += 1.0
        slope = oracle.total(rules, {**factors, "emit": moved}, start) - oracle.total(rules, factors, start)
        assert found[p, 0].item() == pytest.approx(slope, rel=1e-10)
        assert logs[p, 0].item() == pytest.approx(slope / z, rel=1e-10)


def test_nothing_is_minus_infinity_with_zero_gradients() -> None:
    g = example(HMM)
    emit = g.tensor("emit").clone()
    emit[:, 2] = 0
    emit.requires_grad_()
    h = conjoin(g.with_factors({"emit": emit}), string_query([[0, 2], [0, 1]]))
    out = sum_product(h)
    assert out[0] == float("-inf")
    assert torch.isfinite(out[1])
    (grad,) = torch.autograd.grad(out[0], emit)
    assert (grad == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_range_of_a_thousand_nats_loses_nothing(dtype: torch.dtype) -> None:
    """State 0 is the likeliest by far, at every word, but none begins in it: all that counts underflows beside it."""
    small = 1e-30 if dtype == torch.float32 else 1e-250
    emit = torch.tensor([[1.0], [small]], dtype=dtype)
    move = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=dtype)
    initial = torch.tensor([0.0, 1.0], dtype=dtype)
    g = parse(
        "domain Z = 2; observed V = 1\n"
        "S() -> initial(z) X(z)\nX(z: Z) -> emit(z, w: V) next(z, y: Z) X(y) | emit(z, w) end(z)"
    ).with_factors({"initial": initial, "emit": emit, "next": move, "end": torch.ones(2, dtype=dtype)})
    out = sum_product(conjoin(g, string_query([0] * 6)))
    assert out.dtype == torch.float64
    assert out.item() == pytest.approx(6 * math.log(float(emit[1, 0])), rel=1e-12)


def test_float32_sums_scale_in_float32() -> None:
    g = asked("pcfg")
    single = g.with_factors({name: x.float() for name, x in g.factors.items()})
    torch.testing.assert_close(sum_product(single), sum_product(g), rtol=1e-5, atol=0)  # float32 products


def test_counts_beyond_any_float_are_exact() -> None:
    text = "domain Z = 7; observed V = 1\nS() -> one(z: Z) X(z)\nX(z: Z) -> e(z, w: V) next(z, y: Z) X(y) | e(z, w)"
    g = conjoin(example(text), string_query([0] * 30))
    assert count(g) == 7**30
    with pytest.raises(DomainError, match=r"beyond int64"):
        sum_product(g, "counting")
    assert count(conjoin(example(text), string_query([[0] * 2, [0] * 2]))) == [49, 49]


def test_a_batch_is_its_sentences() -> None:
    g = example(PCFG)
    sentences = [[0, 1, 2, 0], [2, 2, 1, 0], [1, 0, 0, 2]]
    together = sum_product(conjoin(g, string_query(sentences)))
    apart = torch.stack([sum_product(conjoin(g, string_query(words))) for words in sentences])
    torch.testing.assert_close(together, apart, rtol=1e-13, atol=0)


def test_all_strings_of_a_length_sum_to_one() -> None:
    g = example(HMM)
    emit, move = g.tensor("emit"), g.tensor("next")
    g = g.with_factors(
        {
            "initial": g.tensor("initial") / g.tensor("initial").sum(),
            "emit": emit / emit.sum(1, keepdim=True),
            "next": move / move.sum(1, keepdim=True),
        }
    )
    strings = torch.cartesian_prod(*[torch.arange(3)] * 4)
    total = sum_product(conjoin(g, string_query(strings)), "real").sum()
    assert total.item() == pytest.approx(1.0, rel=1e-12)
    assert sum_product(conjoin(g, string_query([None] * 4)), "real").item() == pytest.approx(1.0, rel=1e-12)


def test_rules_of_a_level_share_one_contraction(monkeypatch: pytest.MonkeyPatch) -> None:
    g = conjoin(example(PCFG), string_query([0] * 12))
    calls: list[object] = []
    plain_contract = Execution._contract
    monkeypatch.setattr(
        Execution, "_contract", lambda self, group, *rest: calls.append(group) or plain_contract(self, group, *rest)
    )
    sum_product(g, "real")
    assert len(g.rules) > 300
    assert len(calls) <= 4 * 12


def test_schedules_are_made_once_for_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    g = example(PCFG)
    first = sum_product(conjoin(g, string_query([0, 1, 2, 2])))
    import rankfold.fgg.inference.schedule as schedule_file

    monkeypatch.setattr(schedule_file, "_groups", lambda *_: pytest.fail("made again"))
    second = sum_product(conjoin(g, string_query([2, 1, 2, 0])))
    assert first != second


def test_orders_without_opt_einsum(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    import rankfold.fgg.contraction as contraction

    wanted = sum_product(conjoin(example(TEXTS["two heads"]), string_query([0, 1, 1])))
    monkeypatch.setitem(sys.modules, "opt_einsum", None)
    contraction._plan.cache_clear()
    inputs = ((0, 1, 2), (1,), (2,), (0, 3))
    found = contraction._order(inputs, (3,), {0: 2, 1: 50, 2: 50, 3: 4})
    assert found == greedy_order(inputs, (3,), {0: 2, 1: 50, 2: 50, 3: 4})
    again = sum_product(conjoin(example(TEXTS["two heads"], seed=0), string_query([0, 1, 1])))
    contraction._plan.cache_clear()
    torch.testing.assert_close(again, wanted, rtol=1e-12, atol=0)


def test_the_greedy_order_takes_the_cheap_pair_first() -> None:
    assert greedy_order([(0, 1), (1, 2), (2,)], (0,), {0: 9, 1: 9, 2: 9}) == [(1, 2), (0, 1)]


def test_a_contraction_is_the_same_in_every_arithmetic(generator: torch.Generator) -> None:
    inputs, output, sizes = [(0, 1, 4), (1, 2), (2, 0, 3), (3,)], (3, 0), {0: 2, 1: 3, 2: 4, 3: 2, 4: 3}
    tensors = [torch.rand([sizes[a] for a in axes], generator=generator, dtype=torch.float64) for axes in inputs]
    plan = plan_contraction(inputs, output, sizes)
    wanted = torch.einsum("abe,bc,cad,d->da", *tensors)
    torch.testing.assert_close(contract(plan, tensors, REAL), wanted, rtol=1e-12, atol=0)
    logs = [x.log() for x in tensors]
    torch.testing.assert_close(contract(plan, logs, LOGS), wanted.log(), rtol=1e-12, atol=1e-12)
    terms = torch.einsum("abe,bc,cad,d->daebc", *tensors)
    torch.testing.assert_close(contract(plan, logs, MAX), terms.amax((2, 3, 4)).log(), rtol=1e-12, atol=1e-12)


def test_unknown_semirings_and_mixed_dtypes_are_refused() -> None:
    g = asked("hmm")
    with pytest.raises(UnsupportedError, match=r"'tropical' is unknown.*'counting'"):
        sum_product(g, semiring="tropical")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match=r"(?s)float32.*Mixed"):
        sum_product(g.with_factors({"emit": g.tensor("emit").float()}))
    with pytest.raises(DomainError, match=r"'emit' has no tensor yet"):
        sum_product(conjoin(parse(HMM), string_query([0])))


def test_a_module_is_called_once_a_pass() -> None:
    class Emission(torch.nn.Module):
        calls = 0

        def forward(self) -> Tensor:
            self.calls += 1
            return torch.ones(2, 3, dtype=torch.float64)

    module = Emission()
    g = conjoin(example(HMM).with_factors({"emit": module}), string_query([0, 1, 2]))
    sum_product(g, "real")
    assert module.calls == 1


def long_rule(length: int, num_states: int, weight: float, dtype: torch.dtype) -> tuple[Grammar, dict[str, Tensor]]:
    """One rule, a chain of square factors of one weight, the first entry of the second exactly 0."""
    edges = [f"f{k}(x{k}: Z, x{k + 1}: Z)" for k in range(length)]
    weights = {f"f{k}": torch.full((num_states, num_states), weight, dtype=dtype) for k in range(length)}
    weights["f1"][0, 0] = 0.0
    weights = {name: x.requires_grad_() for name, x in weights.items()}
    return parse(f"domain Z = {num_states}\nS() -> {' '.join(edges)}").with_factors(weights), weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("length", "num_states", "weight"),
    [(12, 1000, 1e-3), (11, 1000, 1.0), (150, 100, 1e-3), (150, 100, 1e-12), (12, 30, 1e-30), (170, 64, 1e30)],
)
def test_one_rule_beyond_the_range_of_its_dtype(
    length: int, num_states: int, weight: float, dtype: torch.dtype
) -> None:
    """num_states^(length + 1) products, less those of the entry that is 0; its own gradient is that of any other."""
    g, weights = long_rule(length, num_states, weight, dtype)
    weight = float(torch.tensor(weight, dtype=dtype))
    rest = 1 - num_states**-2.0
    truth = (length + 1) * math.log(num_states) + length * math.log(weight) + math.log(rest)
    log_z = sum_product(g)
    assert log_z.item() == pytest.approx(truth, rel=1e-13, abs=1e-12)
    gradients = torch.autograd.grad(log_z, [weights["f0"], weights["f1"]])
    rel = 1e-5 if dtype == torch.float32 else 1e-12
    assert float(gradients[0].double().sum()) * weight == pytest.approx(1.0, rel=rel)
    assert float(gradients[1][0, 0]) * weight * rest * num_states**2 == pytest.approx(1.0, rel=rel)
    counts = marginals(g.with_factors({name: x.detach() for name, x in weights.items()}))
    assert float(counts.rules["S.1"]) == pytest.approx(1.0, rel=rel)
    torch.testing.assert_close(counts.factors["f0"].sum(), torch.ones((), dtype=dtype), rtol=rel, atol=0)
    assert float(counts.factors["f1"][0, 0]) == 0.0
    assert float(counts.factors["f1"][1, 1]) == pytest.approx(1 / rest / num_states**2, rel=rel)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_weight_between_numbers_that_are_out_of_range(dtype: torch.dtype) -> None:
    """ "real" is the weight itself, whatever is multiplied first: 1e30^11 1e-30^11 here, and 0 with its gradient."""
    g = parse("S() -> " + " ".join(f"a{k}()" for k in range(11)) + " b() " + " ".join(f"c{k}()" for k in range(11)))
    weights = {
        f"{name}{k}": torch.tensor(x, dtype=dtype) for name, x in (("a", 2.0**99), ("c", 2.0**-99)) for k in range(11)
    }
    b = torch.zeros((), dtype=dtype, requires_grad=True)
    z = sum_product(g.with_factors({**weights, "b": b}), "real")
    assert z.item() == 0.0
    assert z.dtype == dtype
    assert torch.autograd.grad(z, b)[0].item() == pytest.approx(1.0, rel=1e-6)
    assert sum_product(g.with_factors({**weights, "b": torch.ones((), dtype=dtype)}), "real").item() == pytest.approx(
        1.0
    )


def test_counts_of_a_rule_of_many_nodes() -> None:
    g, _ = long_rule(12, 1000, 1e-3, torch.float32)
    assert count(g) == 1000**13 - 1000**11


def test_children_that_share_all_their_nodes() -> None:
    g = example(
        """
        domain D = 2; domain E = 1
        factor h: D, E
        S() -> B(y: D) B(y) | B(y: D)
        B(d: D) -> C(d, e: E) C(d, e) C(d, e) f(e, z: D) | g(d) f(e: E, z: D)
        C(d: D, e: E) -> h(x: D, 0) f(e2: E, x)
        """
    )
    assert sum_product(g, "real").item() == pytest.approx(oracle.total(*plain(g)), rel=1e-12)
