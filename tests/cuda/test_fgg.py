"""Factor graph grammars on a GPU: the numbers of a CPU, and of a captured graph those of eager calls."""

from __future__ import annotations

import pytest
import torch

from rankfold import fgg
from rankfold.numerics.capture import capture_graph
from tests.fgg.cases import TD_PCFG, TEXTS
from tests.fgg.plain import example

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CUDA = torch.device("cuda")
SENTENCES = [[0, 1, 1, 2, 0, 1], [1, 0], [2, 2, 1, 0]]
NAMES = ["hmm", "pcfg", "ranks"]


def grammar(name: str) -> fgg.Grammar:
    return example(TEXTS.get(name, TD_PCFG))


def with_leaves(g: fgg.Grammar, device: torch.device) -> tuple[fgg.Grammar, list[torch.Tensor]]:
    leaves = {
        name: x.detach().to(device).requires_grad_() for name, x in g.factors.items() if isinstance(x, torch.Tensor)
    }
    return g.to(device).with_factors(leaves), list(leaves.values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sentences", [SENTENCES[:1], SENTENCES])
def test_sums_and_gradients_are_those_of_a_cpu(name: str, sentences: list[list[int]]) -> None:
    found = []
    for device in (torch.device("cpu"), CUDA):
        g, leaves = with_leaves(grammar(name), device)
        log_z = fgg.sum_product(fgg.conjoin(g, fgg.string_query(sentences)))
        grads = torch.autograd.grad(torch.where(log_z > -torch.inf, log_z, 0.0).sum(), leaves, materialize_grads=True)
        found.append([log_z, *grads])
    for cpu, gpu in zip(*found, strict=True):
        assert gpu.is_cuda
        torch.testing.assert_close(gpu.cpu(), cpu, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", NAMES[:2])
def test_best_derivations_and_posteriors_are_those_of_a_cpu(name: str) -> None:
    g = grammar(name)
    cpu, gpu = (fgg.conjoin(own, fgg.string_query(SENTENCES)) for own in (g, g.to(CUDA)))
    one, two = fgg.best(cpu), fgg.best(gpu)
    assert [[(x.rule, x.values) for x in own] for own in one] == [[(x.rule, x.values) for x in own] for own in two]
    mine, its = fgg.marginals(gpu), fgg.marginals(cpu)
    for key, x in its.spans.items():
        torch.testing.assert_close(mine.spans[key].cpu(), x, rtol=1e-10, atol=1e-12)
    generator = torch.Generator(CUDA).manual_seed(0)
    known = {rule.name for rule in cpu.rules}
    for several in fgg.sample(gpu, num=3, generator=generator):
        assert len(several) == 3
        assert {x.rule for own in several for x in own} <= known


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_captured_gradient_is_that_of_an_eager_call(name: str, is_mixed: bool) -> None:
    """One graph serves all words, and all lengths up to its own."""
    g, leaves = with_leaves(grammar(name), CUDA)
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(3, (4, 7), generator=generator).to(CUDA)
    lengths = torch.tensor([7, 3, 5, 7], device=CUDA)

    def work() -> list[torch.Tensor]:
        query = fgg.string_query(words, lengths=lengths if is_mixed else None)
        log_z = fgg.sum_product(fgg.conjoin(g, query))
        return [log_z.detach(), *torch.autograd.grad(log_z.sum(), leaves, materialize_grads=True)]

    graph, result = capture_graph(work)
    for seed in range(3):
        own = torch.Generator().manual_seed(seed)
        words.copy_(torch.randint(3, (4, 7), generator=own))
        lengths.copy_(torch.randint(2, 8, (4,), generator=own))
        graph.replay()
        for found, expected in zip(result, work(), strict=True):
            assert found.isfinite().all()
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
