"""Questions asked of trees: which brackets are probable.

Read next: `recursions/tree.py`, whose derivative answers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.recursions.tree import log_z
from rankfold.recursions.tree_potentials import TreePotentials, checked


def span_posterior(p: TreePotentials) -> Tensor:  # "b t+1 t+1"
    """The probability that words i..j-1 form a constituent, of two words and more, in entry [i, j]; 0 elsewhere.

        posterior[i, j] = d log Z / d log_span[i, j]

    Those of a sentence of T words sum to T - 1, a binary tree's number of brackets; all 0 if it is impossible.
    Differentiable where a gradient is followed. Cost: one inside and one outside pass.
    """
    f = checked(p)
    follow = torch.is_grad_enabled() and any(x.requires_grad for x in f.tensors())
    asleep = torch.is_inference_mode_enabled()
    with torch.inference_mode(False), torch.enable_grad():
        if asleep:  # a derivative needs tensors that autograd may note
            f = f.with_tensors(*(x.clone() for x in f.tensors()))._replace(lengths=f.lengths.clone())
        log_span = f.log_span.view_as(f.log_span) if f.log_span.requires_grad else f.log_span.detach().requires_grad_()
        total = log_z(TreePotentials(*f._replace(log_span=log_span))).sum()
        (found,) = torch.autograd.grad(total, log_span, create_graph=follow)
    return found if follow else found.detach()
