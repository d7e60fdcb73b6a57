"""Transforms of torch.func, batches of gradients and tangents are refused by name, everywhere and in the same words."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap

import rankfold
from rankfold import fgg
from rankfold.recursions import blocks as block_chains

weight = torch.rand(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
log_obs, zeros = torch.zeros(2, 4, 3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
model = rankfold.models.build_model(rankfold.models.ModelConfig(family="lhmm", num_states=3, rank=2, dim=2), 3).double()


def potentials(x: Tensor) -> rankfold.ChainPotentials:
    return rankfold.ChainPotentials(zeros, rankfold.LowRank.unchecked(x, x), log_obs)


def semi_markov(x: Tensor) -> Tensor:
    log_duration = torch.zeros(3, 2, dtype=torch.float64)
    p = rankfold.SegmentPotentials(zeros, rankfold.Dense.unchecked(x), log_duration, log_obs)
    return rankfold.log_z(p)


def tree(x: Tensor) -> Tensor:
    rule = rankfold.BinaryDense.unchecked(x.expand(3, 3, 3))
    return rankfold.log_z(rankfold.TreePotentials(log_obs, rankfold.Branch(rule, rule, rule, rule), zeros))


def blocks(x: Tensor) -> Tensor:
    first, block = torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, 4, dtype=torch.int64)
    return block_chains.log_z(rankfold.BlockPotentials(first, x.expand(2, 3, 3, 3), log_obs, block))


def grammar(x: Tensor) -> Tensor:
    g = fgg.library("hmm", Z=3, V=3).with_factors({"initial": x[0], "next": x, "emit": x})
    return fgg.sum_product(g)


def of_model(x: Tensor) -> Tensor:
    own = {name: parameter + x.sum() for name, parameter in model.named_parameters()}
    words, lengths = torch.tensor([[0, 1, 2]]), torch.tensor([3])
    found: Tensor = functional_call(model, own, (words,), {"lengths": lengths}).log_partition
    return found


SUMS: dict[str, Callable[[Tensor], Tensor]] = {
    "chain": lambda x: rankfold.log_z(potentials(x)),
    "log arithmetic": lambda x: rankfold.log_z(potentials(x), "log"),
    "semi_markov": semi_markov,
    "tree": tree,
    "blocks": blocks,
    "grammar": grammar,
    "model": of_model,
    "posterior": lambda x: rankfold.posterior(potentials(x)).state[:, 0, 0],
    "counts": lambda x: rankfold.expected_counts(potentials(x)).transition[0][0],
    "entropy": lambda x: rankfold.entropy(potentials(x)),
    "best": lambda x: rankfold.viterbi(potentials(x)).log_prob,
    "sample": lambda x: rankfold.sample(potentials(x)).path.double(),
    "operator": lambda x: rankfold.Dense(x).push(zeros),
}


def _tangent(f: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    with forward_ad.dual_level():
        return f(forward_ad.make_dual(x, x))  # type: ignore[no-untyped-call]


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "grad": lambda f, x: grad(lambda y: f(y).sum())(x),
    "vmap": lambda f, x: vmap(f)(x.expand(2, 3, 3)),
    "jvp": lambda f, x: jvp(f, (x,), (x,)),
    "jacrev": lambda f, x: jacrev(f)(x),
    "hessian": lambda f, x: hessian(lambda y: f(y).sum())(x),
    "tangent": _tangent,
}


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch's own, where jvp begins
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", SUMS)
def test_transforms_are_refused_by_name(name: str, transform: str) -> None:
    with pytest.raises(rankfold.UnsupportedError, match=r"torch\.func .*\n.*torch\.autograd\.grad"):
        TRANSFORMS[transform](SUMS[name], weight)


@pytest.mark.parametrize("name", ["chain", "semi_markov", "tree", "blocks"])
def test_batches_of_gradients_are_refused_by_name(name: str) -> None:
    x = weight.clone().requires_grad_()
    out = SUMS[name](x)
    with pytest.raises(rankfold.UnsupportedError, match="batch of gradients"):
        torch.autograd.grad(out, x, torch.eye(len(out), dtype=out.dtype), is_grads_batched=True)


@pytest.mark.parametrize("name", ["chain", "semi_markov", "tree", "blocks"])
def test_what_the_message_says_instead_works(name: str) -> None:
    """Reverse-mode derivatives, of second order too."""
    found = torch.autograd.functional.hessian(lambda y: SUMS[name](y).sum(), weight)
    assert found.shape == (3, 3, 3, 3)
    torch.testing.assert_close(found, found.permute(2, 3, 0, 1), rtol=1e-9, atol=1e-9)


def test_words_inside_a_transform_are_refused_by_name() -> None:
    words = torch.zeros(2, 1, 4, dtype=torch.int64)
    with pytest.raises(rankfold.errors.UnsupportedError, match="words is inside a transform of torch"):
        vmap(lambda ids: model(ids).log_partition)(words)
