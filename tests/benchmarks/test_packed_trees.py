"""The command that compares charts over ranks with packed ones, its checks in Triton's interpreter."""

import pytest
import torch

from benchmarks import packed_trees
from benchmarks.two_ways import PACKED, compare, in_words
from rankfold.errors import UnsupportedError
from rankfold.recursions.tree import packed

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/cuda runs the command itself")


@pytest.mark.parametrize("right", [True, False])
def test_a_wrong_way_fails(right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A packed way that is off by a thousandth; the choice is what it was afterwards."""
    pytest.importorskip("triton")
    monkeypatch.setattr(packed, "triton_serves", lambda *tensors: True)
    chosen = packed.CHOSEN
    if not right:
        roots = packed.roots
        monkeypatch.setattr(packed, "roots", lambda f, chart: (x := roots(f, chart))._replace(log_z=x.log_z * 1.001))
    case = packed_trees.cases(small=True)[1]._replace(batch=1, length=3)
    (found,) = compare(case, PACKED, ("float32",), torch.device("cpu"), 1)
    assert found["passed"] is right
    assert ("FAILED" in in_words(found)) is not right
    assert chosen == packed.CHOSEN


def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(UnsupportedError, match="GPU"):
        packed_trees.main([])
