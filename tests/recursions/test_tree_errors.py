"""Every mistake at the door of trees, the error it raises and the words that help."""

from typing import Any

import pytest
import torch

from rankfold import BinaryDense, DomainError, ShapeError, TreePotentials, UnsupportedError
from rankfold.recursions.tree import log_z
from tests.recursions.trees import INF, potentials

NAN = float("nan")
T, N, P = 4, 2, 3


def good(**fields: Any) -> TreePotentials:
    return potentials("dense", (4, 2, 3), n=N, p=P, dtype=torch.float32)._replace(**fields)


def test_what_is_right_passes() -> None:
    assert log_z(good()).isfinite().all()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"log_leaf": torch.zeros(T, P)}, r"(?s)log_leaf has shape \(4, 3\).*3 symbols of leaves.*log_leaf\[None\]"),
        (
            {"log_leaf": torch.zeros(3, T, P + 1)},
            r'log_leaf has shape \(3, 4, 4\), but "b t p" was expected with p = 3',
        ),
        ({"log_leaf": torch.zeros(3, 0, P)}, r"log_leaf has shape \(3, 0, 3\)"),
        ({"log_leaf": [[0.0]]}, r'log_leaf must be a torch.Tensor "b t p", but is a list'),
        ({"log_root": torch.zeros(P)}, r'log_root has shape \(3,\), but "n" was expected with n = 2'),
        ({"log_root": torch.zeros(2, N)}, r'log_root has shape \(2, 2\), but "b n" was expected with b = 3, n = 2'),
        ({"log_root": None}, r'log_root must be a torch.Tensor "n", but is a NoneType'),
        ({"log_root_leaf": torch.zeros(N)}, r'log_root_leaf has shape \(2,\), but "p" was expected with p = 3'),
        ({"log_root_leaf": torch.zeros(3, N)}, r'log_root_leaf has shape \(3, 2\), but "b p" was expected'),
        (
            {"log_span": torch.zeros(3, T, T)},
            r'(?s)log_span is \(3, 4, 4\), but "b t\+1 t\+1" was expected, \(3, 5, 5\).*words i..j-1',
        ),
        ({"log_span": torch.zeros(T + 1, T + 1)}, r"log_span is \(5, 5\), but"),
        ({"log_span": 0.0}, "log_span is float, but"),
        ({"lengths": torch.tensor([4, 2])}, r'lengths has shape \(2,\), but "b" was expected with b = 3'),
    ],
)
def test_shapes(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        log_z(good(**fields))


def test_rules_for_another_number_of_sentences() -> None:
    p = good()
    rules = p.rules._replace(leaf_span=BinaryDense(torch.ones(5, N, P, N)))
    with pytest.raises(ShapeError, match=r"leaf_span has rules for 5 sentences, but there are 3"):
        log_z(p._replace(rules=rules))
    with pytest.raises(ShapeError, match=r"span_leaf maps 2 x 3 children to 2 parents, but with 3 symbols of spans"):
        log_z(p._replace(rules=p.rules._replace(span_span=BinaryDense(torch.ones(3, 3, 3)))))


@pytest.mark.parametrize("field", ["log_leaf", "log_root", "log_root_leaf", "log_span"])
def test_other_kinds_of_numbers(field: str) -> None:
    x = getattr(good(), field)
    with pytest.raises(UnsupportedError, match=r"is torch\.float(32|64), but log_leaf is torch.float(64|32)"):
        log_z(good(**{field: x.double()}))
    with pytest.raises(UnsupportedError, match=rf"{field} has dtype torch.float16|{field} is torch.float16"):
        log_z(good(**{field: x.half()}))
    with pytest.raises(UnsupportedError, match=r"is on (meta|cpu), but log_leaf is on (cpu|meta)"):
        log_z(good(**{field: x.to("meta")}))


def test_word_ids_are_not_weights() -> None:
    with pytest.raises(UnsupportedError, match=r"(?s)log_leaf has dtype torch.int64.*log_emission.T\[words\]"):
        log_z(good(log_leaf=torch.zeros(3, T, P, dtype=torch.int64)))


def test_rules_of_another_dtype() -> None:
    rules = potentials("dense").rules
    with pytest.raises(UnsupportedError, match=r"rule factor 0 is torch.float64, but log_leaf is torch.float32"):
        log_z(good(rules=rules))
    mixed = good().rules._replace(leaf_span=rules.leaf_span)
    with pytest.raises(UnsupportedError, match=r"rule factor 2 is torch.float64"):
        log_z(good(rules=mixed))


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize(
    ("field", "at", "said"),
    [
        ("log_leaf", (2, 1, 0), r"log_leaf\[2,1,0\]"),
        ("log_root", (1,), r"log_root\[1\]"),
        ("log_root_leaf", (2,), r"log_root_leaf\[2\]"),
        ("log_span", (0, 1, 3), r"log_span\[0,1,3\]"),
    ],
)
def test_values(field: str, at: tuple[int, ...], said: str, value: float) -> None:
    x = getattr(good(), field).clone()
    x[at] = value
    with pytest.raises(DomainError, match=rf"{said} is {value}, but a log-weight is finite or -inf"):
        log_z(good(**{field: x}))
    x[at] = -INF
    log_z(good(**{field: x}))


@pytest.mark.parametrize("value", [NAN, INF, -INF, 1e30])
def test_nothing_beyond_a_length_is_checked_or_read(value: float) -> None:
    p = good()
    p.log_leaf[1, 2:] = value
    assert torch.equal(log_z(p), log_z(good()))


@pytest.mark.parametrize(("lengths", "text"), [([4, 0, 3], r"lengths\[1\] is 0"), ([4, 2, 5], r"lengths\[2\] is 5")])
def test_lengths_out_of_range(lengths: list[int], text: str) -> None:
    with pytest.raises(DomainError, match=text):
        log_z(good(lengths=torch.tensor(lengths)))


def test_lengths_are_integers() -> None:
    with pytest.raises(DomainError, match=r"lengths has dtype torch.float32"):
        log_z(good(lengths=torch.tensor([4.0, 2.0, 3.0])))


def test_neither_a_tuple_nor_a_tensor_of_rules() -> None:
    with pytest.raises(ShapeError, match=r"expected TreePotentials, but got a tuple"):
        log_z(tuple(good()))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match=r"rules must be a rankfold.Branch of four operators, but is a tuple"):
        log_z(good(rules=tuple(good().rules)))
    with pytest.raises(UnsupportedError, match=r"rules must be a rankfold.Branch of four operators, but is a Tensor"):
        log_z(good(rules=torch.ones(2, 2, 2)))


def test_unknown_arithmetic() -> None:
    with pytest.raises(UnsupportedError, match=r"arithmetic='linear' is unknown; use \"scaled\""):
        log_z(good(), "linear")  # type: ignore[arg-type]
