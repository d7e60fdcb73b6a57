"""The kernels of packed charts compile for Hopper, without a GPU."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from rankfold.kernels import rank_chart

def ptx(kernel, pointers, given):
    names = kernel.arg_names
    kinds = {x: "constexpr" if x in given else pointers.get(x, "i32") for x in names}
    source = ASTSource(kernel, kinds, {(names.index(x),): value for x, value in given.items()})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]

cells = {"top": "*fp64", "norm": "*fp32", "span": "*fp64"}
for kind in ("fp32", "bf16"):
    one = {"ROUND": kind == "fp32", "SOME": 8, "BLOCK": 256}
    rows = {"side": "*" + kind, "raw": "*" + kind, "of_side": "*" + kind, "of_raw": "*fp32", **cells}
    for kernel, given in (
        (rank_chart._combine, {**one, "ALL": 64}),
        (rank_chart._gather, one),
        (rank_chart._gather, {**one, "width": 1, "num": 1}),  # Triton takes a 1 for a constant
    ):
        found = ptx(kernel, rows, given)
        assert ".target sm_90" in found
        assert ".local" not in found  # nothing spilled
print("compiled")
"""


def test_kernels_compile_for_hopper() -> None:
    """In a process of its own: this one interprets kernels."""
    pytest.importorskip("triton")
    here = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=here, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.strip() == "compiled", done.stderr
