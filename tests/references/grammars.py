"""Grammars the plain way: every table written out, the inside algorithm in log space, autograd through all of it.

All spans of a width at once, a logsumexp over their splits, products of exponentials with the largest taken out. Rules
with a rank keep what they make of a child once a span, as the TN-PCFG's authors do. It reads a model's parameters by
their names and shares no line with the rooms that are measured. Not written for the compound PCFG.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, relu

from tests.references.chains import network

Tensors = Mapping[str, Tensor]
KINDS = ("span_span", "span_leaf", "leaf_span", "leaf_leaf")  # pairs of children, as the parameters are laid out


def reference_tree_log_z(tensors: Tensors, config: Any, batch: Any) -> Tensor:  # "b"
    """The log-probability of each sentence of two words and more, in the dtype of the parameters.

    Cost: p v for the emissions; with a rank r (tnpcfg, rankpcfg, spcfg) r for each split and 3 n r or 2 r^2 for each
    span; else n^2 for each split and n^3 + 2 n^2 p for each span, or the rank in place of an n. All of it is held for
    the backward pass. "rankpcfg" sums its parents out, as its authors do; "tnpcfg" does not, as its authors do not.
    Source of the maths: `docs/families-grammars.md`.
    """
    log_root = torch.log_softmax(_out(tensors, "root.out", network(tensors, "root.mlp", tensors["root.embedding"])), 1)
    symbols = tensors.get("emission.symbol")
    own = tensors["rules.symbol"][config.num_nonterminals :] if symbols is None else symbols
    logits = network(tensors, "emission.mlp", own) @ tensors["emission.word"].mT + tensors["emission.bias"]
    log_leaf = embedding(batch.values, torch.log_softmax(logits, 1).mT)  # "b t p"
    if config.family in ("npcfg", "lpcfg"):
        tops = _inside_pairs(log_leaf, _pairs(tensors, config))
    else:
        rules = _FACTORS[config.family](tensors, config)
        tops = _inside_ranks(log_leaf, rules)
        if config.family == "rankpcfg":
            log_root = _product(log_root, rules.parents)
    return torch.logsumexp(log_root + tops[batch.lengths - 2, torch.arange(len(tops[0]), device=tops.device)], 1)


class Factors(NamedTuple):
    """T[a, l, r] = sum_k head[a, k] left[l, k] right[r, k]; no head: the identity."""

    head: Tensor | None  # "n k"
    left: Tensor  # "n k", of spans
    right: Tensor
    leaf_left: Tensor  # "p k"
    leaf_right: Tensor
    parents: Tensor  # "n k": what the root goes through where the parents are summed out; else unused


class Pairs(NamedTuple):
    """T[a, (l, r)] of one kind of children: a table, or one of ranks and how parents choose them."""

    table: Tensor  # "x q"
    parent: Tensor | None = None  # "n x"   None: x are the parents themselves


def _inside_ranks(log_leaf: Tensor, rules: Factors) -> Tensor:  # "b t p" -> "t-1 b n", whole sentences by length
    lefts, rights = [_product(log_leaf, rules.leaf_left)], [_product(log_leaf, rules.leaf_right)]
    tops = []
    for width in range(2, log_leaf.shape[1] + 1):
        num = log_leaf.shape[1] - width + 1
        left = torch.stack([lefts[k - 1][:, :num] for k in range(1, width)], 2)  # "b s k r"
        right = torch.stack([rights[width - k - 1][:, k : k + num] for k in range(1, width)], 2)
        span = torch.logsumexp(left + right, 2)
        if rules.head is not None:
            span = _product(span, rules.head.mT)
        tops.append(span[:, 0])
        lefts.append(_product(span, rules.left))
        rights.append(_product(span, rules.right))
    return torch.stack(tops)


def _inside_pairs(log_leaf: Tensor, rules: list[Pairs]) -> Tensor:  # "b t p" -> "t-1 b n"
    """Children by all pairs of them, kind by kind: a word can only stand at an end of its span."""
    span_span, span_leaf, leaf_span, leaf_leaf = rules
    spans: list[Tensor] = []  # by width from 2
    for width in range(2, log_leaf.shape[1] + 1):
        num = log_leaf.shape[1] - width + 1
        first, last = log_leaf[:, :num], log_leaf[:, width - 1 :]
        if width == 2:
            spans.append(_parents(_outer(first, last), leaf_leaf))
            continue
        kinds = [
            _parents(_outer(spans[-1][:, :num], last), span_leaf),
            _parents(_outer(first, spans[-1][:, 1 : 1 + num]), leaf_span),
        ]
        if width > 3:
            left = torch.stack([spans[k - 2][:, :num] for k in range(2, width - 1)], 2)  # "b s k n"
            right = torch.stack([spans[width - k - 2][:, k : k + num] for k in range(2, width - 1)], 2)
            kinds.append(_parents(torch.logsumexp(_outer(left, right), 2), span_span))
        spans.append(torch.logsumexp(torch.stack(kinds), 0))
    return torch.stack([span[:, 0] for span in spans])


def _outer(left: Tensor, right: Tensor) -> Tensor:  # "... l", "... r" -> "... (l r)"
    return (left[..., :, None] + right[..., None, :]).flatten(-2)


def _parents(log_pairs: Tensor, rule: Pairs) -> Tensor:  # "b s q" -> "b s n"
    found = _product(log_pairs, rule.table.mT)
    return found if rule.parent is None else _product(found, rule.parent.mT)


def _product(log_x: Tensor, weight: Tensor) -> Tensor:  # "... m", "m k" -> "... k"
    """log(exp(x) W), the largest of each vector taken out."""
    top = log_x.detach().amax(-1, keepdim=True)
    return torch.log(torch.exp(log_x - top) @ weight) + top


def _tnpcfg(tensors: Tensors, config: Any) -> Factors:
    return _sides(*_three(tensors, config, [0, 1, 2], tensors["rules.bias"], shallow=True))


def _rankpcfg(tensors: Tensors, config: Any) -> Factors:
    head, left, right = _three(tensors, config, [0, 0, 0], 0.0, shallow=config.released)
    rules = _sides(head, left, right)
    return rules._replace(head=None, left=head.mT @ rules.left, right=head.mT @ rules.right)


def _spcfg(tensors: Tensors, config: Any) -> Factors:
    symbol = tensors["rules.symbol"]
    parent = network(tensors, "rules.parent", symbol[: config.num_nonterminals]) * symbol.shape[1] ** -0.5
    left, right = (
        torch.softmax(network(tensors, f"rules.{side}", symbol) @ parent.mT, 0) for side in ("left", "right")
    )
    return _sides(parent, left, right)._replace(head=None)


_FACTORS: dict[str, Callable[[Tensors, Any], Factors]] = {
    "tnpcfg": _tnpcfg,
    "rankpcfg": _rankpcfg,
    "spcfg": _spcfg,
}


def _three(
    tensors: Tensors, config: Any, ranks: list[int], bias: Tensor | float, *, shallow: bool
) -> tuple[Tensor, Tensor, Tensor]:  # "n k", "n+p k", "n+p k"
    symbol = tensors["rules.symbol"]

    def scores(name: str, x: Tensor, which: int) -> Tensor:
        x = network(tensors, f"rules.{name}", x)
        return (relu(x) if shallow else x) @ tensors[f"rules.ranks.{which}"].mT

    head = torch.softmax(scores("parent", symbol[: config.num_nonterminals], ranks[0]) + bias, 1)
    left, right = (torch.softmax(scores(side, symbol, ranks[i]), 0) for i, side in ((1, "left"), (2, "right")))
    return head, left, right


def _sides(head: Tensor, left: Tensor, right: Tensor) -> Factors:
    n = len(head)
    return Factors(head, left[:n], right[:n], left[n:], right[n:], head)


def _pairs(tensors: Tensors, config: Any) -> list[Pairs]:
    """Rules by kind of children, normalised over all kinds together."""
    n, p = config.num_nonterminals, config.num_preterminals
    counts = dict(zip(KINDS, (n * n, n * p, p * n, p * p), strict=True))
    thin = [kind for kind in KINDS if kind in config.low_rank] if config.family == "lpcfg" else []
    thick = [kind for kind in KINDS if kind not in thin]
    scores = []
    if thick:
        scores.append(tensors["rules.parent"] @ tensors["rules.pair"].mT + tensors["rules.bias"])
    log_pair = None
    if thin:
        log_pair = _log_phi(tensors, tensors["rules.thin_pair"])  # "q k"
        if "rules.thin_bias" in tensors:
            log_pair = log_pair + tensors["rules.thin_bias"][:, None]
        scores.append(_log_phi(tensors, tensors["rules.thin_parent"]) + torch.logsumexp(log_pair, 0))
    chosen = torch.split(torch.softmax(torch.cat(scores, 1), 1), [x.shape[1] for x in scores], 1)
    rules = {}
    if thick:
        tables = torch.split(chosen[0], [counts[kind] for kind in thick], 1)
        rules = {kind: Pairs(table) for kind, table in zip(thick, tables, strict=True)}
    if log_pair is not None:
        tables = torch.split(torch.softmax(log_pair, 0).mT, [counts[kind] for kind in thin], 1)
        rules |= {kind: Pairs(table, chosen[-1]) for kind, table in zip(thin, tables, strict=True)}
    return [rules[kind] for kind in KINDS]


def _log_phi(tensors: Tensors, x: Tensor) -> Tensor:  # "... d" -> "... k"
    """Learned positive features, or the numbers themselves."""
    projection = tensors.get("rules.features.projection")
    return x if projection is None else x @ projection - x.square().sum(-1, keepdim=True) / 2


def _out(tensors: Tensors, name: str, x: Tensor) -> Tensor:
    return linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])
