"""Recursive grammars: least fixed points, their gradients, and sums that are infinite."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from rankfold.errors import DomainError
from rankfold.fgg import Grammar, automaton_query, conjoin, count, library, parse, string_query, sum_product
from tests.fgg.plain import HMM, PCFG, example

BRANCHING = parse("S() -> Y()\nY() -> p() Y() Y() | q()")


def branching(p: Tensor | float, q: float) -> Grammar:
    p = p if isinstance(p, Tensor) else torch.tensor(p, dtype=torch.float64)
    return BRANCHING.with_factors({"p": p, "q": torch.tensor(q, dtype=torch.float64)})


@pytest.mark.parametrize(("p", "q"), [(0.3, 0.7), (0.7, 0.3), (0.1, 0.1), (0.0, 0.5)])
def test_the_least_of_two_solutions(p: float, q: float) -> None:
    """y = p y^2 + q has the solutions (1 +- sqrt(1 - 4 p q)) / 2 p."""
    least = q if p == 0 else (1 - math.sqrt(1 - 4 * p * q)) / (2 * p)
    assert sum_product(branching(p, q), "real").item() == pytest.approx(least, rel=1e-13)
    assert sum_product(branching(p, q)).item() == pytest.approx(math.log(least), abs=1e-13)


def test_at_the_double_root() -> None:
    # The solution moves by the square root of an error there: half of float64's digits are all there are.
    assert sum_product(branching(0.5, 0.5), "real").item() == pytest.approx(1.0, rel=1e-7)


def test_gradients_of_the_solution() -> None:
    p = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: sum_product(branching(x, 0.6)), p)


def test_a_normalised_hmm_with_an_end_sums_to_one() -> None:
    g = example(HMM.replace("| emit(z, w)", "| emit(z, w) end(z)"))
    emit, move, end = (g.tensor(name) for name in ("emit", "next", "end"))
    total = move.sum(1) + end
    g = g.with_factors(
        {
            "initial": torch.tensor([0.25, 0.75], dtype=torch.float64),
            "emit": emit / emit.sum(1, keepdim=True),
            "next": move / total[:, None],
            "end": end / total,
        }
    )
    assert sum_product(g, "real").item() == pytest.approx(1.0, rel=1e-12)
    lengths = torch.stack([sum_product(conjoin(g, string_query([None] * n)), "real") for n in range(1, 40)])
    assert float(lengths.sum()) == pytest.approx(1.0, abs=1e-6)


def test_gradients_through_a_set_of_states() -> None:
    g = example(PCFG)
    rule = (g.tensor("rule") * 0.02).requires_grad_()

    def total(x: Tensor) -> Tensor:
        return sum_product(g.with_factors({"rule": x}))

    assert torch.autograd.gradcheck(total, rule, fast_mode=True)


def test_states_without_weight_do_not_make_it_singular() -> None:
    """State 0 only comes back to itself, with weight 1, and ends nowhere: its sum is 0, not infinite."""
    g = parse("domain Z = 2\nS() -> i(z) X(z)\nX(z: Z) -> next(z, y: Z) X(y) | end(z)").with_factors(
        {
            "i": torch.ones(2, dtype=torch.float64),
            "next": torch.diag(torch.tensor([1.0, 0.5], dtype=torch.float64)),
            "end": torch.tensor([0.0, 1.0], dtype=torch.float64),
        }
    )
    assert sum_product(g, "real").item() == pytest.approx(2.0, rel=1e-13)


def test_an_automaton_with_a_loop() -> None:
    """Strings a* b of one state: sum over n of (emit a)^n emit b."""
    g = parse(
        "domain Z = 1; observed V = 2\nfactor e: Z, V\nS() -> X(z: Z)\nX(z: Z) -> e(z, w) X(z) | e(z, w)"
    ).with_factors({"e": torch.tensor([[0.25, 0.5]], dtype=torch.float64)})
    h = conjoin(g, automaton_query([(0, 0, [0]), (0, 1, [1])], finals=[1]))
    assert sum_product(h, "real").item() == pytest.approx(0.5 / 0.75, rel=1e-13)


@pytest.mark.parametrize(("p", "q"), [(0.6, 0.6), (1.0, 1.0), (3.0, 2.0)])
def test_an_infinite_sum_is_an_error(p: float, q: float) -> None:
    with pytest.raises(DomainError, match=r"The sum is infinite.* Y "):
        sum_product(branching(p, q))


def test_a_loop_of_weight_one_is_an_error() -> None:
    g = parse("S() -> Y()\nY() -> one() Y() | one()").with_factors({"one": torch.ones((), dtype=torch.float64)})
    with pytest.raises(DomainError, match=r"infinite"):
        sum_product(g)


def test_counts_want_a_query() -> None:
    with pytest.raises(DomainError, match=r"infinite: counting.*Y needs Y"):
        count(branching(0.3, 0.7))


def test_a_cycle_that_a_query_leaves_is_not_told_to_ask_one() -> None:
    g = example("domain Z = 2; observed V = 2; S() -> X(z: Z); X(z: Z) -> n(z, y: Z) X(y) | e(z, w: V)")
    with pytest.raises(DomainError, match=r"X\[0,1\] needs X\[0,1\](.|\n)*remove rules that come back") as caught:
        count(conjoin(g, string_query([0])))
    assert "query first" not in str(caught.value)


def many_states(num_states: int, *, emit: float = 0.5, seed: int = 0, dtype: torch.dtype = torch.float64) -> Grammar:
    """An HMM that stops anywhere, of random rows that sum to one; each word has this weight, summed over words."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.rand(num_states, num_states, generator=generator, dtype=torch.float64)
    factors = {
        "initial": torch.full((num_states,), 1 / num_states, dtype=torch.float64),
        "emit": torch.full((num_states, 5), emit / 5, dtype=torch.float64),
        "next": rows / rows.sum(1, keepdim=True),
    }
    return library("hmm", Z=num_states, V=5).with_factors({name: x.to(dtype) for name, x in factors.items()})


def exact_sum(g: Grammar) -> float:
    """sum_z initial(z) X(z) where X = e + diag(e) next X, by elimination in rational numbers."""
    initial, emit, rows = (g.tensor(name).double().tolist() for name in ("initial", "emit", "next"))
    e = [sum(map(Fraction, row)) for row in emit]
    num = len(initial)
    system = [[(i == j) - e[i] * Fraction(rows[i][j]) for j in range(num)] + [e[i]] for i in range(num)]
    for k in range(num):
        for i in range(num):
            if i != k:
                ratio = system[i][k] / system[k][k]
                system[i] = [x - ratio * y for x, y in zip(system[i], system[k], strict=True)]
    return float(sum(Fraction(initial[i]) * system[i][num] / system[i][i] for i in range(num)))


@pytest.mark.parametrize(("num_states", "seed"), [(64, 0), (64, 2), (100, 0), (100, 2), (100, 5), (300, 0)])
def test_finite_sums_of_many_states(num_states: int, seed: int) -> None:
    assert abs(sum_product(many_states(num_states, seed=seed)).item()) < 1e-13


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("emit", "rel"), [(0.5, 1e-14), (0.999, 1e-11), (0.999999, 1e-8)])
def test_close_to_the_border(dtype: torch.dtype, emit: float, rel: float) -> None:
    """Rounding grows by 1 / (1 - the spectral radius)."""
    g = many_states(6, emit=emit, dtype=dtype, seed=3)
    assert sum_product(g, "real").item() == pytest.approx(exact_sum(g), rel=rel)


def test_gradients_of_many_states_close_to_the_border() -> None:
    """Of weights that all rows share, Z = c / (1 - c): its derivative by each emission weight is known."""
    g = many_states(64, emit=0.9999)
    emit = g.tensor("emit").clone().requires_grad_()
    (found,) = torch.autograd.grad(sum_product(g.with_factors({"emit": emit}), "real"), emit)
    assert float(found.sum() / 5) == pytest.approx(1 / (1 - 0.9999) ** 2, rel=1e-9)


@pytest.mark.parametrize("emit", [1.0, 1.000001, 1.5])
def test_many_states_that_grow_are_an_error(emit: float) -> None:
    with pytest.raises(DomainError, match=r"infinite"):
        sum_product(many_states(64, emit=emit))


@pytest.mark.parametrize(("log_p", "log_q"), [(460.0, -462.0), (-460.0, 458.0), (-650.0, -650.0), (-300.0, 298.0)])
def test_sums_beyond_the_range_of_float64(log_p: float, log_q: float) -> None:
    """y = p y^2 + q: log y = log q + log 2 - log(1 + sqrt(1 - 4 p q)), whatever y^2 is."""
    p = torch.tensor(log_p, dtype=torch.float64).exp()
    truth = log_q + math.log(2 / (1 + math.sqrt(1 - 4 * math.exp(log_p + log_q))))
    assert sum_product(branching(p, math.exp(log_q))).item() == pytest.approx(truth, rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [3, 40, 150])
def test_a_long_sentence_with_steps_that_read_no_word(dtype: torch.dtype, length: int) -> None:
    """Nothing underflows, however small the weight of a sentence: down to 1e-750, with (I - n)^-1 between words."""
    i, n, e, t = [0.3, 0.7], [[0.1, 0.2], [0.0, 0.3]], [1e-5, 2e-5], [[0.5, 0.25], [0.125, 0.5]]
    i, e = (torch.tensor(x, dtype=dtype).double().tolist() for x in (i, e))
    n = torch.tensor(n, dtype=dtype).double().tolist()
    text = "domain Z = 2; observed V = 1; S() -> i(z) X(z: Z); X(z: Z) -> n(z, y: Z) X(y) | e(z, w: V) Next(z)"
    g = parse(text + " | e(z, w); Next(z: Z) -> t(z, y: Z) X(y)")
    tables = {"i": i, "n": n, "e": [[x] for x in e], "t": t}
    weights = {name: torch.tensor(x, dtype=dtype).requires_grad_() for name, x in tables.items()}
    found = sum_product(conjoin(g.with_factors(weights), string_query([0] * length)))

    def closed(x: list[float]) -> list[float]:  # the solution of y = x + n y, n upper triangular
        last = x[1] / (1 - n[1][1])
        return [(x[0] + n[0][1] * last) / (1 - n[0][0]), last]

    y, log_scale = closed(e), 0.0
    for _ in range(length - 1):
        y = closed([e[k] * sum(t[k][j] * y[j] for j in range(2)) for k in range(2)])
        log_scale += math.log(max(y))
        y = [x / max(y) for x in y]
    assert found.item() == pytest.approx(math.log(i[0] * y[0] + i[1] * y[1]) + log_scale, rel=1e-13)
    gradients = torch.autograd.grad(found, [weights["e"], weights["n"]])
    assert float((gradients[0] * weights["e"].detach()).sum()) == pytest.approx(
        length, rel=1e-5 if dtype == torch.float32 else 1e-12
    )
    assert float(gradients[1][1, 0]) > 0  # a weight of exactly 0 has its gradient
