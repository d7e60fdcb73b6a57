"""The errors users see, and the validation that raises them.

Every check runs before any work and says what came, what was expected and what to do.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd import forward_ad


class ShapeError(ValueError):
    """Sizes that do not fit together."""


class DomainError(ValueError):
    """Values outside the domain: negative weights, NaN, lengths of zero, impossible sequences."""


class UnsupportedError(ValueError):
    """A combination that has no meaning or no implementation; the text names one that has."""


class DataError(ValueError):
    """A file that breaks a rule; the text names file, line and token."""


def quantity(num: int, what: str) -> str:
    """A number of things in words: 1 sentence, 2,000 sentences."""
    return f"{num:,} {what}" if num == 1 else f"{num:,} {what}s"


def expect_absent(path: str | Path, what: str = "") -> None:
    """Raise if there is a file, a folder or a link of this name already: nobody's file is written over.

    `what`: what it would have to be to be replaced, for the error.
    """
    if os.path.lexists(path):
        said = f" and is not {what}" if what else ""
        raise DataError(f"{path} exists{said}; it is left as it is.\n  Choose another name, or move it away.")


def expect(x: Tensor, axes: str, *, name: str, hint: str = "", **sizes: int) -> None:
    """Raise unless `x` is a floating tensor with these axes; `sizes` fixes some of them by letter.

    `expect(log_obs, "b t z", name="log_obs", z=64)` accepts any "b" and "t" above zero.
    """
    if not isinstance(x, Tensor):
        raise ShapeError(
            f'{name} must be a torch.Tensor "{axes}", but is a {type(x).__name__}.\n  Wrap it: torch.as_tensor(...).'
        )
    expect_plain(x, name=name)
    if x.dtype not in (torch.float32, torch.float64):
        words = not (x.dtype.is_floating_point or x.dtype.is_complex)
        remedy = (
            "For word ids take the rows of a table of log-weights: log_emission.T[words]."
            if words
            else 'Convert it with .float(); lower precision inside products is an argument: precision="bf16".'
        )
        raise UnsupportedError(f"{name} has dtype {x.dtype}; float32 and float64 are supported.\n  {remedy}")
    letters = axes.split()
    wrong = x.ndim != len(letters) or any(
        size == 0 or sizes.get(letter, size) != size for letter, size in zip(letters, x.shape, strict=False)
    )
    if wrong:
        known = ", ".join(f"{letter} = {size}" for letter, size in sizes.items())
        raise ShapeError(
            f'{name} has shape {tuple(x.shape)}, but "{axes}" was expected'
            f"{' with ' + known if known else ''}, every axis at least 1." + (f"\n  {hint}" if hint else "")
        )


def expect_plain(x: Tensor, *, name: str) -> None:
    """Raise on a tensor of torch.func, of a batch of gradients, or with a tangent: sums look at values, it has none."""
    inside = torch.func.debug_unwrap(x) is not x or torch._C._functorch.is_legacy_batchedtensor(x)
    if inside or forward_ad.unpack_dual(x).tangent is not None:  # type: ignore[no-untyped-call]
        raise UnsupportedError(
            f"{name} is inside a transform of torch.func (grad, vmap, jvp, ...), in a batch of gradients or has a "
            "forward-mode tangent; sums over structures support none of these.\n"
            "  Use torch.autograd.grad (create_graph=True for second derivatives); for vmap give a batch."
        )


def refuse_mps(device: str | torch.device, *, name: str = "device") -> None:
    """Raise for the GPUs of Apple, by name: log-probabilities are summed in float64, which they do not have."""
    if str(device).partition(":")[0] == "mps":
        raise UnsupportedError(
            f"{name} is mps, but sums of log-probabilities are in float64, which torch has not on mps.\n  Use cpu."
        )


def expect_device(device: str | torch.device, *, name: str = "device") -> torch.device:
    """The device of a name; `UnsupportedError` for one that torch does not know, or that is not here."""
    refuse_mps(device, name=name)
    try:
        return torch.empty(0, device=torch.device(device)).device
    except (RuntimeError, AssertionError, TypeError) as error:
        raise UnsupportedError(
            f"{name} is {device!r}, which torch has not here: {str(error).splitlines()[0]:.100}\n  Use cpu."
        ) from None


def same_kind(reference: Tensor, reference_name: str, others: dict[str, Tensor]) -> None:
    """Raise unless all tensors share the reference's dtype and device."""
    for name, x in others.items():
        expect_plain(x, name=name)
        if x.dtype != reference.dtype:
            raise UnsupportedError(
                f"{name} is {x.dtype}, but {reference_name} is {reference.dtype}.\n"
                f"  Mixed dtypes are not guessed at: convert one of them, e.g. {name}.to({reference.dtype})."
            )
        if x.device != reference.device:
            raise UnsupportedError(
                f"{name} is on {x.device}, but {reference_name} is on {reference.device}.\n"
                f"  Move one of them, e.g. {name}.to({str(reference.device)!r})."
            )


def may_look(x: Tensor) -> bool:
    """Whether values of `x` may be read by the host now: not while a CUDA graph is being captured."""
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def expect_weights(x: Tensor, *, name: str, remedy: str = "Logarithms of weights go through from_log(...).") -> None:
    """Raise unless every entry is finite and at least zero."""
    if not may_look(x):
        return
    low, high = torch.aminmax(x.detach())
    if low >= 0 and high < float("inf"):
        return
    bad = ~((x.detach() >= 0) & (x.detach() < float("inf")))
    raise DomainError(
        f"{name}{_first(bad)} is {x.detach()[bad][0].item()}, but weights are finite and at least 0.\n  {remedy}"
    )


def has_nan(x: Tensor) -> bool:
    """Whether an entry may be NaN: never false where one is; true, too, where infinities of both signs add up.

    One pass without a table of answers, which would take several times as long.
    """
    return bool(x.sum().isnan())


def expect_logs(x: Tensor, *, name: str, inside: Tensor | None = None) -> None:
    """Raise on NaN or +inf (where `inside`, if given, is true); -inf is the log of zero and welcome."""
    if not may_look(x):
        return
    if not x.numel() or x.detach().amax() < float("inf"):
        return
    # The maximum of a row is NaN or +inf exactly if the row holds one.
    top = x.detach().amax(-1)
    bad_rows = ~(top < float("inf"))
    if inside is not None:
        bad_rows &= inside
    if not bad_rows.any():
        return
    bad = bad_rows.unsqueeze(-1) & ~(x.detach() < float("inf"))
    raise DomainError(
        f"{name}{_first(bad)} is {x.detach()[bad][0].item()}, but a log-weight is finite or -inf.\n"
        "  A missing observation is a row of zeros; an impossible one is -inf."
    )


def _first(bad: Tensor) -> str:
    """The index of the first true entry, as it is written in Python."""
    return str(bad.nonzero()[0].tolist()).replace(" ", "")
