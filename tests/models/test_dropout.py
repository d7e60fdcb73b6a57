"""A training step's distributions are the whole model's, restricted to what is kept and divided by their sums."""

import pytest
import torch

from rankfold.models.config import HMMS
from tests.models.cases import CASES, Case, seeded, some_strings, tables
from tests.params.build import EXACT, stirred

INF = float("inf")
CHAINS = [case for case in CASES if case.config.family in HMMS]
states_only = pytest.mark.parametrize("case", CHAINS, ids=lambda case: case.name)


def without_feature_dropout(case: Case) -> Case:
    """States alone are dropped: then the whole model's tables say what must be left."""
    fields = {**case.config.__dict__, "feature_dropout": 0.0}
    return case._replace(config=type(case.config)(**fields))


@states_only
@pytest.mark.parametrize("seed", [0, 1])
def test_states(case: Case, seed: int) -> None:
    model = without_feature_dropout(case).build()
    whole, some = tables(model.parts()), tables(model.parts(seeded(seed)))
    # Which states are left shows in what they say, which dropout does not change.
    rows = [row for row in some.emission if row.sum() > 0]
    found = [(whole.emission - row).abs().amax(1) < 1e-10 for row in rows]
    assert all(int(hits.sum()) == 1 for hits in found)
    keep = [int(hits.nonzero()) for hits in found]
    assert keep == sorted(set(keep))
    num_states = case.config.num_states
    if case.config.state_dropout_kind == "exact":
        assert len(keep) == max(1, round(0.6 * num_states))
    start, transition = whole.start[keep], whole.transition[keep][:, keep]
    own = keep if len(some.start) == num_states else list(range(len(keep)))
    torch.testing.assert_close(some.start[own], start / start.sum(), **EXACT)
    torch.testing.assert_close(some.transition[own][:, own], transition / transition.sum(1, keepdim=True), **EXACT)
    gone = [z for z in range(len(some.start)) if z not in own]
    assert (some.start[gone] == 0).all()
    assert (some.transition[:, gone] == 0).all()
    potentials = model.potentials(some_strings(), generator=seeded(seed))
    assert (potentials.log_obs[..., gone] == -INF).all()  # wherever the mass before them comes from
    assert (model.query(potentials).posterior().state[..., gone] == 0).all()


BLOCKS = [case for case in CASES if case.config.family == "block"]


@pytest.mark.parametrize("case", BLOCKS, ids=lambda case: case.name)
@pytest.mark.parametrize("seed", [0, 1])
def test_blocks(case: Case, seed: int) -> None:
    model = case.build()
    whole, some = tables(model.parts()), tables(model.parts(seeded(seed)))
    size = case.config.num_states // case.config.num_clusters
    left = max(1, round(0.6 * size))
    assert len(some.start) == left * case.config.num_clusters
    # A state of a cluster of one word says it always; which states are left shows in the start, up to its sum.
    keep = _subset(whole.start, some.start, size, left)
    start, transition = whole.start[keep], whole.transition[keep][:, keep]
    torch.testing.assert_close(some.start, start / start.sum(), **EXACT)
    torch.testing.assert_close(some.transition, transition / transition.sum(1, keepdim=True), **EXACT)
    torch.testing.assert_close(some.emission, whole.emission[keep], **EXACT)


def _subset(whole: torch.Tensor, some: torch.Tensor, size: int, left: int) -> list[int]:
    """The states, `left` of each cluster of `size`, whose shares are these."""
    choices = [list(c) for c in torch.combinations(torch.arange(size), left).tolist()]
    options = [[]]
    for cluster in range(len(whole) // size):
        options = [[*o, *(cluster * size + k for k in choice)] for o in options for choice in choices]
    good = [o for o in options if ((whole[o] / whole[o].sum()) - some).abs().max() < 1e-10]
    assert len(good) == 1
    return good[0]


def test_features_are_dropped_too() -> None:
    case = next(case for case in CASES if case.name == "lhmm-neural-4-3-bernoulli")
    fields = {**case.config.__dict__, "state_dropout": 0.0}
    model = case._replace(config=type(case.config)(**fields)).build()
    parts = model.parts(seeded())
    assert parts.transition.rank == 2
    assert model.parts().transition.rank == 3
    assert torch.linalg.matrix_rank(parts.transition.to_dense()) <= 2


def test_the_parameters_of_dropped_states_get_no_gradient() -> None:
    case = next(case for case in CASES if case.name == "hmm-neural-3")
    model = case.build()
    model.log_likelihood(some_strings(), generator=seeded()).sum().backward()
    gone = (model.emission.state.grad == 0).all(1)
    assert int(gone.sum()) == 1
    assert (model.transition.source.grad[gone] == 0).all()
    assert (model.transition.target.grad[gone] == 0).all()


def test_stirred_is_a_function_of_its_seed() -> None:
    one, two = (stirred(CASES[0].plain(), seed=4) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
