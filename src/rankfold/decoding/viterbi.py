"""The single most probable hidden structure: exact, with the work it costs said openly.

A maximum does not pass through a sum over ranks, so low rank gives no speed-up here: rules and transitions are visited
in blocks. `of="joint"` asks for states and ranks together, another question, at low-rank cost.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Generic, Literal, NamedTuple, TypeVar, get_args, overload

import torch
from torch import Tensor

from rankfold.decoding.dispatch import answer
from rankfold.decoding.parsed_tree import ParsedTree, parsed_trees
from rankfold.errors import UnsupportedError
from rankfold.kernels.dispatch import loops_serve
from rankfold.kernels.log_products import max_matmul
from rankfold.operators import Banded, Dense, LowRank, Operator, RowScaled
from rankfold.operators.protocol import max_operator
from rankfold.recursions import Potentials, blocks, chain, segments, tree
from rankfold.recursions.blocks.potentials import BlockPotentials
from rankfold.recursions.chain import in_chunks
from rankfold.recursions.chain.paths import best_path
from rankfold.recursions.chain.potentials import Chain, ChainPotentials
from rankfold.recursions.factor_gradients import to_double
from rankfold.recursions.segments.paths import best_segments
from rankfold.recursions.segments.potentials import SegmentPotentials
from rankfold.recursions.tree.best import best_by_pairs, best_by_ranks, max_side
from rankfold.recursions.tree.descend import Pairs, Ranks, View, trace
from rankfold.recursions.tree.potentials import Forest, TreePotentials

Of = Literal["states", "joint"]
TreeKind = TypeVar("TreeKind")


class Segment(NamedTuple):
    """A stretch of frames with one state."""

    start: int  # its first frame
    end: int  # the frame after its last
    state: int


class BestPath(NamedTuple):
    """The most probable path of each sequence; of blocks, of states of the whole model."""

    path: Tensor  # "b t"       -1 beyond the length, and throughout for an impossible sequence
    log_prob: Tensor  # "b"     float64, of path and observations together
    ranks: Tensor | None = None  # "b t-1"   of="joint": the ranks between the states
    plan: str = ""  # which algorithm ran and what it cost

    @property
    def begins(self) -> Tensor:  # "b t"
        """Where a stretch of equal states begins."""
        first = torch.ones_like(self.path[:, :1], dtype=torch.bool)
        return torch.cat([first, self.path[:, 1:] != self.path[:, :-1]], 1)

    @property
    def segments(self) -> list[list[Segment]]:
        """The stretches of equal states of each sequence; none of an impossible one."""
        return _segments(self)


class BestSegments(NamedTuple):
    """The most probable segmentation and labelling of each sequence."""

    path: Tensor  # "b t"       the state of a frame; -1 beyond the length, and throughout for an impossible sequence
    begins: Tensor  # "b t"     whether a segment begins at a frame
    log_prob: Tensor  # "b"     float64, of segmentation and observations together
    plan: str = ""  # which algorithm ran and what it cost

    @property
    def segments(self) -> list[list[Segment]]:
        """The segments of each sequence; none of an impossible one. One that was carried in starts at 0."""
        return _segments(self)


class BestTrees(NamedTuple, Generic[TreeKind]):
    """The most probable tree of each sentence, with its labels."""

    trees: list[TreeKind]
    log_prob: Tensor  # "b"   float64, of tree and words together


def stretches(best: BestPath | BestSegments) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # "n" each
    """The segments of all sequences, one after another: sequence, first frame, the frame after the last, state."""
    inside = best.path >= 0
    starts = inside & best.begins
    starts[:, 0] = inside[:, 0]
    ends = inside & torch.cat([starts[:, 1:] | ~inside[:, 1:], torch.ones_like(inside[:, :1])], 1)
    sequence, start = starts.nonzero(as_tuple=True)
    return sequence, start, ends.nonzero()[:, 1] + 1, best.path[sequence, start]


def _segments(best: BestPath | BestSegments) -> list[list[Segment]]:
    table: list[list[Segment]] = [[] for _ in range(len(best.path))]
    of, *known = (x.tolist() for x in stretches(best))
    for i, row in zip(of, map(Segment, *known), strict=True):
        table[i].append(row)
    return table


@overload
def viterbi(p: ChainPotentials | BlockPotentials, *, of: Of = "states") -> BestPath: ...
@overload
def viterbi(p: SegmentPotentials, *, of: Of = "states") -> BestSegments: ...
@overload
def viterbi(p: TreePotentials, *, of: Of = "states") -> BestTrees[ParsedTree]: ...
def viterbi(p: Potentials, *, of: Of = "states") -> BestPath | BestSegments | BestTrees[ParsedTree]:
    """The single most probable path, segmentation or tree of each sequence, and its log-probability; detached.

        argmax_{z_1..z_T}  log p(z_1..z_T, x)

    Exact for every operator, ties go to the smallest state. A step of a chain costs b z y additions (a band's b z k);
    low rank and sums also z y r multiply-adds shared by the batch, in blocks of rows that are never all in memory.
    Segments: b d z more for each frame. Rules of n x m children: n m additions per split and a n m per span, whatever
    their rank; with 100 symbols of spans and 200 of words a sentence of 20 takes 1.5 s on one core, and thousands are
    out of reach: ask `mbr` or `sample` there.

    `of="joint"`: the best states (labels) and ranks together, of a chain whose transition, or trees whose rules have
    ranks; b (z + y) r additions per step, r per split, (n + m + a) r per span. Its states need not be the best states,
    because ranks are not summed out. Not the most probable state at each position: see `mbr`.
    """
    if of not in get_args(Of):
        raise UnsupportedError(f'of={of!r} is unknown; use "states" or "joint".')
    with torch.no_grad():
        return answer("viterbi", _ANSWERS, p)(p, of)


def _of_chain(p: ChainPotentials, of: Of) -> BestPath:
    c = chain.validate(p).detach()
    if of == "joint":
        return _states_and_ranks(c)
    # Its logarithms, too: thousands of nats leave float32 no digits to compare.
    transition = max_operator(to_double(c.transition))

    def push(score: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        best, where = transition.push_max(score)
        return best, (where.int(),)  # half the memory of the back-pointers

    def follow(came: tuple[Tensor, ...], state: Tensor) -> tuple[Tensor, ...]:
        return (came[0].gather(1, state[:, None])[:, 0].long(),)

    if loops_serve(c.log_obs.shape[-1], c.log_obs):
        from rankfold.kernels.path_loops import best_states

        log_weight = transition.log_rows(torch.arange(c.log_obs.shape[-1])).double()
        path, log_prob = best_states(log_weight, c.log_initial.double(), c.log_obs, c.log_final.double(), c.lengths)
    elif in_chunks.chunks_serve(c):
        path, log_prob = in_chunks.best_states(c, transition.push_max)
    else:
        (path,), log_prob = best_path(c, push, follow)
    return BestPath(path, log_prob, plan=_plan(c.transition, len(path), path.shape[1] - 1))


def _states_and_ranks(c: Chain) -> BestPath:
    """argmax_{z, r}  log initial[z_1] + sum_t log left[z_t, r_t] + log right[z_t+1, r_t] + log obs."""
    if not isinstance(c.transition, LowRank):
        raise UnsupportedError(
            f'of="joint" asks for the ranks of a {type(c.transition).__name__}, but only LowRank has ranks.\n'
            "  Use viterbi(p)."
        )
    log_left, log_right = to_double(c.transition).log_pair()

    def push(score: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        by_rank, source = max_matmul(score, log_left)
        best, rank = max_matmul(by_rank, log_right.mT)
        return best, (source.int(), rank.int())

    def follow(came: tuple[Tensor, ...], state: Tensor) -> tuple[Tensor, ...]:
        rank = came[1].gather(1, state[:, None]).long()
        return came[0].gather(1, rank)[:, 0].long(), rank[:, 0]

    (states, *ranks), log_prob = best_path(c, push, follow)
    return BestPath(states, log_prob, ranks[0] if ranks else states.new_empty(len(states), 0))


def _of_blocks(p: BlockPotentials, of: Of) -> BestPath:
    _refuse_joint(of, "a chain of blocks")
    return BestPath(*blocks.best_path(p))


def _of_segments(p: SegmentPotentials, of: Of) -> BestSegments:
    c = segments.validate(p).detach()
    _refuse_joint(of, "segments")
    transition = max_operator(to_double(c.transition))
    best = best_segments(c.replace(log_duration=c.log_duration.double()), transition)
    num_sequences, num_frames, num_states = c.log_obs.shape
    more = num_sequences * num_frames * c.longest * num_states
    return BestSegments(*best, _plan(c.transition, num_sequences, num_frames - 1 + c.is_carried, more))


def _of_tree(p: TreePotentials, of: Of) -> BestTrees[ParsedTree]:
    f = tree.validate(p).detach().double()
    if of == "joint":
        for name, rule in zip(f.rules._fields, f.rules, strict=True):
            if rule.cpd is None:
                raise UnsupportedError(
                    f'of="joint" asks for the ranks of {name}, a {type(rule).__name__}, but only BinaryCPD has them.\n'
                    "  Use viterbi(p)."
                )
        vectors = best_by_ranks(f)
        views: list[View] = [Ranks(rule.cpd, max_side) for rule in f.rules if rule.cpd is not None]
    else:
        vectors, views = best_by_pairs(f), [Pairs(rule) for rule in f.rules]
    log_prob = _log_prob(f, vectors)
    (trees,) = parsed_trees(trace(f, vectors, views, lambda logits: logits.argmax(-1)), log_prob.tolist())
    return BestTrees(trees, log_prob)


def _log_prob(f: Forest, vectors: list[Tensor]) -> Tensor:  # "b"
    """The weight of the best tree of each sentence."""
    ends = [
        ((f.log_root_leaf if length == 1 else f.log_root)[b] + vectors[length][b, 0]).max()
        for b, length in enumerate(f.lengths.tolist())
    ]
    return torch.stack(ends)


_ANSWERS: dict[ModuleType, Callable[..., BestPath | BestSegments | BestTrees[ParsedTree]]] = {
    chain: _of_chain,
    segments: _of_segments,
    tree: _of_tree,
    blocks: _of_blocks,
}


def _refuse_joint(of: Of, whose: str) -> None:
    if of == "joint":
        raise UnsupportedError(
            f'of="joint" asks for the ranks of {whose}, which has none to choose.\n  Use viterbi(p).'
        )


def _plan(transition: Operator, num_sequences: int, num_steps: int, more: int = 0) -> str:
    """Which algorithm finds the best predecessors, and how many operations it takes in all."""
    name, once, each = _step_cost(transition)
    shared = f"{num_steps * once:,} multiply-adds shared by the batch + " if once else ""
    return f"exact, {name}: {shared}{num_sequences * num_steps * each + more:,} additions"


def _step_cost(transition: Operator) -> tuple[str, int, int]:
    """Name, work per step shared by the batch, work per step and sequence."""
    cells = transition.shape[0] * transition.shape[1]
    if isinstance(transition, RowScaled):
        name, once, each = _step_cost(transition.operator)
        return f"{name}, rows scaled", once, each + transition.shape[0]
    if isinstance(transition, Dense):
        return "dense", 0, cells
    if isinstance(transition, Banded):
        return "banded", 0, transition.shape[0] * transition.width
    if isinstance(transition, LowRank):
        return "low rank by blocks of rows, never stored", cells * transition.rank, cells
    return f"{type(transition).__name__} by blocks of rows, never stored", cells, cells
