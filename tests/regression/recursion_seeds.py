"""Fixed seeds of chains, segments, trees and chains of blocks: potentials, log Z, every gradient, every answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.regression.library import (
    ANSWERS,
    LOG_Z,
    Banded,
    BinaryCPD,
    BinaryDense,
    BinaryMatricised,
    BlockPotentials,
    Branch,
    ChainPotentials,
    Dense,
    LowRank,
    Numbers,
    RowScaled,
    SegmentPotentials,
    Sum,
    TreePotentials,
    WithoutDiagonal,
)

INF = float("inf")

# What another order of sums may change, as a share of a tensor's size. float64: sums of a few thousand terms. float32:
# 6e-8 for every operation, of which a gradient through networks and a recursion has some hundreds in a row.
EXACT = {torch.float64: 1e-12, torch.float32: 1e-5}
# Six steps of EM pass rounding on from step to step; labels of k-means do not move by it.
FITTED = {torch.float64: 1e-9, torch.float32: 1e-3}
HALF = 2.0**-6  # bfloat16 rounds results to 2^-8: one that falls to the other side takes its successors with it


class Case(NamedTuple):
    """Numbers with a name, and how far another order of sums may move them."""

    name: str
    make: Callable[[], Numbers]
    tolerance: float


def seeded(seed: int, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def entries(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=seeded(seed), dtype=torch.float64)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def padded(x: Tensor, lengths: list[int]) -> Tensor:
    """A copy that is NaN beyond the lengths."""
    out = x.clone()
    for row, length in zip(out, lengths, strict=True):
        row[length:] = math.nan
    return out


# Potentials, all of them float64 and on the CPU; `converted` makes others of them.

LENGTHS = [9, 4, 1, 6]
OPERATORS: dict[str, Callable[[int], Any]] = {
    "dense": lambda z: Dense(entries(1, z, z)),
    "low rank": lambda z: LowRank(entries(2, z, 5), entries(3, z, 5)),
    "banded": lambda z: Banded(entries(4, z, 4), -1),
    "sum": lambda z: Sum([LowRank.from_log(entries(5, z, 2), entries(6, z, 2)), Banded(entries(7, z, 3), -2)]),
    "dense of logs": lambda z: Dense.from_log(3 * normal(11, z, z)),
    "row scaled": lambda z: RowScaled(LowRank(entries(2, z, 5), entries(3, z, 5)), entries(12, z)),
    "without diagonal": lambda z: WithoutDiagonal(LowRank(entries(2, z, 5), entries(3, z, 5))),
}


def chain_potentials(kind: str, z: int = 17, *, far: bool = False, ends: bool = True) -> Any:
    log_obs = 4 * (entries(8, len(LENGTHS), max(LENGTHS), z) - 0.5)
    return ChainPotentials(
        log_initial=entries(9, z).log() if ends else entries(9, len(LENGTHS), z).log(),
        transition=OPERATORS[kind](z),
        log_obs=padded(spread(log_obs) if far else log_obs, LENGTHS),
        log_final=entries(10, z).log() if ends else None,
        lengths=torch.tensor(LENGTHS),
    )


def spread(x: Tensor) -> Tensor:
    """The first sequence beyond the range of float64, the second impossible, the last beyond that of float32."""
    x = x.clone()
    half = x.shape[-1] // 2
    x[0, 0, :half], x[0, 1, half:] = x[0, 0, :half] + 900.0, x[0, 1, half:] + 2000.0
    x[0, 2, :half] += 900.0
    x[1, 2] = -INF
    x[-1, 0, :half], x[-1, 1, half:] = x[-1, 0, :half] + 120.0, x[-1, 1, half:] + 220.0
    return x


def segment_potentials(
    kind: str, z: int = 7, *, far: bool = False, censored: bool = False, final: bool = False, carried: bool = False
) -> Any:
    d = 4
    log_obs = 4 * (entries(21, len(LENGTHS), max(LENGTHS), z) - 0.5)
    return SegmentPotentials(
        log_initial=normal(22, len(LENGTHS), d, z) if carried else normal(22, z),
        transition=OPERATORS[kind](z),
        log_duration=normal(23, z, d),
        log_obs=padded(spread(log_obs) if far else log_obs, LENGTHS),
        log_final=normal(24, len(LENGTHS), z) if final else None,
        lengths=torch.tensor(LENGTHS),
        censored=censored,
    )


SENTENCES = [6, 4, 2, 5]


def shared_rules(n: int, m: int, r: int, *lead: int, make: Any = BinaryCPD) -> Any:
    """One head, one left and one right factor for each kind of child: the recursion runs over ranks."""
    head, left, leaf_left = entries(31, *lead, n, r), entries(32, n, r), entries(33, m, r)
    right, leaf_right = entries(34, *lead, n, r), entries(35, m, r)
    if make is not BinaryCPD:
        head, left, leaf_left, right, leaf_right = (x.log() for x in (head, left, leaf_left, right, leaf_right))
    return Branch(
        make(head, left, right),
        make(head, left, leaf_right),
        make(head, leaf_left, right),
        make(head, leaf_left, leaf_right),
    )


def each_rule(n: int, m: int, make: Callable[..., Any]) -> Any:
    shapes = (n, n, n), (n, n, m), (n, m, n), (n, m, m)
    return Branch(*(make(40 + 5 * i, *shape) for i, shape in enumerate(shapes)))


RULES: dict[str, Callable[[int, int], Any]] = {
    "dense": lambda n, m: each_rule(n, m, lambda seed, *shape: BinaryDense(entries(seed, *shape))),
    "dense of logs": lambda n, m: each_rule(n, m, lambda seed, *shape: BinaryDense.from_log(2 * normal(seed, *shape))),
    "shared": lambda n, m: shared_rules(n, m, 6),
    "shared of logs": lambda n, m: shared_rules(n, m, 6, make=BinaryCPD.from_log),
    "shared by sentence": lambda n, m: shared_rules(n, m, 6, len(SENTENCES)),
    "cpd": lambda n, m: each_rule(
        n, m, lambda seed, *shape: BinaryCPD(*(entries(seed + i, size, 4) for i, size in enumerate(shape)))
    ),
    "matricised": lambda n, m: each_rule(
        n, m, lambda seed, a, b, c: BinaryMatricised(entries(seed, a, 3), entries(seed + 1, b, c, 3))
    ),
    "mixed": lambda n, m: Branch(
        BinaryMatricised(entries(60, n, 3), entries(61, n, n, 3)),
        BinaryDense(entries(62, n, n, m)),
        BinaryCPD.from_log(entries(63, n, 4).log(), entries(64, m, 4).log(), entries(65, n, 4).log()),
        BinaryDense.from_log(normal(66, n, m, m)),
    ),
}


def tree_potentials(kind: str, n: int = 3, m: int = 5, *, far: bool = False, brackets: bool = True) -> Any:
    num, t = len(SENTENCES), max(SENTENCES)
    log_leaf = 4 * (entries(71, num, t, m) - 0.5)
    return TreePotentials(
        log_leaf=padded(spread(log_leaf) if far else log_leaf, SENTENCES),
        rules=RULES[kind](n, m),
        log_root=normal(72, n),
        log_root_leaf=normal(73, m),
        log_span=normal(74, num, t + 1, t + 1) if brackets else None,
        lengths=torch.tensor(SENTENCES),
    )


def block_potentials(k: int = 5, *, far: bool = False, equal: bool = False) -> Any:
    num, t = len(LENGTHS), max(LENGTHS)
    log_transition = 2 * normal(82, num, t - 1, k, k)
    log_obs = spread(normal(83, num, t, k)) if far else normal(83, num, t, k)
    if not equal:
        log_obs = padded(log_obs, LENGTHS)
        for row, length in zip(log_transition, LENGTHS, strict=True):
            row[length - 1 :] = math.nan
    return BlockPotentials(
        log_initial=normal(81, num, k),
        log_transition=log_transition,
        log_obs=log_obs,
        block=torch.randint(3, (num, t), generator=seeded(84)),
        lengths=None if equal else torch.tensor(LENGTHS),
    )


POTENTIALS: dict[str, dict[str, Callable[[], Any]]] = {
    "chain": {
        **{kind: lambda kind=kind: chain_potentials(kind) for kind in OPERATORS},
        "dense, open end": lambda: chain_potentials("dense", ends=False),
        "low rank, open end": lambda: chain_potentials("low rank", ends=False),
        **{f"{kind}, far": lambda kind=kind: chain_potentials(kind, far=True) for kind in ("dense", "low rank", "sum")},
    },
    "segments": {
        **{kind: lambda kind=kind: segment_potentials(kind) for kind in ("dense", "low rank", "without diagonal")},
        "low rank, censored": lambda: segment_potentials("low rank", censored=True),
        "dense, final": lambda: segment_potentials("dense", final=True),
        "low rank, censored, final": lambda: segment_potentials("low rank", censored=True, final=True),
        "dense, carried": lambda: segment_potentials("dense", carried=True, censored=True),
        "banded, far": lambda: segment_potentials("banded", far=True),
        "low rank, far": lambda: segment_potentials("low rank", far=True, final=True),
    },
    "tree": {
        **{kind: lambda kind=kind: tree_potentials(kind) for kind in RULES},
        "shared, no brackets": lambda: tree_potentials("shared", brackets=False),
        **{f"{kind}, far": lambda kind=kind: tree_potentials(kind, far=True) for kind in ("dense", "shared", "mixed")},
    },
    "blocks": {
        "ragged": block_potentials,
        "of one length": lambda: block_potentials(equal=True),
        "far": lambda: block_potentials(far=True),
    },
}


def mapped(p: Any, change: Callable[[str, Tensor], Tensor]) -> Any:
    """Potentials with every tensor of floats changed; factors that rules share stay shared."""
    new: dict[str, Any] = {}
    for name, x in zip(p._fields, p, strict=True):
        if isinstance(x, Tensor):
            new[name] = change(name, x) if x.is_floating_point() else x
        elif hasattr(x, "with_factors"):
            own = {id(y): y for y in x.factors()}
            made = {key: change(f"{name}.{i}", y) for i, (key, y) in enumerate(own.items())}
            new[name] = x.with_factors(*(made[id(y)] for y in x.factors()))
    return p._replace(**new)


def converted(p: Any, dtype: torch.dtype, device: str) -> Any:
    moved = mapped(p, lambda _, x: x.to(device, dtype))
    whole = {name: x.to(device) for name, x in zip(p._fields, p, strict=True) if isinstance(x, Tensor)}
    return moved._replace(**{name: x for name, x in whole.items() if not x.is_floating_point()})


def with_leaves(p: Any) -> tuple[Any, dict[str, Tensor]]:
    leaves: dict[str, Tensor] = {}

    def leaf(name: str, x: Tensor) -> Tensor:
        leaves[name] = x.detach().clone().requires_grad_()
        return leaves[name]

    return mapped(p, leaf), leaves


def value_and_gradients(structure: str, p: Any, *, second: bool = False, **how: Any) -> Numbers:
    """log Z, the gradient of every tensor with other weights for every sequence, and a second derivative."""
    q, leaves = with_leaves(p)
    total = LOG_Z[structure](q, **how)
    weight = torch.arange(1, len(total) + 1, dtype=total.dtype, device=total.device)
    grads = torch.autograd.grad(total, list(leaves.values()), weight, retain_graph=second)
    found: Numbers = {"log_z": total.detach()}
    found |= {f"grad.{name}": x for name, x in zip(leaves, grads, strict=True)}
    if second:
        grads = torch.autograd.grad(total, list(leaves.values()), weight, create_graph=True)
        pairs = [(x * torch.linspace(1, 2, x.numel(), dtype=x.dtype).reshape(x.shape)).sum() for x in grads]
        again = torch.autograd.grad(sum(pairs), list(leaves.values()), materialize_grads=True)
        found |= {f"second.{name}": x for name, x in zip(leaves, again, strict=True)}
    return found


def in_graph(work: Callable[[], Numbers]) -> Numbers:
    """The numbers that a captured CUDA graph leaves at its second replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = work()
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    return {name: x.clone() for name, x in found.items()}


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def recursions() -> Iterator[Case]:
    """Every structure and kind in both dtypes and arithmetics, with all that can be asked of it."""
    for structure, kinds in POTENTIALS.items():
        for kind, build in kinds.items():
            for dtype, exact in EXACT.items():

                def potentials(build: Any = build, dtype: torch.dtype = dtype) -> Any:
                    return converted(build(), dtype, "cpu")

                where = f"{structure}/{kind}/{short(dtype)}"
                # Zeros that underflow makes have no second derivative; a chain of blocks has one arithmetic.
                second = dtype == torch.float64 and "far" not in kind
                for how in [{}] if structure == "blocks" else [{"arithmetic": "scaled"}, {"arithmetic": "log"}]:
                    name = f"{where}/{how.get('arithmetic', 'only')}"
                    both = second and how.get("arithmetic") != "log"
                    yield Case(name, _solve(structure, potentials, second=both, **how), exact)
                yield Case(f"{where}/answers", _answer(structure, potentials), exact)
                if structure == "segments":
                    yield Case(f"{where}/stretch", _solve(structure, potentials, stretch=3), exact)
                if structure == "chain" and dtype == torch.float32:
                    yield Case(f"{where}/tf32", _solve(structure, potentials, precision="tf32"), exact)
                    yield Case(f"{where}/bf16", _solve(structure, potentials, precision="bf16"), HALF)


def _solve(structure: str, potentials: Callable[[], Any], **how: Any) -> Callable[[], Numbers]:
    return lambda: value_and_gradients(structure, potentials(), **how)


def _answer(structure: str, potentials: Callable[[], Any]) -> Callable[[], Numbers]:
    return lambda: ANSWERS[structure](potentials(), seeded(5))


# Sizes at which a GPU's kernels run: (of the potentials' builders).
LARGE: dict[str, dict[str, Callable[[], Any]]] = {
    "chain": {
        kind + more: lambda kind=kind, far=bool(more): chain_potentials(kind, 192, far=far)
        for kind in OPERATORS
        for more in ("", ", far")
    },
    "segments": {
        kind + more: lambda kind=kind, far=bool(more): segment_potentials(kind, 96, far=far, final=True)
        for kind in ("dense", "low rank", "without diagonal")
        for more in ("", ", far")
    },
    "tree": {
        kind + more: lambda kind=kind, far=bool(more): tree_potentials(kind, 24, 48, far=far)
        for kind in RULES
        for more in ("", ", far")
    },
    "blocks": {
        "ragged": lambda: block_potentials(32),
        "of one length": lambda: block_potentials(32, equal=True),
        "far": lambda: block_potentials(32, far=True),
    },
}


def on_gpu() -> Iterator[Case]:
    """log Z and gradients on a GPU, one operation after the other and as a captured graph."""
    for structure, kinds in LARGE.items():
        modes: list[tuple[str, torch.dtype, dict[str, Any]]] = [
            ("float64", torch.float64, {}),
            ("float32", torch.float32, {}),
        ]
        if structure == "chain":
            modes += [(mode, torch.float32, {"precision": mode}) for mode in ("tf32", "bf16")]
        for kind, build in kinds.items():
            for mode, dtype, how in modes:

                def potentials(build: Any = build, dtype: torch.dtype = dtype) -> Any:
                    return converted(build(), dtype, "cuda")

                work = _solve(structure, potentials, **how)
                yield Case(f"cuda/{structure}/{kind}/{mode}/eager", work, INF)
                yield Case(f"cuda/{structure}/{kind}/{mode}/graph", _graphed(structure, potentials, how), INF)


def _graphed(structure: str, potentials: Callable[[], Any], how: dict[str, Any]) -> Callable[[], Numbers]:
    def make() -> Numbers:
        p = potentials()
        return in_graph(lambda: value_and_gradients(structure, p, **how))

    return make
