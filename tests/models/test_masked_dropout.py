"""States dropped by a mask, as captured graphs need it: the sentences' distribution of states dropped by index."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from rankfold.models import HMM
from rankfold.models.config import HMMS
from rankfold.operators import Dense
from rankfold.recursions import chain
from rankfold.recursions.chain.potentials import ChainPotentials
from tests.models.cases import CASES, Case, seeded, some_strings
from tests.params.build import EXACT

CHAINS = [case for case in CASES if case.config.family in HMMS]
every_case = pytest.mark.parametrize("case", CHAINS, ids=lambda case: case.name)
SEEDS = [0, 1, 2, 5]
WEIGHT = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)  # of sentences: their gradients must not cancel


def built(case: Case, **settings: Any) -> HMM:
    """The model, its states dropped each by itself."""
    config = dataclasses.replace(case.config, state_dropout_kind="bernoulli", **settings)
    model = case._replace(config=config).build()
    assert isinstance(model, HMM)
    return model


def solved(model: HMM, parts: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """log Z of some strings and its gradients by parameter; zeros where a parameter is not used."""
    log_z = model.log_z(model.potentials(some_strings(), parts=parts))
    return log_z.detach(), _gradients(model, log_z)


def _gradients(model: HMM, log_z: Tensor) -> dict[str, Tensor]:
    found = torch.autograd.grad((WEIGHT * log_z).sum(), list(model.parameters()), materialize_grads=True)
    return dict(zip(dict(model.named_parameters()), found, strict=True))


def restricted(model: HMM, stays: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The same of the whole model's tables, written out, cut down to the states that stay and divided by their sums."""
    whole, keep = model.parts(), stays.nonzero()[:, 0]
    start, rows = whole.log_initial.exp()[keep], whole.transition.to_dense()[keep][:, keep]
    log_obs = whole.emission.log_obs(some_strings().values)[..., keep]
    transition = Dense(rows / rows.sum(1, keepdim=True))
    p = ChainPotentials((start / start.sum()).log(), transition, log_obs, lengths=some_strings().lengths)
    log_z = chain.log_z(p)
    return log_z.detach(), _gradients(model, log_z)


def expect_alike(one: tuple[Tensor, dict[str, Tensor]], other: tuple[Tensor, dict[str, Tensor]]) -> None:
    torch.testing.assert_close(one[0], other[0], **EXACT)
    for name, grad in one[1].items():
        torch.testing.assert_close(grad, other[1][name], msg=name, **EXACT)


@every_case
@pytest.mark.parametrize("seed", SEEDS)
def test_a_mask_is_the_model_of_what_stays(case: Case, seed: int) -> None:
    model = built(case, feature_dropout=0.0)
    parts = model.capturable_parts(seeded(seed))
    assert parts.log_mask is not None
    assert len(parts.log_initial) == case.config.num_states
    expect_alike(solved(model, parts), restricted(model, parts.log_mask == 0))


@every_case
@pytest.mark.parametrize("seed", SEEDS)
def test_a_mask_equals_indices(case: Case, seed: int) -> None:
    """With features dropped too, which come after the states from the same generator."""
    model = built(case)
    by_index, by_mask = model.parts(seeded(seed)), model.capturable_parts(seeded(seed))
    expect_alike(solved(model, by_mask), solved(model, by_index))


@every_case
@pytest.mark.parametrize("seed", SEEDS)
def test_parameters_of_dropped_states_get_no_gradient(case: Case, seed: int) -> None:
    """Exactly none: an optimiser that divides by their size would make steps of any noise."""
    model = built(case)
    parts = model.capturable_parts(seeded(seed))
    assert parts.log_mask is not None
    gone = (parts.log_mask != 0).nonzero()[:, 0]
    _, found = solved(model, parts)
    rows = {name: x for name, x in found.items() if name.startswith(("transition", "emission.state", "emission.log"))}
    tables = [
        grad
        for name, grad in rows.items()
        if not any(part in name for part in ("start", "features")) and len(grad) == case.config.num_states
    ]
    assert len(tables) >= (2 if case.config.printed else 3)  # as printed, words come from the source's embedding
    for table in tables:
        assert (table[gone] == 0).all()
    if "transition.log_transition" in found:
        assert (found["transition.log_transition"][:, gone] == 0).all()


def test_some_of_these_seeds_drop_and_none_drops_all() -> None:
    """Otherwise the tests above show nothing."""
    sizes = set()
    for case in CHAINS:
        for seed in SEEDS:
            parts = built(case).capturable_parts(seeded(seed))
            assert parts.log_mask is not None
            sizes.add((case.config.num_states, int((parts.log_mask == 0).sum())))
    assert {size for size, left in sizes if left < size} == {2, 3, 4}
    assert min(left for _, left in sizes) == 1


@every_case
def test_without_a_generator_or_dropout_nothing_is_masked(case: Case) -> None:
    assert built(case).capturable_parts().log_mask is None
    assert built(case, state_dropout=0.0).capturable_parts(seeded()).log_mask is None


def test_exact_numbers_repeat_their_shapes_without_a_mask() -> None:
    case = next(case for case in CHAINS if case.name == "lhmm-neural-3-2")
    model = case.build()
    parts = model.capturable_parts(seeded())
    assert parts.log_mask is None
    assert len(parts.log_initial) == 2
    assert torch.equal(parts.log_initial, model.parts(seeded()).log_initial)


@pytest.mark.parametrize("name", ["hmm-neural-3", "lhmm-neural-4-3-bernoulli"])
def test_plans_count_masked_states(name: str) -> None:
    """On a GPU, where graphs mask them; elsewhere they leave by their index, and as many as on average are counted."""
    case = next(case for case in CHAINS if case.name == name)
    some, whole = built(case), built(case, state_dropout=0.0)
    assert some.plan(device="cuda") == whole.plan(device="cuda")
    assert some.plan(device="cpu").ways[0].multiply_adds < whole.plan(device="cpu").ways[0].multiply_adds
    exact = dataclasses.replace(case.config, state_dropout_kind="exact")
    assert case._replace(config=exact).build().plan(device="cuda") != whole.plan(device="cuda")
