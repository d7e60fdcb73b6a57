"""Every recursion the laws run on. A new recursion joins by a `Recursion`, a new kind of potentials by a line of CASES.

A batch has three sequences of unequal lengths; positions beyond a length hold NaN, so that a reader is found out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankfold import BinaryDense, Branch, ChainPotentials, Dense, LowRank, posterior
from tests.operators.cases import CASES as OPERATORS
from tests.recursions import build, segment_batches, trees
from tests.recursions.block_chains import block_chain
from tests.recursions.build import INF, NAN, seeded
from tests.regression.library import LOG_Z

LENGTHS = (5, 2, 4)
SCALED_AND_LOG: tuple[dict[str, Any], ...] = ({"arithmetic": "scaled"}, {"arithmetic": "log"})


class Recursion(NamedTuple):
    """A log Z, and what the axes of its potentials are.

    Of axes: b sequences, t positions, s = t - 1 steps, e = t + 1 borders; z, n, p, k states, whose order means nothing.
    """

    name: str
    log_z: Callable[..., Tensor]
    axes: dict[str, str]
    observed: str  # the log-weights of single positions, "b t z"
    posterior: Callable[[Any], Tensor]  # what the derivative by them must be
    ways: tuple[dict[str, Any], ...] = ({},)  # arguments of log_z that change how, not what
    strict: bool = True  # whether it can be asked to raise


CHAIN = Recursion(
    "chain",
    LOG_Z["chain"],
    {"log_initial": "b z", "log_obs": "b t z", "log_final": "b z", "lengths": "b"},
    "log_obs",
    lambda p: posterior(p).state,
    SCALED_AND_LOG,
)
SEGMENTS = Recursion(
    "segments",
    LOG_Z["segments"],
    {"log_initial": "z", "log_duration": "z d", "log_obs": "b t z", "log_final": "b z", "lengths": "b"},
    "log_obs",
    lambda p: posterior(p).state,
    (*SCALED_AND_LOG, {"stretch": 2}),
)
TREE = Recursion(
    "tree",
    LOG_Z["tree"],
    {"log_leaf": "b t p", "log_root": "n", "log_root_leaf": "p", "log_span": "b e e", "lengths": "b"},
    "log_leaf",
    lambda p: posterior(p).leaf,
    SCALED_AND_LOG,
)
BLOCKS = Recursion(
    "blocks",
    LOG_Z["blocks"],
    {"log_initial": "b k", "log_transition": "b s k k", "log_obs": "b t k", "block": "b t", "lengths": "b"},
    "log_obs",
    lambda p: posterior(p).state,
    strict=False,
)


class LawCase(NamedTuple):
    """A recursion and a kind of potentials for it."""

    recursion: Recursion
    name: str
    make: Callable[[torch.dtype, int], Any]  # of a seed

    def __repr__(self) -> str:
        return f"{self.recursion.name}-{self.name}"

    def observed(self, p: Any) -> Tensor:
        found: Tensor = getattr(p, self.recursion.observed)
        return found

    def with_observed(self, p: Any, x: Tensor) -> Any:
        return p._replace(**{self.recursion.observed: x})

    def take(self, p: Any, index: Tensor) -> Any:
        """Some of the sequences, in this order."""
        fields = self.tensors(p)
        new = {name: x[index] for name, x in fields.items() if self.recursion.axes[name].startswith("b")}
        if hasattr(p, "rules"):
            own = p.rules.factors()  # those that rules share stay shared
            taken = {
                id(x): y for x, y in zip(own, Branch(*(rule.take(index) for rule in p.rules)).factors(), strict=True)
            }
            new["rules"] = p.rules.with_factors(*(taken[id(x)] for x in own))
        return p._replace(**new)

    def alone(self, p: Any, i: int) -> Any:
        """Sequence i by itself, without padding."""
        length = int(p.lengths[i])
        p = self.take(p, torch.tensor([i]))
        sizes = {"t": length, "s": length - 1, "e": length + 1}
        return p._replace(lengths=None, **{name: _cut(x, axes, sizes) for name, x, axes in self._long(p)})

    def longer(self, p: Any, more: int) -> Any:
        """So many more positions of padding. Borders say nothing of words there, but are numbers."""
        new = {}
        for name, x, axes in self._long(p):
            shape = [size + more * (axis in "tse") for size, axis in zip(x.shape, axes.split(), strict=True)]
            filling: Any = 0.0 if "e" in axes else NAN if x.is_floating_point() else -(10**9)
            wide = x.new_full(shape, filling)
            wide[tuple(slice(size) for size in x.shape)] = x
            new[name] = wide
        return p._replace(**new)

    def renamed(self, p: Any, seed: int) -> Any:
        """The same with states in another order, operators written out."""
        g, orders = seeded(seed), {}
        for name, x in self.tensors(p).items():
            for axis, size in zip(self.recursion.axes[name].split(), x.shape, strict=True):
                if axis in "znpk" and axis not in orders:
                    orders[axis] = torch.randperm(size, generator=g)
        new: dict[str, Any] = {}
        for name, x in self.tensors(p).items():
            for i, axis in enumerate(self.recursion.axes[name].split()):
                x = x.index_select(i, orders[axis]) if axis in orders else x
            new[name] = x
        if hasattr(p, "transition"):
            new["transition"] = Dense(p.transition.to_dense()[orders["z"]][:, orders["z"]])
        if hasattr(p, "rules"):
            n, m = orders["n"], orders["p"]
            sides = ((n, n), (n, m), (m, n), (m, m))
            dense = (rule.to_dense() for rule in p.rules)
            new["rules"] = Branch(
                *(
                    BinaryDense(x.index_select(-3, n).index_select(-2, left).index_select(-1, right))
                    for x, (left, right) in zip(dense, sides, strict=True)
                )
            )
        return p._replace(**new)

    def order(self, p: Any, seed: int) -> Tensor:
        """The order of states that `renamed` gave the observed positions."""
        number = torch.arange(self.observed(p).shape[-1], dtype=self.observed(p).dtype)
        marked = self.with_observed(p, torch.zeros_like(self.observed(p)) + number)
        return self.observed(self.renamed(marked, seed))[0, 0].long()

    def tensors(self, p: Any) -> dict[str, Tensor]:
        return {name: x for name in self.recursion.axes if (x := getattr(p, name)) is not None}

    def _long(self, p: Any) -> list[tuple[str, Tensor, str]]:
        """The fields that have positions."""
        axes = self.recursion.axes
        return [(name, x, axes[name]) for name, x in self.tensors(p).items() if set("tse") & set(axes[name].split())]


def _cut(x: Tensor, axes: str, sizes: dict[str, int]) -> Tensor:
    return x[tuple(slice(sizes.get(axis)) for axis in axes.split())]


def _chain(operator: Any) -> Callable[[torch.dtype, int], Any]:
    return lambda dtype, seed: build.potentials(
        operator, 4, LENGTHS, seed=seed, dtype=dtype, initial="b z", final="b z", zeros=False
    )


def _segments(d: int = 3, rank: int | None = None, **choices: Any) -> Callable[[torch.dtype, int], Any]:
    def make(dtype: torch.dtype, seed: int) -> Any:
        g = seeded(seed + 1)
        sides = [(torch.rand(4, rank or 1, generator=g, dtype=torch.float64) + 0.05).to(dtype) for _ in range(2)]
        op = None if rank is None else LowRank(*sides)
        return segment_batches.batch(4, d, LENGTHS, seed=seed, transition=op, dtype=dtype, **choices)

    return make


CASES: list[LawCase] = [
    *(LawCase(CHAIN, operator.name, _chain(operator)) for operator in OPERATORS),
    LawCase(SEGMENTS, "dense", _segments()),
    LawCase(SEGMENTS, "low_rank", _segments(rank=2, final=True)),
    LawCase(SEGMENTS, "censored", _segments(rank=2, censored=True)),
    LawCase(SEGMENTS, "censored_zeros", _segments(censored=True, final=True, zeros=True)),
    LawCase(SEGMENTS, "long_durations", _segments(d=9)),
    *(
        LawCase(TREE, name, lambda dtype, seed, name=name: trees.potentials(name, LENGTHS, n=3, seed=seed, dtype=dtype))
        for name in trees.EVERY
        if "unchecked" not in name
    ),
    LawCase(BLOCKS, "dense", lambda dtype, seed: block_chain(3, LENGTHS, seed=seed, zeros=0.0, dtype=dtype)),
    LawCase(BLOCKS, "zeros", lambda dtype, seed: block_chain(3, LENGTHS, seed=seed, dtype=dtype)),
]


class Doubtful(NamedTuple):
    """Potentials of which some sequences would be repeated in wider arithmetic, if they could be."""

    recursion: Recursion
    name: str
    make: Callable[[], Any]
    repeated: Sequence[bool]

    def __repr__(self) -> str:
        return f"{self.recursion.name}-{self.name}"


def _apart(dtype: torch.dtype, gap: float) -> Any:
    """A chain that never leaves its state: what looks lost halfway is all there is at the end."""
    log_obs = torch.tensor([[[0.0, x] for x in (-gap, 2 * gap, -0.9 * gap)], [[0.0, 0.0]] * 3], dtype=dtype)
    zeros, eye = torch.zeros(2, dtype=dtype), torch.eye(2, dtype=dtype)
    return ChainPotentials(log_initial=zeros, transition=Dense(eye), log_obs=log_obs)


def _separated(dtype: torch.dtype, gap: float, **choices: Any) -> Any:
    """Two states, no self-transitions, durations to 2: four frames of state 0 need a frame of state 1 inside."""
    log_obs = torch.zeros(2, 4, 2, dtype=dtype)
    log_obs[0, :, 1] = -gap
    log_obs[1, ::2, 1] = -gap
    log_obs[1, 1::2, 0] = -gap
    p = segment_batches.batch(2, 2, [4, 4], dtype=dtype)
    weight = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=dtype)
    zeros = torch.zeros(2, 2, dtype=dtype)
    return p._replace(log_initial=zeros[0], transition=Dense(weight), log_duration=zeros, log_obs=log_obs, **choices)


def _unused(dtype: torch.dtype, gap: float, name: str) -> Any:
    """Sentence 1's words weigh most with a symbol that no rule takes; what they have besides is e^-gap of it."""
    p = trees.potentials(name, (4, 4, 3), seed=2, dtype=dtype)
    for rule, sides in zip(p.rules, ("", "r", "l", "lr"), strict=True):
        factors = rule.factors()
        for side in sides:
            if name == "dense":
                factors[0][:, 2 if side == "l" else slice(None), 2 if side == "r" else slice(None)] = 0.0
            else:
                factors[1 if side == "l" else 2][2] = 0.0
    p.log_leaf[1, :, :2] -= gap
    return p


DOUBTFUL: list[Doubtful] = [
    Doubtful(CHAIN, "float32", lambda: _apart(torch.float32, 100.0), [True, False]),
    Doubtful(CHAIN, "float64", lambda: _apart(torch.float64, 800.0), [True, False]),
    Doubtful(SEGMENTS, "float32", lambda: _separated(torch.float32, 1000.0), [True, False]),
    Doubtful(SEGMENTS, "censored", lambda: _separated(torch.float32, 1000.0, censored=True), [True, False]),
    Doubtful(TREE, "dense", lambda: _unused(torch.float64, 3000.0, "dense"), [False, True, False]),
    Doubtful(TREE, "shared", lambda: _unused(torch.float64, 3000.0, "shared"), [False, True, False]),
    Doubtful(
        BLOCKS,
        "any range",
        lambda: block_chain(3, [4, 2], seed=3, spread=3000.0, zeros=0.0, dtype=torch.float32),
        [False, False],
    ),
]


def impossible(x: Tensor, i: int) -> Tensor:  # "b t z"
    """No state can be at the second position of sequence i."""
    x = x.clone()
    x[i, 1] = -INF
    return x


def far(x: Tensor, i: int) -> Tensor:  # "b t z"
    """Half of the states of sequence i e^3000 above the others, then the other half: beyond any float."""
    x = x.clone()
    half = x.shape[-1] // 2
    x[i, ::2, :half] += 3000.0
    x[i, 1::2, half:] += 3000.0
    return x
