"""Gradients at weights of exactly zero, against enumeration; where sums leave the range of float64, fractions."""

from fractions import Fraction

import pytest
import torch
from torch import Tensor

import rankfold
from rankfold.fgg import Grammar, conjoin, marginals, parse, string_query, sum_product
from tests.fgg.plain import plain
from tests.oracles import fgg as oracle

BEYOND = """
domain A = 1
factor a: A; factor b: A; factor c: A; factor e: A; factor z: A
S() -> X(n: A) | Y(n: A)
X(n: A) -> Y(m: A) Y(n) c(m) z(n) | e(n)
Y(n: A) -> a(n) b(n)
"""
AMPLIFIED = """
domain D = 2
factor e: D; factor only: D; factor t: D; factor pick: D
S() -> X()
X() -> tiny() | big() Y(n: D) pick(n)
Y(n: D) -> e(n) only(n) | t(n)
"""
HMM = """
domain H = 2; observed W = 3
factor move: H, H; factor emit: H, W; factor initial: H; factor end: H
S() -> initial(h) X(h)
X(h: H) -> emit(h, w) move(h, k: H) X(k) | emit(h, w) end(h) end(h) end(h)
"""
# Factors of words alone: whole rules are 0, one of several or all but one, above and below others.
OF_WORDS = """
domain Z = 2; observed V = "x" "y"
factor tilt: V; factor stop: V; factor other: V; factor emit: Z, V
S() -> start(z: Z) X(z) | other("x") other("y") Y() | stop("y")
X(z: Z) -> emit(z, "x") | emit(z, "y") tilt("y") Y() | tilt("x") Y()
Y() -> tilt("x") | stop("y") stop("y") | stop("x") other("y")
"""
READ = """
domain Z = 2; observed V = 3
factor tilt: V; factor emit: Z, V
S() -> start(z: Z) X(z) | S() S() join()
X(z: Z) -> emit(z, w) tilt(w) move(z, y: Z) X(y) | emit(z, w) tilt(w)
"""


def _leaf(x: object, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(x, dtype=dtype, requires_grad=True)


def _enumerated(g: Grammar, name: str, *, is_log: bool) -> Tensor:
    """The gradient of log Z or Z, summed over the sentences, by an imaginary step; 0 where log Z is -inf."""
    step, found = 1e-200, torch.zeros(g.tensor(name).numel(), dtype=torch.float64)
    for sentence in range(g.batch or 1):
        rules, factors, start = plain(g, sentence)
        z = oracle.total(rules, factors, start)
        for k in range(len(found)):
            moved = g.tensor(name).detach().to(torch.complex128).flatten()
            moved[k] += 1j * step
            own = factors | {name: moved.reshape(g.tensor(name).shape).tolist()}
            slope = sum(oracle.scores(rules, own, start)).imag / step
            found[k] += slope if not is_log else slope / z if z else 0.0
    return found.reshape(g.tensor(name).shape)


def _random_zeros(g: Grammar, seed: int, share: float) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {x.name: [g.size(domain) for domain in x.type] for x in g.labels if x.is_terminal}
    every = {k: torch.rand((2, *shape), generator=generator, dtype=torch.float64) for k, shape in shapes.items()}
    return {k: torch.where(x[0] < share, 0.0, x[1]).requires_grad_() for k, x in every.items()}


@pytest.mark.parametrize(
    "rules", ["S() -> a(1) | b(0)", "S() -> a(1) Y() | b(0)\nY() -> b(0)", "S() -> a(1) | b(0) a(0)"]
)
def test_a_rule_of_words_alone_that_is_nothing(rules: str) -> None:
    g = parse("domain A = 2; factor a: A; factor b: A\n" + rules)
    g = g.with_factors({"a": _leaf([2.0, 0.0]), "b": _leaf([0.5, 3.0])})
    found = torch.autograd.grad(sum_product(g), [g.tensor("a"), g.tensor("b")])
    for name, x in zip("ab", found, strict=True):
        torch.testing.assert_close(x, _enumerated(g, name, is_log=True), rtol=1e-12, atol=0)


@pytest.mark.parametrize("semiring", ["log", "real"])
@pytest.mark.parametrize("share", [0.4, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_many_zeros(semiring: str, share: float, seed: int) -> None:
    """Among them sums of nothing: their log Z is -inf, with gradients of 0, and their Z has gradients."""
    words, read = parse(OF_WORDS), parse(READ)
    mixed = conjoin(read.with_factors(_random_zeros(read, seed, share)), string_query([[0, 1, 2], [1], [2, 0], [1, 1]]))
    for g in (words.with_factors(_random_zeros(words, seed, share)), mixed):
        names = [x.name for x in g.labels if x.name in g.factors and g.tensor(x.name).requires_grad]
        value = sum_product(g, semiring)  # type: ignore[arg-type]
        finite = torch.where(value > float("-inf"), value, 0.0).sum()
        found = torch.autograd.grad(finite, [g.tensor(name) for name in names], materialize_grads=True)
        for name, x in zip(names, found, strict=True):
            truth = _enumerated(g, name, is_log=semiring == "log")
            torch.testing.assert_close(x, truth, rtol=1e-10, atol=0, msg=lambda text, name=name: f"{name}: {text}")


def test_posteriors_have_derivatives_there() -> None:
    """P(b) = b / (a + b), whose derivative by a is -b / (a + b)^2; a factor without gradient is counted, too."""
    a, b = _leaf([0.0]), torch.tensor([0.5], dtype=torch.float64)
    found = marginals(
        parse("domain A = 1; factor a: A; factor b: A\nS() -> a(0) | b(0)").with_factors({"a": a, "b": b})
    )
    assert found.factors["a"].tolist() == [0.0]
    assert found.factors["b"].tolist() == [1.0]
    for x in (found.rules["S.2"], found.factors["b"].sum()):
        assert torch.autograd.grad(x, a, retain_graph=True)[0].tolist() == pytest.approx([-2.0], rel=1e-12)
    for x in (found.rules["S.1"], found.factors["a"].sum()):
        assert torch.autograd.grad(x, a, retain_graph=True)[0].tolist() == pytest.approx([2.0], rel=1e-12)


def test_of_z_near_the_largest_number() -> None:
    """S = h (h^2 c + d); the rule of 0 is h^2 / d of the other, and the gradient of Z passes through both scales."""
    g = parse("S() -> h() Y()\nY() -> H() H() c() | d()\nH() -> h()")
    weights = {name: _leaf(x, torch.float32) for name, x in {"h": 1e13, "c": 0.0, "d": 1e3}.items()}
    found = torch.autograd.grad(sum_product(g.with_factors(weights), "real"), list(weights.values()))
    assert [x.item() for x in found] == pytest.approx([1e3, float("inf"), 1e13], rel=1e-6)


def _beyond(dtype: torch.dtype) -> tuple[dict[str, Tensor], float]:
    size = {torch.float32: (1e20, 1e30, 1e-25, 1e33), torch.float64: (2e144, 4e267, 9e-168, 1e266)}[dtype]
    weights = {name: _leaf([x], dtype) for name, x in zip("abce", size, strict=True)}
    a, b, c, e = (Fraction(weights[name].item()) for name in "abce")
    return {**weights, "z": _leaf([0.0], dtype)}, float((a * b) ** 2 * c / (a * b + e))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_rule_that_is_nothing_outweighs_the_other_beyond_the_range(dtype: torch.dtype) -> None:
    weights, truth = _beyond(dtype)
    z = sum_product(parse(BEYOND).with_factors(weights))
    (found,) = torch.autograd.grad(z, weights["z"])
    assert found.item() == pytest.approx(truth, rel=1e-10 if dtype == torch.float64 else 1e-6)


def test_beside_a_weight_that_scaling_takes_digits_of() -> None:
    f = _leaf([0.0, 1e7, 2e-314, 0.0])
    z = sum_product(parse("domain A = 4\nfactor f: A\nS() -> f(n: A)").with_factors({"f": f}))
    (found,) = torch.autograd.grad(z, f)
    assert found[[0, 1, 3]].tolist() == pytest.approx([1e-7] * 3, rel=1e-12)


def test_two_sums_of_nothing_above_one_another() -> None:
    """Each is 1e240 below its rules' scale: the gradient overflows on its way, and 0 times that would be NaN."""
    given = {"e": [0.0, 1e304], "only": [1.0, 0.0], "t": [0.0, 1e64], "pick": [1.0, 0.0], "tiny": 1e-16, "big": 1e160}
    weights = {name: _leaf(x) for name, x in given.items()}
    z = sum_product(parse(AMPLIFIED).with_factors(weights))
    found = dict(zip(weights, torch.autograd.grad(z, list(weights.values()), retain_graph=True), strict=True))
    truth = {"e": [1e176, 0.0], "only": [0.0, 0.0], "t": [1e176, 0.0], "pick": [0.0, 1e240], "tiny": 1e16, "big": 0.0}
    for name, x in truth.items():
        torch.testing.assert_close(found[name], torch.tensor(x, dtype=torch.float64), rtol=1e-10, atol=0)
    (less,) = torch.autograd.grad(z, weights["e"], torch.tensor(-2.0, dtype=torch.float64))
    assert less[0].item() == pytest.approx(-2e176, rel=1e-10)
    with pytest.raises(rankfold.UnsupportedError, match="differentiable twice where weights are exactly 0"):
        torch.autograd.grad(sum_product(parse(AMPLIFIED).with_factors(weights)), weights["only"], create_graph=True)


INITIAL, MOVE, END = [0.0, 1.0], [[1.0, 0.0], [0.0, 1.0]], [1e-300, 1.0]
EMIT = [[1.0, 1.0, 1.0], [1e-250, 0.5e-250, 2e-250]]


def _hmm(words: list[int], initial: list[float], move: list[list[float]]) -> Fraction:
    here = [Fraction(x) for x in initial]
    for t, word in enumerate(words):
        if t:
            here = [sum((here[i] * Fraction(move[i][j]) for i in range(2)), Fraction(0)) for j in range(2)]
        here = [x * Fraction(EMIT[j][word]) for j, x in enumerate(here)]
    return sum((x * Fraction(END[j]) ** 3 for j, x in enumerate(here)), Fraction(0))


@pytest.mark.parametrize("upstream", [(1.0, 1.0), (1.0, -3.0), (0.0, -0.5)])
def test_sentences_of_a_batch_with_weights_of_either_sign(upstream: tuple[float, float]) -> None:
    """State 0 is 1e250 likelier at every word and 1e-900 at the end; none begins there. Z is linear in both zeros."""
    sentences = [[0, 0, 0, 1], [2, 0, 1, 0]]
    leaves = [_leaf(INITIAL), _leaf(MOVE)]
    weights = {"initial": leaves[0], "move": leaves[1], "emit": _leaf(EMIT), "end": _leaf(END)}
    log_z = sum_product(conjoin(parse(HMM).with_factors(weights), string_query(sentences)))
    found = torch.autograd.grad(log_z, leaves, torch.tensor(upstream, dtype=torch.float64))
    begun = moved = Fraction(0)
    for words, weight in zip(sentences, upstream, strict=True):
        z = _hmm(words, INITIAL, MOVE)
        begun += Fraction(weight) * (_hmm(words, [1.0, 1.0], MOVE) - z) / z
        moved += Fraction(weight) * (_hmm(words, INITIAL, [[1.0, 0.0], [1.0, 1.0]]) - z) / z
    assert found[0][0].item() == pytest.approx(float(begun), rel=1e-10)
    assert found[1][1, 0].item() == pytest.approx(float(moved), rel=1e-10, abs=0)
    assert found[1][0, 1].item() == 0.0  # nothing is ever in state 0


def test_nothing_times_a_scale_beyond_the_range() -> None:
    """Z = a b^3, by z, which is 0, has the gradient 1e250; what it is multiplied by is 1e450 and 1e-200."""
    weights = {"z": _leaf(0.0), "a": _leaf([1e-200, 1.0]), "b": _leaf(1e150)}
    g = parse("domain A = 2; factor a: A\nS() -> b() X()\nX() -> b() Y()\nY() -> b() z() a(0)").with_factors(weights)
    z = sum_product(g, "real")
    assert z.item() == 0.0
    assert torch.autograd.grad(z, weights["z"])[0].item() == pytest.approx(1e250, rel=1e-10)


def test_a_sum_of_nothing_beyond_the_range() -> None:
    """Z is 0, its gradient 5; log Z has none."""
    g = parse("domain A = 2\nfactor f: A; factor g: A; factor h: A\nS() -> f(n: A) g(n) h(n)")
    f, h = _leaf([0.0, 2e-314]), _leaf([5e-300, 0.0])
    weights = {"f": f, "g": torch.tensor([1e300, 1e300], dtype=torch.float64), "h": h}
    z = sum_product(g.with_factors(weights), "real")
    assert z.item() == 0.0
    (found,) = torch.autograd.grad(z, f)
    assert found.tolist() == pytest.approx([5.0, 0.0], rel=1e-10)
    log_z = sum_product(g.with_factors(weights))
    assert log_z.item() == float("-inf")
    assert torch.autograd.grad(log_z, f)[0].tolist() == [0.0, 0.0]


def test_second_derivatives_there_are_refused() -> None:
    weights, truth = _beyond(torch.float64)
    z = sum_product(parse(BEYOND).with_factors(weights))
    (slope,) = torch.autograd.grad(z, weights["z"], create_graph=True)
    assert slope.item() == pytest.approx(truth, rel=1e-10)
    with pytest.raises(rankfold.UnsupportedError, match="differentiable twice where weights are exactly 0"):
        slope.backward()
    (of_a,) = torch.autograd.grad(z, weights["a"], create_graph=True)
    with pytest.raises(rankfold.UnsupportedError, match="differentiable twice where weights are exactly 0"):
        torch.autograd.grad(of_a, weights["z"])
