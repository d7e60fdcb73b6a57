"""Streams of block models with state dropout, and ends of sentences that start afresh, against all paths enumerated."""

import math
from typing import Any

import pytest
import torch

from rankfold.data.batch import Batch
from rankfold.data.vocab import Vocabulary
from rankfold.models import BlockHMM, ModelConfig
from rankfold.models.block_hmm import BlockModelParts
from tests.models.cases import BY_NAME, CASES, Case, Tables, seeded, tables
from tests.oracles import block_chain as oracle
from tests.params.build import EXACT

BLOCKS = [case for case in CASES if case.config.family == "block"]
every_case = pytest.mark.parametrize("case", BLOCKS, ids=lambda case: case.name)
WORDS = torch.tensor([[0, 1, 2, 2, 0, 1], [2, 0, 1, 1, 1, 0], [1, 1, 0, 2, 0, 0]])
WINDOWS = [(0, 2), (2, 5), (5, 6)]
EOS = Vocabulary.eos_id


def kept_states(parts: BlockModelParts, num: int, size: int) -> list[list[int]]:
    """The numbers, in the whole model, of the states of each cluster that are kept."""
    keep = [list(range(size))] * num if parts.keep is None else parts.keep.tolist()
    return [[c * size + k for k in row] for c, row in enumerate(keep)]


def renormalised(row: list[float], among: list[int], own: list[int]) -> list[float]:
    total = math.fsum(row[y] for y in among)
    return [math.log(row[y] / total) for y in own]


class Written:
    """The whole model as lists, from which every step of a stream is restricted and renormalised anew."""

    def __init__(self, model: BlockHMM, parts: list[BlockModelParts]) -> None:
        whole: Tables = tables(model.parts())
        self.start, self.rows, self.says = (x.tolist() for x in whole)
        self.cluster = model.blocks.members.cluster.tolist()
        config = model.config
        self.kept = [kept_states(p, config.num_clusters, config.num_states // config.num_clusters) for p in parts]

    def log_prob(self, words: list[int], windows: list[tuple[int, int]], *, reset: bool = False) -> float:
        """log p of a stream: each window has its own kept states, and is left by those of the window before."""
        step_of = [i for i, (a, b) in enumerate(windows) for _ in range(a, b)]
        own = [self.kept[step_of[t]][self.cluster[v]] for t, v in enumerate(words)]
        every = [[y for block in kept for y in block] for kept in self.kept]
        moves = []
        for t in range(1, len(words)):
            within = step_of[t] == step_of[t - 1]
            among = every[step_of[t]]
            fresh = reset and within and words[t - 1] == EOS
            moves.append([renormalised(self.start if fresh else self.rows[z], among, own[t]) for z in own[t - 1]])
        first = renormalised(self.start, every[0], own[0])
        obs = [[math.log(self.says[z][v]) for z in states] for states, v in zip(own, words, strict=True)]
        return oracle.log_z(first, moves, obs)


def run(model: BlockHMM, parts: list[BlockModelParts], **options: Any) -> list[float]:
    """The summed log-likelihood of the windows of each stream, the state carried from one to the next."""
    total, carried = torch.zeros(3, dtype=torch.float64), None
    for (start, end), own in zip(WINDOWS, parts, strict=True):
        batch = Batch(WORDS[:, start:end], torch.full((3,), end - start), first=start == 0)
        p = model.potentials(batch, parts=own, carried=carried, **options)
        total += model.log_z(p).detach()
        carried = model.carry(p)
        assert not any(x.requires_grad for x in carried)
    return total.tolist()


@every_case
@pytest.mark.parametrize("seeds", [(1, 2, 4), (4, 4, 6), (None, 1, 6), (2, None, 4)])
def test_states_that_the_next_step_dropped(case: Case, seeds: tuple[int | None, ...]) -> None:
    model = case.build()
    assert isinstance(model, BlockHMM)
    parts = [model.parts(None if seed is None else seeded(seed)) for seed in seeds]
    written = Written(model, parts)
    expected = [written.log_prob(row, WINDOWS) for row in WORDS.tolist()]
    assert run(model, parts) == pytest.approx(expected, rel=1e-10, abs=0)


def test_the_steps_of_that_test_keep_other_states() -> None:
    model = BY_NAME["block-neural-6-2"].build()
    one, two, three = (model.parts(seeded(seed)).keep for seed in (1, 2, 4))
    assert not torch.equal(one, two)
    assert not torch.equal(two, three)


@every_case
def test_a_border_is_a_distribution_over_what_is_kept(case: Case) -> None:
    model = case.build()
    assert isinstance(model, BlockHMM)
    keep = model.parts(seeded(1)).keep
    states = torch.arange(case.config.num_states)[None]
    rows = [model.blocks.border(states, torch.tensor([c]), keep)[0] for c in range(case.config.num_clusters)]
    total = torch.cat(rows, 1).exp().sum(1)
    torch.testing.assert_close(total.detach(), torch.ones_like(total), **EXACT)


@every_case
def test_gradients_pass_a_border(case: Case) -> None:
    """In every parameter, the carried distribution held fixed."""
    model = case.build()
    carried = model.carry(model.potentials(Batch(WORDS[:, :2], torch.full((3,), 2)), generator=seeded(1)))
    batch = Batch(WORDS[:, 2:4], torch.full((3,), 2), first=False)

    def loss(*_: torch.Tensor) -> torch.Tensor:
        return model.log_z(model.potentials(batch, carried=carried, generator=seeded(2)))

    assert torch.autograd.gradcheck(loss, tuple(model.parameters()), fast_mode=True, check_undefined_grad=False)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("carry", [False, True])
def test_sentences_start_afresh_in_training(tied: bool, carry: bool) -> None:
    fields: dict[str, Any] = {"num_states": 6, "num_clusters": 2, "dim": 3, "num_layers": 1, "state_dropout": 0.4}
    config = ModelConfig(family="block", tied=tied, reset_eos=True, **fields)
    model = Case("reset", config).build()
    assert isinstance(model, BlockHMM)
    windows = WINDOWS if carry else [(0, 6)]
    total, carried = torch.zeros(3, dtype=torch.float64), None
    for i, (start, end) in enumerate(windows):
        batch = Batch(WORDS[:, start:end], torch.full((3,), end - start), first=start == 0)
        p = model.potentials(batch, carried=carried, generator=seeded(i))
        total += model.log_z(p).detach()
        carried = model.carry(p)
    written = Written(model, [model.parts(seeded(i)) for i in range(len(windows))])
    rows = WORDS.tolist()
    expected = [written.log_prob(row, windows, reset=True) for row in rows]
    assert total.tolist() == pytest.approx(expected, rel=1e-10, abs=0)
    apart = [written.log_prob(row, windows) for row in rows]
    assert max(abs(a - b) for a, b in zip(expected, apart, strict=True)) > 1e-3


def test_evaluations_never_start_afresh() -> None:
    fields: dict[str, Any] = {"num_states": 6, "num_clusters": 2, "dim": 3, "num_layers": 1}
    model, plain = (Case("", ModelConfig(family="block", reset_eos=reset, **fields)).build() for reset in (True, False))
    batch = Batch(WORDS, torch.full((3,), 6))
    assert torch.equal(model.log_likelihood(batch), plain.log_likelihood(batch))
    trained = model.log_likelihood(batch, generator=seeded())
    assert not torch.equal(trained, plain.log_likelihood(batch))
    # Whoever makes the parts of a training step first, and potentials of them later, gets the same.
    assert torch.equal(model.log_likelihood(batch, parts=model.parts(seeded())), trained)
