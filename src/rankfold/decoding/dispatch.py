"""Choice of the function that answers a question; and derivatives of log Z, of which most answers consist.

Each question has a table from recursion to function; a new recursion is one line in each. `recursion_of` finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TypeVar

import torch
from torch import Tensor

from rankfold.errors import UnsupportedError
from rankfold.numerics.precision import Precision
from rankfold.recursions import log_z, recursion_of
from rankfold.recursions.problem import Problem

Found = TypeVar("Found")


def answer(question: str, answers: Mapping[ModuleType, Callable[..., Found]], p: object) -> Callable[..., Found]:
    """The function that answers the question for potentials of this kind; raises if there is none."""
    found = answers.get(recursion_of(p))
    if found is None:
        known = " and ".join(recursion.__name__.rpartition(".")[2] for recursion in answers)
        raise UnsupportedError(f"{question}(p) is not defined for {type(p).__name__}, but for potentials of: {known}.")
    return found


def has_graph(c: Problem) -> bool:
    """Whether a tensor of the problem requires grad, so that answers must be differentiable."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in c.tensors())


def derivatives(
    c: Problem,
    names: Sequence[str] | None = None,
    *,
    weight: Tensor | None = None,
    precision: Precision = "float32",
) -> tuple[Tensor, tuple[Tensor, ...]]:  # weight "b"
    """log Z "b" of a problem, and the derivatives of weight . log Z in its fields `names`, or in all its tensors.

    Differentiable if a tensor of the problem requires grad, else detached. Cost: one pass in each direction.
    """
    follow = has_graph(c)
    copy = torch.is_inference_mode_enabled()  # autograd cannot record tensors made in inference mode
    with torch.inference_mode(False), torch.enable_grad():
        tensors = [x.clone() for x in c.tensors()] if copy else list(c.tensors())
        asked = range(len(tensors)) if names is None else [c.fields.index(name) for name in names]
        for i in asked:  # views, because one input may be computed from another: only direct derivatives are asked for
            x = tensors[i]
            tensors[i] = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
        problem = c.with_tensors(*tensors)
        if copy:
            problem = problem.replace(lengths=c.lengths.clone())
        total = log_z(problem, precision=precision)
        weight = torch.ones_like(total) if weight is None else weight.clone()
        found = torch.autograd.grad(total, [tensors[i] for i in asked], weight, create_graph=follow)
    return (total, found) if follow else (total.detach(), found)
