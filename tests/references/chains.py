"""The same models the plain way: every table written out, a Python loop over positions, autograd through all of it.

What a step is compared with, for its result and for its time. It reads a model's parameters by their names and shares
no line with the rooms that are measured (params, recursions, operators, kernels). What a step with dropout leaves out
it is told (`draw_dropout` of `benchmarks/steps/step.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, relu

Tensors = Mapping[str, Tensor]


def reference_log_z(tensors: Tensors, config: Any, batch: Any) -> Tensor:  # "b"
    """The log-probability of each sequence, in the dtype of the parameters.

    `tensors` are those of the model by name, buffers included (a block model's clusters are one). With
    `config.neural` false they are an HMM's own tables. Of a step with dropout there are also the
    masks of what is gone: "gone.states" "z", of a rank-space model "gone.rank" and "gone.state" "z r" and what its
    start is multiplied by, "kept.start" "d".
    Cost: z v for the emissions, z^2 (hmm, block), 2 z r (lhmm, banded, and z^2 for the band) or r^2 for the
    transitions, all held for the backward pass with a vector a token. Source of the maths: `docs/families.md`.
    """
    if config.family == "block":
        return _block(tensors, config, batch)
    start, step, emission = _TABLES[config.family if config.neural else "given"](tensors, config)
    return _forward(start, step, embedding(batch.values, emission.mT), batch.lengths)


Step = Callable[[Tensor, int], Tensor]  # "b z" before a position, the position -> "b z"
Tables = tuple[Tensor, Step, Tensor]  # start "z", a step, emission "z v"


def _forward(start: Tensor, step: Step, obs: Tensor, lengths: Tensor) -> Tensor:  # "z" or "b z", .., "b t z", "b"
    """The forward algorithm on vectors that are normalised after every position."""
    total, message = _normalised(start * obs[:, 0])
    for t in range(1, obs.shape[1]):
        scale, moved = _normalised(step(message, t) * obs[:, t])
        inside = t < lengths
        total = torch.where(inside, total + scale, total)
        message = torch.where(inside[:, None], moved, message)
    return total


def _normalised(x: Tensor) -> tuple[Tensor, Tensor]:  # "b z" -> "b", "b z"
    scale = x.sum(-1)
    return scale.log(), x / scale[:, None]


def _given(tensors: Tensors, config: Any) -> Tables:
    transition = tensors["transition"]
    return tensors["log_initial"].exp(), lambda x, t: x @ transition, tensors["log_emission"].mT.exp()


def _hmm(tensors: Tensors, config: Any) -> Tables:
    source, target = tensors["transition.source"], tensors["transition.target"]
    start = torch.softmax(_left(tensors, target @ start_vector(tensors, "transition.start")), 0)
    transition = torch.softmax(_left(tensors, source @ target.mT), 1)
    return start, lambda x, t: x @ transition, _emission(tensors)


def _lhmm(tensors: Tensors, config: Any) -> Tables:
    log_start, log_source, log_target = _features(tensors, config, "transition")
    log_total = torch.logsumexp(log_target, 0)  # "r"
    left, right = torch.softmax(log_source + log_total, 1), torch.softmax(log_target, 0)  # "z r", "y r"
    start = right @ torch.softmax(log_start + log_total, 0)
    return start, lambda x, t: (x @ left) @ right.mT, _emission(tensors)


def _banded(tensors: Tensors, config: Any) -> Tables:
    log_start, log_source, log_target = _features(tensors, config, "transition.low_rank")
    log_total = torch.logsumexp(log_target, 0)
    log_left, right = log_source + log_total, torch.softmax(log_target, 0)
    log_band = tensors["transition.log_band"]  # "z k"
    size, width = log_band.shape
    index = torch.arange(size, device=log_band.device)
    cell = index - index[:, None] + width // 2  # "z y": which of the k diagonals
    inside = (cell >= 0) & (cell < width)
    log_cells = _left(tensors, log_band.gather(1, cell.clamp(0, width - 1)).masked_fill(~inside, float("-inf")))
    log_row = torch.logsumexp(torch.cat([log_left, log_cells], 1), 1, keepdim=True)
    left, band = torch.exp(log_left - log_row), torch.exp(log_cells - log_row)
    start = right @ torch.softmax(log_start + log_total, 0)
    return start, lambda x, t: (x @ left) @ right.mT + x @ band, _emission(tensors)


def _rank(tensors: Tensors, config: Any) -> Tables:
    projection = tensors["factors.projection"]  # "r d"
    rank = torch.softmax(_left(tensors, tensors["factors.source"] @ projection.mT, "gone.rank"), 1)  # "z r"
    state = torch.softmax(_left(tensors, tensors["factors.target"] @ projection.mT, "gone.state"), 0)  # "z r"
    begin = tensors["factors.start"]
    if "kept.start" in tensors:
        begin = begin * tensors["kept.start"].to(begin.dtype)
    hidden = network(tensors, "factors.start_mlp", begin)
    scores = linear(hidden, tensors["factors.start_out.weight"], tensors["factors.start_out.bias"])
    words = network(tensors, "factors.word_mlp", tensors["factors.word"])
    transition = state.mT @ rank  # "r r"
    emission = torch.softmax(tensors["factors.word_out"] @ words.mT, 1)  # "r v"
    return torch.softmax(scores, 0) @ rank, lambda x, t: x @ transition, emission


_TABLES: dict[str, Callable[[Tensors, Any], Tables]] = {
    "given": _given,
    "hmm": _hmm,
    "lhmm": _lhmm,
    "banded": _banded,
    "rank": _rank,
}


def _block(tensors: Tensors, config: Any, batch: Any) -> Tensor:  # "b"
    """All z states in every table; a step takes the k x k block between the clusters of two words."""
    cluster = tensors["blocks.members.cluster"]  # "v"
    source, target, state = (tensors[f"blocks.{name}"].flatten(0, 1) for name in ("source", "target", "state"))
    num = config.num_clusters
    size = len(source) // num
    own = torch.arange(num, device=cluster.device).repeat_interleave(size)  # "z"
    logits = network(tensors, "blocks.mlp", state) @ tensors["blocks.word"].mT
    emission = torch.softmax(logits.masked_fill(own[:, None] != cluster, float("-inf")), 1)  # "z v"
    transition = torch.softmax(_left(tensors, source @ target.mT), 1).reshape(num, size, num, size)
    start = torch.softmax(_left(tensors, target @ start_vector(tensors, "blocks.start")), 0).reshape(num, size)
    at = cluster[batch.values]  # "b t"
    words = batch.values[..., None].expand(*at.shape, size)
    obs = emission[at[..., None] * size + torch.arange(size, device=at.device), words]  # "b t k"

    def step(x: Tensor, t: int) -> Tensor:  # "b k" -> "b k"
        return (x[:, None] @ transition[at[:, t - 1], :, at[:, t]])[:, 0]

    return _forward(start[at[:, 0]], step, obs, batch.lengths)


def _emission(tensors: Tensors) -> Tensor:  # "z v"
    states = network(tensors, "emission.mlp", tensors["emission.state"])
    return torch.softmax(states @ tensors["emission.word"].mT, 1)


def _features(tensors: Tensors, config: Any, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """The log-features of the start, of every source and of every target: "r", "z r", "z r"."""
    source, target = log_features(tensors, config.feature_map, name)
    target = _left(tensors, target.mT).mT
    return log_phi(tensors, config.feature_map, name, start_vector(tensors, f"{name}.start")), source, target


def _left(tensors: Tensors, logits: Tensor, which: str = "gone.states") -> Tensor:
    """The logits of what is left: of targets along the last axis, or of single entries; the others are -inf."""
    return logits.masked_fill(tensors[which], float("-inf")) if which in tensors else logits


def log_features(tensors: Tensors, feature_map: str, name: str) -> tuple[Tensor, Tensor]:
    """The log-features of every source and of every target: "z r", "z r"."""
    source, target = tensors[f"{name}.source"], tensors[f"{name}.target"]
    return log_phi(tensors, feature_map, name, source), log_phi(tensors, feature_map, name, target)


def log_phi(tensors: Tensors, feature_map: str, name: str, x: Tensor) -> Tensor:  # "... d" -> "... r"
    """The log-features of vectors."""
    shift = x.square().sum(-1, keepdim=True) / 2 if feature_map == "positive" else 0.0
    return x @ tensors[f"{name}.features.projection"] - shift


def start_vector(tensors: Tensors, name: str) -> Tensor:  # "d"
    """The vector before the first state."""
    return network(tensors, f"{name}.mlp", tensors[f"{name}.embedding"])


def network(tensors: Tensors, name: str, x: Tensor) -> Tensor:  # "... d" -> "... d"
    """Linear layers, and residual ones x + relu(L2 relu(L1 x)), as the names say."""
    layer = 0
    while True:
        stem = f"{name}.{layer}"
        if f"{stem}.weight" in tensors:
            x = linear(x, tensors[f"{stem}.weight"], tensors[f"{stem}.bias"])
        elif f"{stem}.first.weight" in tensors:
            inner = relu(linear(x, tensors[f"{stem}.first.weight"], tensors[f"{stem}.first.bias"]))
            x = x + relu(linear(inner, tensors[f"{stem}.second.weight"], tensors[f"{stem}.second.bias"]))
        else:
            return x
        layer += 1
