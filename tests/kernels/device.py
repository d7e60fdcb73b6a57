"""Where kernels are tested: on a CUDA device, or in Triton's interpreter on the CPU."""

import pytest
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HERE = [pytest.mark.gpu] if DEVICE.type == "cuda" else []  # marks of a file whose tests run there


def close(found: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor | float) -> None:
    """Every entry within its own bound; what is not finite must be the same."""
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    assert found.shape == expected.shape
    finite = expected.isfinite()
    assert torch.equal(found[~finite], expected[~finite])
    limit = torch.as_tensor(bound, dtype=torch.float64).cpu().expand(expected.shape)
    off = (found - expected).abs()[finite]
    assert off.isfinite().all()
    worst = (off - limit[finite]).max() if off.numel() else off.new_zeros(())
    assert (off <= limit[finite]).all(), f"off by up to {float(off.max()):.2e}, {float(worst):.2e} above the bound"
