"""Fresh memory is poisoned in every test of this folder; kernels may be lent the CPU."""

import pytest
from torch import Tensor

from rankfold.recursions.chain import scaled


@pytest.fixture(autouse=True)
def _poison(poisoned_memory: None) -> None:
    """An entry of fresh memory that nobody wrote shows up as NaN."""


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Kernels take tensors of the CPU; each scan leaves its number of positions here."""
    pytest.importorskip("triton")
    from rankfold.kernels.forward_backward import triton as two_way

    taken: list[int] = []
    scan = two_way.two_way

    def counted(maps: tuple[Tensor, ...], first: Tensor, emission: Tensor, *rest: object) -> object:
        taken.append(len(emission))
        return scan(maps, first, emission, *rest)

    monkeypatch.setattr(scaled, "triton_serves", lambda *tensors: True)
    monkeypatch.setattr(two_way, "two_way", counted)
    return taken
