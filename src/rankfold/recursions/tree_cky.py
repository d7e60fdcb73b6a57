"""The best binary bracketing of a sentence whose brackets have scores of their own, whatever is inside them.

Read next: `decoding/tree_mbr.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.recursions.tree_ranks import diagonal, splits


def best_brackets(score: Tensor, lengths: list[int]) -> tuple[list[list[tuple[int, int]]], list[float]]:  # "b e e"
    """For each sentence the brackets (i, j) of the binary tree whose scores have the largest sum, and that sum.

        best[i, j] = score[i, j] + max_k best[i, k] + best[k, j]

    All spans of a width and all sentences at once: t^3 / 6 additions each. Brackets of two words and more, parents
    first, left before right. Ties go to the shortest left child.
    """
    num, edge, _ = score.shape
    best = torch.zeros(num, edge, edge, 1, dtype=torch.float64, device=score.device)  # [i, j], and again at [j, i]
    where = torch.zeros(num, edge, edge, dtype=torch.int64, device=score.device)
    for width in range(2, edge):
        left, right = splits(best, width)
        total = (left + right).squeeze(-1)
        split = total.argmax(-1, keepdim=True)
        found = total.gather(-1, split) + torch.diagonal(score, width, 1, 2).unsqueeze(-1)
        diagonal(best, width).copy_(found)
        diagonal(best, -width).copy_(found)
        torch.diagonal(where, width, 1, 2).copy_(split.squeeze(-1) + 1)
    at = where.tolist()
    sums = [best[b, 0, length, 0].item() for b, length in enumerate(lengths)]
    return [_from_splits(at[b], length) for b, length in enumerate(lengths)], sums


def _from_splits(split: list[list[int]], length: int) -> list[tuple[int, int]]:
    """The brackets below the whole sentence; split[i][j] is how many words the left child has."""
    found, waiting = [], [(0, length)]
    while waiting:
        i, j = waiting.pop()
        if j - i > 1:
            found.append((i, j))
            k = i + split[i][j]
            waiting += [(k, j), (i, k)]
    return found
