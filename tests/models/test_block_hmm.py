"""The block model against the same model written out as a full chain over all states."""

import pytest
import torch

from rankfold import ChainPotentials, Dense, DomainError, entropy, posterior, viterbi
from rankfold.data.batch import streams
from rankfold.data.clusters import Clusters
from rankfold.models import BlockHMM, ModelConfig, build_model
from rankfold.recursions import chain
from tests.models.cases import CASES, Case, seeded, some_strings, tables
from tests.params.build import EXACT

BLOCKS = [case for case in CASES if case.config.family == "block"]
every_case = pytest.mark.parametrize("case", BLOCKS, ids=lambda case: case.name)
dropout_or_not = pytest.mark.parametrize("dropout", [False, True])


def both(case: Case, dropout: bool) -> tuple[BlockHMM, object, ChainPotentials]:
    """A model, its potentials of a batch, and the full chain of the same tables."""
    model = case.build()
    assert isinstance(model, BlockHMM)
    parts = model.parts(seeded(2) if dropout else None)
    batch = some_strings()
    written = tables(parts)
    full = ChainPotentials(
        written.start.log(), Dense(written.transition), written.emission.log().mT[batch.values], lengths=batch.lengths
    )
    return model, model.potentials(batch, parts=parts), full


@every_case
@dropout_or_not
def test_the_full_chain_says_the_same(case: Case, dropout: bool) -> None:
    model, potentials, full = both(case, dropout)
    query = model.query(potentials)
    torch.testing.assert_close(query.log_partition.detach(), chain.log_z(full), **EXACT)
    torch.testing.assert_close(query.entropy().detach(), entropy(full), **EXACT)
    probability = posterior(full).state
    inside = torch.arange(4) < some_strings().lengths[:, None]
    own = probability.gather(-1, query.potentials.states())
    torch.testing.assert_close(query.posterior().state.detach(), own, **EXACT)
    torch.testing.assert_close(own.sum(-1), inside.double(), **EXACT)
    assert torch.equal(query.viterbi().path, viterbi(full).path)
    assert query.num_values == full.transition.shape[0]


@every_case
def test_streams(case: Case) -> None:
    """Seven sentences in three streams: the last window has fewer rows than the one before."""
    model = case.build()
    text = [[0, 1, 2], [2], [1, 1, 0, 2], [0, 0], [2, 1], [1], [0, 2, 2]]
    batches = streams(text, 3, 5)
    assert [len(batch.values) for batch in batches] == [3, 1]
    whole = streams(text, 3, 100)
    parts = model.parts()
    total, carried = torch.zeros(3, dtype=torch.float64), None
    for batch in batches:
        potentials = model.potentials(batch, parts=parts, carried=carried)
        total[: len(batch.values)] += model.log_z(potentials).detach()
        carried = model.carry(potentials)
    torch.testing.assert_close(total, model.log_likelihood(whole[0]).detach(), **EXACT)


def test_clusters_must_fit() -> None:
    config = ModelConfig(family="block", num_states=4, num_clusters=2, dim=2)
    with pytest.raises(DomainError, match="needs the cluster of every word"):
        build_model(config, 3)
    with pytest.raises(DomainError, match="1 clusters of 3 words were given, but the model has 2 clusters of 3"):
        build_model(config, 3, clusters=Clusters(torch.tensor([0, 0, 0]), 1))
    with pytest.raises(DomainError, match="2 clusters of 2 words were given, but the model has 2 clusters of 3"):
        build_model(config, 3, clusters=Clusters(torch.tensor([0, 1]), 2))
    with pytest.raises(DomainError, match="cluster 1 of 2 has no word"):
        build_model(config, 3, clusters=Clusters(torch.tensor([0, 0, 0]), 2))


def test_parameters_of_other_clusters_are_refused_or_understood() -> None:
    """Loaded into a model of other clusters, they must not make something that is no distribution."""
    config = ModelConfig(family="block", num_states=4, num_clusters=2, dim=2)
    one, other = (
        build_model(config, 4, clusters=Clusters(torch.tensor(assignment), 2)).double()
        for assignment in ([0, 0, 1, 1], [0, 1, 1, 1])
    )
    try:
        other.load_state_dict(one.state_dict())
    except (ValueError, RuntimeError):
        return
    words = torch.arange(4)[:, None]
    torch.testing.assert_close(other(words).log_partition, one(words).log_partition, **EXACT)
