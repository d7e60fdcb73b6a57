"""The kernels of charts over ranks and over pairs compile for Hopper, without a GPU."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from rankfold.kernels import pair_chart, rank_chart

def ptx(kernel, pointers, given, options={}):
    names = kernel.arg_names
    kinds = {x: "constexpr" if x in given else pointers.get(x, "i32") for x in names}
    source = ASTSource(kernel, kinds, {(names.index(x),): value for x, value in given.items()})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]

cells = {"top": "*fp64", "norm": "*fp32", "span": "*fp64", "scale": "*fp64", "inverse": "*fp32"}
pairs = {"vectors": "*fp32", "of_pairs": "*fp32", "of_vectors": "*fp32"}

def split(sizes):
    return {k: v for k, v in sizes.items() if k.isupper()}, {k: v for k, v in sizes.items() if k.islower()}

for kind in ("fp32", "bf16"):
    rounded, rest = {"ROUND": kind == "fp32"}, {"of_raw": "*fp32", **cells, **pairs}
    kinds = {x: "*" + kind for x in ("side", "raw", "of_side", "pairs", "operand")} | rest
    one, options = split(rank_chart.SIZES)
    two, two_options = split(pair_chart.SIZES)
    back, back_options = split(pair_chart.BACK)
    for kernel, given, how in (
        (rank_chart._finish, {"SIZE": 256}, {}),
        (rank_chart._combine, {**one, **rounded, "ALL": 64}, options),
        (rank_chart._gather, {**one, **rounded}, options),
        (rank_chart._gather, {**one, **rounded, "width": 1, "num": 1}, options),  # Triton takes a 1 for a constant
        (pair_chart._finish, {"BLOCK": 256}, {}),
        (pair_chart._combine, {**two, **rounded, "ALL": 64}, two_options),
        (pair_chart._gather, {**back, **rounded}, back_options),
    ):
        found = ptx(kernel, kinds, given, how)
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
