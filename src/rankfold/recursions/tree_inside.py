"""What trees are chosen by: vectors of all spans in logarithms, the sides of rules, the best label of every span.

Solved on the ladder of `recursions/tree_solve.py`. Read next: `recursions/tree_trace.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.operators.binary_cpd import log_product
from rankfold.operators.factor import Factor
from rankfold.recursions.tree_labels import Labels
from rankfold.recursions.tree_potentials import Forest
from rankfold.recursions.tree_solve import Solution


def best_labels(f: Forest) -> Labels:
    """For every span the label with which it is most probable, and how probable.

    Cost: one inside and one outside pass; of labels only the best are kept, and a width's posteriors at a time.
    """
    asleep = torch.is_inference_mode_enabled()
    with torch.inference_mode(False), torch.no_grad():
        if asleep:  # a derivative needs tensors that autograd may note
            f = f.with_tensors(*(x.clone() for x in f.tensors()))._replace(lengths=f.lengths.clone())
        return Solution(f.detach()).labels()


def log_inside(f: Forest) -> tuple[list[Tensor], Tensor]:  # "b s n" by width, leaves at 1; "b" bool
    """The log-weights of all trees of every span, by the label of its top, and which sentences needed logarithms.

    For a forest in float64; -inf beyond a length, and where scaled vectors have an entry too small to matter.
    """
    with torch.no_grad():
        leaf = torch.where(f.inside().unsqueeze(-1), f.log_leaf, float("-inf"))
        spans, in_logs = Solution(f.detach()).log_spans()
    return [leaf, leaf, *spans], in_logs


def log_side(x: Tensor, factor: Factor, in_logs: Tensor) -> Tensor:  # "b s n", "n r", "b" -> "b s r"
    """log(exp(x) factor): a product of scaled vectors, and in logarithms for the sentences that need them."""
    top = x.amax(-1, keepdim=True)
    top = torch.where(top > float("-inf"), top, 0.0)
    found = torch.log(torch.exp(x - top) @ factor.linear) + top + factor.log_scale
    index = in_logs.nonzero()[:, 0]
    if len(index):
        found[index] = log_product(x[index], factor.log if factor.log.ndim == 2 else factor.log[index])
    return found
