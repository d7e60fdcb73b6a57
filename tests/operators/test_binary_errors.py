"""Every mistake at the door of a binary operator, the error it raises and the words that help."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rankfold import (
    BinaryCPD,
    BinaryDense,
    BinaryMatricised,
    Branch,
    DomainError,
    ShapeError,
    UnsupportedError,
)
from rankfold.operators.binary import expect_branch
from tests.operators.test_bad_input import holding

INF, NAN = float("inf"), float("nan")
ONE, CUBE = torch.ones(3, 2), torch.ones(3, 3, 2)
Build = Callable[[Tensor], object]

# A wrong last entry in each factor, its name and its index.
LINEAR: dict[str, tuple[Build, tuple[int, ...], str]] = {
    "cpd head": (lambda x: BinaryCPD(x, ONE, ONE), (3, 2), r"head\[2,1\]"),
    "cpd left": (lambda x: BinaryCPD(ONE, x, ONE), (3, 2), r"left\[2,1\]"),
    "cpd right": (lambda x: BinaryCPD(ONE, ONE, x), (5, 3, 2), r"right\[4,2,1\]"),
    "dense": (BinaryDense, (3, 3, 2), r"weight\[2,2,1\]"),
    "matricised parent": (lambda x: BinaryMatricised(x, CUBE), (3, 2), r"parent\[2,1\]"),
    "matricised pair": (lambda x: BinaryMatricised(ONE, x), (3, 3, 2), r"pair\[2,2,1\]"),
}
LOGS: dict[str, tuple[Build, tuple[int, ...], str]] = {
    "cpd head": (lambda x: BinaryCPD.from_log(x, ONE, ONE), (3, 2), r"log_head\[2,1\]"),
    "cpd left": (lambda x: BinaryCPD.from_log(ONE, x, ONE), (3, 2), r"log_left\[2,1\]"),
    "cpd right": (lambda x: BinaryCPD.from_log(ONE, ONE, x), (5, 3, 2), r"log_right\[4,2,1\]"),
    "dense": (BinaryDense.from_log, (4, 3, 3, 2), r"log_weight\[3,2,2,1\]"),
    "matricised parent": (lambda x: BinaryMatricised.from_log(x, CUBE), (3, 2), r"log_parent\[2,1\]"),
    "matricised pair": (lambda x: BinaryMatricised.from_log(ONE, x), (3, 3, 2), r"log_pair\[2,2,1\]"),
}


@pytest.mark.parametrize("case", LINEAR)
@pytest.mark.parametrize("value", [-1.0, INF, NAN])
def test_weights_outside_the_domain(case: str, value: float) -> None:
    build, shape, where = LINEAR[case]
    with pytest.raises(DomainError, match=rf"(?s)^{where} is {value}, but weights are finite and at least 0.*from_log"):
        build(holding(value, *shape))


@pytest.mark.parametrize("case", LOGS)
@pytest.mark.parametrize("value", [INF, NAN])
def test_logs_outside_the_domain(case: str, value: float) -> None:
    build, shape, where = LOGS[case]
    with pytest.raises(DomainError, match=rf"^{where} is {value}, but a log-weight is finite or -inf"):
        build(holding(value, *shape))
    build(holding(-INF, *shape))


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: BinaryDense(ONE), r'(?s)weight has shape \(3, 2\), but "a n m" was expected.*one for a sentence'),
        (lambda: BinaryDense(torch.ones(3, 0, 2)), r"weight has shape \(3, 0, 2\).*every axis at least 1"),
        (lambda: BinaryDense([[[1.0]]]), 'weight must be a torch.Tensor "a n m", but is a list'),  # type: ignore[arg-type]
        (lambda: BinaryDense.from_log(ONE), r'log_weight has shape \(3, 2\), but "a n m"'),
        (lambda: BinaryCPD(torch.ones(2), ONE, ONE), r'head has shape \(2,\), but "a r" was expected'),
        (lambda: BinaryCPD(ONE, None, ONE), 'left must be a torch.Tensor "n r", but is a NoneType'),  # type: ignore[arg-type]
        (
            lambda: BinaryCPD.from_log(ONE, ONE, torch.ones(1, 1, 3, 2)),
            r'log_right has shape \(1, 1, 3, 2\), but "m r"',
        ),
        (lambda: BinaryMatricised(CUBE[0, 0], CUBE), r'parent has shape \(2,\), but "a r"'),
        (lambda: BinaryMatricised(ONE, ONE), r'pair has shape \(3, 2\), but "n m r"'),
        (
            lambda: BinaryCPD(ONE, torch.ones(3, 4), ONE),
            r"(?s)the rank, but they are \{'head': 2, 'left': 4, 'right': 2\}.*head\[a, r\], left\[n, r\]",
        ),
        (lambda: BinaryCPD.from_log(ONE, ONE, torch.ones(3, 1)), "'log_right': 1"),
        (lambda: BinaryCPD(None, ONE, torch.ones(3, 1)), r"the rank, but they are \{'left': 2, 'right': 1\}"),
        (
            lambda: BinaryMatricised(torch.ones(3, 4), CUBE),
            r"(?s)the rank, but parent has 4 and pair 2\..*parent\[a, r\], pair\[n, m, r\]",
        ),
        (lambda: BinaryMatricised.from_log(torch.ones(3, 4), CUBE), "log_parent has 4 and log_pair 2"),
        (
            lambda: BinaryCPD(torch.ones(2, 3, 2), torch.ones(5, 3, 2), ONE),
            r"for each sentence differ in how many: \{'head': 2, 'left': 5\}",
        ),
        (
            lambda: BinaryMatricised(torch.ones(2, 3, 2), torch.ones(5, 3, 3, 2)),
            r"for each sentence differ in how many: \{'parent': 2, 'pair': 5\}",
        ),
    ],
)
def test_shapes(build: Callable[[], object], text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        build()


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: BinaryCPD(ONE, ONE.double(), ONE), r"left is torch.float64, but head is torch.float32"),
        (lambda: BinaryCPD.from_log(ONE, ONE, ONE.to("meta")), "log_right is on meta, but log_head is on cpu"),
        (lambda: BinaryMatricised(ONE, CUBE.double()), r"pair is torch.float64, but parent is torch.float32"),
        (lambda: BinaryMatricised.from_log(ONE, CUBE.to("meta")), "log_pair is on meta, but log_parent is on cpu"),
        (lambda: BinaryDense(CUBE.half()), r"weight has dtype torch.float16; float32 and float64 are supported"),
        (lambda: BinaryDense(CUBE.long()), r"weight has dtype torch.int64; float32 and float64 are supported"),
        (lambda: BinaryCPD(*(ONE.bfloat16(),) * 3), r"head has dtype torch.bfloat16"),
        (lambda: BinaryMatricised.from_log(ONE.half(), CUBE.half()), r"log_parent has dtype torch.float16"),
    ],
)
def test_kinds(build: Callable[[], object], text: str) -> None:
    with pytest.raises(UnsupportedError, match=text):
        build()


def dense(*shape: int) -> BinaryDense:
    return BinaryDense(torch.ones(shape))


def test_a_branch_of_rules_that_fit() -> None:
    assert expect_branch(Branch(dense(2, 2, 2), dense(2, 2, 3), dense(2, 3, 2), dense(2, 3, 3))) == (2, 3)


@pytest.mark.parametrize(
    ("at", "shape", "text"),
    [
        (
            "span_span",
            (2, 2, 3),
            "span_span maps 2 x 3 children to 2 parents, but with 2 symbols of spans and 3 of leaves",
        ),
        ("span_leaf", (2, 3, 2), "span_leaf maps 3 x 2 children to 2 parents.*must be 2 x 3 to 2"),
        ("leaf_span", (4, 3, 2), "leaf_span maps 3 x 2 children to 4 parents.*must be 3 x 2 to 2"),
        ("leaf_leaf", (2, 3, 4), "leaf_leaf maps 3 x 4 children to 2 parents.*must be 3 x 3 to 2"),
    ],
)
def test_rules_that_do_not_fit_together(at: str, shape: tuple[int, ...], text: str) -> None:
    rules = Branch(dense(2, 2, 2), dense(2, 2, 3), dense(2, 3, 2), dense(2, 3, 3))
    with pytest.raises(ShapeError, match=text):
        expect_branch(rules._replace(**{at: dense(*shape)}))


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        (
            dense(2, 2, 2),
            r"(?s)rules must be a rankfold.Branch of four operators, but is a BinaryDense.*Branch\(span_span",
        ),
        ((dense(2, 2, 2),) * 4, "but is a tuple"),
        (
            Branch(dense(2, 2, 2), CUBE, dense(2, 2, 2), dense(2, 2, 2)),
            r"(?s)span_leaf must be a binary operator, but is a Tensor.*BinaryDense\(weight\)",
        ),  # type: ignore[arg-type]
        (Branch(*(dense(2, 2, 2),) * 3, BinaryDense), "leaf_leaf must be a binary operator, but is a type"),  # type: ignore[arg-type]
    ],
)
def test_rules_that_are_none(rules: object, text: str) -> None:
    with pytest.raises(UnsupportedError, match=text):
        expect_branch(rules)
