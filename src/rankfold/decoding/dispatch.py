"""One table per question, from a recursion to the function that answers; and the derivatives most answers are.

`rankfold.recursions` knows which recursion potentials belong to. A new structure is one line of every question's table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TypeVar

import torch
from torch import Tensor

from rankfold.errors import UnsupportedError
from rankfold.recursions import log_z, recursion_of
from rankfold.recursions.problem import Problem

Found = TypeVar("Found")


def answer(question: str, answers: Mapping[ModuleType, Callable[..., Found]], p: object) -> Callable[..., Found]:
    """The function that answers the question of potentials of this kind; raises where there is none."""
    found = answers.get(recursion_of(p))
    if found is None:
        known = " and ".join(recursion.__name__.rpartition(".")[2] for recursion in answers)
        raise UnsupportedError(f"{question}(p) is not defined for {type(p).__name__}, but for potentials of: {known}.")
    return found


def has_graph(c: Problem) -> bool:
    """Whether autograd follows the problem, so that answers have a graph."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in c.tensors())


def derivatives(
    c: Problem, names: Sequence[str] | None = None, *, weight: float = 1.0
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """log Z "b" of a problem, and the derivatives of weight sum_b log Z in its fields `names`, or in all its tensors.

    With a graph where autograd follows the problem, detached where not. Cost: one pass in each direction.
    """
    follow = has_graph(c)
    copy = torch.is_inference_mode_enabled()  # autograd notes no tensors made in inference mode
    with torch.inference_mode(False), torch.enable_grad():
        tensors = [x.clone() for x in c.tensors()] if copy else list(c.tensors())
        asked = range(len(tensors)) if names is None else [c.fields.index(name) for name in names]
        for i in asked:  # views, because inputs may be made of one another: only the last step to each is asked for
            x = tensors[i]
            tensors[i] = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
        problem = c.with_tensors(*tensors)
        if copy:
            problem = problem.replace(lengths=c.lengths.clone())
        total = log_z(problem)
        summed = total.sum() if weight == 1.0 else total.sum() * weight
        found = torch.autograd.grad(summed, [tensors[i] for i in asked], create_graph=follow)
    return (total, found) if follow else (total.detach(), found)
