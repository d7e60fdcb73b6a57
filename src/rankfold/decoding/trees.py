"""Questions asked of trees: which brackets, which symbols of words are probable.

Read next: `recursions/tree`, whose derivative answers.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rankfold.recursions.tree import log_z
from rankfold.recursions.tree.potentials import Forest, TreePotentials, validate


def span_posterior(p: TreePotentials | Forest) -> Tensor:  # "b t+1 t+1"
    """The probability that words i..j-1 form a constituent, of two words and more, in entry [i, j]; 0 elsewhere.

        posterior[i, j] = d log Z / d log_span[i, j]

    Those of a sentence of T words sum to T - 1, a binary tree's number of brackets; all 0 if it is impossible.
    Differentiable where a gradient is followed. Cost: one inside and one outside pass.
    """
    return _derivative(p, "log_span")


def leaf_posterior(p: TreePotentials | Forest) -> Tensor:  # "b t p"
    """The probability of each symbol of each word; 0 beyond a length and throughout an impossible sentence.

        posterior[t, symbol] = d log Z / d log_leaf[t, symbol]

    Those of a word sum to 1. Differentiable where a gradient is followed. Cost: one inside and one outside pass.
    """
    return _derivative(p, "log_leaf")


def _derivative(p: TreePotentials | Forest, name: Literal["log_span", "log_leaf"]) -> Tensor:
    """d log Z / d one of the fields; differentiable where a gradient is followed, detached where not."""
    f = validate(p)
    follow = torch.is_grad_enabled() and any(x.requires_grad for x in f.tensors())
    asleep = torch.is_inference_mode_enabled()
    with torch.inference_mode(False), torch.enable_grad():
        if asleep:  # a derivative needs tensors that autograd may note
            f = f.with_tensors(*(x.clone() for x in f.tensors())).replace(lengths=f.lengths.clone())
        given: Tensor = getattr(f, name)
        field = given.view_as(given) if given.requires_grad else given.detach().requires_grad_()
        total = log_z(f.replace(**{name: field})).sum()
        (found,) = torch.autograd.grad(total, field, create_graph=follow)
    return found if follow else found.detach()
