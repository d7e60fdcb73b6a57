"""The map of states: neighbours of the features are neighbours on it, and its trustworthiness is the known measure."""

import pytest
import torch
from sklearn.manifold import trustworthiness as oracle

from rankfold.explore.state_map import features, sketch_matrix, state_map, trustworthiness


def groups(num: int, generator: torch.Generator) -> torch.Tensor:
    centres = 4 * torch.randn(6, 10, generator=generator)
    return centres[torch.arange(num) % 6] + 0.3 * torch.randn(num, 10, generator=generator)


@pytest.mark.parametrize(("num", "k"), [(40, 10), (63, 5), (130, 10)])
def test_trustworthiness_is_that_of_scikit_learn(num: int, k: int, generator: torch.Generator) -> None:
    feature, place = torch.randn(num, 7, generator=generator), torch.randn(num, 2, generator=generator)
    expected = oracle(feature.double().numpy(), place.double().numpy(), n_neighbors=k)
    # Exact but for distances equal to rounding, of which random numbers have none.
    assert trustworthiness(feature, place, k) == pytest.approx(expected, rel=0, abs=1e-12)


def test_of_many_states_a_sample_is_checked(monkeypatch: pytest.MonkeyPatch, generator: torch.Generator) -> None:
    feature, place = torch.randn(200, 7, generator=generator), torch.randn(200, 2, generator=generator)
    exact = trustworthiness(feature, place)
    monkeypatch.setattr("rankfold.explore.state_map.SAMPLE", 100)
    assert trustworthiness(feature, place) != exact
    assert trustworthiness(feature, place) == pytest.approx(exact, abs=0.05)  # half of the states tell the rest


def test_like_states_lie_together_and_the_same_seed_gives_the_same_map(generator: torch.Generator) -> None:
    feature = groups(180, generator)
    found = state_map(feature, seed=3)
    assert found.trust > 0.9
    assert found.place.min() >= 0
    assert found.place.max() <= 1
    own = torch.arange(180) % 6
    assert bool((own[found.nearest[:, 0]] == own).all())
    apart = torch.cdist(found.place, found.place).fill_diagonal_(9).argmin(1)
    assert bool((own[apart] == own).float().mean() > 0.95)
    assert torch.equal(found.place, state_map(feature, seed=3).place)
    assert not torch.equal(found.place, state_map(feature, seed=4).place)


@pytest.mark.parametrize("num", [1, 2, 3, 5])
def test_few_states_have_a_map(num: int, generator: torch.Generator) -> None:
    found = state_map(torch.randn(num, 8, generator=generator))
    assert found.place.shape == (num, 2)
    assert bool(found.place.isfinite().all())
    assert found.nearest.shape == (num, num - 1)
    assert 0 <= found.trust <= 1
    assert found.k == (num - 1) // 2


def test_equal_states_have_a_map() -> None:
    found = state_map(torch.ones(20, 8))
    assert bool(found.place.isfinite().all())


def test_features_keep_distances_of_square_root_emissions(generator: torch.Generator) -> None:
    emission = torch.rand(30, 400, generator=generator).pow(6)
    root = (emission / emission.sum(1, keepdim=True)).sqrt()
    sketch = root @ sketch_matrix(400)
    kept = torch.cdist(sketch, sketch)[torch.triu_indices(30, 30, 1).unbind()]
    true = torch.cdist(root, root)[torch.triu_indices(30, 30, 1).unbind()]
    assert bool(((kept / true - 1).abs().mean() < 0.1).all())  # 96 directions: about 1 / sqrt(2 * 96) = 7%
    both = features(sketch, torch.zeros_like(sketch))
    assert both.shape == (30, 192)
    assert float(both.square().sum(1).mean()) == pytest.approx(1, abs=1e-5)
