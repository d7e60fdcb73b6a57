"""Singular values against those of the written table, in numpy; ranks that are known by construction."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rankfold.analysis import matrix_ranks
from rankfold.analysis.cluster_purity import cluster_purity
from rankfold.analysis.hidden_chain import HiddenChain
from rankfold.analysis.matrix_ranks import Spectrum, emission_spectrum, transition_spectrum
from rankfold.analysis.state_profiles import Use
from rankfold.data.clusters import Clusters, uniform_clusters
from rankfold.errors import DomainError, ShapeError, UnsupportedError
from rankfold.models import HMM, ModelConfig, build_model

FAMILIES = ("hmm", "lhmm", "banded", "rank", "block")


def of(family: str, num_states: int = 12, num_words: int = 7, rank: int = 3) -> HiddenChain:
    config = ModelConfig(family=family, num_states=num_states, rank=rank, dim=4, band=2, num_clusters=2)  # type: ignore[arg-type]
    clusters = uniform_clusters(num_words, 2, seed=0) if family == "block" else None
    model = build_model(config, num_words, clusters=clusters, seed=1).double()
    with torch.no_grad():
        for x in model.parameters():
            x *= 2.0
    return HiddenChain(model)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("num_words", [5, 7, 40])  # more than twice as many states as words, and fewer
def test_they_are_those_of_the_table(family: str, num_words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankfold.analysis.hidden_chain.ENTRIES", 2 * num_words)  # blocks of two rows
    chain = of(family, num_words=num_words)
    every = torch.arange(chain.num_values)
    for found, rows in ((transition_spectrum(chain), chain.next_rows), (emission_spectrum(chain), chain.word_rows)):
        wanted = np.linalg.svd(rows(every).numpy(), compute_uv=False)
        assert found.shape == tuple(rows(every).shape)
        np.testing.assert_allclose(found.values, wanted[: len(found.values)], rtol=1e-9, atol=1e-13)
        assert found.rank(1e-9) == (wanted > 1e-9).sum() <= found.bound


def test_the_rank_of_a_low_rank_transition_is_its_bound_at_most() -> None:
    found = transition_spectrum(of("lhmm", rank=3))
    assert found.bound == 3
    assert found.rank(1e-9) == 3
    assert found.summary()["largest"] >= 1  # a stochastic matrix


def test_a_threshold_of_0_and_a_table_beyond_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DomainError, match="threshold is 0"):
        Spectrum(np.ones(2), (2, 2), 2).rank(0)
    monkeypatch.setattr(matrix_ranks, "available", lambda device: 100)
    with pytest.raises(UnsupportedError, match="GiB are free"):
        transition_spectrum(of("hmm"))
    with pytest.raises(UnsupportedError, match="GiB are free"):
        transition_spectrum(of("lhmm"))


def test_purity_by_hand() -> None:
    emission = torch.tensor([[0.7, 0.2, 0.1, 0.0], [0.0, 0.0, 0.5, 0.5]])
    chain = HiddenChain(HMM.from_tables(torch.tensor([1.0, 0.0]), torch.full((2, 2), 0.5), emission))
    use = Use(np.array([0.25, 0.75]), np.array([0.25, 0.75]))
    found = cluster_purity(chain, use, Clusters(torch.tensor([0, 0, 1, 1]), 2))
    assert found.cluster.tolist() == [0, 1]
    np.testing.assert_allclose(found.purity, [0.9, 1.0], rtol=1e-6)
    assert found.mean == pytest.approx(0.25 * 0.9 + 0.75)
    assert found.chance == pytest.approx(0.025 + 0.75)
    p = 0.025 / 0.775
    assert found.states.tolist() == pytest.approx([1.0, np.exp(-p * np.log(p) - (1 - p) * np.log(1 - p))], rel=1e-5)
    with pytest.raises(ShapeError, match="clusters are of 3 words"):
        cluster_purity(chain, use, Clusters(torch.tensor([0, 0, 1]), 2))


def test_states_of_one_cluster_are_pure() -> None:
    chain = of("block", num_words=8)
    clusters = uniform_clusters(8, 2, seed=0)
    use = Use(np.full(12, 1 / 12), np.full(12, 1 / 12))
    assert cluster_purity(chain, use, clusters).mean == pytest.approx(1, abs=1e-12)
