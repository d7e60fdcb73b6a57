"""Rules of low rank for some kinds of children and any distribution for the others, normalised together."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import torch
from torch import Tensor, nn

from rankfold.operators import BinaryDense, BinaryMatricised, Branch
from rankfold.params.dynamics.features import FeatureMap, FreeFeatures
from rankfold.params.networks import Drawing
from rankfold.params.rules.softmax import kind_sizes

Form = Literal["paper", "released", "free"]


class LowRankRules(nn.Module):
    """T[a, (l, r)] proportional to exp(u_a . v_lr + b_lr), or for the kinds in `low_rank` to phi(u'_a) . phi(v_lr).

    With s_k = sum phi_k(v_lr) over the pairs of low rank, a parent chooses among the other pairs and k ranks at once,
    and a rank chooses its pair:

        pair[lr, k] = phi_k(v_lr) / s_k      [dense[a, .], parent[a, .]] = softmax([u_a . v + b, log phi(u'_a) + log s])

    so every parent's rules sum to 1 over all four kinds. phi(x) = exp(x W - |x|^2 / 2), W learned ("paper"), or free
    numbers for each parent and pair with a bias per pair ("released", the authors' code), where u . v may be free
    logits, too ("free"). Cost: n q d for q pairs of any distribution, q' d k for the q' of low rank; memory n q + q' k.
    Source: Chiu, Deng, Rush 2021, App. F and K.
    """

    def __init__(
        self,
        num_spans: int,
        num_leaves: int,
        rank: int,
        dim: int,
        low_rank: Collection[str],
        *,
        form: Form,
        drawing: Drawing,
    ) -> None:
        super().__init__()
        self.sizes = dict(zip(Branch._fields, kind_sizes(num_spans, num_leaves), strict=True))
        self.thin = [kind for kind in self.sizes if kind in low_rank]
        self.thick = [kind for kind in self.sizes if kind not in low_rank]
        self.parent, self.pair, self.bias = _nothing(), _nothing(), _nothing()
        self.thin_parent, self.thin_pair, self.thin_bias = _nothing(), _nothing(), _nothing()
        self.features: FeatureMap | FreeFeatures = FreeFeatures()
        if self.thick:
            num = sum(self._counts(self.thick))
            self.parent = drawing.embedding(num_spans, num if form == "free" else dim)
            if form != "free":
                self.pair, self.bias = drawing.matrix(num, dim), drawing.bias(num, dim)
        if self.thin:
            num, size = sum(self._counts(self.thin)), dim if form == "paper" else rank
            self.thin_parent, self.thin_pair = drawing.embedding(num_spans, size), drawing.embedding(num, size)
            if form == "paper":
                self.features = FeatureMap(dim, rank, kind="positive", generator=drawing.generator)
            else:
                self.thin_bias = drawing.bias(num, size)

    def forward(self) -> Branch:
        logits, pairs = [], None
        if self.parent is not None:
            own: Tensor = self.parent
            logits.append(own if self.pair is None or self.bias is None else torch.addmm(self.bias, own, self.pair.mT))
        if self.thin_parent is not None and self.thin_pair is not None:
            pair = self.thin_pair if self.thin_bias is None else self.thin_pair + self.thin_bias[:, None]
            pairs = self.features.by_rank(pair)
            logits.append(self.features(self.thin_parent) + pairs.log_total)
        chosen = torch.split(torch.softmax(torch.cat(logits, 1), 1), [x.shape[1] for x in logits], 1)
        rules: dict[str, BinaryDense | BinaryMatricised] = {}
        if self.thick:
            for kind, weight in self._by_kind(self.thick, chosen[0]):
                rules[kind] = BinaryDense.unchecked(weight)
        if pairs is not None:
            for kind, weight in self._by_kind(self.thin, pairs.share):
                rules[kind] = BinaryMatricised.unchecked(chosen[-1], weight.permute(1, 2, 0))
        return Branch(**rules)

    def _counts(self, kinds: list[str]) -> list[int]:
        return [self.sizes[kind][0] * self.sizes[kind][1] for kind in kinds]

    def _by_kind(self, kinds: list[str], table: Tensor) -> list[tuple[str, Tensor]]:  # "x q" -> "x l r"
        parts = torch.split(table, self._counts(kinds), 1)
        return [(kind, part.view(len(part), *self.sizes[kind])) for kind, part in zip(kinds, parts, strict=True)]


def _nothing() -> nn.Parameter | None:
    """A parameter that this choice of kinds does not need."""
    return None
