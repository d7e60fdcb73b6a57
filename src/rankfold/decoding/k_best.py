"""The k most probable hidden structures, in order: exact, without k times the work.

A table of maxima (the best beginning of every path, the best subtree of every span) scores an unfinished structure by
its best completion. With such scores a search that keeps k unfinished structures at each choice loses none of the k
best: each structure that it drops has k others above it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Generic, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from rankfold.decoding.dispatch import answer
from rankfold.decoding.parsed_tree import ParsedTree
from rankfold.decoding.viterbi import BestPath, BestSegments, Segment, TreeKind
from rankfold.errors import DomainError
from rankfold.kernels.dispatch import loops_serve
from rankfold.operators.protocol import Operator, max_operator
from rankfold.operators.row_operator import row_blocks
from rankfold.recursions import Potentials, blocks, chain, segments, tree
from rankfold.recursions.blocks.potentials import BlockPotentials
from rankfold.recursions.chain.potentials import ChainPotentials
from rankfold.recursions.factor_gradients import to_double
from rankfold.recursions.segments.potentials import SegmentPotentials, Segments
from rankfold.recursions.tree.best import best_by_pairs
from rankfold.recursions.tree.descend import Nodes, Pairs, Sides, kinds_of, node_options, pieces
from rankfold.recursions.tree.potentials import Forest, TreePotentials

NOTHING = float("-inf")


class KBestPaths(NamedTuple):
    """The k most probable paths of each sequence, the best first; of blocks, of states of the whole model."""

    path: Tensor  # "k b t"     -1 beyond the length, and throughout where a sequence has fewer paths
    log_prob: Tensor  # "k b"   float64, of path and observations together; -inf where there are fewer

    @property
    def segments(self) -> list[list[list[Segment]]]:
        """The stretches of equal states, by rank and sequence."""
        return [BestPath(*rank).segments for rank in zip(*self, strict=True)]


class KBestSegments(NamedTuple):
    """The k most probable segmentations and labellings of each sequence, the best first."""

    path: Tensor  # "k b t"     the state of a frame; -1 beyond the length, and throughout where there are fewer
    begins: Tensor  # "k b t"   whether a segment begins at a frame
    log_prob: Tensor  # "k b"   float64, of segmentation and observations together; -inf where there are fewer

    @property
    def segments(self) -> list[list[list[Segment]]]:
        """The segments, by rank and sequence."""
        return [BestSegments(*rank).segments for rank in zip(*self, strict=True)]


class KBestTrees(NamedTuple, Generic[TreeKind]):
    """The k most probable trees of each sentence with their labels, the best first."""

    trees: list[list[TreeKind]]  # by rank, then sentence; without brackets and tags where there are fewer
    log_prob: Tensor  # "k b"   float64, of tree and words together; -inf where there are fewer


@overload
def k_best(p: ChainPotentials | BlockPotentials, k: int) -> KBestPaths: ...
@overload
def k_best(p: SegmentPotentials, k: int) -> KBestSegments: ...
@overload
def k_best(p: TreePotentials, k: int) -> KBestTrees[ParsedTree]: ...
def k_best(p: Potentials, k: int) -> KBestPaths | KBestSegments | KBestTrees[ParsedTree]:
    """The k most probable distinct paths, segmentations or labelled trees of each sequence; detached.

    In order of their log-probabilities. Ties go to the smallest last state, then to the smallest one before it (of
    segments: to the state, then to the shorter duration); of trees they have a fixed order that begins with the tree of
    `viterbi`. A segment that was carried in counts with its best age.

    Cost: that of `viterbi`, and for each position b k z additions; low rank and sums also z y r multiply-adds shared
    by the batch, in blocks of rows. Segments: b k (z + d) for each segment of the structures. Trees: the options of
    each node that the k best have in common are visited once.
    Memory: one float64 for every position and state, "b t z" (segments: two); "b k z" at a time; "b t k" for the
    answer. Trees: as `viterbi`, and k options of each node visited.
    """
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise DomainError(f"k is {k}, but must be a whole number of at least 1.")
    with torch.no_grad():
        return answer("k_best", _ANSWERS, p)(p, k)


def _largest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:  # "b c" -> "b k" twice
    """The k largest values and their indices, in the order of the indices; ties go to the smaller index.

    With fewer than k values the rest is -inf.
    """
    num = values.shape[1]
    values = pad(values, (0, max(0, k - num)), value=NOTHING)
    least = values.topk(k, -1).values[:, -1:]
    above, level = values > least, values == least
    chosen = above | (level & (level.cumsum(-1) <= k - above.sum(-1, keepdim=True)))
    index = chosen.nonzero()[:, 1].reshape(-1, k)
    return values.gather(1, index), index.clamp(max=num - 1)


class _Columns:
    """Columns of a transition's logarithms, from blocks of its rows; kept if they are one block."""

    def __init__(self, transition: Operator) -> None:
        self._transition = transition
        self._blocks = row_blocks(transition, transition.factors()[0])
        self._rows = [transition.log_rows(self._blocks[0])] if len(self._blocks) == 1 else None

    def __call__(self, state: Tensor) -> Tensor:  # "b k" -> "b k z"
        every = self._rows or (self._transition.log_rows(index) for index in self._blocks)
        return torch.cat([rows[:, state.flatten()] for rows in every]).mT.reshape(*state.shape, -1)


def _of_chain(p: ChainPotentials, k: int) -> KBestPaths:
    c = chain.validate(p).detach()
    transition = max_operator(to_double(c.transition))
    if loops_serve(c.log_obs.shape[-1], c.log_obs):
        from rankfold.kernels.path_loops import k_best_states

        log_weight = transition.log_rows(torch.arange(c.log_obs.shape[-1])).double()
        given = log_weight, c.log_initial.double(), c.log_obs, c.log_final.double(), c.lengths
        return KBestPaths(*k_best_states(*given, k))
    columns = _Columns(transition)
    first = c.log_initial.double() + c.log_obs[:, 0].double()
    path, log_prob = _paths(
        first,
        c.observations(),
        c.log_final.double(),
        c.lengths,
        lambda t, score: transition.push_max(score)[0],
        lambda t, state: columns(state),
        k,
    )
    return KBestPaths(_known(path, log_prob, c.inside()), log_prob)


def _of_blocks(p: BlockPotentials, k: int) -> KBestPaths:
    c = blocks.validate(p).detach()
    inside, each = c.inside(), torch.arange(len(c.lengths), device=c.lengths.device)[:, None]
    log_transition = torch.where(inside[:, 1:, None, None], c.log_transition, 0.0)
    first = c.log_initial.double() + c.log_obs[:, 0].double()
    path, log_prob = _paths(
        first,
        torch.where(inside.unsqueeze(-1), c.log_obs, 0.0).transpose(0, 1),
        torch.zeros_like(first),
        c.lengths,
        lambda t, score: (score.unsqueeze(-1) + log_transition[:, t - 1]).amax(1),
        lambda t, state: log_transition[:, t - 1].mT[each, state],
        k,
    )
    there = log_prob > NOTHING
    return KBestPaths(c.states(path, inside & there.unsqueeze(-1)), log_prob)


def _known(path: Tensor, log_prob: Tensor, inside: Tensor) -> Tensor:  # "k b t", "k b", "b t"
    """The paths, -1 beyond a length and where there is none."""
    return torch.where(inside & (log_prob > NOTHING).unsqueeze(-1), path, -1)


def _paths(
    first: Tensor,  # "b z"
    frames: Tensor,  # "t b z"
    log_final: Tensor,  # "b z"
    lengths: Tensor,
    push_max: Callable[[int, Tensor], Tensor],  # t, "b z" -> "b y"   into position t
    columns: Callable[[int, Tensor], Tensor],  # t, "b k" -> "b k z"   log A[:, state] into position t
    k: int,
) -> tuple[Tensor, Tensor]:  # "k b t", "k b"
    """From the last position back: k ends of paths, by the weight of the best path that has this end.

        past_t[z] = best of all beginnings up to z_t        score = past_t-1[z] + log A[z, z_t] + log obs_t[z_t] + rest

    The ends are kept in lexicographic order, the last state first, so that ties need no other rule.
    """
    num_positions, num_states = len(frames), first.shape[1]
    past = [first]
    for t in range(1, num_positions):
        inside = (t < lengths)[:, None]
        past.append(torch.where(inside, push_max(t, past[-1]) + frames[t], past[-1]))
    score, state = _largest(past[-1] + log_final, k)
    rest = torch.where(score > NOTHING, log_final.gather(1, state), NOTHING)
    states, parents = [state], []
    for t in range(num_positions - 1, 0, -1):
        inside = (t < lengths)[:, None]
        link = columns(t, state) + (rest + frames[t].gather(1, state)).unsqueeze(-1)  # "b k z"
        found, index = _largest((past[t - 1].unsqueeze(1) + link).flatten(1), k)
        parents.append(index // num_states)
        score = torch.where(inside, found, score)
        rest = torch.where(inside, link.flatten(1).gather(1, index), rest)
        state = torch.where(inside, index % num_states, state)
        states.append(state)
    score, at = score.sort(dim=-1, descending=True, stable=True)
    path = [states.pop().gather(1, at)]
    while parents:
        at = parents.pop().gather(1, at)
        path.append(states.pop().gather(1, at))
    return torch.stack(path, -1).transpose(0, 1), score.mT


class _Stretches:
    """Maxima of segmentations: the best that leads to each beginning of a segment, and to each end."""

    def __init__(self, c: Segments) -> None:
        transition = max_operator(to_double(c.transition))
        self.c, self.frames, self.durations = c, c.observations().double(), c.durations().double()  # "t b z", "d z"
        window = torch.full((c.longest, *self.frames.shape[1:]), NOTHING, dtype=torch.float64, device=c.lengths.device)
        self.carried = c.log_initial.transpose(0, 1).double() if c.is_carried else None  # "d b z"
        if self.carried is not None:
            window = self.carried
        entry, last, begun, closed = c.log_initial.double(), window, [], []
        for t, frame in enumerate(self.frames):
            score = (window + self.durations.unsqueeze(1)).amax(0)
            if t or c.is_carried:
                entry = transition.push_max(score)[0]
            begun.append(entry)
            closed.append(score)
            window = torch.cat([entry.unsqueeze(0), window[:-1]]) + frame
            last = torch.where((c.lengths == t + 1)[:, None], window, last)
        self.begun, self.closed = torch.stack(begun), torch.stack(closed)  # "t b z" twice: before frame t
        self.at_end = c.at_end()  # "d b z"
        self.ended = (last + self.at_end).amax(0)  # "b z"
        self.each = torch.arange(self.frames.shape[1], device=c.lengths.device)[:, None]

    def starts(self, state: Tensor, stop: Tensor, *, last: bool) -> tuple[Tensor, Tensor]:  # "b k" -> "b k o" twice
        """What a segment that ends before frame `stop` weighs by its duration, and the best that leads to its start.

        Options 0.. are durations 1..; the last option, where segments are carried in, is one of them.
        """
        longest, ages = self.c.longest, torch.arange(self.c.longest, device=stop.device)
        each, here = self.each.unsqueeze(-1), state.unsqueeze(-1)
        start = stop.unsqueeze(-1) - 1 - ages  # "b k d"
        at = torch.where(start >= 0, start, 0)
        seen = self.frames[at, each, here].cumsum(-1)
        ends = self.at_end if last else self.durations.unsqueeze(1).expand(-1, len(self.each), -1)
        own = seen + ends[ages, each, here]
        before = torch.where(start >= 0, self.begun[at, each, here], NOTHING)
        if self.carried is None:
            return own, before
        total = ages + stop.unsqueeze(-1)
        more = ends[total.clamp(max=longest - 1), each, here]
        whole = torch.where(total < longest, self.carried[ages, each, here] + more, NOTHING).amax(-1, keepdim=True)
        inside = seen.gather(-1, (stop.unsqueeze(-1) - 1).clamp(0, longest - 1))
        return torch.cat([own, whole + inside], -1), pad(before, (0, 1), value=0.0)


def _of_segments(p: SegmentPotentials, k: int) -> KBestSegments:
    """From the last segment back: k ends of segmentations; in turn the state of a segment and its duration."""
    c = segments.validate(p).detach()
    best, columns = _Stretches(c), _Columns(to_double(c.transition))
    score, state = _largest(best.ended, k)
    stop = c.lengths[:, None].expand_as(state)
    rest = torch.where(score > NOTHING, 0.0, NOTHING)  # the weight of all that is decided
    going, parent = score > NOTHING, torch.arange(k, device=state.device).expand_as(state)
    records: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    while True:
        own, before = best.starts(state, stop, last=not records)
        own = own + rest.unsqueeze(-1)
        num = own.shape[-1]
        score, index = _largest(_or_keep(own + before, score, going).flatten(1), k)
        parent, option = parent.gather(1, index // num), index % num
        going, state, stop, rest = (x.gather(1, index // num) for x in (going, state, stop, rest))
        rest = torch.where(going, own.flatten(1).gather(1, index), rest)
        start = torch.where(option < c.longest, stop - 1 - option, -1)
        start = torch.where(going, start, stop)  # nothing is added to finished ones
        records.append((parent, state, start, stop))
        stop = torch.where(start >= 0, start, 0)
        going = going & (stop > 0) & (score > NOTHING)
        if not going.any():
            break
        link = columns(state) + rest.unsqueeze(-1)
        ahead = link + best.closed[stop.clamp(max=len(best.closed) - 1), best.each]
        score, index = _largest(_or_keep(ahead, score, going).flatten(1), k)
        parent = index // link.shape[-1]
        going, stop, rest, state = (x.gather(1, parent) for x in (going, stop, rest, state))
        rest = torch.where(going, link.flatten(1).gather(1, index), rest)
        state = torch.where(going, index % link.shape[-1], state)
    score, at = score.sort(dim=-1, descending=True, stable=True)
    path, begins = _write_segments(records, at, score, c.log_obs.shape[1])
    return KBestSegments(path, begins, score.mT)


def _or_keep(options: Tensor, score: Tensor, going: Tensor) -> Tensor:  # "b k o", "b k", "b k" -> "b k o"
    """The options of what is not finished; a finished structure has one, to stay as it is."""
    alone = torch.full_like(options, NOTHING)
    alone[..., 0] = score
    return torch.where(going.unsqueeze(-1), options, alone)


def _write_segments(
    records: list[tuple[Tensor, Tensor, Tensor, Tensor]], at: Tensor, score: Tensor, num_frames: int
) -> tuple[Tensor, Tensor]:  # "k b t" twice
    """Segments as states and beginnings; records, from the last segment back: (parent, state, start, stop) "b k"."""
    num_sequences, k = at.shape
    path = np.full((k, num_sequences, num_frames), -1)
    begins = np.zeros(path.shape, dtype=bool)
    there = (score > NOTHING).cpu().numpy()
    for parent, *columns in reversed(records):
        state, start, stop = (x.gather(1, at).cpu().numpy() for x in columns)
        for b, rank in zip(*np.nonzero(there & (start < stop)), strict=True):
            path[rank, b, max(start[b, rank], 0) : stop[b, rank]] = state[b, rank]
            if start[b, rank] >= 0:
                begins[rank, b, start[b, rank]] = True
        at = parent.gather(1, at)
    return torch.from_numpy(path).to(at.device), torch.from_numpy(begins).to(at.device)


Node = tuple[int, int, int]  # width, start, symbol


class _Partial(NamedTuple):
    """A tree from the top down to the nodes of some width."""

    score: float  # of the best tree that begins like this
    nodes: tuple[Node, ...]


def _of_tree(p: TreePotentials, k: int) -> KBestTrees[ParsedTree]:
    """From the top down, the widest spans first: k partial trees; at each node a split and a pair of children."""
    f = tree.validate(p).detach().double()
    vectors = best_by_pairs(f)
    sides = Sides(f, vectors, [Pairs(rule) for rule in f.rules])
    kept = [_roots(f, vectors, b, length, k) for b, length in enumerate(f.lengths.tolist())]
    for width in range(f.log_leaf.shape[1], 1, -1):
        wanted = {
            (b, start, symbol)
            for b, partials in enumerate(kept)
            for partial in partials
            for own, start, symbol in partial.nodes
            if own == width
        }
        if wanted:
            options = _options(sorted(wanted), f, sides, width, k)
            kept = [_expand(partials, b, width, options, k) for b, partials in enumerate(kept)]
    ranked = [sorted(partials, key=lambda partial: -partial.score) for partials in kept]
    trees = [[_parsed(row[rank]) if rank < len(row) else ParsedTree([]) for row in ranked] for rank in range(k)]
    scores = [[row[rank].score if rank < len(row) else NOTHING for row in ranked] for rank in range(k)]
    return KBestTrees(trees, torch.tensor(scores, dtype=torch.float64, device=f.log_leaf.device))


def _roots(f: Forest, vectors: list[Tensor], b: int, length: int, k: int) -> list[_Partial]:
    top = (f.log_root_leaf if length == 1 else f.log_root)[b] + vectors[length][b, 0]
    score, symbol = _largest(top.unsqueeze(0), k)
    pairs = zip(score[0].tolist(), symbol[0].tolist(), strict=True)
    return [_Partial(weight, ((length, 0, a),)) for weight, a in pairs if weight > NOTHING]


Options = dict[tuple[int, int, int], list[tuple[float, tuple[Node, Node]]]]


def _options(wanted: list[tuple[int, int, int]], f: Forest, sides: Sides, width: int, k: int) -> Options:
    """The k best children of each node (sentence, start, symbol), with the log-weight they lose to the best ones."""
    at = torch.tensor(wanted, device=sides.vectors[1].device)
    nodes, found = Nodes(torch.zeros_like(at[:, 0]), *at.unbind(1)), {}
    # Options run by kind of child, then by split, then by the pair of symbols.
    order = [(kind, cut) for kind, cuts in kinds_of(width) for cut in cuts]
    sizes = np.cumsum([0] + [sides.views[kind].width for kind, _ in order])
    for part in pieces(nodes, sides.views, width):
        values, index = _largest(torch.cat(node_options(part, sides, width), 1), k)
        lost = (values - values.amax(1, keepdim=True)).tolist()
        rows = zip(part.sentence.tolist(), part.start.tolist(), part.symbol.tolist(), lost, index.tolist(), strict=True)
        for b, start, symbol, loss, chosen in rows:
            children = []
            for less, option in zip(loss, chosen, strict=True):
                if less == NOTHING:
                    continue
                place = int(np.searchsorted(sizes, option, side="right")) - 1
                kind, cut = order[place]
                one, other = divmod(option - int(sizes[place]), f.rules[kind].shape[2])
                children.append((less, ((cut, start, one), (width - cut, start + cut, other))))
            found[b, start, symbol] = children
    return found


def _expand(partials: list[_Partial], b: int, width: int, options: Options, k: int) -> list[_Partial]:
    """The k best partial trees once all nodes of this width have children."""
    turn = 0
    while True:
        grown, any_left = [], False
        for partial in partials:
            here = [node for node in partial.nodes if node[0] == width]
            if turn >= len(here):
                grown.append(partial)
                continue
            any_left = True
            _, start, symbol = here[turn]
            grown += [
                _Partial(partial.score + loss, partial.nodes + children) for loss, children in options[b, start, symbol]
            ]
        if not any_left:
            return partials
        best = sorted(range(len(grown)), key=lambda i: -grown[i].score)[:k]
        partials = [grown[i] for i in sorted(best)]
        turn += 1


def _parsed(partial: _Partial) -> ParsedTree:
    inner = sorted((start, -start - width, symbol) for width, start, symbol in partial.nodes if width > 1)
    tags = [symbol for _, symbol in sorted((start, symbol) for width, start, symbol in partial.nodes if width == 1)]
    return ParsedTree([(i, -j) for i, j, _ in inner], [symbol for *_, symbol in inner], tags, partial.score)


_ANSWERS: dict[ModuleType, Callable[..., KBestPaths | KBestSegments | KBestTrees[ParsedTree]]] = {
    chain: _of_chain,
    segments: _of_segments,
    tree: _of_tree,
    blocks: _of_blocks,
}
