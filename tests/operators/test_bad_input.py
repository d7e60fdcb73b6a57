"""Every mistake at the door of an operator, the error it raises and the words that help."""

from collections.abc import Callable

import pytest
import torch

from rankfold.errors import DomainError, ShapeError, UnsupportedError
from rankfold.operators import Banded, Dense, LowRank, RowScaled, Sum

INF, NAN = float("inf"), float("nan")


def holding(value: float, *shape: int) -> torch.Tensor:
    """Ones with one wrong entry, the last."""
    x = torch.ones(shape)
    x.view(-1)[-1] = value
    return x


# Name, how to build an operator from weights (or logs) "3 3", and where its wrong last entry is said to be.
LINEAR = {
    "Dense": (Dense, r"weight\[2,2\]"),
    "LowRank.left": (lambda x: LowRank(x, torch.ones(3, 3)), r"left\[2,2\]"),
    "LowRank.right": (lambda x: LowRank(torch.ones(3, 3), x), r"right\[2,2\]"),
    "Banded": (lambda x: Banded(x, -2), r"weight\[2,2\]"),
    "RowScaled": (lambda x: RowScaled(Dense(torch.ones(3, 3)), x[-1]), r"scale\[2\]"),
}
LOGS = {
    "Dense": (Dense.from_log, r"log_weight\[2,2\]"),
    "LowRank.left": (lambda x: LowRank.from_log(x, torch.ones(3, 3)), r"log_left\[2,2\]"),
    "LowRank.right": (lambda x: LowRank.from_log(torch.ones(3, 3), x), r"log_right\[2,2\]"),
    "Banded": (lambda x: Banded.from_log(x, -2), r"log_weight\[2,2\]"),
    "RowScaled": (lambda x: RowScaled.from_log(Dense(torch.ones(3, 3)), x[-1]), r"log_scale\[2\]"),
}
linear = pytest.mark.parametrize(("build", "where"), LINEAR.values(), ids=LINEAR)
logs = pytest.mark.parametrize(("build", "where"), LOGS.values(), ids=LOGS)
both = pytest.mark.parametrize(
    "build",
    [build for build, _ in (*LINEAR.values(), *LOGS.values())],
    ids=[*LINEAR, *(f"{name}.log" for name in LOGS)],
)
Build = Callable[[torch.Tensor], object]


@linear
@pytest.mark.parametrize("value", [-1.0, -1e-30, INF, -INF, NAN])
def test_weights_outside_the_domain(build: Build, where: str, value: float) -> None:
    said = torch.tensor(value).item()
    with pytest.raises(DomainError, match=rf"(?s){where} is {said}, but weights are finite and at least 0.*from_log"):
        build(holding(value, 3, 3))


@logs
@pytest.mark.parametrize("value", [INF, NAN])
def test_logs_outside_the_domain(build: Build, where: str, value: float) -> None:
    with pytest.raises(DomainError, match=f"{where} is {value}, but a log-weight is finite or -inf"):
        build(holding(value, 3, 3))


@both
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_dtypes_without_support(build: Build, dtype: torch.dtype) -> None:
    with pytest.raises(UnsupportedError, match=f"dtype {dtype}; float32 and float64 are supported"):
        build(torch.ones(3, 3).to(dtype))


@pytest.mark.parametrize(
    "build",
    [
        lambda wide: LowRank(torch.ones(3, 2), wide(torch.ones(3, 2))),
        lambda wide: LowRank.from_log(torch.ones(3, 2), wide(torch.ones(3, 2))),
        lambda wide: Sum([Dense(torch.ones(3, 3)), Dense(wide(torch.ones(3, 3)))]),
        lambda wide: RowScaled(Dense(torch.ones(3, 3)), wide(torch.ones(3))),
        lambda wide: RowScaled.from_log(Dense(torch.ones(3, 3)), wide(torch.ones(3))),
    ],
    ids=["LowRank", "LowRank.log", "Sum", "RowScaled", "RowScaled.log"],
)
def test_mixed_dtypes(build: Callable[[Callable[[torch.Tensor], torch.Tensor]], object]) -> None:
    assert build(lambda x: x) is not None
    with pytest.raises(UnsupportedError, match=r"(?s)is torch.float64, but .* is torch.float32.*[Mm]ixed dtypes"):
        build(lambda x: x.double())


@both
@pytest.mark.parametrize("shape", [(3, 3, 1), (3, 3, 3)])
def test_wrong_number_of_axes(build: Build, shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"has shape .* was expected"):
        build(torch.ones(shape))


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: Dense(torch.ones(3)), "weight"),
        (lambda: Dense(torch.ones(())), "weight"),
        (lambda: Dense(torch.ones(0, 3)), "weight"),
        (lambda: Dense(torch.ones(3, 0)), "weight"),
        (lambda: Dense.from_log(torch.ones(0, 0)), "log_weight"),
        (lambda: LowRank(torch.ones(3, 0), torch.ones(3, 0)), "left"),
        (lambda: LowRank(torch.ones(3, 2), torch.ones(0, 2)), "right"),
        (lambda: LowRank(torch.ones(3), torch.ones(3)), "left"),
        (lambda: Banded(torch.ones(3, 0), 0), "weight"),
        (lambda: Banded(torch.ones(3), 0), "weight"),
        (lambda: Banded.from_log(torch.ones(0, 1), 0), "log_weight"),
        (lambda: RowScaled(Dense(torch.ones(3, 3)), torch.ones(0)), "scale"),
        (lambda: RowScaled(Dense(torch.ones(3, 3)), torch.ones(())), "scale"),
    ],
)
def test_axes_that_are_missing_or_empty(build: Callable[[], object], name: str) -> None:
    with pytest.raises(ShapeError, match=f'^{name} has shape .*but ".*" was expected.*every axis at least 1'):
        build()


@both
def test_lists_are_not_tensors(build: Build) -> None:
    class Rows(list):
        """A list whose last row can be taken, as the builders above do."""

    with pytest.raises(ShapeError, match=r"(?s)must be a torch.Tensor .*torch.as_tensor"):
        build(Rows([[1.0], [1.0], [1.0]]))


@pytest.mark.parametrize("make", [LowRank, LowRank.from_log])
def test_ranks_that_differ(make: Callable[..., LowRank]) -> None:
    with pytest.raises(ShapeError, match=r"(?s)right has shape \(3, 4\).*with r = 2.*left has shape \(3, 2\)"):
        make(torch.ones(3, 2), torch.ones(3, 4))


@pytest.mark.parametrize("make", [Banded, Banded.from_log])
@pytest.mark.parametrize(("width", "offset"), [(1, 3), (1, -3), (2, 2), (3, 1), (6, -2), (5, -3)])
def test_bands_outside_the_matrix(make: Callable[..., Banded], width: int, offset: int) -> None:
    with pytest.raises(ShapeError, match=rf"(?s){width} diagonals from offset {offset} .* 3 states.*offset >= -2"):
        make(torch.ones(3, width), offset)


@pytest.mark.parametrize("offset", [0.0, "0", None])
def test_offsets_are_whole_numbers(offset: object) -> None:
    with pytest.raises(ShapeError, match="offset"):
        Banded(torch.ones(3, 1), offset)


def test_cells_outside_the_matrix_may_hold_anything() -> None:
    for value in (-1.0, INF, NAN):
        assert Banded(holding(value, 3, 1), 1).push(torch.ones(3)).tolist() == [0.0, 1.0, 1.0]
        with pytest.raises(DomainError, match=r"weight\[2,0\]"):
            Banded(holding(value, 3, 1), 0)


def test_sums_of_nothing_or_of_unequal_shapes() -> None:
    with pytest.raises(ShapeError, match=r"at least one term.*nothing"):
        Sum([])
    with pytest.raises(ShapeError, match=r"equal shapes.*Dense \(2, 2\), Dense \(3, 3\)"):
        Sum([Dense(torch.ones(2, 2)), Dense(torch.ones(3, 3))])
    with pytest.raises(ShapeError, match=r"equal shapes.*Dense \(2, 3\), LowRank \(3, 2\)"):
        Sum([Dense(torch.ones(2, 3)), LowRank(torch.ones(3, 1), torch.ones(2, 1))])


@pytest.mark.parametrize("make", [RowScaled, RowScaled.from_log])
def test_scale_of_another_size(make: Callable[..., RowScaled]) -> None:
    with pytest.raises(ShapeError, match=r"(?s)scale has shape \(3,\).*with z = 2.*operator maps \(2, 3\)"):
        make(Dense(torch.ones(2, 3)), torch.ones(3))


@pytest.mark.parametrize(
    "build",
    [
        lambda: Sum([torch.ones(3, 3)]),
        lambda: Sum([Dense(torch.ones(3, 3)), torch.ones(3, 3)]),
        lambda: RowScaled(torch.ones(3, 3), torch.ones(3)),
        lambda: RowScaled.from_log(torch.ones(3, 3), torch.ones(3)),
    ],
    ids=["Sum", "Sum.second", "RowScaled", "RowScaled.log"],
)
def test_a_matrix_is_not_an_operator(build: Callable[[], object]) -> None:
    with pytest.raises(UnsupportedError, match=r"operator, but .*Tensor"):
        build()
